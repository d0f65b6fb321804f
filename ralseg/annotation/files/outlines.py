"""Polygons and pixels: which pixels a polygon covers, and polygons that cover exactly the pixels of a mask."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from ralseg.annotation.files.record import Box
from ralseg.annotation.files.rle import Bits

Points = NDArray[np.float64]
"""[n, 2] of x and y; a pixel's square reaches from its number to the next."""
_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # right, down, left, up: the mask is always on the right hand


def covered(polygons: Sequence[Points], box: Box) -> Bits:
    """The pixels of a box whose middle lies in one of the polygons: [height, width].

    A polygon that crosses itself has holes where it is wound round twice (the even-odd rule).

    Examples:
        >>> triangle = np.array([[0, 0], [3, 0], [0, 3]], float)
        >>> covered([triangle], (0, 0, 3, 3)).astype(int).tolist()
        [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    inside = np.zeros((box[3], box[2]), bool)
    for polygon in polygons:
        rows, columns = _window(polygon, box)
        window = inside[rows, columns]
        window |= _covered_by_one(polygon - (box[0] + columns.start, box[1] + rows.start), *window.shape)
    return inside


def _window(polygon: Points, box: Box) -> tuple[slice, slice]:
    """The rows and columns of a box that a polygon can reach."""
    size = np.array(box[2:])
    first = np.clip(np.floor(polygon.min(0)) - box[:2], 0, size).astype(int).tolist()
    last = np.clip(np.ceil(polygon.max(0)) - box[:2], 0, size).astype(int).tolist()
    return slice(first[1], last[1]), slice(first[0], last[0])


def _covered_by_one(polygon: Points, height: int, width: int) -> Bits:
    """Each edge flips the pixels to its right in the rows that it crosses; what is flipped an odd number is inside."""
    flips = np.zeros((height, width + 1), bool)
    start = polygon - 0.5  # middles of pixels have whole numbers now
    end = np.roll(start, -1, axis=0)
    upper = np.minimum(start[:, 1], end[:, 1])
    lower = np.maximum(start[:, 1], end[:, 1])
    first = np.clip(np.ceil(upper), 0, height).astype(np.int64)
    last = np.clip(np.ceil(lower), 0, height).astype(np.int64)
    for edge in np.flatnonzero(first < last):
        rows = np.arange(first[edge], last[edge])
        (from_x, from_y), (to_x, to_y) = start[edge], end[edge]
        crossing = from_x + (rows - from_y) * ((to_x - from_x) / (to_y - from_y))
        columns = np.clip(np.ceil(crossing), 0, width).astype(np.int64)
        flips[rows, columns] ^= True
    return np.logical_xor.accumulate(flips, axis=1)[:, :width]


def rectangle(left: float, top: float, right: float, bottom: float, degrees: float = 0.0) -> Points:
    """The corners of a box, turned clockwise about its middle.

    Examples:
        >>> rectangle(0, 0, 4, 2, 90).round().tolist()
        [[3.0, -1.0], [3.0, 3.0], [1.0, 3.0], [1.0, -1.0]]
    """
    corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]], float)
    if not degrees:
        return corners
    middle, turn = corners.mean(0), math.radians(degrees)
    matrix = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    turned: Points = (corners - middle) @ matrix + middle
    return turned


def outlines(bits: Bits) -> list[NDArray[np.int64]]:
    """Polygons along the edges of pixels that cover a mask exactly: a list of [n, 2].

    Formats of polygons know no holes: a part with holes is cut in two through one of them, until none is left.

    Examples:
        >>> [outline.tolist() for outline in outlines(np.array([[0, 1], [0, 1]], bool))]
        [[[1, 0], [2, 0], [2, 2], [1, 2]]]
    """
    found, waiting = [], _parts(bits, 0, 0)
    while waiting:
        part, x, y = waiting.pop()
        holes = [(window, x) for window, x, _ in _parts(~np.pad(part, 1), 0, 0)[1:]]
        if not holes:
            found.append(_outline(part) + np.array([x, y]))
            continue
        hole, left = holes[len(holes) // 2]
        column = left - 1 + hole.shape[1] // 2  # the padding is one pixel wide
        waiting += _parts(part[:, :column], x, y) + _parts(part[:, column:], x + column, y)
    return sorted(found, key=lambda outline: (outline[0, 1], outline[0, 0]))


def _parts(bits: Bits, x: int, y: int) -> list[tuple[Bits, int, int]]:
    """The parts of a mask whose pixels hang together by their sides, cut out, with their places."""
    numbers, _ = ndimage.label(bits)
    return [
        (numbers[rows, columns] == number, x + columns.start, y + rows.start)
        for number, (rows, columns) in enumerate(ndimage.find_objects(numbers), start=1)
    ]


def _outline(part: Bits) -> NDArray[np.int64]:
    """The corners of a part without holes, clockwise from the left end of its first row."""
    padded = np.pad(part, 1)
    # a step that has the part on its right hand and nothing on its left: [4, height + 1, width + 1] by its start
    right = padded[1:, 1:] & ~padded[:-1, 1:]
    down = padded[1:, :-1] & ~padded[1:, 1:]
    left = padded[:-1, :-1] & ~padded[1:, :-1]
    up = padded[:-1, 1:] & ~padded[:-1, :-1]
    open_steps = np.stack([right, down, left, up])
    x, y, direction = int(np.argmax(part[0])), 0, 0
    corners = [(x, y)]
    while True:
        x, y = x + _STEPS[direction][0], y + _STEPS[direction][1]
        if (x, y) == corners[0]:
            return np.array(corners, np.int64)
        turns = (direction + 1) % 4, direction, (direction + 3) % 4  # to the right first: parts touch at corners
        following = next(turn for turn in turns if open_steps[turn, y, x])
        if following != direction:
            corners.append((x, y))
            direction = following
