"""The Trainer of `ralseg fit`: play episodes, learn a policy, and leave both in a folder."""

import json
import math
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, Checkpoint
from rich.console import Console

from ralseg.agents.base import Agent
from ralseg.agents.loading import policy_file, save_policy
from ralseg.data.datamodule import SegmentationData
from ralseg.engine import learning_curves
from ralseg.engine.actors import Actors
from ralseg.engine.fit_session import FitSession
from ralseg.engine.game import Game, plan_episodes
from ralseg.engine.game_trainer import GameTrainer
from ralseg.engine.learning_curves import Comparison
from ralseg.engine.loop import result_of, session_of
from ralseg.engine.modules import FitModule
from ralseg.engine.selection import episode_table
from ralseg.engine.trainer import RunTrainer, as_list
from ralseg.errors import ConfigError
from ralseg.models.segmenter import Segmenter
from ralseg.runtime import run_folder
from ralseg.runtime.checkpoints import read_checkpoint
from ralseg.runtime.files import write_atomically
from ralseg.runtime.mlflow_logger import RunLogger
from ralseg.runtime.workers import Engine

POLICY = "policy.ckpt"
_DEFAULT_GAME = Game()


class FitTrainer(GameTrainer):
    """Plays episodes and trains an agent.

    Args:
        game: The rules.
        checkpoint_every: Steps between checkpoints to resume from. None: once an episode.
        actors: Processes that play games which do not depend on each other at the same time: those of a round of
            validation, and those of a block where the agent learns after it (``ralseg.PairedBlocks``). Each has one
            thread. The results do not depend on how many there are. 0: all games are played in this process.
        actor_engine: ``local``: processes of this machine. ``ray``: of a Ray cluster.
        actor_options: For Ray: ``address``, ``num_cpus``, ``num_gpus``, ``resources``, ``init``, as in a study's
            ``engine_options``.
        kwargs: All options of Lightning's Trainer but those that the loop sets itself. ``gradient_clip_val``
            limits the norm of the segmenter's gradient while regions are labelled (4 by default, as in the paper; 0
            turns it off); final trainings are not clipped.
    """

    def __init__(
        self,
        game: Game = _DEFAULT_GAME,
        checkpoint_every: int | None = None,
        actors: int = 0,
        actor_engine: Engine = "local",
        actor_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.game = game
        self.actors = Actors(actors, actor_engine, actor_options, kwargs)
        if kwargs.get("limit_val_batches") == 0:
            raise ConfigError("trainer.limit_val_batches=0 leaves no reward; leave it out")
        if kwargs.get("precision") in ("bf16-true", "16-true"):
            raise ConfigError(
                f"trainer.precision={kwargs['precision']} would take digits from the agent's weights, too, which "
                "learns from small differences; use bf16-mixed"
            )
        kwargs["callbacks"] = [*as_list(kwargs.get("callbacks")), EpisodeFiles()]
        super().__init__(checkpoint_every or game.steps_per_episode, **kwargs)
        if self.actors and self.world_size > 1:
            raise ConfigError(
                f"trainer.actors={actors} play for a run on one device, but this one has {self.world_size}; set "
                "trainer.devices and trainer.num_nodes to 1, or leave out trainer.actors"
            )

    def fit(
        self,
        model: pl.LightningModule,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: pl.LightningDataModule | None = None,
        ckpt_path: Any = None,
        weights_only: bool | None = True,
        agent: Agent | None = None,
        ckpt: str | None = None,
    ) -> None:
        """Play episodes on the train set and learn which regions to label.

        Args:
            model: The segmenter.
            train_dataloaders: Not used: the game makes its own.
            val_dataloaders: Not used: the reward set comes from the data.
            datamodule: The data.
            ckpt_path: As Lightning's; ignored where ``ckpt`` is given.
            weights_only: As Lightning's; code in a checkpoint is never run.
            agent: Who learns: ``ralseg.DQN``, ``ralseg.PairedBlocks``, ``ralseg.RarityForecast``, or your own.
            ckpt: ``last`` goes on with the run in this folder, or starts it; or a file.
        """
        if not isinstance(model, Segmenter) or not isinstance(datamodule, SegmentationData):
            raise ConfigError("`ralseg fit` needs a Segmenter as its model and SegmentationData as its data")
        if agent is None:
            raise ConfigError(
                "`ralseg fit` needs an agent; set agent.class_path, to ralseg.DQN, ralseg.PairedBlocks or "
                "ralseg.RarityForecast for example"
            )
        if train_dataloaders is not None or val_dataloaders is not None:
            raise ConfigError("`ralseg fit` makes its own loaders from the data; leave out train_ and val_dataloaders")
        for episode in {(e.kind, e.role): e for e in plan_episodes(self.game, agent.block, agent.references)}.values():
            agent.player(episode, datamodule.seed)  # an unknown player should not wait for its first episode
        module = FitModule(model, agent, self.game.steps_per_episode, self.segmenter_clip)
        actors = nullcontext() if self.fast_dev_run else self.actors.playing(model, agent, datamodule, self.game)
        with self.claimed_folder(ckpt or ckpt_path) as resume, actors as elsewhere:
            opened = partial(FitSession, self.game, datamodule, module, elsewhere)
            session = self.play(module, datamodule, opened, resume)
            if not self.is_global_zero or self.fast_dev_run:
                return
            assert isinstance(session, FitSession)
            if session.rounds():
                Console(width=120).print(learning_curves.validation_table(session.history, self.game.validation_plays))
            if session.steps_left == 0:
                self._write_policy(module, learning_curves.against_start(session.history, self.game.validation_plays))

    def _write_policy(self, module: FitModule, against_start: Comparison | None) -> None:
        """Leave the policy alone in a small file to hand on: the best by validation, else as it is in the end.

        A policy that learning went on from is the best one, too, if no other was better.
        """
        folder, console = Path(self.default_root_dir), Console(soft_wrap=True)
        best, start = run_folder.find_checkpoint(folder, "best"), module.agent.start_from
        keeps_start = against_start is not None and against_start.mean <= 0
        if start is not None and keeps_start:
            checkpoint = read_checkpoint(policy_file(start))
        elif best.is_file():
            checkpoint = read_checkpoint(best)
        else:
            checkpoint = {"state_dict": module.state_dict()}
            module.on_save_checkpoint(checkpoint)
        save_policy(checkpoint, folder / POLICY)
        if against_start is not None:
            what = f"learning brought nothing: {start} stays as it is" if keeps_start else f"better than {start}"
            console.print(
                f"{what} (area of the best policy less its area: {against_start} points in {against_start.plays} games "
                "on held-out images, the same ones that the best was chosen by)"
            )
        console.print(f"policy: {folder / POLICY}")

    def best_checkpoint(self, folder: Path) -> Checkpoint:
        """The best policy by greedy validation."""
        return BestPolicy(folder / "best.ckpt")


class EpisodeFiles(Callback):
    """Writes what an episode has shown and, after a round of validation, what the round says."""

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the files of an episode that has just ended."""
        ended = result_of(trainer).episode
        if ended is None or not trainer.is_global_zero or cast(RunTrainer, trainer).fast_dev_run:
            return
        session: FitSession = session_of(trainer)
        folder, record = Path(trainer.default_root_dir), ended.record
        name = f"{record['number']:04d}_{record['kind']}_{record['role']}.csv"
        table = episode_table(session.data, session.regions, ended.regions, ended.steps)
        write_atomically(folder / "episodes" / name, table)
        write_atomically(folder / "history.json", json.dumps(session.history) + "\n")
        if ended.round_metrics:
            picture = folder / "learning_curve.png"
            learning_curves.draw_learning_curve(session.history, session.game.validation_plays, picture)
            for logger in trainer.loggers:
                if isinstance(logger, RunLogger):
                    logger.log_file(picture)
                    logger.log_file(folder / "history.json")


class BestPolicy(Checkpoint):
    """Keeps the policy whose greedy validation had the largest area under the curve.

    Args:
        path: Where it is kept.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.best = path, -math.inf

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save after a round of validation that was better than all before."""
        rounds = result_of(trainer).rounds
        if rounds and not cast(RunTrainer, trainer).fast_dev_run and rounds[-1] > self.best:
            self.best = rounds[-1]
            trainer.save_checkpoint(self.path, weights_only=False)  # with the game, to look into or go on from

    def state_dict(self) -> dict[str, Any]:
        """The best so far."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Return to a saved state."""
        self.best = state_dict["best"]
