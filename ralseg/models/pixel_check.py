"""Networks take pixels as they are in files; other numbers would give wrong classes without a word."""

import torch
from torch import Tensor

from ralseg.errors import ConfigError


def check_pixels(image: Tensor) -> None:
    """Refuse all but [B, 3, H, W] of uint8."""
    if image.dtype != torch.uint8:
        raise ConfigError(
            f"a segmenter takes pixels from 0 to 255 as torch.uint8, [B, 3, H, W], not {image.dtype}: it scales them "
            "itself. Give the pixels of the file, or use segmenter.predict(image), which takes floats from 0 to 1 too"
        )
