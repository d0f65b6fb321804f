"""The agent: what every way of learning a policy has in common."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from ralseg.acquisition.heuristics import HEURISTICS
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Needs, Policy
from ralseg.errors import ConfigError

REFERENCES = ("uniform", "entropy")
"""The heuristics that play the validation games beside the policy."""
POLICY = "policy"
"""The role of an episode that the agent's own policy plays."""
START = "start"
"""The role of a validation game that the policy plays as it was before anything was learned here."""


@dataclass(frozen=True)
class Episode:
    """One episode of the plan.

    Attributes:
        kind: ``train``, or ``validation``: played greedily, nothing is learned.
        role: Who plays: ``policy``, a heuristic's name, or a role of the agent's own.
        draw: Number of its random draws: the block, or the validation game. Equal numbers of one kind
            mean equal theta_0, pools, flips and dropout.
        member: Position in the block.
        round: Validation round.
    """

    kind: Literal["train", "validation"]
    role: str
    draw: int
    member: int = 0
    round: int = 0


@dataclass(frozen=True)
class PlayedStep:
    """A step of a training episode as it was played, and what it brought.

    Examples:
        >>> step = PlayedStep(0, 3, 0.01, torch.zeros(0, 0), torch.zeros(2, 5, 8), torch.tensor([4, 0]))
        >>> step.actions[torch.arange(2), step.picked].shape  # features of what was chosen
        torch.Size([2, 8])
    """

    member: int  # position of the episode in its block
    step: int
    gain: float  # difference of mean IoU on the reward set
    state: Tensor  # [R_S, F]
    actions: Tensor  # [K, N, A + 1]
    picked: Tensor  # [K] position in the pool
    largest_value: float = 0.0  # of the scores that the choice followed from
    lesson: Tensor | None = None  # [K, N] what the agent's teacher says of every candidate
    score: float = math.nan  # mean IoU on the reward set after the step


class LearnedPolicy(nn.Module, Policy):
    """A policy with weights: what an agent trains, and what `ralseg acquire` reads from a checkpoint.

    Examples:
        >>> class OneWeight(LearnedPolicy):
        ...     def build(self, class_names, num_state_regions, seed):
        ...         self.weight = nn.Parameter(torch.ones(()))
        ...     def init_args(self):
        ...         return {}
        ...     def scores(self, observation, generator):
        ...         return self.weight.detach() * observation.entropy
        >>> OneWeight().description()["init_args"]
        {}
    """

    public_path: str | None = None  # what checkpoints call the class, if not where it is defined

    @abstractmethod
    def init_args(self) -> dict[str, Any]:
        """The arguments that make a policy like this one, as plain values; they go into checkpoints."""

    @abstractmethod
    def build(self, class_names: tuple[str, ...], num_state_regions: int, seed: int) -> None:
        """Make the weights, once the number of classes and of state regions is known."""

    def fits(self) -> dict[str, Any]:
        """What data must share with this policy, in plain values: class names, number of state regions."""
        return {}

    def description(self) -> dict[str, Any]:
        """What makes this policy again, in plain values; goes into checkpoints."""
        kind = type(self)
        return {
            "class_path": self.public_path or f"{kind.__module__}.{kind.__qualname__}",
            "init_args": self.init_args(),
            "fits": self.fits(),
        }


class Agent(pl.LightningModule):
    """Learns a policy by playing. Subclass it for a way of learning of your own.

    `ralseg fit` plays episodes in blocks. In each training step it shows the agent what :attr:`needs` asks for, has a
    player of :meth:`player` choose, and calls :meth:`remember` and then :meth:`learn`.

    Attributes:
        policy: The policy that is learned.
        block: Who plays the episodes of a block, which share theta_0 and every random draw.
        teacher: Name of a measure that tells the worth of every candidate from its labels; None: nobody does.
        learns_after_blocks: Nothing is learned before the last step of so many blocks, and what players do follows
            from weights and buffers, the episode and the seed: these games may be played at the same time. 0: the
            agent learns at every step.
        start_from: File of the policy that learning goes on from, which then plays the validation games as ``start``;
            None: it begins anew.

    Examples:
        >>> from ralseg.agents import QueryNetwork
        >>> class Forgetful(Agent):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.policy = QueryNetwork("summary", use_state=False, use_gate=False)
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.policy.parameters(), lr=0.1)
        ...     def remember(self, step, following):
        ...         pass
        ...     def learn(self, optimizer):
        ...         pass
        >>> Forgetful().epsilon(training_steps=0)
        0.0
    """

    policy: LearnedPolicy
    block: Sequence[str] = (POLICY,)
    teacher: str | None = None
    learns_after_blocks = 0
    start_from: str | None = None

    @property
    def references(self) -> tuple[str, ...]:
        """Who plays the validation games beside the policy, once: none of them changes."""
        return REFERENCES if self.start_from is None else (*REFERENCES, START)

    # -- playing ----------------------------------------------------------------------------------

    @property
    def needs(self) -> Needs:
        """What the agent must see in training, whoever plays."""
        return self.policy.needs

    def build(self, class_names: tuple[str, ...], num_state_regions: int, steps_per_episode: int, seed: int) -> None:
        """Make the policy's weights, once the game is known."""
        self.policy.build(class_names, num_state_regions, seed)

    def player(self, episode: Episode, seed: int) -> Policy:
        """Who plays an episode."""
        if episode.role == POLICY:
            return self.policy
        if episode.role not in HEURISTICS:
            raise ConfigError(
                f"agent block: {episode.role!r} is neither {POLICY!r} nor one of {', '.join(sorted(HEURISTICS))}"
            )
        return HEURISTICS[episode.role]()

    def epsilon(self, training_steps: int) -> float:
        """Share of random sub-actions after so many training steps; none by default."""
        return 0.0

    # -- learning ---------------------------------------------------------------------------------

    @abstractmethod
    def remember(self, step: PlayedStep, following: Observation | None) -> None:
        """Take in a step of a training episode.

        Args:
            step: What was seen, chosen and earned.
            following: What is seen next; None where the episode has ended.
        """

    @abstractmethod
    def learn(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn from what is remembered, if it is time to."""

    def metrics(self) -> dict[str, float]:
        """Figures of the learning so far, for loggers."""
        return {}

    def context(self) -> dict[str, Any]:
        """How far learning is, for a run that fails."""
        return dict(self.metrics())

    def rules(self) -> dict[str, Any]:
        """Plain values that must stay the same when a run goes on."""
        return {"agent": type(self).__name__, "block": list(self.block)}

    def memory(self) -> dict[str, Any]:
        """Everything beside weights that the agent's future depends on, as plain values and tensors."""
        return {}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`memory` left off."""
