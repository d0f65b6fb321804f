"""A Trainer whose fit loop is the ActiveLearningLoop: what `ralseg fit` and `ralseg acquire` share."""

from abc import abstractmethod
from typing import Any

from lightning.pytorch.callbacks import ProgressBar

from ralseg.errors import ConfigError
from ralseg.labelling import Labelling
from ralseg.loop import ActiveLearningLoop
from ralseg.progress import GameProgress
from ralseg.trainer import RunTrainer

# Trainer options that the loop depends on, and what they must be
_NEEDED = {"reload_dataloaders_every_n_epochs": 1, "check_val_every_n_epoch": 1, "num_sanity_val_steps": 0}


class GameTrainer(RunTrainer):
    """Every step of labelling is one epoch to Lightning.

    Args:
        all_steps: Steps of the whole run.
        checkpoint_every: Steps between checkpoints to resume from.
        kwargs: All options of Lightning's Trainer but those that the loop sets itself.
    """

    def __init__(self, all_steps: int, checkpoint_every: int, **kwargs: Any) -> None:
        for key, needed in _NEEDED.items():
            # the command line gives every option its default; only a deliberate other value is an error
            if kwargs.get(key) not in (None, needed, 0, 1):
                raise ConfigError(f"trainer.{key}={kwargs[key]} breaks the game's loop; leave it at {needed}")
            kwargs[key] = needed
        if kwargs.get("precision") in ("16-mixed", 16, "16"):
            raise ConfigError("trainer.precision=16-mixed scales losses, which the game does not undo; use bf16-mixed")
        kwargs["max_epochs"] = min(kwargs.get("max_epochs") or all_steps, all_steps)
        callbacks = kwargs.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
        if kwargs.get("enable_progress_bar") is not False and not any(isinstance(c, ProgressBar) for c in callbacks):
            callbacks = [*callbacks, GameProgress()]
        kwargs["callbacks"] = callbacks
        kwargs["log_every_n_steps"] = kwargs.get("log_every_n_steps") or 1
        super().__init__(checkpoint_every=checkpoint_every, **kwargs)
        self.fit_loop = ActiveLearningLoop(self, self.fit_loop)

    @abstractmethod
    def make_play(self) -> Labelling:
        """What the loop plays."""

    @abstractmethod
    def step_finished(self, play: Any) -> None:
        """Called by the loop after each step, before Lightning's own hooks."""
