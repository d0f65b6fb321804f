"""`ralseg compare`: run what is missing of a study, mirror it to MLflow, and write the report."""

import json
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as ScreenTable

from ralseg.data.datamodule import SegmentationData
from ralseg.errors import DataError, RalsegError
from ralseg.runtime.files import read_json, write_atomically
from ralseg.studies.executors import Executor, make_executor
from ralseg.studies.mlflow_sync import CELLS, REPORT, Mirror
from ralseg.studies.plan import RESULT, Acquire, Cell, Study, make_cells
from ralseg.studies.report import make_report, scores_by_method
from ralseg.studies.tables import SCORE, Table, Verdict

log = logging.getLogger(__name__)


def compare_study(
    config: Study,
    acquire: Acquire,
    load_data: Callable[[dict[str, Any]], SegmentationData | None],
    resolved: str = "",
    report_only: bool = False,
) -> int:
    """Bring a study to its end, or as far as it goes; returns the exit code.

    Args:
        config: The study.
        acquire: Runs a cell from the values of its configuration.
        load_data: Gives the data of a cell's configuration, for pictures; None where they are not at hand.
        resolved: The whole configuration of the study as YAML, kept with the results.
        report_only: Run nothing: gather what exists, here and in MLflow.
    """
    console = Console(soft_wrap=True)
    folder = Path(config.folder)
    cells = make_cells(config)
    if not report_only:
        for cell in cells:
            cell.check_files()
    write_atomically(folder / "study.yaml", resolved)
    mirror = Mirror(config.name)
    fetch_finished(cells, mirror, of_any_options=report_only)
    missing = [cell for cell in cells if cell.result(report_only) is None]
    console.print(f"{config.name}: {len(cells)} cells, {len(cells) - len(missing)} finished")
    failures: dict[str, str] = {}
    if missing and not report_only:
        failures = run_cells(missing, make_executor(config), acquire, config.retries, console.print)
    results = {cell: result for cell in cells if (result := cell.result(report_only)) is not None}
    mirror_missing(results, mirror)
    unfinished = [cell.title for cell in cells if cell not in results]
    if not results:
        raise DataError(f"none of the {len(cells)} cells is finished; their logs are in {folder / 'logs'}")
    page, table, verdicts, headline = make_report(
        list(results.values()),
        list(config.methods),
        folder / REPORT,
        config.name,
        config.ours,
        full_supervision(config),
        unfinished,
        config.method_options,
        load_data(cells[0].config()),
        {(cell.method, cell.seed): cell.folder / "selection.csv" for cell in results},
        learning_curve(config),
    )
    write_atomically(folder / REPORT / CELLS, cells_jsonl(list(results)))
    mirror.safely(lambda: mirror.upload_report(folder / REPORT, resolved))
    console.print(headline, highlight=False)
    console.print(score_table(table, verdicts))
    for title, problem in failures.items():
        console.print(f"FAILED {title}: {problem.strip().splitlines()[-1]}")
    if unfinished:
        console.print(f"{len(unfinished)} cells are not finished; the same command goes on with them")
    console.print(f"report: {page}")
    console.print("dashboard: ralseg dashboard")
    return RalsegError.exit_code if failures else 0


def run_cells(
    cells: list[Cell], executor: Executor, acquire: Acquire, retries: int, say: Callable[[str], None] = print
) -> dict[str, str]:
    """Have an executor run cells; those that fail are tried again. What went wrong in the end, by the cell's title."""
    started, ended, total = time.monotonic(), 0, len(cells)
    failures: dict[str, str] = {}
    for turn in range(retries + 1):
        failed = []
        for cell, problem in executor.run(cells, acquire):
            ended += problem is None or turn == retries
            spent = time.monotonic() - started
            left = f", {spent / ended * (total - ended):.0f} s left" if ended else ""
            state = "done" if problem is None else "FAILED"
            say(f"{cell.title:32} {state:6} {ended}/{total} cells, {spent:.0f} s{left}")
            failures.pop(cell.title, None)
            if problem is not None:
                failed.append(cell)
                failures[cell.title] = f"{problem.rstrip()} (log: {cell.log})"
                say(failures[cell.title])
        cells = failed
        if not cells:
            break
    return failures


def fetch_finished(cells: list[Cell], mirror: Mirror, of_any_options: bool) -> None:
    """Bring cells that MLflow has and this folder has not: run on another machine, say.

    Where a report is all that is wanted, theta_0s and policies need not be here: a run of the same method and seed
    will do.
    """
    wanted = [cell for cell in cells if cell.result(of_any_options) is None]
    if not wanted:
        return
    finished = mirror.safely(mirror.finished) or {}
    by_title = {run.info.run_name: run for run in finished.values()}
    for cell in wanted:
        run = finished.get(cell.identity()) or (by_title.get(cell.title) if of_any_options else None)
        if run is not None and not mirror.safely(partial(mirror.fetch, cell, run)):
            log.warning("%s is finished in MLflow, but its result could not be fetched", cell.title)


def mirror_missing(results: dict[Cell, dict[str, Any]], mirror: Mirror) -> None:
    """Upload the cells that MLflow does not have."""
    finished = mirror.safely(mirror.finished)
    for cell, result in results.items():
        identity = (cell.note() or {}).get("identity")  # of what was run, not of what would be run now
        if finished is not None and identity not in finished:
            mirror.safely(partial(mirror.upload, cell, result))


def score_table(table: Table, verdicts: list[Verdict]) -> ScreenTable:
    """One row a method, for the screen; its last column says how the compared method stands against it."""
    shown = ScreenTable(title=f"test mean IoU at so many labelled regions, {len(table.seeds)} seeds")
    shown.add_column("method", no_wrap=True, min_width=max(map(len, table.methods)))
    for column in (*map(str, table.budgets), "area"):
        shown.add_column(column, justify="right")
    if verdicts:
        shown.title = f"{shown.title}\nverdict: how {verdicts[0].method} stands against each method"
        shown.add_column("verdict", no_wrap=True)
    standings = {verdict.baseline: verdict.area.standing for verdict in verdicts}
    for method, scores in scores_by_method(table).items():
        shown.add_row(method, *scores, *([standings.get(method, "")] if verdicts else []))
    return shown


def cells_jsonl(cells: list[Cell]) -> str:
    """All that is known of finished cells, one a line: what identified each, and its result as `acquire` wrote it."""
    lines = [
        {
            "cell": cell.title,
            "identity": (cell.note() or {}).get("identity"),
            "result": read_json(cell.folder / RESULT),
        }
        for cell in cells
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def full_supervision(config: Study) -> float | None:
    """Test mean IoU of full supervision, in points."""
    if config.full_supervision is None:
        return None
    path = Path(config.full_supervision)
    try:
        return 100 * float(json.loads(path.read_text())[SCORE])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"full_supervision: {path} is not a test.json of `ralseg test` ({error})") from error


def learning_curve(config: Study) -> Path | None:
    """The learning curve beside the policy that is compared, if `ralseg fit` drew one."""
    if config.ours is None:
        return None
    policy = config.policy(config.ours, config.seeds[0])
    folders = list(Path(policy).parents)[:2] if policy.endswith(".ckpt") else []
    return next(
        (folder / "learning_curve.png" for folder in folders if (folder / "learning_curve.png").is_file()), None
    )
