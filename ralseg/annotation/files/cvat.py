"""CVAT for images 1.1: XML with masks as run lengths, row by row, inside the box of each mask."""

import json
from collections.abc import Iterable, Iterator
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import NDArray

from ralseg.annotation.files.outlines import rectangle
from ralseg.annotation.files.record import FRAME, ClassNumbers, FoundImage, LabelRecord, by_image, check_size
from ralseg.annotation.files.rle import checked, run_lengths
from ralseg.annotation.files.shapes import MaskShape, PolygonShape, Shape, UnreadShape, drawn_image, points_of
from ralseg.annotation.request import ClassColour
from ralseg.errors import DataError

FRAME_COLOUR = "#ffffff"
_READ = ("mask", "polygon", "box")
_UNREAD = ("polyline", "points", "cuboid", "ellipse", "skeleton")


# -- writing ---------------------------------------------------------------------------------------


def encode(records: Iterable[LabelRecord], classes: tuple[ClassColour, ...]) -> str:
    """Labels as XML. One mask for each class of a record; a record with a rank also gets a frame that shows its box.

    Frames lie below (``z_order`` 0) and masks above (1), so that a click in CVAT meets the mask. Images come in the
    order of their records but have the numbers that CVAT gives them in a task, by name: where it does not find a name,
    it goes by the number.

    Examples:
        >>> mask = np.array([[0, 1], [255, 1]], np.uint8)
        >>> classes = (ClassColour(0, "road", "#804080"), ClassColour(1, "car", "#00008e"))
        >>> text = encode([LabelRecord("a.png", 4, 4, (1, 1, 2, 2), mask)], classes)
        >>> '<mask label="car" source="file" occluded="0" rle="0, 2" left="2" top="1" width="1" height="2"' in text
        True
    """
    return "\n".join(_lines(by_image(records), classes)) + "\n"


def _lines(images: dict[str, list[LabelRecord]], classes: tuple[ClassColour, ...]) -> Iterator[str]:
    with_frames = _has_frames(classes)
    yield '<?xml version="1.0" encoding="utf-8"?>'
    yield "<annotations>\n  <version>1.1</version>\n  <meta>\n    <task>"
    yield f"      <name>ralseg</name>\n      <size>{len(images)}</size>\n      <mode>annotation</mode>\n      <labels>"
    for label in cvat_labels(classes):
        attributes = "".join(map(_attribute, label["attributes"]))
        yield (
            f"        <label><name>{_text(label['name'])}</name><color>{label['color']}</color>"
            f"<type>{label['type']}</type><attributes>{attributes}</attributes></label>"
        )
    yield "      </labels>\n    </task>\n  </meta>"
    numbers = {name: number for number, name in enumerate(sorted(images))}
    for name, records in images.items():
        first = records[0]
        yield f'  <image id="{numbers[name]}" name={_quoted(name)} width="{first.width}" height="{first.height}">'
        for record in records:
            if record.rank is not None and with_frames:
                yield _frame(record)
            for found in record.present():
                yield _mask(record, record.mask == found, next(c.name for c in classes if c.number == found))
        yield "  </image>"
    yield "</annotations>"


def cvat_labels(classes: tuple[ClassColour, ...]) -> list[dict[str, Any]]:
    """The labels of a task as CVAT's "Raw" editor takes them: the classes, and the frame with its rank."""
    labels: list[dict[str, Any]] = [
        {"name": entry.name, "color": entry.colour, "type": "any", "attributes": []} for entry in classes
    ]
    if not _has_frames(classes):
        return labels
    rank = {"name": "rank", "mutable": False, "input_type": "text", "default_value": "", "values": [""]}
    return [*labels, {"name": FRAME, "color": FRAME_COLOUR, "type": "rectangle", "attributes": [rank]}]


def encode_labels(classes: tuple[ClassColour, ...]) -> str:
    """The same as JSON, to paste into CVAT when a task is made."""
    return json.dumps(cvat_labels(classes), indent=1, ensure_ascii=False) + "\n"


def _has_frames(classes: tuple[ClassColour, ...]) -> bool:
    """A class of the same name goes first."""
    return all(entry.name != FRAME for entry in classes)


def _attribute(attribute: dict[str, Any]) -> str:
    return (
        f"<attribute><name>{attribute['name']}</name><mutable>{attribute['mutable']}</mutable>"
        f"<input_type>{attribute['input_type']}</input_type><default_value></default_value><values></values></attribute>"
    )


def _frame(record: LabelRecord) -> str:
    x, y, width, height = record.box
    return (
        f'    <box label={_quoted(FRAME)} source="file" occluded="0" xtl="{x}.00" ytl="{y}.00" xbr="{x + width}.00" '
        f'ybr="{y + height}.00" z_order="0"><attribute name="rank">{record.rank}</attribute></box>'
    )


def _mask(record: LabelRecord, bits: NDArray[np.bool_], label: str) -> str:
    rows, columns = np.flatnonzero(bits.any(1)), np.flatnonzero(bits.any(0))
    top, left, bottom, right = rows[0], columns[0], rows[-1] + 1, columns[-1] + 1
    rle = ", ".join(map(str, run_lengths(bits[top:bottom, left:right].ravel()).tolist()))
    return (
        f'    <mask label={_quoted(label)} source="file" occluded="0" rle="{rle}" left="{record.box[0] + left}" '
        f'top="{record.box[1] + top}" width="{right - left}" height="{bottom - top}" z_order="1"></mask>'
    )


def _quoted(text: str) -> str:
    _check_characters(text)
    return quoteattr(text, {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"})


def _text(text: str) -> str:
    _check_characters(text)
    return escape(text, {"\r": "&#13;"})


def _check_characters(text: str) -> None:
    """XML has no way to write control characters."""
    bad = [c for c in text if (c < " " and c not in "\t\n\r") or "\ud800" <= c <= "\udfff" or c in "\ufffe\uffff"]
    if bad:
        raise DataError(f"the name {text!r} holds {bad[0]!r}, which XML cannot; rename it, or export as coco")


# -- reading ---------------------------------------------------------------------------------------


def decode(content: bytes, classes: ClassNumbers, where: str) -> list[FoundImage]:
    """The images of an XML file with what is drawn in them: masks, polygons and boxes, the higher ``z_order`` on top.

    Args:
        content: Of the file.
        classes: What labels mean.
        where: The file's name, for messages.
    """
    reader = _Reader(classes, where)
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = reader.refuse_doctype
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise DataError(f"{where}: not valid XML ({error})") from error
    except (LookupError, ValueError) as error:  # encodings that Python does not have, or that fail
        raise DataError(f"{where}: cannot be read as text ({error})") from error
    return reader.images


class _Reader:
    """Takes up elements as the parser meets them; no tree of the whole file is built."""

    def __init__(self, classes: ClassNumbers, where: str) -> None:
        self.images: list[FoundImage] = []
        self._classes, self._file, self._where = classes, where, where
        self._path: list[str] = []
        self._image: dict[str, str] | None = None
        self._size = (0, 0)
        self._shapes: list[tuple[int, Shape]] = []

    def refuse_doctype(self, name: str, *_: Any) -> None:
        """A document type can define entities that grow without end, or name files of this machine."""
        raise DataError(f"{self._file}: declares a document type (<!DOCTYPE {name}>), which no export of CVAT does")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path.append(tag)
        if len(self._path) == 1 and tag != "annotations":
            raise DataError(
                f"{self._file}: its first element is <{tag[:40]}>, not <annotations> of CVAT for images 1.1"
            )
        if len(self._path) == 2 and tag == "track":
            raise DataError(f"{self._file}: is an export for video; choose the format CVAT for images 1.1 in CVAT")
        if len(self._path) == 2 and tag == "image":
            self._start_image(attributes)
        elif len(self._path) == 3 and self._image is not None and tag in (*_READ, *_UNREAD):
            self._shapes.append((int(_number(attributes, "z_order", self._where, "0")), self._shape(tag, attributes)))

    def end(self, tag: str) -> None:
        self._path.pop()
        if len(self._path) == 1 and tag == "image" and self._image is not None:
            ordered = [shape for _, shape in sorted(self._shapes, key=lambda pair: pair[0])]
            self.images.append(drawn_image(self._image["name"], *self._size, ordered, self._classes, self._where))
            self._image = None

    def _start_image(self, attributes: dict[str, str]) -> None:
        name = _value(attributes, "name", f"{self._file}: <image>")
        self._where = f"{self._file}: image {name[:200]!r}"
        self._size = _whole(attributes, "width", self._where), _whole(attributes, "height", self._where)
        check_size(*self._size, self._where)
        self._image, self._shapes = attributes, []

    def _shape(self, tag: str, attributes: dict[str, str]) -> Shape:
        label = _value(attributes, "label", f"{self._where}: <{tag}>")
        where = f"{self._where}: <{tag}> number {len(self._shapes) + 1}"
        if tag == "mask":
            return self._read_mask(label, attributes, where)
        if tag == "polygon":
            pairs = _value(attributes, "points", where).replace(";", ",")
            return PolygonShape(label, [points_of(_numbers(pairs, where), where)])
        if tag == "box":
            return PolygonShape(label, [_corners(attributes, where)])
        return UnreadShape(label, tag, where)

    def _read_mask(self, label: str, attributes: dict[str, str], where: str) -> MaskShape:
        left, top, width, height = (_whole(attributes, key, where) for key in ("left", "top", "width", "height"))
        is_inside = left >= 0 <= top and left + width <= self._size[0] and top + height <= self._size[1]
        if not is_inside or width < 1 or height < 1:
            raise DataError(
                f"{where}: its box {left},{top} {width}x{height} does not lie in the image, "
                f"{self._size[0]}x{self._size[1]}"
            )
        rle = _value(attributes, "rle", where)
        try:
            counts = list(map(int, rle.split(",")))
        except ValueError:
            raise DataError(f"{where}: rle={rle[:40]!r}... is no list of whole numbers") from None
        return MaskShape(label, (left, top, width, height), checked(counts, width * height, where), "C")


def _corners(attributes: dict[str, str], where: str) -> NDArray[np.float64]:
    left, top, right, bottom = (_number(attributes, key, where) for key in ("xtl", "ytl", "xbr", "ybr"))
    points = rectangle(left, top, right, bottom, _number(attributes, "rotation", where, "0"))
    return points_of(points.ravel().tolist(), where)


def _value(attributes: dict[str, str], key: str, where: str) -> str:
    if key not in attributes:
        raise DataError(f"{where}: has no {key}")
    return attributes[key]


def _whole(attributes: dict[str, str], key: str, where: str) -> int:
    value = _value(attributes, key, where)
    try:
        return int(value)
    except ValueError:
        raise DataError(f"{where}: {key}={value[:40]!r} is no whole number") from None


def _number(attributes: dict[str, str], key: str, where: str, default: str | None = None) -> float:
    value = attributes.get(key, default) if default is not None else _value(attributes, key, where)
    (number,) = _numbers(value or "", where, 1)
    return number


def _numbers(text: str, where: str, count: int | None = None) -> list[float]:
    """Numbers with commas between; not infinite, and none that is no number."""
    try:
        numbers = [float(value) for value in text.split(",")]
        if not all(abs(number) < 1e300 for number in numbers) or count not in (None, len(numbers)):
            raise ValueError
    except ValueError:
        raise DataError(f"{where}: {text[:40]!r} cannot be read as numbers") from None
    return numbers
