"""An image as people have it in memory: pixels, or a message that says what is wanted."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ralseg.data import readers
from ralseg.errors import DataError

AnyImage = NDArray[Any] | Image.Image | str | Path
"""[H, W, 3] or [H, W] of uint8 or of floats from 0 to 1, an image of Pillow's, or a file."""
_WANTED = "[height, width, 3] or grey [height, width], of uint8 or of floats from 0 to 1"


def read_any_image(image: AnyImage) -> NDArray[np.uint8]:
    """The pixels of an image: [H, W, 3] of uint8. What could mean several things is refused.

    Examples:
        >>> read_any_image(np.full((4, 6), 0.2)).shape, read_any_image(np.full((4, 6), 0.2)).max()
        ((4, 6, 3), np.uint8(51))
    """
    if isinstance(image, str | Path):
        return readers.read_image(Path(image), turn=True)
    if isinstance(image, Image.Image):
        return readers.pixels_of(image)
    if not isinstance(image, np.ndarray):
        kind = f"{type(image).__module__}.{type(image).__qualname__}"
        hint = "; of a tensor [3, H, W], tensor.permute(1, 2, 0).cpu().numpy()" if kind.startswith("torch.") else ""
        raise DataError(
            f"an image must be an array of NumPy's, {_WANTED}, an image of Pillow's or a file, not a {kind}{hint}"
        )
    _check_shape(image)
    pixels = _as_bytes(image)
    return np.repeat(pixels[..., None], 3, axis=2) if pixels.ndim == 2 else pixels


def _check_shape(image: NDArray[Any]) -> None:
    if image.ndim in (2, 3) and (image.ndim == 2 or image.shape[2] == 3) and image.size:
        return
    hint = ""
    if not image.size:
        hint = ": it is empty"
    elif image.ndim == 4:
        hint = ": give one image at a time, images[0] for example"
    elif image.ndim == 3 and image.shape[0] == 3:
        hint = ": its channels come first; give image.transpose(1, 2, 0)"
    elif image.ndim == 3 and image.shape[2] == 1:
        hint = ": give image[..., 0]"
    elif image.ndim == 3 and image.shape[2] == 4:
        hint = ": it has a fourth channel; give image[..., :3] if that is an alpha channel of no importance"
    raise DataError(f"an image must be {_WANTED}, not {list(image.shape)} of {image.dtype}{hint}")


def _as_bytes(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Values from 0 to 255."""
    if image.dtype == np.uint8:
        return image
    if not np.issubdtype(image.dtype, np.floating):
        is_whole = np.issubdtype(image.dtype, np.integer)
        hint = "; if its values go from 0 to 255, give image.astype(np.uint8)" if is_whole else ""
        raise DataError(f"an image must be {_WANTED}, not of {image.dtype}{hint}")
    low, high = float(image.min()), float(image.max())  # NaN where there is one
    if not (low >= 0 and high <= 1):
        is_bytes = low >= 0 and 1 < high <= 255
        hint = "; if they go from 0 to 255, give image.astype(np.uint8)" if is_bytes else ""
        raise DataError(f"an image of floats must have values from 0 to 1, not from {low:g} to {high:g}{hint}")
    scaled: NDArray[np.uint8] = np.rint(image * 255).astype(np.uint8)
    return scaled
