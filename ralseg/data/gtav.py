"""GTAV ("Playing for Data"): game frames with Cityscapes colours, the paper's pretraining source."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ralseg.data import camvid, readers
from ralseg.data.base import FileDataset, find_root, images_below
from ralseg.data.cityscapes import COLOUR_TO_TRAIN_ID, TRAIN_LABELS

# Cityscapes class -> CamVid class ("ours": the paper does not say how it mapped them)
CITYSCAPES_TO_CAMVID = {
    "road": "road",
    "sidewalk": "pavement",
    "building": "building",
    "wall": "building",
    "fence": "fence",
    "pole": "pole",
    "traffic light": "sign",
    "traffic sign": "sign",
    "vegetation": "tree",
    "terrain": "tree",
    "sky": "sky",
    "person": "pedestrian",
    "rider": "bicyclist",
    "car": "car",
    "truck": "car",
    "bus": "car",
    "train": "car",
    "motorcycle": "bicyclist",
    "bicycle": "bicyclist",
}


class GTAV(FileDataset):
    """GTAV: ``images/*.png`` and ``labels/*.png`` of the same name, labels in Cityscapes colours.

    Args:
        root: Folder that holds ``images`` and ``labels``. Default: what ``RALSEG_GTAV`` names.
        classes: Give the 19 classes of Cityscapes, or merge them into CamVid's 11.
    """

    def __init__(self, root: str | None = None, classes: Literal["cityscapes", "camvid"] = "cityscapes") -> None:
        self.palette: readers.Palette = dict(COLOUR_TO_TRAIN_ID)
        self.class_names = tuple(row.name for row in TRAIN_LABELS)
        self.colours = tuple(row.colour for row in TRAIN_LABELS)
        if classes == "camvid":
            merged = [list(camvid.CLASSES).index(CITYSCAPES_TO_CAMVID[name]) for name in self.class_names]
            self.palette = {
                colour: merged[train_id] if train_id != readers.IGNORE else train_id
                for colour, train_id in COLOUR_TO_TRAIN_ID.items()
            }
            self.class_names = tuple(camvid.CLASSES)
            self.colours = tuple(camvid.CLASSES.values())
        self.mask_rule = classes
        super().__init__(find_root(root, "RALSEG_GTAV", "GTAV"))

    def find_files(self, root: Path) -> Iterator[tuple[str, str, Path, Path]]:
        """Yield all frames as one subset, ``train``."""
        for image in images_below(root / "images"):
            yield "train", image.name, image, root / "labels" / image.name

    def decode_mask(self, path: Path) -> NDArray[np.uint8]:
        """Class indices from colours; palette and RGB files are both read."""
        return readers.read_colour_mask(path, self.palette)
