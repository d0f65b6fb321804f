"""Masks as files: class numbers with a palette, so that a viewer shows classes and a program reads numbers."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ralseg.annotation.request import ClassColour
from ralseg.data.readers import Colour, Palette, has_colours, map_ids, read_colour_mask, read_index_mask
from ralseg.errors import DataError
from ralseg.labels.vault import IGNORE

Mask = NDArray[np.uint8]
"""[height, width] of class numbers; 255: cannot be told."""
_FREE = ((250, 250, 250), (245, 245, 245), (240, 240, 240))
"""Colours of what cannot be told, of which one is free; few palettes have them, and data sets may use white."""


def palette_of(classes: tuple[ClassColour, ...]) -> Palette:
    """The number of each colour in our files, what cannot be told among them; empty where classes share a colour."""
    palette: Palette = {entry.rgb: entry.number for entry in classes}
    if len(palette) < len(classes):
        return {}
    return palette | {_ignore_colour(classes): IGNORE}


def _ignore_colour(classes: tuple[ClassColour, ...]) -> tuple[int, int, int]:
    taken = {entry.rgb for entry in classes}
    return next((colour for colour in _FREE if colour not in taken), (1, 2, 3))


def encode_mask(mask: Mask, classes: tuple[ClassColour, ...]) -> bytes:
    """A PNG of class numbers, shown in the classes' colours.

    Examples:
        >>> png = encode_mask(np.zeros((4, 6), np.uint8), (ClassColour(0, "road", "#804080"),))
        >>> Image.open(io.BytesIO(png)).convert("RGB").getpixel((0, 0))
        (128, 64, 128)
    """
    colours = np.zeros((256, 3), np.uint8)
    for entry in classes:
        colours[entry.number] = entry.rgb
    colours[IGNORE] = _ignore_colour(classes)
    image = Image.fromarray(mask)
    image.putpalette(colours.tobytes())  # makes it a palette image
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def read_mask(path: Path, classes: tuple[ClassColour, ...], palette: Mapping[Colour, int] | None = None) -> Mask:
    """Class numbers of a file that people may have made: numbers, or colours where all of them are classes' colours.

    Args:
        path: The file.
        classes: The classes that may occur.
        palette: Further colours that stand for classes: those of the data set's own masks.
    """
    colours = {**(palette or {}), **palette_of(classes)}
    unknown: DataError | None = None
    if colours and has_colours(path):
        try:
            return read_colour_mask(path, colours)
        except DataError as error:
            unknown = error
    try:
        numbers = {entry.number: entry.number for entry in classes} | {IGNORE: IGNORE}
        return map_ids(path, read_index_mask(path), numbers, f" ({_listed(classes)})")
    except DataError:
        if unknown is None:
            raise
        raise DataError(f"{unknown}; the classes' colours: {_listed(classes)}") from None


def _listed(classes: tuple[ClassColour, ...]) -> str:
    return ", ".join(f"{entry.number} {entry.name} {entry.colour}" for entry in classes[:12])
