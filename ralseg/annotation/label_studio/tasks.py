"""Label Studio's tasks: regions as pictures with a frame and a prediction, and masks out of what people painted."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import NDArray

from ralseg.annotation.label_studio.brush import decode_mask, encode_mask
from ralseg.annotation.masks import Mask
from ralseg.annotation.request import ClassColour, WantedRegion
from ralseg.errors import ConfigError, DataError
from ralseg.labels.vault import IGNORE

MODEL_VERSION = "ralseg"
"""The name of the predictions; a project shows those of the version that it names."""
CANNOT_TELL = "cannot tell"
_BRUSH, _FRAME, _OUTSIDE, _IMAGE = "label", "frame", "outside", "image"
_FRAME_LABEL, _OUTSIDE_LABEL = "region", "not wanted"


# -- what goes out ------------------------------------------------------------------------------------


def label_config(classes: tuple[ClassColour, ...], has_shapes: bool = False) -> str:
    """The interface of a project: a brush for each class, and a frame that nobody can draw.

    A frame of the default look would tint what it surrounds, so its opacity is 0.

    Args:
        classes: The classes.
        has_shapes: Whether regions need not fill their boxes: what lies outside of them is painted black then.

    Examples:
        >>> "#804080" in label_config((ClassColour(0, "road & kerb", "#804080"),))
        True
    """
    labels = "".join(_label(name, colour) for name, colour in _names(classes).items())
    outside = _label(_OUTSIDE_LABEL, "#000000")
    black = f'<BrushLabels name="{_OUTSIDE}" toName="{_IMAGE}">{outside}</BrushLabels>'
    return (
        '<View><Header value="$title" size="5"/>'
        f'<BrushLabels name="{_BRUSH}" toName="{_IMAGE}">{labels}</BrushLabels>'
        f'<Image name="{_IMAGE}" value="$image" zoom="true" zoomControl="true" defaultZoom="fit" '
        'brightnessControl="true" contrastControl="true"/>'
        '<View style="display: none">'
        f'<RectangleLabels name="{_FRAME}" toName="{_IMAGE}" opacity="0" strokeWidth="3">'
        f"{_label(_FRAME_LABEL, '#ffe000')}</RectangleLabels>"
        # it brings a second brush into the toolbar, so only where it is needed
        f"{black if has_shapes else ''}"
        "</View></View>"
    )


def _label(name: str, colour: str) -> str:
    return f"<Label value={quoteattr(name)} background={quoteattr(colour)}/>"


def _names(classes: tuple[ClassColour, ...]) -> dict[str, str]:
    """What people choose from, and its colour."""
    names = {entry.name: entry.colour for entry in classes}
    if len(names) < len(classes) or CANNOT_TELL in names or not all(name.strip() == name != "" for name in names):
        raise ConfigError(
            f"class names {', '.join(repr(entry.name) for entry in classes)}: for Label Studio each must be another "
            f"one, without spaces around it, and none may be {CANNOT_TELL!r}"
        )
    return names | {CANNOT_TELL: "#808080"}


def has_brushes(parsed_config: Any, classes: tuple[ClassColour, ...], has_shapes: bool = False) -> bool:
    """Whether a project's interface, as the server has parsed it, has the brushes of :func:`label_config`."""
    if not isinstance(parsed_config, dict):
        return False
    controls = [parsed_config.get(name) for name in (_BRUSH, _FRAME, *([_OUTSIDE] if has_shapes else []))]
    if not all(isinstance(control, dict) and control.get("to_name") == [_IMAGE] for control in controls):
        return False
    brush: Any = controls[0]
    return brush.get("type") == "BrushLabels" and set(_names(classes)) <= set(brush.get("labels", ()))


@dataclass(frozen=True)
class Picture:
    """What a task shows of a region: its whole image, or a part of it.

    Attributes:
        width: Of the picture, in pixels of the image's file.
        height: Likewise.
        x: Where the region's box lies in it.
        y: Likewise.
    """

    width: int
    height: int
    x: int
    y: int

    @classmethod
    def whole(cls, wanted: WantedRegion) -> "Picture":
        """The whole image."""
        return cls(wanted.image_width, wanted.image_height, wanted.x, wanted.y)

    @classmethod
    def crop(cls, wanted: WantedRegion) -> "Picture":
        """The region's box alone."""
        return cls(wanted.width, wanted.height, 0, 0)

    def place(self, part: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """A mask of the picture that is true where a mask of the box is."""
        mask = np.zeros((self.height, self.width), np.bool_)
        mask[self.y : self.y + part.shape[0], self.x : self.x + part.shape[1]] = part
        return mask


def prediction_of(
    wanted: WantedRegion,
    picture: Picture,
    classes: tuple[ClassColour, ...],
    predicted: Mask | None,
    inside: NDArray[np.bool_],
    score: float,
) -> dict[str, Any]:
    """What a task shows before anybody has painted: the frame, what lies outside of the region, and the prediction.

    Args:
        wanted: The region.
        picture: What is shown.
        classes: The classes.
        predicted: [height, width] class numbers of the box; None: nothing is shown.
        inside: [height, width] which pixels of the box belong to the region.
        score: Label Studio's uncertainty sampling serves the lowest first, so the best region has the lowest.
    """
    results = [_frame(wanted, picture)]
    if not inside.all():
        results.append(_brushed(_OUTSIDE, "outside", _OUTSIDE_LABEL, picture, ~inside) | {"readonly": True})
    for entry in classes if predicted is not None else ():
        part = (predicted == entry.number) & inside
        if part.any():
            results.append(_brushed(_BRUSH, f"class-{entry.number}", entry.name, picture, part))
    return {"model_version": MODEL_VERSION, "score": score, "result": results}


def _common(picture: Picture, name: str, identity: str) -> dict[str, Any]:
    size = {"original_width": picture.width, "original_height": picture.height, "image_rotation": 0}
    return {"id": identity, "from_name": name, "to_name": _IMAGE, **size}


def _frame(wanted: WantedRegion, picture: Picture) -> dict[str, Any]:
    """A rectangle around the region; Label Studio counts in percent."""
    box = {
        "x": 100 * picture.x / picture.width,
        "y": 100 * picture.y / picture.height,
        "width": 100 * wanted.width / picture.width,
        "height": 100 * wanted.height / picture.height,
        "rotation": 0,
    }
    value = {**box, "rectanglelabels": [_FRAME_LABEL]}
    return {**_common(picture, _FRAME, "frame"), "type": "rectanglelabels", "readonly": True, "value": value}


def _brushed(name: str, identity: str, label: str, picture: Picture, part: NDArray[np.bool_]) -> dict[str, Any]:
    value = {"format": "rle", "rle": encode_mask(picture.place(part)), "brushlabels": [label]}
    return {**_common(picture, name, identity), "type": "brushlabels", "value": value}


# -- what comes back ----------------------------------------------------------------------------------


def mask_of(
    results: Any,
    predictions: Any,
    wanted: WantedRegion,
    picture: Picture,
    classes: tuple[ClassColour, ...],
    inside: NDArray[np.bool_],
) -> Mask:
    """The mask [height, width] of a region's box that people have painted.

    Strokes may leave the region, and classes may overlap. Strokes are cut off at the region's edge. What was painted
    wins over what was predicted, and the later stroke over the earlier one. What nobody has painted cannot be told.

    Args:
        results: Of an annotation.
        predictions: Of its task: what was shown.
        wanted: The region.
        picture: What the task shows of it.
        classes: The classes.
        inside: [height, width] which pixels of the box belong to the region.
    """
    rows, columns = slice(picture.y, picture.y + wanted.height), slice(picture.x, picture.x + wanted.width)
    shown = [result for entry in _dicts(predictions or []) for result in _dicts(entry.get("result"))]
    predicted = {identity: part[rows, columns] for identity, _, part in _strokes(shown, picture, classes)}
    strokes = [
        (known, number, part[rows, columns] & inside) for known, number, part in _strokes(results, picture, classes)
    ]
    mask = np.full(wanted.shape, IGNORE, np.uint8)
    nothing = np.zeros(wanted.shape, np.bool_)
    # a predicted result that was painted on still stands first in the list, so its new part is told from its old one
    for identity, number, part in strokes:
        mask[part & predicted.get(identity, nothing)] = number
    for identity, number, part in strokes:
        mask[part & ~predicted.get(identity, nothing)] = number
    return mask


def _strokes(
    results: Any, picture: Picture, classes: tuple[ClassColour, ...]
) -> Iterator[tuple[str, int, NDArray[np.bool_]]]:
    """Id, class number and pixels [height, width] of the picture, in order."""
    numbers = {entry.name: entry.number for entry in classes} | {CANNOT_TELL: IGNORE}
    for result in _dicts(results):
        if result.get("from_name") in (_FRAME, _OUTSIDE):
            continue
        value = result.get("value")
        if result.get("from_name") != _BRUSH or result.get("type") != "brushlabels" or not isinstance(value, dict):
            raise DataError(f"it has a {str(result.get('type'))[:40]!r}, but only brushes count: paint it instead")
        labels = value.get("brushlabels")
        if not isinstance(labels, list) or len(labels) != 1 or str(labels[0]) not in numbers:
            raise DataError(f"it has the label {str(labels)[:80]}, but the classes are {', '.join(numbers)}")
        _check_size(result, picture)
        code = value.get("rle") if value.get("format") == "rle" else None
        if not isinstance(code, list):
            raise DataError(f"it has a brush of the format {str(value.get('format'))[:40]!r}, but only rle is known")
        yield str(result.get("id")), numbers[str(labels[0])], decode_mask(code, (picture.height, picture.width))


def _check_size(result: dict[str, Any], picture: Picture) -> None:
    size, turned = (result.get("original_height"), result.get("original_width")), result.get("image_rotation", 0)
    if size != (picture.height, picture.width) or turned != 0:
        raise DataError(
            f"it was painted on a picture of {size[0]}x{size[1]} pixels, turned by {turned} degrees, but the picture "
            f"has {picture.height}x{picture.width} (height x width) and must not be turned"
        )


def _dicts(results: Any) -> Iterable[dict[str, Any]]:
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise DataError("its result is no list of painted regions")
    return results


@dataclass(frozen=True)
class Painted:
    """An annotation of a task.

    Attributes:
        who: The annotator's address.
        seconds: How long it took, with all corrections so far.
        is_skip: Whether it says that the task was skipped.
        results: What was painted.
    """

    who: str
    seconds: float | None
    is_skip: bool
    results: Any


def newest(task: Any) -> Painted | None:
    """The annotation of a task that counts: the one that was last changed, skips only where there is nothing else."""
    annotations = task.get("annotations") if isinstance(task, dict) else None
    if not isinstance(annotations, list):
        raise DataError("it has no list of annotations")
    found = [entry for entry in annotations if isinstance(entry, dict)]
    if not found:
        return None
    last = max(found, key=lambda entry: (not entry.get("was_cancelled"), str(entry.get("updated_at", ""))))
    person = last.get("completed_by")
    who = person.get("email") or person.get("id") if isinstance(person, dict) else person
    return Painted(
        str(who or "")[:100], _time(last.get("lead_time")), bool(last.get("was_cancelled")), last.get("result")
    )


def _time(seconds: Any) -> float | None:
    return float(seconds) if type(seconds) in (int, float) and 0 <= seconds < 1e9 else None
