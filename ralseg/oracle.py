"""Oracles: the only way to learn the labels of an unlabelled region."""

from typing import Protocol, cast

import torch
from torch import Tensor

from ralseg.data.masks import MaskVault
from ralseg.data.readers import IGNORE
from ralseg.regions import RegionGrid


class Oracle(Protocol):
    """Whoever labels regions: a hidden mask, or a person."""

    def label(self, regions: Tensor) -> Tensor:
        """Labels of regions: [K] -> [K, cell height, cell width] of uint8, 255 = ignore."""
        ...


class MaskOracle:
    """Reveals the hidden masks of a set, region by region.

    Args:
        vault: Where the masks are.
        images: The set's images as indices into the data set; a region's image is a position here.
        grid: How images are cut into regions.
    """

    def __init__(self, vault: MaskVault, images: list[int], grid: RegionGrid) -> None:
        self._vault, self._images, self._grid = vault, images, grid

    def label(self, regions: Tensor) -> Tensor:
        """Copy the labels of each region out of its image's mask."""
        boxes = self._grid.boxes(regions).tolist()
        images = self._grid.image_of(regions).tolist()
        cells = [self._vault.reveal_box(self._images[i], tuple(box)) for i, box in zip(images, boxes, strict=True)]
        if not cells:
            return torch.empty(0, self._grid.cell_height, self._grid.cell_width, dtype=torch.uint8)
        return torch.stack(cells)


class RevealedLabels:
    """The labels that an oracle has given so far; all other pixels are ignored.

    Args:
        grid: How images are cut into regions.
    """

    def __init__(self, grid: RegionGrid) -> None:
        self.grid = grid
        self._cells: dict[int, Tensor] = {}

    def add(self, regions: Tensor, labels: Tensor) -> None:
        """Keep the labels [K, cell height, cell width] of regions [K]."""
        for region, cell in zip(regions.tolist(), labels, strict=True):
            self._cells[region] = cell

    def __getitem__(self, region: int) -> Tensor:
        """Labels of one revealed region: [cell height, cell width]."""
        return self._cells[region]

    def mask(self, regions: list[int]) -> Tensor:
        """A whole image's mask that shows only ``regions``, which must be of one image: [height, width]."""
        mask = torch.full((self.grid.height, self.grid.width), IGNORE, dtype=torch.uint8)
        for region, box in zip(regions, self.grid.boxes(torch.tensor(regions)).tolist(), strict=True):
            x, y, width, height = cast(tuple[int, int, int, int], tuple(box))
            mask[y : y + height, x : x + width] = self._cells[region]
        return mask
