"""The plan of a study: methods x seeds as a grid of `ralseg acquire` runs, each in a folder of its own."""

import hashlib
import json
import shlex
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ralseg import __version__
from ralseg.agents.loading import is_file, policy_identity, policy_tag
from ralseg.config import command_config, set_option
from ralseg.errors import ConfigError, RalsegError
from ralseg.runtime import allowed_imports, run_folder
from ralseg.runtime.files import file_hash, read_json, write_atomically

Acquire = Callable[[dict[str, Any]], object]
"""Runs `ralseg acquire` with the values of a configuration, and leaves ``result.json`` in its folder."""
RESULT = "result.json"
CELL = "cell.json"
PEOPLE = ("crops", "none", "page", "label_studio")
"""Oracles that ask people."""
_WEIGHTS = "trainer.acquisition.initial_weights"
_OWN = ("policy", "seed_everything", "ckpt", "trainer.default_root_dir")  # what a cell is, and where


@dataclass(frozen=True)
class Study:
    """What is compared with what.

    Args:
        name: Name of the study, and of its MLflow experiment.
        folder: Everything of the study goes here.
        acquire: Configuration of `ralseg acquire` that all cells share, or several that are merged in their order. In a
            file with sections it is that file, unless said otherwise.
        methods: A policy for each name: what `ralseg acquire --policy` takes. ``{seed}`` stands for the seed, for
            policies that were trained per seed. A list: policies of one recipe that were trained independently; the
            seeds take them in turn.
        seeds: Seeds; each is one theta_0, one set of candidate draws, one order of training, for all methods.
        initial_weights: theta_0 of a seed, with ``{seed}`` in it.
        options: More options of `ralseg acquire` by their dotted names, the same for all cells.
        method_options: Options of single methods, ``{bald: {trainer.acquisition.pool_size: 20}}``.
        ours: The method that is compared with the others; without, the best by the mean.
        full_supervision: The ``test.json`` of a segmenter that was trained on all labels, for the 96 % line.
        jobs: Cells that run at the same time on this machine, each with its share of the cores.
        engine: ``local`` processes, SLURM by ``submitit``, or a ``ray`` cluster; see docs/scale.md.
        engine_options: Options of the engine, ``{slurm_partition: gpu, timeout_min: 600}``.
        retries: How often a cell that failed is tried again; it goes on where it was.

    Examples:
        >>> study = Study(methods={"uniform": "uniform", "ours": ["a.ckpt", "b.ckpt"]}, seeds=[10, 11, 12])
        >>> [study.policy("ours", seed) for seed in study.seeds]
        ['a.ckpt', 'b.ckpt', 'a.ckpt']
    """

    name: str = "study"
    folder: str = "runs/compare"
    acquire: str | list[str] = "synthetic_acquire.yaml"
    methods: dict[str, str | list[str]] = field(default_factory=lambda: {"uniform": "uniform", "entropy": "entropy"})
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    initial_weights: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    method_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    ours: str | None = None
    full_supervision: str | None = None
    jobs: int = 1
    engine: Literal["local", "submitit", "ray"] = "local"
    engine_options: dict[str, Any] = field(default_factory=dict)
    retries: int = 1

    def __post_init__(self) -> None:
        if not self.methods or not self.seeds or not self.acquire:
            raise ConfigError("a study needs at least one of methods, one of seeds, and one configuration (acquire)")
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds={self.seeds}: each may stand there once")
        if self.ours is not None and self.ours not in self.methods:
            raise ConfigError(f"ours={self.ours!r} is none of the methods: {', '.join(self.methods)}")
        self._check_options()
        if self.jobs < 1:
            raise ConfigError(f"jobs={self.jobs} must be at least 1")
        if self.retries < 0:
            raise ConfigError(f"retries={self.retries} must not be negative")
        for name, policies in self.methods.items():
            if not policies:
                raise ConfigError(f"methods.{name} names no policy")
            if not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
                raise ConfigError(f"methods: the name {name!r} may hold letters, digits, '.', '-' and '_' only")

    def _check_options(self) -> None:
        unknown = set(self.method_options) - set(self.methods)
        if unknown:
            raise ConfigError(f"method_options name {', '.join(sorted(unknown))}, which is none of the methods")
        for key in _OWN:
            if any(key in options for options in (self.options, *self.method_options.values())):
                raise ConfigError(f"options.{key}: the study itself says that of every cell; leave it out")

    def policy(self, method: str, seed: int) -> str:
        """The policy of a method that plays a seed."""
        named = self.methods[method]
        policies = [named] if isinstance(named, str) else named
        return policies[self.seeds.index(seed) % len(policies)].format(seed=seed)


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of `ralseg acquire`: a method with a seed."""

    method: str
    seed: int
    folder: Path
    acquire: list[str]  # names of `ralseg acquire`'s configurations, for people
    content: dict[str, Any]  # what is in them
    policy: str
    options: dict[str, Any]  # what it has beside, by dotted names

    @property
    def title(self) -> str:
        """Name of its run in MLflow, and on the command line."""
        return f"{self.method}/seed{self.seed}"

    @property
    def log(self) -> Path:
        """Where its output goes: beside the cells, for a cell's folder may be moved aside."""
        return self.folder.parents[2] / "logs" / f"{self.method}-seed{self.seed}.txt"

    def check_files(self) -> None:
        """Its theta_0 and its policy must be there before anything is run."""
        weights = self.options.get(_WEIGHTS)
        if weights is not None and not Path(weights).is_file():
            raise ConfigError(f"initial_weights: no checkpoint at {weights!r}; `ralseg pretrain` makes them")
        if self.policy.endswith(".ckpt") and not Path(self.policy).is_file():
            raise ConfigError(f"methods.{self.method}: no policy at {self.policy!r}; `ralseg fit` makes them")

    def identity(self) -> str:
        """A hash of what its result depends on: configuration, options, theta_0, policy, ralseg's version.

        The data themselves are not in it.
        """
        weights = self.options.get(_WEIGHTS) or _inside(self.content, _WEIGHTS)
        parts = {
            "version": __version__,
            "cell": [self.method, self.seed],
            "config": self.content,
            "options": {key: value for key, value in self.options.items() if key != _WEIGHTS},
            "weights": file_hash(weights) if weights else None,
            "policy": policy_identity(self.policy),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def note(self) -> dict[str, Any] | None:
        """What was noted when the cell was started in this folder."""
        found = read_json(self.folder / CELL)
        return found if isinstance(found, dict) else None

    def result(self, of_any_options: bool = False) -> dict[str, Any] | None:
        """Its result, if it has been finished with these very options, or with any."""
        note, found = self.note(), read_json(self.folder / RESULT)
        if note is None or not isinstance(found, dict):
            return None
        if note.get("identity") != self.identity() and not of_any_options:
            return None
        return found | {"method": self.method}

    def config(self) -> dict[str, Any]:
        """The values of its `ralseg acquire`; an interrupted run in its folder is continued."""
        config = self.content
        for key, value in self.options.items():
            config = set_option(config, key, value)
        config = set_option(config, "trainer.default_root_dir", str(self.folder))
        return config | {"policy": self.policy, "seed_everything": self.seed, "ckpt": "last"}

    def command(self) -> str:
        """The same as a person would type it."""
        arguments = ["acquire", *(part for name in self.acquire for part in ("--config", name))]
        arguments += ["--policy", self.policy, "--seed_everything", str(self.seed)]
        for key, value in self.options.items():
            arguments += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
        return shlex.join(["ralseg", *arguments, "--trainer.default_root_dir", str(self.folder), "--ckpt", "last"])


def _inside(content: Any, key: str) -> Any:
    """The value of a dotted key in nested mappings; None where there is none."""
    for part in key.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def make_cells(config: Study) -> list[Cell]:
    """All cells, seed by seed: a study that is cut off has whole pairs."""
    content = command_config(config.acquire, "acquire")
    if "policy" in content:  # the study has policies of its own, and arguments are those of a policy
        content = {key: value for key, value in content.items() if key not in ("policy", "policy_args")}
    names = [config.acquire] if isinstance(config.acquire, str) else config.acquire
    cells = []
    for seed in config.seeds:
        for method in config.methods:
            options: dict[str, Any] = {"trainer.logger": False, "trainer.enable_progress_bar": False}
            options |= config.options | config.method_options.get(method, {})
            oracle = options.get("oracle", content.get("oracle"))
            named = str(oracle.get("class_path") if isinstance(oracle, dict) else oracle)
            if named in PEOPLE or named.startswith("ralseg.annotation."):
                raise ConfigError(
                    f"acquire.oracle={named}: people would have to label for every method and seed; a study reveals "
                    "masks that are there: options: {oracle: masks}"
                )
            if "." in named:
                allowed_imports.check(named, "options.oracle")
            if config.initial_weights is not None:
                options[_WEIGHTS] = config.initial_weights.format(seed=seed)
            policy = config.policy(method, seed)
            if "." in policy and not is_file(policy):
                allowed_imports.check(policy, f"methods.{method}")
            folder = Path(config.folder) / "cells" / method / f"seed{seed}"
            cells.append(Cell(method, seed, folder, names, content, policy, options))
    return cells


def find_cell(cells: list[Cell], title: str) -> Cell:
    """The cell of that title; the files of other cells may be missing."""
    for cell in cells:
        if cell.title == title:
            cell.check_files()
            return cell
    raise ConfigError(f"--cell {title}: the cells are {', '.join(cell.title for cell in cells)}")


# -- running ---------------------------------------------------------------------------------------


def run_cell(cell: Cell, acquire: Acquire) -> str | None:
    """Run a cell in this process; what went wrong, or None. A finished one is left as it is."""
    if cell.result() is not None:
        return None
    identity, note = cell.identity(), cell.note()
    if cell.folder.is_dir() and any(cell.folder.iterdir()) and (note or {}).get("identity") != identity:
        # of other options: it may not be gone on with, nor be lost
        aside = cell.folder.with_name(f"{cell.folder.name}.before-{identity}")
        with run_folder.locked(cell.folder):  # not from under a process that works there
            cell.folder.rename(run_folder.numbered(aside.parent, aside.name, ""))
    content = {"identity": identity, "method": cell.method, "seed": cell.seed, "command": cell.command()}
    write_atomically(cell.folder / CELL, json.dumps(content, indent=1) + "\n")
    try:
        acquire(cell.config())
    except RalsegError as error:
        return str(error)
    except Exception:  # a failed cell must not stop the others
        return traceback.format_exc(limit=-3)
    return None if cell.result() is not None else "it ended without a result"


def tags_of(cell: Cell, result: dict[str, Any]) -> dict[str, str]:
    """What MLflow's runs are filtered by."""
    return {
        "ralseg.method": cell.method,
        "ralseg.seed": str(cell.seed),
        "ralseg.dataset": str(result["dataset"]),
        "ralseg.policy": policy_tag(cell.policy),
        "ralseg.version": str(result["version"]),
        "ralseg.git_commit": str(result.get("commit", "unknown")),
        "ralseg.cell": str((cell.note() or {}).get("identity") or cell.identity()),
    }
