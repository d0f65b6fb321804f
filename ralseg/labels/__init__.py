"""What can be labelled, what has been, and who labels it.

Here live layouts (how an image is cut into regions), the ledger of labelled regions, the vault of hidden masks, and
oracles, the only way to hidden labels. Nothing here knows data sets, networks or policies.
"""

from ralseg.labels.grid import GridLayout, GridRegions
from ralseg.labels.layout import Layout, RegionMaps, Regions
from ralseg.labels.ledger import RegionLedger
from ralseg.labels.oracle import Answer, LabellingJob, LabelsNeeded, MaskOracle, Oracle, Ranking, RevealedLabels
from ralseg.labels.vault import IGNORE, MaskVault

__all__ = [
    "IGNORE",
    "Answer",
    "GridLayout",
    "GridRegions",
    "LabellingJob",
    "LabelsNeeded",
    "Layout",
    "MaskOracle",
    "MaskVault",
    "Oracle",
    "Ranking",
    "RegionLedger",
    "RegionMaps",
    "Regions",
    "RevealedLabels",
]
