"""The figures of a report, each as SVG and PNG files.

matplotlib is imported when the first one is drawn.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ralseg.studies.tables import Table, Verdict

_COLOURS = ("#888888", "#e08214", "#1b7837", "#2166ac", "#b2182b", "#762a83", "#b8860b", "#00868b", "#c51b7d")
_DASHES = ("-", "--", "-.", ":")
_WIDTH = 5.6
"""Inches: letters stay legible when a phone shrinks the picture to its width."""


def _plots() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "ralseg"  # the same data give the same file
    from matplotlib import pyplot

    return pyplot


def style(table: Table, method: str) -> dict[str, Any]:
    """Colour and dashes of a method, the same in all figures."""
    number = table.methods.index(method)
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": _DASHES[number % len(_DASHES)]}


def _legend(axes: Any, below: float) -> None:
    """Under the axes, in one row if the names are short enough."""
    names = axes.get_legend_handles_labels()[1]
    columns = 6 if sum(map(len, names)) < 36 else 3
    axes.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, below), ncols=columns)


def _save(figure: Any, folder: Path, name: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=140)
    _plots().close(figure)
    return name


def budget_curves(table: Table, full: float | None, folder: Path) -> str:
    """Test mean IoU against labelled regions: mean over seeds, band of one standard deviation."""
    figure, axes = _plots().subplots(figsize=(_WIDTH, 3.9), layout="constrained")
    for method in table.methods:
        scores = table.test[method]
        mean = scores.mean(0)
        axes.plot(table.budgets, mean, marker="o", markersize=4, label=method, **style(table, method))
        if len(scores) > 1:
            spread = scores.std(0, ddof=1)
            colour = style(table, method)["color"]
            axes.fill_between(table.budgets, mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0)
    if full is not None:
        axes.axhline(0.96 * full, color="#555555", linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate(
            "96 % of full supervision", (table.budgets[0], 0.96 * full), fontsize=8, color="#555555",
            xytext=(0, 3), textcoords="offset points",
        )  # fmt: skip
    axes.set(xlabel="labelled regions", ylabel="test mean IoU, points", xticks=table.budgets)
    axes.grid(alpha=0.3)
    _legend(axes, -0.14)
    return _save(figure, folder, "budget_curves")


def differences(verdicts: list[Verdict], folder: Path) -> str:
    """Paired differences at each budget and in area, with their intervals."""
    rows = []
    for verdict in verdicts:
        rows += [(f"vs {verdict.baseline}, {b} regions", d) for b, d in verdict.at_budget.items()]
        rows.append((f"vs {verdict.baseline}, area", verdict.area))
    figure, axes = _plots().subplots(figsize=(_WIDTH, 0.9 + 0.3 * len(rows)), layout="constrained")
    for place, (_, found) in enumerate(rows):
        colour = "#2166ac" if found.low > 0 else "#b2182b" if found.high < 0 else "#777777"
        if np.isfinite(found.low):
            axes.plot([found.low, found.high], [place, place], color=colour, linewidth=2)
        axes.plot(found.mean, place, "o", color=colour, markersize=5)
    axes.axvline(0, color="#333333", linewidth=0.8)
    axes.set(
        yticks=range(len(rows)), yticklabels=[name for name, _ in rows], xlabel="points of test mean IoU, 95 % interval"
    )
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    return _save(figure, folder, "differences")


def class_shares(table: Table, found: dict[str, Any], folder: Path) -> str:
    """Class frequencies of what was selected beside what there was."""
    names = found["classes"]
    figure, axes = _plots().subplots(figsize=(_WIDTH, 4.2), layout="constrained")
    bars = [("available", found["available"], {"color": "#cccccc"})] if found["available"] else []
    bars += [(m, found["methods"][m]["selected"], {"color": style(table, m)["color"]}) for m in table.methods]
    width = 0.85 / len(bars)
    for number, (label, shares, look) in enumerate(bars):
        places = np.arange(len(names)) + (number - (len(bars) - 1) / 2) * width
        axes.bar(places, 100 * np.asarray(shares), width, label=label, **look)
    axes.set(ylabel="share of pixels, %", xticks=range(len(names)))
    axes.set_xticklabels(names, rotation=40, ha="right", fontsize=8)
    axes.grid(alpha=0.3, axis="y")
    _legend(axes, -0.3)
    return _save(figure, folder, "class_shares")
