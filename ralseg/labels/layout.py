"""Layouts: how images are cut into the regions that are labelled one by one."""

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ralseg.errors import ConfigError

Box = tuple[int, int, int, int]
"""x, y, width, height in pixels."""


class ImageSet(Protocol):
    """What a layout may ask about the images of a set; an image is named by its position in the set."""

    indices: list[int]  # the data set's number of each image
    height: int
    width: int
    cuts: dict[int, Any]  # what a layout keeps of images, by the data set's number; sets with common images share it

    def __len__(self) -> int:
        """Number of images."""

    def pixels(self, position: int) -> Tensor:
        """An image in the size that the run works at: [3, height, width] of uint8."""

    def content(self, position: int) -> tuple[int, int]:
        """(height, width) of what the image fills of that, from the top left; the rest is padding."""

    def file_size(self, position: int) -> tuple[int, int]:
        """(height, width) of the image's file."""


class RegionMaps(NamedTuple):
    """Maps that were cut at regions; regions smaller than the largest box are filled up."""

    values: Tensor  # [r, ..., h, w]
    inside: Tensor | None  # [r, h, w] bool: which pixels belong to the region; None: all of them

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the pixels of each region: [r, ..., h, w] -> [r, ...]."""
        if self.inside is None:
            return values.flatten(-2).mean(-1)
        inside = self.inside.reshape(len(values), *[1] * (values.dim() - 3), *values.shape[-2:])
        count = inside.flatten(-2).sum(-1).clamp(min=1)
        return (values * inside).flatten(-2).sum(-1) / count


class Windows(NamedTuple):
    """Where :meth:`Regions.cut` looks in maps: boxes of one size, of which a region may fill a part."""

    corners: Tensor  # [r, 2] row and column of each window's first pixel
    size: tuple[int, int]  # (h, w); a window may reach beyond the map where its region does not
    inside: Tensor | None  # [r, h, w] bool: which pixels belong to the region; None: all of them


class Regions(ABC):
    """The regions of one set of images, numbered from 0, image after image.

    Attributes:
        images: The images that are cut.
        box_size: (height, width) of the largest region's box.
        place_names: What :meth:`place` gives, for the header of a table.
    """

    images: ImageSet
    box_size: tuple[int, int]
    place_names: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int:
        """Number of regions in all images."""

    @abstractmethod
    def of_image(self, position: int) -> Tensor:
        """The regions of an image: [number of them]."""

    @abstractmethod
    def image_of(self, regions: Tensor) -> Tensor:
        """The position of each region's image: [...] -> [...]."""

    @abstractmethod
    def boxes(self, regions: Tensor) -> Tensor:
        """Bounding boxes (x, y, width, height) of regions: [...] -> [..., 4]."""

    @abstractmethod
    def file_box(self, region: int) -> Box:
        """The box of a region in the pixels of its image's file, whatever size the run works at."""

    @abstractmethod
    def inside(self, region: int) -> Tensor | None:
        """Which pixels of its box belong to a region: [height, width] bool; None: all of them."""

    @abstractmethod
    def place(self, region: int) -> tuple[int, ...]:
        """Where a region lies in its image, in the words of ``place_names``."""

    @abstractmethod
    def neighbours(self, region: int) -> list[int]:
        """The regions of the same image that share an edge with a region."""

    @abstractmethod
    def cut(self, maps: Tensor, rows: Tensor, regions: Tensor) -> RegionMaps:
        """Cut maps at regions: [b, ..., H, W] -> [r, ..., h, w].

        Args:
            maps: One map an image, in the size that the run works at or at every n-th pixel of it.
            rows: [r] the row of ``maps`` that shows each region's image.
            regions: [r].
        """

    @abstractmethod
    def windows(self, size: tuple[int, int], regions: Tensor) -> Windows:
        """Where :meth:`cut` looks in maps of ``size`` (height, width), for those who compute no more than that.

        Args:
            size: Of maps in the size that the run works at or at every n-th pixel of it.
            regions: [r].
        """

    @abstractmethod
    def average(self, maps: Tensor, rows: Tensor, regions: Tensor) -> Tensor:
        """Mean over each region of coarse maps that cover the whole image: [b, D, h, w] -> [r, D]."""

    @abstractmethod
    def description(self) -> list[Any]:
        """Plain values that tell this cut from others; a run goes on only with the same one."""

    def fit_box(self, labels: Tensor) -> Tensor:
        """Fill up the labels of one region to ``box_size``, so that they can be stacked; 255 = ignore."""
        height, width = self.box_size
        if labels.shape == (height, width):
            return labels
        filled = labels.new_full((height, width), 255)
        filled[: labels.shape[0], : labels.shape[1]] = labels
        return filled


class Layout(ABC):
    """How an image is cut into regions. Subclass it and write :meth:`segment` for a cut of your own.

    Examples:
        >>> import torch
        >>> class Halves(Layout):
        ...     def segment(self, pixels):
        ...         segments = torch.zeros(pixels.shape[1:], dtype=torch.int64)
        ...         segments[:, pixels.shape[2] // 2 :] = 1
        ...         return segments
        >>> Halves().segment(torch.zeros(3, 2, 4)).tolist()
        [[0, 0, 1, 1], [0, 0, 1, 1]]
    """

    @abstractmethod
    def segment(self, pixels: Tensor) -> Tensor:
        """Number of the region that each pixel belongs to, from 0 without gaps: [3, H, W] -> [H, W] of int64."""

    def check(self, height: int, width: int) -> None:  # noqa: B027 - most layouts take any size
        """Refuse images of this size before anything is cut."""

    def over(self, images: ImageSet) -> Regions:
        """The regions of a set of images."""
        return SegmentedRegions(self, images)


@dataclass(frozen=True)
class _Segments:
    """The cut of one image."""

    numbers: Tensor  # [H, W] int32: the region of each pixel, from 0; -1 in the padding
    boxes: Tensor  # [n, 4]


_WINDOWS = 50_000
"""Regions of which it is kept how they lie in maps: some hundred bytes each."""


class SegmentedRegions(Regions):
    """Regions of any shape, from a map that gives each pixel the number of its region.

    Args:
        layout: Gives the maps.
        images: The images that are cut; each is cut once, whatever sets it is in.
    """

    place_names = ("segment",)

    def __init__(self, layout: Layout, images: ImageSet) -> None:
        self.images, self._name = images, type(layout).__name__
        self._windows: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        known = images.cuts
        for position, index in enumerate(images.indices):
            if index not in known:
                known[index] = self._cut_image(layout, position)
        self._cuts: list[_Segments] = [known[index] for index in images.indices]
        counts = torch.tensor([len(cut.boxes) for cut in self._cuts], dtype=torch.int64)
        self._ends = counts.cumsum(0)
        self._starts = self._ends - counts
        sizes = torch.cat([cut.boxes[:, 2:] for cut in self._cuts]) if self._cuts else torch.ones(1, 2)
        width, height = sizes.amax(0).tolist()
        self.box_size = (int(height), int(width))

    def _cut_image(self, layout: Layout, position: int) -> _Segments:
        height, width = self.images.content(position)
        numbers = layout.segment(self.images.pixels(position)[:, :height, :width])
        found = numbers.unique()
        if numbers.shape != (height, width) or found.tolist() != list(range(len(found))):
            raise ConfigError(
                f"data.layout {self._name}: image {position} is cut into regions {found.tolist()[:8]} on "
                f"{tuple(numbers.shape)} pixels; segment() must number the whole image's pixels from 0 without gaps"
            )
        whole = torch.full((self.images.height, self.images.width), -1, dtype=torch.int32)
        whole[:height, :width] = numbers
        return _Segments(whole, torch.stack([_box(numbers == n) for n in found.tolist()]))

    def __len__(self) -> int:
        """Number of regions in all images."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def of_image(self, position: int) -> Tensor:
        """The regions of an image."""
        return torch.arange(int(self._starts[position]), int(self._ends[position]))

    def image_of(self, regions: Tensor) -> Tensor:
        """The position of each region's image."""
        return torch.searchsorted(self._ends.to(regions.device), regions, right=True)

    def _number(self, region: int) -> tuple[int, int]:
        """Position of a region's image, and its number there."""
        image = int(self.image_of(torch.tensor([region])))
        return image, region - int(self._starts[image])

    def boxes(self, regions: Tensor) -> Tensor:
        """Bounding boxes of regions."""
        numbers = [self._number(region) for region in regions.flatten().tolist()]
        boxes = [self._cuts[image].boxes[number] for image, number in numbers]
        flat = torch.stack(boxes) if boxes else torch.empty(0, 4, dtype=torch.int64)
        return flat.reshape(*regions.shape, 4)

    def file_box(self, region: int) -> Box:
        """The box in the file's pixels: whatever the region touches there."""
        x, y, width, height = self.boxes(torch.tensor(region)).tolist()
        image = int(self.image_of(torch.tensor([region])))
        file_height, file_width = self.images.file_size(image)
        own_height, own_width = self.images.content(image)
        across, down = file_width / own_width, file_height / own_height
        left, top = round(x * across), round(y * down)
        return left, top, max(1, round((x + width) * across) - left), max(1, round((y + height) * down) - top)

    def inside(self, region: int) -> Tensor | None:
        """Which pixels of its box belong to a region."""
        image, number = self._number(region)
        x, y, width, height = self._cuts[image].boxes[number].tolist()
        return self._cuts[image].numbers[y : y + height, x : x + width] == number

    def place(self, region: int) -> tuple[int, ...]:
        """The region's number in its image."""
        return (self._number(region)[1],)

    def neighbours(self, region: int) -> list[int]:
        """Regions that share an edge of a pixel with this one."""
        image, number = self._number(region)
        numbers = self._cuts[image].numbers
        touching: set[int] = set()
        for first, second in ((numbers[:, :-1], numbers[:, 1:]), (numbers[:-1], numbers[1:])):
            touching |= set(second[first == number].tolist()) | set(first[second == number].tolist())
        return sorted(int(self._starts[image]) + other for other in touching - {number, -1})

    def cut(self, maps: Tensor, rows: Tensor, regions: Tensor) -> RegionMaps:
        """Cut maps at regions; what lies outside of a region in its box is zero."""
        (bottom, right), windows = maps.shape[-2:], self.windows((maps.shape[-2], maps.shape[-1]), regions)
        height, width = windows.size
        inside = torch.zeros(0, height, width, dtype=torch.bool) if windows.inside is None else windows.inside
        values = maps.new_zeros(len(regions), *maps.shape[1:-2], height, width)
        for place, (row, (y, x)) in enumerate(zip(rows.tolist(), windows.corners.tolist(), strict=True)):
            h, w = min(height, bottom - y), min(width, right - x)
            values[place, ..., :h, :w] = maps[row, ..., y : y + h, x : x + w] * inside[place, :h, :w]
        return RegionMaps(values, inside)

    def windows(self, size: tuple[int, int], regions: Tensor) -> Windows:
        """The boxes of regions; a region that is thinner than the stride is the pixel next to its middle."""
        stride = max(1, round(self.images.height / size[0]))
        height, width = (-(-side // stride) for side in self.box_size)
        corners = torch.zeros(len(regions), 2, dtype=torch.int64)
        inside = torch.zeros(len(regions), height, width, dtype=torch.bool)
        for place, region in enumerate(regions.tolist()):
            corner, belongs = self._window(region, stride)
            corners[place] = corner
            inside[place, : belongs.shape[0], : belongs.shape[1]] = belongs
        return Windows(corners.to(regions.device), (height, width), inside.to(regions.device))

    def _window(self, region: int, stride: int) -> tuple[Tensor, Tensor]:
        """Top left corner of a region's box at a stride, and what belongs to it there; looked up once."""
        known = self._windows.get((region, stride))
        if known is not None:
            return known
        image, number = self._number(region)
        belongs = self._cuts[image].numbers[::stride, ::stride] == number
        if not belongs.any():
            x, y, w, h = self._cuts[image].boxes[number].tolist()
            belongs[
                min((y + h // 2) // stride, len(belongs) - 1), min((x + w // 2) // stride, belongs.shape[1] - 1)
            ] = 1
        x, y, w, h = _box(belongs).tolist()
        found = torch.tensor([y, x]), belongs[y : y + h, x : x + w].clone()
        if len(self._windows) < _WINDOWS:
            self._windows[region, stride] = found
        return found

    def average(self, maps: Tensor, rows: Tensor, regions: Tensor) -> Tensor:
        """Mean over each region; a coarse pixel belongs to the region that its middle lies in."""
        height, width = maps.shape[-2:]
        down = ((torch.arange(height) + 0.5) * self.images.height / height).long()
        right = ((torch.arange(width) + 0.5) * self.images.width / width).long()
        means = []
        for row, region in zip(rows.tolist(), regions.tolist(), strict=True):
            image, number = self._number(region)
            belongs = (self._cuts[image].numbers[down][:, right] == number).to(maps)
            if not belongs.any():
                x, y, w, h = self._cuts[image].boxes[number].tolist()
                belongs[(y + h // 2) * height // self.images.height, (x + w // 2) * width // self.images.width] = 1
            means.append((maps[row] * belongs).flatten(1).sum(1) / belongs.sum())
        return torch.stack(means) if means else maps.new_empty(0, maps.shape[1])

    def description(self) -> list[Any]:
        """The layout's name and a checksum of its cut."""
        checksum = 0
        for cut in self._cuts:
            checksum = zlib.crc32(cut.numbers.numpy().tobytes(), checksum)
        return [self._name, len(self), self.images.height, self.images.width, checksum]


def _box(belongs: Tensor) -> Tensor:
    """Bounding box (x, y, width, height) of what is true: [H, W] -> [4]."""
    rows, columns = belongs.any(1).nonzero()[:, 0], belongs.any(0).nonzero()[:, 0]
    x, y = int(columns[0]), int(rows[0])
    return torch.tensor([x, y, int(columns[-1]) + 1 - x, int(rows[-1]) + 1 - y])
