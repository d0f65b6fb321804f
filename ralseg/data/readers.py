"""Reading image and mask files: everything that can be wrong with one ends in a DataError with its name.

Pillow, not torchvision, decodes: torchvision's decoder can crash the whole process on a damaged PNG.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ralseg.errors import DataError
from ralseg.labels.vault import IGNORE

__all__ = ["IGNORE", "image_size", "map_ids", "read_colour_mask", "read_image", "read_index_mask"]

FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp")
MAX_PIXELS = 100_000_000
"""Images beyond this are refused before a pixel is decoded: they are mistakes or attacks."""

_EXIF_ORIENTATION = 0x0112
_SIXTEEN_BIT = ("I", "F", "I;16", "I;16B", "I;16L")

Palette = dict[tuple[int, int, int], int]
"""RGB colour -> class index."""


def _open(path: Path) -> Image.Image:
    """Open and fully decode ``path``; anything unfit for training is a DataError."""
    try:
        if path.exists() and not path.is_file():  # reading a named pipe would wait for ever
            raise DataError(f"{path}: not a regular file")
        # our own limit is checked below, with the file's name in the message
        Image.MAX_IMAGE_PIXELS = None
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"{path}: {image.width}x{image.height} pixels is over the limit of {MAX_PIXELS}")
            frames = getattr(image, "n_frames", 1)
            if frames > 1:
                raise DataError(f"{path}: holds {frames} frames; give one still image a file")
            if image.getexif().get(_EXIF_ORIENTATION, 1) != 1:
                raise DataError(
                    f"{path}: is stored rotated (EXIF orientation); save it upright, so that it fits its mask"
                )
            image.load()
            return image
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image of the formats {', '.join(FORMATS)}") from None
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises on damaged files
        raise DataError(f"{path}: cannot be decoded ({error})") from error


def image_size(path: Path) -> tuple[int, int]:
    """(height, width) from the file's header alone, without decoding pixels."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.height, image.width
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: cannot be decoded ({error})") from error


def read_image(path: Path) -> NDArray[np.uint8]:
    """Read an RGB image: [height, width, 3].

    Greyscale and palette images are converted, an alpha channel that is opaque everywhere is
    dropped; 16-bit, CMYK and see-through images are refused, since any conversion would guess.
    """
    image = _open(path)
    if image.mode in _SIXTEEN_BIT:
        raise DataError(f"{path}: has 16 or more bits a channel; convert it to 8-bit RGB")
    if image.mode in ("CMYK", "YCbCr", "LAB", "HSV"):
        raise DataError(f"{path}: has colour mode {image.mode}; convert it to RGB")
    if image.has_transparency_data:
        lowest_alpha = int(np.asarray(image.convert("RGBA"))[..., 3].min())
        if lowest_alpha < 255:
            raise DataError(f"{path}: has see-through pixels; flatten its alpha channel first")
    return np.asarray(image.convert("RGB"))


def read_index_mask(path: Path) -> NDArray[np.uint8]:
    """Read a mask whose pixel values are ids: [height, width]. Palette PNGs give their indices."""
    image = _open(path)
    if image.mode in _SIXTEEN_BIT:
        ids = np.asarray(image)
        if ids.min() < 0 or ids.max() > 255:
            raise DataError(f"{path}: holds ids from {ids.min()} to {ids.max()}; ids must lie in 0..255")
        return ids.astype(np.uint8)
    if image.mode not in ("L", "P", "1"):
        raise DataError(
            f"{path}: is a {image.mode} mask, but no palette is configured; "
            "give the classes' colours (palette) or save class indices in a one-channel PNG"
        )
    return np.asarray(image).astype(np.uint8)


def read_colour_mask(path: Path, palette: Palette) -> NDArray[np.uint8]:
    """Read a mask whose colours stand for classes: [height, width] of the palette's values."""
    image = _open(path)
    if image.mode not in ("P", "RGB", "RGBA"):
        raise DataError(f"{path}: is a {image.mode} mask, but a palette of RGB colours is configured")
    rgb = np.asarray(image.convert("RGB")).astype(np.uint32)
    codes = rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2]
    known = {(r << 16 | g << 8 | b): value for (r, g, b), value in palette.items()}
    found, where, counts = np.unique(codes, return_inverse=True, return_counts=True)
    unknown = [(int(code), int(count)) for code, count in zip(found, counts, strict=True) if int(code) not in known]
    if unknown:
        listed = ", ".join(f"({c >> 16}, {c >> 8 & 255}, {c & 255}) x {n} pixels" for c, n in unknown[:5])
        raise DataError(f"{path}: colours that are not in the palette: {listed}")
    values = np.array([known[int(code)] for code in found], dtype=np.uint8)
    return values[where].reshape(codes.shape)


def map_ids(path: Path, ids: NDArray[np.uint8], table: dict[int, int]) -> NDArray[np.uint8]:
    """Replace file ids by class indices through ``table``; an id outside it is a DataError."""
    lookup = np.zeros(256, dtype=np.uint8)
    allowed = np.zeros(256, dtype=bool)
    for file_id, value in table.items():
        lookup[file_id], allowed[file_id] = value, True
    counts = np.bincount(ids.ravel(), minlength=256)
    unknown = np.flatnonzero((counts > 0) & ~allowed)
    if unknown.size:
        listed = ", ".join(f"{i} x {counts[i]} pixels" for i in unknown[:8])
        raise DataError(f"{path}: unknown mask ids: {listed}; known are {_ranges(sorted(table))}")
    return lookup[ids]


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 255] -> '0-2, 255'."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
