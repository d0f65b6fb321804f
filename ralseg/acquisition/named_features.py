"""Named features: numbers that describe a region whatever the classes are; an open registry.

Each is one number a candidate. None depends on how many classes there are or what they are called, so a policy that
reads them can be used on other data. Letters: R candidates, L labelled regions, M regions of theta_0's images, C
classes, D channels of an embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from ralseg.acquisition import features
from ralseg.acquisition.candidates import Candidates
from ralseg.errors import ConfigError
from ralseg.runtime.allowed_imports import import_object

Describe = Callable[[Candidates], Tensor]
SMALL_SHARE = 0.02
"""Share of a region from which on a predicted class counts as being there."""


@dataclass(frozen=True)
class Feature:
    """A named feature, and what must be measured for it."""

    describe: Describe  # gives [R]
    measures: tuple[str, ...]  # of the candidates
    known_measures: tuple[str, ...]  # of everything whose labels are known


FEATURES: dict[str, Feature] = {}


def feature(measures: tuple[str, ...] = (), known_measures: tuple[str, ...] = ()) -> Callable[[Describe], Describe]:
    """Register a feature under its function's name, for ``features: [...]`` of an agent.

    A configuration names one of your own by its dotted path, ``my_features.surest``, so that it is found again wherever
    the policy is used.

    Args:
        measures: Measures of the candidates that it reads, see ``measures.py``.
        known_measures: Measures of labelled regions that it reads.

    Examples:
        >>> @feature(measures=("confidence",))
        ... def surest(candidates):
        ...     '''How likely the predicted class is: [R].'''
        ...     return candidates.seen.measures["confidence"]
        >>> FEATURES["surest"].measures
        ('confidence',)
    """

    def register(function: Describe) -> Describe:
        known = FEATURES.get(function.__name__)
        if known is not None and known.describe.__module__ != function.__module__:
            raise ConfigError(
                f"there is a feature {function.__name__!r} already, in {known.describe.__module__}; choose another name"
            )
        FEATURES[function.__name__] = Feature(function, measures, known_measures)
        return function

    return register


def find_feature(name: str) -> Feature:
    """The feature of a name, or of a dotted path; an unknown one is an error that lists those there are."""
    if name not in FEATURES and "." in name:
        function = import_object(name, "agent features")
        found = FEATURES.get(getattr(function, "__name__", ""))
        if found is None or found.describe is not function:
            raise ConfigError(f"agent features {name}: is no feature; put @ralseg.feature() above its function")
        FEATURES[name] = found
    if name not in FEATURES:
        close = get_close_matches(name, FEATURES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ConfigError(
            f"there is no feature {name!r}{hint} Features are {', '.join(sorted(FEATURES))}; register one of your own "
            "with @ralseg.feature"
        )
    return FEATURES[name]


def describe(names: tuple[str, ...], candidates: Candidates) -> Tensor:
    """Features of all candidates, side by side: [R, number of names]."""
    return torch.stack([find_feature(name).describe(candidates).float() for name in names], 1)


# -- how unsure the segmenter is ------------------------------------------------------------------


@feature()
def entropy(candidates: Candidates) -> Tensor:
    """Mean entropy of the pixels' predictions: [R]."""
    return candidates.seen.moments[:, 0]


@feature()
def entropy_max(candidates: Candidates) -> Tensor:
    """Largest entropy of a pixel: [R]."""
    return candidates.seen.moments[:, 1]


@feature()
def entropy_deviation(candidates: Candidates) -> Tensor:
    """How much entropy differs within the region: [R]."""
    return candidates.seen.moments[:, 2]


@feature(measures=("margin",))
def margin(candidates: Candidates) -> Tensor:
    """Mean gap between the two most probable classes: [R]."""
    return candidates.seen.measures["margin"]


@feature(measures=("bald",))
def bald(candidates: Candidates) -> Tensor:
    """Mean mutual information between prediction and what the segmenter is unsure of: [R]."""
    return candidates.seen.measures["bald"]


def _largest(candidates: Candidates, rank: int) -> Tensor:
    """The class-wise entropy of this rank, 0 where there are fewer classes: [R]."""
    by_class = candidates.seen.measures["class_entropy"].sort(1, descending=True).values
    return by_class[:, rank] if rank < by_class.shape[1] else torch.zeros_like(by_class[:, 0])


@feature(measures=("class_entropy",))
def class_entropy_1(candidates: Candidates) -> Tensor:
    """Entropy of the predicted class that has most of it: [R]."""
    return _largest(candidates, 0)


@feature(measures=("class_entropy",))
def class_entropy_2(candidates: Candidates) -> Tensor:
    """Entropy of the predicted class that has second most: [R]."""
    return _largest(candidates, 1)


@feature(measures=("class_entropy",))
def class_entropy_3(candidates: Candidates) -> Tensor:
    """Entropy of the predicted class that has third most: [R]."""
    return _largest(candidates, 2)


# -- what classes it seems to hold ----------------------------------------------------------------


@feature(measures=("probability",))
def rarity(candidates: Candidates) -> Tensor:
    """How much it seems to hold of what labels are short of, theta_0's labels counted as known: [R]."""
    return features.rarity(candidates.seen.measures["probability"], candidates.known)


@feature(measures=("probability",))
def rarity_steep(candidates: Candidates) -> Tensor:
    """The same where a class counts by 1/frequency instead of its root: the rarest decide: [R]."""
    return features.rarity(candidates.seen.measures["probability"], candidates.known, power=1.0)


@feature(measures=("probability",))
def rarity_chosen(candidates: Candidates) -> Tensor:
    """How much it seems to hold of what chosen regions are short of; theta_0's labels count nothing: [R].

    So choices balance each other, whatever theta_0 happened to see. The same for all before a region is chosen.
    """
    return features.rarity(candidates.seen.measures["probability"], candidates.labelled)


@feature(measures=("class_entropy",))
def rare_entropy(candidates: Candidates) -> Tensor:
    """Mean entropy in which a pixel counts by how rare its predicted class is among labels: [R]."""
    return features.rarity(candidates.seen.measures["class_entropy"], candidates.known)


@feature(measures=("probability",))
def rare_and_unsure(candidates: Candidates) -> Tensor:
    """Rarity times entropy, both in deviations within the step: [R]."""
    both = features.standardised(torch.stack([rarity(candidates), entropy(candidates)], 1))
    return both.prod(1)


@feature()
def mixture(candidates: Candidates) -> Tensor:
    """Entropy of the predicted classes' shares: [R]."""
    return features.mixture(candidates.seen.histogram)


@feature()
def classes(candidates: Candidates) -> Tensor:
    """How many classes seem to be there: [R]."""
    return (candidates.seen.histogram > SMALL_SHARE).float().sum(1)


@feature()
def divergence_labelled(candidates: Candidates) -> Tensor:
    """Mean divergence of its predicted classes from those of known regions: [R]."""
    known, histogram = candidates.known, candidates.seen.histogram
    return features.mean_kl_divergence(histogram, known) if len(known) else torch.zeros(len(histogram))


@feature()
def divergence_candidates(candidates: Candidates) -> Tensor:
    """Mean divergence of its predicted classes from those of the other candidates: [R]."""
    return features.mean_kl_divergence(candidates.seen.histogram, candidates.seen.histogram)


# -- how far it lies from what is labelled --------------------------------------------------------


def _scaled(candidates: Candidates, name: str) -> tuple[Tensor, Tensor]:
    """An embedding of candidates and of what is known, in deviations of the candidates': [R, D], [L + M, D].

    Channels in which candidates do not differ count nothing: divided by next to nothing, they would drown all others.
    """
    own, known = candidates.seen.measures[name], candidates.measures.get(name)
    deviation, mean = torch.std_mean(own, 0, correction=0)
    scale = torch.where(deviation > 1e-6, 1 / deviation, 0.0)
    known = own.new_empty(0, own.shape[1]) if known is None else known
    return (own - mean) * scale, (known - mean) * scale


def _nearest(candidates: Candidates, name: str) -> Tensor:
    """Distance from the nearest of what is known; all alike where nothing is: [R]."""
    own, known = _scaled(candidates, name)
    return torch.cdist(own, known).amin(1) if len(known) else torch.zeros(len(own))


@feature(measures=("embedding",), known_measures=("embedding",))
def novelty(candidates: Candidates) -> Tensor:
    """How far its embedding lies outside of what known regions span: sqrt(x' (1 + sum of known x x')^-1 x): [R]."""
    own, known = (values.double() for values in _scaled(candidates, "embedding"))
    second = known.T @ known + torch.eye(own.shape[1], dtype=torch.float64)
    squared: Tensor = (own * torch.linalg.solve(second, own.T).T).sum(1)
    return squared.clamp(min=0).sqrt()


@feature(measures=("embedding",), known_measures=("embedding",))
def nearest_labelled(candidates: Candidates) -> Tensor:
    """Distance of its embedding from that of the nearest known region: [R]."""
    return _nearest(candidates, "embedding")


@feature(measures=("frame",), known_measures=("frame",))
def nearest_frame(candidates: Candidates) -> Tensor:
    """Distance of its image's embedding from that of the nearest image with known labels: [R]."""
    return _nearest(candidates, "frame")


# -- where it lies --------------------------------------------------------------------------------


def _centre(candidates: Candidates) -> tuple[Tensor, Tensor]:
    """Middle of each region's box, as shares of the image's width and height: [R], [R]."""
    assert candidates.regions is not None
    assert candidates.numbers is not None
    regions, boxes = candidates.regions, candidates.regions.boxes(candidates.numbers).float()
    owners, place = regions.image_of(candidates.numbers).unique(return_inverse=True)
    sizes = torch.tensor([regions.images.content(image) for image in owners.tolist()], dtype=torch.float32)
    height, width = sizes.to(boxes.device)[place].unbind(-1)
    return (boxes[:, 0] + boxes[:, 2] / 2) / width, (boxes[:, 1] + boxes[:, 3] / 2) / height


@feature()
def height(candidates: Candidates) -> Tensor:
    """How far down in the image it lies: [R]."""
    return _centre(candidates)[1]


@feature()
def height_extreme(candidates: Candidates) -> Tensor:
    """How far from the image's middle it lies, up or down: [R]."""
    return (_centre(candidates)[1] - 0.5).abs()


@feature()
def side(candidates: Candidates) -> Tensor:
    """How far from the image's middle it lies, to the left or right: [R]."""
    return (_centre(candidates)[0] - 0.5).abs()


@feature()
def labelled_in_image(candidates: Candidates) -> Tensor:
    """Labelled regions of the same image: [R]."""
    assert candidates.regions is not None
    assert candidates.numbers is not None
    assert candidates.labelled_numbers is not None
    images = candidates.regions.image_of(candidates.labelled_numbers)
    counts = torch.bincount(images, minlength=len(candidates.regions.images))
    return counts[candidates.regions.image_of(candidates.numbers)].float()


GENERAL = (
    "entropy", "entropy_max", "entropy_deviation", "margin", "bald",
    "class_entropy_1", "class_entropy_2", "class_entropy_3",
    "rarity", "rarity_steep", "rarity_chosen", "rare_entropy", "rare_and_unsure", "mixture", "classes",
    "divergence_labelled", "divergence_candidates", "novelty", "nearest_labelled", "nearest_frame",
    "height", "height_extreme", "side", "labelled_in_image",
)  # fmt: skip
"""The features that ``features: general`` means."""
