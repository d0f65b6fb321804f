"""Masks as a data set's own masks are: its values or colours, its names, so that they can be put into it."""

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
from PIL import Image

from ralseg.annotation.files.container import Member
from ralseg.annotation.files.record import UNKNOWN, LabelRecord, Mask
from ralseg.data.base import SegmentationDataset
from ralseg.data.description import FILE
from ralseg.data.folder import Folder
from ralseg.errors import ConfigError, DataError

Key = TypeVar("Key")


def own_masks(records: Iterable[LabelRecord], dataset: SegmentationDataset) -> Iterator[Member]:
    """A mask for each image, below ``masks/``, that the data set reads as these labels.

    Args:
        records: Labels of whole images.
        dataset: A folder that `Folder` reads; other data sets have formats of their own.
    """
    if not isinstance(dataset, Folder) or dataset.root is None:
        raise ConfigError(
            f"--like_data: the data set is a {type(dataset).__name__}; only masks of a Folder can be made"
        )
    pixels = _pixels(dataset)
    places = {name: place for place, name in enumerate(dataset.names)}
    for record in records:
        if record.image not in places:
            raise DataError(f"{dataset.root}: has no image {record.image!r} any more, but the run labelled it")
        path = dataset.mask_paths[places[record.image]].relative_to(dataset.root)
        yield path.with_suffix(".png").as_posix(), _png(record.mask, pixels)


def _pixels(dataset: Folder) -> dict[int, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """What a pixel of each class looks like in the data set's masks, and one of no class."""
    said, where = dataset.description, f"{dataset.root}/{FILE}"
    if said.palette is not None:
        return {number: np.array(colour, np.uint8) for number, colour in _turned(said.palette, where).items()}
    return {number: np.array(value, np.uint8) for number, value in _turned(said.table or {}, where).items()}


def _turned(table: Mapping[Key, int], where: str) -> dict[int, Key]:
    """The first value or colour of each class."""
    turned: dict[int, Key] = {}
    for key, number in table.items():
        turned.setdefault(number, key)
    if UNKNOWN not in turned:
        raise DataError(f"{where}: has no value or colour for pixels without a label; say one by the key 'ignore'")
    return turned


def _png(mask: Mask, pixels: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]) -> bytes:
    lookup = np.zeros((256, *pixels[UNKNOWN].shape), np.uint8)
    for number, pixel in pixels.items():
        lookup[number] = pixel
    buffer = io.BytesIO()
    Image.fromarray(lookup[mask]).save(buffer, "PNG")
    return buffer.getvalue()
