"""Policies: each gives the candidates of a step their scores, and nothing else."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.representation import Representation
from ralseg.errors import ConfigError


@dataclass(frozen=True)
class Needs:
    """What a policy wants to see beside entropy and predicted classes; nothing else is computed.

    Args:
        measures: Measures of the candidates by name, see ``measures.py``.
        labelled_measures: Measures of the regions labelled so far.
        representation: Features of sub-actions, for a query network.
        state: Features of the state set too.
        looks: Look at the candidates at all; if not, there are no entropies and predicted classes either.
        pictures: The predicted classes of each candidate as a small picture, see ``pictures.py``; for those who tell
            people, policies need none.

    Examples:
        >>> Needs(measures=("margin",)).looks
        True
    """

    measures: tuple[str, ...] = ()
    labelled_measures: tuple[str, ...] = ()
    representation: Representation | None = None
    state: bool = False
    looks: bool = True
    pictures: bool = False

    def __post_init__(self) -> None:
        if not self.looks and (self.measures or self.labelled_measures or self.representation or self.state):
            raise ConfigError(
                "Needs(looks=False) computes nothing about the candidates; leave out measures, labelled_measures, "
                "representation and state, or set looks=True"
            )


@dataclass(frozen=True)
class Reasons:
    """What the scores of a step follow from, for people who ask why a region was chosen.

    Where there are weights, a score is the sum of its values times the weights, and of what ``rest`` names.

    Examples:
        >>> Reasons(("entropy",), torch.zeros(2, 5, 1)).weights is None
        True
    """

    names: tuple[str, ...]  # F of them
    values: Tensor  # [K, N, F] of the candidates
    weights: Tensor | None = None  # [F]; None: the score is no sum of these values
    rest: str = ""  # what else the score holds; empty: nothing


class Policy(ABC):
    """Scores regions; the run draws the pools and takes the best of each. Subclass it for your own.

    Examples:
        >>> class MostVaried(Policy):
        ...     def scores(self, observation, generator):
        ...         return torch.special.entr(observation.histogram).sum(-1)
    """

    needs = Needs()

    @abstractmethod
    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Scores of the step's candidates, higher is better: [K, N]."""

    def reasons(self, observation: Observation) -> Reasons:
        """What people are told beside the scores: the entropy, single measures and named features that it reads.

        Args:
            observation: What :meth:`scores` was given.
        """
        told = {} if not self.needs.looks else {"entropy": observation.entropy}
        told |= {name: values for name, values in observation.measures.items() if values.dim() == 2}
        kind = self.needs.representation
        names = kind.names if kind else ()
        told |= dict(zip(names, observation.actions[..., -1 - len(names) : -1].unbind(-1), strict=True))
        values = torch.stack([one.float().cpu() for one in told.values()], -1) if told else None
        return Reasons(tuple(told), torch.empty(*observation.pools.shape, 0) if values is None else values)


def epsilon_greedy(scores: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """The best of each pool or, with probability epsilon, any: [K, N] -> [K].

    Examples:
        >>> epsilon_greedy(torch.tensor([[1.0, 3.0, 2.0]]), 0.0, torch.Generator()).tolist()
        [1]
    """
    num_pools, pool_size = scores.shape
    explores = torch.rand(num_pools, generator=generator) < epsilon
    anything = torch.randint(pool_size, (num_pools,), generator=generator)
    return torch.where(explores, anything, scores.argmax(1))
