"""Why these regions: one HTML page that needs nothing else, about what an acquisition has chosen."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ralseg.acquisition.named_features import FEATURES
from ralseg.data.datamodule import SegmentationData
from ralseg.data.description import default_colours
from ralseg.engine.reasons import ChosenRegion, ClassMap, StepReasons
from ralseg.engine.selection import draw_boxes
from ralseg.errors import ConfigError
from ralseg.labels.vault import IGNORE
from ralseg.studies.report import template

FOREMOST = 6
"""Features that are shown of a region; the others are folded."""
IMAGE_SIDE, CROP_SIDE = 480, 240
VOID = (225, 225, 225)
MINUS = "\N{MINUS SIGN}"


def wanted_steps(
    steps: Sequence[StepReasons], step: int | None = None, regions: Sequence[int] = (), most: int = 24
) -> list[StepReasons]:
    """The steps and regions that are shown one by one.

    Args:
        steps: All steps of a run.
        step: Only this one, counted from 1.
        regions: Only these, by their numbers.
        most: Regions in all, unless they are named: so many of each step, those of the highest score.
    """
    if step is not None:
        steps = [one for one in steps if one.step == step - 1]
        if not steps:
            raise ConfigError(f"--step {step}: the run has no record of that step")
    if regions:
        known = {region.region for one in steps for region in one.regions}
        unknown = [region for region in regions if region not in known]
        if unknown:
            raise ConfigError(
                f"--regions {','.join(map(str, unknown))}: not chosen; the page without --regions has the numbers"
            )
        of = {one.step: tuple(region for region in one.regions if region.region in regions) for one in steps}
        return [replace(one, regions=of[one.step]) for one in steps if of[one.step]]
    shown = _evenly(steps, most)
    each = max(1, most // max(len(shown), 1))
    return [replace(one, regions=_best(one.regions)[:each]) for one in shown]


def _evenly(steps: Sequence[StepReasons], most: int) -> list[StepReasons]:
    """At most so many steps, at even distances, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    places = np.linspace(0, len(steps) - 1, max(most, 1)).round().astype(int)
    return [steps[place] for place in sorted(set(places.tolist()))]


def _best(regions: Sequence[ChosenRegion]) -> tuple[ChosenRegion, ...]:
    return tuple(sorted(regions, key=lambda region: -region.score))


def page(steps: Sequence[StepReasons], shown: Sequence[StepReasons], title: str, data: SegmentationData | None) -> str:
    """The page as HTML.

    Args:
        steps: All steps of a run: what is said of the whole.
        shown: Those of which regions are shown.
        title: What the run is called.
        data: For pictures of the images; without, there are none.
    """
    classes = max((step.classes for step in steps), key=len)
    pictures = _Pictures(classes, data)
    looked_at = summary(steps)
    names = {feature.name for step in shown for feature in step.features}
    return template("explain.html.j2").render(
        title=title,
        headline=headline(steps, looked_at),
        surprise=surprise(steps, classes),
        looked_at=looked_at,
        widest=max((abs(row.adds or 0) for row in looked_at), default=0) or 1,
        classes=class_rows(steps, classes),
        colours=[f"rgb{colour}" for colour in pictures.colours],
        steps=[_step(step, pictures) for step in shown],
        chosen=sum(len(step.regions) for step in steps),
        shown=sum(len(step.regions) for step in shown),
        number=len(steps),
        has_images=data is not None,
        meanings={name: _meaning(name) for name in sorted(names) if _meaning(name)},
        percent=percent,
        signed=signed,
        plain=plain,
    )


def percent(share: float) -> str:
    """A share for people."""
    return f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def signed(value: float, widest: float = 1.0) -> str:
    """A contribution for people, to two digits of the widest one beside it.

    Examples:
        >>> signed(0.0312), signed(0.0312, widest=0.084)
        ('+0.03', '+0.031')
    """
    digits = max(2, 1 - math.floor(math.log10(widest))) if widest > 0 else 2
    return f"{value:+.{digits}f}".replace("-", MINUS)


def plain(value: float) -> str:
    """A value for people."""
    return f"{value:.2g}".replace("-", MINUS)


@dataclass(frozen=True)
class LookedAt:
    """A feature over all regions that were chosen."""

    name: str
    below: float  # mean share of the candidates that had less of it
    adds: float | None  # mean contribution to the score; None: the score is no sum of features


def summary(steps: Sequence[StepReasons]) -> list[LookedAt]:
    """What the policy looked at, what counted most first."""
    below: dict[str, list[float]] = {}
    adds: dict[str, list[float]] = {}
    for step in steps:
        for place, feature in enumerate(step.features):
            below.setdefault(feature.name, []).extend(region.below[place] for region in step.regions)
            if feature.weight is not None:
                parts = [feature.weight * region.values[place] for region in step.regions]
                adds.setdefault(feature.name, []).extend(parts)
    rows = [
        LookedAt(name, _mean(shares), _mean(adds[name]) if name in adds else None) for name, shares in below.items()
    ]
    return sorted(rows, key=lambda row: -abs(row.adds if row.adds is not None else row.below - 0.5))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def headline(steps: Sequence[StepReasons], looked_at: Sequence[LookedAt]) -> str:
    """The page in a sentence."""
    number = sum(len(step.regions) for step in steps)
    begin = f"{number} regions in {len(steps)} step{'s' * (len(steps) != 1)}"
    lifting = [row.name for row in looked_at if row.adds is not None and row.adds > 0][:3]
    if lifting:
        return f"{begin}, chosen above all for {_listed(lifting)}."
    above = [row for row in looked_at if row.adds is None]
    if above:
        row = above[0]
        side, share = ("more", row.below) if row.below >= 0.5 else ("less", 1 - row.below)
        return f"{begin}: they had {side} {row.name} than {percent(share)} of the candidates, in the mean."
    return f"{begin}, chosen without a look at the candidates."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True)
class ClassRow:
    """A class over the pixels of regions: shares of prediction and label, and their agreement."""

    place: int
    name: str
    predicted: float
    labelled: float
    iou: float


def class_rows(steps: Sequence[StepReasons], classes: tuple[str, ...]) -> list[ClassRow]:
    """The classes of all chosen regions that are in prediction or label, the most labelled first."""
    return compared([region for step in steps for region in step.regions], classes)


def compared(regions: Sequence[ChosenRegion], classes: tuple[str, ...]) -> list[ClassRow]:
    """Prediction and label of regions, class by class; pixels that nobody could tell are left out."""
    number = len(classes)
    both = np.zeros((number, number), np.int64)  # [label, prediction]
    for region in regions:
        known = (region.labelled < number) & (region.predicted < number)
        pairs = region.labelled[known].astype(np.int64) * number + region.predicted[known]
        both += np.bincount(pairs, minlength=number * number).reshape(number, number)
    total, hit = max(int(both.sum()), 1), both.diagonal()
    labelled, predicted = both.sum(1), both.sum(0)
    union = labelled + predicted - hit
    rows = [
        ClassRow(c, classes[c], predicted[c] / total, labelled[c] / total, hit[c] / union[c])
        for c in range(number)
        if union[c]
    ]
    return sorted(rows, key=lambda row: -row.labelled)


def agreement(regions: Sequence[ChosenRegion]) -> float | None:
    """Share of the labelled pixels that the prediction had right; None where none is labelled."""
    known = [region.labelled != IGNORE for region in regions]
    pixels = sum(int(mask.sum()) for mask in known)
    right = sum(
        int((region.predicted == region.labelled)[mask].sum()) for region, mask in zip(regions, known, strict=True)
    )
    return right / pixels if pixels else None


def surprise(steps: Sequence[StepReasons], classes: tuple[str, ...]) -> str:
    """How right the network was, and the class that the labels had most more of than it saw."""
    regions = [region for step in steps for region in step.regions]
    right = agreement(regions)
    if right is None:
        return "Nothing in the chosen regions could be labelled."
    said = f"Before it learned from them, the network had {percent(right)} of their pixels right."
    missed = max(compared(regions, classes), key=lambda row: row.labelled - row.predicted)
    if missed.labelled - missed.predicted < 0.01:
        return said
    return (
        f"{said} It overlooked {missed.name} most: {percent(missed.predicted)} predicted, {percent(missed.labelled)} "
        "labelled."
    )


def _step(step: StepReasons, pictures: "_Pictures") -> dict[str, Any]:
    return {
        "number": step.step + 1,
        "spent": percent(step.spent),
        "candidates": step.pools * step.pool_size,
        "regions": [_card(step, region, pictures) for region in step.regions],
    }


@dataclass(frozen=True)
class Shown:
    """A feature of a region, as it is shown."""

    name: str
    value: float
    middle: tuple[float, float]  # half of the candidates lie in it
    below: float
    adds: float | None  # to the score; None: the score is no sum of features


def shown_features(step: StepReasons, region: ChosenRegion) -> list[Shown]:
    """The features of a region, what counted most first."""
    rows = [
        Shown(
            feature.name,
            region.values[place],
            (feature.spread[1], feature.spread[3]),
            region.below[place],
            None if feature.weight is None else feature.weight * region.values[place],
        )
        for place, feature in enumerate(step.features)
    ]
    return sorted(rows, key=lambda row: -abs(row.adds if row.adds is not None else row.below - 0.5))


def _card(step: StepReasons, region: ChosenRegion, pictures: "_Pictures") -> dict[str, Any]:
    features, rows = shown_features(step, region), compared([region], step.classes)
    parts = [row.adds for row in features if row.adds is not None]
    rest = (step.rest, region.score - sum(parts)) if parts and step.rest else None
    return {
        "region": region,
        "standing": standing(step, region),
        "reason": reason(features) if parts else "",
        "foremost": features[:FOREMOST],
        "others": features[FOREMOST:],
        "is_sum": bool(parts),
        "total": sum(parts),
        "rest": rest,
        "widest": max(map(abs, parts), default=0) or 1,
        "right": agreement([region]),
        "iou": _mean([row.iou for row in rows]),
        "predicted": [row for row in sorted(rows, key=lambda row: -row.predicted) if row.predicted >= 0.05],
        "labelled": [row for row in rows if row.labelled >= 0.05],
        "pictures": pictures.of(region, step.step),
    }


def standing(step: StepReasons, region: ChosenRegion) -> str:
    """Where its score stands."""
    said = f"Score {region.score:.3g}: number {region.rank} of {step.pools * step.pool_size} candidates"
    if step.pools == 1:
        return f"{said}."
    if region.pool_rank == 1:
        return f"{said}, the best of the {step.pool_size} in its pool."
    return (
        f"{said}, number {region.pool_rank} of the {step.pool_size} in its pool: better ones were put off or skipped."
    )


def reason(features: Sequence[Shown]) -> str:
    """What lifted a score, and what lowered it, in a sentence; parts below a tenth of the largest are not told."""
    parts = [(row.name, row.adds or 0.0) for row in features]
    widest = max((abs(adds) for _, adds in parts), default=0.0)
    words = [(adds > 0, f"{name} ({signed(adds, widest)})") for name, adds in parts if abs(adds) >= widest / 10]
    up, down = [text for lifts, text in words if lifts][:3], [text for lifts, text in words if not lifts][:1]
    if not up:
        return "No feature lifts it above the average candidate."
    said = f"{_listed(up)} lift{'s' * (len(up) == 1)} it above the average candidate"
    return f"{said}; {down[0]} lowers it." if down else f"{said}."


def _meaning(name: str) -> str:
    """What a feature of ralseg is, in its own words."""
    known = FEATURES.get(name)
    return ((known.describe.__doc__ if known else "") or "").strip().partition("\n")[0].replace(": [R].", ".")


class _Pictures:
    """Pictures of regions as data URLs; each image is read once.

    Args:
        classes: Names of the classes.
        data: The data; None where they are not at hand.
    """

    def __init__(self, classes: tuple[str, ...], data: SegmentationData | None) -> None:
        self.data = data
        self.colours = default_colours(len(classes)) if data is None else tuple(data.dataset.colours)
        self._positions = {} if data is None else {name: place for place, name in enumerate(data.dataset.names)}
        self._last: tuple[str, NDArray[np.uint8]] | None = None

    def of(self, region: ChosenRegion, step: int) -> dict[str, str]:
        """The image with the region in it, the region, its prediction and its label."""
        found = {"predicted": self._map(region.predicted), "labelled": self._map(region.labelled)}
        pixels = self._image(region.image)
        if pixels is None:
            return found
        x, y, width, height = region.box
        crop = Image.fromarray(pixels[y : y + height, x : x + width])
        if not crop.width or not crop.height:
            return found
        crop.thumbnail((CROP_SIDE, CROP_SIDE))
        scale = min(1.0, IMAGE_SIDE / max(pixels.shape[:2]))
        size = (max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[0] * scale)))
        small = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))
        left, top = int(x * scale), int(y * scale)
        box = (left, top, max(1, round((x + width) * scale) - left), max(1, round((y + height) * scale) - top))
        framed = Image.fromarray(draw_boxes(small, [(step, box)], step))
        return found | {"image": _url(framed, "JPEG"), "crop": _url(crop, "PNG")}

    def _image(self, name: str) -> NDArray[np.uint8] | None:
        if self._last is not None and self._last[0] == name:
            return self._last[1]
        if self.data is None or name not in self._positions:
            return None
        self._last = (name, self.data.dataset.read_image(self._positions[name]))
        return self._last[1]

    def _map(self, classes: ClassMap) -> str:
        table = np.full((256, 3), VOID, np.uint8)
        table[: len(self.colours)] = self.colours
        return _url(Image.fromarray(table[classes]), "PNG")


def _url(picture: Image.Image, kind: str) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **({"quality": 85} if kind == "JPEG" else {}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
