"""Measures: what acquisition functions ask about regions, by name; an open registry.

Letters: b images in a batch, r regions of theirs that are asked about, h x w pixels of a region, C classes,
D channels of the segmenter's embedding.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from ralseg.acquisition.features import class_histogram, entropy_map, rarity
from ralseg.errors import ConfigError
from ralseg.labels.layout import RegionMaps, Regions
from ralseg.labels.vault import IGNORE
from ralseg.models.prediction import Prediction, Seeds
from ralseg.models.segmenter import predicted_classes

BALD_SAMPLES = 20
"""Dropout masks that BALD looks through (paper)."""


@dataclass(frozen=True)
class RegionPredictions:
    """A batch of images as the segmenter sees it, and which of their regions are asked about.

    Examples:
        >>> def share_of_first_class(seen: RegionPredictions) -> Tensor:
        ...     return seen.mean(seen.logits.softmax(1)[:, 0])  # [r]
    """

    prediction: Prediction  # of the b images
    regions: Regions  # how images are cut
    rows: Tensor  # [r] position in the batch of each region's image
    numbers: Tensor  # [r] the regions
    maps: RegionMaps  # logits at the regions: [r, C, h, w]
    seeds: Seeds  # what is drawn at random follows from these
    labelled: Tensor  # [L, C] class shares of the regions labelled so far
    labels: Tensor | None = None  # [r, *box_size] the regions' own labels, for measures that teach
    judge: Callable[[], Any] | None = None  # gives the pixels that pay, for measures that teach

    @property
    def logits(self) -> Tensor:
        """Logits at the regions: [r, C, h, w]."""
        return self.maps.values

    def cut(self, maps: Tensor) -> Tensor:
        """Cut maps [b, ..., H, W] at the regions: [r, ..., h, w]."""
        return self.regions.cut(maps, self.rows, self.numbers).values

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the pixels of each region: [r, ..., h, w] -> [r, ...]."""
        return self.maps.mean(values)

    def own_labels(self) -> Tensor:
        """The regions' own labels; an error for everyone but a teacher, who plays on labelled images."""
        if self.labels is None:
            raise ConfigError(
                "a measure reads the labels of unlabelled regions: only agents that are taught may use it"
            )
        return self.labels

    def label_maps(self) -> Tensor:
        """The regions' own labels at the pixels of ``maps``; 255 outside of a region: [r, h, w]."""
        images, numbers, rows = self.regions.images, self.numbers.cpu(), self.rows.cpu()
        masks = torch.full((len(self.prediction.image), images.height, images.width), IGNORE, dtype=torch.uint8)
        owners = torch.full(masks.shape, -1, dtype=torch.int64)  # whose labels stand there
        places = zip(
            rows.tolist(), numbers.tolist(), self.regions.boxes(numbers).tolist(), self.own_labels().cpu(), strict=True
        )
        for row, number, (x, y, width, height), labels in places:
            label = labels[:height, :width]
            known = label != IGNORE
            masks[row, y : y + height, x : x + width][known] = label[known]
            owners[row, y : y + height, x : x + width][known] = number
        at_labels = self.prediction.segmenter.at_labels
        found, owner = (self.regions.cut(at_labels(maps), rows, numbers).values for maps in (masks, owners))
        return torch.where(owner == numbers[:, None, None], found, IGNORE).to(self.numbers.device)

    def paying_pixels(self) -> Any:
        """Pixels of the images that pay; an error for everyone but a teacher."""
        if self.judge is None:
            raise ConfigError(
                "a measure reads the labels of the images that pay: only agents that are taught may use it"
            )
        return self.judge()


Measure = Callable[[RegionPredictions], Tensor]
MEASURES: dict[str, Measure] = {}
LESSONS: set[str] = set()
"""Measures that read labels: an agent may be taught by one, but no policy may ask for it."""


def measure(function: Measure) -> Measure:
    """Register a measure under its function's name, for policies to ask for in ``Needs(measures=...)``.

    Examples:
        >>> @measure
        ... def brightness(seen):
        ...     '''Mean logit of the first class: [r].'''
        ...     return seen.mean(seen.logits[:, 0])
        >>> "brightness" in MEASURES
        True
    """
    known = MEASURES.get(function.__name__)
    if known is not None and known.__module__ != function.__module__:
        raise ConfigError(
            f"there is a measure {function.__name__!r} already, in {known.__module__}; choose another name"
        )
    MEASURES[function.__name__] = function
    return function


def lesson(function: Measure) -> Measure:
    """Register a measure that reads labels; see :func:`measure`."""
    LESSONS.add(function.__name__)
    return measure(function)


def find_measure(name: str) -> Measure:
    """The measure of a name; an unknown one is an error that lists those there are."""
    if name not in MEASURES:
        close = get_close_matches(name, MEASURES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ConfigError(
            f"there is no measure {name!r}{hint} Measures are {', '.join(sorted(MEASURES))}; register one of your own "
            "with @ralseg.measure"
        )
    return MEASURES[name]


@measure
def margin(seen: RegionPredictions) -> Tensor:
    """Mean gap between the two most probable classes: [r]."""
    first, second = seen.logits.softmax(1).topk(2, 1).values.unbind(1)
    return seen.mean(first - second)


@measure
def confidence(seen: RegionPredictions) -> Tensor:
    """Mean probability of the most probable class: [r]."""
    return seen.mean(seen.logits.softmax(1).amax(1))


@measure
def probability(seen: RegionPredictions) -> Tensor:
    """Mean probability of each class: [r, C]."""
    return seen.mean(seen.logits.softmax(1))


@measure
def class_entropy(seen: RegionPredictions) -> Tensor:
    """Entropy by predicted class, as shares of the region's mean entropy: [r, C]."""
    entropy = entropy_map(seen.logits)
    count = torch.full((len(entropy), 1), entropy[0].numel(), device=entropy.device)
    if seen.maps.inside is not None:
        entropy, count = entropy * seen.maps.inside, seen.maps.inside.flatten(1).sum(1, keepdim=True).clamp(min=1)
    classes = predicted_classes(seen.logits).flatten(1)
    sums = entropy.new_zeros(len(entropy), seen.logits.shape[1]).scatter_add_(1, classes, entropy.flatten(1))
    return sums / count


@measure
def embedding(seen: RegionPredictions) -> Tensor:
    """Mean of the segmenter's embedding over the region: [r, D]."""
    return seen.prediction.average(seen.regions, seen.rows, seen.numbers)


@measure
def frame(seen: RegionPredictions) -> Tensor:
    """Mean of the segmenter's embedding over the region's whole image: [r, D]."""
    images, owners = seen.regions.images, seen.regions.image_of(seen.numbers)
    filled = [(1.0, 1.0)] * len(seen.prediction.image)
    for row, image in dict(zip(seen.rows.tolist(), owners.tolist(), strict=True)).items():
        height, width = images.content(image)
        filled[row] = (height / images.height, width / images.width)
    return seen.prediction.frame(filled)[seen.rows]


@measure
def bald(seen: RegionPredictions) -> Tensor:
    """Mean mutual information between prediction and what the network is unsure of (its dropout mask): [r].

    Sums are kept instead of samples, so memory does not grow with their number.
    """
    total = torch.zeros_like(seen.logits)
    own_entropy = torch.zeros_like(seen.logits[:, 0])
    for logits in seen.prediction.sampled_at(seen.regions, seen.rows, seen.numbers, BALD_SAMPLES, seen.seeds):
        below = logits - logits.amax(1, keepdim=True)
        probability = below.softmax(1)
        total += probability
        # log p is `below` plus that of the likeliest class: one exponential a class, and one logarithm a pixel
        own_entropy -= probability.amax(1).log() + below.mul_(probability).sum(1)
    entropy_of_mean: Tensor = torch.special.entr(total / BALD_SAMPLES).sum(1)
    information = (entropy_of_mean - own_entropy / BALD_SAMPLES) / math.log(total.shape[1])
    return seen.mean(information).clamp(min=0)


@lesson
def true_rarity(seen: RegionPredictions) -> Tensor:
    """How much the region holds of classes that labels are short of: [r]. It reads labels, so it can only teach."""
    labels = seen.own_labels()
    return rarity(class_histogram(labels, seen.logits.shape[1]), seen.labelled.to(labels.device))


@lesson
def credit(seen: RegionPredictions) -> Tensor:
    """The change of mean IoU on the images that pay if this region alone were labelled: [r]. It can only teach."""
    labels, judge = seen.label_maps(), seen.paying_pixels()
    return seen.prediction.credit(seen.regions, seen.rows, seen.numbers, labels, judge)
