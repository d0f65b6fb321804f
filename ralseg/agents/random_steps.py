"""A policy that plays some steps at random: all regions of such a step, or none."""

import torch
from torch import Tensor

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Needs, Policy


class RandomSteps(Policy):
    """Explores by whole steps: one draw decides for all K regions.

    Args:
        policy: Who chooses in the other steps.
        share: Probability of a random step.

    Examples:
        >>> from ralseg.acquisition.heuristics import Entropy
        >>> RandomSteps(Entropy(), 0.3).share
        0.3
    """

    def __init__(self, policy: Policy, share: float) -> None:
        self.policy, self.share = policy, share
        self.needs: Needs = policy.needs

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Random scores in a random step, else the policy's: [K, N]."""
        if float(torch.rand((), generator=generator)) < self.share:
            return torch.rand(observation.pools.shape, generator=generator)
        return self.policy.scores(observation, generator)
