"""A world of two steps in which reward comes late, for every kind of agent."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Policy, epsilon_greedy
from ralseg.agents import Agent, Episode, PlayedStep
from ralseg.runtime.seeding import stream
from support.agents import CLASSES, STATE_REGIONS

POOLS, SIZE, STEPS = 2, 4, 2
MARK, TREASURE = 0, 1
"""Features that mean something, after those of the time; all others are noise."""


@dataclass
class ToyWorld:
    """A marked region pays nothing itself, but puts a treasure into its pool of the next step, and that one pays.

    Everything drawn is a function of kind and number of an episode's draws and of the step, as in a real game: so the
    episodes of a block differ in nothing but who plays.

    Args:
        agent: Who learns; it must be built.
        seed: Of all draws.
        luck: Deviation of what a step pays beside; all episodes of a block have the same luck.
    """

    agent: Agent
    seed: int
    luck: float = 0.0
    training_steps: int = 0

    def __post_init__(self) -> None:
        self.optimizer = self.agent.configure_optimizers()

    # -- what is seen and paid --------------------------------------------------------------------

    def places(self, episode: Episode, step: int) -> Tensor:
        """Where mark or treasure lie: [K]."""
        return torch.randint(SIZE, (POOLS,), generator=stream(self.seed, f"{episode.kind} places", episode.draw, step))

    def seen(self, episode: Episode, step: int, is_there: Tensor) -> Observation:
        """The pools of a step; marks or treasures are there in some of them [K]."""
        kind = self.agent.policy.representation
        generator = stream(self.seed, f"{episode.kind} pools", episode.draw, step)
        width = kind.num_action_features(len(CLASSES))
        actions = torch.zeros(POOLS, SIZE, width + 1)  # the last is the prior
        first = int(kind.time)
        if kind.time:
            actions[..., 0] = step / STEPS - 0.5
        noisy = min(width - first - 2, 6)
        actions[..., first + 2 : first + 2 + noisy] = torch.randn(POOLS, SIZE, noisy, generator=generator)
        actions[torch.arange(POOLS), self.places(episode, step), first + (TREASURE if step else MARK)] = 2.0 * is_there
        # else they would tell the step from others, and a regression with a bias finds marks without looking ahead
        actions[..., first : first + 2] -= actions[..., first : first + 2].mean((0, 1))
        state = torch.randn(STATE_REGIONS, kind.num_state_features(len(CLASSES)), generator=generator)
        nothing = torch.zeros(POOLS, SIZE)
        return Observation(state, nothing, actions, nothing, torch.zeros(POOLS, SIZE, len(CLASSES)), spent=step / STEPS)

    def worth(self, episode: Episode, step: int, is_there: Tensor, player: Policy) -> Tensor:
        """What the episode would end with if a candidate were chosen, all else being as it is: [K, N]."""
        hit = torch.arange(SIZE) == self.places(episode, step)[:, None]
        if step:
            return (hit * is_there[:, None]).float() / POOLS
        later = self.seen(episode, 1, torch.ones(POOLS))
        finds = player.scores(later, torch.Generator()).argmax(1) == self.places(episode, 1)
        return (hit & finds[:, None]).float() / POOLS

    # -- playing ----------------------------------------------------------------------------------

    def play(self, episode: Episode) -> float:
        """Play an episode, from which the agent learns where it is one of training; the share of marks found."""
        player, trains = self.agent.player(episode, self.seed), episode.kind == "train"
        is_there, marks = torch.ones(POOLS), 0.0
        seen: Observation | None = self.seen(episode, 0, is_there)
        for step in range(STEPS):
            assert seen is not None
            scores = player.scores(seen, stream(self.seed, f"{episode.kind} policy", episode.draw, step))
            explores = self.agent.epsilon(self.training_steps) if trains else 0.0
            draws = stream(self.seed, f"{episode.kind} exploration", episode.draw, step)
            picked = epsilon_greedy(scores, explores, draws)
            found = (picked == self.places(episode, step)) * is_there
            lesson = None if self.agent.teacher is None else self.worth(episode, step, is_there, player)
            luck = torch.randn((), generator=stream(self.seed, f"{episode.kind} luck", episode.draw, step))
            gain = self.luck * float(luck) + (float(found.mean()) if step else 0.0)
            if step == 0:
                marks, is_there = float(found.mean()), found
            before, seen = seen, self.seen(episode, step + 1, is_there) if step + 1 < STEPS else None
            if trains:
                self.training_steps += 1
                largest = float(scores.abs().max())
                played = PlayedStep(episode.member, step, gain, before.state, before.actions, picked, largest, lesson)
                self.agent.remember(played, seen)
                self.agent.learn(self.optimizer)
        return marks

    def train(self, blocks: int) -> None:
        """Play so many blocks."""
        for draw in range(blocks):
            for member, role in enumerate(self.agent.block):
                self.play(Episode("train", role, draw, member))

    def skill(self) -> float:
        """Share of the marks that the policy finds in games it has not seen; 1 / SIZE by chance."""
        return sum(self.play(Episode("validation", "policy", draw)) for draw in range(100)) / 100
