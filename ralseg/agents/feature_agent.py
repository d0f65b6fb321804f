"""Agents that train a feature policy on whole games: what they share."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Policy
from ralseg.agents.base import START, Agent, Episode, PlayedStep
from ralseg.agents.feature_policy import FeaturePolicy, FeatureScore
from ralseg.agents.loading import policy_alone, policy_file
from ralseg.errors import ConfigError
from ralseg.runtime import distributed
from ralseg.runtime.checkpoints import read_checkpoint

POINTS = 100.0
"""Gains of mean IoU are counted in points."""


class FeatureAgent(Agent):
    """Plays groups of blocks with a policy that does not change, then learns from all of them at once.

    So the games of a group can be played at the same time, by ``trainer.actors``.

    Args:
        policy: What is learned.
        block: Who plays the episodes of a block, which share theta_0 and every random draw.
        blocks_per_update: Blocks in a group; each has a theta_0 and draws of its own.
        start_from: File of a policy with the same features, whose weights learning goes on from; None: begin anew.
    """

    policy: FeaturePolicy
    begin: Tensor  # [P] all weights before anything was learned

    def __init__(
        self, policy: FeaturePolicy, block: Sequence[str], blocks_per_update: int, start_from: str | None = None
    ) -> None:
        super().__init__()
        self.policy, self.block, self.learns_after_blocks = policy, list(block), blocks_per_update
        self.start_from = start_from
        self.gains: list[list[float]] = []  # of each episode of the group, step by step
        self.is_complete = False
        self.figures: dict[str, float] = {}  # of the last update, for loggers
        self.updates, self.seed = 0, 0

    def build(self, class_names: tuple[str, ...], num_state_regions: int, steps_per_episode: int, seed: int) -> None:
        """Make the policy's weights, and forget what another game has left."""
        super().build(class_names, num_state_regions, steps_per_episode, seed)
        if self.start_from is not None:
            self.policy.load_state_dict(self._weights_of(self.start_from))
        self.register_buffer("begin", all_weights(self.policy))
        self.gains, self.is_complete, self.figures = [], False, {}
        self.updates, self.seed = 0, seed

    def _weights_of(self, name: str) -> dict[str, Tensor]:
        """The weights in a file of a policy like this one."""
        weights: dict[str, Tensor] = policy_alone(_checkpoint(name))["state_dict"]
        return weights

    # -- playing ----------------------------------------------------------------------------------

    def player(self, episode: Episode, seed: int) -> Policy:
        """Who plays an episode; among others the policy that learning began with."""
        return (
            Shifted(self.policy, lambda: self.begin.cpu()) if episode.role == START else super().player(episode, seed)
        )

    # -- learning ---------------------------------------------------------------------------------

    def remember(self, step: PlayedStep, following: Observation | None) -> None:
        """Note what a step earned; a group is complete with the last step of its last episode."""
        if step.step == 0:
            self.gains.append([])
        self.gains[-1].append(step.gain)
        self.is_complete = following is None and len(self.gains) == len(self.block) * self.learns_after_blocks

    def learn(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn once a group is complete."""
        if not self.is_complete:
            return
        self.update(optimizer)
        distributed.share(self.state_dict().values())
        self.updates += 1
        self.gains, self.is_complete = [], False

    @abstractmethod
    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn from the group."""

    def areas(self) -> Tensor:
        """Mean gain over the steps of each episode, in points: [blocks, members]."""
        areas = [torch.tensor(gains, dtype=torch.float64).cumsum(0).mean() for gains in self.gains]
        return POINTS * torch.stack(areas).reshape(self.learns_after_blocks, len(self.block))

    def draw_of(self, block: int) -> int:
        """The number of the draws that a block of the group has; see ``Episode.draw``."""
        return self.updates * self.learns_after_blocks + block

    # -- what is told and kept --------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """What the last update has shown."""
        return dict(self.figures)

    def context(self) -> dict[str, Any]:
        """Updates so far, and what each feature counts."""
        return {"updates": self.updates, "weights": self.policy.weights()}

    def rules(self) -> dict[str, Any]:
        """The agent, its block, and the policy's options."""
        own = {"blocks_per_update": self.learns_after_blocks, "start_from": self.start_from}
        return super().rules() | {"policy": self.policy.init_args()} | own

    def memory(self) -> dict[str, Any]:
        """What the group has earned so far, and what the last one has shown."""
        gains = [list(gains) for gains in self.gains]
        return {"gains": gains, "updates": self.updates, "figures": dict(self.figures)}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`memory` left off."""
        self.gains, self.updates = [list(gains) for gains in state["gains"]], state["updates"]
        self.figures = dict(state["figures"])


def make_policy(start_from: str | None, **options: Any) -> FeaturePolicy:
    """The policy that an agent trains: like the one that it goes on from, or made from options.

    Args:
        start_from: File of a policy, ``ralseg`` for the built-in one; None: there is none.
        options: Arguments of :class:`FeaturePolicy`. Beside ``start_from`` each must be left out or agree with it.
    """
    if start_from is None:
        return FeaturePolicy(**options)
    saved = _checkpoint(start_from)["ralseg"]["policy"]["init_args"]
    usual, own = FeaturePolicy(), FeaturePolicy(**options)
    for key, value in _all_options(own).items():
        if value not in (_all_options(usual)[key], _all_options(FeaturePolicy(**saved))[key]):
            raise ConfigError(
                f"agent {key}={options[key]!r} is not that of the policy in start_from, {start_from}; leave it out, or "
                "begin anew without start_from"
            )
    return FeaturePolicy(**saved)


def _all_options(policy: FeaturePolicy) -> dict[str, Any]:
    """The arguments of a policy, those at their defaults too."""
    return {"context": [], "randomness": 0.0} | policy.init_args()


def _checkpoint(start_from: str) -> dict[str, Any]:
    """A file that holds a feature policy."""
    path = policy_file(start_from)
    if not path.is_file():
        raise ConfigError(f"agent start_from: no policy at {start_from!r}; `ralseg fit` writes policy.ckpt")
    checkpoint = read_checkpoint(path)
    if checkpoint.get("ralseg", {}).get("policy", {}).get("class_path") != FeaturePolicy.public_path:
        raise ConfigError(
            f"agent start_from: {start_from} holds no policy of named features; PolicySearch, GroupAdvantage and "
            "CreditRegression make those"
        )
    return checkpoint


class Shifted(Policy):
    """A feature policy with other weights.

    Args:
        policy: Whose features it reads.
        weights: Gives all weights in a row, [P], once they are made.
    """

    def __init__(self, policy: FeaturePolicy, weights: Callable[[], Tensor]) -> None:
        self.policy, self.weights = policy, weights
        self.needs = policy.needs

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Scores by the other weights: [K, N]."""
        net = self.policy.make_net()
        set_weights(net, self.weights())
        return self.policy.scored(net, observation, generator)


def all_weights(policy: FeaturePolicy) -> Tensor:
    """All weights in a row, on the CPU: [P]."""
    return parameters_to_vector(policy.net.parameters()).detach().cpu()


@torch.no_grad()
def set_weights(net: FeatureScore, weights: Tensor) -> None:
    """Copy a row of weights [P] into a network."""
    for weight, part in zip(net.parameters(), _parts(net, weights), strict=True):
        weight.copy_(part)


def set_gradient(net: FeatureScore, gradient: Tensor) -> None:
    """Give a network's weights a gradient: [P]."""
    for weight, part in zip(net.parameters(), _parts(net, gradient), strict=True):
        weight.grad = part.to(weight, copy=True)


def _parts(net: FeatureScore, row: Tensor) -> list[Tensor]:
    """A row cut into the shapes of a network's weights."""
    weights = list(net.parameters())
    parts = row.split([weight.numel() for weight in weights])
    return [part.reshape(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def check_above_zero(**options: float) -> None:
    """Refuse options of an agent that must be above 0."""
    for name, value in options.items():
        if value <= 0:
            raise ConfigError(f"agent {name}={value} must be above 0")


def check_at_least_one(**options: int) -> None:
    """Refuse options of an agent that must be 1 or more."""
    for name, value in options.items():
        if value < 1:
            raise ConfigError(f"agent {name}={value} must be at least 1")


def check_share(**options: float) -> None:
    """Refuse shares that are none: options of an agent that must lie above 0 and not above 1."""
    for name, value in options.items():
        if not 0 < value <= 1:
            raise ConfigError(f"agent {name}={value} must lie in (0, 1]")
