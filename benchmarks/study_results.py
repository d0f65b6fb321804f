"""Prints the tables of docs/study from every seed's scores: `python benchmarks/study_results.py`.

`ralseg compare` wrote those scores (`report/results.csv`); they are kept in docs/study, one file a study.
"""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ralseg.statistics import Difference, paired_difference
from ralseg.verdict import Table, compare

STUDY = Path(__file__).parent.parent / "docs" / "study"
OURS = "learned"
ABLATION_BUDGET = {"images": 20}
"""Whole images of 24 regions each; every other ablation ends at 480 regions."""


def read(name: str) -> list[dict[str, str]]:
    """Rows of a study: method, seed, budget, scores."""
    return list(csv.DictReader((STUDY / name / "results.csv").open(newline="", encoding="utf-8")))


def as_table(rows: list[dict[str, str]]) -> Table:
    """The seeds that all methods have."""
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        key = row["method"], int(row["seed"])
        scores = {"test_set/miou": float(row["test_miou"]) / 100, "reward_set/miou": float(row["reward_miou"]) / 100}
        cells.setdefault(key, {"method": key[0], "seed": key[1], "budgets": {}})["budgets"][row["budget"]] = scores
    return Table.of(list(cells.values()), list(dict.fromkeys(row["method"] for row in rows)))


def line(*cells: object) -> None:
    """One row of a table in Markdown."""
    print("|", " | ".join(map(str, cells)), "|")


def spread(values: Iterable[float]) -> str:
    """Mean and standard deviation over seeds."""
    found = np.array(list(values))
    return f"{found.mean():.2f} ± {found.std(ddof=1):.2f}"


def shown(difference: Difference) -> str:
    """A paired difference with its interval; bold where that leaves out zero."""
    text = f"{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"
    return f"**{text}**" if difference.is_clear else text


def of(rows: list[dict[str, str]], method: str, budget: int, column: str, seeds: Iterable[int]) -> list[float]:
    """One column of a method's rows at a budget, seed by seed."""
    found = {int(r["seed"]): float(r[column]) for r in rows if r["method"] == method and int(r["budget"]) == budget}
    return [found[seed] for seed in seeds]


def print_study(name: str, rows: list[dict[str, str]]) -> None:
    """Scores and class entropies over the seeds that all methods have, differences over those that a pair has."""
    table = as_table(rows)
    areas = {method: table.areas(method) for method in table.methods}
    print(f"\n## {name}: seeds {', '.join(map(str, table.seeds))}; points of mean IoU, mean ± deviation over seeds\n")
    for title, scores in (("test set", table.test), ("reward set", table.reward)):
        line(title, *table.budgets, *(["area"] if title == "test set" else []))
        line(*["---"] * (1 + len(table.budgets) + (title == "test set")))
        for method in table.methods:
            more = [spread(areas[method])] if title == "test set" else []
            line(method, *map(spread, scores[method].T), *more)
        print()
    line("difference, test set", *table.budgets, "area", "area, reward set")
    line(*["---"] * (3 + len(table.budgets)))
    verdicts = []
    for baseline in [method for method in table.methods if method != OURS]:
        pairs = as_table([row for row in rows if row["method"] in (OURS, baseline)])
        verdicts.append(compare(pairs, OURS, baseline))
        differences = [*verdicts[-1].at_budget.values(), verdicts[-1].area, verdicts[-1].reward_area]
        line(f"{OURS} - {baseline}, {len(pairs.seeds)} seeds", *map(shown, differences))
    print()
    for verdict in verdicts:
        for saving in verdict.savings:
            interval = "" if np.isnan(saving.low) else f" [{saving.low:.0f}, {saving.high:.0f}]"
            print(
                f"labels for {saving.target:.2f} points: {OURS} {saving.labels:.0f}, {verdict.baseline} "
                f"{saving.baseline_labels:.0f}, saved {saving.percent:.0f} %{interval}"
            )
    print()
    line("entropy of the selected classes, nats", *table.budgets)
    line(*["---"] * (1 + len(table.budgets)))
    for method in table.methods:
        line(method, *(spread(of(rows, method, b, "class_entropy", table.seeds)) for b in table.budgets))


def print_ablation(name: str) -> None:
    """Methods of an ablation beside those of the main study with the same seeds and as many labelled pixels."""
    rows, main = read(name), read("main")
    budget = ABLATION_BUDGET.get(name, 480)
    seeds = as_table(rows).seeds
    print(f"\n## {name}: seeds {', '.join(map(str, seeds))}, 480 regions or as many pixels\n")
    line("method", "test mIoU", "reward mIoU", "class entropy", f"test mIoU - {OURS}")
    line(*["---"] * 5)
    ours = of(main, OURS, 480, "test_miou", seeds)
    entries = [(main, method, 480) for method in ("uniform", "entropy", OURS)]
    entries += [(rows, method, budget) for method in dict.fromkeys(row["method"] for row in rows)]
    for source, method, at in entries:
        columns = [of(source, method, at, column, seeds) for column in ("test_miou", "reward_miou", "class_entropy")]
        difference = "" if method == OURS else shown(paired_difference(columns[0], ours))
        line(method, *map(spread, columns), difference)


if __name__ == "__main__":
    print_study("main", read("main") + read("seeds"))
    print_study("spread", read("spread"))
    for ablation in ("features", "k", "images"):
        print_ablation(ablation)
