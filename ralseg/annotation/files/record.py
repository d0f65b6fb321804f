"""What all formats share: the labels of a box of an image, on their way into a file or out of one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from ralseg.annotation.request import ClassColour
from ralseg.errors import DataError

UNKNOWN = 255
"""The mask value of pixels that nobody has labelled, or could."""
MAX_PIXELS = 100_000_000
"""Images beyond this are refused before room is made for them; the same limit as for files of images."""
FRAME = "wanted region"
"""The label of the boxes that show people where to label; never a class."""

Box = tuple[int, int, int, int]
"""x, y, width, height in pixels of the image's file."""
Mask = NDArray[np.uint8]
"""[height, width] of class numbers, 255 = unknown."""


@dataclass(frozen=True, eq=False)
class LabelRecord:
    """The labels of one box of an image.

    Attributes:
        image: Name of the image.
        width: Of the whole image.
        height: Of the whole image.
        box: Where the labels are.
        mask: Class numbers of the box, 255 = unknown.
        rank: Place in a request, 1 = most wanted; None where nobody is asked.

    Examples:
        >>> LabelRecord("a.png", 6, 4, (1, 1, 2, 3), np.zeros((3, 2), np.uint8)).whole()[0].tolist()
        [255, 255, 255, 255, 255, 255]
    """

    image: str
    width: int
    height: int
    box: Box
    mask: Mask
    rank: int | None = None

    def whole(self) -> Mask:
        """The mask of the whole image, unknown outside of the box."""
        return paste([self])

    def present(self) -> list[int]:
        """The classes that occur, in order."""
        return [int(number) for number in np.unique(self.mask) if number != UNKNOWN]


def paste(records: list[LabelRecord]) -> Mask:
    """The mask of a whole image from records of it; where they overlap, the later one's known pixels win."""
    mask = np.full((records[0].height, records[0].width), UNKNOWN, np.uint8)
    for record in records:
        x, y, width, height = record.box
        window = mask[y : y + height, x : x + width]
        np.copyto(window, record.mask, where=record.mask != UNKNOWN)
    return mask


def by_image(records: Iterable[LabelRecord]) -> dict[str, list[LabelRecord]]:
    """Records of the same image together, images in the order of their first record."""
    groups: dict[str, list[LabelRecord]] = {}
    for record in records:
        groups.setdefault(record.image, []).append(record)
    return groups


@dataclass(frozen=True, eq=False)
class FoundImage:
    """An image whose labels a file holds. They are made into pixels where somebody asks for a box.

    Attributes:
        name: As the file has it: a key to compare, never a path to open.
        width: Of the whole image.
        height: Of the whole image.
        cut: Gives the labels of a box that lies in the image: [height, width], 255 where there are none.
    """

    name: str
    width: int
    height: int
    cut: Callable[[Box], Mask]

    def record(self) -> LabelRecord:
        """The labels of the whole image."""
        box = (0, 0, self.width, self.height)
        return LabelRecord(self.name, self.width, self.height, box, self.cut(box))


def check_size(width: int, height: int, where: str) -> None:
    """Refuse sizes of images that no image has."""
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise DataError(f"{where}: an image of {width}x{height} pixels; from 1 to {MAX_PIXELS} pixels can be read")


class ClassNumbers:
    """Finds the numbers of classes by the names that files have for them.

    Examples:
        >>> known = ClassNumbers((ClassColour(0, "road", "#804080"), ClassColour(1, "car", "#00008e")))
        >>> known.find("car", "answers.xml"), known.find(FRAME, "answers.xml")
        (1, None)
    """

    def __init__(self, classes: Iterable[ClassColour]) -> None:
        self._numbers = {entry.name: entry.number for entry in classes}

    def find(self, name: str, where: str) -> int | None:
        """The number of a class; None for frames, which are no labels."""
        number = self._numbers.get(name)
        if number is None and name != FRAME:
            close = get_close_matches(name, self._numbers, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise DataError(
                f"{where}: label {name[:80]!r} is no class of this request{hint}; classes are "
                f"{', '.join(self._numbers)}. Rename it in the labelling tool, and export again"
            )
        return number
