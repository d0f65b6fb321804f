"""A survey of a data set: every image and mask is read once, and what is worth knowing of each is kept."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ralseg.data.base import SegmentationDataset
from ralseg.data.canvas import Size
from ralseg.data.readers import IGNORE
from ralseg.errors import DataError, RalsegError

_FLAT = 3.0  # grey levels; pictures that vary less all look the same when they are small


@dataclass(frozen=True)
class Survey:
    """What was found, in the order of the data set's images.

    Attributes:
        sizes: (height, width); None where an image cannot be decoded.
        pixels: Pixels of each class and, last, of void; zero where there is no mask to read: [images, classes + 1].
        digests: Checksum of an image's pixels.
        looks: What an image looks like from afar, in 64 bits; None where it cannot be decoded or shows nothing.
        image_errors: What is wrong with images that cannot be decoded.
        mask_errors: What is wrong with masks that cannot be read.
    """

    sizes: list[Size | None]
    pixels: NDArray[np.int64]
    digests: list[bytes | None]
    looks: list[int | None]
    image_errors: dict[int, str]
    mask_errors: dict[int, str]


def survey(dataset: SegmentationDataset, watch: Callable[[range], Iterable[int]] = iter) -> Survey:
    """Read every image and mask once.

    Args:
        dataset: Whose files are read.
        watch: Goes through the images, and may show how far it has come.
    """
    number, classes = len(dataset), len(dataset.class_names)
    found = Survey([None] * number, np.zeros((number, classes + 1), np.int64), [None] * number, [None] * number, {}, {})
    for index in watch(range(number)):
        try:
            _look_at_image(dataset.read_image(index), index, found)
        except RalsegError as error:
            found.image_errors[index] = str(error)
        if dataset.has_mask(index):
            try:
                _look_at_mask(dataset, index, found)
            except RalsegError as error:
                found.mask_errors[index] = str(error)
    return found


def _look_at_image(pixels: NDArray[np.uint8], index: int, found: Survey) -> None:
    found.sizes[index] = (pixels.shape[0], pixels.shape[1])
    found.digests[index] = hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()
    found.looks[index] = _look(pixels)


def _look(pixels: NDArray[np.uint8]) -> int | None:
    """Which of 8 x 8 places are brighter than the place to their right: it survives scaling and new compression."""
    grey = Image.fromarray(pixels).convert("L")
    small = np.asarray(grey.resize((9, 8), Image.Resampling.BOX), np.float32)
    if small.std() < _FLAT:
        return None
    bits = np.packbits(small[:, :-1] > small[:, 1:])
    return int.from_bytes(bits.tobytes())


def _look_at_mask(dataset: SegmentationDataset, index: int, found: Survey) -> None:
    mask, size, classes = dataset.read_mask(index), found.sizes[index], len(dataset.class_names)
    if size is not None and mask.shape != size:
        raise DataError(f"the mask of image {dataset.names[index]} has {mask.shape} pixels, the image {size}")
    counts = np.bincount(mask.ravel(), minlength=IGNORE + 1)
    unknown = np.flatnonzero(counts[classes:IGNORE]) + classes
    if unknown.size:
        listed = ", ".join(f"{value} x {counts[value]} pixels" for value in unknown[:5])
        raise DataError(f"the mask of image {dataset.names[index]} holds {listed}; there are {classes} classes")
    found.pixels[index] = [*counts[:classes], counts[IGNORE]]


class Readable(SegmentationDataset):
    """A data set without its damage: what cannot be read looks grey, and is void.

    So everything that depends on the data can be checked although some files are broken.

    Args:
        dataset: The data set.
        found: What a survey found in it.
    """

    def __init__(self, dataset: SegmentationDataset, found: Survey) -> None:
        self._dataset, self._found = dataset, found
        self.class_names, self.colours = dataset.class_names, dataset.colours
        self.names, self.subsets, self.root = dataset.names, dataset.subsets, dataset.root
        self.copies = dataset.copies
        self._usual_size = next((size for size in found.sizes if size is not None), (1, 1))

    def image_size(self, index: int) -> Size:
        """(height, width); of a broken image, that of the first good one."""
        return self._found.sizes[index] or self._usual_size

    def read_image(self, index: int) -> NDArray[np.uint8]:
        """Pixels of an image: [height, width, 3]."""
        if index in self._found.image_errors:
            return np.full((*self.image_size(index), 3), 128, np.uint8)
        return self._dataset.read_image(index)

    def has_mask(self, index: int) -> bool:
        """Whether a mask exists, broken or not."""
        return self._dataset.has_mask(index)

    def read_mask(self, index: int) -> NDArray[np.uint8]:
        """Class of each pixel: [height, width]."""
        if index in self._found.mask_errors or index in self._found.image_errors:
            return np.full(self.image_size(index), IGNORE, np.uint8)
        return self._dataset.read_mask(index)

    def scene(self, index: int) -> str | None:
        """The scene that an image shows."""
        return self._dataset.scene(index)

    def world(self, index: int) -> str:
        """The world that an image belongs to."""
        return self._dataset.world(index)

    def file_problems(self) -> list[str]:
        """What is wrong with the files besides what reading them shows."""
        return self._dataset.file_problems()
