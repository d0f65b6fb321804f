"""Reading image and mask files: everything that can be wrong with one ends in a DataError with its name.

Pillow, not torchvision, decodes: torchvision's decoder can crash the whole process on a damaged PNG.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ralseg.errors import DataError
from ralseg.labels.vault import IGNORE

__all__ = [
    "IGNORE",
    "has_colours",
    "image_size",
    "map_ids",
    "mask_values",
    "pixels_of",
    "read_colour_mask",
    "read_image",
    "read_index_mask",
]

FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp")
MAX_PIXELS = 100_000_000
"""Images beyond this are refused before a pixel is decoded: they are mistakes or attacks."""

_EXIF_ORIENTATION = 0x0112
_SIXTEEN_BIT = ("I", "F", "I;16", "I;16B", "I;16L")

Colour = tuple[int, int, int]
"""Red, green, blue."""
Palette = dict[Colour, int]
"""RGB colour -> class index."""


def _open(path: Path, turn: bool = False) -> Image.Image:
    """Open and fully decode ``path``; anything unfit for training is a DataError."""
    try:
        if path.exists() and not path.is_file():  # reading a named pipe would wait for ever
            raise DataError(f"{path}: not a regular file")
        # our own limit is checked below, with the file's name in the message
        Image.MAX_IMAGE_PIXELS = None
        with Image.open(path, formats=FORMATS) as image:
            _check_still(image, str(path))
            image.load()
            return _upright(image, str(path), turn)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image of the formats {', '.join(FORMATS)}") from None
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises on damaged files
        raise DataError(f"{path}: cannot be decoded ({error})") from error


def _check_still(image: Image.Image, name: str) -> None:
    """Refuse what is known from a header alone."""
    if image.width * image.height > MAX_PIXELS:
        raise DataError(f"{name}: {image.width}x{image.height} pixels is over the limit of {MAX_PIXELS}")
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise DataError(f"{name}: holds {frames} frames; give one still image a file")


def _upright(image: Image.Image, name: str, turn: bool) -> Image.Image:
    """The image as viewers show it; one that is stored rotated is refused unless it may be turned."""
    if image.getexif().get(_EXIF_ORIENTATION, 1) == 1:
        return image
    if not turn:
        raise DataError(f"{name}: is stored rotated (EXIF orientation); save it upright, so that it fits its mask")
    return ImageOps.exif_transpose(image)


def image_size(path: Path) -> tuple[int, int]:
    """(height, width) from the file's header alone, without decoding pixels."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.height, image.width
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image of the formats {', '.join(FORMATS)}") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: cannot be decoded ({error})") from error


def read_image(path: Path, turn: bool = False) -> NDArray[np.uint8]:
    """Read an RGB image: [height, width, 3].

    Greyscale and palette images are converted, an alpha channel that is opaque everywhere is
    dropped; 16-bit, CMYK and see-through images are refused, since any conversion would guess.

    Args:
        path: The file.
        turn: Turn an image that is stored rotated, as telephones do; else it is refused, since its mask may be, too.
    """
    return _rgb(_open(path, turn), str(path))


def pixels_of(image: Image.Image) -> NDArray[np.uint8]:
    """Pixels of an image that Pillow has opened, [height, width, 3], by the rules of :func:`read_image`."""
    name = str(getattr(image, "filename", "") or "the image")
    _check_still(image, name)
    return _rgb(_upright(image, name, turn=True), name)


def _rgb(image: Image.Image, name: str) -> NDArray[np.uint8]:
    if image.mode in _SIXTEEN_BIT:
        raise DataError(f"{name}: has 16 or more bits a channel; convert it to 8-bit RGB")
    if image.mode in ("CMYK", "YCbCr", "LAB", "HSV"):
        raise DataError(f"{name}: has colour mode {image.mode}; convert it to RGB")
    if image.has_transparency_data:
        lowest_alpha = int(np.asarray(image.convert("RGBA"))[..., 3].min())
        if lowest_alpha < 255:
            raise DataError(f"{name}: has see-through pixels; flatten its alpha channel first")
    return np.asarray(image.convert("RGB"))


def _open_mask(path: Path) -> Image.Image:
    """Open a mask; formats that do not keep every value are refused."""
    image = _open(path)
    kind = image.format or ""
    is_jpeg = kind in ("JPEG", "MPO") or (kind == "TIFF" and image.info.get("compression") == "jpeg")
    if is_jpeg or (kind == "WEBP" and _is_lossy_webp(path)):
        raise DataError(
            f"{path}: is a lossy {'JPEG' if is_jpeg else 'WEBP'} file: its values change near edges, so that no mask "
            "can be read from it; save masks as PNG"
        )
    return image


def _is_lossy_webp(path: Path) -> bool:
    """Whether the pixels of a WEBP file are in a lossy chunk, ``VP8`` rather than ``VP8L``."""
    with path.open("rb") as file:
        file.seek(12)
        while len(header := file.read(8)) == 8:
            if header[:4] in (b"VP8 ", b"VP8L"):
                return header[:4] == b"VP8 "
            size = int.from_bytes(header[4:], "little")
            file.seek(size + size % 2, 1)
    return False


def _grey_levels(image: Image.Image) -> NDArray[np.uint8] | None:
    """Grey levels of a file that was saved in colour, [height, width]; None where it has colours."""
    if image.mode not in ("RGB", "RGBA", "LA"):
        return None
    rgb = np.asarray(image.convert("RGB"))
    is_grey = (rgb[..., 0] == rgb[..., 1]).all() and (rgb[..., 0] == rgb[..., 2]).all()
    return rgb[..., 0] if is_grey else None


def has_colours(path: Path) -> bool:
    """Whether a mask's file holds colours: one a pixel, or a palette."""
    return _open_mask(path).mode in ("P", "RGB", "RGBA")


def read_index_mask(path: Path) -> NDArray[np.uint8]:
    """Read a mask whose pixel values are ids: [height, width].

    Palette PNGs give their indices, colour files without a colour their grey levels.
    """
    image = _open_mask(path)
    if image.mode in _SIXTEEN_BIT:
        ids = np.asarray(image)
        if ids.min() < 0 or ids.max() > 255:
            raise DataError(f"{path}: holds ids from {ids.min()} to {ids.max()}; ids must lie in 0..255")
        return ids.astype(np.uint8)
    grey = _grey_levels(image)
    if grey is not None:
        return grey
    if image.mode not in ("L", "P", "1"):
        raise DataError(
            f"{path}: is a {image.mode} mask, but no palette is configured; give the classes' colours, "
            "palette: {road: [128, 64, 128], ...}, or save class indices in a one-channel PNG"
        )
    return np.asarray(image).astype(np.uint8)


def read_colour_mask(path: Path, palette: Palette, remedy: str = "") -> NDArray[np.uint8]:
    """Read a mask whose colours stand for classes: [height, width] of the palette's values.

    A one-channel file is read as shades of grey: level 7 is the colour (7, 7, 7). ``remedy`` ends the message about
    colours that are not in the palette.
    """
    codes = _colour_codes(path)
    known = {(r << 16 | g << 8 | b): value for (r, g, b), value in palette.items()}
    found, where, counts = np.unique(codes, return_inverse=True, return_counts=True)
    unknown = [(int(code), int(count)) for code, count in zip(found, counts, strict=True) if int(code) not in known]
    if unknown:
        listed = ", ".join(f"{_colour_of(code)} x {count} pixels" for code, count in unknown[:5])
        raise DataError(f"{path}: colours that are not in the palette: {listed}{remedy}")
    values = np.array([known[int(code)] for code in found], dtype=np.uint8)
    return values[where].reshape(codes.shape)


def _colour_codes(path: Path) -> NDArray[np.uint32]:
    """The colour of each pixel as one number, 0xRRGGBB: [height, width]."""
    image = _open_mask(path)
    if image.mode not in ("P", "RGB", "RGBA", "L", "LA", "1"):
        raise DataError(f"{path}: is a {image.mode} mask, but a palette of 8-bit colours is configured")
    rgb = np.asarray(image.convert("RGB")).astype(np.uint32)
    return (rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2]).astype(np.uint32)


def _colour_of(code: int) -> Colour:
    return code >> 16, code >> 8 & 255, code & 255


def mask_values(path: Path) -> dict[int, int] | dict[Colour, int]:
    """What occurs in a mask file, with numbers of pixels: ids or, in a file that has colours, colours.

    Tells how a mask is to be read when nobody has said so yet.
    """
    image = _open_mask(path)
    if image.mode in ("RGB", "RGBA") and _grey_levels(image) is None:
        codes, counts = np.unique(_colour_codes(path), return_counts=True)
        return {_colour_of(int(code)): int(count) for code, count in zip(codes, counts, strict=True)}
    pixels = np.bincount(read_index_mask(path).ravel(), minlength=256)
    return {int(value): int(pixels[value]) for value in np.flatnonzero(pixels)}


def map_ids(path: Path, ids: NDArray[np.uint8], table: dict[int, int], remedy: str = "") -> NDArray[np.uint8]:
    """Replace file ids by class indices through ``table``; others are a DataError that ends with ``remedy``."""
    lookup = np.zeros(256, dtype=np.uint8)
    allowed = np.zeros(256, dtype=bool)
    for file_id, value in table.items():
        lookup[file_id], allowed[file_id] = value, True
    counts = np.bincount(ids.ravel(), minlength=256)
    unknown = np.flatnonzero((counts > 0) & ~allowed)
    if unknown.size:
        listed = ", ".join(f"{i} x {counts[i]} pixels" for i in unknown[:8])
        raise DataError(f"{path}: unknown mask ids: {listed}; known are {_ranges(sorted(table))}{remedy}")
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
