"""`ralseg data check`: look at the data before a run depends on it."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

from ralseg.data.base import SegmentationDataset
from ralseg.data.datamodule import SegmentationData
from ralseg.data.readers import IGNORE
from ralseg.data.splits import SETS, state_train_distance
from ralseg.errors import DataError, RalsegError
from ralseg.runtime.files import write_atomically

SHEET_IMAGES = 4  # of each set


def check_data(data: SegmentationData, out: Path) -> int:
    """Read every image and mask; show counts and class frequencies; name every problem found.

    Writes ``report.json`` and ``contact_sheet.png`` into ``out``. Returns 0, or 3 when there are problems.
    """
    console = Console()
    dataset = data.dataset
    problems: list[str] = []
    counts = {subset: np.zeros(len(dataset.class_names) + 1, np.int64) for subset in dict.fromkeys(dataset.subsets)}
    unlabelled = {subset: 0 for subset in counts}
    for index, subset in enumerate(dataset.subsets):
        unlabelled[subset] += not dataset.has_mask(index)
        counts[subset] += _check_image(dataset, index, problems)
    if not problems:
        _check_splits(data, problems)

    console.print(_frequency_table(dataset, counts, unlabelled))
    sets: dict[str, int] = {}
    scenes: dict[str, int] = {}
    if not problems:
        scenes = _count_scenes(data, problems)
    if not problems:
        sets = {name: len(data.splits[name]) for name in SETS}
        distance = state_train_distance(dataset, data.splits)
        console.print("sets: " + ", ".join(f"{name} {size}" for name, size in sets.items()))
        if scenes:
            console.print("scenes: " + ", ".join(f"{name} {number}" for name, number in scenes.items()))
        if distance is not None:
            console.print(f"Jensen-Shannon distance of state_set's classes from train_set's: {distance:.4f}")
        out.mkdir(parents=True, exist_ok=True)
        contact_sheet(data).save(out / "contact_sheet.png")
        console.print(f"contact sheet: {out / 'contact_sheet.png'}")
    for problem in problems:
        console.print(f"problem: {problem}", style="red", soft_wrap=True, markup=False, highlight=False)
    report = {
        "dataset": type(dataset).__name__,
        "images": {subset: dataset.subsets.count(subset) for subset in counts},
        "without_mask": unlabelled,
        "pixels": {
            subset: dict(zip([*dataset.class_names, "void"], map(int, c), strict=True)) for subset, c in counts.items()
        },
        "sets": sets,
        "scenes": scenes,
        "problems": problems,
    }
    write_atomically(out / "report.json", json.dumps(report, indent=1) + "\n")
    console.print(f"{len(problems)} problems in {len(dataset)} images; report: {out / 'report.json'}")
    return DataError.exit_code if problems else 0


def _check_image(dataset: SegmentationDataset, index: int, problems: list[str]) -> NDArray[np.int64]:
    """Decode an image and its mask; pixels of each class, void last."""
    num_classes = len(dataset.class_names)
    try:
        dataset.read_image(index)
        if dataset.has_mask(index):
            pixels = np.bincount(dataset.read_mask(index).ravel(), minlength=256)
            return np.append(pixels[:num_classes], pixels[IGNORE])
    except DataError as error:
        problems.append(str(error))
    return np.zeros(num_classes + 1, np.int64)


def _check_splits(data: SegmentationData, problems: list[str]) -> None:
    try:
        data.setup()
        for name in ("reward_set", "test_set", *data.fit_on):
            if not data.labelled_images(name):
                problems.append(f"the {name} is empty; check data.splits")
        for index in range(len(data.dataset)):
            data.images[index]
    except RalsegError as error:
        problems.append(str(error))


def _count_scenes(data: SegmentationData, problems: list[str]) -> dict[str, int]:
    """Number of scenes in each set; sets of which no scene is known are left out."""
    try:
        known = {name: {data.dataset.scene(index) for index in data.splits[name]} - {None} for name in SETS}
    except DataError as error:
        problems.append(str(error))
        return {}
    return {name: len(scenes) for name, scenes in known.items() if scenes}


def _frequency_table(
    dataset: SegmentationDataset, counts: dict[str, NDArray[np.int64]], unlabelled: dict[str, int]
) -> Table:
    table = Table(title=f"{type(dataset).__name__}: share of pixels in %")
    table.add_column("class")
    for subset in counts:
        table.add_column(subset, justify="right")
    for row, name in enumerate([*dataset.class_names, "void"]):
        shares = [100 * count[row] / max(count.sum(), 1) for count in counts.values()]
        table.add_row(name, *(f"{share:.2f}" for share in shares))
    table.add_section()
    table.add_row("images", *(str(dataset.subsets.count(subset)) for subset in counts))
    table.add_row("without mask", *(str(unlabelled[subset]) for subset in counts))
    return table


def contact_sheet(data: SegmentationData) -> Image.Image:
    """Some images of each set with their classes below them, one row a set."""
    rows = []
    for name in SETS:
        indices = data.splits[name]
        chosen = [indices[i] for i in np.linspace(0, len(indices) - 1, min(SHEET_IMAGES, len(indices))).astype(int)]
        tiles = [_tile(data, index) for index in chosen]
        tiles += [np.full((2 * data.height, data.width, 3), 255, np.uint8)] * (SHEET_IMAGES - len(tiles))
        rows.append(np.hstack(tiles))
    sheet = Image.fromarray(np.vstack(rows))
    sheet.thumbnail((2000, 4000))
    return sheet


def _tile(data: SegmentationData, index: int) -> NDArray[np.uint8]:
    image = data.images[index].movedim(0, -1).numpy()
    colours = np.zeros((256, 3), np.uint8)
    colours[: len(data.class_names)] = data.dataset.colours
    if not data.dataset.has_mask(index):
        return np.vstack([image, np.full_like(image, 255)])
    mask = np.asarray(Image.fromarray(data.dataset.read_mask(index)).resize((data.width, data.height), 0))
    return np.vstack([image, colours[mask]])
