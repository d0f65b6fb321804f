"""ralseg: learns which image regions to label next.

``import ralseg`` is quick: what stands in ``__all__`` is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_PLACES = {
    "ralseg.acquisition": (
        "HEURISTICS",
        "Candidates",
        "Needs",
        "Observation",
        "Policy",
        "RegionPredictions",
        "feature",
        "measure",
    ),
    "ralseg.agents": (
        "DQN",
        "Agent",
        "CreditRegression",
        "FeaturePolicy",
        "GroupAdvantage",
        "LearnedPolicy",
        "PairedBlocks",
        "PlayedStep",
        "PolicySearch",
        "QueryNetwork",
        "RarityForecast",
    ),
    "ralseg.api": (
        "acquire",
        "compare",
        "fit",
        "load_segmenter",
        "predict",
        "pretrain",
        "test",
    ),
    "ralseg.data": (
        "SegmentationData",
        "SegmentationDataset",
        "SplitSizes",
    ),
    "ralseg.engine": (
        "AcquisitionConfig",
        "ActiveLearningLoop",
        "FinalTraining",
        "Game",
        "ShortTraining",
    ),
    "ralseg.labels": (
        "Answer",
        "GridLayout",
        "LabelsNeeded",
        "Layout",
        "MaskOracle",
        "Oracle",
    ),
    "ralseg.models": (
        "ClosedFormSegmenter",
        "FPNSegmenter",
        "Segmenter",
        "SmpSegmenter",
    ),
    "ralseg.studies": ("Study",),
}
_PLACE_OF = {name: module for module, names in _PLACES.items() for name in names}
__all__ = [
    "DQN",
    "HEURISTICS",
    "AcquisitionConfig",
    "ActiveLearningLoop",
    "Agent",
    "Answer",
    "Candidates",
    "ClosedFormSegmenter",
    "CreditRegression",
    "FPNSegmenter",
    "FeaturePolicy",
    "FinalTraining",
    "Game",
    "GridLayout",
    "GroupAdvantage",
    "LabelsNeeded",
    "Layout",
    "LearnedPolicy",
    "MaskOracle",
    "Needs",
    "Observation",
    "Oracle",
    "PairedBlocks",
    "PlayedStep",
    "Policy",
    "PolicySearch",
    "QueryNetwork",
    "RarityForecast",
    "RegionPredictions",
    "SegmentationData",
    "SegmentationDataset",
    "Segmenter",
    "ShortTraining",
    "SmpSegmenter",
    "SplitSizes",
    "Study",
    "__version__",
    "acquire",
    "compare",
    "feature",
    "fit",
    "load_segmenter",
    "measure",
    "predict",
    "pretrain",
    "test",
]

if TYPE_CHECKING:
    from ralseg.acquisition import (
        HEURISTICS,
        Candidates,
        Needs,
        Observation,
        Policy,
        RegionPredictions,
        feature,
        measure,
    )
    from ralseg.agents import (
        DQN,
        Agent,
        CreditRegression,
        FeaturePolicy,
        GroupAdvantage,
        LearnedPolicy,
        PairedBlocks,
        PlayedStep,
        PolicySearch,
        QueryNetwork,
        RarityForecast,
    )
    from ralseg.api import acquire, compare, fit, load_segmenter, predict, pretrain, test
    from ralseg.data import SegmentationData, SegmentationDataset, SplitSizes
    from ralseg.engine import AcquisitionConfig, ActiveLearningLoop, FinalTraining, Game, ShortTraining
    from ralseg.labels import Answer, GridLayout, LabelsNeeded, Layout, MaskOracle, Oracle
    from ralseg.models import ClosedFormSegmenter, FPNSegmenter, Segmenter, SmpSegmenter
    from ralseg.studies import Study


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _PLACE_OF:
        raise AttributeError(f"module 'ralseg' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACE_OF[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted({*globals(), *_PLACE_OF})
