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

    Examples:
        >>> Needs(measures=("margin",)).looks
        True
    """

    measures: tuple[str, ...] = ()
    labelled_measures: tuple[str, ...] = ()
    representation: Representation | None = None
    state: bool = False
    looks: bool = True

    def __post_init__(self) -> None:
        if not self.looks and (self.measures or self.labelled_measures or self.representation or self.state):
            raise ConfigError(
                "Needs(looks=False) computes nothing about the candidates; leave out measures, labelled_measures, "
                "representation and state, or set looks=True"
            )


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
