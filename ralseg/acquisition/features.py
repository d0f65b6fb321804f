"""From predictions to what the policy sees: pure tensor functions, vectorised over regions.

Letters: B images, R regions (any number), h x w pixels of a region, C classes, L labelled and M other
regions. All results are plain floats; no module, no device, no global state.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ralseg.labels.layout import RegionMaps
from ralseg.labels.vault import IGNORE

POOLED = 8
"""Entropy maps are pooled to 8 x 8 values (paper)."""
KL_BINS = 32
"""Bins of a histogram of divergences (ours: the paper gives no number)."""
KL_EPSILON = 1e-3
"""Smoothing of class histograms, so that their divergence is bounded."""

EntropyPooling = Literal["1H", "3H"]


KL_OTHERS = 2**16
"""Regions that divergences are counted from; of more, so many are drawn. A bin's share is then off by at most 0.01, but
for four in a million (Hoeffding)."""


def kl_limit(num_classes: int) -> float:
    """The largest divergence that two smoothed histograms can have: the end of the last bin."""
    return math.log((1 + KL_EPSILON) / KL_EPSILON) / (1 + num_classes * KL_EPSILON)


def entropy_map(logits: Tensor) -> Tensor:
    """Shannon entropy of each pixel's prediction, divided by log C: [B, C, H, W] -> [B, H, W] in [0, 1]."""
    log_probability = functional.log_softmax(logits, dim=1)
    entropy = -(log_probability.exp() * log_probability).sum(1)
    return (entropy / math.log(logits.shape[1])).clamp(0, 1)


def class_histogram(classes: Tensor, num_classes: int) -> Tensor:
    """Share of each class among the pixels of a region, void left out: [R, h, w] -> [R, C].

    A region with nothing but void has no shares: all zeros.
    """
    regions = len(classes)
    flat = classes.flatten(1).long()
    flat = torch.where(flat == IGNORE, num_classes, flat)
    offsets = torch.arange(regions, device=classes.device)[:, None] * (num_classes + 1)
    counts = torch.bincount((flat + offsets).flatten(), minlength=regions * (num_classes + 1))
    counts = counts.reshape(regions, num_classes + 1)[:, :num_classes].float()
    return counts / counts.sum(1, keepdim=True).clamp(min=1)


def pooled_entropy(entropy: Tensor, pooling: EntropyPooling = "3H") -> Tensor:
    """Entropy maps pooled to 8 x 8: [R, h, w] -> [R, 64] (``1H``: max) or [R, 192] (``3H``: min, mean, max).

    Adaptive cells: no row or column is dropped where 8 does not divide the region.
    """
    maps = entropy[:, None]
    highest = functional.adaptive_max_pool2d(maps, POOLED).flatten(1)
    if pooling == "1H":
        return highest
    lowest = -functional.adaptive_max_pool2d(-maps, POOLED).flatten(1)
    mean = functional.adaptive_avg_pool2d(maps, POOLED).flatten(1)
    return torch.cat([lowest, mean, highest], 1)


@dataclass(frozen=True)
class RegionFeatures:
    """What is known of regions from predictions alone."""

    histogram: Tensor  # [R, C] share of predicted classes
    pooled: Tensor  # [R, 64 or 192] pooled entropy
    moments: Tensor  # [R, 3] mean, maximum and spatial deviation of the entropy
    measures: dict[str, Tensor] = field(default_factory=dict)  # [R] or [R, D] each, by name

    def vector(self) -> Tensor:
        """The paper's description of a region: [R, C + 64 or 192]."""
        return torch.cat([self.histogram, self.pooled], 1)

    def mean_entropy(self) -> Tensor:
        """Mean entropy of each region: [R]."""
        return self.moments[:, 0]

    def __getitem__(self, rows: Tensor) -> "RegionFeatures":
        """Some of the regions, or all in another order."""
        measures = {name: values[rows] for name, values in self.measures.items()}
        return RegionFeatures(self.histogram[rows], self.pooled[rows], self.moments[rows], measures)

    @staticmethod
    def join(parts: list["RegionFeatures"]) -> "RegionFeatures":
        """The regions of all parts, on the CPU, where the game lives."""

        def together(tensors: list[Tensor]) -> Tensor:
            return torch.cat(tensors).cpu()

        return RegionFeatures(
            together([part.histogram for part in parts]),
            together([part.pooled for part in parts]),
            together([part.moments for part in parts]),
            {name: together([part.measures[name] for part in parts]) for name in parts[0].measures},
        )


def region_features(
    classes: Tensor, entropy: RegionMaps, num_classes: int, pooling: EntropyPooling | None
) -> RegionFeatures:
    """Describe regions by their predicted classes [R, h, w] and entropies [R, h, w]; without pooled maps if None.

    Where a region does not fill its box, the rest counts as void, and for pooling as the region's mean entropy.
    """
    values, inside = entropy
    mean = entropy.mean(values)
    if inside is not None:
        classes = torch.where(inside, classes, IGNORE)
        values = torch.where(inside, values, mean[:, None, None])
    flat = values.flatten(1)
    if inside is None:
        deviation = flat.std(1, correction=0)
    else:
        deviation = entropy.mean((values - mean[:, None, None]).square()).sqrt()
    moments = torch.stack([mean, flat.amax(1), deviation], 1)
    pooled = flat[:, :0] if pooling is None else pooled_entropy(values, pooling)
    return RegionFeatures(class_histogram(classes, num_classes), pooled, moments)


def smoothed(histogram: Tensor) -> Tensor:
    """Mix histograms with a little of the uniform one: [R, C] -> [R, C], rows sum to 1, nothing is 0."""
    raised = histogram + KL_EPSILON
    return raised / raised.sum(-1, keepdim=True)


def kl_divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(first || second) of all pairs of class histograms: [R, C], [M, C] -> [R, M], one matrix product."""
    p, q = smoothed(first), smoothed(second)
    own = (p * p.log()).sum(1, keepdim=True)
    return (own - p @ q.log().T).clamp(min=0)


def mean_kl_divergence(first: Tensor, second: Tensor) -> Tensor:
    """Mean over ``second`` of KL(first || second), without making the pairs: [R, C], [M, C] -> [R]."""
    p = smoothed(first)
    own = (p * p.log()).sum(1)
    return (own - p @ smoothed(second).log().mean(0)).clamp(min=0)


def sampled(rows: Tensor, number: int) -> Tensor:
    """At most ``number`` of the rows: all of them, or a random choice that depends on nothing but how many there are.

    Examples:
        >>> len(sampled(torch.rand(7, 2), 3)), len(sampled(torch.rand(2, 2), 3))
        (3, 2)
    """
    if len(rows) <= number:
        return rows
    drawn = torch.randint(len(rows), (number,), generator=torch.Generator().manual_seed(len(rows)))
    return rows[drawn.to(rows.device)]


def kl_histogram(first: Tensor, second: Tensor, tile: int = 512) -> Tensor:
    """For each region the distribution of its divergences from others: [R, C], [M, C] -> [R, 32].

    Bins are fixed, so "all at distance c/2" and "half at 0, half at c" differ. Without others the
    result is all zeros. Of more than ``KL_OTHERS`` others so many are drawn, always the same ones for their number.
    Works in tiles of ``tile`` x ``tile`` pairs that a processor's cache can hold: memory does not
    grow with R x M, and larger tiles are many times slower.
    """
    second = sampled(second, KL_OTHERS)
    p, log_q = smoothed(first), smoothed(second).log()
    scale = KL_BINS / kl_limit(first.shape[1])
    own, p = scale * (p * p.log()).sum(1, keepdim=True), scale * p
    counts = first.new_zeros(len(first), KL_BINS)
    for rows in torch.arange(len(first), device=first.device).split(tile):
        offsets = torch.arange(len(rows), device=first.device, dtype=torch.int32)[:, None] * KL_BINS
        for others in log_q.split(tile) if len(second) else ():
            # divergences in units of a bin, then the number of each one's bin
            bins = torch.addmm(own[rows], p[rows], others.T, alpha=-1).clamp_(0, KL_BINS - 1).int()
            tally = torch.bincount(bins.add_(offsets).flatten(), minlength=len(rows) * KL_BINS)
            counts[rows] += tally.reshape(len(rows), KL_BINS)
    return counts / max(len(second), 1)


def standardised(features: Tensor, clip: float = 4.0) -> Tensor:
    """Z-scores over all regions of a step, clipped; a constant feature becomes 0: [..., A] -> [..., A]."""
    flat = features.flatten(0, -2)
    deviation, mean = torch.std_mean(flat, 0, correction=0)
    scores = (features - mean) / deviation.clamp(min=1e-6)
    return torch.where(deviation > 1e-6, scores, 0.0).clamp(-clip, clip)


def centred_rank(values: Tensor) -> Tensor:
    """Rank of each value from -0.5 (lowest) to 0.5 (highest); equal values share theirs: [R] -> [R]."""
    values = values.contiguous()
    ordered = values.sort().values
    below, upto = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + upto - 1) / (2 * max(len(values) - 1, 1)) - 0.5


def rarity(histogram: Tensor, labelled: Tensor, power: float = 0.5) -> Tensor:
    """How much regions hold of what labels are short of: [R, C], [L, C] -> [R].

    A pixel counts by 1/sqrt of its class's frequency among the labels. That is the slope of sum_c sqrt(n_c), n_c being
    the labelled pixels of class c: every class counts, and the more is known of one the less another pixel adds.
    ``power`` puts another exponent in the place of the root's 1/2.
    """
    frequency = smoothed(labelled.mean(0)) if len(labelled) else torch.full_like(histogram[0], 1 / histogram.shape[1])
    return histogram @ (frequency.rsqrt() if power == 0.5 else frequency.pow(-power))


def mixture(histogram: Tensor) -> Tensor:
    """Entropy of class shares: [R, C] -> [R]."""
    p = smoothed(histogram)
    return -(p * p.log()).sum(1)


def summary_features(regions: RegionFeatures, labelled: Tensor) -> Tensor:
    """A short description for policies that learn from few games: [R, C + 8].

    Square roots of the class shares; mean, maximum and deviation of the entropy; entropy of the class
    histogram; mean divergence from the labelled regions [L, C] and from these regions; rarity; squared centred
    entropy rank.
    """
    histogram = regions.histogram
    mixed = mixture(histogram)[:, None]
    to_labelled = mean_kl_divergence(histogram, labelled)[:, None] if len(labelled) else torch.zeros_like(mixed)
    to_others = mean_kl_divergence(histogram, histogram)[:, None]
    rare = rarity(histogram, labelled)[:, None]
    rank = centred_rank(regions.mean_entropy())
    parts = [histogram.sqrt(), regions.moments, mixed, to_labelled, to_others, rare, rank.square()[:, None]]
    return torch.cat(parts, 1)
