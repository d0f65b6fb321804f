"""Shapes as files hold them, checked when they are read, and made into pixels where a box is asked for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from ralseg.annotation.files.outlines import Points, covered
from ralseg.annotation.files.record import UNKNOWN, Box, ClassNumbers, FoundImage, Mask
from ralseg.annotation.files.rle import Bits, Counts, bits_of
from ralseg.errors import DataError

FARTHEST = 10_000_000.0
"""Coordinates beyond this are mistakes or attacks: they lie outside of any image."""


class Shape(Protocol):
    """Something drawn in an image under a label."""

    @property
    def label(self) -> str:
        """The label."""

    def bits(self, box: Box) -> Bits:
        """Which pixels of a box it covers: [height, width]."""


@dataclass(frozen=True, eq=False)
class MaskShape:
    """A mask as run lengths, row by row (CVAT) or column by column (COCO).

    Attributes:
        label: Its label.
        box: Where it lies in the image.
        counts: Run lengths that fill the box.
        order: ``C`` for rows, ``F`` for columns.
    """

    label: str
    box: Box
    counts: Counts
    order: Literal["C", "F"]

    def bits(self, box: Box) -> Bits:
        """Which pixels of a box it covers."""
        x, y, width, height = box
        left, top, own_width, own_height = self.box
        wanted = np.zeros((height, width), bool)
        rows = slice(max(y, top), min(y + height, top + own_height))
        columns = slice(max(x, left), min(x + width, left + own_width))
        if rows.start < rows.stop and columns.start < columns.stop:
            own = bits_of(self.counts).reshape((own_height, own_width), order=self.order)
            wanted[_moved(rows, y), _moved(columns, x)] = own[_moved(rows, top), _moved(columns, left)]
        return wanted


def _moved(part: slice, origin: int) -> slice:
    return slice(part.start - origin, part.stop - origin)


@dataclass(frozen=True, eq=False)
class PolygonShape:
    """Polygons that share a label; a pixel belongs to them if its middle lies in one."""

    label: str
    polygons: Sequence[Points]

    def bits(self, box: Box) -> Bits:
        """Which pixels of a box they cover."""
        return covered(self.polygons, box)


@dataclass(frozen=True)
class UnreadShape:
    """A shape without an area, or of a kind that cannot be read: an error where somebody asks for its image."""

    label: str
    kind: str
    where: str

    def bits(self, box: Box) -> Bits:
        """Say what it is."""
        raise DataError(
            f"{self.where}: a {self.kind} with label {self.label[:80]!r} covers no pixels that can be read; draw "
            "masks, polygons or boxes instead, or delete it"
        )


def drawn_image(
    name: str, width: int, height: int, shapes: Iterable[Shape], classes: ClassNumbers, where: str
) -> FoundImage:
    """An image with shapes drawn over it one after the other: the later one covers the earlier."""
    drawn = tuple(shapes)

    def cut(box: Box) -> Mask:
        mask = np.full((box[3], box[2]), UNKNOWN, np.uint8)
        for shape in drawn:
            number = classes.find(shape.label, where)
            if number is not None:
                mask[shape.bits(box)] = number
        return mask

    return FoundImage(name, width, height, cut)


def points_of(values: Iterable[float], where: str) -> Points:
    """Corners from x and y by turns; fewer than three, or coordinates that no image has, are a DataError."""
    flat = np.array(list(values), float)
    if len(flat) < 6 or len(flat) % 2:
        raise DataError(f"{where}: a polygon with {len(flat)} coordinates; it needs x and y of three points or more")
    if not (np.abs(flat) <= FARTHEST).all():  # also false for NaN
        raise DataError(f"{where}: a polygon with coordinates that lie outside of any image, or are no numbers")
    return flat.reshape(-1, 2)
