"""Group advantage: a policy gradient on groups of episodes that differ in nothing but the weights they drew."""

import math
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from ralseg.acquisition.policy import Policy
from ralseg.acquisition.representation import FeatureSet
from ralseg.agents.base import Episode
from ralseg.agents.feature_agent import (
    FeatureAgent,
    Shifted,
    all_weights,
    check_above_zero,
    check_at_least_one,
    make_policy,
    set_gradient,
)
from ralseg.errors import ConfigError
from ralseg.runtime.seeding import stream

SAMPLED = "sampled"
"""The role of an episode that draws its weights."""


class GroupAdvantage(FeatureAgent):
    """Learns a distribution of weights by policy gradient, with the rest of the group as a baseline ("ours").

    The policy is stochastic: an episode draws the weights that it plays with, each from a normal distribution of its
    own. The episodes of a group share theta_0 and every other draw. An episode's advantage is its area less the mean
    area of the others (leave one out), so luck that all share cancels, and the baseline does not depend on what it
    judges. Means and deviations of the weights follow the gradient of the expected area. Weights are drawn for a whole
    episode, not regions one by one: the mean of K single draws hardly moves, and teaches nothing.

    Args:
        features: Names of features, see ``ralseg/acquisition/named_features.py``; ``general``: all that ralseg has.
        hidden: Units of the policy's hidden layer; 0: linear.
        start: Weights of single features at first, ``{rarity: 1.0, bald: 1.0}``; None: none.
        start_from: File of a policy whose weights learning goes on from, ``ralseg`` for the built-in one. Features,
            hidden units, context and randomness are that policy's. None: begin anew.
        deviation: Deviation of every weight at first.
        smallest_deviation: Deviations do not fall below this: something must be tried for something to be learned.
        group_size: Episodes in a group.
        groups: Groups before an update; each has a theta_0 and draws of its own.
        optimizer: Made for means and logarithms of deviations.
        context: Names of what describes the step as a whole, see ``ralseg/acquisition/contexts.py``.
        randomness: Of the policy, see :class:`FeaturePolicy`.

    Examples:
        >>> GroupAdvantage(group_size=4).block
        ['sampled', 'sampled', 'sampled', 'sampled']
    """

    def __init__(
        self,
        features: FeatureSet | list[str] = "general",
        hidden: int = 0,
        start: dict[str, float] | None = None,
        start_from: str | None = None,
        deviation: float = 0.25,
        smallest_deviation: float = 0.05,
        group_size: int = 6,
        groups: int = 2,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=0.06),
        context: list[str] | None = None,
        randomness: float = 0.0,
    ) -> None:
        check_above_zero(deviation=deviation, smallest_deviation=smallest_deviation)
        check_at_least_one(groups=groups)
        if group_size < 2:
            raise ConfigError(f"agent group_size={group_size} must be at least 2: a group compares episodes")
        options = {"hidden": hidden, "start": start, "context": context, "randomness": randomness}
        policy = make_policy(start_from, features=features, **options)
        super().__init__(policy, [SAMPLED] * group_size, groups, start_from)
        self.deviation, self.smallest_deviation, self._optimizer = deviation, smallest_deviation, optimizer

    def build(self, class_names: tuple[str, ...], num_state_regions: int, steps_per_episode: int, seed: int) -> None:
        """Make the weights, and their deviations."""
        super().build(class_names, num_state_regions, steps_per_episode, seed)
        self.log_deviation = nn.Parameter(torch.full_like(all_weights(self.policy), math.log(self.deviation)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Optimizer of means and deviations."""
        return self._optimizer([*self.policy.net.parameters(), self.log_deviation])

    # -- playing ----------------------------------------------------------------------------------

    def noise(self, draw: int, member: int, seed: int) -> Tensor:
        """What an episode draws, in deviations of the weights: [P]."""
        return torch.randn(self.log_deviation.shape, generator=stream(seed, f"weights of {member}", draw))

    def player(self, episode: Episode, seed: int) -> Policy:
        """The policy with weights of its own, or as it is."""
        if episode.role != SAMPLED:
            return super().player(episode, seed)

        def draw() -> Tensor:
            deviation = self.log_deviation.detach().cpu().exp()
            return all_weights(self.policy) + deviation * self.noise(episode.draw, episode.member, seed)

        return Shifted(self.policy, draw)

    # -- learning ---------------------------------------------------------------------------------

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Follow the gradient of the expected area."""
        areas = self.areas()
        advantages = leave_one_out(areas)
        noise = torch.stack(
            [
                torch.stack([self.noise(self.draw_of(group), member, self.seed) for member in range(areas.shape[1])])
                for group in range(len(areas))
            ]
        )  # [groups, members, P]
        worth = (advantages.float() / areas.numel())[..., None]
        deviation = self.log_deviation.detach().cpu().exp()
        set_gradient(self.policy.net, -(worth * noise / deviation).sum((0, 1)))
        self.log_deviation.grad = -(worth * (noise.square() - 1)).sum((0, 1)).to(self.log_deviation)
        optimizer.step()
        with torch.no_grad():
            self.log_deviation.clamp_(min=math.log(self.smallest_deviation))
        mean_deviation = float(self.log_deviation.detach().exp().mean())
        self.figures = {"policy/spread": float(areas.std(1).mean()), "policy/deviation": mean_deviation}

    def rules(self) -> dict[str, Any]:
        """The agent, its policy, and how it explores."""
        own = {"deviation": self.deviation, "smallest_deviation": self.smallest_deviation}
        return super().rules() | own


def leave_one_out(values: Tensor) -> Tensor:
    """Each value less the mean of the others in its row: [groups, members] -> [groups, members].

    Examples:
        >>> leave_one_out(torch.tensor([[3.0, 1.0, 2.0]])).tolist()
        [[1.5, -1.5, 0.0]]
    """
    others = values.shape[1] - 1
    return values - (values.sum(1, keepdim=True) - values) / others
