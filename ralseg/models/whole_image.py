"""From one image of any size to the class of each of its own pixels, in memory that does not grow with the classes.

A network that was trained on a canvas sees the image as training showed it: scaled to fit, padded. Its logits are
scaled back strip by strip. A network that was trained on images of their own size sees them so, large ones in tiles.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ralseg.data.canvas import Canvas, pad_image
from ralseg.errors import ConfigError

TILE = 1024
"""Pixels of a tile's side. Images of up to two tiles' area are not cut: Cityscapes' 1024x2048 is one piece."""
OVERLAP = 128
"""Pixels at each inner side of a tile that only give context, and are taken from its neighbour."""
_WHOLE = 32  # tiles begin at multiples of this, so that a network's strides fall on the same pixels as without tiles
_STRIP_BYTES = 16_000_000  # logits that are scaled back at a time


class Place(NamedTuple):
    """Where a tile lies in an image."""

    top: int
    left: int
    height: int  # of the image
    width: int


class Span(NamedTuple):
    """One side of a tile: what it shows, and the part of it that is kept."""

    start: int
    stop: int
    kept_from: int
    kept_to: int


@dataclass(frozen=True)
class ImagePrediction:
    """What a segmenter says about one image, in the image's own size.

    Args:
        classes: [H, W] positions in the segmenter's ``class_names``.
        confidence: [H, W] probability of that class; None where nobody asked for it.
        probabilities: [C, H, W] of all classes; None where nobody asked for them.
    """

    classes: NDArray[np.uint8]
    confidence: NDArray[np.float32] | None = None
    probabilities: NDArray[np.float16] | None = None


class _Sheet:
    """The prediction as it fills, part by part.

    Args:
        num_classes: C.
        size: (height, width) of the image.
        confidence: Whether to keep it.
        probabilities: Whether to keep them.
    """

    def __init__(self, num_classes: int, size: tuple[int, int], confidence: bool, probabilities: bool) -> None:
        self.classes = np.zeros(size, np.uint8)
        self.confidence = np.zeros(size, np.float32) if confidence else None
        self.probabilities = np.zeros((num_classes, *size), np.float16) if probabilities else None

    def put(self, logits: Tensor, top: int, left: int) -> None:
        """Take in the logits of a part of the image: [C, h, w]."""
        height, width = logits.shape[1:]
        there = np.s_[top : top + height, left : left + width]
        highest, classes = logits.max(0)
        self.classes[there] = classes.to(torch.uint8).cpu().numpy()
        if self.confidence is not None:
            self.confidence[there] = (highest - logits.logsumexp(0)).exp().cpu().numpy()
        if self.probabilities is not None:
            self.probabilities[:, *there] = logits.softmax(0).half().cpu().numpy()

    def prediction(self) -> ImagePrediction:
        """All of it."""
        return ImagePrediction(self.classes, self.confidence, self.probabilities)


def segment(
    network: Callable[[Tensor, Place], Tensor],
    pixels: NDArray[np.uint8],
    canvas: Canvas,
    num_classes: int,
    tile: int = TILE,
    confidence: bool = False,
    probabilities: bool = False,
) -> ImagePrediction:
    """Predict one image.

    Args:
        network: Gives the logits [1, C, h, w] of [1, 3, h, w], the tile of an image at a place.
        pixels: [H, W, 3].
        canvas: How training showed images to the network.
        num_classes: C.
        tile: Pixels of a tile's side, where the canvas keeps images at their own size; 0 for no tiles.
        confidence: Also give the probability of each pixel's class.
        probabilities: Also give those of all classes, which takes C times two bytes a pixel.
    """
    height, width = pixels.shape[:2]
    image = torch.from_numpy(pixels if pixels.flags.writeable else pixels.copy()).movedim(-1, 0)
    sheet = _Sheet(num_classes, (height, width), confidence, probabilities)
    if canvas.room is not None and height <= canvas.room[0] and width <= canvas.room[1]:
        logits = network(pad_image(image, canvas.room)[None], Place(0, 0, *canvas.room))[0]
        for top, strip in _strips(logits[:, :height, :width]):
            sheet.put(strip, top, 0)
    elif canvas.size is None:
        for rows, columns in tiles(height, width, tile):
            part = image[:, rows.start : rows.stop, columns.start : columns.stop].contiguous()
            logits = network(part[None], Place(rows.start, columns.start, height, width))[0]
            kept = logits[:, _within(rows), _within(columns)]
            for top, strip in _strips(kept):
                sheet.put(strip, rows.kept_from + top, columns.kept_from)
    else:
        fitted = canvas.fit_image(image)
        del image
        logits = network(pad_image(fitted, canvas.size)[None], Place(0, 0, *canvas.size))[0]
        content = logits[:, : fitted.shape[-2], : fitted.shape[-1]]
        for top, strip in enlarged_strips(content, height, width):
            sheet.put(strip, top, 0)
    return sheet.prediction()


# -- tiles -------------------------------------------------------------------------------------------


def tiles(height: int, width: int, tile: int = TILE, overlap: int = OVERLAP) -> Iterator[tuple[Span, Span]]:
    """Cut an image into overlapping tiles whose kept parts cover each pixel once; yields (rows, columns).

    Each pixel that is kept lies ``overlap`` pixels or more from every side of its tile that is not the image's own. So
    tiles change nothing for a network that looks no further around a pixel. Networks with statistics of whole images
    (the group normalisation of an FPN's decoder, pooling over the image) differ; docs/predict.md says how much.

    Args:
        height: Of the image.
        width: Of the image.
        tile: Side of a tile; images of up to two tiles' area are one piece, and so is every image with 0.
        overlap: Context at each inner side.

    Examples:
        >>> [(rows.kept_to, columns.kept_to) for rows, columns in tiles(1024, 2048)]
        [(1024, 2048)]
        >>> len(list(tiles(3000, 4000)))
        20
    """
    if tile and (tile % _WHOLE or overlap % _WHOLE or tile < 2 * overlap + _WHOLE):
        raise ConfigError(
            f"--tile {tile}: must be a multiple of {_WHOLE} from {2 * overlap + _WHOLE} on, or 0 for no tiles"
        )
    if not tile or height * width <= 2 * tile * tile:
        yield Span(0, height, 0, height), Span(0, width, 0, width)
        return
    for rows in _spans(height, tile, overlap):
        for columns in _spans(width, tile, overlap):
            yield rows, columns


def _spans(length: int, tile: int, overlap: int) -> list[Span]:
    last = max(0, -(-(length - tile) // _WHOLE) * _WHOLE)
    starts = [*range(0, last, tile - 2 * overlap), last]
    cuts = [(start + tile + following) // 2 for start, following in pairwise(starts)]
    bounds = zip([0, *cuts], [*cuts, length], strict=True)
    return [Span(start, min(start + tile, length), *kept) for start, kept in zip(starts, bounds, strict=True)]


def _within(span: Span) -> slice:
    """What is kept, counted from the tile's own beginning."""
    return slice(span.kept_from - span.start, span.kept_to - span.start)


# -- strips ------------------------------------------------------------------------------------------


def _strips(logits: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Logits [C, h, w] a few rows at a time, with the number of the first."""
    rows = _strip_rows(logits.shape[0], logits.shape[2])
    for top in range(0, logits.shape[1], rows):
        yield top, logits[:, top : top + rows]


def _strip_rows(num_classes: int, width: int) -> int:
    return max(1, _STRIP_BYTES // (4 * num_classes * width))


def enlarged_strips(logits: Tensor, height: int, width: int) -> Iterator[tuple[int, Tensor]]:
    """Bilinear scaling of logits [C, h, w] to [C, height, width], a few rows at a time, with the number of the first.

    Together they are what ``interpolate(..., mode="bilinear", align_corners=False)`` gives at once.
    """
    if logits.shape[1:] == (height, width):
        yield from _strips(logits)
        return
    rows = _strip_rows(len(logits), width)
    small = logits.shape[1]
    for top in range(0, height, rows):
        wanted = torch.arange(top, min(top + rows, height), dtype=torch.float64, device=logits.device)
        position = ((wanted + 0.5) * (small / height) - 0.5).clamp(0, small - 1)
        low = position.floor().long()
        share = (position - low).to(logits.dtype)[:, None]
        between = torch.lerp(logits[:, low], logits[:, (low + 1).clamp(max=small - 1)], share)
        yield top, functional.interpolate(between[None], (len(wanted), width), mode="bilinear", align_corners=False)[0]
