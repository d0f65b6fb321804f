"""The contact sheet: some images of each set with their classes, as the run will see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ralseg.data.canvas import Size
from ralseg.data.datamodule import SegmentationData
from ralseg.data.readers import IGNORE
from ralseg.data.survey import Survey
from ralseg.errors import RalsegError

COLUMNS = 4
TILE = 300
"""Pixels of a tile's longer side."""
_GAP, _SEAM, _LINE = 12, 4, 18
_PAPER, _INK, _PADDING = (255, 255, 255), (30, 30, 30), (225, 225, 225)
_BROKEN, _CROSS = (255, 235, 230), (200, 30, 30)
_REGION = np.array([255, 220, 0])
_STRIPES = np.array([[60, 60, 60], [215, 215, 215]], np.uint8)

_Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class _Sheet:
    """What all tiles have in common."""

    data: SegmentationData
    found: Survey
    size: Size  # that the run works at
    tile: Size
    cut: bool  # whether images can be cut into regions


def contact_sheet(data: SegmentationData, found: Survey, rows: Mapping[str, Sequence[int]], size: Size) -> Image.Image:
    """Draw some images of each row, the classes of each below it, and a legend.

    The images that cannot be read come first in their row: a crossed tile stands for them.

    Args:
        data: The data; where it is set up, the regions of images are drawn.
        found: What a survey found in it.
        rows: Images of each row by its title: sets of the game, or subsets.
        size: (height, width) that the run works at.
    """
    scale = TILE / max(size)
    tile = (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))
    sheet = _Sheet(data, found, size, tile, _can_be_cut(data))
    chosen = {title: _choose(indices, found) for title, indices in rows.items()}
    width = COLUMNS * (tile[1] + _GAP) + _GAP
    legend = _legend(sheet, width)
    row_height = _LINE + _GAP + 2 * tile[0] + _SEAM + _LINE + _GAP
    heights = [row_height if indices else _LINE + _GAP for indices in chosen.values()]
    picture = Image.new("RGB", (width, legend.height + sum(heights) + _GAP), _PAPER)
    picture.paste(legend, (0, 0))
    pen = ImageDraw.Draw(picture)
    top = legend.height
    for (title, indices), height in zip(chosen.items(), heights, strict=True):
        pen.text((_GAP, top), _text(f"{title}: {len(rows[title])} images"), _INK, _font(15))
        for column, index in enumerate(indices):
            left = _GAP + column * (tile[1] + _GAP)
            picture.paste(_tiles(sheet, index), (left, top + _LINE + 4))
            name = _fitting(_text(data.dataset.names[index]), tile[1])
            pen.text((left, top + _LINE + 6 + _SEAM + 2 * tile[0]), name, _INK, _font(12))
        top += height
    return picture


def _can_be_cut(data: SegmentationData) -> bool:
    """Whether the data is set up far enough, and its layout fits."""
    if not hasattr(data, "masks"):
        return False
    try:
        data.regions([0])
    except RalsegError:
        return False
    return True


def _choose(indices: Sequence[int], found: Survey) -> list[int]:
    """Broken images first, half of the row at most; the others from all over the row."""
    broken = [i for i in indices if i in found.image_errors or i in found.mask_errors][: COLUMNS // 2]
    good = [i for i in indices if i not in found.image_errors and i not in found.mask_errors]
    number = min(COLUMNS - len(broken), len(good))
    return broken + [good[place] for place in np.linspace(0, len(good) - 1, number).astype(int)]


# -- tiles -------------------------------------------------------------------------------------------


def _tiles(sheet: _Sheet, index: int) -> Image.Image:
    """An image and, below it, its classes."""
    height, width = sheet.tile
    below = height + _SEAM
    both = Image.new("RGB", (width, below + height), _PAPER)
    dataset = sheet.data.dataset
    if index in sheet.found.image_errors:
        both.paste(_crossed(sheet.tile, "image cannot be read"), (0, 0))
    else:
        both.paste(Image.fromarray(_with_regions(sheet, index, _place(sheet, index, dataset.read_image(index)))))
    if index in sheet.found.mask_errors:
        both.paste(_crossed(sheet.tile, "mask cannot be read"), (0, below))
    elif not dataset.has_mask(index):
        pen = ImageDraw.Draw(both)
        pen.rectangle((0, below, width - 1, below + height - 1), outline=_PADDING)
        pen.text((6, below + 6), "no mask", _INK, _font(13))
    elif index not in sheet.found.image_errors:
        both.paste(Image.fromarray(_with_regions(sheet, index, _classes(sheet, index))), (0, below))
    return both


def _place(sheet: _Sheet, index: int, pixels: _Pixels, smooth: bool = True) -> _Pixels:
    """Bring an image or a mask to its part of the tile, as the canvas does: [h, w, ...] -> [H, W, 3]."""
    content = sheet.data.canvas.content(pixels.shape[0], pixels.shape[1])
    height, width = (max(1, round(c * t / s)) for c, t, s in zip(content, sheet.tile, sheet.size, strict=True))
    method = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    small = np.asarray(Image.fromarray(pixels).resize((width, height), method))
    tile = np.full((*sheet.tile, 3), _PADDING, np.uint8)
    part = tile[:height, :width]
    part[:] = (small if smooth else _coloured(sheet, small))[: part.shape[0], : part.shape[1]]
    return tile


def _classes(sheet: _Sheet, index: int) -> _Pixels:
    return _place(sheet, index, sheet.data.dataset.read_mask(index), smooth=False)


def _coloured(sheet: _Sheet, mask: _Pixels) -> _Pixels:
    """The colours of classes; void is striped: [h, w] -> [h, w, 3]."""
    colours = np.zeros((IGNORE + 1, 3), np.uint8)
    colours[: len(sheet.data.class_names)] = sheet.data.dataset.colours
    drawn = colours[mask]
    drawn[mask == IGNORE] = _stripes(*mask.shape)[mask == IGNORE]
    return drawn


def _stripes(height: int, width: int) -> _Pixels:
    stripes: _Pixels = _STRIPES[(np.arange(height)[:, None] + np.arange(width)) // 4 % 2]
    return stripes


def _with_regions(sheet: _Sheet, index: int, tile: _Pixels) -> _Pixels:
    """Draw the edges of the image's regions in thin lines: [H, W, 3]."""
    numbers = _region_numbers(sheet, index) if sheet.cut else None
    if numbers is None:
        return tile
    height, width = sheet.tile
    rows = np.arange(height) * numbers.shape[0] // height
    columns = np.arange(width) * numbers.shape[1] // width
    small = numbers[rows][:, columns]
    edge = np.zeros(small.shape, bool)
    edge[1:] |= small[1:] != small[:-1]
    edge[:, 1:] |= small[:, 1:] != small[:, :-1]
    drawn = tile.copy()
    drawn[edge] = (0.3 * tile[edge] + 0.7 * _REGION).astype(np.uint8)
    return drawn


def _region_numbers(sheet: _Sheet, index: int) -> NDArray[np.int64] | None:
    """The region of each pixel of the run's size, -1 in the padding; None where the image cannot be cut."""
    try:
        regions = sheet.data.regions([index])
        numbers = np.full(sheet.size, -1, np.int64)
        for region, (x, y, width, height) in enumerate(regions.boxes(torch.arange(len(regions))).tolist()):
            inside = regions.inside(region)
            window = numbers[y : y + height, x : x + width]
            window[... if inside is None else inside.numpy()] = region
    except RalsegError:
        return None
    return numbers


def _crossed(size: Size, reason: str) -> Image.Image:
    height, width = size
    tile = Image.new("RGB", (width, height), _BROKEN)
    pen = ImageDraw.Draw(tile)
    pen.line((0, 0, width, height), _CROSS, 2)
    pen.line((0, height, width, 0), _CROSS, 2)
    pen.text((6, 6), reason, _CROSS, _font(13))
    return tile


# -- text --------------------------------------------------------------------------------------------


def _legend(sheet: _Sheet, width: int) -> Image.Image:
    """One swatch a class, then void, padding and regions, in as many lines as they need."""
    names = [*sheet.data.class_names, "void", "padding", *(["regions"] if sheet.cut else [])]
    places, x, y = [], _GAP, _GAP
    for name in names:
        needed = 30 + int(_font(13).getlength(_text(name))) + 14
        if x + needed > width and x > _GAP:
            x, y = _GAP, y + _LINE + 4
        places.append((x, y))
        x += needed
    picture = Image.new("RGB", (width, y + _LINE + 2 * _GAP), _PAPER)
    pen = ImageDraw.Draw(picture)
    for number, (name, (x, y)) in enumerate(zip(names, places, strict=True)):
        picture.paste(Image.fromarray(_swatch(sheet, number)), (x, y))
        pen.rectangle((x, y, x + 23, y + 15), outline=_INK)
        pen.text((x + 30, y), _text(name), _INK, _font(13))
    return picture


def _swatch(sheet: _Sheet, number: int) -> _Pixels:
    """The sample of a line of the legend: [16, 24, 3]."""
    if number < len(sheet.data.class_names):
        return np.full((16, 24, 3), sheet.data.dataset.colours[number], np.uint8)
    if number == len(sheet.data.class_names):
        return _stripes(16, 24)
    swatch = np.full((16, 24, 3), _PADDING, np.uint8)
    if number > len(sheet.data.class_names) + 1:
        swatch[:, 12] = swatch[8] = _REGION
    return swatch


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _text(text: str) -> str:
    """What the font can draw of it."""
    return "".join(c if c.isprintable() else "?" for c in text.encode("latin-1", "replace").decode("latin-1"))


def _fitting(text: str, width: int) -> str:
    """The end of a text that fits into so many pixels."""
    while len(text) > 4 and _font(12).getlength(text) > width:
        text = "..." + text[4:]
    return text
