"""Policy search: try weights in pairs that mirror each other, and go where the better of each pair lies."""

from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from ralseg.acquisition.policy import Policy
from ralseg.acquisition.representation import FeatureSet
from ralseg.agents.base import Episode
from ralseg.agents.feature_agent import (
    FeatureAgent,
    Shifted,
    all_weights,
    check_above_zero,
    check_at_least_one,
    check_share,
    make_policy,
    set_gradient,
    set_weights,
)
from ralseg.runtime.seeding import stream

PLUS, MINUS = "plus", "minus"
"""The roles of a pair: the same push of the weights, in opposite directions."""


class PolicySearch(FeatureAgent):
    """Learns from the returns of whole games, by an antithetic evolution strategy ("ours").

    The two episodes of a block share theta_0 and every random draw. One plays with the policy's weights pushed in a
    random direction, the other with the opposite push; the difference of their areas is the slope in that direction.
    After ``pairs`` blocks the optimizer follows the mean slope. The policy that is validated and kept is an average
    over updates, which is less noisy than the last one.

    Args:
        features: Names of features, see ``ralseg/acquisition/named_features.py``; ``general``: all that ralseg has.
        hidden: Units of the policy's hidden layer; 0: linear.
        start: Weights of single features at first, ``{rarity: 1.0, bald: 1.0}``; None: none.
        start_from: File of a policy whose weights learning goes on from, ``ralseg`` for the built-in one. Features,
            hidden units, context and randomness are that policy's. None: begin anew.
        deviation: Size of a push in the direction of each weight.
        pairs: Pairs of episodes before an update.
        average: Share of the new weights in the policy after each update; 1: the newest alone.
        optimizer: Made for the weights.
        context: Names of what describes the step as a whole, see ``ralseg/acquisition/contexts.py``.
        randomness: Of the policy, see :class:`FeaturePolicy`.

    Examples:
        >>> PolicySearch(pairs=3).block
        ['plus', 'minus']
    """

    centre: Tensor  # [P] where pairs are drawn around

    def __init__(
        self,
        features: FeatureSet | list[str] = "general",
        hidden: int = 0,
        start: dict[str, float] | None = None,
        start_from: str | None = None,
        deviation: float = 0.25,
        pairs: int = 6,
        average: float = 0.2,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=0.06),
        context: list[str] | None = None,
        randomness: float = 0.0,
    ) -> None:
        check_above_zero(deviation=deviation)
        check_share(average=average)
        check_at_least_one(pairs=pairs)
        options = {"hidden": hidden, "start": start, "context": context, "randomness": randomness}
        policy = make_policy(start_from, features=features, **options)
        super().__init__(policy, [PLUS, MINUS], pairs, start_from)
        self.deviation, self.average, self._optimizer = deviation, average, optimizer

    def build(self, class_names: tuple[str, ...], num_state_regions: int, steps_per_episode: int, seed: int) -> None:
        """Make the weights, and begin the search at them."""
        super().build(class_names, num_state_regions, steps_per_episode, seed)
        self.register_buffer("centre", all_weights(self.policy))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Optimizer of the weights."""
        return self._optimizer(self.policy.net.parameters())

    # -- playing ----------------------------------------------------------------------------------

    def push(self, draw: int, seed: int) -> Tensor:
        """The direction of a pair: [P]."""
        return torch.randn(self.centre.shape, generator=stream(seed, "push", draw))

    def player(self, episode: Episode, seed: int) -> Policy:
        """One of a pair, or the policy itself."""
        if episode.role not in (PLUS, MINUS):
            return super().player(episode, seed)
        size = self.deviation if episode.role == PLUS else -self.deviation
        return Shifted(self.policy, lambda: self.centre.cpu() + size * self.push(episode.draw, seed))

    # -- learning ---------------------------------------------------------------------------------

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Follow the mean slope of the group's pairs."""
        areas, mean = self.areas(), all_weights(self.policy)
        slope = torch.zeros_like(mean)
        for block, (plus, minus) in enumerate(areas.tolist()):
            slope += (plus - minus) / (2 * self.deviation) * self.push(self.draw_of(block), self.seed) / len(areas)
        self.figures = {"policy/slope": float(slope.norm())}
        set_weights(self.policy.net, self.centre)
        set_gradient(self.policy.net, -slope)
        optimizer.step()
        self.centre.copy_(all_weights(self.policy))
        set_weights(self.policy.net, mean.lerp(self.centre.cpu(), self.average))

    def rules(self) -> dict[str, Any]:
        """The agent, its policy, and how it searches."""
        return super().rules() | {"deviation": self.deviation, "average": self.average}
