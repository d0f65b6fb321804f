"""The masks of a request's folder: the newest of each region, every older version, and what they are compared with."""

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ralseg.annotation.masks import Mask, encode_mask, read_mask
from ralseg.annotation.request import Request, WantedRegion
from ralseg.data.readers import Colour, read_index_mask
from ralseg.errors import DataError
from ralseg.runtime.files import write_atomically


class MaskFiles:
    """Reads and writes masks of regions.

    Args:
        folder: The request's folder.
        request: The request: its classes may occur.
        palette: Colours of the data set's own masks, for masks that people have put there.
    """

    def __init__(self, folder: Path, request: Request, palette: Mapping[Colour, int] | None) -> None:
        self.folder, self.request, self.palette = folder, request, palette

    def check(self, wanted: WantedRegion, mask: Mask) -> None:
        """Refuse a mask that is none of a region."""
        where, classes, ignore = f"region {wanted.region} ({wanted.image})", self.request.classes, self.request.ignore
        if mask.dtype != np.uint8 or mask.shape != wanted.shape:
            raise DataError(
                f"{where}: mask has {_size(mask.shape)} pixels of {mask.dtype}, its box {_size(wanted.shape)} of uint8 "
                "(height x width)"
            )
        unknown = sorted({*np.unique(mask).tolist()} - {*range(len(classes)), ignore})
        if unknown:
            raise DataError(
                f"{where}: mask has the classes {unknown}, but there are 0 to {len(classes) - 1}, and {ignore} for "
                "what cannot be told"
            )

    def write(self, wanted: WantedRegion, mask: Mask, version: int, is_newest: bool = True) -> None:
        """Keep a version of a mask, and put it in its place, too, unless it stands there already."""
        png = encode_mask(mask, self.request.classes)
        write_atomically(self._old(wanted, f"v{version}"), png)
        if is_newest:
            write_atomically(self.folder / wanted.mask, png)

    def write_opinion(self, wanted: WantedRegion, mask: Mask) -> None:
        """Keep what a second annotator has painted."""
        write_atomically(self._old(wanted, "blind"), encode_mask(mask, self.request.classes))

    def read(self, wanted: WantedRegion, version: int, sha256: str | None = None) -> Mask:
        """A version of a mask; where somebody has deleted it, the mask in its place, if that is the same."""
        path = self._old(wanted, f"v{version}")
        if not path.is_file():
            there = self.read_newest(wanted)
            if there is not None and digest(there) == sha256:
                return there
            raise DataError(f"{path}: no such file; the run needs it, and {wanted.mask} is another version: restore it")
        mask = read_index_mask(path)
        self.check(wanted, mask)
        return mask

    def read_newest(self, wanted: WantedRegion) -> Mask | None:
        """What stands in the mask's place now, whoever has put it there; None: nothing."""
        path = self.folder / wanted.mask
        if not path.exists():
            return None
        mask = read_mask(path, self.request.classes, self.palette)
        if mask.shape != wanted.shape:
            raise DataError(
                f"{path}: mask has {_size(mask.shape)} pixels, its crop {_size(wanted.shape)} (height x width)"
            )
        return mask

    def _old(self, wanted: WantedRegion, what: str) -> Path:
        name = PurePosixPath(wanted.mask)
        return self.folder / name.parent / "old" / f"{name.stem}.{what}.png"

    def inside(self, wanted: WantedRegion) -> NDArray[np.bool_]:
        """Which pixels of its box belong to a region: [height, width]."""
        if wanted.inside is None or not (self.folder / wanted.inside).is_file():
            return np.ones(wanted.shape, np.bool_)
        return read_index_mask(self.folder / wanted.inside) > 0

    def prediction(self, wanted: WantedRegion) -> Mask | None:
        """What the model takes a region for: [height, width]; None where nobody can say."""
        if wanted.prediction is None or not (self.folder / wanted.prediction).is_file():
            return None
        return read_index_mask(self.folder / wanted.prediction)

    def changed(self, wanted: WantedRegion, mask: Mask) -> int | None:
        """Pixels of a region in which a mask differs from the prediction; None where there is none."""
        predicted = self.prediction(wanted)
        return None if predicted is None else int((mask != predicted)[self.inside(wanted)].sum())


def digest(mask: Mask) -> str:
    """SHA-256 of a mask's class numbers."""
    return hashlib.sha256(np.ascontiguousarray(mask).tobytes()).hexdigest()


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
