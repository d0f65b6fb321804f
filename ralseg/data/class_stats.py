"""How classes are distributed: pixels of each class, distances, and small sets that resemble large ones."""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon

from ralseg.data.base import SegmentationDataset


def class_counts(dataset: SegmentationDataset, index: int) -> NDArray[np.int64]:
    """Pixels of each class in an image, void left out: [classes]."""
    key = dataset.mask_key(index)
    counts = dataset.copies.get(
        None if key is None else ["counts", *key],
        lambda: np.bincount(dataset.read_mask(index).ravel(), minlength=256),
    )
    return counts[: len(dataset.class_names)]


def class_distance(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Jensen-Shannon distance (base 2, from 0 to 1) of two images' or sets' class counts."""
    with np.errstate(invalid="ignore"):  # of equal counts, rounding may leave the root of less than nothing
        return float(np.nan_to_num(jensenshannon(first + 1e-9, second + 1e-9, base=2)))


def choose_representative(counts: NDArray[np.int64], size: int, rng: np.random.Generator) -> tuple[list[int], float]:
    """Pick ``size`` rows of ``counts`` [images, classes] whose sum is distributed like the remaining rows'.

    Starts from the best of many random draws and improves it by swaps. Returns the rows and the
    Jensen-Shannon distance that is left.
    """
    total = counts.sum(0)

    def distance(rows: list[int]) -> float:
        chosen = counts[rows].sum(0)
        return class_distance(chosen, total - chosen)

    draws = [list(map(int, rng.choice(len(counts), size, replace=False))) for _ in range(64)]
    best = min(draws, key=distance)
    best_distance = distance(best)
    for _ in range(10):
        for position in range(size):
            for candidate in map(int, rng.choice(len(counts), min(16, len(counts)), replace=False)):
                swapped = [*best[:position], candidate, *best[position + 1 :]]
                if candidate not in best and distance(swapped) < best_distance:
                    best, best_distance = swapped, distance(swapped)
    return sorted(best), best_distance
