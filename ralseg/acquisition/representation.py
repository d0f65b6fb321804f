"""Representations: from what is known of regions to the feature vectors that a query network reads."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ralseg.acquisition import features
from ralseg.acquisition.candidates import Candidates
from ralseg.acquisition.contexts import find_context
from ralseg.acquisition.features import RegionFeatures
from ralseg.acquisition.named_features import GENERAL, describe, find_feature
from ralseg.errors import ConfigError

FeatureSet = Literal["1H", "3H", "3H+KL", "summary", "summary+classes", "general"]
Prior = Literal["entropy", "margin", "bald"]
_MEASURES = {"summary+classes": ("probability", "class_entropy")}


@dataclass(frozen=True)
class Representation:
    """Turns what is known of regions into features.

    Args:
        kind: The paper's ``1H``, ``3H`` or ``3H+KL``; or ``summary``, a short description for policies
            that learn from few games; or ``summary+classes``, with each class's mean probability and share of the
            entropy; or names of features that do not depend on the classes, see ``named_features.py``; ``general``
            means all that ralseg has (the last three are "ours").
        standardise: Z-score each sub-action feature over the step's candidates.
        prior: How the network's uncertainty is told in the last column.
        time: Tell the share of the budget spent, less 1/2, in the first column.
        context: Numbers of the step as a whole that follow it, see ``contexts.py``.

    Examples:
        >>> Representation(("entropy", "novelty"), time=True).num_action_features(num_classes=11)
        3
    """

    kind: FeatureSet | tuple[str, ...] = "3H+KL"
    standardise: bool = False
    prior: Prior = "entropy"
    time: bool = False
    context: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kind = GENERAL if self.kind == "general" else self.kind
        object.__setattr__(self, "kind", kind if isinstance(kind, str) else tuple(kind))
        for name in self.names:
            find_feature(name)
        for name in self.context:
            find_context(name)
        if len(set(self.names)) < len(self.names):
            raise ConfigError(f"agent features {list(self.names)}: each may stand there once")

    @property
    def names(self) -> tuple[str, ...]:
        """The features by name, where they have names."""
        return () if isinstance(self.kind, str) else self.kind

    @property
    def option(self) -> str | list[str]:
        """``kind`` as it stands in a configuration."""
        return self.kind if isinstance(self.kind, str) else list(self.kind)

    @property
    def pooling(self) -> features.EntropyPooling | None:
        """How entropy maps are pooled; None: nobody reads them."""
        if self.names:
            return None
        return "1H" if self.kind == "1H" else "3H"

    @property
    def measures(self) -> tuple[str, ...]:
        """Measures of the candidates that features and prior are made of."""
        named = [measure for name in self.names for measure in find_feature(name).measures]
        named += [measure for name in self.context for measure in find_context(name).measures]
        listed = _MEASURES.get(self.kind, ()) if isinstance(self.kind, str) else ()
        return tuple(dict.fromkeys((*named, *listed, *(() if self.prior == "entropy" else (self.prior,)))))

    @property
    def known_measures(self) -> tuple[str, ...]:
        """Measures of everything whose labels are known that features are made of."""
        named = [measure for name in self.names for measure in find_feature(name).known_measures]
        return tuple(dict.fromkeys(named))

    def num_state_features(self, num_classes: int) -> int:
        """F: length of a state region's vector."""
        pooled = {None: 0, "1H": 1, "3H": 3}[self.pooling]
        return num_classes + pooled * features.POOLED**2

    def num_action_features(self, num_classes: int) -> int:
        """A: length of a sub-action's vector, without the prior's column."""
        return self.time + len(self.context) + self._num_described(num_classes)

    def _num_described(self, num_classes: int) -> int:
        """How many numbers describe a region itself."""
        if isinstance(self.kind, tuple):
            return len(self.kind)
        if self.kind.startswith("summary"):
            return num_classes + 8 + (2 * num_classes if self.kind == "summary+classes" else 0)
        kl = 2 * features.KL_BINS if self.kind == "3H+KL" else 0
        return self.num_state_features(num_classes) + kl

    def actions(self, candidates: Candidates, shape: torch.Size) -> Tensor:
        """Sub-action features of the K x N candidates: [K, N, A + 1].

        Args:
            candidates: K * N of them.
            shape: (K, N).
        """
        vector = self._describe(candidates)
        if self.standardise:
            vector = features.standardised(vector)
        whole = [torch.tensor(candidates.spent - 0.5)] if self.time else []
        whole += [find_context(name).describe(candidates) for name in self.context]
        if whole:
            vector = torch.cat([torch.stack(whole).to(vector).expand(len(vector), -1), vector], 1)
        return torch.cat([vector, self._prior_column(candidates.seen)[:, None]], 1).reshape(*shape, -1)

    def _describe(self, candidates: Candidates) -> Tensor:
        """Features as they are, before any z-score: [R, A]."""
        regions, labelled = candidates.seen, candidates.labelled
        if isinstance(self.kind, tuple):
            return describe(self.kind, candidates)
        is_summary = self.kind.startswith("summary")
        vector = features.summary_features(regions, labelled) if is_summary else regions.vector()
        if self.kind in _MEASURES:
            vector = torch.cat([vector, *(regions.measures[name] for name in _MEASURES[self.kind])], 1)
        if self.kind == "3H+KL":
            to_labelled = features.kl_histogram(regions.histogram, labelled)
            to_unlabelled = features.kl_histogram(regions.histogram, regions.histogram)
            vector = torch.cat([vector, to_labelled, to_unlabelled], 1)
        return vector

    def _prior_column(self, regions: RegionFeatures) -> Tensor:
        """Z-scores of what the heuristic of the prior's name ranks by: [R]."""
        if self.prior == "entropy":
            return features.standardised(regions.mean_entropy()[:, None])[:, 0]
        uncertainty = regions.measures["bald"] if self.prior == "bald" else -regions.measures["margin"]
        # BALD has a long tail, and its order is what it is asked for; entropy has none, and policies were trained so
        return features.standardised(uncertainty[:, None], clip=math.inf)[:, 0]
