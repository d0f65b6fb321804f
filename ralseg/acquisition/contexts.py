"""Contexts: numbers that describe a step as a whole, so that a policy can weigh features otherwise in other situations.

Features are z-scored among the candidates of a step, which takes away how sure the segmenter is at all, how many
classes there are and how much is labelled. Contexts tell just that. Like features they know neither the number nor the
names of the classes; each lies between about -1/2 and 1/2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from ralseg.acquisition.candidates import Candidates
from ralseg.errors import ConfigError


@dataclass(frozen=True)
class Context:
    """A named context, and what must be measured for it."""

    describe: Callable[[Candidates], Tensor]  # gives []
    measures: tuple[str, ...] = ()  # of the candidates


def confidence(candidates: Candidates) -> Tensor:
    """How sure the segmenter is of the candidates: the mean gap between the two most probable classes."""
    return candidates.seen.measures["margin"].mean() - 0.5


def variety(candidates: Candidates) -> Tensor:
    """How many classes known labels hold, rare ones counted for less: -1/2 for one class, 1/2 for sixteen."""
    shares = candidates.known.sum(0)
    entropy: Tensor = torch.special.entr(shares / shares.sum().clamp(min=1e-9)).sum()
    return entropy / torch.log(torch.tensor(16.0)) - 0.5


def experience(candidates: Candidates) -> Tensor:
    """How many regions are known: -1/2 for one, 0 for a hundred."""
    return torch.tensor(float(max(1, len(candidates.known)))).log10() / 4 - 0.5


CONTEXTS = {
    "confidence": Context(confidence, ("margin",)),
    "variety": Context(variety),
    "experience": Context(experience),
}


def find_context(name: str) -> Context:
    """The context of a name; an unknown one is an error that lists those there are."""
    if name not in CONTEXTS:
        close = get_close_matches(name, CONTEXTS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ConfigError(f"there is no context {name!r}{hint} Contexts are {', '.join(CONTEXTS)}")
    return CONTEXTS[name]
