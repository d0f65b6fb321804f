"""What an acquisition has chosen, for people: a table, label masks, class frequencies, pictures."""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from ralseg.data.class_stats import class_counts
from ralseg.data.datamodule import SegmentationData
from ralseg.data.readers import SUFFIXES
from ralseg.engine.acquire_session import SET, AcquireSession
from ralseg.engine.session import Session
from ralseg.labels.layout import Box, Regions
from ralseg.labels.oracle import RevealedLabels
from ralseg.runtime.files import inside, write_atomically, write_png

OVERLAYS = 12
_NEW, _OLD = (255, 196, 0), (0, 150, 255)


def selection_table(session: AcquireSession) -> str:
    """The labelled regions in their order, as CSV. Boxes are in the image files' own pixels."""
    data, regions = session.data, session.regions
    images = data.splits[SET]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", "image", *regions.place_names, "x", "y", "w", "h", "score", "predicted_classes"])
    owners = regions.image_of(session.ledger.labelled).tolist()
    rows = zip(session.ledger.steps.tolist(), session.ledger.labelled.tolist(), owners, strict=True)
    for (step, region, image), score, shares in zip(rows, session.values, session.predicted, strict=True):
        name, place = data.dataset.names[images[image]], regions.place(region)
        classes = _said(shares, data.class_names)
        writer.writerow([step, name, *place, *regions.file_box(region), f"{score:.6g}", classes])
    return text.getvalue()


def episode_table(data: SegmentationData, regions: Regions, labelled: Tensor, steps: Tensor) -> str:
    """The regions of an episode of `ralseg fit` in the order in which they were labelled, as CSV.

    Args:
        data: The data.
        regions: The regions of the images that were played on.
        labelled: [B] what was labelled.
        steps: [B] at which step.
    """
    images = regions.images.indices
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["step", "image", "x", "y", "width", "height"])
    boxes, owners = regions.boxes(labelled).tolist(), regions.image_of(labelled).tolist()
    for step, image, box in zip(steps.tolist(), owners, boxes, strict=True):
        writer.writerow([step, data.dataset.names[images[image]], *box])
    return text.getvalue()


def _said(shares: Tensor, names: tuple[str, ...]) -> str:
    """``road 0.61, sky 0.30``: classes with at least 5 %, the largest first."""
    order = shares.float().argsort(descending=True).tolist()
    return ", ".join(f"{names[i]} {float(shares[i]):.2f}" for i in order if shares[i] >= 0.05)


def labelled_pixels(session: AcquireSession) -> Tensor:
    """Number of labelled pixels of each class, and of void at 255: [256]. One region is looked at after the other."""
    counts = torch.zeros(256, dtype=torch.int64)
    for region in session.ledger.labelled.tolist():
        counts += torch.bincount(session.labels[region].flatten().int(), minlength=256)
    return counts


def class_frequencies(session: AcquireSession, available: list[float] | None) -> dict[str, Any]:
    """Share of each class among the labelled pixels, beside the acquisition set's, and the entropy of both."""
    counts = labelled_pixels(session)[: len(session.data.class_names)].double()
    selected = (counts / counts.sum().clamp(min=1)).tolist()
    return {
        "classes": list(session.data.class_names),
        "selected": selected,
        "available": available,
        "selected_entropy": _entropy(selected),
        "available_entropy": None if available is None else _entropy(available),
    }


def _entropy(shares: list[float]) -> float:
    """Shannon entropy in nats."""
    return -sum(share * math.log(share) for share in shares if share > 0)


def frequencies_of_set(session: AcquireSession) -> list[float] | None:
    """Class shares of the whole acquisition set, for the report alone; None where masks are missing."""
    dataset, images = session.data.dataset, session.data.splits[SET]
    if not all(map(dataset.has_mask, images)):
        return None
    counts = np.sum([class_counts(dataset, i) for i in images], axis=0)
    return [float(share) for share in counts / max(counts.sum(), 1)]


def write_masks(session: AcquireSession, folder: Path) -> None:
    """One index PNG for each image with labels: class numbers, 255 elsewhere, in the size of the image's file."""
    for name, mask in image_masks(session.data, session.labels, session.ledger.labelled):
        write_png(folder / mask_name(name), mask)


def image_masks(
    data: SegmentationData, labels: RevealedLabels, labelled: Tensor
) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """The mask of each image with labels, in the size of its file, with the image's name; 255 where nothing is known.

    Args:
        data: The data.
        labels: What is known of the acquisition set.
        labelled: [B] the regions that are shown.
    """
    for position, regions in _grouped(labels.regions, labelled).items():
        index = data.splits[SET][position]
        own_height, own_width = data.content(index)
        mask = labels.mask(regions).numpy()[:own_height, :own_width]
        height, width = data.dataset.image_size(index)
        if mask.shape != (height, width):
            mask = np.asarray(Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST))
        yield data.dataset.names[index], mask


def mask_name(image_name: str) -> Path:
    """Where the mask of an image goes, relative to the folder of masks; never outside it."""
    path = Path(inside(image_name))
    name = path.stem if path.suffix.lower() in SUFFIXES else path.name
    return path.parent / f"{name}.png"


def by_image(session: Session) -> dict[int, list[int]]:
    """Labelled regions by the position of their image, in the order of labelling."""
    return _grouped(session.regions, session.ledger.labelled)


def _grouped(regions: Regions, labelled: Tensor) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for region, image in zip(labelled.tolist(), regions.image_of(labelled).tolist(), strict=True):
        groups.setdefault(image, []).append(region)
    return groups


def draw_overlays(session: AcquireSession, folder: Path, count: int = OVERLAYS) -> None:
    """Pictures of the images with most labelled regions: what was chosen is bright, framed, and numbered by step."""
    counts = Counter({position: len(regions) for position, regions in by_image(session).items()})
    steps = dict(zip(session.ledger.labelled.tolist(), session.ledger.steps.tolist(), strict=True))
    for position, _ in counts.most_common(count):
        index = session.data.splits[SET][position]
        name = mask_name(session.data.dataset.names[index])
        write_png(folder / name.parent / f"{name.stem}.png", overlay(session, position, steps))


def overlay(session: AcquireSession, position: int, steps: dict[int, int]) -> NDArray[np.uint8]:
    """One image of the acquisition set with its labelled regions: [height, width, 3]."""
    data = session.data
    pixels = data.dataset.read_image(data.splits[SET][position])
    regions = by_image(session)[position]
    boxes = [(steps[region], session.regions.file_box(region)) for region in regions]
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


def write_selection(session: AcquireSession, folder: Path) -> None:
    """Write ``selection.csv``, the label masks and the overlay pictures."""
    write_atomically(folder / "selection.csv", selection_table(session))
    write_masks(session, folder / "labels")
    draw_overlays(session, folder / "overlays")
