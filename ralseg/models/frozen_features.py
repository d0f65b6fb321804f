"""Features of a frozen encoder for a linear head: all of its maps in one grid, whitened, with the pixel's place."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from ralseg.models import encoders
from ralseg.models.pixel_check import check_pixels
from ralseg.models.whole_image import Place

NUM_PLACES = 4
"""Columns that say where a pixel lies: row, column, and their squares."""
_LEVELS = 4  # the encoder's last maps: strides 4 to 32
_EVERY = 2  # principal components are found from every second row and column


def _ceil(size: int, step: int) -> int:
    """How many steps it takes; of positive numbers only, because ONNX does not divide others as Python does."""
    return (size + step - 1) // step


class FrozenFeatures(nn.Module):
    """Gives each point of a grid a short vector: the principal components of all encoder maps there, and its place.

    Components are scaled to unit variance ("whitened"), so that shrinkage means the same for each. Call :meth:`fit`
    once, or load the state of one that is fitted.

    Args:
        encoder: Encoder name of segmentation-models-pytorch.
        encoder_weights: As ``model.encoder_weights``.
        encoder_strides: As ``model.encoder_strides``.
        components: Principal components that are kept, or as many as there are channels.
        stride: Pixels between points of the grid.
    """

    centre: Tensor  # [channels]
    basis: Tensor  # [channels, components]; zeros until it is fitted
    mean: Tensor
    std: Tensor

    def __init__(
        self, encoder: str, encoder_weights: str, encoder_strides: dict[str, int], components: int, stride: int
    ) -> None:
        super().__init__()
        self.stride = stride
        self.encoder = encoders.build(encoder, encoder_weights)
        encoders.set_strides(self.encoder, encoder_strides)
        self.encoder.requires_grad_(False).eval()
        self._channels = list(self.encoder.out_channels[-_LEVELS:])
        channels = sum(self._channels)
        mean, std = encoders.normalisation(encoder)
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer("centre", torch.zeros(channels))
        self.register_buffer("basis", torch.zeros(channels, min(components, channels)))

    @property
    def num_features(self) -> int:
        """D: components and place."""
        return self.basis.shape[1] + NUM_PLACES

    @property
    def is_fitted(self) -> bool:
        """Whether the components are known."""
        return bool(self.basis.any())

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """This module alone: Lightning visits all modules several times a step, and a frozen encoder has hundreds."""
        memo = set() if memo is None else memo
        if self not in memo:
            memo.add(self)
            yield prefix, self

    def train(self, mode: bool = True) -> "FrozenFeatures":
        """Stay in evaluation mode: a frozen encoder keeps its statistics."""
        return self

    def grid(self, image: Tensor) -> tuple[int, int]:
        """Rows and columns of the grid over an image [..., H, W]: every ``stride``-th pixel."""
        return _ceil(image.shape[-2], self.stride), _ceil(image.shape[-1], self.stride)

    @property
    def _whole(self) -> int:
        """Images are padded to multiples of this."""
        return max(int(self.encoder.output_stride), 32)

    def _maps(self, image: Tensor) -> list[Tensor]:
        """The encoder's last maps: [B, 3, H, W] -> [B, channels of each, ...]; images are padded to whole strides."""
        check_pixels(image)
        pixels = (image.to(self.mean.dtype) - self.mean) / self.std
        bottom, right = -image.shape[-2] % self._whole, -image.shape[-1] % self._whole
        if bottom or right:
            pixels = functional.pad(pixels, (0, right, 0, bottom), mode="replicate")
        maps: list[Tensor] = self.encoder(pixels)[-_LEVELS:]
        return maps

    def _on_grid(self, level: Tensor, image: Tensor) -> Tensor:
        """A map in the grid's points: [B, k, ...] -> [B, k, h, w]."""
        whole = self._whole
        padded = [_ceil(size, whole) * whole // self.stride for size in image.shape[-2:]]
        height, width = self.grid(image)
        return functional.interpolate(level, padded, mode="bilinear", align_corners=False)[..., :height, :width]

    @torch.no_grad()
    def fit(self, images: Iterable[Tensor]) -> None:
        """Find the principal components of some images, each [3, H, W] of uint8.

        On one thread, and in double precision: everyone who has the same images gets the same components.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self._fit(images)
        finally:
            torch.set_num_threads(threads)

    def _fit(self, images: Iterable[Tensor]) -> None:
        total = torch.zeros_like(self.centre, dtype=torch.float64)
        products = torch.zeros(len(total), len(total), dtype=torch.float64, device=total.device)
        number = 0
        for image in images:
            batch = image[None].to(self.centre.device)
            maps = [self._on_grid(level, batch)[0, :, ::_EVERY, ::_EVERY].flatten(1) for level in self._maps(batch)]
            points = torch.cat(maps).double()  # [channels, n]
            total += points.sum(1)
            products += points @ points.T
            number += points.shape[1]
        centre = total / number
        values, vectors = torch.linalg.eigh(products / number - torch.outer(centre, centre))
        kept = self.basis.shape[1]
        values, vectors = values[-kept:].flip(0), vectors[:, -kept:].flip(1)
        self.centre.copy_(centre)
        self.basis.copy_(vectors * values.clamp(min=1e-8 * float(values[0])).rsqrt())

    @torch.no_grad()
    def forward(self, image: Tensor, place: Place | None = None) -> Tensor:
        """Features of each point of the grid: [B, 3, H, W] -> [B, h, w, D].

        Args:
            image: Whole images, or a tile of one.
            place: Where the tile lies.
        """
        whitened: Tensor | None = None
        for level, basis in zip(self._maps(image), self.basis.split(self._channels), strict=True):
            # components before interpolation: both are linear, and there are fewer components than channels
            part = self._on_grid(torch.einsum("bkhw,kd->bdhw", level, basis), image)
            whitened = part if whitened is None else whitened + part
        assert whitened is not None
        whitened = whitened - (self.centre @ self.basis)[:, None, None]
        height, width = self.grid(image)
        rows = self._positions(height, image, place and (place.top, place.height))[:, None].expand(height, width)
        columns = self._positions(width, image, place and (place.left, place.width)).expand(height, width)
        places = torch.stack([rows, columns, rows.square(), columns.square()], -1)
        return torch.cat([whitened.permute(0, 2, 3, 1), places.expand(image.shape[0], -1, -1, -1)], -1)

    def _positions(self, number: int, image: Tensor, tile: tuple[int, int] | None) -> Tensor:
        """Where rows or columns of the grid lie, from -1 to 1 over the whole image; ``tile``: its start and all."""
        if tile is None:
            return torch.linspace(-1, 1, number, device=image.device)
        start, total = tile
        every = torch.linspace(-1, 1, _ceil(total, self.stride), device=image.device)
        return every[start // self.stride :][:number]
