"""A perturbed policy: it explores by whole episodes instead of by single regions."""

import torch
from torch import Tensor

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Needs, Policy


class Perturbed(Policy):
    """A policy pushed in a random direction of feature space, to learn how return changes there.

    Args:
        policy: The policy to perturb.
        strength: Size of the push in standard deviations of the policy's own scores.
        generator: Draws the direction; the same one with ``sign`` -1 gives the antithetic counterpart.
        sign: 1 or -1.

    Examples:
        >>> from ralseg.acquisition.heuristics import Entropy
        >>> Perturbed(Entropy(), 0.7, torch.Generator().manual_seed(0), sign=-1).sign
        -1
    """

    def __init__(self, policy: Policy, strength: float, generator: torch.Generator, sign: int) -> None:
        self.policy, self.strength, self.sign = policy, strength, sign
        self.needs: Needs = policy.needs
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
