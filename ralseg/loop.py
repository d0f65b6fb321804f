"""The ActiveLearningLoop: order of events and saved state. What happens in each is in ``play.py``."""

import time
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loops.fit_loop import _FitLoop

from ralseg import ranks
from ralseg.errors import ConfigError
from ralseg.labelling import Labelling


def play_of(trainer: pl.Trainer) -> Any:
    """What a Trainer's loop plays, for callbacks, which know Lightning's Trainer only."""
    loop: Any = trainer.fit_loop
    return loop.play


class ActiveLearningLoop(_FitLoop):
    """One Lightning epoch is one step of the game; the trainer's own epoch does steps 5 and 6.

    Lightning withdrew loop customisation from its public API in 2.0 but still runs it: this class
    overrides six methods of ``_FitLoop``, all thin, and ``tests/test_loop.py`` fails when one disappears.

    Args:
        trainer: The ``ActiveLearningTrainer`` whose loop this is.
        base: The loop that it takes the place of.
    """

    def __init__(self, trainer: pl.Trainer, base: _FitLoop) -> None:
        super().__init__(trainer, base.min_epochs, base.max_epochs)
        self.epoch_loop = base.epoch_loop  # carries max_steps and what fast_dev_run set
        self.play: Labelling | None = None
        self._saved: dict[str, Any] | None = None
        self._in_step = False

    def setup_data(self) -> None:
        """Build the training loader, once there are regions to train on."""
        if self.play is not None and self._in_step:
            super().setup_data()

    def on_run_start(self) -> None:
        """Set up the game, or take up a saved one."""
        trainer: Any = self.trainer
        self.play = trainer.make_play()
        if self._saved is not None:
            self.play.load_state_dict(self._saved)
            self._saved = None
        super().on_run_start()

    def on_advance_start(self) -> None:
        """Steps 1 to 4, before the training loader is built."""
        assert self.play is not None
        self._in_step, self._started = True, time.perf_counter()
        if self.play.step == 0:
            self.play.start_episode()
            if self.trainer.enable_validation:
                self.play.scores = [self._initial_score()]
        if self.play.observation is None:
            self.play.observe()
        self.play.reveal(ranks.from_first(self.play.decide))
        self.max_batches = float("inf")  # of this step: the last one of an episode may be short
        super().on_advance_start()

    def advance(self) -> None:
        """Steps 5 and 6: one training iteration on the new regions, then mean IoU on the reward set."""
        assert self.play is not None
        start = time.perf_counter()
        self.play.player.scoring_seconds = 0.0
        super().advance()
        reward = self.play.player.scoring_seconds
        self.play.spend("train", time.perf_counter() - start - reward)
        self.play.spend("reward", reward)

    def on_advance_end(self) -> None:
        """The reward, the next look, and what is learned from both; then hooks and checkpoints."""
        assert self.play is not None
        play = self.play
        play.receive(play.player.miou)
        play.observation = None
        if not play.is_over:
            play.observe()
        play.learn()
        play.player.step_number = play.axis(self.trainer.current_epoch)
        play.player.step_metrics |= {
            f"{play.counters()[0]}/seconds": time.perf_counter() - self._started,
            **play.metrics(),
        }
        trainer: Any = self.trainer
        trainer.step_finished(play)
        self._in_step = False
        super().on_advance_end()

    def on_run_end(self) -> None:
        """The game is over: loaders are no longer its own."""
        assert self.play is not None
        self.play.data.step_loader = None
        super().on_run_end()

    def _initial_score(self) -> float:
        """Mean IoU of theta_0 on the reward set, measured once for each theta_0."""
        assert self.play is not None
        name = self.play.weights_name
        if name not in self.play.initial_scores:
            self.trainer.validating = True
            self.epoch_loop.val_loop.run()
            self.trainer.training = True
            self.play.initial_scores[name] = self.play.player.miou
        return self.play.initial_scores[name]

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Lightning's own state, and the game's."""
        state: dict[str, Any] = super().on_save_checkpoint()
        if self.play is not None:
            state |= {"play": self.play.state_dict(), "in_step": self._in_step}
        return state

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        """Keep the game's state until the game is set up."""
        super().on_load_checkpoint(state_dict)
        if "play" not in state_dict:
            raise ConfigError("this checkpoint holds no game: `ralseg fit` cannot go on from it")
        if state_dict["in_step"]:
            raise ConfigError(
                "this checkpoint was written in the middle of a step and cannot be resumed exactly; "
                "use checkpoints/last.ckpt, or set save_on_train_epoch_end for your own checkpoint callbacks"
            )
        self._saved = state_dict["play"]
