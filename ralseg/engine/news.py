"""Callbacks that tell an oracle what the run is doing: people may be waiting in front of it."""

from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from ralseg.engine.acquire_session import AcquireSession
from ralseg.engine.loop import session_of
from ralseg.labels.news import News
from ralseg.labels.oracle import Oracle


def news_of(session: AcquireSession, doing: Literal["choosing", "training", "final", "done"], **values: Any) -> News:
    """News with the figures of a session."""
    scores = tuple(session.scores) if session.config.score_steps else ()
    return News(doing, len(session.ledger), tuple(session.config.budgets), scores, **values)


class TellSteps(Callback):
    """Tells of the steps: the segmenter trains, then looks for the next regions.

    Args:
        oracle: Who is told.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The first regions are looked for."""
        self._tell(trainer, "choosing")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The labels are there."""
        self._tell(trainer, "training")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The step is over."""
        self._tell(trainer, "choosing")

    def _tell(self, trainer: pl.Trainer, doing: Literal["choosing", "training"]) -> None:
        if trainer.is_global_zero:
            self.oracle.tell(news_of(session_of(trainer), doing))


class TellFinal(Callback):
    """Tells of the final training at a budget.

    Args:
        oracle: Who is told.
        session: The acquisition at its budget.
        budget: The budget.
    """

    def __init__(self, oracle: Oracle, session: AcquireSession, budget: int) -> None:
        self.oracle, self.session, self.budget = oracle, session, budget

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """It begins, or goes on."""
        self._tell(trainer, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A round is over."""
        self._tell(trainer, trainer.current_epoch + 1)

    def _tell(self, trainer: pl.Trainer, rounds: int) -> None:
        if trainer.is_global_zero:
            share = rounds / max(1, trainer.max_epochs or 1)
            self.oracle.tell(news_of(self.session, "final", budget=self.budget, share=min(1.0, share)))
