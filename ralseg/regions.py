"""Regions: an image is cut into a grid of equal, non-overlapping cells that are labelled one by one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ralseg.errors import ConfigError


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of ``number`` next to ``wanted``: the largest below and the smallest above."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = [d for d in divisors if d < wanted][-1:]
    above = [d for d in divisors if d > wanted][:1]
    return below + above


@dataclass(frozen=True)
class GridShape:
    """How many regions an image is cut into.

    Args:
        rows: Number of cells from top to bottom.
        columns: Number of cells from left to right. ``rows: 1, columns: 1`` labels whole images.
    """

    rows: int = 4
    columns: int = 6

    def on(self, height: int, width: int) -> "RegionGrid":
        """The grid of this shape over images of ``height`` x ``width`` pixels."""
        return RegionGrid(self.rows, self.columns, height, width)


@dataclass(frozen=True)
class RegionGrid:
    """A grid of ``rows`` x ``columns`` cells that tile an image of ``height`` x ``width`` exactly.

    A cell is numbered row by row from the top left. A *region* is one cell of one image and has the
    number ``image * cells + cell``, where ``image`` is a position in the set that is played on.
    """

    rows: int
    columns: int
    height: int
    width: int

    def __post_init__(self) -> None:
        for key, count, size in (("rows", self.rows, self.height), ("columns", self.columns, self.width)):
            side = "height" if key == "rows" else "width"
            if count < 1 or count > size:
                raise ConfigError(f"data.grid.{key}={count} must lie between 1 and the image {side}, {size}")
            if size % count:
                nearest = " or ".join(map(str, nearest_divisors(size, count)))
                raise ConfigError(
                    f"data.grid.{key}={count} does not divide the image {side} {size}; "
                    f"the nearest counts that do: {nearest}"
                )

    @property
    def cells(self) -> int:
        """Number of regions in one image."""
        return self.rows * self.columns

    @property
    def cell_height(self) -> int:
        """Height of a region in pixels."""
        return self.height // self.rows

    @property
    def cell_width(self) -> int:
        """Width of a region in pixels."""
        return self.width // self.columns

    def image_of(self, regions: Tensor) -> Tensor:
        """The image of each region: [...] -> [...]."""
        return regions // self.cells

    def boxes(self, regions: Tensor) -> Tensor:
        """Pixel boxes (x, y, width, height) of regions: [...] -> [..., 4]."""
        cell = regions % self.cells
        x = cell % self.columns * self.cell_width
        y = cell // self.columns * self.cell_height
        size = torch.tensor([self.cell_width, self.cell_height], device=regions.device)
        return torch.cat([torch.stack([x, y], -1), size.expand(*regions.shape, 2)], -1)

    def split(self, maps: Tensor) -> Tensor:
        """Cut maps into cells: [B, ..., height, width] -> [B, cells, ..., cell height, cell width].

        Also works on maps that are a whole fraction of the image size (half-size predictions, say)
        as long as the cells come out as whole pixels.
        """
        *lead, height, width = maps.shape
        if height % self.rows or width % self.columns:
            raise ConfigError(
                f"maps of {height}x{width} pixels cannot be cut into {self.rows}x{self.columns} equal cells"
            )
        cut = maps.reshape(*lead, self.rows, height // self.rows, self.columns, width // self.columns)
        last = cut.dim()
        cut = cut.movedim((last - 4, last - 2), (1, 2))  # [B, rows, columns, ..., h, w]
        return cut.flatten(1, 2)
