"""The grid: an image is cut into equal cells, rows by columns."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ralseg.errors import ConfigError
from ralseg.labels.layout import Box, ImageSet, Layout, RegionMaps, Regions, SegmentedRegions, Windows


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors of ``number`` next to ``wanted``: the largest below and the smallest above."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = [d for d in divisors if d < wanted][-1:]
    above = [d for d in divisors if d > wanted][:1]
    return below + above


class GridLayout(Layout):
    """Cuts every image into ``rows`` x ``columns`` equal cells, numbered row by row from the top left.

    Where sizes differ (``data.resize: pad``), the grid is that of an image which fills the whole size of the run, and
    others are cut into fewer cells of about the same size: a portrait image into more rows than columns.

    Args:
        rows: Number of cells from top to bottom.
        columns: Number of cells from left to right. ``rows: 1, columns: 1`` labels whole images.

    Examples:
        >>> GridLayout(1, 2).segment(torch.zeros(3, 2, 4)).tolist()
        [[0, 0, 1, 1], [0, 0, 1, 1]]
    """

    def __init__(self, rows: int = 4, columns: int = 6) -> None:
        self.rows, self.columns = rows, columns

    def segment(self, pixels: Tensor) -> Tensor:
        """Number of the cell that each pixel belongs to: [3, H, W] -> [H, W]."""
        height, width = pixels.shape[-2:]
        self.check(height, width)
        row = torch.arange(height) // (height // self.rows)
        column = torch.arange(width) // (width // self.columns)
        return row[:, None] * self.columns + column

    def over(self, images: ImageSet) -> Regions:
        """The cells of a set of images."""
        height, width = images.height, images.width
        self._check_counts(height, width)
        is_full = all(images.content(position) == (height, width) for position in range(len(images)))
        if is_full and not height % self.rows and not width % self.columns:
            return GridRegions(self.rows, self.columns, images)
        # images of other sizes; or a set of large ones beside them
        return SegmentedRegions(Cells(height / self.rows, width / self.columns), images)

    def check(self, height: int, width: int) -> None:
        """Refuse sizes that do not divide into whole cells, and name the counts that do."""
        self._check_counts(height, width)
        for key, count, side, size in self._sides(height, width):
            if size % count:
                nearest = " or ".join(map(str, nearest_divisors(size, count)))
                raise ConfigError(
                    f"data.layout {key}={count} does not divide the image {side} {size}; "
                    f"the nearest counts that do: {nearest}"
                )

    def _check_counts(self, height: int, width: int) -> None:
        """Refuse counts that no image of this size has room for."""
        for key, count, side, size in self._sides(height, width):
            if count < 1 or count > size:
                raise ConfigError(f"data.layout {key}={count} must lie between 1 and the image {side}, {size}")

    def _sides(self, height: int, width: int) -> tuple[tuple[str, int, str, int], ...]:
        """Key, number of cells, side of the image and its pixels, for both directions."""
        return ("rows", self.rows, "height", height), ("columns", self.columns, "width", width)


class Cells(Layout):
    """Cuts an image of any size into cells of nearly equal size, as near as can be to a given one.

    Args:
        height: Wanted pixels from top to bottom.
        width: Wanted pixels from left to right.

    Examples:
        >>> Cells(2, 2).segment(torch.zeros(3, 2, 5)).tolist()
        [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]
    """

    def __init__(self, height: float, width: float) -> None:
        self.height, self.width = height, width

    def segment(self, pixels: Tensor) -> Tensor:
        """Number of the cell that each pixel belongs to: [3, H, W] -> [H, W]."""
        height, width = pixels.shape[-2:]
        rows, columns = max(1, round(height / self.height)), max(1, round(width / self.width))
        row = torch.arange(height) * rows // height
        column = torch.arange(width) * columns // width
        return row[:, None] * columns + column


class GridRegions(Regions):
    """Equal cells that tile the images of a set exactly; fast, because nothing has to be looked up.

    Args:
        rows: Number of cells from top to bottom.
        columns: Number of cells from left to right.
        images: The images that are cut.
    """

    place_names = ("row", "column")

    def __init__(self, rows: int, columns: int, images: ImageSet) -> None:
        self.rows, self.columns, self.images = rows, columns, images
        self.box_size = (images.height // rows, images.width // columns)
        self._cells = rows * columns
        self._count = len(images) * self._cells

    def __len__(self) -> int:
        """Number of regions in all images."""
        return self._count

    def of_image(self, position: int) -> Tensor:
        """The regions of an image."""
        return torch.arange(position * self._cells, (position + 1) * self._cells)

    def image_of(self, regions: Tensor) -> Tensor:
        """The position of each region's image."""
        return regions // self._cells

    def boxes(self, regions: Tensor) -> Tensor:
        """Boxes of regions."""
        cell = regions % self._cells
        height, width = self.box_size
        size = torch.tensor([width, height], device=regions.device)
        corner = torch.stack([cell % self.columns * width, cell // self.columns * height], -1)
        return torch.cat([corner, size.expand(*regions.shape, 2)], -1)

    def file_box(self, region: int) -> Box:
        """The box in the file's pixels; where the file does not divide evenly, neighbours still tile it."""
        height, width = self.images.file_size(region // self._cells)
        row, column = self.place(region)
        left, right = (round(width * c / self.columns) for c in (column, column + 1))
        top, bottom = (round(height * r / self.rows) for r in (row, row + 1))
        return left, top, right - left, bottom - top

    def inside(self, region: int) -> Tensor | None:
        """A cell fills its box."""
        return None

    def place(self, region: int) -> tuple[int, ...]:
        """Row and column."""
        return divmod(region % self._cells, self.columns)

    def neighbours(self, region: int) -> list[int]:
        """The cells above, to the left, to the right and below."""
        row, column = self.place(region)
        steps = ((-1, 0), (0, -1), (0, 1), (1, 0))
        inside = [(y, x) for y, x in steps if 0 <= row + y < self.rows and 0 <= column + x < self.columns]
        return [region + y * self.columns + x for y, x in inside]

    def split(self, maps: Tensor) -> Tensor:
        """Cut maps into all of their cells, without a copy: [b, ..., H, W] -> [b, rows, columns, ..., h, w]."""
        height, width = maps.shape[-2:]
        if height % self.rows or width % self.columns:
            raise ConfigError(
                f"maps of {height}x{width} pixels cannot be cut into {self.rows}x{self.columns} equal cells; choose "
                "data.layout, data.size and model.label_stride (grid_stride of a closed form) so that cells are whole"
            )
        cut: Tensor = maps.unflatten(-1, (self.columns, width // self.columns))
        cut = cut.unflatten(-3, (self.rows, height // self.rows))  # [..., rows, h, columns, w]
        last = cut.dim()
        return cut.movedim((last - 4, last - 2), (1, 2))

    def cut(self, maps: Tensor, rows: Tensor, regions: Tensor) -> RegionMaps:
        """Cut maps at regions; only what is asked for is copied."""
        cell = regions % self._cells
        return RegionMaps(self.split(maps)[rows, cell // self.columns, cell % self.columns], None)

    def windows(self, size: tuple[int, int], regions: Tensor) -> Windows:
        """The cells."""
        height, width = size[0] // self.rows, size[1] // self.columns
        cell = regions % self._cells
        corners = torch.stack([cell // self.columns * height, cell % self.columns * width], 1)
        return Windows(corners, (height, width), None)

    def average(self, maps: Tensor, rows: Tensor, regions: Tensor) -> Tensor:
        """Mean over each region."""
        pooled = functional.adaptive_avg_pool2d(maps, (self.rows, self.columns)).flatten(2)
        return pooled[rows, :, regions % self._cells]

    def description(self) -> list[Any]:
        """Rows, columns, and the size that the run works at."""
        return [self.rows, self.columns, self.images.height, self.images.width]
