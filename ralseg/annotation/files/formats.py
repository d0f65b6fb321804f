"""The formats by their names: records into files, and files into labelled images."""

from collections.abc import Callable, Iterator
from typing import Literal, get_args

from ralseg.annotation.files import coco, cvat, png, voc
from ralseg.annotation.files.container import Member, Members
from ralseg.annotation.files.pictures import Meaning
from ralseg.annotation.files.record import ClassNumbers, FoundImage, LabelRecord
from ralseg.annotation.request import ClassColour

Format = Literal["cvat", "coco", "voc", "png"]
FORMATS: tuple[str, ...] = get_args(Format)
ENDINGS = {"cvat": ".xml", "coco": ".json"}
"""The formats that fit into one file, and how it ends."""
IMAGE_FOLDERS = {"cvat": "", "coco": "images/", "voc": f"{voc.IMAGES}/", "png": "images/"}
"""Where images go beside the labels. CVAT calls an image by its whole path in an archive: there is no folder around."""

_Decoder = Callable[[bytes, ClassNumbers, str], list[FoundImage]]
_OF_TEXT: dict[str, _Decoder] = {"cvat": cvat.decode, "coco": coco.decode}
_OF_PICTURES = {"voc": voc.decode, "png": png.decode}


def encode(
    kind: str, records: list[LabelRecord], classes: tuple[ClassColour, ...], masks: str = "rle"
) -> Iterator[Member]:
    """The files of a format, the one with the labels first where they are in one.

    Args:
        kind: One of ``FORMATS``.
        records: The labels.
        classes: Of the labels.
        masks: How COCO has masks, see :func:`coco.encode`.

    Examples:
        >>> [name for name, _ in encode("cvat", [], (ClassColour(0, "road", "#804080"),))]
        ['annotations.xml', 'labels.json']
    """
    if kind == "cvat":
        yield "annotations.xml", cvat.encode(records, classes).encode()
        yield "labels.json", cvat.encode_labels(classes).encode()
    elif kind == "coco":
        yield "annotations/instances_default.json", coco.encode(records, classes, masks).encode()
    else:
        yield from (voc.encode if kind == "voc" else png.encode)(records, classes)


def decode(
    kind: str, members: Members, classes: tuple[ClassColour, ...], pixels: Meaning = "auto", nearest: bool = False
) -> list[FoundImage]:
    """The labelled images of files.

    Args:
        kind: One of ``FORMATS``.
        members: The files; while they are open, labels can be cut out of the images.
        classes: The classes that may occur.
        pixels: What pixels of pictures stand for, see :class:`PictureReader`.
        nearest: Take the nearest class where a pixel of a picture has the colour of none.
    """
    if kind in _OF_PICTURES:
        return _OF_PICTURES[kind](members, classes, pixels, nearest)
    name = members.one_of(ENDINGS[kind], kind)
    return _OF_TEXT[kind](members.read(name), ClassNumbers(classes), members.where(name))
