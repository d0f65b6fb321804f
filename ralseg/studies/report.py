"""The report of a study: one HTML page that needs nothing else, with its figures and tables as files beside it."""

import base64
import csv
import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, Template
from PIL import Image

from ralseg.data.datamodule import SegmentationData
from ralseg.engine.selection import draw_boxes
from ralseg.runtime.files import write_atomically
from ralseg.studies import figures
from ralseg.studies.statistics import FEWEST_FOR_BOOTSTRAP, Difference
from ralseg.studies.tables import (
    COSTS,
    Table,
    Verdict,
    as_json,
    class_table,
    compare,
    costs,
    frequencies,
    label_costs,
    stale,
)
from ralseg.studies.verdicts import caveat, in_words, settled

PAGE = "report.html"
PANEL_IMAGES = 3


def make_report(
    results: list[dict[str, Any]],
    methods: list[str],
    folder: Path,
    title: str,
    ours: str | None = None,
    full: float | None = None,
    missing: list[str] | None = None,
    method_options: dict[str, Any] | None = None,
    data: SegmentationData | None = None,
    selections: dict[tuple[str, int], Path] | None = None,
    learning_curve: Path | None = None,
) -> tuple[Path, Table, list[Verdict], str]:
    """Write the page and everything on it; gives the page, the scores, the verdicts and the headline.

    Args:
        results: ``result.json`` of the finished cells.
        methods: Their order.
        folder: Where the report goes.
        title: Name of the study.
        ours: The method that is compared with the others; the best by the mean area if None.
        full: Test mean IoU of full supervision, in points.
        missing: Cells that are not finished.
        method_options: Options in which methods differ on purpose.
        data: For pictures of the selected regions; without, there are none.
        selections: ``selection.csv`` by method and seed.
        learning_curve: A picture of how the policy learned.
    """
    table = Table.of(results, methods)
    is_named = ours is not None
    ours = ours or table.best()
    others = [method for method in table.methods if method != ours]
    verdicts = [compare(table, ours, other) for other in others] if ours in table.methods else []
    words = in_words(ours, verdicts, is_named)
    shares = frequencies(results, table)
    drawn = {
        "budget_curves": figures.budget_curves(table, full, folder),
        "class_shares": figures.class_shares(table, shares, folder),
        "differences": figures.differences(verdicts, folder) if verdicts else None,
    }
    text = template("report.html.j2").render(
        name=title,
        table=table,
        words=words,
        caveat=caveat(is_named),
        verdicts=verdicts,
        differences=[row for verdict in verdicts for row in difference_rows(verdict)],
        ours=ours,
        full=full,
        missing=missing or [],
        commits=sorted({str(result.get("commit", "unknown"))[:12] for result in results}),
        method_options=method_options or {},
        version=results[0]["version"],
        dataset=results[0]["dataset"],
        regions=results[0]["regions"],
        how=_how(len(table.seeds)),
        scores=scores_by_method(table),
        areas={m: dict(zip(table.seeds, table.areas(m), strict=True)) for m in table.methods},
        reward_scores={m: _cells(table.reward[m]) for m in table.methods},
        classes=class_table(results, table),
        frequencies=shares,
        costs=costs(results, table),
        label_costs=label_costs(results, table),
        stale=stale(results),
        figures={key: embedded(folder / f"{name}.svg") for key, name in drawn.items() if name},
        panels=_panels(table, data, selections or {}),
        learning_curve=embedded(learning_curve) if learning_curve and learning_curve.is_file() else None,
        unbroken=lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%"),
        best=lambda row: max((v for v in row.values() if not math.isnan(v)), default=math.nan),
        score=lambda value: "-" if math.isnan(value) else f"{value:.2f}",
        amount=lambda value: "-" if math.isnan(value) else f"{value:.1f}".removesuffix(".0"),
        number=lambda value: "-" if math.isnan(value) else f"{value:.0f}",
        percent=lambda value: "-" if math.isnan(value) else f"{value:.0f} %",
    )
    write_atomically(folder / PAGE, text)
    write_atomically(folder / "results.csv", results_csv(results))
    write_atomically(folder / "classes.csv", classes_csv(class_table(results, table), table))
    write_atomically(folder / "verdict.json", json.dumps(words | as_json(verdicts), indent=1) + "\n")
    return folder / PAGE, table, verdicts, words["headline"]


def template(name: str) -> Template:
    """A page of this package; what is put into it is escaped."""
    return Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True).get_template(name)


def _how(seeds: int) -> str:
    if seeds < FEWEST_FOR_BOOTSTRAP:
        return f"Student's t, for a bootstrap of {seeds} seeds would be too narrow"
    return "a bootstrap over seeds, widened for small samples"


def difference_rows(verdict: Verdict) -> list[list[str]]:
    """Every paired difference with a baseline: from it, in what, how much, its interval, and what would settle it."""
    sets = (
        ("test set", verdict.area, verdict.at_budget),
        ("reward set", verdict.reward_area, verdict.reward_at_budget),
    )
    rows = []
    for name, whole, at_budget in sets:
        rows.append([verdict.baseline, f"{name}, area", *_difference(whole)])
        rows += [[verdict.baseline, f"{name}, {budget}", *_difference(found)] for budget, found in at_budget.items()]
    return rows


def _difference(found: Difference) -> list[str]:
    if found.count < 2:
        return [f"{found.mean:+.2f}", "-", "undecided", "-"]
    settles = "-" if found.is_clear else settled([found])
    return [f"{found.mean:+.2f}", f"{found.low:+.2f} to {found.high:+.2f}", found.standing, settles]


def scores_by_method(table: Table) -> dict[str, list[str]]:
    """Each method's mean and deviation over seeds at every budget, and in area."""
    return {m: [*_cells(table.test[m]), _cell(np.array(table.areas(m)))] for m in table.methods}


def _cell(values: Any) -> str:
    spread = f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else ""
    return f"{values.mean():.2f}{spread}"


def _cells(scores: Any) -> list[str]:
    return [_cell(column) for column in scores.T]


def embedded(path: Path) -> str:
    """A picture as a data URL, so that the page stands alone."""
    kind = "image/svg+xml" if path.suffix == ".svg" else "image/png"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _panels(
    table: Table, data: SegmentationData | None, selections: dict[tuple[str, int], Path]
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Images of which the methods together chose most, with what each one chose."""
    seed = table.seeds[0]
    chosen: dict[str, list[dict[str, str]]] = {}
    for method in table.methods:
        path = selections.get((method, seed))
        if data is None or path is None or not path.is_file():
            return []
        chosen[method] = list(csv.DictReader(path.open(newline="", encoding="utf-8")))
    assert data is not None
    counts = Counter(row["image"] for rows in chosen.values() for row in rows)
    positions = {name: i for i, name in enumerate(data.dataset.names)}
    panels = []
    for image, _ in [entry for entry in counts.most_common() if entry[0] in positions][:PANEL_IMAGES]:
        pixels = data.dataset.read_image(positions[image])
        pictures = []
        for method, rows in chosen.items():
            boxes = [
                (int(row["step"]), (int(row["x"]), int(row["y"]), int(row["w"]), int(row["h"])))
                for row in rows
                if row["image"] == image
            ]
            last = max((int(row["step"]) for row in rows), default=0)
            picture = Image.fromarray(draw_boxes(pixels, boxes, last))
            picture.thumbnail((480, 480))
            buffer = io.BytesIO()
            picture.save(buffer, "PNG")
            pictures.append((method, f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"))
        panels.append((image, pictures))
    return panels


def results_csv(results: list[dict[str, Any]]) -> str:
    """Every seed, every budget."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ["method", "seed", "budget", "test_miou", "reward_miou", "iterations", "class_entropy", *COSTS[1:]]
    writer.writerow(columns)
    for result in sorted(results, key=lambda r: (r["method"], r["seed"])):
        for budget, scores in result["budgets"].items():
            values = (100 * scores["test_set/miou"], 100 * scores["reward_set/miou"])
            entropy = scores["class_frequencies"]["selected_entropy"]
            writer.writerow(
                [
                    result["method"],
                    result["seed"],
                    budget,
                    *(f"{v:.4f}" for v in values),
                    scores["iterations"],
                    f"{entropy:.4f}",
                    *((scores.get("cost") or {}).get(key) for key in COSTS[1:]),
                ]
            )
    return text.getvalue()


def classes_csv(rows: list[tuple[str, dict[str, float]]], table: Table) -> str:
    """IoU of each class at the largest budget, mean over seeds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["class", *table.methods])
    for name, row in rows:
        writer.writerow([name, *(f"{row[m]:.4f}" for m in table.methods)])
    return text.getvalue()
