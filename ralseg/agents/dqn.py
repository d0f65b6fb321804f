"""DQN: the paper's algorithm, double deep Q-learning on one-step or n-step returns."""

import logging
from dataclasses import fields
from typing import Any, Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.nn import functional

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Policy
from ralseg.acquisition.representation import FeatureSet, Prior
from ralseg.agents.base import POLICY, Episode, PlayedStep
from ralseg.agents.perturbed import Perturbed
from ralseg.agents.query_agent import QueryAgent
from ralseg.agents.query_network import Norm, QueryNetwork, TwoPathNetwork
from ralseg.agents.random_steps import RandomSteps
from ralseg.agents.replay import Minibatch, StepMemory
from ralseg.errors import ConfigError
from ralseg.runtime import distributed
from ralseg.runtime.seeding import stream

log = logging.getLogger(__name__)
DRIFT = 10.0
"""How many times the largest possible return a Q must be before the agent warns."""


class DQN(QueryAgent):
    """Learns Q by bootstrapping: reward plus the discounted value of what follows, as the paper does.

    The defaults hold: Q stays within what can be earned. The paper's own numbers, under which it may drift, are in
    ``agent/dqn_paper.yaml``, and what its released code does in ``agent/dqn_released.yaml``.

    Args:
        features: The paper's ``1H``, ``3H``, ``3H+KL``; or ours for few games, see ``Representation``; or a list of
            named features.
        standardise: Z-score the features over each step's candidates ("ours").
        use_state: Have the state path.
        use_gate: Have the gate; needs ``3H+KL``.
        norm: What normalises hidden layers: ``layer`` ("ours"), ``batch`` (paper) or ``none``.
        time: Tell the network the share of the budget spent ("ours"); without, states of any step look alike.
        dueling: Value of the state plus the advantage of a region within its pool ("ours").
        prior: ``entropy``, ``margin`` or ``bald``: the heuristic that the policy starts from ("ours").
        prior_weight: Weight of the prior's standardised score; what is learned corrects it. 0: none (paper).
        exploration: What is random: single ``sub_actions`` (paper), all of a step's (``steps``, released code), or
            whole episodes that a ``perturbed`` policy plays ("ours").
        perturbation: How far ``perturbed`` episodes stray, in deviations of the policy's scores.
        epsilon_start: Share of sub-actions, steps or episodes that explore at first (paper).
        epsilon_end: Share that explores in the end (paper).
        epsilon_decay: Training steps in which the excess over ``epsilon_end`` falls to 1/e.
        reward_scale: Multiplies the gain of mean IoU. 1 is the paper's formula, 100 counts points.
        first_reward: Of an episode: the ``gain`` over theta_0 (paper), or the whole ``score`` (released code).
        n_steps: Rewards in a return before it is bootstrapped; 1 is the paper's.
        gamma: Discount (ours: 0.9; paper's code: 0.999).
        clip_targets: Bootstrap no more than what the steps left can bring, by the largest reward so far ("ours").
        double_dqn: ``standard``: the query network chooses, the target evaluates; ``paper``: the other way round.
        loss: Squared (paper) or Huber error.
        pool_statistics: BatchNorm takes its statistics from whole pools, those of the next step too (released code).
        batch_size: Transitions in an update (paper's code: 16).
        updates_per_step: Updates for each step that enters the replay.
        target_every: Updates between copies to the target network.
        replay_size: Transitions kept (paper: 600 on CamVid, 3200 on Cityscapes).
        gradient_clip: Largest norm of the gradient; 0 for none.
        rate_decay: Factor of the learning rate after each step, and once more after each episode (released code: 0.97).
        optimizer: Paper: SGD at the segmenter's learning rate, weight decay 1e-3.

    Examples:
        >>> agent = DQN(features="3H", use_gate=False)
        >>> agent.build(("road", "sky"), num_state_regions=24, steps_per_episode=20, seed=0)
        >>> round(agent.epsilon(0), 3), round(agent.epsilon(10_000), 3)
        (0.9, 0.05)
    """

    target: TwoPathNetwork

    def __init__(
        self,
        features: FeatureSet | list[str] = "3H+KL",
        standardise: bool = False,
        use_state: bool = True,
        use_gate: bool = True,
        norm: Norm = "layer",
        time: bool = True,
        dueling: bool = True,
        prior: Prior = "entropy",
        prior_weight: float = 0.0,
        exploration: Literal["sub_actions", "steps", "perturbed"] = "sub_actions",
        perturbation: float = 1.0,
        epsilon_start: float = 0.9,
        epsilon_end: float = 0.05,
        epsilon_decay: float = 300.0,
        reward_scale: float = 1.0,
        first_reward: Literal["gain", "score"] = "gain",
        n_steps: int = 1,
        gamma: float = 0.9,
        clip_targets: bool = True,
        double_dqn: Literal["standard", "paper"] = "standard",
        loss: Literal["squared", "huber"] = "squared",
        pool_statistics: bool = False,
        batch_size: int = 16,
        updates_per_step: int = 1,
        target_every: int = 5,
        replay_size: int = 600,
        gradient_clip: float = 10.0,
        rate_decay: float = 1.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(
            parameters, lr=1e-3, momentum=0.95, weight_decay=1e-3
        ),
    ) -> None:
        if n_steps < 1:
            raise ConfigError(f"agent n_steps={n_steps} must be at least 1")
        if not 0 <= gamma <= 1:
            raise ConfigError(f"agent gamma={gamma} must be between 0 and 1")
        if pool_statistics and norm != "batch":
            raise ConfigError(f"agent pool_statistics needs norm 'batch', not {norm!r}; set pool_statistics to false")
        network = QueryNetwork(
            features,
            standardise,
            use_state,
            use_gate,
            prior=prior,
            prior_weight=prior_weight,
            norm=norm,
            dueling=dueling,
            time=time,
        )
        super().__init__(
            network,
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
        self.exploration, self.perturbation = exploration, perturbation
        self.first_reward, self.clip_targets = first_reward, clip_targets
        self.pool_statistics, self.rate_decay = pool_statistics, rate_decay
        self.steps_per_episode = 0
        self._forget()

    def _forget(self) -> None:
        """Begin as if nothing had been played."""
        self.episode: list[PlayedStep] = []  # the steps whose returns are not complete yet
        self.num_steps, self.num_episodes = 0, 0  # remembered so far
        self.largest_reward = 0.0  # |reward| of a step, scaled
        self.largest_value = 0.0  # |Q| that an update has met
        self._has_warned = False

    def build(self, class_names: tuple[str, ...], num_state_regions: int, steps_per_episode: int, seed: int) -> None:
        """Make the query network and its target copy."""
        super().build(class_names, num_state_regions, steps_per_episode, seed)
        self.steps_per_episode = steps_per_episode
        self._forget()
        with torch.random.fork_rng(devices=[]):
            self.target = self.policy.make_network()
        self.copy_to_target()
        self.target.requires_grad_(False)
        self.eval()

    def copy_to_target(self) -> None:
        """Make the target network equal to the query network, statistics included."""
        self.target.load_state_dict(self.policy.net.state_dict())
        self.target.eval()

    # -- playing ----------------------------------------------------------------------------------

    def epsilon(self, training_steps: int) -> float:
        """Share of random sub-actions after so many training steps; none where steps or episodes explore."""
        return self.share(training_steps) if self.exploration == "sub_actions" else 0.0

    def share(self, training_steps: int) -> float:
        """Share of sub-actions, steps or episodes that explore after so many training steps."""
        return super().epsilon(training_steps)

    def player(self, episode: Episode, seed: int) -> Policy:
        """The policy; in training, it explores by steps or by episodes if it is to."""
        player = super().player(episode, seed)
        if episode.kind != "train" or episode.role != POLICY or self.exploration == "sub_actions":
            return player
        if self.exploration == "steps":
            return RandomSteps(player, self.share(self.num_steps))
        generator = stream(seed, "perturbation", episode.draw, episode.member)
        share = self.share(self.num_episodes * self.steps_per_episode)  # the same for a whole episode
        if float(torch.rand((), generator=generator)) >= share:
            return player
        return Perturbed(player, self.perturbation, generator, sign=1)

    # -- what is remembered -----------------------------------------------------------------------

    def remember(self, step: PlayedStep, following: Observation | None) -> None:
        """Turn steps into transitions: ``n_steps`` rewards, then the value of what follows them."""
        self.episode.append(step)
        self.num_steps += 1
        self.largest_reward = max(self.largest_reward, abs(self._reward(step)))
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
            self.num_episodes += 1
            self._warn_of_drift(self.largest_value)

    def _reward(self, step: PlayedStep) -> float:
        """What a step has earned."""
        is_whole = self.first_reward == "score" and step.step == 0
        return self.reward_scale * (step.score if is_whole else step.gain)

    def _memory(self, ahead: list[PlayedStep], after: tuple[Tensor, Tensor] | None) -> StepMemory:
        """The transition of the first of some steps in a row.

        Args:
            ahead: The step itself and those whose rewards count to its return.
            after: State and pools whose value is bootstrapped; None where the episode has ended.
        """
        first = ahead[0]
        value = sum(self.gamma**i * self._reward(step) for i, step in enumerate(ahead))
        next_state, next_actions = after or (None, None)
        keeps_pools = self.policy.dueling or self.pool_statistics
        return StepMemory(
            first.state,
            first.actions[torch.arange(len(first.picked)), first.picked],
            value,
            self.gamma ** len(ahead),
            next_state,
            next_actions,
            max(self.steps_per_episode - first.step - len(ahead), 0),
            first.actions if keeps_pools else None,
            first.picked if keeps_pools else None,
        )

    # -- learning ---------------------------------------------------------------------------------

    def learn(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn from what waits; the learning rate falls with the number of steps and episodes if it is to."""
        super().learn(optimizer)
        if self.rate_decay == 1.0:
            return
        for group in optimizer.param_groups:
            first = group.setdefault("initial_lr", group["lr"])  # both are saved with the optimizer
            group["lr"] = first * self.rate_decay ** (self.num_steps + self.num_episodes)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """One gradient step; the target network follows when it is due."""
        super().update(optimizer)
        if self.updates % self.target_every == 0:
            self.copy_to_target()

    def draw(self, generator: torch.Generator) -> Minibatch:
        """Draw decomposed transitions: every sub-action shares its step's return."""
        return self.draw_transitions(generator)

    def predicted_values(self, batch: Minibatch) -> Tensor:
        """The value that the network gives to each sub-action: [B, M]."""
        values = super().predicted_values(batch)
        self.largest_value = max(self.largest_value, float(values.detach().abs().max()))
        return values

    def target_values(self, batch: Minibatch) -> Tensor:
        """Double DQN: what was earned, plus the discounted value of the best sub-action that follows: [B]."""
        target = batch.value.clone()
        if not len(batch.next_which):
            return target
        net = self.policy.net
        chooser, judge = (net, self.target) if self.double_dqn == "standard" else (self.target, net)
        # what fills up a pool repeats its first region, so it cannot be the better one
        best = self._next_values(chooser, batch).argmax(1)
        worth = self._next_values(judge, batch).gather(1, best[:, None])[:, 0]
        if self.clip_targets:
            most = self.reachable(batch.steps_left)
            worth = worth.clamp(-most, most)
        target[batch.goes_on] += batch.discount[batch.goes_on] * worth
        return target

    def _next_values(self, network: TwoPathNetwork, batch: Minibatch) -> Tensor:
        """What a network thinks of the pools that follow: [b, N]."""
        network.train(self.pool_statistics)
        with torch.no_grad():
            values = self.policy.values(
                network, batch.next_states, batch.next_which, batch.next_actions, batch.next_real
            )
        network.eval()
        return values

    def reachable(self, steps_left: Tensor) -> Tensor:
        """The largest absolute return of so many steps, if each pays as much as the best one so far.

        Args:
            steps_left: [B]; more than an episode has count as an episode.

        Returns:
            [B].
        """
        steps = steps_left.clamp(max=self.steps_per_episode)
        discounted = steps if self.gamma == 1 else (1 - self.gamma**steps) / (1 - self.gamma)
        return self.largest_reward * discounted

    def error(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Squared or Huber error."""
        return (functional.smooth_l1_loss if self.loss_kind == "huber" else functional.mse_loss)(predicted, target)

    def _warn_of_drift(self, largest: float) -> None:
        """Say once that bootstrapped values have lost touch with what can be earned."""
        if self._has_warned or not self.updates or distributed.rank():
            return
        possible = float(self.reachable(torch.tensor(float(self.steps_per_episode))))
        if largest > DRIFT * max(possible, 1.0):  # a fresh network's own values are of order 1
            self._has_warned = True
            log.warning(
                "after %d updates the query network's values have drifted: |Q| is up to %.3g, and no return of these "
                "rewards can exceed %.3g. %s, or regress returns instead of bootstrapping them "
                "(agent ralseg.PairedBlocks)",
                *(self.updates, largest, possible, self._advice()),
            )

    def _advice(self) -> str:
        """What to change against drift: all brakes together, since one alone does not hold; then the learning rate."""
        brakes = {
            "norm: layer": self.policy.norm == "layer",
            "gamma: 0.9": self.gamma <= 0.9,
            "time: true": self.policy.representation.time,
            "clip_targets: true": self.clip_targets,
        }
        missing = [key for key, is_set in brakes.items() if not is_set]
        if not missing:
            return "Lower the learning rate of the agent's optimizer"
        return f"Set agent {', '.join(missing)} (together, as agent/dqn.yaml does; one alone does not hold)"

    # -- what is told and kept --------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """The last loss, the largest |Q| so far and, where steps or episodes explore, how many of them."""
        if self.loss is None:
            return {}
        explored = {} if self.exploration == "sub_actions" else {"query/explored": self.share(self.num_steps)}
        return super().metrics() | {"query/largest": self.largest_value} | explored

    def memory(self) -> dict[str, Any]:
        """Replay, counters, bounds, and the steps whose returns are not complete yet."""
        return super().memory() | {
            "episode": [{f.name: getattr(step, f.name) for f in fields(step)} for step in self.episode],
            "num_steps": self.num_steps,
            "num_episodes": self.num_episodes,
            "largest_reward": self.largest_reward,
            "largest_value": self.largest_value,
        }

    def load_memory(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`memory` left off."""
        super().load_memory(state)
        self.episode = [PlayedStep(**step) for step in state["episode"]]
        self.num_steps, self.num_episodes = state["num_steps"], state["num_episodes"]
        self.largest_reward, self.largest_value = state["largest_reward"], state["largest_value"]
