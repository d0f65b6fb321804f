"""The Trainer that knows about run folders: `ralseg pretrain` and `ralseg test` are methods of it."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.callbacks import Callback, Checkpoint, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from rich.console import Console
from rich.table import Table

from ralseg.data.datamodule import SegmentationData
from ralseg.engine.callbacks import FiniteLoss, ProblemFile, SeededEpochs, StopWhenAsked
from ralseg.errors import ConfigError
from ralseg.models.segmenter import Segmenter
from ralseg.runtime import distributed, run_folder
from ralseg.runtime.checkpoints import LAST, DurableCheckpointIO
from ralseg.runtime.files import write_atomically
from ralseg.runtime.mlflow_logger import RunLogger

SCORE = "reward_set/miou"


class RunTrainer(pl.Trainer):
    """Lightning's Trainer with a run folder, MLflow by default, and durable checkpoints.

    Everything a run writes goes to ``default_root_dir``. ``checkpoints/best.ckpt`` is the best by mean
    IoU on the reward set, ``checkpoints/last.ckpt`` the one to resume from.

    Args:
        experiment: MLflow experiment that the run belongs to.
        overwrite: Discard an earlier run in the same folder.
        checkpoint_every: Epochs between checkpoints to resume from. None: as often as validation.
        grace_seconds: On SIGTERM or Ctrl-C, how long the epoch (in a game, the step) may take to end and be saved;
            after that, or at a second signal, it is abandoned. Keep it below what your scheduler allows.
        complete_checkpoints: Store a frozen encoder too. Otherwise checkpoints name it, by its checksum and by where
            its weights are from, and take it from there.
        kwargs: All options of Lightning's Trainer. ``logger: false`` turns MLflow off.
    """

    # set by Lightning's connectors, where a type checker does not see them
    fast_dev_run: bool | int
    callbacks: list[Callback]
    datamodule: pl.LightningDataModule | None

    def __init__(
        self,
        experiment: str = "ralseg",
        overwrite: bool = False,
        checkpoint_every: int | None = None,
        grace_seconds: float = 8.0,
        complete_checkpoints: bool = False,
        **kwargs: Any,
    ) -> None:
        self.overwrite, self.complete_checkpoints = overwrite, complete_checkpoints
        folder = str(kwargs.get("default_root_dir") or "runs/ralseg")
        kwargs["default_root_dir"] = folder
        if kwargs.get("logger") in (None, True):
            kwargs["logger"] = RunLogger(folder, experiment)
        kwargs["plugins"] = [*as_list(kwargs.get("plugins")), DurableCheckpointIO()]
        if SLURMEnvironment.detect() and not any(isinstance(p, ClusterEnvironment) for p in kwargs["plugins"]):
            # Lightning's own requeueing saves in the middle of a step; docs/reliability.md has ours
            kwargs["plugins"].append(SLURMEnvironment(auto_requeue=False))
        callbacks = [*as_list(kwargs.get("callbacks")), ProblemFile()]
        brought = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
        if kwargs.get("enable_checkpointing") is not False and not brought:
            every_n_epochs = checkpoint_every or kwargs.get("check_val_every_n_epoch") or 1
            folder_of_checkpoints = Path(folder) / run_folder.CHECKPOINTS
            callbacks += [self.best_checkpoint(folder_of_checkpoints), last(folder_of_checkpoints, every_n_epochs)]
        if kwargs.get("enable_checkpointing") is not False:
            callbacks.append(StopWhenAsked(Path(folder) / run_folder.CHECKPOINTS / LAST, grace_seconds))
        kwargs["callbacks"] = callbacks
        kwargs["use_distributed_sampler"] = False  # ours counts no image twice; see SharedBatches
        super().__init__(**kwargs)
        self._signal_connector = NoSignals(self)
        is_known = type(self.strategy) is DDPStrategy and self.strategy._start_method == "popen"
        if self.world_size > 1 and not is_known:
            raise ConfigError(
                f"trainer.strategy={kwargs.get('strategy')} is not one that ralseg can share a run with; use ddp"
            )

    def best_checkpoint(self, folder: Path) -> Checkpoint:
        """The callback that keeps ``best.ckpt``."""
        return BestScore(folder, "best", monitor=SCORE, mode="max", enable_version_counter=False)

    @contextmanager
    def claimed_folder(self, ckpt: str | None) -> Iterator[str | None]:
        """The run's folder for this process alone; gives the file to go on from, if any."""
        folder = Path(self.default_root_dir)
        if self.fast_dev_run or not self.is_global_zero:
            yield run_folder.resume_point(folder, ckpt)
            return
        with run_folder.claimed(folder, resume=ckpt is not None, overwrite=self.overwrite):
            try:
                yield run_folder.resume_point(folder, ckpt)
            except BaseException as error:
                distributed.remember_processes(error, getattr(self.strategy.launcher, "procs", []))
                raise

    def pretrain(self, model: Segmenter, datamodule: SegmentationData, ckpt: str | None = None) -> None:
        """Train the segmenter alone: theta_0, or the upper bound of full supervision.

        Args:
            model: The segmenter.
            datamodule: The data; ``fit_on`` says which sets' labels are used.
            ckpt: ``last`` goes on with the run in this folder, or starts it; or a file.
        """
        if 0 <= (self.max_epochs or -1) < (self.check_val_every_n_epoch or 0) and not self.fast_dev_run:
            raise ConfigError(
                f"trainer.check_val_every_n_epoch={self.check_val_every_n_epoch}: a training of "
                f"{self.max_epochs} epochs (trainer.max_epochs) would end without a score, and nothing would be kept; "
                "lower it"
            )
        self.callbacks[:0] = [SeededEpochs(datamodule.seed), FiniteLoss()]
        with self.claimed_folder(ckpt) as resume:
            self.fit(model, datamodule=datamodule, ckpt_path=resume)
        best = self.checkpoint_callback
        if isinstance(best, ModelCheckpoint) and not best.best_model_path and not self.fast_dev_run:
            raise ConfigError(
                f"the run ended after {self.current_epoch} epochs without one validation, so nothing was kept; lower "
                f"trainer.check_val_every_n_epoch={self.check_val_every_n_epoch} or train longer"
            )
        if isinstance(best, ModelCheckpoint) and best.best_model_score is not None and self.is_global_zero:
            score = 100 * float(best.best_model_score)
            Console(soft_wrap=True).print(f"best {SCORE} {score:.2f} in {best.best_model_path}")

    def test(
        self,
        model: pl.LightningModule | None = None,
        dataloaders: Any = None,
        ckpt_path: Any = None,
        verbose: bool = False,
        datamodule: pl.LightningDataModule | None = None,
        weights_only: bool | None = True,
        ckpt: str | None = None,
    ) -> Any:
        """Test a segmenter on the test set and show the IoU of each class.

        Args:
            model: The segmenter.
            dataloaders: As Lightning's.
            ckpt_path: As Lightning's; ignored where ``ckpt`` is given.
            verbose: Also print Lightning's own table.
            datamodule: The data.
            weights_only: As Lightning's; code in a checkpoint is never run.
            ckpt: Checkpoint to test: ``best`` or ``last`` of the run's folder, or a file.
        """
        folder = Path(self.default_root_dir)
        path = run_folder.find_checkpoint(folder, ckpt or ckpt_path or "best")
        lock: AbstractContextManager[None] = (
            nullcontext() if self.fast_dev_run or not self.is_global_zero else run_folder.locked(folder)
        )
        with lock:  # MLflow's run of this folder is shared with nobody
            results = super().test(model, dataloaders, path, verbose, datamodule, weights_only)
        if isinstance(model, Segmenter) and self.is_global_zero:
            scores = {name: float(value) for name, value in results[0].items()}
            Console().print(iou_table(scores, model.class_names))
            Console(soft_wrap=True).print(f"checkpoint: {path}")
            report = run_folder.numbered(folder, "test", ".json")
            write_atomically(report, json.dumps({"checkpoint": str(path), **scores}, indent=1) + "\n")
            for logger in self.loggers:
                if isinstance(logger, RunLogger):
                    logger.log_file(report)
        return results


class BestScore(ModelCheckpoint):
    """Keeps the best checkpoint, and takes the newest score up again when a run goes on.

    Lightning saves that score and does not restore it: a run that was cut off after its last validation would end with
    another checkpoint than one that was not.
    """

    @property
    def state_key(self) -> str:
        """As Lightning's own: checkpoints from before know no other."""
        return super().state_key.replace(type(self).__qualname__, ModelCheckpoint.__qualname__, 1)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Return to a saved state."""
        super().load_state_dict(state_dict)
        self.current_score = state_dict.get("current_score")


class NoSignals(_SignalConnector):
    """Leaves signals alone: Lightning's handler would broadcast from inside itself; ralseg.runtime.signals has ours."""

    def register_signal_handlers(self) -> None:
        """Nothing to do."""


def last(folder: Path, every_n_epochs: int) -> ModelCheckpoint:
    """The checkpoint to resume from. Not the same callback as "best": that would refresh both together."""
    return ModelCheckpoint(
        folder, "last", save_on_train_epoch_end=True, every_n_epochs=every_n_epochs, enable_version_counter=False
    )


def iou_table(scores: dict[str, float], class_names: tuple[str, ...]) -> Table:
    """A table of the IoU of each class and their mean; a class that does not occur gets a dash."""
    table = Table("class", "IoU %", title="test set")
    table.columns[1].justify = "right"
    for name in class_names:
        iou = scores.get(f"test_set/iou/{name}")
        table.add_row(name, "-" if iou is None else f"{100 * iou:.2f}")
    table.add_section()
    table.add_row("mean", f"{100 * scores['test_set/miou']:.2f}")
    return table


def as_list(value: Any) -> list[Any]:
    """What an option that takes one thing or several was given; nothing where it was left out."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
