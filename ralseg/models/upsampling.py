"""Bilinear upsampling as products with matrices, so that it can be done at some of the pixels only."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # one that a test was the first to ask for may serve a training later
def upsampling_matrix(small: int, padded: int, kept: int, stride: int) -> Tensor:
    """Linear interpolation from ``small`` to ``padded`` points (ends aligned), every ``stride``-th of ``kept``."""
    position = torch.arange(0, kept, stride, dtype=torch.float64) * (small - 1) / max(padded - 1, 1)
    low = position.floor().long().clamp(max=max(small - 2, 0))
    fraction = position - low
    matrix = torch.zeros(len(position), small, dtype=torch.float64)
    rows = torch.arange(len(position))
    matrix[rows, low] = 1 - fraction
    matrix[rows, (low + 1).clamp(max=small - 1)] += fraction
    return matrix.float()


class Windowed(NamedTuple):
    """How values in windows of a line follow from the few coarse points near each."""

    points: Tensor  # [r, n] the coarse points
    weights: Tensor  # [r, length, n] what each counts

    @staticmethod
    def of(matrix: Tensor, starts: Tensor, length: int) -> "Windowed":
        """Rows of an interpolation matrix [fine, coarse] from each start on: [r] starts."""
        fine = torch.arange(length, device=starts.device)
        weights = matrix[(starts[:, None] + fine).clamp(max=len(matrix) - 1)]
        is_near = (weights != 0).any(1).int()
        first, last = is_near.argmax(1), matrix.shape[1] - 1 - is_near.flip(1).argmax(1)
        count = int((last - first).max()) + 1
        points = first.clamp(max=matrix.shape[1] - count)[:, None] + torch.arange(count, device=starts.device)
        return Windowed(points, weights.gather(2, points[:, None].expand(-1, length, -1)))
