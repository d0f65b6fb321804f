"""Images and masks, and how a data set is split into the five sets of the game.

Here live the data sets, the readers of their files, splits, training samples and the LightningDataModule. Nothing here
knows networks or policies. A data set of your own is a subclass of ``SegmentationDataset``.
"""

from ralseg.data.base import SegmentationDataset
from ralseg.data.camvid import CamVid
from ralseg.data.cityscapes import Cityscapes
from ralseg.data.datamodule import SegmentationData
from ralseg.data.folder import Folder
from ralseg.data.gtav import GTAV
from ralseg.data.mixture import Mixture
from ralseg.data.splits import SplitSizes
from ralseg.data.synthetic import SyntheticStreets
from ralseg.data.worlds import SyntheticWorlds

__all__ = [
    "GTAV",
    "CamVid",
    "Cityscapes",
    "Folder",
    "Mixture",
    "SegmentationData",
    "SegmentationDataset",
    "SplitSizes",
    "SyntheticStreets",
    "SyntheticWorlds",
]
