"""`ralseg explain`: a page about why an acquisition has chosen the regions that it has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from ralseg.config import command_config
from ralseg.config_errors import parsed
from ralseg.data.datamodule import SegmentationData
from ralseg.engine.reasons import FILE, StepReasons, read_reasons
from ralseg.errors import ConfigError
from ralseg.label_command import config_of
from ralseg.runtime.files import write_atomically
from ralseg.studies.explanation import page, wanted_steps

PAGE = "explain.html"
_MOST = 24


def run_explain(arguments: list[str], load_data: Callable[[dict[str, Any]], SegmentationData | None]) -> int:
    """Run `explain` with what was typed.

    Args:
        arguments: What was typed after ``explain``.
        load_data: Gives the data that a configuration describes; None where they are not at hand.
    """
    parser = ArgumentParser(
        prog="ralseg explain",
        description="Write a page about why a run chose its regions: features, scores, prediction and label.",
        exit_on_error=False,
    )
    parser.add_argument("run", type=str, help="The folder of an acquire or label run, finished or not.")
    parser.add_argument("--step", type=int | None, help="Show the regions of this step alone, counted from 1.")
    parser.add_argument("--regions", type=str | None, help="Show these regions alone, by their numbers: 12,40.")
    parser.add_argument(
        "--most", type=int, default=_MOST, help="Regions that are shown where none are named: as many of each step."
    )
    parser.add_argument("--out", type=str | None, help=f"The file to write; {PAGE} in the run's folder by default.")
    config = parsed(parser, "explain", arguments)
    if config.most < 1:
        raise ConfigError(f"--most {config.most}: at least 1 region must be shown")
    folder = Path(config.run)
    steps = steps_of(folder)
    shown = wanted_steps(steps, config.step, _numbers(config.regions), config.most)
    data = load_data(command_config([str(config_of(folder))], "acquire"))
    out = Path(config.out or folder / PAGE)
    write_atomically(out, page(steps, shown, str(folder), data))
    number = sum(len(step.regions) for step in shown)
    print(f"{out}: why {number} of {sum(len(step.regions) for step in steps)} regions were chosen")
    return 0


def steps_of(folder: Path) -> list[StepReasons]:
    """What a run's folder says of its steps; an error where it says nothing."""
    if not folder.is_dir():
        raise ConfigError(f"ralseg explain {folder}: no such folder; give that of a run of `ralseg acquire` or `label`")
    if (folder / "cells").is_dir():
        raise ConfigError(f"{folder}: holds a study; give one of its cells, {folder}/cells/METHOD/seed0 for example")
    steps = read_reasons(folder / FILE)
    if steps:
        return steps
    if (folder / "selection.csv").is_file():
        raise ConfigError(
            f"{folder}: holds no {FILE}; the run was made by a ralseg that did not keep why it chose. What it chose is "
            "in selection.csv; steps that it still takes are kept from now on"
        )
    if any(folder.glob("config*.yaml")) and not (folder / "history.json").is_file():
        raise ConfigError(f"{folder}: no step of this run is done yet; ask again after its first")
    raise ConfigError(f"{folder}: holds no run of `ralseg acquire` or `ralseg label`")


def _numbers(text: str | None) -> list[int]:
    """Regions as they were typed."""
    try:
        return [int(number) for number in (text or "").split(",") if number.strip()]
    except ValueError:
        raise ConfigError(f"--regions {text}: is no list of numbers, 12,40 for example") from None
