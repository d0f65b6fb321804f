"""Superpixels: patches of similar pixels that an annotator paints with one click."""

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

PATCHES = (24, 16, 11, 8, 5, 3)
"""Patches along the longer side of a region, from the finest level to the coarsest."""
LEAST = 3
"""Pixels along a patch, at least: smaller ones are no help."""
MOST_PIXELS = 400 * 400
"""Larger regions are cut at a lower resolution."""
_ROUNDS = 6
_FAINT = 20.0  # grey levels that count as full contrast, at least: noise is no edge
_STIFFNESS = 12.0  # how much a pixel's place counts beside its colour

Labels = NDArray[np.uint16]


def superpixels(image: NDArray[np.uint8], level: int) -> Labels:
    """Number of the patch that each pixel belongs to, by k-means on colour and place in a grid of seeds (SLIC).

    A patch is connected, and its pixels look alike: with one click a person paints what a brush would have to follow.

    Args:
        image: [height, width, 3].
        level: A position in ``PATCHES``: 0 gives the smallest patches.

    Examples:
        >>> halves = np.zeros((24, 24, 3), np.uint8)
        >>> halves[:, 13:] = 255
        >>> found = superpixels(halves, 5)
        >>> set(found[:, :13].flat) & set(found[:, 13:].flat)  # no patch crosses the edge
        set()
    """
    height, width = image.shape[:2]
    shrink = max(1, int(np.ceil(np.sqrt(height * width / MOST_PIXELS))))
    small = image[::shrink, ::shrink]
    spacing = max(LEAST, max(small.shape[:2]) / PATCHES[level])
    found = _connected(_clustered(_as_seen(small), spacing), spacing**2 / 4)
    return found.repeat(shrink, 0).repeat(shrink, 1)[:height, :width]


def _as_seen(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Lightness and two opponent colours, smoothed a little; roughly as far apart as they look: [3, height, width].

    Dark and pale images are stretched: their edges are edges, too.
    """
    low, high = np.percentile(image, (1, 99))
    red, green, blue = np.moveaxis((image.astype(np.float32) - low) * (100 / max(high - low, _FAINT)), -1, 0)
    seen = np.stack([0.3 * red + 0.6 * green + 0.1 * blue, (red - green) * 0.7, (red + green - 2 * blue) * 0.4])
    smooth: NDArray[np.float32] = ndimage.gaussian_filter(seen, (0, 0.6, 0.6))
    return smooth


def _clustered(seen: NDArray[np.float32], spacing: float) -> NDArray[np.int64]:
    """K-means in which a pixel may only go to the seeds of its own cell of the grid and the eight around it."""
    _, height, width = seen.shape
    rows, columns = max(1, round(height / spacing)), max(1, round(width / spacing))
    y, x = np.mgrid[:height, :width].astype(np.float32)
    weight = _STIFFNESS / spacing
    values = np.concatenate([seen, weight * y[None], weight * x[None]]).reshape(5, -1)
    cell_y = np.minimum((y * rows / height).astype(np.int64), rows - 1).ravel()
    cell_x = np.minimum((x * columns / width).astype(np.int64), columns - 1).ravel()
    labels: NDArray[np.int64] = cell_y * columns + cell_x
    for _ in range(_ROUNDS):
        sizes = np.bincount(labels, minlength=rows * columns)
        sums = np.stack([np.bincount(labels, each, rows * columns) for each in values])
        centres = (sums / np.maximum(sizes, 1)).astype(np.float32)
        best = np.full(labels.shape, np.inf, np.float32)
        for down in (-1, 0, 1):
            for right in (-1, 0, 1):
                near = np.clip(cell_y + down, 0, rows - 1) * columns + np.clip(cell_x + right, 0, columns - 1)
                distance = ((values - centres[:, near]) ** 2).sum(0)
                distance[sizes[near] == 0] = np.inf
                closer = distance < best
                best[closer], labels[closer] = distance[closer], near[closer]
    return labels.reshape(height, width)


def _connected(labels: NDArray[np.int64], least: float) -> Labels:
    """Patches that hang together; pieces smaller than ``least`` pixels join the neighbour with the longest border."""
    height, width = labels.shape
    places = np.arange(height * width).reshape(height, width)
    pairs = [(places[:, :-1], places[:, 1:]), (places[:-1], places[1:])]
    first, second = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    same = labels.ravel()[first] == labels.ravel()[second]
    graph = coo_matrix((np.ones(same.sum()), (first[same], second[same])), (places.size, places.size))
    count, pieces = connected_components(graph, directed=False)
    one, two = pieces[first[~same]], pieces[second[~same]]
    borders = coo_matrix((np.ones(2 * len(one)), (np.r_[one, two], np.r_[two, one])), (count, count)).tocsr()
    sizes, joins = np.bincount(pieces, minlength=count), np.arange(count)
    for piece in np.argsort(sizes, kind="stable"):
        start, end = borders.indptr[piece], borders.indptr[piece + 1]
        if sizes[piece] >= least or start == end:
            continue
        neighbours = borders.indices[start:end]
        larger = sizes[neighbours] > sizes[piece]  # towards larger ones only: nothing goes in circles
        if larger.any():
            joins[piece] = neighbours[larger][borders.data[start:end][larger].argmax()]
    while (joins != joins[joins]).any():
        joins = joins[joins]
    _, numbers = np.unique(joins[pieces], return_inverse=True)
    return numbers.reshape(height, width).astype(np.uint16)
