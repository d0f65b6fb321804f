"""Representations: from what is known of regions to the feature vectors that a query network reads."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ralseg.acquisition import features
from ralseg.acquisition.features import RegionFeatures

FeatureSet = Literal["1H", "3H", "3H+KL", "summary", "summary+classes"]
Prior = Literal["entropy", "margin", "bald"]
_MEASURES = {"summary+classes": ("probability", "class_entropy")}


@dataclass(frozen=True)
class Representation:
    """Turns what is known of regions into features.

    Args:
        kind: The paper's ``1H``, ``3H`` or ``3H+KL``; or ``summary``, a short description for policies
            that learn from few games; or ``summary+classes``, with each class's mean probability and share of the
            entropy (both "ours").
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
            return num_classes + 8 + (2 * num_classes if self.kind == "summary+classes" else 0)
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
        """Z-scores of what the heuristic of the prior's name ranks by: [R]."""
        if self.prior == "entropy":
            return features.standardised(regions.mean_entropy()[:, None])[:, 0]
        uncertainty = regions.measures["bald"] if self.prior == "bald" else -regions.measures["margin"]
        # BALD has a long tail, and its order is what it is asked for; entropy has none, and policies were trained so
        return features.standardised(uncertainty[:, None], clip=math.inf)[:, 0]
