"""Prints the tables of docs/study from every seed's scores: `python benchmarks/study_results.py`.

`ralseg compare` wrote those scores (`report/results.csv`); they are kept in docs/study, one folder a study.
"""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ralseg.studies.statistics import Difference, Saving, paired_difference
from ralseg.studies.tables import Table, Verdict, compare

STUDY = Path(__file__).parent.parent / "docs" / "study"
OURS = "learned"
PRIOR = "learned-bald"
"""Ours with BALD as its prior."""
SCORES = {"test set": "test_miou", "reward set": "reward_miou"}
"""Columns of results.csv."""
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


def header(*cells: object) -> None:
    """The first row of a table in Markdown."""
    line(*cells)
    line(*["---"] * len(cells))


def whole(labels: float) -> str:
    """A number of labels; a dash where a score was not reached."""
    return "-" if np.isnan(labels) else f"{labels:.0f}"


def percent(saving: Saving) -> str:
    """Share of labels saved, with its interval where there is one."""
    if np.isnan(saving.percent):
        return "not reached"
    interval = "" if np.isnan(saving.low) else f" [{saving.low:.0f}, {saving.high:.0f}]"
    return f"{saving.percent:.0f} %{interval}"


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


def print_study(title: str, rows: list[dict[str, str]], ours: str = OURS) -> None:
    """Scores and class entropies over the seeds that all methods have, differences over those that a pair has."""
    table = as_table(rows)
    areas = {method: table.areas(method) for method in table.methods}
    print(f"\n## {title}: seeds {', '.join(map(str, table.seeds))}; points of mean IoU, mean ± deviation over seeds\n")
    header("test set", *table.budgets, "area")
    for method in table.methods:
        line(method, *map(spread, table.test[method].T), spread(areas[method]))
    print()
    header("reward set", *table.budgets)
    for method in table.methods:
        line(method, *map(spread, table.reward[method].T))
    print()
    header("difference, test set", *table.budgets, "area", "area, reward set")
    verdicts = {method: verdict_on(rows, method, ours) for method in table.methods if method != ours}
    for verdict in verdicts.values():
        print_differences(verdict)
    print_savings(verdicts)
    print()
    header("entropy of the selected classes, nats", *table.budgets)
    for method in table.methods:
        line(method, *(spread(of(rows, method, b, "class_entropy", table.seeds)) for b in table.budgets))
    if {"uniform", "entropy"} <= verdicts.keys():
        print_bars(rows, table, verdicts)


def print_summary(rows: list[dict[str, str]], ours: str) -> None:
    """A study in one table: what each method scored, and what ours has over it; the worst first."""
    table = as_table(rows)
    print(f"\n## In short: {len(table.seeds)} seeds; test mean IoU, means over seeds\n")
    first, last = table.budgets[0], table.budgets[-1]
    header("method", first, last, "area", f"lead of {ours}, area", "labels saved")
    areas = {method: float(np.mean(table.areas(method))) for method in table.methods}
    for method in sorted(table.methods, key=lambda method: areas[method]):
        means = table.test[method].mean(0)
        scores = (f"{score:.2f}" for score in (means[0], means[-1], areas[method]))
        gains = ["", ""]
        if method != ours:
            verdict = verdict_on(rows, method, ours)
            gains = [shown(verdict.area), percent(verdict.savings[-1])]
        line(method, *scores, *gains)


def print_differences(verdict: Verdict) -> None:
    """Ours less a baseline: at each budget, in area, and in area on the reward set."""
    differences = [*verdict.at_budget.values(), verdict.area, verdict.reward_area]
    line(f"{verdict.method} - {verdict.baseline}, {verdict.area.count} seeds", *map(shown, differences))


def print_savings(verdicts: dict[str, Verdict]) -> None:
    """Labels that ours needs for each baseline's scores, by the mean curves."""
    print()
    header("labels for the same test mIoU as", "points", next(iter(verdicts.values())).method, "the other", "saved")
    for baseline, verdict in verdicts.items():
        for saving in verdict.savings:
            counts = map(whole, (saving.labels, saving.baseline_labels))
            line(baseline, f"{saving.target:.2f}", *counts, percent(saving))


def verdict_on(rows: list[dict[str, str]], baseline: str, ours: str = OURS) -> Verdict:
    """Ours against a baseline, over all seeds that both have."""
    return compare(as_table([row for row in rows if row["method"] in (ours, baseline)]), ours, baseline)


def print_bars(rows: list[dict[str, str]], table: Table, verdicts: dict[str, Verdict]) -> None:
    """What the study aimed at, what came out, and whether that is met."""
    uniform, entropy = verdicts["uniform"], verdicts["entropy"]
    ours = uniform.method
    first, last = table.budgets[0], table.budgets[-1]
    classes = {m: [np.mean(of(rows, m, b, "class_entropy", table.seeds)) for b in table.budgets] for m in table.methods}
    saved = uniform.savings[-1]
    clear = [budget for budget, found in uniform.at_budget.items() if found.low > 0]
    bars = [
        (
            "above uniform, 95 % interval above 0: in area, or at every budget",
            f"area {shown(uniform.area)}; clear at {', '.join(map(str, clear)) or 'no budget'}",
            uniform.area.low > 0 or len(clear) == len(table.budgets),
        ),
        ("not below entropy in area, by the mean", shown(entropy.area), entropy.area.mean >= 0),
        (
            f"above entropy at {first} regions, by the mean",
            shown(entropy.at_budget[first]),
            entropy.at_budget[first].mean > 0,
        ),
        (
            "classes more varied than uniform's, and no less than entropy's",
            f"at {last} " + ", ".join(f"{m} {classes[m][-1]:.2f}" for m in (ours, "uniform", "entropy")),
            all(m > u and m >= h for m, u, h in zip(*(classes[m] for m in (ours, "uniform", "entropy")), strict=True)),
        ),
        (f"30 % fewer labels than uniform for its score at {last}", percent(saved), saved.percent >= 30),
    ]
    print()
    header("aim", "found", "reached")
    for aim, found, is_reached in bars:
        line(aim, found, "yes" if is_reached else "no")


def print_ablation(name: str) -> None:
    """Methods of an ablation beside those of the main study with the same seeds and as many labelled pixels."""
    rows, main = read(name), read("main")
    budget = ABLATION_BUDGET.get(name, 480)
    seeds = as_table(rows).seeds
    print(f"\n## {name}: seeds {', '.join(map(str, seeds))}, 480 regions or as many pixels\n")
    header("method", "test mIoU", "reward mIoU", "class entropy", f"test mIoU - {OURS}")
    ours = of(main, OURS, 480, "test_miou", seeds)
    entries = [(main, method, 480) for method in ("uniform", "entropy", OURS)]
    entries += [(rows, method, budget) for method in dict.fromkeys(row["method"] for row in rows)]
    for source, method, at in entries:
        columns = [of(source, method, at, column, seeds) for column in ("test_miou", "reward_miou", "class_entropy")]
        difference = "" if method == OURS else shown(paired_difference(columns[0], ours))
        line(method, *map(spread, columns), difference)


def print_whole_images() -> None:
    """Methods that must take whole images, less the same methods with regions and as many pixels."""
    rows, main = read("images"), read("main")
    seeds = as_table(rows).seeds
    print()
    header("whole images less regions", *SCORES)
    for method in ("uniform", "entropy"):
        differences = []
        for column in SCORES.values():
            images = of(rows, f"{method}-images", ABLATION_BUDGET["images"], column, seeds)
            differences.append(paired_difference(images, of(main, method, 480, column, seeds)))
        line(method, *map(shown, differences))


def print_other(name: str, base: str) -> None:
    """One more method beside a study's: its scores, and how it differs from each of the study's methods."""
    rows = read(name)
    table = as_table(rows)
    (ours,) = table.methods
    print(f"\n## {name}: {ours} beside the methods of {base}; points of mean IoU, mean ± deviation over seeds\n")
    header("", *table.budgets, "area")
    line(f"{ours}, test set", *map(spread, table.test[ours].T), spread(table.areas(ours)))
    line(f"{ours}, reward set", *map(spread, table.reward[ours].T), "")
    entropies = (of(rows, ours, budget, "class_entropy", table.seeds) for budget in table.budgets)
    line(f"{ours}, class entropy", *map(spread, entropies), "")
    print()
    header("difference, test set", *table.budgets, "area", "area, reward set")
    both = read(base) + rows
    others = dict.fromkeys(row["method"] for row in both if row["method"] != ours)
    verdicts = {baseline: verdict_on(both, baseline, ours) for baseline in others}
    for verdict in verdicts.values():
        print_differences(verdict)
    print_savings(verdicts)


def print_repeat(name: str, earlier: str) -> None:
    """The cells that two runs of the same commands on different machines share: what rounding alone changes."""
    rows, before = read(name), read(earlier)
    shared = {(row["method"], row["seed"]) for row in rows}
    before = [row for row in before if (row["method"], row["seed"]) in shared]
    print(f"\n## {name} less {earlier}: the same commands on another machine, mean ± deviation over seeds\n")
    budgets = sorted({int(row["budget"]) for row in before})
    columns = [(title, column, b) for title, column in SCORES.items() for b in budgets]
    header("method", *(f"{title}, {budget}" for title, _, budget in columns), "largest, test set")
    for method in dict.fromkeys(row["method"] for row in before):
        seeds = sorted({int(row["seed"]) for row in before if row["method"] == method})
        moved = {}
        for title, column, budget in columns:
            pair = (of(source, method, budget, column, seeds) for source in (rows, before))
            moved[title, budget] = [now - then for now, then in zip(*pair, strict=True)]
        largest = max(abs(value) for (title, _), values in moved.items() for value in values if title == "test set")
        line(method, *map(spread, moved.values()), f"{largest:.2f}")


def print_controls(name: str) -> None:
    """How the methods that ours is held against differ from each other."""
    rows = read(name)
    print()
    header("difference, test set", *as_table(rows).budgets, "area", "area, reward set")
    for method, baseline in (("rare-bald", "uniform"), ("dqn", "uniform"), ("dqn", "rare-bald")):
        print_differences(verdict_on(rows, baseline, method))


def print_drift(name: str) -> None:
    """How the loss of policies that bootstrap went, by the histories that `ralseg fit` left."""
    print(f"\n## {name}: loss of the query network after an episode, reward in points\n")
    header("policy", "first episode", "median", "largest")
    for file in sorted((STUDY / name).glob("*_history.json")):
        losses = [episode["query_loss"] for episode in json.loads(file.read_text(encoding="utf-8"))]
        line(
            file.name.removesuffix("_history.json"), *(f"{x:.2g}" for x in (losses[0], np.median(losses), max(losses)))
        )


def together(*names: str) -> list[dict[str, str]]:
    """Rows of several studies of one protocol, of the last one's methods."""
    studies = [read(name) for name in names]
    methods = {row["method"] for row in studies[-1]}
    return [row for rows in studies for row in rows if row["method"] in methods]


if __name__ == "__main__":
    for study in ("main", "unmixed", "spread"):
        print_study(study, read(study))
    print_repeat("spread", "spread_first")
    for other, base in (("prior", "main"), ("spread_prior", "spread")):
        print_other(other, base)
    print_summary(read("confirm"), PRIOR)
    print_study("confirm", read("confirm"), PRIOR)
    print_study("control", read("control"), PRIOR)
    print_controls("control")
    print_drift("control")
    print_repeat("control", "confirm")
    print_study("main, prior and confirm together", together("main", "prior", "confirm"), PRIOR)
    for ablation in ("features", "k", "images"):
        print_ablation(ablation)
    print_whole_images()
