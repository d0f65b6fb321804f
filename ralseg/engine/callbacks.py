"""Callbacks of every run: signals, numbers that are not finite, the seeds of epochs, and each step's metrics."""

import json
import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping

from ralseg.engine.loop import result_of
from ralseg.errors import NotFiniteError
from ralseg.runtime import distributed, run_folder
from ralseg.runtime.files import write_atomically
from ralseg.runtime.seeding import stream_seed
from ralseg.runtime.signals import Interrupted, Paused, interrupts


class StopWhenAsked(Checkpoint):
    """On SIGTERM or Ctrl-C, lets the epoch end (in a game, the step), saves, and stops.

    A ``Checkpoint``, because Lightning calls those last: what it saves has seen all other callbacks.

    Args:
        path: Where it saves: the checkpoint to resume from.
        grace_seconds: How long the epoch may take to end. Later it is abandoned, and the last checkpoint stays.
    """

    def __init__(self, path: Path, grace_seconds: float) -> None:
        self.path, self.grace_seconds = path, grace_seconds

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the signals from Lightning, which would leave with code 0 and nothing saved."""
        interrupts.be_patient(self.grace_seconds)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save and stop here, where a resumed run can take up exactly."""
        asked = self._asked()
        if asked is not None:
            trainer.save_checkpoint(self.path, weights_only=False)
            raise distributed.raised_by_all(Interrupted(asked))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Whatever follows the training can be stopped at once."""
        interrupts.be_impatient()
        asked = self._asked()
        if asked is not None:
            raise distributed.raised_by_all(Interrupted(asked))

    @staticmethod
    def _asked() -> int | None:
        """The signal that has come, to whichever process: they must leave together."""
        asked = next((signal for signal in distributed.gather(interrupts.asked) if signal is not None), None)
        if asked is not None:  # never back to None: a signal may have come meanwhile
            interrupts.asked = asked
        return asked

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """The training has ended otherwise; where it was between two steps, it is saved as it is."""
        if isinstance(exception, Paused):
            trainer.save_checkpoint(self.path, weights_only=False)
        interrupts.be_impatient()


class FiniteLoss(Callback):
    """Stops a training whose loss is not finite, before the next checkpoint is written over a good one."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the loss."""
        loss = float(distributed.mean(outputs["loss"]))
        if not math.isfinite(loss):
            context = {"epoch": trainer.current_epoch, "batch": batch_idx, "loss": loss}
            rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
            message = f"the loss is {loss} in epoch {trainer.current_epoch}, batch {batch_idx}"
            raise NotFiniteError(f"{message}; a lower learning rate may help", context | {"learning_rates": rates})


class ProblemFile(Callback):
    """Writes what is known of a step whose numbers are not finite into the run's folder."""

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Write ``problem.json``."""
        if isinstance(exception, NotFiniteError) and trainer.is_global_zero:
            path = run_folder.numbered(Path(trainer.default_root_dir), "problem", ".json")
            write_atomically(path, json.dumps({"problem": str(exception), **exception.context}, indent=1) + "\n")
            exception.saved_to = str(path)


class SeededEpochs(Callback):
    """Dropout of an epoch as a function of (seed, epoch), so that a run that was cut off repeats it.

    Args:
        seed: The run's seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Seed the epoch."""
        torch.manual_seed(distributed.own_seed(stream_seed(self.seed, "dropout", trainer.current_epoch)))


class PatientStop(EarlyStopping):
    """Early stopping that, when resumed after it had stopped, stays stopped."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do not train a round more than the run that was not cut off."""
        if self.wait_count >= self.patience:
            trainer.should_stop = True


class StepMetrics(Callback):
    """Gives the figures of a step to the loggers, and those of a round of validation to other callbacks too.

    ``self.log`` costs as much for each figure as a step's features do: it is kept for what callbacks may monitor.
    """

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what the step produced."""
        result = result_of(trainer)
        for logger in trainer.loggers:
            logger.log_metrics(result.metrics | {f"{result.kind}/seconds": result.seconds}, result.axis)
        if result.episode is not None:
            for name, value in result.episode.round_metrics.items():
                pl_module.log(name, value, logger=False)
