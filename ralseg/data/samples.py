"""Training and evaluation samples: image, mask, and where they came from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from torchvision.transforms.v2 import functional as transforms

from ralseg import ranks
from ralseg.data.cache import TensorCache
from ralseg.data.readers import IGNORE
from ralseg.randomness import mixed_seed

Box = tuple[int, int, int, int]
"""x, y, width, height in pixels."""


class Batch(NamedTuple):
    """What the segmenter is fed; a single sample has no leading dimension."""

    image: Tensor  # [B, 3, H, W] uint8
    mask: Tensor  # [B, H, W] uint8, 255 = ignore
    image_index: Tensor  # [B] position in the data set
    flipped: Tensor  # [B] bool: mirrored left to right


class Draw(NamedTuple):
    """One sample to make: which, the seed of its augmentation, and whether it only fills up a batch."""

    position: int
    seed: int
    is_void: bool = False  # nothing of it is labelled, so it counts nowhere


@dataclass(frozen=True)
class Augmentation:
    """Random crop and horizontal flip of image and mask together.

    Args:
        crop: (height, width) of the crop; None keeps whole images.
        flip: Mirror half of the samples.
    """

    crop: tuple[int, int] | None = None
    flip: bool = True

    def __call__(
        self, image: Tensor, mask: Tensor, seed: int, contain: Box | None = None
    ) -> tuple[Tensor, Tensor, bool]:
        """Augment; a crop always contains the box ``contain``. Returns image, mask, and whether flipped."""
        generator = torch.Generator().manual_seed(seed)
        if self.crop is not None:
            height, width = self.crop
            x, y, w, h = contain or (0, 0, 0, 0)
            if contain is None:
                top = _between(0, image.shape[-2] - height, generator)
                left = _between(0, image.shape[-1] - width, generator)
            else:
                top = _between(max(0, y + h - height), min(y, image.shape[-2] - height), generator)
                left = _between(max(0, x + w - width), min(x, image.shape[-1] - width), generator)
            image, mask = (transforms.crop(t, top, left, height, width) for t in (image, mask))
        flipped = self.flip and bool(torch.rand((), generator=generator) < 0.5)
        if flipped:
            image, mask = transforms.horizontal_flip(image), transforms.horizontal_flip(mask)
        return image, mask, flipped


def _between(low: int, high: int, generator: torch.Generator) -> int:
    """A whole number from ``low`` to ``high``, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


class Samples(Dataset[Batch]):
    """``count`` samples, each an image of the data set with a mask.

    Args:
        images: All images of the data set.
        indices: Which image each sample shows.
        mask: Gives the mask of a sample by its position.
        augmentation: None for evaluation.
        contain: Gives the boxes of which one must be in the crop, by the sample's position.
    """

    def __init__(
        self,
        images: TensorCache,
        indices: list[int],
        mask: Callable[[int], Tensor],
        augmentation: Augmentation | None = None,
        contain: Callable[[int], list[Box]] | None = None,
    ) -> None:
        self._images, self._indices, self._mask = images, indices, mask
        self._augmentation, self._contain = augmentation, contain

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._indices)

    def joined(self, other: "Samples") -> "Samples":
        """These samples followed by those of ``other``, augmented alike."""
        count = len(self)

        def mask(position: int) -> Tensor:
            return self._mask(position) if position < count else other._mask(position - count)

        def contain(position: int) -> list[Box]:
            source, place = (self, position) if position < count else (other, position - count)
            return source._contain(place) if source._contain is not None else []

        return Samples(self._images, self._indices + other._indices, mask, self._augmentation, contain)

    def __getitem__(self, draw: Draw) -> Batch:
        """Make one sample; the same draw always gives the same sample, in any worker."""
        index = self._indices[draw.position]
        image, mask, flipped = self._images[index], self._mask(draw.position), False
        if self._augmentation is not None:
            box = None
            if self._contain is not None:
                boxes = self._contain(draw.position)
                box = boxes[draw.seed % len(boxes)] if boxes else None
            image, mask, flipped = self._augmentation(image, mask, draw.seed, box)
        if draw.is_void:
            mask = torch.full_like(mask, IGNORE)
        return Batch(image, mask, torch.tensor(index), torch.tensor(flipped))


class SeededSampler(Sampler[Draw]):
    """Order and augmentation as a function of (seed, epoch) alone.

    Nothing is drawn from global random state, so neither the number of workers nor a restart in
    between changes what a given epoch trains on.

    Args:
        num_samples: Number of samples an epoch.
        seed: The run's seed.
        shuffle: Draw a new order each epoch; False for evaluation.
    """

    def __init__(self, num_samples: int, seed: int = 0, shuffle: bool = True) -> None:
        self.num_samples, self.seed, self.shuffle, self.epoch = num_samples, seed, shuffle, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of samples an epoch."""
        return self.num_samples

    def __iter__(self) -> Iterator[Draw]:
        """Yield the epoch's draws."""
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, self.epoch))
        order = torch.arange(self.num_samples)
        if self.shuffle:
            order = torch.randperm(self.num_samples, generator=generator)
        seeds = torch.randint(2**62, (self.num_samples,), generator=generator)
        yield from map(Draw, order.tolist(), seeds.tolist())


class Draws(Protocol):
    """Draws whose number is known: a sampler, or a list."""

    def __len__(self) -> int:
        """How many."""

    def __iter__(self) -> Iterator[Draw]:
        """The draws."""


class SharedBatches(Sampler[list[Draw]]):
    """Batches of draws, of which each rank makes its part; with one process they are all its own.

    No draw is made twice. A part that would be shorter than another rank's is filled up with void samples, so that
    all ranks make equally many steps, also one for which nothing is left.

    Args:
        sampler: Gives the draws, the same on every rank.
        batch_size: Draws in a batch, of all ranks together.
    """

    def __init__(self, sampler: Draws, batch_size: int) -> None:
        self.sampler, self.batch_size = sampler, batch_size

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self.sampler) // self.batch_size)

    def __iter__(self) -> Iterator[list[Draw]]:
        """Yield this rank's part of each batch."""
        draws = iter(self.sampler)
        while batch := list(islice(draws, self.batch_size)):
            mine = batch[ranks.rank() :: ranks.size()]
            missing = -(-len(batch) // ranks.size()) - len(mine)
            yield mine + [batch[0]._replace(is_void=True)] * missing
