"""COCO: JSON with masks as run lengths, column by column over the whole image, or as polygons."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ralseg.annotation.files.outlines import outlines
from ralseg.annotation.files.record import ClassNumbers, FoundImage, LabelRecord, by_image, check_size
from ralseg.annotation.files.rle import checked, compress, decompress, run_lengths
from ralseg.annotation.files.shapes import MaskShape, PolygonShape, Shape, UnreadShape, drawn_image, points_of
from ralseg.annotation.request import ClassColour
from ralseg.errors import DataError

KINDS = ("rle", "counts", "polygons")
"""How masks are written: run lengths as text or as a list of numbers, or polygons along the edges of pixels."""


# -- writing ---------------------------------------------------------------------------------------


def encode(records: Iterable[LabelRecord], classes: tuple[ClassColour, ...], kind: str = "rle") -> str:
    """Labels as JSON: one annotation for each class of a record.

    Categories are numbered from 1, as is usual; their names count. The boxes that a request wants are in
    ``ralseg_wanted`` of their image, where other programs pass over them.

    Args:
        records: The labels.
        classes: Of the labels.
        kind: One of ``KINDS``.

    Examples:
        >>> mask = np.array([[0, 255], [0, 255]], np.uint8)
        >>> text = encode([LabelRecord("a.png", 2, 2, (0, 0, 2, 2), mask)], (ClassColour(0, "road", "#804080"),))
        >>> json.loads(text)["annotations"][0]["segmentation"]
        {'size': [2, 2], 'counts': '022'}
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (name, group) in enumerate(by_image(records).items(), start=1):
        images.append(_image(number, name, group))
        for record in group:
            for found in record.present():
                place = len(annotations) + 1
                annotations.append(_annotation(place, number, found + 1, record, record.mask == found, kind))
    content = {
        "info": {"description": "written by ralseg"},
        "licenses": [],
        "categories": [_category(entry) for entry in classes],
        "images": images,
        "annotations": annotations,
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


def _category(entry: ClassColour) -> dict[str, Any]:
    return {"id": entry.number + 1, "name": entry.name, "supercategory": "", "color": list(entry.rgb), "isthing": 0}


def _image(number: int, name: str, group: list[LabelRecord]) -> dict[str, Any]:
    image: dict[str, Any] = {"id": number, "file_name": name, "width": group[0].width, "height": group[0].height}
    wanted = [{"bbox": list(record.box), "rank": record.rank} for record in group if record.rank is not None]
    return image | ({"ralseg_wanted": wanted} if wanted else {})


def _annotation(
    number: int, image: int, category: int, record: LabelRecord, bits: NDArray[np.bool_], kind: str
) -> dict[str, Any]:
    x, y, _, _ = record.box
    rows, columns = np.flatnonzero(bits.any(1)).tolist(), np.flatnonzero(bits.any(0)).tolist()
    box = [x + columns[0], y + rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]]
    if kind == "polygons":
        segmentation: Any = [(outline + np.array([x, y])).ravel().tolist() for outline in outlines(bits)]
    else:
        whole = np.zeros((record.height, record.width), bool)
        whole[y : y + len(bits), x : x + bits.shape[1]] = bits
        counts = run_lengths(whole.ravel(order="F")).tolist()
        segmentation = {"size": [record.height, record.width], "counts": compress(counts) if kind == "rle" else counts}
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "segmentation": segmentation,
        "area": int(bits.sum()),
        "bbox": box,
        "iscrowd": 0,
    }


# -- reading ---------------------------------------------------------------------------------------


def decode(content: bytes, classes: ClassNumbers, where: str) -> list[FoundImage]:
    """The images of a JSON file with their annotations, the later one on top.

    Args:
        content: Of the file.
        classes: What the names of categories mean.
        where: The file's name, for messages.
    """
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    labels = {_id(entry, where): str(_key(entry, "name", str, where)) for entry in _entries(whole, "categories", where)}
    shapes: dict[int, list[Shape]] = {}
    sizes: dict[int, tuple[str, int, int]] = {}
    for entry in _entries(whole, "images", where):
        number = _id(entry, f"{where}: an image")
        if number in sizes:
            raise DataError(f"{where}: image id {number} is there twice")
        sizes[number] = _sized(entry, where)
        shapes[number] = []
    for entry in _entries(whole, "annotations", where):
        place = f"{where}: annotation {entry.get('id')!r:.40}"
        image, category = _key(entry, "image_id", int, place), _key(entry, "category_id", int, place)
        if image not in sizes or category not in labels:
            raise DataError(f"{place}: image_id {image!r:.40} or category_id {category!r:.40} is not in the file")
        shapes[image].append(_shape(entry, labels[category], sizes[image], place))
    return [
        drawn_image(name, width, height, shapes[number], classes, f"{where}: image {name[:200]!r}")
        for number, (name, width, height) in sizes.items()
    ]


def _sized(entry: dict[str, Any], where: str) -> tuple[str, int, int]:
    name = _key(entry, "file_name", str, f"{where}: an image")
    place = f"{where}: image {name[:200]!r}"
    width, height = _key(entry, "width", int, place), _key(entry, "height", int, place)
    check_size(width, height, place)
    return name, width, height


def _shape(entry: dict[str, Any], label: str, image: tuple[str, int, int], where: str) -> Shape:
    found, (_, width, height) = entry.get("segmentation"), image
    if isinstance(found, dict):
        if found.get("size") != [height, width]:
            raise DataError(f"{where}: a mask of size {found.get('size')!r:.40} in an image of [{height}, {width}]")
        counts = found.get("counts")
        if isinstance(counts, str):
            counts = decompress(counts, where)
        if not isinstance(counts, list) or not all(type(count) is int for count in counts):
            raise DataError(f"{where}: its counts are neither a text nor a list of whole numbers")
        return MaskShape(label, (0, 0, width, height), checked(counts, width * height, where), "F")
    if not found:
        return UnreadShape(label, "box without a segmentation", where)
    if not isinstance(found, list) or not all(isinstance(polygon, list) for polygon in found):
        raise DataError(f"{where}: its segmentation is neither run lengths nor a list of polygons")
    if not all(type(value) in (int, float) for polygon in found for value in polygon):
        raise DataError(f"{where}: a polygon holds something that is no number")
    return PolygonShape(label, [points_of(polygon, where) for polygon in found])


def _entries(whole: Any, key: str, where: str) -> list[dict[str, Any]]:
    found = whole.get(key) if isinstance(whole, dict) else None
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise DataError(f"{where}: has no list {key!r}; it is no COCO file of annotations")
    return found


def _id(entry: dict[str, Any], where: str) -> int:
    number: int = _key(entry, "id", int, where)
    return number


def _key(entry: dict[str, Any], key: str, kind: type, where: str) -> Any:
    value = entry.get(key)
    if type(value) is not kind:
        raise DataError(f"{where}: {key}={value!r:.40} should be a {'text' if kind is str else 'whole number'}")
    return value
