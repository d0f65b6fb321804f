"""Tracking with MLflow: one local SQLite file by default, a server where MLFLOW_TRACKING_URI names one."""

import os
import re
import subprocess
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.logger import _convert_params, _flatten_dict
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from ralseg.runtime.mlflow_queue import Post
from ralseg.runtime.signals import interrupts

STORE = "mlflow.db"
ARTIFACTS = "mlartifacts"
_LONGEST = 6000  # characters of a parameter
FLUSH_SECONDS, HURRIED_SECONDS = 20.0, 1.5
"""How long a run that ends waits for MLflow, and one that was told to leave; the rest is kept on disk."""


def tracking_uri(folder: Path | None = None) -> str:
    """``MLFLOW_TRACKING_URI`` if set, else the SQLite file in ``folder`` (the current one by default)."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder or Path.cwd()) / STORE}"


def allowed_name(name: str) -> str:
    """A metric's name as MLflow takes it; class names may hold anything."""
    return re.sub(r"[^A-Za-z0-9_/. -]", "_", name)[:250]


class RunLogger(Logger):
    """Tells MLflow about a run without ever holding it up; see :class:`ralseg.runtime.mlflow_queue.Post`.

    Lightning's own logger stops the run when the store is away, waits for it when it is slow, and has no folder when
    it writes to a database.

    Args:
        run_folder: Folder of the run; its name is the run's name.
        experiment: MLflow experiment.
        tags: Tags of the run.
        prefix: Stands before the names of metrics.
    """

    def __init__(
        self, run_folder: str, experiment: str = "ralseg", tags: dict[str, str] | None = None, prefix: str = ""
    ) -> None:
        super().__init__()
        self._run_folder, self._experiment, self._tags, self._prefix = run_folder, experiment, tags or {}, prefix
        # absolute: it writes from a thread, and nobody should have to stay in one folder for its sake
        self.post = Post(Path(run_folder).absolute(), tracking_uri(), self._make_run)
        self._is_part = False

    def with_prefix(self, prefix: str) -> "RunLogger":
        """A logger to the same run of MLflow's, under another prefix; the run ends with this logger, not with it."""
        part = RunLogger(self._run_folder, self._experiment, self._tags, prefix)
        part.post, part._is_part = self.post, True
        part._run_again()
        return part

    @rank_zero_only
    def _run_again(self) -> None:
        self.post.put({"status": "RUNNING"})

    def _make_run(self, client: Any) -> str:
        found = client.get_experiment_by_name(self._experiment)
        if found is None:
            is_local = self.post.uri.startswith("sqlite:")
            client.create_experiment(self._experiment, (Path.cwd() / ARTIFACTS).as_uri() if is_local else None)
            found = client.get_experiment_by_name(self._experiment)
        run = client.create_run(found.experiment_id, tags=self._tags, run_name=Path(self._run_folder).name)
        return str(run.info.run_id)

    # -- what Lightning calls --------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The experiment."""
        return self._experiment

    @property
    def version(self) -> str | None:
        """The id of MLflow's run, once there is one."""
        return self.post.run_id

    @property
    def save_dir(self) -> str:
        """The run's folder."""
        return self._run_folder

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace) -> None:
        """Have parameters noted."""
        flat = _flatten_dict(_convert_params(params))
        self.post.put({"params": {allowed_name(name): str(value)[:_LONGEST] for name, value in flat.items()}})

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Have metrics noted."""
        prefix = f"{self._prefix}-" if self._prefix else ""
        named = {allowed_name(prefix + name): float(value) for name, value in metrics.items()}
        self.post.put({"metrics": named, "step": step or 0, "time": int(time.time() * 1000)})

    @rank_zero_only
    def log_file(self, path: Path) -> None:
        """Have a file attached to the run."""
        self.post.put({"file": str(path)})

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Note how the run ended, and wait until everything is told or kept."""
        is_well = status in ("success", "finished")
        if self._is_part and is_well:
            return
        state = "FINISHED" if is_well else "FAILED"
        is_killed = interrupts.asked is not None
        self.post.put({"status": "KILLED" if is_killed else state})
        self.post.flush(HURRIED_SECONDS if is_killed else FLUSH_SECONDS)


def git_commit() -> str:
    """The commit of ralseg's own code, if it runs from a checkout."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
