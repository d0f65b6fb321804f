"""A study: methods x seeds as a grid of `ralseg acquire` runs, on disk first and mirrored to MLflow."""

import hashlib
import json
import os
import shlex
import shutil
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ralseg.errors import ConfigError, RalsegError
from ralseg.files import write_atomically
from ralseg.find_policy import policy_tag
from ralseg.shipped import find_config

RunCommand = Callable[[list[str]], int]
RESULT = "result.json"
CELL = "cell.json"


@dataclass(frozen=True)
class StudyConfig:
    """What is compared with what.

    Args:
        name: Name of the study, and of its MLflow experiment.
        folder: Everything of the study goes here.
        acquire: Configuration of `ralseg acquire` that all cells share.
        methods: A policy for each name: what `ralseg acquire --policy` takes. ``{seed}`` stands for the seed, for
            policies that were trained per seed.
        seeds: Seeds; each is one theta_0, one set of candidate draws, one order of training, for all methods.
        initial_weights: theta_0 of a seed, with ``{seed}`` in it.
        options: More options of `ralseg acquire` by their dotted names, the same for all cells.
        method_options: Options of single methods, ``{bald: {trainer.acquisition.pool_size: 20}}``.
        ours: The method that is compared with the others.
        full_supervision: The ``test.json`` of a segmenter that was trained on all labels, for the 96 % line.
        jobs: Cells that run at the same time, each with its share of the cores.
    """

    name: str = "study"
    folder: str = "runs/compare"
    acquire: str = "synthetic_acquire.yaml"
    methods: dict[str, str] = field(default_factory=lambda: {"uniform": "uniform", "entropy": "entropy"})
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    initial_weights: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    method_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    ours: str | None = None
    full_supervision: str | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        if not self.methods or not self.seeds:
            raise ConfigError("a study needs at least one of methods and one of seeds")
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds={self.seeds}: each may stand there once")
        if self.ours is not None and self.ours not in self.methods:
            raise ConfigError(f"ours={self.ours!r} is none of the methods: {', '.join(self.methods)}")
        unknown = set(self.method_options) - set(self.methods)
        if unknown:
            raise ConfigError(f"method_options name {', '.join(sorted(unknown))}, which is none of the methods")
        if self.jobs < 1:
            raise ConfigError(f"jobs={self.jobs} must be at least 1")
        for name in self.methods:
            if not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
                raise ConfigError(f"methods: the name {name!r} may hold letters, digits, '.', '-' and '_' only")


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of `ralseg acquire`: a method with a seed."""

    method: str
    seed: int
    folder: Path
    arguments: list[str]  # of the command, without `ralseg`

    @property
    def title(self) -> str:
        """Name of its run in MLflow."""
        return f"{self.method}/seed{self.seed}"

    def identity(self) -> str:
        """A hash of everything that its result depends on: options, configuration, weights, policy."""
        digest = hashlib.sha256()
        for argument in self.arguments:
            path = Path(argument)
            digest.update(path.read_bytes() if path.is_file() else argument.encode())
            digest.update(b"\0")
        return digest.hexdigest()[:16]

    def result(self) -> dict[str, Any] | None:
        """Its result, if it has been finished with these very options."""
        report, note = self.folder / RESULT, self.folder / CELL
        if not report.is_file() or not note.is_file() or json.loads(note.read_text())["identity"] != self.identity():
            return None
        found: dict[str, Any] = json.loads(report.read_text())
        return found | {"method": self.method}

    def emit(self) -> str:
        """The command as a person would type it."""
        return shlex.join(["ralseg", *self.run_arguments()])

    def run_arguments(self) -> list[str]:
        """With the folder, and so that an earlier try is gone on with."""
        return [*self.arguments, "--trainer.default_root_dir", str(self.folder), "--ckpt", "last"]


def make_cells(config: StudyConfig) -> list[Cell]:
    """All cells, seed by seed: a study that is cut off has whole pairs."""
    acquire = str(find_config(config.acquire))
    cells = []
    for seed in config.seeds:
        for method, policy in config.methods.items():
            options: dict[str, Any] = {"trainer.logger": False, "trainer.enable_progress_bar": False}
            options |= config.options | config.method_options.get(method, {})
            if config.initial_weights is not None:
                weights = config.initial_weights.format(seed=seed)
                if not Path(weights).is_file():
                    raise ConfigError(f"initial_weights: no checkpoint at {weights!r}; `ralseg pretrain` makes them")
                options["trainer.acquisition.initial_weights"] = weights
            policy = policy.format(seed=seed)
            if policy.endswith(".ckpt") and not Path(policy).is_file():
                raise ConfigError(f"methods.{method}: no policy at {policy!r}; `ralseg fit` makes them")
            arguments = ["acquire", "--config", acquire, "--policy", policy, "--seed_everything", str(seed)]
            for key, value in options.items():
                arguments += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
            cells.append(Cell(method, seed, Path(config.folder) / "cells" / method / f"seed{seed}", arguments))
    return cells


# -- running ---------------------------------------------------------------------------------------


def run_cell(cell: Cell, run_command: RunCommand) -> str | None:
    """Run a cell in this process; what went wrong, or None."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    note = cell.folder / CELL
    content = {"identity": cell.identity(), "method": cell.method, "seed": cell.seed, "command": cell.emit()}
    if note.is_file() and json.loads(note.read_text())["identity"] != content["identity"]:
        shutil.rmtree(cell.folder)  # of other options: nothing of it may be gone on with
        cell.folder.mkdir(parents=True)
    write_atomically(note, json.dumps(content, indent=1) + "\n")
    try:
        run_command(cell.run_arguments())
    except RalsegError as error:
        return str(error)
    except (Exception, SystemExit):  # a failed cell must not stop the others
        return traceback.format_exc(limit=-3)
    return None if cell.result() is not None else f"it ended without a result; see {cell.folder / 'log.txt'}"


def _work(cell: Cell, threads: int, run_command: RunCommand) -> str | None:
    """Run a cell in a worker process, its output in ``log.txt``."""
    import torch

    torch.set_num_threads(threads)
    cell.folder.mkdir(parents=True, exist_ok=True)
    with (cell.folder / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        return run_cell(cell, run_command)


def run_cells(
    cells: list[Cell], jobs: int, run_command: RunCommand, say: Callable[[str], None] = print
) -> dict[str, str]:
    """Run cells, ``jobs`` at a time, each by ``run_command``; what went wrong, by the cell's title."""
    failures: dict[str, str] = {}
    started = time.monotonic()
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # spawned, not forked: torch's threads do not survive a fork
    with ProcessPoolExecutor(min(jobs, len(cells)), mp_context=get_context("spawn")) as pool:
        futures: dict[Future[str | None], Cell] = {
            pool.submit(_work, cell, threads, run_command): cell for cell in cells
        }
        for number, future in enumerate(as_completed(futures), 1):
            cell = futures[future]
            try:
                problem = future.result()
            except Exception as error:  # the process itself died
                problem = f"the process died ({error}); see {cell.folder / 'log.txt'}"
            spent = time.monotonic() - started
            left = spent / number * (len(cells) - number)
            state = "done" if problem is None else "FAILED"
            say(f"{cell.title:32} {state:6} {number}/{len(cells)} cells, {spent:.0f} s, {left:.0f} s left")
            if problem is not None:
                failures[cell.title] = problem
                say(problem.rstrip())
    return failures


def tags_of(cell: Cell, result: dict[str, Any]) -> dict[str, str]:
    """What MLflow's runs are filtered by."""
    policy = cell.arguments[cell.arguments.index("--policy") + 1]
    return {
        "ralseg.method": cell.method,
        "ralseg.seed": str(cell.seed),
        "ralseg.dataset": str(result["dataset"]),
        "ralseg.policy": policy_tag(policy),
        "ralseg.version": str(result["version"]),
        "ralseg.cell": cell.identity(),
    }
