"""From the results of a study to its tables: budget curves, labels saved, per-class scores, and what can be said."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ralseg.errors import DataError
from ralseg.studies.statistics import Difference, Saving, area, labels_saved, paired_difference

SCORE = "test_set/miou"
COSTS = ("regions", "pixels", "clicks", "minutes")


@dataclass(frozen=True)
class Table:
    """Scores in points of mean IoU: one [seeds, budgets] array a method, over the seeds that all methods have."""

    budgets: list[int]
    seeds: list[int]
    methods: list[str]
    test: dict[str, NDArray[np.float64]]
    reward: dict[str, NDArray[np.float64]]

    @staticmethod
    def of(results: list[dict[str, Any]], methods: list[str]) -> "Table":
        """Collect the results of cells; seeds that not every method has are left out, for pairs must be whole."""
        by_cell = {(r["method"], r["seed"]): r for r in results}
        methods = [m for m in methods if any(method == m for method, _ in by_cell)]
        seeds = sorted(seed for seed in {s for _, s in by_cell} if all((m, seed) in by_cell for m in methods))
        if not methods or not seeds:
            raise DataError("no seed is finished for every method yet: there is nothing to compare")
        common = set.intersection(*(set(map(int, by_cell[m, s]["budgets"])) for m in methods for s in seeds))
        if not common:
            raise DataError("the methods have no budget in common: there is nothing to compare")
        budgets = sorted(common)

        def scores(name: str) -> dict[str, NDArray[np.float64]]:
            return {
                m: 100 * np.array([[by_cell[m, s]["budgets"][str(b)][name] for b in budgets] for s in seeds])
                for m in methods
            }

        return Table(budgets, seeds, methods, scores(SCORE), scores("reward_set/miou"))

    def areas(self, method: str) -> list[float]:
        """Area under the budget curve of each seed."""
        return [area(self.budgets, row) for row in self.test[method]]

    def best(self) -> str:
        """The method with the largest mean area."""
        return max(self.methods, key=lambda method: float(np.mean(self.areas(method))))


@dataclass(frozen=True)
class Verdict:
    """How one method stands against one baseline."""

    method: str
    baseline: str
    at_budget: dict[int, Difference]
    area: Difference
    reward_at_budget: dict[int, Difference]
    reward_area: Difference
    savings: list[Saving]

    @property
    def saving(self) -> Saving | None:
        """Labels saved at the baseline's best mean score; None with one budget."""
        return self.savings[-1] if self.savings else None


def compare(table: Table, method: str, baseline: str) -> Verdict:
    """All paired comparisons of a method with a baseline."""
    mine, theirs = table.test[method], table.test[baseline]
    at_budget, whole = _paired(table.budgets, mine, theirs)
    reward_at_budget, reward_area = _paired(table.budgets, table.reward[method], table.reward[baseline])
    savings = [labels_saved(table.budgets, mine, theirs, target) for target in targets(theirs)]
    return Verdict(method, baseline, at_budget, whole, reward_at_budget, reward_area, savings)


def _paired(
    budgets: list[int], mine: NDArray[np.float64], theirs: NDArray[np.float64]
) -> tuple[dict[int, Difference], Difference]:
    """Differences at each budget and in the area under the budget curve."""
    at_budget = {b: paired_difference(mine[:, i], theirs[:, i]) for i, b in enumerate(budgets)}
    areas = ([area(budgets, row) for row in scores] for scores in (mine, theirs))
    return at_budget, paired_difference(*areas)


def targets(baseline: NDArray[np.float64]) -> list[float]:
    """The baseline's own mean scores at its budgets, but the first: what it takes to get as far."""
    means = np.maximum.accumulate(baseline.mean(0))
    return [float(value) for value in means[1:]]


def class_table(results: list[dict[str, Any]], table: Table) -> list[tuple[str, dict[str, float]]]:
    """Mean IoU of each class at the largest budget, by method, in points; classes that never occur are left out."""
    last = str(table.budgets[-1])
    names = results[0]["budgets"][last]["class_frequencies"]["classes"]
    rows = []
    for name in names:
        row = {}
        for method in table.methods:
            found = [
                r["budgets"][last].get(f"test_set/iou/{name}")
                for r in results
                if r["method"] == method and r["seed"] in table.seeds
            ]
            values = [100 * value for value in found if value is not None]
            row[method] = float(np.mean(values)) if values else math.nan
        if not all(map(math.isnan, row.values())):
            rows.append((name, row))
    return rows


def frequencies(results: list[dict[str, Any]], table: Table) -> dict[str, Any]:
    """Mean class shares of what each method selected, of what there was, and their entropies."""
    last = str(table.budgets[-1])
    mine = [r for r in results if r["seed"] in table.seeds]
    found: dict[str, Any] = {"classes": mine[0]["budgets"][last]["class_frequencies"]["classes"], "methods": {}}
    available = mine[0]["budgets"][last]["class_frequencies"]["available"]
    found["available"] = available
    found["available_entropy"] = mine[0]["budgets"][last]["class_frequencies"]["available_entropy"]
    for method in table.methods:
        cells = [r["budgets"][last]["class_frequencies"] for r in mine if r["method"] == method]
        found["methods"][method] = {
            "selected": np.mean([c["selected"] for c in cells], 0).tolist(),
            "entropy": float(np.mean([c["selected_entropy"] for c in cells])),
        }
    return found


def label_costs(results: list[dict[str, Any]], table: Table) -> list[dict[str, Any]]:
    """What labels cost people at each budget, by method: means over seeds; NaN where somebody does not know."""
    rows = []
    for method in table.methods:
        cells = [r for r in results if r["method"] == method and r["seed"] in table.seeds]
        for budget in table.budgets:
            found = [r["budgets"][str(budget)].get("cost") or {} for r in cells]
            means = {key: _mean([cost.get(key) for cost in found]) for key in COSTS}
            rows.append({"method": method, "budget": budget, **means})
    return rows


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else math.nan


def stale(results: list[dict[str, Any]]) -> list[str]:
    """Scores that were made with labels which have been corrected since: method, seed and budget."""
    return [
        f"{result['method']}/seed{result['seed']} at {budget}"
        for result in results
        for budget, scores in result["budgets"].items()
        if "stale" in scores
    ]


def costs(results: list[dict[str, Any]], table: Table) -> list[dict[str, Any]]:
    """Mean seconds of an acquisition by method, and regions chosen a second."""
    rows = []
    for method in table.methods:
        cells = [r for r in results if r["method"] == method and r["seed"] in table.seeds]
        seconds = [sum((r.get("seconds") or {}).values()) for r in cells]
        mean = float(np.mean(seconds))
        rows.append(
            {
                "method": method,
                "seconds": mean,
                "regions_per_second": table.budgets[-1] / mean if mean else math.nan,
                "iterations": float(np.mean([r["budgets"][str(table.budgets[-1])]["iterations"] for r in cells])),
                "device": str(cells[0].get("device", "cpu")),
            }
        )
    return rows


def as_json(verdicts: list[Verdict]) -> dict[str, Any]:
    """Plain values for a file."""
    differences = []
    for v in verdicts:
        entries = [("area", v.area), *((f"budget {b}", d) for b, d in v.at_budget.items())]
        entries += [("reward set, area", v.reward_area)]
        entries += [(f"reward set, budget {b}", d) for b, d in v.reward_at_budget.items()]
        differences += [{"method": v.method, "baseline": v.baseline, "what": w, **asdict(d)} for w, d in entries]
    savings = [{"method": v.method, "baseline": v.baseline, **asdict(s)} for v in verdicts for s in v.savings]
    return {"differences": _plain(differences), "savings": _plain(savings)}


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what JSON cannot say: infinite and missing numbers become null."""
    return [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in rows
    ]
