"""Regression on paired blocks: compare episodes that differ in nothing but who plays."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Policy
from ralseg.acquisition.representation import FeatureSet, Prior
from ralseg.agents.base import Episode, PlayedStep
from ralseg.agents.perturbed import Perturbed
from ralseg.agents.query_agent import QueryAgent
from ralseg.agents.query_network import QueryNetwork
from ralseg.agents.replay import Minibatch, StepMemory, collate
from ralseg.errors import ConfigError
from ralseg.runtime.seeding import stream

PERTURBED = "perturbed"
"""The role of an episode that a perturbed copy of the policy plays."""
POINTS = 100.0
"""Gains of mean IoU are counted in points."""


class PairedBlocks(QueryAgent):
    """Regresses Monte-Carlo returns of blocks on the features of what was chosen ("ours").

    The episodes of a block share theta_0 and every random draw. A step's reward is its gain less the block's mean at
    that step, so luck that all episodes share cancels. The mean Q of a step's sub-actions is to equal the return.
    The network is linear and corrects a prior.

    Args:
        features: See ``Representation``.
        standardise: Z-score the features over each step's candidates.
        prior: ``entropy``, ``margin`` or ``bald``: the heuristic that the policy starts from.
        prior_weight: Weight of the prior's standardised score; what is learned corrects it. 0: none.
        block: Who plays: ``policy``, ``perturbed``, or a heuristic's name.
        perturbation: How far ``perturbed`` episodes stray, in deviations of the policy's scores; successive
            ones in a block stray in opposite directions.
        epsilon_start: Share of random sub-actions at first.
        epsilon_end: Share of random sub-actions in the end.
        epsilon_decay: Training steps in which the excess over ``epsilon_end`` falls to 1/e.
        gamma: Discount.
        batch_size: Sub-actions in an update; whole steps are drawn.
        updates_per_step: Updates for each step that enters the replay.
        replay_size: Sub-actions kept.
        gradient_clip: Largest norm of the gradient; 0 for none.
        shrinkage: Pull of the weights towards 0 (towards the prior alone), worth so many steps of experience:
            it fades as the replay fills (a Gaussian prior on the weights). 0: none.
        optimizer: Made for the network's parameters.

    Examples:
        >>> PairedBlocks(block=["entropy", "policy"]).block
        ['entropy', 'policy']
    """

    learns_after_blocks = 1

    def __init__(
        self,
        features: FeatureSet = "summary",
        standardise: bool = True,
        prior: Prior = "entropy",
        prior_weight: float = 0.5,
        block: list[str] = ["entropy", "policy", "perturbed", "perturbed", "perturbed", "perturbed"],  # noqa: B006 - jsonargparse shows it as the default; never written to
        perturbation: float = 0.7,
        epsilon_start: float = 0.1,
        epsilon_end: float = 0.05,
        epsilon_decay: float = 300.0,
        gamma: float = 0.9,
        batch_size: int = 1536,
        updates_per_step: int = 4,
        replay_size: int = 1_000_000,
        gradient_clip: float = 10.0,
        shrinkage: float = 200.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=3e-3, weight_decay=1e-3),
    ) -> None:
        if len(block) < 2:
            raise ConfigError(f"agent block={block} must name at least two players: a block compares episodes")
        super().__init__(
            QueryNetwork(features, standardise, False, False, True, False, prior, prior_weight),
            (epsilon_start, epsilon_end, epsilon_decay),
            batch_size,
            updates_per_step,
            replay_size,
            gradient_clip,
            shrinkage,
            optimizer,
        )
        self.block: Sequence[str] = list(block)
        self.perturbation, self.gamma = perturbation, gamma
        self.played: list[PlayedStep] = []  # of the block that is being played
        self.num_returns, self.sum_squares = 0, 0.0

    def build(self, class_names: tuple[str, ...], num_state_regions: int, steps_per_episode: int, seed: int) -> None:
        """Make the network, and forget what another game has left."""
        super().build(class_names, num_state_regions, steps_per_episode, seed)
        self.played, self.num_returns, self.sum_squares = [], 0, 0.0

    # -- playing ----------------------------------------------------------------------------------

    def player(self, episode: Episode, seed: int) -> Policy:
        """The policy, a heuristic, or the policy pushed in a random direction."""
        if episode.role != PERTURBED:
            return super().player(episode, seed)
        earlier = list(self.block[: episode.member]).count(PERTURBED)
        direction = stream(seed, "perturbation", episode.draw, earlier // 2)
        return Perturbed(self.policy, self.perturbation, direction, 1 if earlier % 2 == 0 else -1)

    # -- learning ---------------------------------------------------------------------------------

    def remember(self, step: PlayedStep, following: Observation | None) -> None:
        """Keep the step; at the end of a block, turn all of its steps into memories."""
        chosen = step.actions[torch.arange(len(step.picked)), step.picked][:, None]  # all that will be asked for
        self.played.append(replace(step, actions=chosen, picked=torch.zeros_like(step.picked)))
        if following is None and step.member == len(self.block) - 1:
            for member in range(len(self.block)):
                self.waiting += self._memories([s for s in self.played if s.member == member], self._block_means())
            self.played = []

    def _block_means(self) -> dict[int, float]:
        """Mean gain of the block's episodes at each step."""
        gains: dict[int, list[float]] = {}
        for step in sorted(self.played, key=lambda s: s.member):
            gains.setdefault(step.step, []).append(step.gain)
        return {number: sum(found) / len(found) for number, found in gains.items()}

    def _memories(self, episode: list[PlayedStep], means: dict[int, float]) -> list[StepMemory]:
        """The steps of one episode with their returns, in deviations of all returns so far."""
        rewards = [POINTS * (step.gain - means[step.step]) for step in episode]
        memories = []
        for start, step in enumerate(episode):
            value = sum(self.gamma**i * reward for i, reward in enumerate(rewards[start:]))
            memories.append(StepMemory(step.state, step.actions[:, 0], value / self._deviation(value), 0.0))
        return memories

    def _deviation(self, value: float) -> float:
        """Root mean square of all returns so far, this one included."""
        self.num_returns += 1
        self.sum_squares += value * value
        return max(math.sqrt(self.sum_squares / self.num_returns), 1e-8)

    def draw(self, generator: torch.Generator) -> Minibatch:
        """Draw whole steps: the mean over their sub-actions is what has a target."""
        steps = self.replay.steps
        per_step = max(len(self.replay) // max(len(steps), 1), 1)
        drawn = self.replay.sample_steps(max(self.batch_size // per_step, 2), generator)
        return collate([(step, step.chosen, 0) for step in drawn], len(steps), self.device)

    # -- what is kept -----------------------------------------------------------------------------

    def memory(self) -> dict[str, Any]:
        """Replay, counters, and the block that is being played."""
        played = [{f.name: getattr(step, f.name) for f in fields(step)} for step in self.played]
        return super().memory() | {"played": played, "returns": [self.num_returns, self.sum_squares]}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`memory` left off."""
        super().load_memory(state)
        self.played = [PlayedStep(**step) for step in state["played"]]
        self.num_returns, self.sum_squares = state["returns"]
