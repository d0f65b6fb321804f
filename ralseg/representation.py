"""The agent's eyes: state and sub-action features from one forward pass an image."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from ralseg import features, ranks
from ralseg.data.cache import TensorCache
from ralseg.features import RegionFeatures
from ralseg.measures import MEASURES, Glance, Hints
from ralseg.randomness import mixed_seed
from ralseg.regions import RegionGrid
from ralseg.segmenter import FPNSegmenter, predicted_classes

FeatureSet = Literal["1H", "3H", "3H+KL", "summary", "summary+classes", "summary+influence"]
Prior = Literal["entropy", "margin", "bald"]
PROSPECTS = 4
"""What ``expected_influence`` says of a region."""
_MEASURES = {"summary+classes": ("probability", "class_entropy"), "summary+influence": ("expected_influence",)}


_NO_HINTS = Hints()


@dataclass(frozen=True)
class Observation:
    """What the agent sees at a step. K pools of N regions, R_S regions of the state set, L labelled regions."""

    state: Tensor  # [R_S, F]
    pools: Tensor  # [K, N] region numbers
    actions: Tensor  # [K, N, A + 1]; the last column is the prior: how unsure the network is, standardised
    entropy: Tensor  # [K, N] mean pixel entropy
    histogram: Tensor  # [K, N, C] share of predicted classes
    picks: int = 1  # regions that will be taken from each pool
    measures: dict[str, Tensor] = field(default_factory=dict)  # [K, N] or [K, N, D]: what the policy asked for
    labelled: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # [L, C] class shares of labelled regions
    labelled_measures: dict[str, Tensor] = field(default_factory=dict)  # [L] or [L, D]

    @staticmethod
    def unseen(pools: Tensor, picks: int, labelled: Tensor) -> "Observation":
        """Candidates that nobody looked at."""
        nothing = torch.empty(*pools.shape, 0)
        return Observation(torch.empty(0, 0), pools, nothing, nothing, nothing, picks, labelled=labelled)


@dataclass(frozen=True)
class Representation:
    """Turns predictions into features.

    Args:
        kind: The paper's ``1H``, ``3H`` or ``3H+KL``; or ``summary``, a short description for policies
            that learn from few games; ``summary+classes``, with each class's mean probability and share of the entropy;
            or ``summary+influence``, with what the network expects the labels to be worth for the reward set (all three
            "ours").
        standardise: Z-score each sub-action feature over the step's candidates.
        prior: How the network's uncertainty is told in the last column.
    """

    kind: FeatureSet = "3H+KL"
    standardise: bool = False
    prior: Prior = "entropy"

    @property
    def pooling(self) -> features.EntropyPooling:
        """How entropy maps are pooled."""
        return "1H" if self.kind == "1H" else "3H"

    @property
    def measures(self) -> tuple[str, ...]:
        """Measures of the candidates that features and prior are made of."""
        return _MEASURES.get(self.kind, ()) + (() if self.prior == "entropy" else (self.prior,))

    def num_state_features(self, num_classes: int) -> int:
        """F: length of a state region's vector."""
        return num_classes + (1 if self.pooling == "1H" else 3) * features.POOLED**2

    def num_action_features(self, num_classes: int) -> int:
        """A: length of a sub-action's vector, without the prior's column."""
        if self.kind.startswith("summary"):
            more = {"summary+classes": 2 * num_classes, "summary+influence": PROSPECTS}
            return num_classes + 8 + more.get(self.kind, 0)
        kl = 2 * features.KL_BINS if self.kind == "3H+KL" else 0
        return self.num_state_features(num_classes) + kl

    def actions(self, regions: RegionFeatures, labelled: Tensor, shape: torch.Size) -> Tensor:
        """Sub-action features of the K x N candidates: [K, N, A + 1].

        Args:
            regions: Features of the candidates, K * N of them.
            labelled: Ground-truth class histograms of all labelled regions: [L, C].
            shape: (K, N).
        """
        is_summary = self.kind.startswith("summary")
        vector = features.summary_features(regions, labelled) if is_summary else regions.vector()
        if self.kind in _MEASURES:
            vector = torch.cat([vector, *(regions.measures[name] for name in _MEASURES[self.kind])], 1)
        if self.kind == "3H+KL":
            to_labelled = features.kl_histogram(regions.histogram, labelled)
            to_unlabelled = features.kl_histogram(regions.histogram, regions.histogram)
            vector = torch.cat([vector, to_labelled, to_unlabelled], 1)
        if self.standardise:
            vector = features.standardised(vector)
        return torch.cat([vector, self._prior_column(regions)[:, None]], 1).reshape(*shape, -1)

    def _prior_column(self, regions: RegionFeatures) -> Tensor:
        """Z-scores of what the baseline of the prior's name ranks by: [R]."""
        if self.prior == "entropy":
            return features.standardised(regions.mean_entropy()[:, None])[:, 0]
        uncertainty = regions.measures["bald"] if self.prior == "bald" else -regions.measures["margin"]
        # BALD has a long tail, and its order is what it is asked for; entropy has none, and policies were trained so
        return features.standardised(uncertainty[:, None], clip=math.inf)[:, 0]


def look(
    segmenter: FPNSegmenter,
    images: TensorCache,
    indices: list[int],
    grid: RegionGrid,
    pooling: features.EntropyPooling | None,
    cells: Tensor | None = None,
    batch_size: int = 16,
    measures: tuple[str, ...] = (),
    seed: int = 0,
    hints: Hints = _NO_HINTS,
) -> RegionFeatures:
    """Features of regions, each image passed through the network once, by one of the ranks.

    Args:
        segmenter: The network; it is put into evaluation mode for the pass and back.
        images: All images of the data set.
        indices: The images to look at.
        grid: How images are cut into regions.
        pooling: How entropy maps are pooled; None: not at all.
        cells: [R, 2] rows of (position in ``indices``, cell) to describe, ascending in position; None: all.
        batch_size: Images in a pass.
        measures: Names of what to measure beside, see ``measures.py``.
        seed: For measures that draw at random.
        hints: For measures that need them; labels belong to the rows of ``cells``.
    """
    if cells is None:
        cells = torch.cartesian_prod(torch.arange(len(indices)), torch.arange(grid.cells))
    if ranks.size() == 1:
        return _look(segmenter, images, indices, grid, pooling, cells, batch_size, measures, seed, hints)
    turn = cells[:, 0] % ranks.size()  # whose each region is
    mine = turn == ranks.rank()
    own_images = indices[ranks.rank() :: ranks.size()]
    own_cells = torch.stack([cells[mine, 0] // ranks.size(), cells[mine, 1]], 1)
    if hints.labels is not None:
        hints = replace(hints, labels=hints.labels[mine])
    own = None
    if own_images:
        own = _look(segmenter, images, own_images, grid, pooling, own_cells, batch_size, measures, seed, hints)
    found = RegionFeatures.join([part for part in ranks.gather(own) if part is not None])
    return found[turn.argsort(stable=True).argsort()]


@torch.no_grad()  # not inference_mode: the query network learns from these tensors
def _look(
    segmenter: FPNSegmenter,
    images: TensorCache,
    indices: list[int],
    grid: RegionGrid,
    pooling: features.EntropyPooling | None,
    cells: Tensor,
    batch_size: int,
    measures: tuple[str, ...],
    seed: int,
    hints: Hints,
) -> RegionFeatures:
    """What this rank looks at itself; arguments as of :func:`look`."""
    was_training = segmenter.training
    segmenter.eval()
    parts: list[RegionFeatures] = []
    for start in range(0, len(indices), batch_size):
        chosen = indices[start : start + batch_size]
        pixels = images.stack(chosen).to(segmenter.device)
        merged = segmenter.merge(segmenter.encoded(pixels, torch.tensor(chosen)))
        logits = segmenter.upsample(segmenter.classify(merged), grid.height, grid.width, segmenter.label_stride)
        is_here = (cells[:, 0] >= start) & (cells[:, 0] < start + len(chosen))
        here = cells[is_here].to(logits.device)
        image, cell = here[:, 0] - start, here[:, 1]
        if len(here) == len(chosen) * grid.cells:  # all of them, in their order: whole maps are faster
            entropy = grid.split(features.entropy_map(logits)).flatten(0, 1)
            classes = grid.split(predicted_classes(logits)).flatten(0, 1)
        else:
            regions = grid.split(logits)[image, cell]  # [r, C, h, w]
            entropy, classes = features.entropy_map(regions), predicted_classes(regions)
        described = features.region_features(classes, entropy, logits.shape[1], pooling)
        if measures:
            regions = grid.split(logits)[image, cell]
            labels = None if hints.labels is None else hints.labels[is_here].to(logits.device)
            known = replace(hints, labels=labels)
            seeds = [mixed_seed(seed, index) for index in chosen]
            glance = Glance(segmenter, grid, merged, regions, image, cell, seeds, known)
            described = replace(described, measures={name: MEASURES[name](glance) for name in measures})
        parts.append(described)
    segmenter.train(was_training)
    return RegionFeatures.join(parts)


def look_at_regions(
    segmenter: FPNSegmenter,
    images: TensorCache,
    indices: list[int],
    grid: RegionGrid,
    pooling: features.EntropyPooling | None,
    regions: Tensor,
    batch_size: int = 16,
    measures: tuple[str, ...] = (),
    seed: int = 0,
    hints: Hints = _NO_HINTS,
) -> RegionFeatures:
    """Features of the given regions [R] of a set, in their order; only their images are looked at."""
    ascending, order = regions.sort()
    shown, position = grid.image_of(ascending).unique_consecutive(return_inverse=True)
    cells = torch.stack([position, ascending % grid.cells], 1)
    chosen = [indices[image] for image in shown.tolist()]
    if hints.labels is not None:
        hints = replace(hints, labels=hints.labels[order])
    found = look(segmenter, images, chosen, grid, pooling, cells, batch_size, measures, seed, hints)
    return found[order.argsort()]
