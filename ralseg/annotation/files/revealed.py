"""What a run whose masks were revealed has labelled so far, read again from its folder and its data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ralseg.annotation.files.record import LabelRecord
from ralseg.annotation.people import FOLDER, class_colours
from ralseg.annotation.request import ClassColour
from ralseg.data.datamodule import SegmentationData
from ralseg.engine.acquire_session import SET
from ralseg.engine.loop import saved_session
from ralseg.engine.selection import image_masks
from ralseg.errors import ConfigError, DataError
from ralseg.labels.oracle import RevealedLabels
from ralseg.runtime.checkpoints import read_checkpoint
from ralseg.runtime.run_folder import resume_point

LoadData = Callable[[dict[str, Any]], SegmentationData]
"""Makes the data that a configuration describes; the commands have a parser for it."""


def revealed_records(run: Path, load_data: LoadData) -> tuple[list[LabelRecord], tuple[ClassColour, ...]]:
    """The masks of all images with labelled regions, unknown elsewhere, and their classes.

    Args:
        run: The folder of an `acquire` run with `--oracle masks`.
        load_data: Makes the run's data.
    """
    if run_config(run).get("oracle", "masks") != "masks":
        raise DataError(f"{run}: its oracle keeps the labels itself, and there is no {run / FOLDER}; see labels/")
    checkpoint = resume_point(run, "last")
    if checkpoint is None:
        raise DataError(f"{run}: holds neither a request nor checkpoints; nothing is labelled there yet")
    state = saved_session(read_checkpoint(Path(checkpoint)))
    data = run_data(run, load_data)
    data.setup()
    regions = data.regions(SET)
    if state.get("rules", {}).get("layout") != regions.description():
        raise ConfigError(f"{run}: the data are cut into other regions now than when the run was made")
    labelled, labels = state["ledger"]["labelled"], RevealedLabels(regions)
    labels.add(labelled, data.mask_oracle(SET).label(labelled))
    records = [
        LabelRecord(name, mask.shape[1], mask.shape[0], (0, 0, mask.shape[1], mask.shape[0]), mask)
        for name, mask in image_masks(data, labels, labelled)
    ]
    return records, class_colours(data.labelling_job(SET))


def run_config(run: Path) -> dict[str, Any]:
    """The configuration that a run of `acquire` was started with."""
    path = run / "config.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give the folder of a run of `ralseg acquire`") from error
    if not isinstance(content, dict) or "policy" not in content:
        raise DataError(f"{path}: is of no run of `ralseg acquire`, which alone labels regions")
    return content


def run_data(run: Path, load_data: LoadData) -> SegmentationData:
    """The data of a run, split as they were; not set up."""
    config = run_config(run)
    options = dict(config.get("data") or {})
    if (run / "splits.json").is_file():
        options["splits"] = str(run / "splits.json")
    return load_data(config | {"data": options})
