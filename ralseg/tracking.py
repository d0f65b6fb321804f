"""Tracking with MLflow: one local SQLite file by default, a server where MLFLOW_TRACKING_URI names one."""

import os
import subprocess
from pathlib import Path

from lightning.pytorch.loggers import MLFlowLogger

STORE = "mlflow.db"
ARTIFACTS = "mlartifacts"


def tracking_uri(folder: Path | None = None) -> str:
    """``MLFLOW_TRACKING_URI`` if set, else the SQLite file in ``folder`` (the current one by default)."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder or Path.cwd()) / STORE}"


class RunLogger(MLFlowLogger):
    """MLflow logger that knows the run's folder.

    The stock logger has no folder when it writes to a database, and Lightning then does not know
    where to put what belongs to the run.

    Args:
        run_folder: Folder of the run; its name is the run's name.
        experiment: MLflow experiment.
        tags: Tags of the run.
        prefix: Stands before the names of metrics.
        run_id: Go on with this run of MLflow's.
    """

    def __init__(
        self,
        run_folder: str,
        experiment: str = "ralseg",
        tags: dict[str, str] | None = None,
        prefix: str = "",
        run_id: str | None = None,
    ) -> None:
        uri = tracking_uri()
        is_local = uri.startswith("sqlite:")
        super().__init__(
            experiment_name=experiment,
            run_name=Path(run_folder).name,
            tracking_uri=uri,
            artifact_location=(Path.cwd() / ARTIFACTS).as_uri() if is_local else None,
            tags=tags,
            prefix=prefix,
            run_id=run_id,
        )
        self._run_folder, self._experiment = run_folder, experiment

    def with_prefix(self, prefix: str) -> "RunLogger":
        """A logger to the same run of MLflow's, under another prefix."""
        return RunLogger(self._run_folder, self._experiment, prefix=prefix, run_id=self.run_id)

    @property
    def save_dir(self) -> str:
        """The run's folder."""
        return self._run_folder

    def log_file(self, path: Path) -> None:
        """Attach a file to the run."""
        self.experiment.log_artifact(self.run_id, str(path))


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
