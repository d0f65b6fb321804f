"""Linear discriminant analysis from running moments: exact, incremental, and what one more region would change.

Letters: C classes, D features of a pixel, n pixels, r regions, p pixels of a region. Moments are kept in double
precision: they are sums over many pixels, and what a region adds is the small difference of large numbers.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ralseg.labels.vault import IGNORE

UNSEEN = -1e4
"""Bias of a class of which nothing is labelled: it is never predicted, and its probability is 0 without NaN."""


class Head(NamedTuple):
    """A linear classifier: logits are ``weight @ x + bias``."""

    weight: Tensor  # [..., C, D]
    bias: Tensor  # [..., C]

    def logits(self, pixels: Tensor) -> Tensor:
        """Logits of pixels: [..., D] -> [..., C]."""
        return torch.nn.functional.linear(pixels, self.weight.to(pixels), self.bias.to(pixels))


@dataclass
class Moments:
    """What discriminant analysis must know of the labelled pixels: their number, sum and products, class by class.

    Examples:
        >>> moments = Moments.empty(num_classes=2, num_features=1)
        >>> moments.add(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]))
        >>> moments.counts.tolist(), moments.means().flatten().tolist()
        ([2.0, 1.0], [1.0, 5.0])
    """

    counts: Tensor  # [C]
    sums: Tensor  # [C, D]
    products: Tensor  # [C, D, D] sums of x x'

    @staticmethod
    def empty(num_classes: int, num_features: int) -> "Moments":
        """Nothing is labelled yet."""
        sizes = ((num_classes,), (num_classes, num_features), (num_classes, num_features, num_features))
        return Moments(*(torch.zeros(size, dtype=torch.float64) for size in sizes))

    def add(self, pixels: Tensor, classes: Tensor, sign: int = 1) -> None:
        """Take pixels [n, D] of classes [n] in; with ``sign`` -1, out again."""
        for number in classes.unique().tolist():
            own = pixels[classes == number].double()
            self.counts[number] += sign * len(own)
            self.sums[number] += sign * own.sum(0)
            self.products[number] += sign * (own.T @ own)

    def means(self) -> Tensor:
        """Mean features of each class, 0 where nothing is labelled: [C, D]."""
        return self.sums / self.counts.clamp(min=1)[:, None]

    def second(self) -> Tensor:
        """Sum of x x' over all labelled pixels: [D, D]."""
        return self.products.sum(0)


def class_priors(counts: Tensor, power: float) -> Tensor:
    """Shares of the classes, in proportion to a power of their pixels: [..., C] -> [..., C].

    1 are the shares themselves. 1/2 is what weights of 1/sqrt(share) make of them: rare classes count for more.
    """
    raised = counts.clamp(min=0).pow(power) * (counts > 0)
    return raised / raised.sum(-1, keepdim=True).clamp(min=torch.finfo(counts.dtype).tiny)


def covariance(moments: Moments, priors: Tensor, shrinkage: float) -> Tensor:
    """Covariance within classes, weighed by their priors and shrunk towards a multiple of one: [D, D]."""
    means = moments.means()
    share = priors / moments.counts.clamp(min=1)
    within = torch.einsum("c,cde->de", share, moments.products) - (means.T * priors) @ means
    return shrunk(within, shrinkage)


def shrunk(within: Tensor, shrinkage: float) -> Tensor:
    """(1 - s) S + s tr(S) / D: [..., D, D] -> [..., D, D]. As small as it may be, it can be inverted."""
    size = within.shape[-1]
    level = within.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].clamp(min=1e-12)
    return (1 - shrinkage) * within + (shrinkage * level + 1e-9 * level) * torch.eye(size).to(within)


def solve(means: Tensor, factor: Tensor, priors: Tensor) -> Head:
    """The discriminants of classes that differ in their means alone.

    Args:
        means: [..., C, D].
        factor: Cholesky factor of the covariance within classes: [..., D, D], or [D, D] for all of them.
        priors: [..., C], 0 for classes that are not there.
    """
    if factor.dim() == 2:  # one factor for all: a single solve
        weight = torch.cholesky_solve(means.reshape(-1, means.shape[-1]).mT, factor).mT.reshape(means.shape)
    else:
        weight = torch.cholesky_solve(means.mT, factor).mT
    bias = priors.clamp(min=1e-300).log() - (weight * means).sum(-1) / 2
    is_there = priors > 0
    return Head(weight * is_there[..., None], torch.where(is_there, bias, UNSEEN))


def fit(moments: Moments, shrinkage: float, prior_power: float) -> Head:
    """The classifier that the labelled pixels make, as scikit-learn's ``LinearDiscriminantAnalysis`` does by "lsqr".

    Examples:
        >>> moments = Moments.empty(2, 1)
        >>> moments.add(torch.tensor([[-1.1], [-0.9], [0.9], [1.1]]), torch.tensor([0, 0, 1, 1]))
        >>> head = fit(moments, shrinkage=0.0, prior_power=1.0)
        >>> (torch.tensor([[-2.0], [3.0]], dtype=torch.float64) @ head.weight.T + head.bias).argmax(1).tolist()
        [0, 1]
    """
    priors = class_priors(moments.counts, prior_power)
    return solve(moments.means(), torch.linalg.cholesky(covariance(moments, priors, shrinkage)), priors)


def sample(moments: Moments, shrinkage: float, prior_power: float, observations: Tensor, noise: Tensor) -> Head:
    """Classifiers whose class means are drawn from what the labels leave open: N(mean, covariance / observations).

    Their logits are, in the mean, those of :func:`fit`.

    Args:
        moments: Of the pixels labelled so far.
        shrinkage: As in :func:`fit`.
        prior_power: As in :func:`fit`.
        observations: [C] how many independent pixels each mean is known from.
        noise: [..., C, D] standard normal numbers.
    """
    priors = class_priors(moments.counts, prior_power)
    spread = covariance(moments, priors, shrinkage)
    factor = torch.linalg.cholesky(spread)
    known = observations.clamp(min=1)
    means = moments.means() + noise.double() @ factor.mT / known.sqrt()[:, None]
    head = solve(means, factor, priors.expand(noise.shape[:-1]))
    # noise makes means longer by D / observations: without this, classes that are hardly known would never be predicted
    return Head(head.weight, head.bias + noise.shape[-1] / (2 * known))


def fit_with_each(moments: Moments, pixels: Tensor, classes: Tensor, shrinkage: float, prior_power: float) -> Head:
    """The classifiers that one more region would make, each region alone: weights [r, C, D], biases [r, C].

    Args:
        moments: Of the pixels labelled so far.
        pixels: [r, p, D] features of the regions' pixels.
        classes: [r, p] their classes, 255 = ignore.
        shrinkage: As in :func:`fit`.
        prior_power: As in :func:`fit`.
    """
    num_classes = len(moments.counts)
    known = classes != IGNORE
    member = torch.nn.functional.one_hot(torch.where(known, classes, 0).long(), num_classes).double()
    member = member * known[..., None]  # [r, p, C]
    features = pixels.double()
    counts = moments.counts + member.sum(1)
    sums = moments.sums + member.mT @ features
    means = sums / counts.clamp(min=1)[..., None]
    priors = class_priors(counts, prior_power)
    share = priors / counts.clamp(min=1)  # [r, C]
    # sum_c share_c (products_c + the region's own), without making [r, C, D, D]
    within = torch.einsum("rc,cde->rde", share, moments.products)
    weighed = features * (member @ share[..., None])
    within = within + weighed.mT @ features - (means * priors[..., None]).mT @ means
    return solve(means, torch.linalg.cholesky(shrunk(within, shrinkage)), priors)


def mean_iou(predicted: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """Mean IoU over the classes that occur, of many predictions of the same pixels: [r, n], [n] -> [r]."""
    rows = torch.arange(len(predicted), device=predicted.device)[:, None] * num_classes**2
    cells = (rows + classes * num_classes + predicted).flatten()
    counts = torch.bincount(cells, minlength=len(predicted) * num_classes**2)
    counts = counts.reshape(-1, num_classes, num_classes).double()
    hits = counts.diagonal(dim1=1, dim2=2)
    union = counts.sum(1) + counts.sum(2) - hits
    occurs = union > 0
    return (hits / union.clamp(min=1)).sum(1) / occurs.sum(1).clamp(min=1)
