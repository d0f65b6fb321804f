"""The canvas: how images of any size come to the one size that a run works at."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

NEARLY = 0.04
"""An image that would leave less than this share of the canvas free is stretched to fill it."""

Size = tuple[int, int]
"""(height, width)."""


@dataclass(frozen=True)
class Canvas:
    """Where images are placed: scaled to fit, at the top left; what they leave free is padding.

    Args:
        size: (height, width); None keeps every image's own size.
        resize: ``pad`` keeps an image's proportions, ``stretch`` fills the canvas whatever they are.
        room: (height, width) that images of their own size are filled up to, where a run has several sizes.

    Examples:
        >>> canvas = Canvas((128, 192))
        >>> canvas.content(300, 400), canvas.content(400, 300)  # landscape, portrait
        ((128, 171), (128, 96))
        >>> Canvas((128, 192), "stretch").content(400, 300)
        (128, 192)
    """

    size: Size | None = None
    resize: Literal["pad", "stretch"] = "pad"
    room: Size | None = None

    def content(self, height: int, width: int) -> Size:
        """The part of the canvas, from its top left, that an image of this size fills."""
        if self.size is None:
            return height, width
        if self.resize == "stretch":
            return self.size
        scale = min(self.size[0] / height, self.size[1] / width)
        fitted = [max(1, min(round(side * scale), room)) for side, room in zip((height, width), self.size, strict=True)]
        nearly = [room if room - side < NEARLY * room else side for side, room in zip(fitted, self.size, strict=True)]
        return nearly[0], nearly[1]

    def fit_image(self, pixels: Tensor) -> Tensor:
        """Scale an image to its part of the canvas: [3, H, W] of uint8 -> [3, h, w]."""
        size = list(self.content(*pixels.shape[-2:]))
        return pixels if size == list(pixels.shape[-2:]) else transforms.resize(pixels, size, antialias=True)

    def fit_mask(self, mask: Tensor) -> Tensor:
        """Scale a mask to its part of the canvas: [H, W] of uint8 -> [h, w]."""
        size = list(self.content(*mask.shape))
        if size == list(mask.shape):
            return mask
        resized: Tensor = transforms.resize(mask[None], size, InterpolationMode.NEAREST_EXACT)[0]
        return resized

    def describe(self) -> dict[str, Any]:
        """Plain values, for checkpoints."""
        sizes = {"size": self.size, "room": self.room}
        return {"resize": self.resize, **{key: None if size is None else list(size) for key, size in sizes.items()}}

    @staticmethod
    def from_description(description: dict[str, Any]) -> "Canvas":
        """What :meth:`describe` described."""
        sizes = [description.get(key) for key in ("size", "room")]
        size, room = (None if side is None else (int(side[0]), int(side[1])) for side in sizes)
        return Canvas(size, "stretch" if description.get("resize") == "stretch" else "pad", room)


def pad_image(pixels: Tensor, size: Size) -> Tensor:
    """Fill an image up to ``size`` with the colours of its edge, at the bottom and right: [3, h, w] -> [3, H, W]."""
    bottom, right = size[0] - pixels.shape[-2], size[1] - pixels.shape[-1]
    if not bottom and not right:
        return pixels
    padded: Tensor = functional.pad(pixels[None].float(), (0, right, 0, bottom), mode="replicate")[0]
    return padded.to(torch.uint8)


def pad_mask(mask: Tensor, size: Size, value: int) -> Tensor:
    """Fill a mask up to ``size`` with ``value``, at the bottom and right: [h, w] -> [H, W]."""
    return functional.pad(mask, (0, size[1] - mask.shape[1], 0, size[0] - mask.shape[0]), value=value)
