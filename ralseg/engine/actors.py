"""Actors: processes that play games of `ralseg fit` at the same time, for a run that learns from them."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ralseg.acquisition.observation import Observation
from ralseg.agents.base import Agent
from ralseg.data.datamodule import SegmentationData
from ralseg.engine.fit_session import FitSession
from ralseg.engine.game import Game
from ralseg.engine.game_trainer import GameTrainer
from ralseg.engine.games_elsewhere import GameJob, GamesElsewhere
from ralseg.engine.modules import FitModule, Trained
from ralseg.engine.session import Choice, StepResult, TakenStep
from ralseg.errors import ConfigError
from ralseg.models.segmenter import Segmenter
from ralseg.runtime.checkpoints import CheckpointCache
from ralseg.runtime.workers import Engine, WorkerPool

_PLAYED_BY = (
    "accelerator", "strategy", "devices", "precision", "limit_train_batches", "limit_val_batches", "gradient_clip_val",
    "gradient_clip_algorithm", "deterministic", "benchmark", "inference_mode", "plugins", "detect_anomaly",
)  # fmt: skip
"""Options of the Trainer that change how a game is played; what is told and saved is the run's own business."""
_KEYS = ("trainer.actor_engine", "trainer.actor_options")
_QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class OneGame(FitSession):
    """One episode of a run, played step by step, from which others learn.

    Args:
        job: Which one.
        game: The rules.
        data: The data.
        module: Segmenter and agent; the agent gets the weights of the job.
        checkpoints: theta_0s that earlier games have read.
    """

    def __init__(
        self, job: GameJob, game: Game, data: SegmentationData, module: FitModule, checkpoints: CheckpointCache
    ) -> None:
        super().__init__(game, data, module, checkpoints=checkpoints)
        self.agent.load_state_dict(job.weights)
        self.episode_number, self.training_steps = job.number, job.training_steps
        self._enter(self.episode)  # Lightning takes its loader of the images that pay before the episode starts
        self.initial_scores.update(job.initial_scores)
        self.taken: list[TakenStep] = []
        self._spent: dict[str, float] = {}
        self._optimizer_steps = module.trainer.global_step

    @property
    def steps_left(self) -> int:
        """Steps of this episode."""
        return self.game.steps_per_episode - self.step

    def learn(self, observation: Observation, choice: Choice, trained: Trained) -> StepResult:
        """Steps 6 and 7: keep the step, for those who learn from it."""
        known, steps = sum(len(step.regions) for step in self.taken), self.module.trainer.global_step
        self.taken.append(
            TakenStep(
                self.scores[-1],
                # nobody learns from a game of validation
                observation if self.is_training else Observation.unseen(observation.pools, 1, self._histograms[:0]),
                choice,
                self.ledger.labelled[known:].clone(),
                self._histograms[known:].clone(),
                self._checksums[known:],
                trained,
                steps - self._optimizer_steps,
                {part: seconds - self._spent.get(part, 0.0) for part, seconds in self.seconds.items()},
            )
        )
        self._optimizer_steps = steps
        if self.is_training:
            self.training_steps += 1
        self.receive(trained, trained.miou)
        self._spent = dict(self.seconds)
        return StepResult(self.episode.kind, self.step - 1, len(self.ledger), {}, "")


class Actor:
    """Plays the games that it is asked for, one at a time, through the loop that `ralseg fit` has itself.

    Args:
        segmenter: The network that plays, as it was built.
        agent: Who chooses.
        data: The data.
        game: The rules.
        trainer: Options of the Trainer.
    """

    def __init__(
        self, segmenter: Segmenter, agent: Agent, data: SegmentationData, game: Game, trainer: dict[str, Any]
    ) -> None:
        self.game, self.data = game, data
        data.setup()  # before there is a Trainer, into whose folder the splits would be written
        self.trainer = GameTrainer(1, **(trainer | _QUIET))
        self.trainer.callbacks.clear()  # nobody looks on
        self.module = FitModule(segmenter, agent, game.steps_per_episode, self.trainer.segmenter_clip)
        self._scores: dict[str, float] = {}  # mean IoU of the theta_0s that were measured here
        self._checkpoints = CheckpointCache()

    def __call__(self, job: GameJob) -> list[TakenStep]:
        """Play a game; its steps."""
        job.initial_scores.update(self._scores)
        play = partial(OneGame, job, self.game, self.data, self.module, self._checkpoints)
        session = self.trainer.play(self.module, self.data, play, None)
        assert isinstance(session, OneGame)
        self._scores = session.initial_scores
        return session.taken


@dataclass(frozen=True)
class Recipe:
    """Makes an actor in another process; the arguments are those of :class:`Actor`."""

    segmenter: Segmenter
    agent: Agent
    data: SegmentationData
    game: Game
    trainer: dict[str, Any]

    def __call__(self) -> Actor:
        """Make it, with one thread and without a word: whatever there is to say, the run says."""
        torch.set_num_threads(1)
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        return Actor(self.segmenter, self.agent, self.data, self.game, self.trainer)


class Actors:
    """How many actors a run has, and where they are.

    Args:
        count: How many; 0: the run plays all games itself.
        engine: ``local`` processes, or those of a ``ray`` cluster.
        options: Of Ray.
        trainer: All options of the run's Trainer.

    Examples:
        >>> bool(Actors(0, "local", None, {})), bool(Actors(2, "local", None, {}))
        (False, True)
    """

    def __init__(self, count: int, engine: Engine, options: dict[str, Any] | None, trainer: dict[str, Any]) -> None:
        if count < 0:
            raise ConfigError(f"trainer.actors={count} must be 0 (all games are played in this process) or more")
        self.count, self.engine, self.options = count, engine, options
        self._trainer = {name: trainer[name] for name in _PLAYED_BY if name in trainer}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self.count > 0

    @contextmanager
    def playing(
        self, segmenter: Segmenter, agent: Agent, data: SegmentationData, game: Game
    ) -> Iterator[GamesElsewhere | None]:
        """Start the actors, for as long as the run needs them; None where there are none.

        Args:
            segmenter: The network that plays, as it was built.
            agent: Who chooses.
            data: The data.
            game: The rules.
        """
        if not self:
            yield None
            return
        recipe = Recipe(segmenter, agent, data, game, self._trainer)
        pool = WorkerPool(self.count, recipe, self.engine, self.options, _KEYS)
        try:
            yield GamesElsewhere(pool)
        finally:
            pool.close()
