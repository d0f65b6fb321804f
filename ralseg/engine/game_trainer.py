"""The Trainer that plays sessions: what `ralseg fit` and `ralseg acquire` share."""

from collections.abc import Callable
from typing import Any, cast

from lightning.pytorch.callbacks import ProgressBar

from ralseg.data.datamodule import SegmentationData
from ralseg.engine.callbacks import StepMetrics
from ralseg.engine.loop import ActiveLearningLoop
from ralseg.engine.modules import GRADIENT_CLIP, LabellingModule
from ralseg.engine.progress import GameProgress
from ralseg.engine.session import Session
from ralseg.engine.trainer import RunTrainer, as_list
from ralseg.errors import ConfigError
from ralseg.runtime.memory import keep_freed_memory

# Trainer options that the loop depends on, and what they must be
_NEEDED = {"reload_dataloaders_every_n_epochs": 1, "check_val_every_n_epoch": 1, "num_sanity_val_steps": 0}


class GameTrainer(RunTrainer):
    """A Trainer whose fit loop is the ActiveLearningLoop: every step of labelling is one epoch to Lightning.

    Args:
        checkpoint_every: Steps between checkpoints to resume from.
        kwargs: All options of Lightning's Trainer but those that the loop sets itself. ``gradient_clip_val``
            limits the norm of the segmenter's gradient while regions are labelled (4 by default, as in the paper; 0
            turns it off); final trainings are not clipped.
    """

    def __init__(self, checkpoint_every: int, **kwargs: Any) -> None:
        for key, needed in _NEEDED.items():
            # the command line gives every option its default; only a deliberate other value is an error
            if kwargs.get(key) not in (None, needed, 0, 1):
                raise ConfigError(f"trainer.{key}={kwargs[key]} breaks the game's loop; leave it at {needed}")
            kwargs[key] = needed
        if kwargs.pop("gradient_clip_algorithm", None) not in (None, "norm"):
            raise ConfigError("trainer.gradient_clip_algorithm: the game clips gradients by their norm; leave it out")
        if kwargs.get("precision") in ("16-mixed", 16, "16"):
            raise ConfigError("trainer.precision=16-mixed scales losses, which the game does not undo; use bf16-mixed")
        keep_freed_memory()  # games are also played by notebooks, actors and cells of studies
        kwargs["max_epochs"] = kwargs.get("max_epochs") or -1  # the session knows how many steps there are
        clip = kwargs.pop("gradient_clip_val", None)
        self.segmenter_clip = GRADIENT_CLIP if clip is None else float(clip)
        callbacks = as_list(kwargs.get("callbacks"))
        if kwargs.get("enable_progress_bar") is not False and not any(isinstance(c, ProgressBar) for c in callbacks):
            callbacks = [*callbacks, GameProgress()]
        kwargs["callbacks"] = [*callbacks, StepMetrics()]
        kwargs["log_every_n_steps"] = kwargs.get("log_every_n_steps") or 1
        super().__init__(checkpoint_every=checkpoint_every, **kwargs)
        self.fit_loop = ActiveLearningLoop(self, self.fit_loop)

    def play(
        self,
        module: LabellingModule,
        data: SegmentationData,
        open_session: Callable[[], Session],
        resume: str | None,
    ) -> Session:
        """Play a session to its end, and give it back.

        Args:
            module: The root module.
            data: The data.
            open_session: Makes the session, once the data are set up.
            resume: The checkpoint to go on from.
        """
        loop = cast(ActiveLearningLoop, self.fit_loop)
        loop.open_session = open_session
        loop.max_epochs = -1  # else an earlier game's end would be this one's too
        try:
            super().fit(module, None, None, data, resume, True)
        finally:
            data.score_on(None)
        if loop.session is None:
            raise ConfigError(
                "nothing was played: trainer.max_steps or trainer.limit_train_batches leave no step; leave them out"
            )
        return loop.session
