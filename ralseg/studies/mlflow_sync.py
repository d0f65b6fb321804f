"""Studies in MLflow: results are files first; this mirrors them to a store, and brings back what others made."""

import json
import logging
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from ralseg.engine.acquire_session import AcquisitionConfig
from ralseg.runtime import run_folder
from ralseg.runtime.files import read_json
from ralseg.runtime.mlflow_logger import ARTIFACTS, allowed_name, git_commit, tracking_uri
from ralseg.runtime.mlflow_queue import connect, reason, shown
from ralseg.studies.plan import CELL, RESULT, Cell, tags_of
from ralseg.studies.tables import SCORE

log = logging.getLogger(__name__)
STUDY = "ralseg.study"
REPORT = "report"
CELLS = "cells.jsonl"
_IS_REPORTED = "ralseg.is_reported"
_VIEW = "ralseg-budget-curves"
_SHARED_VIEW = "mlflow.sharedViewState."  # what MLflow's own button "Share view" writes


class Mirror:
    """The MLflow side of a study: an experiment, a parent run, one child run a cell.

    A store that cannot be reached costs one warning, never a result: the next call mirrors what is missing.

    Args:
        study: Name of the study.
        uri: Where MLflow keeps runs; by default as everywhere in ralseg.
    """

    def __init__(self, study: str, uri: str | None = None) -> None:
        self.study, self.uri = study, uri or tracking_uri()
        self.is_reachable = True
        self._client: MlflowClient | None = None

    @property
    def client(self) -> MlflowClient:
        """Made when it is first needed."""
        if self._client is None:
            self._client = connect(self.uri)
        return self._client

    def safely(self, action: Callable[[], Any]) -> Any:
        """The action's value; None, and a warning once, if MLflow fails."""
        if not self.is_reachable:
            return None
        try:
            return action()
        except Exception as error:  # whatever the store or the network raise
            self.is_reachable = False
            log.warning(
                "MLflow at %s failed (%s); results are safe in the study's folder, and the same command with "
                "--report_only uploads them later",
                shown(self.uri),
                reason(error),
            )
            return None

    # -- runs ------------------------------------------------------------------------------------

    def experiment_id(self) -> str:
        """The study's experiment, made if need be."""
        found = self.client.get_experiment_by_name(self.study)
        if found is not None:
            return str(found.experiment_id)
        location = (Path.cwd() / ARTIFACTS).as_uri() if self.uri.startswith("sqlite:") else None
        return str(self.client.create_experiment(self.study, location))

    def parent(self) -> Run:
        """The study's parent run, made if need be."""
        found = self._search(f"tags.`{STUDY}` = 'parent'")
        if found:
            return found[0]
        tags = {STUDY: "parent", "ralseg.git_commit": git_commit()}
        return self.client.create_run(self.experiment_id(), tags=tags, run_name=self.study)

    def _search(self, condition: str) -> list[Run]:
        runs: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs([self.experiment_id()], condition, max_results=500, page_token=token)
            runs += page
            token = page.token
            if not token:
                return runs

    def finished(self) -> dict[str, Run]:
        """Child runs that were mirrored whole, by the identity of their cell."""
        runs = self._search(f"tags.`{STUDY}` = 'cell' and attributes.status = 'FINISHED'")
        return {run.data.tags["ralseg.cell"]: run for run in runs}

    # -- cells -----------------------------------------------------------------------------------

    def fetch(self, cell: Cell, run: Run) -> bool:
        """Bring a cell that was run elsewhere into this study's folder: all of it, or nothing."""
        cell.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cell.folder.parent, prefix=".fetched-") as place:
            names = {item.path for item in self.client.list_artifacts(run.info.run_id)}
            for name in names & {"selection.csv", "config.yaml", CELL, RESULT}:
                self.client.download_artifacts(run.info.run_id, name, place)
            if not {CELL, RESULT} <= names:
                return False
            if cell.folder.exists():
                cell.folder.rename(run_folder.numbered(cell.folder.parent, f"{cell.folder.name}.before-fetch", ""))
            Path(place).rename(cell.folder)
            Path(place).mkdir()  # for the context to remove
        cell.folder.chmod(0o755)
        return True

    def upload(self, cell: Cell, result: dict[str, Any]) -> None:
        """Mirror a finished cell; one that was mirrored half is done anew."""
        tags = tags_of(cell, result)
        for run in self._search(f"tags.`ralseg.cell` = '{tags['ralseg.cell']}' and attributes.status != 'FINISHED'"):
            self.client.delete_run(run.info.run_id)
        tags |= {
            STUDY: "cell",
            "mlflow.parentRunId": self.parent().info.run_id,
        }
        run_id = self.client.create_run(self.experiment_id(), tags=tags, run_name=cell.title).info.run_id
        metrics = _metrics(result)
        for start in range(0, len(metrics), 1000):  # MLflow's limit
            self.client.log_batch(run_id, metrics=metrics[start : start + 1000])
        self.client.log_batch(
            run_id,
            params=[
                Param("method", cell.method),
                Param("seed", str(cell.seed)),
                *(Param(key, str(value)) for key, value in result["acquisition"].items()),
            ],
            tags=[RunTag("mlflow.note.content", f"`{cell.command()}`")],
        )
        for name in ("config.yaml", "selection.csv", CELL, RESULT):
            if (cell.folder / name).is_file():
                self.client.log_artifact(run_id, str(cell.folder / name))
        for picture in sorted((cell.folder / "overlays").rglob("*.png"))[:4]:
            self.client.log_artifact(run_id, str(picture), "overlays")
        self.client.set_terminated(run_id, "FINISHED")

    # -- the study -------------------------------------------------------------------------------

    def chart_link(self, address: str) -> str:
        """The page of MLflow with the study's budget curves, on a server at ``address``."""
        experiment = self.client.get_experiment(self.experiment_id())
        asked = {"compareRunsMode": "CHART"}
        if f"{_SHARED_VIEW}{_VIEW}" in experiment.tags:
            asked |= {"viewStateShareKey": _VIEW}
        return f"{address}/#/experiments/{experiment.experiment_id}/runs?{urlencode(asked)}"

    def report_folder(self) -> Path | None:
        """Where the report of the study can be read; None if it is not at hand."""
        try:
            return Path(self.client.download_artifacts(self.parent().info.run_id, REPORT))
        except (MlflowException, OSError) as error:
            log.warning("the report of %s is not at hand (%s)", self.study, reason(error))
            return None

    def show_budget_curves(self, cells: list[dict[str, Any]]) -> None:
        """Keep a view of MLflow's chart page: test mean IoU against labelled regions, the mean of each method.

        Without it the page is empty, for it shows parent runs only. Runs of options that the report no longer uses
        are left out of it.

        Args:
            cells: The lines of the report's ``cells.jsonl``.
        """
        identities = {cell["identity"] for cell in cells}
        for identity, run in self.finished().items():
            is_reported = str(identity in identities)
            if run.data.tags.get(_IS_REPORTED) != is_reported:
                self.client.set_tag(run.info.run_id, _IS_REPORTED, is_reported)
        scores = [scores[SCORE] for cell in cells for scores in cell["result"]["budgets"].values()]
        view = json.dumps(_budget_view(min(scores), max(scores)))
        self.client.set_experiment_tag(self.experiment_id(), f"{_SHARED_VIEW}{_VIEW}", view)

    def upload_report(self, folder: Path, config: str) -> None:
        """Attach the report's page, figures and tables to the parent run."""
        run_id = self.parent().info.run_id
        self.client.log_text(run_id, config, "study.yaml")
        for path in sorted(folder.iterdir()):
            if path.is_file():
                self.client.log_artifact(run_id, str(path), REPORT)
        verdict = read_json(folder / "verdict.json") or {"differences": []}
        for entry in verdict["differences"]:
            if entry["what"] == "area":
                name = f"verdict/{entry['method']}/area_minus_{entry['baseline']}"
                self.client.log_metric(run_id, name, entry["mean"])
        self.show_budget_curves([json.loads(line) for line in (folder / CELLS).read_text().splitlines()])
        self.client.set_terminated(run_id, "FINISHED")


def studies(uri: str) -> list[str]:
    """Names of the studies in a store, the newest first."""
    client = connect(uri)
    found = []
    for experiment in client.search_experiments():
        if client.search_runs([experiment.experiment_id], f"tags.`{STUDY}` = 'parent'", max_results=1):
            found.append(experiment.name)
    return found


def _budget_view(low: float, high: float) -> dict[str, Any]:
    """The state of MLflow's chart page with one chart on top, whose scores lie between two values."""
    section = {"uuid": "budget", "name": "Budget curves", "display": True, "columns": 1, "cardHeight": 520}
    room = max(0.1 * (high - low), 0.005)
    chart = {
        "type": "LINE",
        "uuid": "budget-miou",
        "metricSectionId": section["uuid"],
        "metricKey": SCORE,
        "selectedMetricKeys": [SCORE],
        "xAxisKey": "step",
        "useGlobalXaxisKey": False,
        "yAxisKey": "metric",
        "lineSmoothness": 0,  # the page smooths what says nothing of it
        "useGlobalLineSmoothing": False,
        "range": {"yMin": low - room, "yMax": high + room},
    }
    return {
        "searchFilter": f"tags.`{_IS_REPORTED}` = 'True'",
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "param", "groupByData": "method"}]},
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,
        "compareRunSections": [section],
        "compareRunCharts": [chart],
    }


def _metrics(result: dict[str, Any]) -> list[Metric]:
    """Scores by budget: their step is the number of labelled regions, so that charts are budget curves."""
    metrics = []
    for budget, scores in result["budgets"].items():
        values = {name: value for name, value in scores.items() if isinstance(value, float)}
        values["selected/class_entropy"] = scores["class_frequencies"]["selected_entropy"]
        metrics += [Metric(allowed_name(name), value, 0, int(budget)) for name, value in values.items()]
    labelled = [0, *accumulate(AcquisitionConfig(**result["acquisition"]).step_sizes())]
    for count, miou in zip(labelled, result.get("miou_by_step") or [], strict=False):
        metrics.append(Metric("acquisition/miou", miou, 0, count))
    for part, seconds in (result.get("seconds") or {}).items():
        metrics.append(Metric(f"seconds/{part.replace(' ', '_')}", seconds, 0, 0))
    return metrics
