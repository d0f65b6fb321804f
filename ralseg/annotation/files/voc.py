"""Pascal VOC: palette PNGs of whole images, a list of their names, and a table of labels and colours as CVAT has it."""

from collections.abc import Iterable, Iterator

from ralseg.annotation.files.container import Member, Members
from ralseg.annotation.files.pictures import Meaning, PictureReader, found_pictures, mask_files
from ralseg.annotation.files.record import UNKNOWN, FoundImage, LabelRecord, paste
from ralseg.annotation.masks import encode_mask, palette_of
from ralseg.annotation.request import ClassColour
from ralseg.data.description import voc_colours
from ralseg.data.readers import Colour, Palette
from ralseg.errors import DataError

IMAGES, MASKS, LIST, LABELS = "JPEGImages", "SegmentationClass", "ImageSets/Segmentation/default.txt", "labelmap.txt"
IGNORED, BACKGROUND = "ignored", "background"
"""Labels of what nobody has labelled: ours (VOC's void), and what CVAT calls pixels under no shape."""
_VOID: tuple[Colour, ...] = ((0, 0, 0), (224, 224, 192))  # what VOC paints background and void in


def encode(records: Iterable[LabelRecord], classes: tuple[ClassColour, ...]) -> Iterator[Member]:
    """Labels as files of VOC. Pixels are class numbers, 255 = unknown, and the palette has the classes' colours.

    Examples:
        >>> import numpy as np
        >>> record = LabelRecord("train/a.jpg", 6, 4, (0, 0, 2, 2), np.zeros((2, 2), np.uint8))
        >>> [name for name, _ in encode([record], (ClassColour(0, "road", "#804080"),))]
        ['labelmap.txt', 'ImageSets/Segmentation/default.txt', 'SegmentationClass/train/a.png']
    """
    files = mask_files(records)
    yield LABELS, _label_map(classes).encode()
    yield LIST, "".join(f"{_checked(name, LIST)}\n" for name in files).encode()
    for name, group in files.items():
        yield f"{MASKS}/{name}.png", encode_mask(paste(group), classes)


def _label_map(classes: tuple[ClassColour, ...]) -> str:
    palette = palette_of(classes)
    if not palette:
        raise DataError("two classes share a colour: VOC cannot tell them; export as cvat, coco or png")
    rows = [(entry.name, entry.rgb) for entry in classes]
    free = next(name for name in (IGNORED, "unknown", "void") if name not in {entry.name for entry in classes})
    rows.append((free, next(colour for colour, number in palette.items() if number == UNKNOWN)))
    lines = [f"{_checked(name, LABELS)}:{red},{green},{blue}::" for name, (red, green, blue) in rows]
    return "\n".join(["# label:color_rgb:parts:actions", *lines]) + "\n"


def _checked(name: str, file: str) -> str:
    """A name that stands in a line of a list; the lists have no way to write some characters."""
    wrong = {"\n", "\r"} | ({":", "#"} if file == LABELS else set())
    bad = next((character for character in name if character in wrong), None)
    if bad is not None or name != name.strip():
        raise DataError(f"the name {name!r} cannot stand in {file}; rename it, or export as cvat or coco")
    return name


def decode(
    members: Members, classes: tuple[ClassColour, ...], pixels: Meaning = "auto", nearest: bool = False
) -> list[FoundImage]:
    """The images whose masks are in ``SegmentationClass``.

    Args:
        members: The files.
        classes: The classes that may occur.
        pixels: See :class:`PictureReader`; where there is ``labelmap.txt``, colours are meant.
        nearest: See :class:`PictureReader`.
    """
    maps = [name for name in members.names if name.split("/")[-1] == LABELS]
    palette = palette_of(classes)
    palette = palette | {colour: UNKNOWN for colour in _VOID if palette and colour not in palette}
    if maps:
        name = maps[0]
        palette = _read_label_map(members.read(name), classes, members.where(name))
        pixels = "colours" if pixels == "auto" else pixels
    found = found_pictures(members, MASKS, PictureReader(classes, palette, pixels, nearest))
    if not found:
        raise DataError(f"{members.path}: holds no {MASKS}/*.png; choose the format Pascal VOC 1.1 in CVAT")
    return found


def _read_label_map(content: bytes, classes: tuple[ClassColour, ...], where: str) -> Palette:
    """Class number of each colour; labels that are no classes are left out, so that their colours are unknown.

    A table without any colour means VOC's own, by the place of a label.
    """
    numbers = {entry.name: entry.number for entry in classes}
    numbers = dict.fromkeys((BACKGROUND, IGNORED, "unknown", "void"), UNKNOWN) | numbers
    palette: Palette = {}
    rows = _rows(content, where)
    usual = [(0, 0, 0), *voc_colours(len(rows))] if not any(colour for _, _, colour in rows) else []
    for place, (line, name, text) in enumerate(rows):
        if name not in numbers or not (text or usual):
            continue
        colour = usual[place] if usual else _colour(text, f"{where}: line {line}")
        if palette.setdefault(colour, numbers[name]) != numbers[name]:
            raise DataError(f"{where}: line {line}: another label has the colour of {name!r} too")
    return palette


def _rows(content: bytes, where: str) -> list[tuple[int, str, str]]:
    """Lines of the table with a label: their number, the label, and its colour as text."""
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error})") from error
    split = [(number, line.split(":")) for number, line in enumerate(lines, start=1) if not line.startswith("#")]
    return [(number, fields[0], "".join(fields[1:2])) for number, fields in split if fields[0].strip()]


def _colour(text: str, where: str) -> Colour:
    try:
        red, green, blue = bytes(int(value) for value in text.split(","))
    except ValueError:
        raise DataError(f"{where}: {text[:40]!r} is no colour r,g,b") from None
    return red, green, blue
