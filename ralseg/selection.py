"""What an acquisition has chosen, for people: a table, label masks, class frequencies, pictures."""

import csv
import io
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from ralseg.acquisition import SET, Acquisition
from ralseg.data.readers import SUFFIXES
from ralseg.data.splits import class_counts
from ralseg.files import write_atomically, write_png
from ralseg.people import Box, file_box

COLUMNS = ("step", "image", "row", "column", "x", "y", "w", "h", "score", "predicted_classes")
OVERLAYS = 12
_NEW, _OLD = (255, 196, 0), (0, 150, 255)


def selection_table(done: Acquisition) -> str:
    """The labelled regions in their order, as CSV. Boxes are in the image files' own pixels."""
    data, grid = done.data, done.data.grid
    images = data.splits[SET]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    rows = zip(done.ledger.steps.tolist(), done.ledger.labelled.tolist(), done.values, done.predicted, strict=True)
    for step, region, score, shares in rows:
        row, column = divmod(region % grid.cells, grid.columns)
        name = data.dataset.names[images[region // grid.cells]]
        classes = _said(shares, data.class_names)
        writer.writerow([step, name, row, column, *file_box(data, SET, region), f"{score:.6g}", classes])
    return text.getvalue()


def _said(shares: Tensor, names: tuple[str, ...]) -> str:
    """``road 0.61, sky 0.30``: classes with at least 5 %, the largest first."""
    order = shares.float().argsort(descending=True).tolist()
    return ", ".join(f"{names[i]} {float(shares[i]):.2f}" for i in order if shares[i] >= 0.05)


def class_frequencies(done: Acquisition, available: list[float] | None) -> dict[str, Any]:
    """Share of each class among the labelled pixels, beside the acquisition set's, and the entropy of both."""
    cells = [done.labels[region] for region in done.ledger.labelled.tolist()]
    pixels = torch.stack(cells).flatten().int()
    counts = torch.bincount(pixels, minlength=256)[: len(done.data.class_names)].double()
    selected = (counts / counts.sum().clamp(min=1)).tolist()
    return {
        "classes": list(done.data.class_names),
        "selected": selected,
        "available": available,
        "selected_entropy": _entropy(selected),
        "available_entropy": None if available is None else _entropy(available),
    }


def _entropy(shares: list[float]) -> float:
    """Shannon entropy in nats."""
    return -sum(share * math.log(share) for share in shares if share > 0)


def frequencies_of_set(done: Acquisition) -> list[float] | None:
    """Class shares of the whole acquisition set, for the report alone; None where masks are missing."""
    dataset, images = done.data.dataset, done.data.splits[SET]
    if not all(map(dataset.has_mask, images)):
        return None
    counts = np.sum([class_counts(dataset, i) for i in images], axis=0)
    return [float(share) for share in counts / max(counts.sum(), 1)]


def write_masks(done: Acquisition, folder: Path) -> None:
    """One index PNG for each image with labels: class numbers, 255 elsewhere, in the size of the image's file."""
    data = done.data
    for position, regions in by_image(done).items():
        index = data.splits[SET][position]
        mask = done.labels.mask(regions).numpy()
        height, width = data.dataset.image_size(index)
        if mask.shape != (height, width):
            mask = np.asarray(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))
        write_png(folder / mask_name(data.dataset.names[index]), mask)


def mask_name(image_name: str) -> Path:
    """Where the mask of an image goes, relative to the folder of masks; never outside it."""
    path = Path(image_name)
    name = path.stem if path.suffix.lower() in SUFFIXES else path.name
    parents = ["__" if part == ".." else part for part in path.parts[:-1] if part != path.anchor]
    return Path(*parents, f"{name}.png")


def by_image(done: Acquisition) -> dict[int, list[int]]:
    """Labelled regions by the position of their image, in the order of labelling."""
    groups: dict[int, list[int]] = {}
    for region in done.ledger.labelled.tolist():
        groups.setdefault(region // done.data.grid.cells, []).append(region)
    return groups


def draw_overlays(done: Acquisition, folder: Path, count: int = OVERLAYS) -> None:
    """Pictures of the images with most labelled regions: what was chosen is bright, framed, and numbered by step."""
    counts = Counter({position: len(regions) for position, regions in by_image(done).items()})
    steps = dict(zip(done.ledger.labelled.tolist(), done.ledger.steps.tolist(), strict=True))
    for position, _ in counts.most_common(count):
        index = done.data.splits[SET][position]
        name = mask_name(done.data.dataset.names[index])
        write_png(folder / name.parent / f"{name.stem}.png", overlay(done, position, steps))


def overlay(done: Acquisition, position: int, steps: dict[int, int]) -> NDArray[np.uint8]:
    """One image of the acquisition set with its labelled regions: [height, width, 3]."""
    data = done.data
    pixels = data.dataset.read_image(data.splits[SET][position])
    regions = by_image(done)[position]
    boxes = [(steps[region], file_box(data, SET, region)) for region in regions]
    return draw_boxes(pixels, boxes, last_step=max(steps.values(), default=0))


def draw_boxes(pixels: NDArray[np.uint8], boxes: list[tuple[int, Box]], last_step: int) -> NDArray[np.uint8]:
    """An image in which only some boxes are bright: framed from blue to yellow by their step, and numbered."""
    dimmed = (pixels * 0.35 + 128 * 0.25).astype(np.uint8)
    for _, (x, y, width, height) in boxes:
        dimmed[y : y + height, x : x + width] = pixels[y : y + height, x : x + width]
    picture = Image.fromarray(dimmed)
    scale = max(1, math.ceil(480 / picture.width))
    picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(picture)
    for step, (x, y, width, height) in boxes:
        share = step / max(last_step, 1)
        colour = tuple(round(a + (b - a) * share) for a, b in zip(_OLD, _NEW, strict=True))
        left, top = x * scale, y * scale
        draw.rectangle((left, top, (x + width) * scale - 1, (y + height) * scale - 1), outline=colour, width=2)
        text = str(step + 1)
        draw.rectangle((left + 3, top + 3, left + 7 + 7 * len(text), top + 16), fill=colour)
        draw.text((left + 5, top + 4), text, fill=(0, 0, 0))
    return np.asarray(picture)


def write_selection(done: Acquisition, folder: Path) -> None:
    """All of it but the class frequencies."""
    write_atomically(folder / "selection.csv", selection_table(done))
    write_masks(done, folder / "labels")
    draw_overlays(done, folder / "overlays")
