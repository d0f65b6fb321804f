"""Studies without training: invented results, and ways to run cells without waiting or with processes that die."""

import json
import os
from pathlib import Path

import numpy as np

from ralseg.errors import ConfigError
from ralseg.studies.plan import run_cell
from ralseg.studies.report import make_report


def run_here(cells, executor, acquire, retries, say=print):
    """Cells in this process: workers need seconds to start."""
    problems = {cell.title: run_cell(cell, acquire) for cell in cells}
    return {title: problem for title, problem in problems.items() if problem}


def die_or_live(config):
    """Stands for `ralseg acquire` in another process, which imports it from here."""
    if config["policy"] == "uniform":
        os._exit(9)
    raise ConfigError("as it should")


def fake_results(methods, seeds, effect=0.0, names=("road", "<b>tree</b>")) -> list[dict]:
    """Results of cells: method number n scores n times ``effect`` points more than the first."""
    rng = np.random.default_rng(0)
    results = []
    for seed in seeds:
        start = rng.normal(40, 2)
        for number, method in enumerate(methods):
            budgets = {}
            for budget in (100, 200, 300):
                score = (start + budget / 50 + effect * number + rng.normal(0, 0.2)) / 100
                shares = {"classes": list(names), "selected": [0.6, 0.4], "available": [0.9, 0.1]}
                shares |= {"selected_entropy": 0.67, "available_entropy": 0.33}
                scores = {"iterations": 40, "test_set/miou": score, "reward_set/miou": score + 0.02}
                scores |= {f"test_set/iou/{name}": score for name in names}
                budgets[str(budget)] = scores | {"class_frequencies": shares}
            results.append(
                {
                    "method": method,
                    "seed": seed,
                    "budgets": budgets,
                    "version": "0",
                    "dataset": "Fake & Co",
                    "regions": 999,
                }
                | {"seconds": {"candidates": 3.0}, "acquisition": {"regions_per_step": 10}}
            )
    return results


def upload_fake_report(mirror, cells, results, ours="entropy") -> Path:
    """Write the report of invented results as `compare` would, and give it to MLflow."""
    methods = list(dict.fromkeys(result["method"] for result in results))
    page, *_ = make_report(results, methods, Path("out/report"), mirror.study, ours)
    lines = [{"identity": cell.identity(), "result": result} for cell, result in zip(cells, results, strict=True)]
    (page.parent / "cells.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    mirror.upload_report(page.parent, "name: shown\n")
    return page
