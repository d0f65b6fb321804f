"""The ActiveLearningLoop: one step of the paper is one epoch to Lightning."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.trainer import call

from ralseg.engine.modules import LabellingModule, Trained
from ralseg.engine.session import Session, StepResult
from ralseg.errors import ConfigError


class ActiveLearningLoop(_FitLoop):
    """Plays a session step by step; Lightning's own epoch does steps 5 and 6.

    Lightning withdrew loop customisation from its public API in 2.0 but still runs it: this class
    overrides a few methods of ``_FitLoop``, all thin, and ``tests/engine/test_loop.py`` fails when one disappears.

    Args:
        trainer: The Trainer whose loop this is.
        base: The loop that it takes the place of.

    Examples:
        >>> from ralseg.engine import FitTrainer
        >>> trainer = FitTrainer(logger=False, enable_progress_bar=False, accelerator="cpu")
        >>> isinstance(trainer.fit_loop, ActiveLearningLoop)
        True
    """

    def __init__(self, trainer: pl.Trainer, base: _FitLoop) -> None:
        super().__init__(trainer, base.min_epochs, -1)  # the session says how many steps there are
        self.epoch_loop = base.epoch_loop  # carries max_steps and what fast_dev_run set
        self.open_session: Callable[[], Session] | None = None  # set by the Trainer before it fits
        self.session: Session | None = None
        self.result: StepResult | None = None  # of the last step
        self._limit = base.max_epochs if (base.max_epochs or -1) > 0 else None
        self._saved: dict[str, Any] | None = None
        self._in_step = False

    def advance(self) -> None:
        """One step of the paper."""
        started, session = time.perf_counter(), self._session()
        if session.is_played_elsewhere:
            self.result = self._take_step(session)
            return
        self._in_step = True
        if session.step == 0:
            session.start()
            if self.trainer.enable_validation:
                session.scores = [self._initial_score(session)]
        observation = session.observe()  # 1-2: the state, the pools, their features
        choice = session.choose(observation)  # 3: one region in each pool
        session.label(observation.pools.gather(1, choice.picked).flatten())  # 4: the oracle, the two sets
        trained = self._train_and_score()  # 5-6: Lightning's own epoch and validation
        result = session.learn(observation, choice, trained)  # 7: for those who learn
        self.result = replace(result, seconds=time.perf_counter() - started)

    def _take_step(self, session: Session) -> StepResult:
        """A step that another process has played: to Lightning an epoch without batches."""
        step = session.fetch_step()  # may take long, or be interrupted: nothing is half done before it
        self._in_step = True
        self.epoch_progress.increment_ready()
        call._call_callback_hooks(self.trainer, "on_train_epoch_start")
        call._call_lightning_module_hook(self.trainer, "on_train_epoch_start")
        self.epoch_progress.increment_started()
        for _ in range(step.optimizer_steps):  # for trainer.global_step
            self.epoch_loop.manual_optimization.optim_step_progress.increment_ready()
            self.epoch_loop.manual_optimization.optim_step_progress.increment_completed()
        self.epoch_loop._batches_that_stepped += step.optimizer_steps
        result = session.take_step(step)
        return replace(result, seconds=sum(step.seconds.values()) + sum(step.trained[2:]))

    def _train_and_score(self) -> Trained:
        """Steps 5 and 6: one training iteration on the new regions, then mean IoU on the reward set."""
        module = cast(LabellingModule, self.trainer.lightning_module)
        module.begin_step()
        self.max_batches = float("inf")  # of this step: the last one of an episode may be short
        super().on_advance_start()
        super().advance()
        return module.trained()

    def _initial_score(self, session: Session) -> float:
        """Mean IoU of theta_0, measured once for each theta_0 and each set of images that is scored on."""
        if session.scored_as not in session.initial_scores:
            module = cast(LabellingModule, self.trainer.lightning_module)
            self.trainer.validating = True
            self.epoch_loop.val_loop.run()
            self.trainer.training = True
            session.initial_scores[session.scored_as] = module.trained().miou
        return session.initial_scores[session.scored_as]

    def _session(self) -> Session:
        assert self.session is not None
        return self.session

    # -- what Lightning calls around a step -------------------------------------------------------

    def setup_data(self) -> None:
        """Build the training loader, once there are regions to train on."""
        if self._in_step:
            super().setup_data()

    def on_run_start(self) -> None:
        """Open the session, or take up a saved one."""
        assert self.open_session is not None
        self.session = self.open_session()
        if self._saved is not None:
            self.session.load_state_dict(self._saved)
            self._saved = None
        self._plan_epochs(self._epochs_done())
        super().on_run_start()

    def on_advance_start(self) -> None:
        """Lightning's part waits until there is something to train on; see :meth:`advance`."""

    def on_advance_end(self) -> None:
        """The step is complete: hooks and checkpoints."""
        self._in_step = False
        self._plan_epochs(self._epochs_done() + 1)
        super().on_advance_end()

    def _epochs_done(self) -> int:
        current: Any = self.epoch_progress.current
        return int(current.processed)

    def _plan_epochs(self, done: int) -> None:
        """As many epochs as the session has steps: it needs more of them where an oracle left regions out."""
        planned = done + self._session().steps_left
        self.max_epochs = planned if self._limit is None else min(planned, self._limit)

    def on_run_end(self) -> None:
        """Training is no longer on regions."""
        self._session().data.show_fit_images()
        super().on_run_end()

    # -- checkpoints ------------------------------------------------------------------------------

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Lightning's own state, and the session's."""
        state: dict[str, Any] = super().on_save_checkpoint()
        if self.session is not None:
            state |= {"session": self.session.state_dict(), "in_step": self._in_step}
        return state

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        """Keep the session's state until it is opened."""
        super().on_load_checkpoint(state_dict)
        if state_dict["in_step"]:
            raise ConfigError(
                "this checkpoint was written in the middle of a step and cannot be resumed exactly; "
                "use checkpoints/last.ckpt, or set save_on_train_epoch_end for your own checkpoint callbacks"
            )
        self._saved = state_dict["session"]


def saved_session(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The session's state in a checkpoint that this loop wrote."""
    state: dict[str, Any] = checkpoint["loops"]["fit_loop"]["state_dict"]["session"]
    return state


def session_of(trainer: pl.Trainer) -> Any:
    """The session of a Trainer, for callbacks, which know Lightning's Trainer only."""
    return cast(ActiveLearningLoop, trainer.fit_loop).session


def result_of(trainer: pl.Trainer) -> StepResult:
    """What the last step of a Trainer produced, for callbacks."""
    result = cast(ActiveLearningLoop, trainer.fit_loop).result
    assert result is not None
    return result
