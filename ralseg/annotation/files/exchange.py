"""Between a request and files: what is wanted as records to write, and what a file answers, checked first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ralseg.annotation.answers import Answers
from ralseg.annotation.files.names import match_images
from ralseg.annotation.files.record import UNKNOWN, FoundImage, LabelRecord, Mask, by_image, paste
from ralseg.annotation.request import WantedRegion
from ralseg.errors import DataError

_SHOWN = 10


def wanted_records(answers: Answers) -> list[LabelRecord]:
    """The regions that still wait for an answer, most wanted first, with what the model takes them for."""
    records = []
    for wanted in answers.wanted_now():
        mask = answers.prediction(wanted.region)
        if mask is None or mask.shape != wanted.shape:
            mask = np.full(wanted.shape, UNKNOWN, np.uint8)
        mask = np.where(answers.inside(wanted.region), mask, UNKNOWN).astype(np.uint8)
        records.append(replace(_record(wanted, mask), rank=wanted.rank))
    return records


def labelled_records(answers: Answers) -> list[LabelRecord]:
    """All that people have labelled so far, for this request and earlier ones: one record of each image."""
    parts = []
    for region in answers.versions():
        wanted, mask = answers.wanted(region), answers.mask(region)
        assert mask is not None
        parts.append(_record(wanted, np.where(answers.inside(wanted.region), mask, UNKNOWN).astype(np.uint8)))
    return [whole_record(group) for group in by_image(parts).values()]


def whole_record(records: list[LabelRecord]) -> LabelRecord:
    """Records of one image as one of all its pixels."""
    first = records[0]
    return LabelRecord(first.image, first.width, first.height, (0, 0, first.width, first.height), paste(records))


def _record(wanted: WantedRegion, mask: Mask) -> LabelRecord:
    box = (wanted.x, wanted.y, wanted.width, wanted.height)
    return LabelRecord(wanted.image, wanted.image_width, wanted.image_height, box, mask)


@dataclass(frozen=True)
class Answered:
    """What a file answers of a request.

    Attributes:
        masks: By region.
        as_predicted: Regions whose mask is the model's prediction.
        absent: Regions whose image is not in the file.
        empty: Regions in which nothing is drawn.
    """

    masks: dict[int, Mask]
    as_predicted: list[int]
    absent: list[int]
    empty: list[int]


def read_answers(
    answers: Answers,
    found: Sequence[FoundImage],
    source: str,
    rest: int | None = None,
    overwrite: bool = False,
) -> Answered:
    """Cut the labels of a file to the regions of a request. Nothing is kept yet; all that is wrong is said at once.

    Args:
        answers: Of the request.
        found: Images of the file.
        source: The file, for messages.
        rest: Class of pixels that nothing is drawn on; None: they are unknown, and a region without any drawing is
            not answered.
        overwrite: Also take regions that are answered already.
    """
    wanted = list(answers.wanted_now())
    if overwrite:
        known = answers.versions()
        wanted += [region for region in answers.request.regions if region.region in known]
    images = match_images(dict.fromkeys(region.image for region in wanted), found, source)
    if wanted and not images:
        raise DataError(
            f"{source}: holds none of the images that the request wants ({_listed(r.image for r in wanted)}), but "
            f"{_listed(image.name for image in found)}"
        )
    there = [region for region in wanted if region.image in images]
    masks = _cut_all(answers, there, images, source)
    empty = [region for region, mask in masks.items() if (mask == UNKNOWN).all() and rest is None]
    for region in there:
        if rest is not None:
            mask = masks[region.region]
            mask[(mask == UNKNOWN) & answers.inside(region.region)] = rest
    return Answered(
        {region: mask for region, mask in masks.items() if region not in empty},
        [region.region for region in there if _is_prediction(answers, region, masks[region.region])],
        [region.region for region in wanted if region.image not in images],
        empty,
    )


def _cut_all(
    answers: Answers, regions: list[WantedRegion], images: dict[str, FoundImage], source: str
) -> dict[int, Mask]:
    """The labels of regions; what is wrong with any of them is in one error."""
    masks: dict[int, Mask] = {}
    problems: dict[str, None] = {}
    for region in regions:
        try:
            masks[region.region] = _cut(answers, region, images[region.image], source)
        except DataError as error:
            problems[str(error)] = None
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise DataError("; ".join(list(problems)[:_SHOWN]) + more)
    return masks


def _cut(answers: Answers, wanted: WantedRegion, image: FoundImage, source: str) -> Mask:
    if (image.width, image.height) != (wanted.image_width, wanted.image_height):
        raise DataError(
            f"{source}: image {image.name!r} has {image.width}x{image.height} pixels, {wanted.image!r} of the request "
            f"{wanted.image_width}x{wanted.image_height} (width x height); label the image at its own size"
        )
    mask = image.cut((wanted.x, wanted.y, wanted.width, wanted.height))
    return np.where(answers.inside(wanted.region), mask, UNKNOWN).astype(np.uint8)


def _is_prediction(answers: Answers, wanted: WantedRegion, mask: Mask) -> bool:
    predicted = answers.prediction(wanted.region)
    if predicted is None or predicted.shape != mask.shape:
        return False
    return bool(((mask == predicted) | ~answers.inside(wanted.region)).all())


def _listed(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - 3} more" if len(unique) > 3 else ""
    return ", ".join(repr(name[:80]) for name in unique[:3]) + more or "no image"
