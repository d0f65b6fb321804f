"""CamVid in the layout that SegNet published: 367 / 101 / 233 frames, 11 classes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ralseg.data import readers
from ralseg.data.base import FileDataset, find_root, images_below

CLASSES: dict[str, tuple[int, int, int]] = {
    "sky": (128, 128, 128),
    "building": (128, 0, 0),
    "pole": (192, 192, 128),
    "road": (128, 64, 128),
    "pavement": (60, 40, 222),
    "tree": (128, 128, 0),
    "sign": (192, 128, 128),
    "fence": (64, 64, 128),
    "car": (64, 0, 128),
    "pedestrian": (64, 64, 0),
    "bicyclist": (0, 128, 192),
}
VOID_ID = 11


class CamVid(FileDataset):
    """CamVid: ``{train,val,test}/*.png`` and ``{train,val,test}annot/*.png`` with ids 0-10, 11 = void.

    The scene of a frame is the drive it was filmed on, which its name begins with: 0001TP, 0006R0, 0016E5, Seq05VD.

    Args:
        root: Folder that holds the six subfolders. Default: what ``RALSEG_CAMVID`` names.
    """

    class_names = tuple(CLASSES)
    colours = tuple(CLASSES.values())
    mask_rule = VOID_ID

    def __init__(self, root: str | None = None) -> None:
        super().__init__(find_root(root, "RALSEG_CAMVID", "CamVid"))

    def find_files(self, root: Path) -> Iterator[tuple[str, str, Path, Path]]:
        """Yield the frames of the three official subsets."""
        for subset in ("train", "val", "test"):
            for image in images_below(root / subset):
                yield subset, image.name, image, root / f"{subset}annot" / image.name

    def scene(self, index: int) -> str | None:
        """The drive: what stands before the first underscore of the name."""
        drive, underscore, _ = self.names[index].partition("_")
        return drive if drive and underscore else None

    def decode_mask(self, path: Path) -> NDArray[np.uint8]:
        """Ids 0-10 stay, 11 (void) becomes ignore; any other id is an error."""
        table = {i: i for i in range(len(CLASSES))} | {VOID_ID: readers.IGNORE}
        return readers.map_ids(path, readers.read_index_mask(path), table)
