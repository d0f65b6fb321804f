"""Credit regression: forecast what each region alone would bring, from roll-outs of the policy itself."""

from typing import Any

import torch
from torch import Tensor

from ralseg.acquisition.features import standardised
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.representation import FeatureSet
from ralseg.agents.base import POLICY, PlayedStep
from ralseg.agents.feature_agent import (
    FeatureAgent,
    check_above_zero,
    check_at_least_one,
    check_share,
    make_policy,
    set_weights,
)
from ralseg.errors import ConfigError

CORRELATION = "policy/correlation"
"""Of forecast and credit within steps, before they were learned from; a moving average."""
RECENT = 0.02
"""What the newest step counts in it."""


class CreditRegression(FeatureAgent):
    """Regresses the counterfactual credit of every candidate on its features ("ours").

    All K regions of a step share one reward. A closed-form segmenter can tell what each candidate, chosen or not,
    would bring alone (the measure ``credit``), so a step gives K x N targets instead of one. They are z-scored within
    the step: what counts is which region is better. The weights are those of a ridge regression on all steps so far,
    solved anew after each group of episodes; the next group is played with them.

    Args:
        features: Names of features, see ``ralseg/acquisition/named_features.py``; ``general``: all that ralseg has.
        start: Weights that the regression is shrunk to, ``{rarity: 0.1}``; None: 0.
        start_from: File of a policy whose weights it is shrunk to, ``ralseg`` for the built-in one. Features,
            context and randomness are that policy's. None: ``start``.
        shrinkage: Pull towards them, worth so many steps of experience.
        forget: Share of its weight that experience keeps at each update; 1: nothing is forgotten.
        epsilon: Share of random sub-actions, so that credit is known of what the policy does not choose next.
        episodes_per_update: Episodes before the regression is solved anew; each has a theta_0 and draws of its own.
        context: Names of what describes the step as a whole, see ``ralseg/acquisition/contexts.py``.
        randomness: Of the policy, see :class:`FeaturePolicy`.

    Examples:
        >>> CreditRegression().teacher
        'credit'
    """

    teacher = "credit"
    gram: Tensor  # [P, P] sum of x x'
    cross: Tensor  # [P] sum of x y

    def __init__(
        self,
        features: FeatureSet | list[str] = "general",
        start: dict[str, float] | None = None,
        shrinkage: float = 10.0,
        forget: float = 1.0,
        epsilon: float = 0.1,
        episodes_per_update: int = 4,
        context: list[str] | None = None,
        randomness: float = 0.0,
        start_from: str | None = None,
    ) -> None:
        check_above_zero(shrinkage=shrinkage)
        check_share(forget=forget)
        check_at_least_one(episodes_per_update=episodes_per_update)
        if not 0 <= epsilon <= 1:
            raise ConfigError(f"agent epsilon={epsilon} must lie in [0, 1]")
        policy = make_policy(start_from, features=features, start=start, context=context, randomness=randomness)
        if policy.hidden:
            raise ConfigError(f"agent start_from: {start_from} has a hidden layer, and a regression is linear")
        super().__init__(policy, [POLICY], episodes_per_update, start_from)
        self.shrinkage, self.forget, self._epsilon = shrinkage, forget, epsilon

    def build(self, class_names: tuple[str, ...], num_state_regions: int, steps_per_episode: int, seed: int) -> None:
        """Make the weights, and forget all credit."""
        super().build(class_names, num_state_regions, steps_per_episode, seed)
        number = (2 + len(self.policy.context)) * len(self.policy.names)
        self.register_buffer("gram", torch.zeros(number, number, dtype=torch.float64))
        self.register_buffer("cross", torch.zeros(number, dtype=torch.float64))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """None is needed; Lightning wants one."""
        return torch.optim.SGD(self.policy.net.parameters(), lr=0.0)

    def epsilon(self, training_steps: int) -> float:
        """Share of random sub-actions."""
        return self._epsilon

    # -- learning ---------------------------------------------------------------------------------

    def remember(self, step: PlayedStep, following: Observation | None) -> None:
        """Add the credit of all candidates of the step."""
        super().remember(step, following)
        assert step.lesson is not None
        seen = step.actions[..., :-1].flatten(0, 1)
        inputs = self.policy.net.inputs(seen.double())
        worth = standardised(step.lesson.flatten()[:, None].double())[:, 0]
        forecast = self.policy.net(seen.to(self.policy.net.weight.device)).detach().cpu().double()
        before = self.figures.get(CORRELATION, 0.0)
        self.figures[CORRELATION] = before + RECENT * (_correlation(forecast, worth) - before)
        self.gram += (inputs.T @ inputs).to(self.gram) / len(inputs)
        self.cross += (inputs.T @ worth).to(self.cross) / len(inputs)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Solve the ridge regression."""
        penalty = self.shrinkage * torch.eye(len(self.cross)).to(self.gram)
        solved = torch.linalg.solve(self.gram + penalty, self.cross + self.shrinkage * self.begin.to(self.cross))
        set_weights(self.policy.net, solved)
        self.gram *= self.forget
        self.cross *= self.forget

    def rules(self) -> dict[str, Any]:
        """The agent, its policy, and how it regresses."""
        own = {"shrinkage": self.shrinkage, "forget": self.forget, "epsilon": self._epsilon}
        return super().rules() | own


def _correlation(first: Tensor, second: Tensor) -> float:
    """Pearson's; 0 where one of them is constant: [R], [R]."""
    if min(first.std(), second.std()) < 1e-12:
        return 0.0
    return float(torch.corrcoef(torch.stack([first, second]))[0, 1])
