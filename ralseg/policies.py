"""Policies: each gives the candidates of a step their scores, and nothing else."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ralseg.errors import ConfigError
from ralseg.query import QueryNetwork
from ralseg.representation import Observation, Representation


@dataclass(frozen=True)
class Needs:
    """What a policy wants to see beside entropy and predicted classes; nothing else is computed.

    Args:
        measures: Measures of the candidates by name, see ``measures.py``.
        labelled_measures: Measures of the regions labelled so far.
        representation: Features of sub-actions, for a query network.
        state: Features of the state set too.
        looks: Look at the candidates at all; if not, there are no entropies and predicted classes either.
    """

    measures: tuple[str, ...] = ()
    labelled_measures: tuple[str, ...] = ()
    representation: Representation | None = None
    state: bool = False
    looks: bool = True

    def __post_init__(self) -> None:
        if not self.looks and (self.measures or self.labelled_measures or self.representation or self.state):
            raise ConfigError(
                "Needs(looks=False): who does not look cannot ask for measures, features or the state set"
            )


class Policy(ABC):
    """Scores regions; the loop draws the pools and takes the best of each. Subclass it for your own."""

    needs = Needs()

    @abstractmethod
    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Scores of the step's candidates, higher is better: [K, N]."""


class Learned(Policy):
    """The query network's Q.

    Args:
        query: The network.
    """

    def __init__(self, query: QueryNetwork) -> None:
        self.query = query
        self.needs = Needs(query.representation.measures, representation=query.representation, state=query.use_state)

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Q of each candidate."""
        values: Tensor = self.query(observation)
        return values.cpu()


class Perturbed(Policy):
    """A policy pushed in a random direction of feature space, to learn how return changes there.

    Args:
        policy: The policy to perturb.
        strength: Size of the push in standard deviations of the policy's own scores.
        generator: Draws the direction; the same one with ``sign`` -1 gives the antithetic twin.
        sign: 1 or -1.
    """

    def __init__(self, policy: Policy, strength: float, generator: torch.Generator, sign: int) -> None:
        self.policy, self.strength, self.sign = policy, strength, sign
        self.needs = policy.needs
        self.direction_seed = int(torch.randint(2**62, (), generator=generator))

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Standardised scores plus a random linear function of the features."""
        own = self.policy.scores(observation, generator)
        actions = observation.actions.cpu().flatten(0, 1)
        direction = torch.randn(
            actions.shape[1], generator=torch.Generator().manual_seed(self.direction_seed), dtype=actions.dtype
        )
        push = ((actions - actions.mean(0)) @ direction).reshape(own.shape)
        return _unit(own) + self.sign * self.strength * _unit(push)


def _unit(values: Tensor) -> Tensor:
    """Zero mean and unit deviation; a constant stays at zero."""
    centred = values - values.mean()
    return centred / centred.std(correction=0).clamp(min=1e-8)


def choose(scores: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """Epsilon-greedy, pool by pool: the best of [K, N], or with probability epsilon any: [K]."""
    num_pools, pool_size = scores.shape
    explores = torch.rand(num_pools, generator=generator) < epsilon
    anything = torch.randint(pool_size, (num_pools,), generator=generator)
    return torch.where(explores, anything, scores.argmax(1))
