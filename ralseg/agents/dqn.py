"""DQN: the paper's algorithm, double deep Q-learning on one-step or n-step returns."""

import logging
from dataclasses import fields
from typing import Any, Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.nn import functional

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.representation import FeatureSet, Prior
from ralseg.agents.base import PlayedStep
from ralseg.agents.query_agent import QueryAgent
from ralseg.agents.query_network import QueryNetwork, TwoPathNetwork
from ralseg.agents.replay import Minibatch, StepMemory
from ralseg.errors import ConfigError
from ralseg.runtime import distributed

log = logging.getLogger(__name__)
DRIFT = 10.0
"""How many times the largest possible return a Q must be before the agent warns."""


class DQN(QueryAgent):
    """Learns Q by bootstrapping: reward plus the discounted value of what follows, as the paper does.

    Args:
        features: The paper's ``1H``, ``3H``, ``3H+KL``; or ours for few games, see ``Representation``.
        standardise: Z-score the features over each step's candidates ("ours").
        use_state: Have the state path.
        use_gate: Have the gate; needs ``3H+KL``.
        batch_norm: Normalise inside the network, as the paper does.
        prior: ``entropy``, ``margin`` or ``bald``: the heuristic that the policy starts from ("ours").
        prior_weight: Weight of the prior's standardised score; what is learned corrects it. 0: none (paper).
        epsilon_start: Share of random sub-actions at first (paper).
        epsilon_end: Share of random sub-actions in the end (paper).
        epsilon_decay: Training steps in which the excess over ``epsilon_end`` falls to 1/e.
        reward_scale: Multiplies the gain of mean IoU. 1 is the paper's formula, 100 counts points.
        n_steps: Rewards in a return before it is bootstrapped; 1 is the paper's.
        gamma: Discount.
        double_dqn: ``standard``: the query network chooses, the target evaluates; ``paper``: the other way round.
        loss: Squared (paper) or Huber error.
        batch_size: Transitions in an update (paper's code: 16).
        updates_per_step: Updates for each step that enters the replay.
        target_every: Updates between copies to the target network.
        replay_size: Transitions kept (paper: 600 on CamVid, 3200 on Cityscapes).
        gradient_clip: Largest norm of the gradient; 0 for none.
        optimizer: Paper: SGD at the segmenter's learning rate, weight decay 1e-3.

    Example:
        >>> agent = DQN(features="3H", use_gate=False)
        >>> agent.build(("road", "sky"), num_state_regions=24, steps_per_episode=20, seed=0)
        >>> round(agent.epsilon(0), 3), round(agent.epsilon(10_000), 3)
        (0.9, 0.05)
    """

    target: TwoPathNetwork

    def __init__(
        self,
        features: FeatureSet = "3H+KL",
        standardise: bool = False,
        use_state: bool = True,
        use_gate: bool = True,
        batch_norm: bool = True,
        prior: Prior = "entropy",
        prior_weight: float = 0.0,
        epsilon_start: float = 0.9,
        epsilon_end: float = 0.05,
        epsilon_decay: float = 300.0,
        reward_scale: float = 1.0,
        n_steps: int = 1,
        gamma: float = 0.999,
        double_dqn: Literal["standard", "paper"] = "standard",
        loss: Literal["squared", "huber"] = "squared",
        batch_size: int = 16,
        updates_per_step: int = 1,
        target_every: int = 5,
        replay_size: int = 600,
        gradient_clip: float = 10.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(
            parameters, lr=1e-3, momentum=0.95, weight_decay=1e-3
        ),
    ) -> None:
        if n_steps < 1:
            raise ConfigError(f"agent n_steps={n_steps} must be at least 1")
        super().__init__(
            QueryNetwork(features, standardise, use_state, use_gate, False, batch_norm, prior, prior_weight),
            (epsilon_start, epsilon_end, epsilon_decay),
            batch_size,
            updates_per_step,
            replay_size,
            gradient_clip,
            shrinkage=0.0,
            optimizer=optimizer,
        )
        self.reward_scale, self.n_steps, self.gamma = reward_scale, n_steps, gamma
        self.double_dqn, self.loss_kind, self.target_every = double_dqn, loss, target_every
        self.episode: list[PlayedStep] = []  # the steps whose returns are not complete yet
        self.steps_per_episode = 0
        self._has_warned = False

    def build(self, class_names: tuple[str, ...], num_state_regions: int, steps_per_episode: int, seed: int) -> None:
        """Make the query network and its target copy."""
        super().build(class_names, num_state_regions, steps_per_episode, seed)
        self.steps_per_episode, self.episode = steps_per_episode, []
        with torch.random.fork_rng(devices=[]):
            self.target = self.policy.make_network()
        self.copy_to_target()
        self.target.requires_grad_(False)
        self.eval()

    def copy_to_target(self) -> None:
        """Make the target network equal to the query network, statistics included."""
        self.target.load_state_dict(self.policy.net.state_dict())
        self.target.eval()

    # -- what is remembered -----------------------------------------------------------------------

    def remember(self, step: PlayedStep, following: Observation | None) -> None:
        """Turn steps into transitions: ``n_steps`` rewards, then the value of what follows them."""
        self.episode.append(step)
        if self.n_steps == 1:
            after = None if following is None else (following.state, following.actions)
            self.waiting.append(self._memory([self.episode.pop()], after))
        elif following is None:
            for start in range(len(self.episode)):
                ahead = self.episode[start : start + self.n_steps]
                rest = self.episode[start + self.n_steps : start + self.n_steps + 1]
                self.waiting.append(self._memory(ahead, (rest[0].state, rest[0].actions) if rest else None))
            self.episode = []
        if following is None:
            self._warn_of_drift(step.largest_value)

    def _memory(self, ahead: list[PlayedStep], after: tuple[Tensor, Tensor] | None) -> StepMemory:
        """The transition of the first of some steps in a row.

        Args:
            ahead: The step itself and those whose rewards count to its return.
            after: State and pools whose value is bootstrapped; None where the episode has ended.
        """
        first = ahead[0]
        value = sum(self.gamma**i * self.reward_scale * step.gain for i, step in enumerate(ahead))
        chosen = first.actions[torch.arange(len(first.picked)), first.picked]
        return StepMemory(first.state, chosen, value, self.gamma ** len(ahead), *(after or (None, None)))

    # -- learning ---------------------------------------------------------------------------------

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """One gradient step; the target network follows when it is due."""
        super().update(optimizer)
        if self.updates % self.target_every == 0:
            self.copy_to_target()

    def draw(self, generator: torch.Generator) -> Minibatch:
        """Draw decomposed transitions: every sub-action shares its step's return."""
        return self.draw_transitions(generator)

    def target_values(self, batch: Minibatch) -> Tensor:
        """Double DQN: what was earned, plus the discounted value of the best sub-action that follows: [B]."""
        target = batch.value.clone()
        if not len(batch.next_which):
            return target
        net = self.policy.net
        chooser, judge = (net, self.target) if self.double_dqn == "standard" else (self.target, net)
        with torch.no_grad():
            following = batch.next_states, batch.next_which, batch.next_actions
            best = self.policy.values(chooser, *following).argmax(1)
            worth = self.policy.values(judge, *following)
        target[batch.goes_on] += batch.discount[batch.goes_on] * worth.gather(1, best[:, None])[:, 0]
        return target

    def error(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Squared or Huber error."""
        return (functional.smooth_l1_loss if self.loss_kind == "huber" else functional.mse_loss)(predicted, target)

    def _warn_of_drift(self, largest: float) -> None:
        """Say once that bootstrapped values have lost touch with what can be earned."""
        if self._has_warned or not self.replay.steps or distributed.rank():
            return
        possible = self.steps_per_episode * max(abs(memory.value_of(0)) for memory in self.replay.steps)
        if largest > DRIFT * max(possible, 1.0):  # a fresh network's own values are of order 1
            self._has_warned = True
            log.warning(
                "after %d updates the query network's values have drifted: |Q| is up to %.3g, and no return of these "
                "rewards can exceed %.3g. Regress returns instead of bootstrapping them (agent ralseg.PairedBlocks), "
                "or try a smaller agent gamma",
                *(self.updates, largest, possible),
            )

    def memory(self) -> dict[str, Any]:
        """Replay, counters, and the steps whose returns are not complete yet."""
        steps = [{f.name: getattr(step, f.name) for f in fields(step)} for step in self.episode]
        return super().memory() | {"episode": steps}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`memory` left off."""
        super().load_memory(state)
        self.episode = [PlayedStep(**step) for step in state["episode"]]
