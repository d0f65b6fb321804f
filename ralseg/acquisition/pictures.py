"""Pictures of regions: which class each pixel is, at as few pixels as people need to see it."""

import math

import torch
from torch import Tensor

from ralseg.labels.vault import IGNORE

PICTURE = "picture"
"""Name of the pictures among what was measured of candidates."""
LARGEST = 64
SMALLEST = 8
MEMORY = 2**25
"""Bytes that the pictures of all candidates of a step may take together."""


def side_for(count: int) -> int:
    """The largest height and width of a picture, so that ``count`` of them fit into memory.

    Examples:
        >>> side_for(240), side_for(25_600), side_for(10**7)
        (64, 36, 8)
    """
    return max(SMALLEST, min(LARGEST, math.isqrt(MEMORY // max(count, 1))))


def picture(classes: Tensor, inside: Tensor | None, side: int) -> Tensor:
    """Maps of classes at no more than ``side`` x ``side`` of their pixels; 255 outside of a region.

    Args:
        classes: [r, h, w] class numbers, 255 for void.
        inside: [r, h, w] which pixels belong to the region; None: all of them.
        side: Rows and columns that are kept: all, or so many at even distances.
    """
    if inside is not None:
        classes = torch.where(inside, classes, IGNORE)
    for axis in (1, 2):
        if classes.shape[axis] > side:
            classes = classes.index_select(axis, _kept(classes.shape[axis], side).to(classes.device))
    return classes.to(torch.uint8)


def _kept(count: int, side: int) -> Tensor:
    """The rows, or columns, of a picture: the middles of ``side`` equal parts."""
    return (2 * torch.arange(side) + 1) * count // (2 * side)
