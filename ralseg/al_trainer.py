"""The Trainer of the game: `ralseg fit`."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from rich.console import Console

from ralseg import curves, run_folder
from ralseg.checkpoints import DurableCheckpointIO, read_checkpoint
from ralseg.data.module import SegmentationData
from ralseg.errors import ConfigError
from ralseg.files import write_atomically
from ralseg.game import GameConfig, plan_episodes
from ralseg.game_trainer import GameTrainer
from ralseg.loop import play_of
from ralseg.play import Play
from ralseg.ralis import Ralis
from ralseg.tracking import RunLogger
from ralseg.trainer import RunTrainer

POLICY = "policy.ckpt"
_DEFAULT_GAME = GameConfig()


class ActiveLearningTrainer(GameTrainer):
    """Plays episodes and trains the policy; every step of the game is one epoch to Lightning.

    Args:
        game: The rules.
        checkpoint_every: Steps between checkpoints to resume from. None: once an episode.
        kwargs: All options of Lightning's Trainer but those that the loop sets itself.
    """

    def __init__(self, game: GameConfig = _DEFAULT_GAME, checkpoint_every: int | None = None, **kwargs: Any) -> None:
        self.game = game
        if kwargs.get("limit_val_batches") == 0:
            raise ConfigError("trainer.limit_val_batches=0 leaves no reward; leave it out")
        steps = game.steps_per_episode
        super().__init__(len(plan_episodes(game)) * steps, checkpoint_every or steps, **kwargs)

    def make_play(self) -> Play:
        """The episodes of the run."""
        ralis, data = cast(Ralis, self.lightning_module), cast(SegmentationData, self.datamodule)
        return Play(self.game, data, ralis)

    def fit(
        self,
        model: pl.LightningModule,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: pl.LightningDataModule | None = None,
        ckpt_path: Any = None,
        weights_only: bool | None = True,
        ckpt: str | None = None,
    ) -> None:
        """Play episodes on the train set and learn which regions to label.

        Args:
            model: Segmenter and query network.
            train_dataloaders: Not used: the game makes its own.
            val_dataloaders: Not used: the reward set comes from the data.
            datamodule: The data.
            ckpt_path: As Lightning's; ``ckpt`` goes first.
            weights_only: As Lightning's; code in a checkpoint is never run.
            ckpt: ``last`` goes on with the run in this folder, or starts it; or a file.
        """
        if not isinstance(model, Ralis) or not isinstance(datamodule, SegmentationData):
            raise ConfigError("the game needs a Ralis model and a SegmentationData datamodule")
        with self.claimed_folder(ckpt or ckpt_path) as resume:
            super().fit(model, None, None, datamodule, resume, weights_only)
            if not self.is_global_zero or self.fast_dev_run:
                return
            play = play_of(self)
            if play is not None and play.rounds:
                Console(width=120).print(curves.validation_table(play.history, self.game.validation_plays))
            # not asked of the play: a run that was killed at its very end has none when it goes on
            if self.current_epoch >= len(plan_episodes(self.game)) * self.game.steps_per_episode:
                self._write_policy(model)

    def _write_policy(self, model: Ralis) -> None:
        """Leave the policy alone in a small file to hand on: the best by validation, else as it is in the end."""
        folder = Path(self.default_root_dir)
        best = run_folder.find_checkpoint(folder, "best")
        if best.is_file():
            whole = read_checkpoint(best)
        else:
            whole = {"state_dict": model.state_dict()}
            model.on_save_checkpoint(whole)
        weights = {name: weight for name, weight in whole["state_dict"].items() if name.startswith("query.")}
        DurableCheckpointIO().save_checkpoint({"ralseg": whole["ralseg"], "state_dict": weights}, folder / POLICY)
        Console(soft_wrap=True).print(f"policy: {folder / POLICY}")

    def best_checkpoint(self, folder: Path) -> Checkpoint:
        """The best policy by greedy validation."""
        return BestPolicy(folder / "best.ckpt")

    # -- files of the run ------------------------------------------------------------------------

    def step_finished(self, play: Play) -> None:
        """After the last step of an episode, enter it into the history and write its files."""
        if not play.is_over:
            return
        seconds, selected = dict(play.seconds), play.ledger.state_dict()
        record = play.finish_episode()
        play.player.step_metrics |= {
            f"{record['kind']}/return": record["miou"][-1] - record["miou"][0],
            f"{record['kind']}/class_entropy": record["class_entropy"],
            **{f"seconds/{part.replace(' ', '_')}": value for part, value in seconds.items()},
        }
        is_end_of_round = (
            record["kind"] == "validation"
            and record["role"] == "policy"
            and record["round"] in curves.finished_rounds(play.history, self.game.validation_plays)
        )
        if is_end_of_round:
            play.player.round_metrics = curves.validation_metrics(play.history, record["round"])
            play.player.step_metrics |= play.player.round_metrics
        if self.is_global_zero and not self.fast_dev_run:
            self._write_episode(play, record, selected, is_end_of_round)

    def _write_episode(
        self, play: Play, record: dict[str, Any], selected: dict[str, Any], is_end_of_round: bool
    ) -> None:
        """Write what an episode has shown; after a round of validation, what the round says."""
        folder = Path(self.default_root_dir)
        name = f"{record['number']:04d}_{record['kind']}_{record['role']}.csv"
        write_atomically(folder / "episodes" / name, selection_table(play.data, selected))
        write_atomically(folder / "history.json", json.dumps(play.history) + "\n")
        if is_end_of_round:
            picture = folder / "learning_curve.png"
            curves.draw_learning_curve(play.history, self.game.validation_plays, picture)
            for logger in self.loggers:
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
        rounds = play_of(trainer).rounds
        if rounds and not cast(RunTrainer, trainer).fast_dev_run and rounds[-1] > self.best:
            self.best = rounds[-1]
            trainer.save_checkpoint(self.path, weights_only=False)  # with the game, to look into or go on from

    def state_dict(self) -> dict[str, Any]:
        """The best so far."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Return to a saved state."""
        self.best = state_dict["best"]


def selection_table(data: SegmentationData, ledger: dict[str, Any]) -> str:
    """The regions of an episode in the order in which they were labelled, as CSV."""
    regions: torch.Tensor = ledger["labelled"]
    images = data.splits["train_set"]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["step", "image", "x", "y", "width", "height"])
    boxes, owners = data.grid.boxes(regions).tolist(), data.grid.image_of(regions).tolist()
    for step, image, box in zip(ledger["steps"].tolist(), owners, boxes, strict=True):
        writer.writerow([step, data.dataset.names[images[image]], *box])
    return text.getvalue()
