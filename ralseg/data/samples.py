"""Training and evaluation samples: image, mask, and where they came from."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from torchvision.transforms.v2 import functional as transforms

from ralseg.labels.layout import Box
from ralseg.labels.oracle import RevealedLabels
from ralseg.labels.vault import IGNORE, MaskVault
from ralseg.runtime import distributed
from ralseg.runtime.seeding import mixed_seed
from ralseg.runtime.tensor_cache import TensorCache


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
    """Images of the data set with masks; subclasses say which mask.

    Args:
        images: All images of the data set.
        indices: Which image each sample shows.
        augmentation: None for evaluation.
    """

    def __init__(self, images: TensorCache, indices: list[int], augmentation: Augmentation | None) -> None:
        self.images, self.indices, self.augmentation = images, indices, augmentation

    @abstractmethod
    def mask(self, position: int) -> Tensor:
        """The mask of a sample: [height, width]."""

    def boxes(self, position: int) -> list[Box]:
        """Boxes of which a crop must contain one; none by default."""
        return []

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.indices)

    def __getitem__(self, draw: Draw) -> Batch:
        """Make one sample; the same draw always gives the same sample, in any worker."""
        index = self.indices[draw.position]
        image, mask, flipped = self.images[index], self.mask(draw.position), False
        if self.augmentation is not None:
            boxes = self.boxes(draw.position)
            box = boxes[draw.seed % len(boxes)] if boxes else None
            image, mask, flipped = self.augmentation(image, mask, draw.seed, box)
        if draw.is_void:
            mask = torch.full_like(mask, IGNORE)
        return Batch(image, mask, torch.tensor(index), torch.tensor(flipped))


class ImageSamples(Samples):
    """Whole labelled images.

    Args:
        images: All images of the data set.
        indices: The images.
        masks: Their masks, which must be open.
        augmentation: None for evaluation.
    """

    def __init__(
        self, images: TensorCache, indices: list[int], masks: MaskVault, augmentation: Augmentation | None
    ) -> None:
        super().__init__(images, indices, augmentation)
        self._masks = masks

    def mask(self, position: int) -> Tensor:
        """The image's mask."""
        return self._masks[self.indices[position]]


class UnlabelledSamples(Samples):
    """Whole images of which nothing is labelled, to be predicted."""

    def mask(self, position: int) -> Tensor:
        """Void: all pixels are ignored."""
        return torch.full_like(self.images[self.indices[position]][0], IGNORE)


class RegionSamples(Samples):
    """Images of which only some regions are labelled.

    Args:
        images: All images of the data set.
        groups: The labelled regions of each sample; those of one sample lie in one image.
        labels: Their labels.
        augmentation: How samples are changed; a crop contains at least one of the sample's regions.
    """

    def __init__(
        self, images: TensorCache, groups: list[list[int]], labels: RevealedLabels, augmentation: Augmentation
    ) -> None:
        owners = labels.regions.image_of(torch.tensor([group[0] for group in groups], dtype=torch.int64))
        super().__init__(images, [labels.regions.images.indices[i] for i in owners.tolist()], augmentation)
        self._groups, self._labels = groups, labels

    def mask(self, position: int) -> Tensor:
        """The labels of the sample's regions; all else is ignored."""
        return self._labels.mask(self._groups[position])

    def boxes(self, position: int) -> list[Box]:
        """The regions' boxes."""
        return [tuple(box) for box in self._labels.regions.boxes(torch.tensor(self._groups[position])).tolist()]


class JoinedSamples(Samples):
    """The samples of one set followed by those of another, augmented like the first.

    Args:
        first: Samples.
        second: More samples of the same images.
    """

    def __init__(self, first: Samples, second: Samples) -> None:
        super().__init__(first.images, first.indices + second.indices, first.augmentation)
        self._first, self._second = first, second

    def _find(self, position: int) -> tuple[Samples, int]:
        count = len(self._first)
        return (self._first, position) if position < count else (self._second, position - count)

    def mask(self, position: int) -> Tensor:
        """The mask of a sample of either set."""
        samples, place = self._find(position)
        return samples.mask(place)

    def boxes(self, position: int) -> list[Box]:
        """The boxes of a sample of either set."""
        samples, place = self._find(position)
        return samples.boxes(place)


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
    """Batches of draws, of which each process of a run makes its part; a single process makes all of them.

    No draw is made twice. A part that would be shorter than another process's is filled up with void samples, so that
    all processes make equally many steps, also one for which nothing is left.

    Args:
        sampler: Gives the draws, the same in every process.
        batch_size: Draws in a batch, of all processes together.
    """

    def __init__(self, sampler: Draws, batch_size: int) -> None:
        self.sampler, self.batch_size = sampler, batch_size

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self.sampler) // self.batch_size)

    def __iter__(self) -> Iterator[list[Draw]]:
        """Yield this process's part of each batch."""
        draws = iter(self.sampler)
        while batch := list(islice(draws, self.batch_size)):
            mine = batch[distributed.rank() :: distributed.size()]
            missing = -(-len(batch) // distributed.size()) - len(mine)
            yield mine + [batch[0]._replace(is_void=True)] * missing
