"""What a policy sees of candidate regions, and the acquisition functions that learn nothing.

Here live the ``Policy`` base class, the observation of a step, features, measures (an open registry), the scanner that
computes them in one pass an image, and the heuristics. Nothing here learns, trains or labels.
"""

from ralseg.acquisition.candidates import Candidates
from ralseg.acquisition.heuristics import HEURISTICS
from ralseg.acquisition.measures import RegionPredictions, measure
from ralseg.acquisition.named_features import feature
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Needs, Policy
from ralseg.acquisition.representation import Representation

__all__ = [
    "HEURISTICS",
    "Candidates",
    "Needs",
    "Observation",
    "Policy",
    "RegionPredictions",
    "Representation",
    "feature",
    "measure",
]
