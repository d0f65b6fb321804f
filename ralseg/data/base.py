"""What a data set must offer ralseg: names, classes, and two readers."""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ralseg.data import readers
from ralseg.errors import ConfigError, DataError
from ralseg.runtime.copies import KeptCopies, file_key

Colour = readers.Colour


class SegmentationDataset(ABC):
    """Images with names, official subsets and, usually, masks. Subclass it to read your own format.

    Attributes:
        class_names: One name a class; the mask value of a class is its position here.
        colours: One RGB colour a class, for pictures.
        names: One unique name an image; splits are written in these names.
        subsets: The official subset of each image: ``train``, ``val`` or ``test``.
        palette: The class of each colour in mask files, 255 = ignore; None where they hold numbers.

    Examples:
        >>> class Black(SegmentationDataset):
        ...     class_names, colours = ("night", "star"), ((0, 0, 0), (255, 255, 255))
        ...     names, subsets = ["first", "second"], ["train", "test"]
        ...     def image_size(self, index):
        ...         return 4, 6
        ...     def read_image(self, index):
        ...         return np.zeros((4, 6, 3), np.uint8)
        ...     def read_mask(self, index):
        ...         return np.zeros((4, 6), np.uint8)
        >>> len(Black())
        2
    """

    class_names: tuple[str, ...]
    colours: tuple[Colour, ...]
    names: list[str]
    subsets: list[str]
    palette: readers.Palette | None = None
    root: Path | None = None
    copies = KeptCopies(None, 0)  # where what is costly to decode may be kept between runs; set by SegmentationData

    def __len__(self) -> int:
        """Number of images."""
        return len(self.names)

    @abstractmethod
    def image_size(self, index: int) -> tuple[int, int]:
        """(height, width) of an image, cheaply."""

    @abstractmethod
    def read_image(self, index: int) -> NDArray[np.uint8]:
        """Pixels of an image: [height, width, 3]."""

    @abstractmethod
    def read_mask(self, index: int) -> NDArray[np.uint8]:
        """Class of each pixel, 255 = ignore: [height, width]."""

    def has_mask(self, index: int) -> bool:
        """Whether a mask exists; only images of the acquisition set may do without."""
        return True

    def scene(self, index: int) -> str | None:
        """The scene that an image shows: a drive, a city, a field; None where that is not known.

        Images of one scene resemble each other. ``trainer.game.reward_on: other_scenes`` pays no region on its own.
        """
        return None

    def world(self, index: int) -> str:
        """The world that an image belongs to; empty where the whole data set is one.

        Games in many worlds (``trainer.game.reward_on: own_world``) are each played in one of them.
        """
        return ""

    def file_problems(self) -> list[str]:
        """What is wrong with the files besides what reading them shows; ``ralseg data check`` prints it."""
        return []

    def class_problems(self, pixels: Mapping[str, NDArray[np.int64]]) -> list[str]:
        """What the pixels of each class say about how masks are read; ``ralseg data check`` prints it.

        Args:
            pixels: Of each subset, labelled pixels of each class and, last, of void: [classes + 1].
        """
        return []

    def image_key(self, index: int) -> list[Any] | None:
        """Plain values that change whenever an image's pixels do; None: no copy of it outlives the run."""
        return None

    def mask_key(self, index: int) -> list[Any] | None:
        """The same of a mask's classes."""
        return None


class FileDataset(SegmentationDataset):
    """A data set of image and mask files, found once when it is made.

    Subclasses yield ``(subset, name, image path, mask path)`` from :meth:`find_files` and read masks.

    Attributes:
        mask_rule: Plain values that classes follow from beside the mask's file, for copies that outlive a run; None:
            none are kept.
    """

    mask_rule: Any = None

    def __init__(self, root: Path) -> None:
        self.root = root
        found = sorted(self.find_files(root), key=lambda entry: (entry[0], entry[1]))
        if not found:
            raise DataError(f"{root}: no images found in the layout of {type(self).__name__}")
        self.subsets = [subset for subset, *_ in found]
        self.names = [name for _, name, *_ in found]
        self.image_paths = [image for *_, image, _ in found]
        self.mask_paths = [mask for *_, mask in found]
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise DataError(f"{root}: image names that stand twice: {', '.join(twice[:5])}")

    @abstractmethod
    def find_files(self, root: Path) -> Iterator[tuple[str, str, Path, Path]]:
        """Yield (subset, name, image path, mask path) of every image below ``root``."""

    @abstractmethod
    def decode_mask(self, path: Path) -> NDArray[np.uint8]:
        """Class indices of a mask file, 255 = ignore."""

    def image_size(self, index: int) -> tuple[int, int]:
        """(height, width) from the file's header."""
        return readers.image_size(self.image_paths[index])

    def read_image(self, index: int) -> NDArray[np.uint8]:
        """Decode the image file."""
        return readers.read_image(self.image_paths[index])

    def image_key(self, index: int) -> list[Any] | None:
        """The file as it is now, unless a subclass reads it in a way of its own."""
        return file_key(self.image_paths[index]) if self._is_ours("read_image") else None

    def mask_key(self, index: int) -> list[Any] | None:
        """The file as it is now, and how its values become classes."""
        if self.mask_rule is None or not self._is_ours("read_mask") or not self._is_ours("decode_mask"):
            return None
        file = file_key(self.mask_paths[index])
        return None if file is None else [*file, type(self).__name__, self.mask_rule]

    def _is_ours(self, method: str) -> bool:
        """Whether ralseg reads the files: what other code makes of them may change while the files do not."""
        owner = next(kind for kind in type(self).__mro__ if method in vars(kind))
        return owner.__module__.startswith("ralseg.")

    def has_mask(self, index: int) -> bool:
        """Whether the mask file exists."""
        return self.mask_paths[index].is_file()

    def read_mask(self, index: int) -> NDArray[np.uint8]:
        """Decode the mask file and check that it covers its image."""
        path = self.mask_paths[index]
        if not path.is_file():
            raise DataError(f"{path}: mask of image {self.names[index]} is missing")
        mask = self.decode_mask(path)
        expected = self.image_size(index)
        if mask.shape != expected:
            raise DataError(
                f"{path}: mask has {mask.shape[0]}x{mask.shape[1]} pixels, "
                f"its image {self.image_paths[index].name} {expected[0]}x{expected[1]}"
            )
        return mask


def find_root(root: str | None, variable: str, dataset: str) -> Path:
    """The folder of a data set: the configured one, or what the environment variable names."""
    chosen = root or os.environ.get(variable)
    if not chosen:
        raise ConfigError(f"{dataset} needs a folder: set data.dataset.init_args.root or the environment's {variable}")
    path = Path(chosen).expanduser()
    if not path.is_dir():
        raise DataError(f"{path}: no such folder (from {'root' if root else variable}, for {dataset})")
    return path


def images_below(folder: Path) -> Iterator[Path]:
    """All image files below ``folder``, in order of their names; hidden files are passed over."""
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in readers.SUFFIXES and not path.name.startswith("."):
            yield path
