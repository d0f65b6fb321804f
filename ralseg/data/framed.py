"""Every image of a data set in the size that a run works at: decoded, scaled, filled up, and kept for the next run."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ralseg.data.base import SegmentationDataset
from ralseg.data.canvas import Canvas, Size, pad_image, pad_mask
from ralseg.errors import DataError
from ralseg.labels.vault import IGNORE
from ralseg.runtime import distributed

log = logging.getLogger(__name__)
DISTORTED = 1.25
"""Proportions may change so much by stretching before a run warns of it."""


class FramedImages:
    """Images and masks on the canvas of a run. Sizes are read from the files' headers at once, pixels when asked for.

    Args:
        dataset: The images.
        canvas: Where they are placed.

    Attributes:
        size: (height, width) that the run works at.
        file_sizes: (height, width) of each image's file.
        contents: What each image fills of ``size``, from the top left.
    """

    def __init__(self, dataset: SegmentationDataset, canvas: Canvas) -> None:
        self.dataset, self.canvas = dataset, canvas
        self.file_sizes: list[Size] = [dataset.image_size(index) for index in range(len(dataset))]
        self.contents: list[Size] = [canvas.content(*size) for size in self.file_sizes]
        self.size: Size = canvas.size or self._largest()
        self._warn_of_distortion()

    @property
    def is_uniform(self) -> bool:
        """Whether every image fills all of the size: nothing is padded."""
        return set(self.contents) == {self.size}

    def _largest(self) -> Size:
        """The size that all images fit into, each in its own."""
        first = self.contents[0]
        other = next((i for i, size in enumerate(self.contents) if size != first), None)
        if other is not None and self.canvas.resize == "stretch":
            height, width = self.contents[other]
            raise DataError(
                f"image {self.dataset.names[other]} has {height}x{width} pixels, image {self.dataset.names[0]} "
                f"{first[0]}x{first[1]}; set data.size to scale them, or data.resize: pad to fill them up"
            )
        return max(height for height, _ in self.contents), max(width for _, width in self.contents)

    def _warn_of_distortion(self) -> None:
        """Say so once where stretching makes things look otherwise than they are."""
        changes = [
            (height / own_height) / (width / own_width)
            for (height, width), (own_height, own_width) in zip(self.contents, self.file_sizes, strict=True)
        ]
        distorted = [i for i, change in enumerate(changes) if not 1 / DISTORTED <= change <= DISTORTED]
        if distorted and self.canvas.resize == "stretch" and distributed.rank() == 0:
            log.warning(
                "%d of %d images lose their proportions by more than a quarter, the first: %s, %dx%d pixels stretched "
                "to %dx%d; data.resize: pad keeps them",
                *(len(distorted), len(changes), self.dataset.names[distorted[0]]),
                *(*self.file_sizes[distorted[0]], *self.size),
            )

    def image(self, index: int) -> Tensor:
        """An image, filled up with the colours of its edge: [3, height, width] of uint8."""
        pixels = self._kept("image", index, self.dataset.image_key(index), self._scaled_image)
        return pad_image(torch.from_numpy(pixels), self.size)

    def mask(self, index: int) -> Tensor:
        """A mask, filled up with 255: [height, width] of uint8."""
        mask = self._kept("mask", index, self.dataset.mask_key(index), self._scaled_mask)
        return pad_mask(torch.from_numpy(mask), self.size, IGNORE)

    def key(self, index: int) -> list[Any] | None:
        """Plain values that the pixels of :meth:`image` follow from; None where they are not known."""
        key = self.dataset.image_key(index)
        return None if key is None else [*key, *self.contents[index], *self.size]

    def _scaled_image(self, index: int) -> NDArray[np.uint8]:
        """An image in the size of its content: [3, h, w]."""
        pixels = torch.from_numpy(self.dataset.read_image(index).copy()).movedim(-1, 0)
        return self.canvas.fit_image(pixels).numpy()

    def _scaled_mask(self, index: int) -> NDArray[np.uint8]:
        """A mask in the size of its image's content: [h, w]."""
        return self.canvas.fit_mask(torch.from_numpy(self.dataset.read_mask(index).copy())).numpy()

    def _kept(
        self, kind: str, index: int, key: list[Any] | None, make: Callable[[int], NDArray[np.uint8]]
    ) -> NDArray[np.uint8]:
        """What was decoded and scaled in an earlier run, or is now; in the file's own size it is not worth keeping."""
        if key is None or self.file_sizes[index] == self.contents[index]:
            return make(index)
        return self.dataset.copies.get([kind, *key, *self.contents[index]], lambda: make(index))
