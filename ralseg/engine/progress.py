"""One line of progress for the whole run: where the game stands, how well, and how long it will take."""

import sys
import time

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ralseg.engine.loop import result_of


class GameProgress(ProgressBar):
    """A bar over all steps of all episodes; where the output is no terminal, one line an episode."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._progress: Progress | None = None
        self._started = 0.0
        self._first = 0
        self._task: TaskID | None = None

    def disable(self) -> None:
        """Called by Lightning on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Called by Lightning."""
        self._enabled = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the bar."""
        self._started, self._first = time.monotonic(), trainer.current_epoch
        if self._enabled and sys.stdout.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, TimeRemainingColumn())
            self._task = self._progress.add_task("", total=trainer.max_epochs, completed=trainer.current_epoch)
            self._progress.start()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Move the bar by a step; without a terminal, print a line when an episode has ended."""
        if not self._enabled:
            return
        result = result_of(trainer)
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task, completed=trainer.current_epoch + 1, total=trainer.max_epochs, description=result.line
            )
        elif result.news is not None:
            done = trainer.current_epoch + 1
            spent = time.monotonic() - self._started
            left = spent / max(done - self._first, 1) * ((trainer.max_epochs or done) - done)
            print(f"{result.news} | {done}/{trainer.max_epochs} steps, {spent:.0f} s, {left:.0f} s left", flush=True)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the bar away."""
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Take the bar away."""
        self._stop()

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
