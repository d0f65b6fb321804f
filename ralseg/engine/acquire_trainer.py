"""The Trainer of `ralseg acquire`: spend the budget, train at each budget, test, and leave everything in a folder."""

import inspect
import json
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import yaml
from lightning.pytorch.callbacks import Callback, Checkpoint
from rich.console import Console
from rich.table import Table

from ralseg import __version__
from ralseg.acquisition.policy import Policy
from ralseg.agents.loading import BOX, find_policy, policy_identity, policy_tag
from ralseg.data.datamodule import SegmentationData
from ralseg.engine.acquire_session import SET, AcquireSession, AcquisitionConfig
from ralseg.engine.final_training import FinalTraining, mixed_images, train_final
from ralseg.engine.game_trainer import GameTrainer
from ralseg.engine.loop import result_of, saved_session, session_of
from ralseg.engine.modules import SEGMENTER, LabellingModule
from ralseg.engine.news import TellFinal, TellSteps, news_of
from ralseg.engine.reasons import FILE as REASONS
from ralseg.engine.reasons import ReasonsFile
from ralseg.engine.selection import class_frequencies, frequencies_of_set, selection_table, write_selection
from ralseg.engine.trainer import RunTrainer, as_list
from ralseg.errors import ConfigError
from ralseg.labels.oracle import LabelsNeeded, Oracle
from ralseg.models.segmenter import Segmenter
from ralseg.runtime import run_folder
from ralseg.runtime.allowed_imports import import_class
from ralseg.runtime.checkpoints import read_checkpoint
from ralseg.runtime.files import write_atomically
from ralseg.runtime.mlflow_logger import RunLogger, git_commit

RESULT = "result.json"
FORMAT = "ralseg.acquire/1"
ORACLES = {
    "masks": "ralseg.labels.MaskOracle",
    "crops": "ralseg.annotation.CropOracle",
    "page": "ralseg.annotation.PageOracle",
    "label_studio": "ralseg.annotation.LabelStudioOracle",
}
ORACLES["none"] = ORACLES["crops"]  # its name until 0.1
_DEFAULT_ACQUISITION = AcquisitionConfig()
_DEFAULT_FINAL = FinalTraining()
# options of the acquiring Trainer that the final trainings share
_SHARED = (
    *("accelerator", "devices", "num_nodes", "strategy", "precision", "deterministic", "benchmark"),
    *("enable_progress_bar", "enable_model_summary", "complete_checkpoints"),
)


class AcquireTrainer(GameTrainer):
    """Has a policy choose regions of the acquisition set, then trains and tests at each budget.

    Args:
        acquisition: How the budget is spent.
        final: How the final segmenters are trained.
        checkpoint_every: Steps between checkpoints to resume from. None: every step.
        kwargs: All options of Lightning's Trainer but those that the loop sets itself. ``gradient_clip_val``
            limits the norm of the segmenter's gradient while regions are labelled (4 by default, as in the paper; 0
            turns it off); final trainings are not clipped.
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
        kwargs["callbacks"] = [*as_list(kwargs.get("callbacks")), SelectionFile()]
        super().__init__(checkpoint_every or 1, **kwargs)

    def best_checkpoint(self, folder: Path) -> Checkpoint:
        """Checkpoints at the budgets, from which the final trainings start."""
        return AtBudgets(folder)

    def acquire(
        self,
        model: Segmenter,
        datamodule: SegmentationData,
        policy: str | Policy = BOX,
        policy_args: dict[str, Any] | None = None,
        oracle: str | Oracle = "masks",
        ckpt: str | None = None,
    ) -> dict[str, Any] | None:
        """Spend a labelling budget on the acquisition set, then train and test a segmenter at each budget.

        Args:
            model: The segmenter, as it learns during acquisition.
            datamodule: The data.
            policy: Who chooses: ``ralseg``, the built-in policy; a checkpoint of `ralseg fit`; or uniform, entropy,
                bald, margin, least_confidence, coreset, power_bald, class_balanced_entropy, rare_bald; or the
                class_path of your own.
            policy_args: Arguments of the policy's class.
            oracle: ``masks`` reveals the data set's hidden masks; ``crops`` asks people: it writes the regions to
                label and stops, and the same command with ``--ckpt last`` goes on when their masks are there.
                ``page`` asks them on a page in the browser, ``label_studio`` on a server of Label Studio. Or the
                class_path of your own.
            ckpt: ``last`` goes on with the run in this folder, or starts it; or a file.
        """
        folder = Path(self.default_root_dir)
        if self.acquisition.initial_weights and not Path(self.acquisition.initial_weights).is_file():
            raise ConfigError(
                f"trainer.acquisition.initial_weights: no checkpoint at {self.acquisition.initial_weights!r}; "
                "`ralseg pretrain` makes them"
            )
        module = LabellingModule(model, self.segmenter_clip)
        asked_oracle = find_oracle(oracle)

        def open_session() -> AcquireSession:
            # an error in it should not wait for the final training
            mixed_images(datamodule, self.final.mix, self.acquisition.initial_weights)
            found = find_policy(policy, policy_args or {}, datamodule)
            identity = f"{policy_identity(policy)} {json.dumps(policy_args or {}, sort_keys=True, default=str)}"
            session = AcquireSession(self.acquisition, datamodule, module, asked_oracle, found, identity)
            job = datamodule.labelling_job(SET, folder)
            asked_oracle.open(replace(job, predict=session.predict, ranking=session.ranking))
            return session

        console = Console(soft_wrap=True)
        self.callbacks.insert(0, TellSteps(asked_oracle))
        with closing(asked_oracle):
            with self.claimed_folder(ckpt) as resume:
                try:
                    session = self.play(module, datamodule, open_session, resume)
                except LabelsNeeded as request:
                    if self.is_global_zero:
                        console.print(str(request))
                    return None
                if self.fast_dev_run:
                    return None
                try:
                    assert isinstance(session, AcquireSession)
                    result = self._train_at_budgets(session, policy_tag(policy), folder)
                except BaseException:
                    self._finalize("failed")
                    raise
                self._finalize("success")
            if self.is_global_zero:
                Console(width=120).print(result_table(result))
                for budget, scores in result["budgets"].items():
                    if "stale" in scores:
                        console.print(_stale(folder / f"budget_{int(budget):06d}", scores["stale"]))
                console.print(f"selection: {folder / 'selection.csv'}\nresult: {folder / RESULT}")
                asked_oracle.tell(news_of(session, "done", result=result))
        return result

    # -- after the acquisition --------------------------------------------------------------------

    def _train_at_budgets(self, session: AcquireSession, method: str, folder: Path) -> dict[str, Any]:
        """Train and test at each budget, from what was saved when it was met."""
        data, theta_0 = session.data, self.acquisition.initial_weights
        result: dict[str, Any] = {
            "format": FORMAT,
            "version": __version__,
            "commit": git_commit(),
            "method": method,
            "seed": data.seed,
            "dataset": type(data.dataset).__name__,
            "device": self.strategy.root_device.type,
            "initial_weights": theta_0,
            "acquisition": asdict(self.acquisition),
            "regions": len(session.regions),
            "cost": None,
            "budgets": {},
        }
        available = frequencies_of_set(session)
        for budget in self.acquisition.budgets:
            path = AtBudgets.path(folder / run_folder.CHECKPOINTS, budget)
            if not path.is_file():
                raise ConfigError(
                    f"trainer.acquisition.budgets: {budget} was not among the budgets when the run in {folder} "
                    "passed it; leave it out, or acquire anew in another folder"
                )
            saved = read_checkpoint(path)
            session.load_state_dict(saved_session(saved))
            session.take_corrections(is_over=True)
            is_anew = self.final.start == "theta_0"
            weights = session.theta_0() if is_anew else session.segmenter.weights_in(saved, SEGMENTER)
            teller = TellFinal(session.oracle, session, budget)
            options = self._shared | {"logger": self._logger_at(budget), "callbacks": [teller]}
            scores = train_final(session, weights, self.final, folder / f"budget_{budget:06d}", options)
            scores["class_frequencies"] = class_frequencies(session, available)
            result["cost"] = scores["cost"] = session.cost()
            result["budgets"][str(budget)] = scores
            self._log_scores(budget, scores)
        if self.is_global_zero:
            write_selection(session, folder)
        result["seconds"] = dict(session.seconds)
        result["miou_by_step"] = session.scores if self.acquisition.score_steps else None
        if session.corrected:
            result["corrected"] = session.corrected
        if self.is_global_zero:
            write_atomically(folder / RESULT, json.dumps(result, indent=1) + "\n")
        for logger in self._run_loggers():
            logger.log_file(folder / RESULT)
            logger.log_file(folder / "selection.csv")
        return result

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


def find_oracle(oracle: str | Oracle) -> Oracle:
    """The oracle that a name or a class path means; an oracle itself is taken as it is."""
    if isinstance(oracle, Oracle):
        return oracle
    if oracle.lstrip().startswith("{"):
        raise ConfigError(_why_no_oracle(oracle))
    if oracle not in ORACLES and "." not in oracle:
        raise ConfigError(f"--oracle {oracle}: neither one of {', '.join(ORACLES)}, nor a module.Class")
    try:
        found: Oracle = import_class(ORACLES.get(oracle, oracle), Oracle, "--oracle")()
    except TypeError as error:
        raise ConfigError(f"--oracle {oracle}: {error}; give it as {{class_path: ..., init_args: ...}}") from error
    return found


def _why_no_oracle(text: str) -> str:
    """What is wrong with a class path and options that were typed; without the values, a token may be among them."""
    try:
        content = yaml.safe_load(text)
        path, given = str(content["class_path"]), set(content.get("init_args") or {})
    except (yaml.YAMLError, TypeError, KeyError, AttributeError):
        return "--oracle: is neither a name, nor a module.Class, nor {class_path: ..., init_args: {...}}"
    known = set(inspect.signature(import_class(path, Oracle, "--oracle")).parameters)
    if given - known:
        return f"--oracle {path}: has no option {', '.join(sorted(given - known))}; it has {', '.join(sorted(known))}"
    return f"--oracle {path}: an option is of the wrong kind; `ralseg acquire --oracle.help {path}` lists them"


class SelectionFile(Callback):
    """Keeps ``selection.csv`` and ``reasons.jsonl`` up to date: people may want to look while it goes on."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the reasons of the steps that are done."""
        self.reasons = ReasonsFile(Path(trainer.default_root_dir) / REASONS)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the table of what is labelled so far, and why the last of it was chosen."""
        if trainer.is_global_zero and not cast(RunTrainer, trainer).fast_dev_run:
            session: AcquireSession = session_of(trainer)
            write_atomically(Path(trainer.default_root_dir) / "selection.csv", selection_table(session))
            self.reasons.write(session.reasons)


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
        result = result_of(trainer)
        if result.is_budget and not cast(RunTrainer, trainer).fast_dev_run:
            trainer.save_checkpoint(self.path(self.folder, result.labelled), weights_only=False)


def _stale(folder: Path, regions: list[int]) -> str:
    return (
        f"{folder}: trained with older labels of {len(regions)} regions than there are now ({regions}); to train anew, "
        "delete that folder and give the same command with --ckpt last"
    )


def result_table(result: dict[str, Any]) -> Table:
    """One row a budget, for the screen; what labels cost people stands there where it is known."""
    table = Table(title=f"{result['method']} on {result['dataset']}, seed {result['seed']}")
    costs = [scores.get("cost") or {} for scores in result["budgets"].values()]
    known = [key for key in ("clicks", "minutes") if any(cost.get(key) is not None for cost in costs)]
    columns = ("regions", "% of all", "test mIoU", "reward-set mIoU", "iterations", "class entropy", *known)
    for column in columns:
        table.add_column(column, justify="right")
    for (budget, scores), cost in zip(result["budgets"].items(), costs, strict=True):
        table.add_row(
            budget,
            f"{100 * int(budget) / result['regions']:.1f}",
            f"{100 * scores['test_set/miou']:.2f}" + ("*" if "stale" in scores else ""),
            f"{100 * scores['reward_set/miou']:.2f}",
            str(scores["iterations"]),
            f"{scores['class_frequencies']['selected_entropy']:.2f}",
            *("-" if cost.get(key) is None else f"{cost[key]:.4g}" for key in known),
        )
    if any("stale" in scores for scores in result["budgets"].values()):
        table.caption = "* made with labels that were corrected since"
    return table
