"""Masks as pictures that people and tools return: class numbers or colours, told apart without guessing."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from ralseg.annotation.files.container import Members
from ralseg.annotation.files.names import without_ending
from ralseg.annotation.files.record import UNKNOWN, Box, FoundImage, LabelRecord, Mask, by_image
from ralseg.annotation.request import ClassColour
from ralseg.data.readers import (
    Colour,
    Palette,
    has_colours,
    image_size,
    map_ids,
    read_colour_mask,
    read_image,
    read_index_mask,
)
from ralseg.errors import DataError
from ralseg.runtime.files import inside

Meaning = Literal["auto", "numbers", "colours"]
"""What the pixels of a picture stand for."""
_PLACES = np.array([1 << 16, 1 << 8, 1], np.int64)


class PictureReader:
    """Reads a mask whose pixels are class numbers, or colours of classes.

    Args:
        classes: The classes that may occur.
        palette: Class number of each colour, 255 = unknown; empty where classes cannot be told by colours.
        pixels: ``auto`` takes whichever reading makes sense. Where both do and differ, it refuses to guess.
        nearest: Take the class with the nearest colour where a colour is no class's: edges were smoothed.
    """

    def __init__(
        self, classes: Iterable[ClassColour], palette: Palette, pixels: Meaning = "auto", nearest: bool = False
    ) -> None:
        self.numbers = {entry.number: entry.number for entry in classes} | {UNKNOWN: UNKNOWN}
        self.palette, self.pixels, self.nearest = palette, pixels, nearest

    def read(self, path: Path) -> Mask:
        """The class numbers of a picture: [height, width]."""
        shows_colours = bool(self.palette) and has_colours(path)
        if self.nearest and shows_colours:
            return self._nearest(path)
        if self.pixels == "numbers" or (self.pixels == "auto" and not shows_colours):
            return self._by_numbers(path)
        if self.pixels == "colours":
            return self._by_colours(path)
        return self._by_either(path)

    def _by_either(self, path: Path) -> Mask:
        """Whichever reading is possible; an error where they contradict one another."""
        try:
            numbers = self._by_numbers(path)
        except DataError:
            return self._by_colours(path)
        codes = read_image(path) @ _PLACES  # 0xRRGGBB
        pairs = np.unique(codes | numbers.astype(np.int64) << 24).tolist()
        if all(self.palette.get(_rgb(pair), pair >> 24) == pair >> 24 for pair in pairs):
            return numbers
        self._by_colours(path)  # says which colours are of no class
        raise DataError(
            f"{path}: its palette's colours say other classes than its numbers do; say which are meant by "
            "--pixels colours or --pixels numbers"
        )

    def _by_colours(self, path: Path) -> Mask:
        if not self.palette:
            raise DataError(f"{path}: two classes share a colour, so that colours cannot tell; give --pixels numbers")
        remedy = (
            ". Edges that were smoothed (antialiased) hold colours of no class: turn that off in the tool, or take the "
            "nearest class by --nearest true"
        )
        return read_colour_mask(path, self.palette, remedy)

    def _by_numbers(self, path: Path) -> Mask:
        return map_ids(path, read_index_mask(path), self.numbers)

    def _nearest(self, path: Path) -> Mask:
        """The class whose colour is nearest, by the distance of red, green and blue."""
        codes = read_image(path) @ _PLACES
        found, where = np.unique(codes, return_inverse=True)
        colours = np.array([_rgb(code) for code in found.tolist()])
        distances = ((colours[:, None] - np.array(list(self.palette))) ** 2).sum(-1)
        numbers = np.array(list(self.palette.values()), np.uint8)[distances.argmin(1)]
        nearest: Mask = numbers[where.ravel()].reshape(codes.shape)
        return nearest


def _rgb(code: int) -> Colour:
    return code >> 16 & 255, code >> 8 & 255, code & 255


def found_pictures(members: Members, below: str, reader: PictureReader) -> list[FoundImage]:
    """The PNGs of a folder or archive as labelled images, named by where they lie.

    Args:
        members: Where they are.
        below: The folder of masks, anywhere in ``members``; empty: all of it.
        reader: Reads one of them.
    """
    found = []
    for member in members.names:
        name = _name_below(member, below)
        if name is not None:
            found.append(_found(members, member, name, reader))
    return found


def _name_below(member: str, below: str) -> str | None:
    """The name of an image whose mask is a member; None where it is no mask."""
    if not member.lower().endswith(".png"):
        return None
    parts = member.replace("\\", "/").split("/")
    if not below:
        return "/".join(parts)
    return "/".join(parts[parts.index(below) + 1 :]) if below in parts[:-1] else None


def _found(members: Members, member: str, name: str, reader: PictureReader) -> FoundImage:
    with members.on_disk(member) as path:
        height, width = image_size(path)

    def cut(box: Box) -> Mask:
        x, y, box_width, box_height = box
        with members.on_disk(member) as path:
            return reader.read(path)[y : y + box_height, x : x + box_width]

    return FoundImage(name, width, height, cut)


def mask_files(records: Iterable[LabelRecord]) -> dict[str, list[LabelRecord]]:
    """Records by the name of their image's file of masks, without its ending; two images never share one."""
    names: dict[str, str] = {}
    files: dict[str, list[LabelRecord]] = {}
    for image, group in by_image(records).items():
        file = without_ending(inside(image).as_posix())
        other = names.setdefault(file, image)
        if other != image:
            raise DataError(f"the masks of {other!r} and {image!r} would both be {file}.png; rename one of the images")
        files[file] = group
    return files
