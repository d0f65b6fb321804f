"""Tracking with MLflow: one local SQLite file by default, a server where MLFLOW_TRACKING_URI names one."""

import os
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
    """

    def __init__(self, run_folder: str, experiment: str = "ralseg", tags: dict[str, str] | None = None) -> None:
        uri = tracking_uri()
        is_local = uri.startswith("sqlite:")
        super().__init__(
            experiment_name=experiment,
            run_name=Path(run_folder).name,
            tracking_uri=uri,
            artifact_location=(Path.cwd() / ARTIFACTS).as_uri() if is_local else None,
            tags=tags,
        )
        self._run_folder = run_folder

    @property
    def save_dir(self) -> str:
        """The run's folder."""
        return self._run_folder

    def log_file(self, path: Path) -> None:
        """Attach a file to the run."""
        self.experiment.log_artifact(self.run_id, str(path))
