"""Data sets and the splits of the game."""

from ralseg.data.base import SegmentationDataset
from ralseg.data.camvid import CamVid
from ralseg.data.cityscapes import Cityscapes
from ralseg.data.folder import Folder
from ralseg.data.gtav import GTAV
from ralseg.data.synthetic import SyntheticStreets

__all__ = ["GTAV", "CamVid", "Cityscapes", "Folder", "SegmentationDataset", "SyntheticStreets"]
