"""A prediction: what a segmenter says about a batch of images, and what acquisition functions may ask it."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ralseg.errors import ConfigError
from ralseg.labels.layout import RegionMaps, Regions

_DROPOUT = (nn.Dropout, nn.Dropout2d)


class Seeds(NamedTuple):
    """What random draws of a look at images follow from: they must not depend on which images share a batch."""

    step: int  # of what is drawn once for all images
    images: list[int]  # of what is drawn for each image


def in_full(values: Tensor) -> Tensor:
    """Values in single precision, where a pass under ``trainer.precision`` has left fewer digits.

    Examples:
        >>> in_full(torch.ones(2, dtype=torch.bfloat16)).dtype, in_full(torch.ones(2, dtype=torch.float64)).dtype
        (torch.float32, torch.float64)
    """
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


class Prediction:
    """What a segmenter says about a batch of images, and what else acquisition functions may ask it.

    Args:
        segmenter: The :class:`Segmenter`, in evaluation mode; its module imports this one, so it has no type here.
        image: [b, 3, H, W] uint8.
        logits: [b, C, h, w] at every ``label_stride``-th pixel.
    """

    def __init__(self, segmenter: Any, image: Tensor, logits: Tensor) -> None:
        self.segmenter, self.image, self.logits = segmenter, image, in_full(logits)

    def embedding(self) -> Tensor:
        """A map of features that covers the images: [b, D, ?, ?]; class probabilities, unless overridden."""
        return self.logits.softmax(1)

    def cut(self, regions: Regions, rows: Tensor, numbers: Tensor) -> RegionMaps:
        """Logits at regions: [r, C, h, w].

        Args:
            regions: How images are cut.
            rows: [r] the image of each region in this batch.
            numbers: [r] the regions.
        """
        return regions.cut(self.logits, rows, numbers)

    def average(self, regions: Regions, rows: Tensor, numbers: Tensor) -> Tensor:
        """Mean of :meth:`embedding` over regions: [r, D]."""
        return regions.average(self.embedding(), rows, numbers)

    def sampled_at(
        self, regions: Regions, rows: Tensor, numbers: Tensor, samples: int, seeds: Seeds
    ) -> Iterator[Tensor]:
        """What :meth:`sampled` gives, at regions; each [r, C, h, w]."""
        for logits in self.sampled(samples, seeds):
            yield regions.cut(logits, rows, numbers).values

    def frame(self, filled: list[tuple[float, float]]) -> Tensor:
        """Mean of :meth:`embedding` over whole images: [b, D].

        Args:
            filled: Shares of height and width that each image fills, from the top left; the rest is padding.
        """
        maps = self.embedding()
        if set(filled) == {(1.0, 1.0)}:
            return maps.mean((2, 3))
        height, width = maps.shape[-2:]
        sizes = [(math.ceil(height * down), math.ceil(width * across)) for down, across in filled]
        return torch.stack([one[:, :h, :w].mean((1, 2)) for one, (h, w) in zip(maps, sizes, strict=True)])

    def credit(self, regions: Regions, rows: Tensor, numbers: Tensor, labels: Tensor, judge: Any) -> Tensor:
        """The change of mean IoU on the judge's pixels if one region alone were labelled: [r].

        Args:
            regions: How images are cut.
            rows: [r] the image of each region in this batch.
            numbers: [r] the regions.
            labels: [r, h, w] their labels, at ``label_stride``.
            judge: What the segmenter's ``reward_pixels`` gave.
        """
        raise ConfigError(
            "the credit of one region needs a segmenter that can be refitted at once, such as "
            f"ralseg.ClosedFormSegmenter; model {type(self.segmenter).__name__} cannot"
        )

    def sampled(self, samples: int, seeds: Seeds) -> Iterator[Tensor]:
        """Logits under random dropout, for BALD; each [b, C, h, w].

        Args:
            samples: Number of dropout masks.
            seeds: What is drawn follows from these.
        """
        dropouts = [module for module in self.segmenter.modules() if isinstance(module, _DROPOUT) and 0 < module.p < 1]
        if not dropouts:
            raise ConfigError(
                f"BALD samples a network's dropout, but model {type(self.segmenter).__name__} has none; give it a "
                "Dropout layer, or choose another policy"
            )
        stride = self.segmenter.label_stride
        for sample in range(samples):
            rows = []
            for row, seed in enumerate(seeds.images):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed + sample)
                    for module in dropouts:
                        module.train()
                    with self.segmenter.in_precision():
                        logits = in_full(self.segmenter(self.image[row : row + 1]))
                    rows.append(logits[..., ::stride, ::stride])
                    for module in dropouts:
                        module.eval()
            yield torch.cat(rows)
