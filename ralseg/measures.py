"""What acquisition functions measure on regions, by name; computed in the same pass as the features.

Letters: b images in a batch, r regions of theirs that are asked about, h x w pixels of a region, C classes,
D channels of the decoder's last map.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ralseg.errors import ConfigError
from ralseg.features import class_histogram, entropy_map, rarity
from ralseg.influence import coarse_alignment, influence, prospects, value_by_class
from ralseg.regions import RegionGrid
from ralseg.segmenter import FPNSegmenter, predicted_classes

BALD_SAMPLES = 20
"""Dropout masks that BALD looks through (paper)."""


@dataclass(frozen=True)
class Hints:
    """What some measures need to know beside the images."""

    direction: Tensor | None = None  # [C, D + 1] where the reward set's loss rises, see ``influence.py``
    labels: Tensor | None = None  # [R, height, width] of the regions asked about; for teachers only
    labelled: Tensor | None = None  # [L, C] class shares of the regions labelled so far


@dataclass(frozen=True)
class Glance:
    """A batch of images as the network sees it, and which of their regions are asked about."""

    segmenter: FPNSegmenter
    grid: RegionGrid
    merged: Tensor  # [b, D, ~height / 4, ~width / 4] the decoder's last map, without dropout
    logits: Tensor  # [r, C, h, w] of the regions
    image: Tensor  # [r] position in the batch
    cell: Tensor  # [r]
    seeds: list[int]  # one an image, for measures that draw at random: the company an image is in changes nothing
    hints: "Hints"

    def regions_of(self, maps: Tensor) -> Tensor:
        """Cut maps [b, ..., H, W] at the regions: [r, ..., h, w]."""
        return self.grid.split(maps)[self.image, self.cell]


Measure = Callable[[Glance], Tensor]


def margin(glance: Glance) -> Tensor:
    """Mean gap between the two most probable classes: [r]."""
    first, second = glance.logits.softmax(1).topk(2, 1).values.unbind(1)
    return (first - second).flatten(1).mean(1)


def confidence(glance: Glance) -> Tensor:
    """Mean probability of the most probable class: [r]."""
    return glance.logits.softmax(1).amax(1).flatten(1).mean(1)


def probability(glance: Glance) -> Tensor:
    """Mean probability of each class: [r, C]."""
    return glance.logits.softmax(1).flatten(2).mean(2)


def class_entropy(glance: Glance) -> Tensor:
    """Entropy by predicted class, as shares of the region's mean entropy: [r, C]."""
    entropy = entropy_map(glance.logits).flatten(1)
    classes = predicted_classes(glance.logits).flatten(1)
    sums = entropy.new_zeros(len(entropy), glance.logits.shape[1]).scatter_add_(1, classes, entropy)
    return sums / entropy.shape[1]


def embedding(glance: Glance) -> Tensor:
    """Mean of the decoder's last map over the region: [r, D]."""
    height, width = math.ceil(glance.grid.height / 4), math.ceil(glance.grid.width / 4)
    inside = glance.merged[..., :height, :width]  # the rest is padding
    pooled = functional.adaptive_avg_pool2d(inside, (glance.grid.rows, glance.grid.columns)).flatten(2)
    return pooled[glance.image, :, glance.cell]


def bald(glance: Glance, samples: int = BALD_SAMPLES) -> Tensor:
    """Mean mutual information between prediction and dropout mask: [r].

    Encoder and decoder have run once; only dropout, the last convolution and upsampling are repeated. Sums
    are kept instead of samples, so memory does not grow with their number.
    """
    segmenter, merged, grid = glance.segmenter, glance.merged, glance.grid
    drop = segmenter.net.decoder.dropout.p
    if not 0 < drop < 1:
        raise ConfigError(f"BALD samples the decoder's dropout, but model.segmenter has dropout {drop}")
    expected = torch.zeros_like(glance.logits)
    own_entropy = torch.zeros_like(glance.logits[:, 0])
    channels = merged.shape[1]
    drawn = [torch.rand(samples, channels, generator=torch.Generator().manual_seed(seed)) for seed in glance.seeds]
    for kept in (torch.stack(drawn, 1) >= drop)[..., None, None]:
        coarse = segmenter.classify(merged * (kept / (1 - drop)).to(merged))
        logits = glance.regions_of(segmenter.upsample(coarse, grid.height, grid.width, segmenter.label_stride))
        expected += logits.softmax(1) / samples
        own_entropy += entropy_map(logits) / samples
    entropy_of_mean: Tensor = torch.special.entr(expected).sum(1) / math.log(expected.shape[1])
    return (entropy_of_mean - own_entropy).flatten(1).mean(1).clamp(min=0)


def _values(glance: Glance) -> Tensor:
    """What each pixel's label would be worth by its class: [r, C, h, w]."""
    assert glance.hints.direction is not None
    segmenter, grid = glance.segmenter, glance.grid
    coarse = coarse_alignment(glance.merged, glance.hints.direction)
    alignment = glance.regions_of(segmenter.upsample(coarse, grid.height, grid.width, segmenter.label_stride))
    return value_by_class(glance.logits, alignment, segmenter.class_weight)


def expected_influence(glance: Glance) -> Tensor:
    """What the network expects the region's labels to be worth for the reward set: [r, 4]."""
    return prospects(_values(glance), glance.logits)


def true_influence(glance: Glance) -> Tensor:
    """What the region's labels are worth for the reward set: [r]. Needs the labels, so it can only teach."""
    assert glance.hints.labels is not None
    stride = glance.segmenter.label_stride
    return influence(_values(glance), glance.hints.labels[:, ::stride, ::stride])


def true_rarity(glance: Glance) -> Tensor:
    """How much the region holds of classes that labels are short of: [r]. Needs its labels, so it can only teach."""
    labels, labelled = glance.hints.labels, glance.hints.labelled
    assert labels is not None
    assert labelled is not None
    return rarity(class_histogram(labels, glance.logits.shape[1]), labelled.to(labels.device))


MEASURES: dict[str, Measure] = {
    measure.__name__: measure
    for measure in (
        *(margin, confidence, probability, class_entropy, embedding, bald),
        *(expected_influence, true_influence, true_rarity),
    )
}
"""All measures by name; a policy lists those it reads in ``measures``."""
NEED_DIRECTION = {"expected_influence", "true_influence"}
"""Measures for which the reward set must be looked at too."""
