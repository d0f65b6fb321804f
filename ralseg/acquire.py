"""The Trainer of `ralseg acquire`: spend the budget, train at each budget, test, and leave everything in a folder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ralseg import __version__, run_folder
from ralseg.acquisition import SET, Acquisition, AcquisitionConfig
from ralseg.checkpoints import read_checkpoint
from ralseg.data.module import SegmentationData
from ralseg.errors import ConfigError
from ralseg.files import write_atomically
from ralseg.final import FinalTraining, mixed_images, train_final
from ralseg.find_policy import find_policy, import_class, policy_identity, policy_tag
from ralseg.game_trainer import GameTrainer
from ralseg.loop import play_of
from ralseg.oracle import Oracle
from ralseg.people import LabelsNeeded, PeopleOracle
from ralseg.player import SegmenterPlayer
from ralseg.selection import class_frequencies, frequencies_of_set, selection_table, write_selection
from ralseg.tracking import RunLogger, git_commit
from ralseg.trainer import RunTrainer

RESULT = "result.json"
FORMAT = "ralseg.acquire/1"
_DEFAULT_ACQUISITION = AcquisitionConfig()
_DEFAULT_FINAL = FinalTraining()
# options of the acquiring Trainer that the final trainings share
_SHARED = (
    *("accelerator", "devices", "num_nodes", "strategy", "precision", "deterministic", "benchmark"),
    *("enable_progress_bar", "enable_model_summary"),
)


class AcquireTrainer(GameTrainer):
    """Has a policy choose regions of the acquisition set, then trains and tests at each budget.

    Args:
        acquisition: How the budget is spent.
        final: How the final segmenters are trained.
        checkpoint_every: Steps between checkpoints to resume from. None: every step.
        kwargs: All options of Lightning's Trainer but those that the loop sets itself.
    """

    def __init__(
        self,
        acquisition: AcquisitionConfig = _DEFAULT_ACQUISITION,
        final: FinalTraining = _DEFAULT_FINAL,
        checkpoint_every: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.acquisition, self.final = acquisition, final
        self._shared = {key: kwargs[key] for key in _SHARED if kwargs.get(key) is not None}
        if not acquisition.score_steps:
            kwargs["limit_val_batches"] = 0
        super().__init__(len(acquisition.step_sizes()), checkpoint_every or 1, **kwargs)

    def best_checkpoint(self, folder: Path) -> Checkpoint:
        """Checkpoints at the budgets, from which the final trainings start."""
        return AtBudgets(folder)

    def make_play(self) -> Acquisition:
        """The acquisition."""
        data = cast(SegmentationData, self.datamodule)
        player = cast(SegmenterPlayer, self.lightning_module)
        # an error in it should not wait for the final training
        mixed_images(data, self.final.mix, self.acquisition.initial_weights)
        return self._make_acquisition(player, data)

    def _make_acquisition(self, player: SegmenterPlayer, data: SegmentationData) -> Acquisition:
        policy = find_policy(self._policy, self._policy_args, data)
        identity = f"{policy_identity(self._policy)} {json.dumps(self._policy_args, sort_keys=True, default=str)}"
        return Acquisition(self.acquisition, data, player, self._make_oracle(data), policy, identity)

    def _make_oracle(self, data: SegmentationData) -> Oracle:
        if self._oracle == "masks":
            return data.oracle(SET)
        if self._oracle == "none":
            return PeopleOracle(Path(self.default_root_dir), data, SET)
        found: Oracle = import_class(self._oracle, object, "--oracle", ["masks", "none"])(data, SET)
        return found

    def step_finished(self, play: Acquisition) -> None:
        """Keep the table up to date: people may want to look while it goes on."""
        if self.is_global_zero and not self.fast_dev_run:
            write_atomically(Path(self.default_root_dir) / "selection.csv", selection_table(play))

    def acquire(
        self,
        model: SegmenterPlayer,
        datamodule: SegmentationData,
        policy: str,
        policy_args: dict[str, Any] | None = None,
        oracle: str = "masks",
        ckpt: str | None = None,
    ) -> dict[str, Any] | None:
        """Spend a labelling budget on the acquisition set, then train and test a segmenter at each budget.

        Args:
            model: The segmenter, as it learns during acquisition.
            datamodule: The data.
            policy: A checkpoint of `ralseg fit`; or uniform, entropy, bald, margin, least_confidence, coreset,
                power_bald, class_balanced_entropy; or the class_path of your own.
            policy_args: Arguments of the policy's class.
            oracle: ``masks`` reveals the data set's hidden masks; ``none`` asks people: it writes the regions to
                label and stops, and the same command with ``--ckpt last`` goes on when their masks are there. Or
                the class_path of your own, called with the data and the set's name.
            ckpt: ``last`` goes on with the run in this folder, or starts it; or a file.
        """
        folder = Path(self.default_root_dir)
        self._policy, self._policy_args, self._oracle = policy, policy_args or {}, oracle
        if self.acquisition.initial_weights and not Path(self.acquisition.initial_weights).is_file():
            raise ConfigError(
                f"trainer.acquisition.initial_weights: no checkpoint at {self.acquisition.initial_weights!r}; "
                "`ralseg pretrain` makes them"
            )
        console = Console(soft_wrap=True)
        with self.claimed_folder(ckpt) as resume:
            try:
                super().fit(model, datamodule=datamodule, ckpt_path=resume)
            except LabelsNeeded as request:
                if self.is_global_zero:
                    console.print(str(request))
                return None
            if self.fast_dev_run:
                return None
            try:
                result = self._train_at_budgets(model, datamodule, folder)
            except BaseException:
                self._finalize("failed")
                raise
            self._finalize("success")
        if self.is_global_zero:
            Console(width=120).print(result_table(result))
            console.print(f"selection: {folder / 'selection.csv'}\nresult: {folder / RESULT}")
        return result

    # -- after the acquisition -------------------------------------------------------------------

    def _train_at_budgets(self, model: SegmenterPlayer, data: SegmentationData, folder: Path) -> dict[str, Any]:
        theta_0 = self.acquisition.initial_weights
        result: dict[str, Any] = {
            "format": FORMAT,
            "version": __version__,
            "commit": git_commit(),
            "method": policy_tag(self._policy),
            "seed": data.seed,
            "dataset": type(data.dataset).__name__,
            "device": self.strategy.root_device.type,
            "initial_weights": theta_0,
            "acquisition": asdict(self.acquisition),
            "regions": len(data.splits[SET]) * data.grid.cells,
            "budgets": {},
        }
        available: list[float] | None = None
        for budget in self.acquisition.budgets:
            path = AtBudgets.path(folder / run_folder.CHECKPOINTS, budget)
            if not path.is_file():
                raise ConfigError(
                    f"trainer.acquisition.budgets: {budget} was not among the budgets when the run in {folder} "
                    "passed it; leave it out, or acquire anew in another folder"
                )
            saved = read_checkpoint(path)
            done = self._acquisition_at(model, data, saved)
            if budget == self.acquisition.budgets[0]:
                available = frequencies_of_set(done)
            start = _segmenter_weights(saved)
            if self.final.start == "theta_0":
                start = read_checkpoint(Path(theta_0))["state_dict"] if theta_0 else model.built_weights
            sub = folder / f"budget_{budget:06d}"
            options = dict(self._shared)
            options["logger"] = self._logger_at(budget)
            scores = train_final(done, start, self.final, sub, options)
            scores["class_frequencies"] = class_frequencies(done, available)
            result["budgets"][str(budget)] = scores
            self._log_scores(budget, scores)
            if budget == self.acquisition.budgets[-1]:
                if self.is_global_zero:
                    write_selection(done, folder)
                result["seconds"] = dict(done.seconds)
                result["miou_by_step"] = done.scores if self.acquisition.score_steps else None
        if self.is_global_zero:
            write_atomically(folder / RESULT, json.dumps(result, indent=1) + "\n")
        for logger in self._run_loggers():
            logger.log_file(folder / RESULT)
            logger.log_file(folder / "selection.csv")
        return result

    def _acquisition_at(self, model: SegmenterPlayer, data: SegmentationData, saved: dict[str, Any]) -> Acquisition:
        """The acquisition as it stood when a checkpoint was written."""
        done = self._make_acquisition(model, data)
        done.load_state_dict(saved["loops"]["fit_loop"]["state_dict"]["play"])
        return done

    def _finalize(self, status: str) -> None:
        for logger in self._run_loggers():
            logger.finalize(status)

    def _run_loggers(self) -> list[RunLogger]:
        return [logger for logger in self.loggers if isinstance(logger, RunLogger)]

    def _logger_at(self, budget: int) -> RunLogger | bool:
        """The same MLflow run under another prefix; none where this run has none."""
        for logger in self._run_loggers():
            return logger.with_prefix(f"final_{budget}")
        return False

    def _log_scores(self, budget: int, scores: dict[str, Any]) -> None:
        """Budget curves: the step of these metrics is the number of labelled regions."""
        metrics = {name: value for name, value in scores.items() if isinstance(value, float)}
        metrics["selected/class_entropy"] = scores["class_frequencies"]["selected_entropy"]
        for logger in self._run_loggers():
            logger.log_metrics(metrics, step=budget)


class AtBudgets(Checkpoint):
    """Saves the run whenever a budget is reached: the final training branches off there.

    Args:
        folder: Where checkpoints are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def path(folder: Path, budget: int) -> Path:
        """The checkpoint of a budget."""
        return folder / f"budget_{budget:06d}.ckpt"

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save at a budget."""
        play = play_of(trainer)
        if not cast(RunTrainer, trainer).fast_dev_run and len(play.ledger) in play.config.budgets:
            trainer.save_checkpoint(self.path(self.folder, len(play.ledger)), weights_only=False)


def _segmenter_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The segmenter's weights in a checkpoint of the acquisition."""
    prefix = "segmenter."
    state = checkpoint["state_dict"]
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def result_table(result: dict[str, Any]) -> Table:
    """One row a budget, for the screen."""
    table = Table(title=f"{result['method']} on {result['dataset']}, seed {result['seed']}")
    columns = ("regions", "% of all", "test mIoU", "reward-set mIoU", "iterations", "class entropy")
    for column in columns:
        table.add_column(column, justify="right")
    for budget, scores in result["budgets"].items():
        table.add_row(
            budget,
            f"{100 * int(budget) / result['regions']:.1f}",
            f"{100 * scores['test_set/miou']:.2f}",
            f"{100 * scores['reward_set/miou']:.2f}",
            str(scores["iterations"]),
            f"{scores['class_frequencies']['selected_entropy']:.2f}",
        )
    return table
