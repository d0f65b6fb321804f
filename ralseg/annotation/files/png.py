"""Plain PNGs: one mask of class numbers with a palette for each image, and a description that `Folder` reads."""

from collections.abc import Iterable, Iterator

import yaml

from ralseg.annotation.files.container import Member, Members
from ralseg.annotation.files.pictures import Meaning, PictureReader, found_pictures, mask_files
from ralseg.annotation.files.record import FoundImage, LabelRecord, paste
from ralseg.annotation.masks import encode_mask, palette_of
from ralseg.annotation.request import ClassColour
from ralseg.data.description import FILE
from ralseg.errors import DataError

MASKS = "masks"


def encode(records: Iterable[LabelRecord], classes: tuple[ClassColour, ...]) -> Iterator[Member]:
    """Labels as ``masks/NAME.png``: class numbers, 255 = unknown, shown in the classes' colours.

    Examples:
        >>> import numpy as np
        >>> record = LabelRecord("train/a.jpg", 6, 4, (0, 0, 2, 2), np.zeros((2, 2), np.uint8))
        >>> [name for name, _ in encode([record], (ClassColour(0, "road", "#804080"),))]
        ['dataset.yaml', 'masks/train/a.png']
    """
    description = {"classes": [entry.name for entry in classes]}
    yield FILE, yaml.safe_dump(description, sort_keys=False, allow_unicode=True).encode()
    for name, group in mask_files(records).items():
        yield f"{MASKS}/{name}.png", encode_mask(paste(group), classes)


def decode(
    members: Members, classes: tuple[ClassColour, ...], pixels: Meaning = "auto", nearest: bool = False
) -> list[FoundImage]:
    """The images whose masks are in ``masks``; in all folders where there is none of that name.

    The arguments are those of :func:`ralseg.annotation.files.voc.decode`.
    """
    reader = PictureReader(classes, palette_of(classes), pixels, nearest)
    found = found_pictures(members, MASKS, reader) or found_pictures(members, "", reader)
    if not found:
        raise DataError(f"{members.path}: holds no *.png")
    return found
