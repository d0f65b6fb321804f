"""The rules of the game: budget, pools, which episode is played by whom, and what is paid."""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch

from ralseg.errors import ConfigError
from ralseg.replay import StepMemory

Role = Literal["policy", "perturbed", "entropy", "uniform"]
Baseline = Literal["none", "step_mean", "block", "uniform_twin"]


@dataclass(frozen=True)
class RewardConfig:
    """What a step is paid: the gain of mean IoU on the reward set, made less noisy if wished.

    Args:
        scale: Multiplies the gain (mIoU from 0 to 1). 1 is the paper's formula, 100 counts points.
        baseline: What is subtracted: ``none`` (paper); ``step_mean``, the mean so far at the same step;
            ``block``, the mean over the block's episodes; ``uniform_twin``, what the block's uniform
            episode earned at the same step.
        normalise: Divide returns by their standard deviation so far.
        average: Score an exponential moving average of the segmenter's weights that takes this share of
            the new weights each step; 1 scores the weights themselves (paper).
    """

    scale: float = 1.0
    baseline: Baseline = "none"
    normalise: bool = False
    average: float = 1.0


@dataclass(frozen=True)
class GameConfig:
    """The rules. Defaults are the paper's for CamVid.

    Args:
        budget: B, regions labelled in an episode.
        regions_per_step: K, regions labelled at a step, one from each of K pools.
        pool_size: N, regions in a pool (paper: 20 while the policy is trained).
        episodes: Episodes that the policy is trained on.
        initial_weights: theta_0: checkpoints of ``ralseg pretrain`` (patterns such as ``runs/w/*/best.ckpt``
            too), taken in turn. None: the segmenter as it is built.
        validation_weights: theta_0s for greedy validation; none of them may be trained on.
        block: Who plays the episodes of a block, which share theta_0 and every random draw. One entry,
            ``policy``, is the paper's algorithm.
        perturbation: How far ``perturbed`` episodes stray, in deviations of the policy's scores; successive
            ones in a block stray in opposite directions.
        validation_every: Training episodes between greedy validations.
        validation_plays: Games in a validation; the same for every round and every method. 0: none.
        epsilon_start: Share of random sub-actions at first (paper).
        epsilon_end: Share of random sub-actions in the end (paper).
        epsilon_decay: Training steps in which the excess over ``epsilon_end`` falls to 1/e.
        reward: How a step is paid.
    """

    budget: int = 480
    regions_per_step: int = 24
    pool_size: int = 20
    episodes: int = 100
    initial_weights: list[str] | None = None
    validation_weights: list[str] | None = None
    block: list[Role] = field(default_factory=lambda: ["policy"])
    perturbation: float = 1.0
    validation_every: int = 20
    validation_plays: int = 4
    epsilon_start: float = 0.9
    epsilon_end: float = 0.05
    epsilon_decay: float = 300.0
    reward: RewardConfig = field(default_factory=RewardConfig)

    def __post_init__(self) -> None:
        at_least_one = ("budget", "regions_per_step", "pool_size", "episodes", "validation_every")
        for key in at_least_one:
            if getattr(self, key) < 1:
                raise ConfigError(f"trainer.game.{key}={getattr(self, key)} must be at least 1")
        if not self.block:
            raise ConfigError("trainer.game.block is empty; [policy] is the paper's algorithm")
        if self.episodes % len(self.block):
            raise ConfigError(
                f"trainer.game.episodes={self.episodes} must be a multiple of the block's {len(self.block)} episodes"
            )
        if self.reward.baseline == "uniform_twin" and self.block.count("uniform") != 1:
            raise ConfigError("trainer.game.reward.baseline=uniform_twin needs one 'uniform' in trainer.game.block")
        if self.reward.baseline == "block" and len(self.block) < 2:
            raise ConfigError("trainer.game.reward.baseline=block needs at least two episodes in trainer.game.block")
        if not 0 < self.reward.average <= 1:
            raise ConfigError(f"trainer.game.reward.average={self.reward.average} must lie in (0, 1]")

    @property
    def steps_per_episode(self) -> int:
        """T: steps until the budget is spent; the last one may be short."""
        return -(-self.budget // self.regions_per_step)

    def epsilon(self, training_step: int) -> float:
        """Share of random sub-actions after so many training steps."""
        fallen = math.exp(-training_step / self.epsilon_decay)
        return self.epsilon_end + (self.epsilon_start - self.epsilon_end) * fallen


@dataclass(frozen=True)
class Episode:
    """One episode of the plan.

    Attributes:
        kind: ``train``, or ``validation``: played greedily, nothing is learned.
        role: Who plays.
        draw: Number of its random draws: the block, or the validation game. Equal numbers of one kind
            mean equal theta_0, pools, flips and dropout.
        member: Position in the block.
        round: Validation round.
    """

    kind: Literal["train", "validation"]
    role: Role
    draw: int
    member: int = 0
    round: int = 0


def plan_episodes(config: GameConfig) -> list[Episode]:
    """All episodes of a run in their order: blocks of training with rounds of validation between.

    Uniform and entropy never change, so they play the validation games once, in round 0; the policy
    plays them in every later round.
    """
    plan: list[Episode] = []
    rounds = 0

    def validate() -> None:
        nonlocal rounds
        roles: list[Role] = ["uniform", "entropy"] if rounds == 0 else ["policy"]
        plan.extend(
            Episode("validation", role, draw, round=rounds) for role in roles for draw in range(config.validation_plays)
        )
        rounds += 1

    size = len(config.block)
    since = config.validation_every
    for block in range(config.episodes // size):
        if config.validation_plays and since >= config.validation_every:
            validate()
            since = 0
        plan.extend(Episode("train", role, block, member) for member, role in enumerate(config.block))
        since += size
    if config.validation_plays:
        validate()
    return plan


@dataclass(frozen=True)
class PlayedStep:
    """A step as it was played, before its return is known."""

    member: int
    step: int
    gain: float  # raw difference of mean IoU
    state: torch.Tensor  # [R_S, F]
    actions: torch.Tensor  # [K, N, A + 1], or only those chosen [K, 1, A + 1]
    picked: torch.Tensor  # [K] position in the pool


class RewardStatistics:
    """Running mean of gains at each step index, and spread of returns; plain lists, so that it can be saved."""

    def __init__(self, steps: int) -> None:
        self.count = [0] * steps
        self.mean = [0.0] * steps
        self.num_returns = 0
        self.sum_squares = 0.0

    def see(self, step: int, gain: float) -> None:
        """Take a gain into the mean at its step."""
        self.count[step] += 1
        self.mean[step] += (gain - self.mean[step]) / self.count[step]

    def deviation(self, value: float) -> float:
        """Root mean square of all (centred) returns so far, this one included."""
        self.num_returns += 1
        self.sum_squares += value * value
        return max(math.sqrt(self.sum_squares / self.num_returns), 1e-8)

    def state_dict(self) -> dict[str, object]:
        """Plain values."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Return to a saved state."""
        vars(self).update(state)


def pay(steps: list[PlayedStep], config: RewardConfig, block: list[Role], statistics: RewardStatistics) -> list[float]:
    """Rewards of played steps: gains less their baseline, scaled. ``steps`` are whole episodes of one block."""
    gains: dict[tuple[int, int], float] = {(s.member, s.step): s.gain for s in steps}
    members = sorted({s.member for s in steps})
    rewards = []
    for s in steps:
        if config.baseline == "block":
            baseline = sum(gains[m, s.step] for m in members) / len(members)
        elif config.baseline == "uniform_twin":
            baseline = gains[block.index("uniform"), s.step]
        elif config.baseline == "step_mean":
            baseline = statistics.mean[s.step]
        else:
            baseline = 0.0
        statistics.see(s.step, s.gain)
        rewards.append(config.scale * (s.gain - baseline))
    return rewards


def remember(
    steps: list[PlayedStep],
    rewards: list[float],
    horizon: int,
    gamma: float,
    bootstrap: bool,
) -> list[StepMemory]:
    """Turn the steps of one episode into memories: ``horizon`` rewards, then the value of what follows.

    Args:
        steps: The steps of one episode in their order.
        rewards: What each was paid.
        horizon: Rewards in a return; more than there are steps means all.
        gamma: Discount.
        bootstrap: Whether the state and pools after the horizon are kept for their value.
    """
    memories = []
    for t, step in enumerate(steps):
        ahead = rewards[t : t + horizon]
        value = sum(gamma**i * reward for i, reward in enumerate(ahead))
        follower = steps[t + horizon] if bootstrap and t + horizon < len(steps) else None
        chosen = step.actions[torch.arange(len(step.picked)), step.picked]
        memories.append(
            StepMemory(
                step.state,
                chosen,
                value,
                gamma ** len(ahead),
                None if follower is None else follower.state,
                None if follower is None else follower.actions,
            )
        )
    return memories
