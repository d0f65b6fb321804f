"""Cityscapes in its official tree, and the label table it shares with GTAV."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ralseg.data import readers
from ralseg.data.base import Colour, FileDataset, find_root, images_below


class Label(NamedTuple):
    """One row of the official label table."""

    name: str
    label_id: int
    train_id: int
    colour: Colour


_VOID = readers.IGNORE
LABELS = (
    Label("unlabeled", 0, _VOID, (0, 0, 0)),
    Label("ego vehicle", 1, _VOID, (0, 0, 0)),
    Label("rectification border", 2, _VOID, (0, 0, 0)),
    Label("out of roi", 3, _VOID, (0, 0, 0)),
    Label("static", 4, _VOID, (0, 0, 0)),
    Label("dynamic", 5, _VOID, (111, 74, 0)),
    Label("ground", 6, _VOID, (81, 0, 81)),
    Label("road", 7, 0, (128, 64, 128)),
    Label("sidewalk", 8, 1, (244, 35, 232)),
    Label("parking", 9, _VOID, (250, 170, 160)),
    Label("rail track", 10, _VOID, (230, 150, 140)),
    Label("building", 11, 2, (70, 70, 70)),
    Label("wall", 12, 3, (102, 102, 156)),
    Label("fence", 13, 4, (190, 153, 153)),
    Label("guard rail", 14, _VOID, (180, 165, 180)),
    Label("bridge", 15, _VOID, (150, 100, 100)),
    Label("tunnel", 16, _VOID, (150, 120, 90)),
    Label("pole", 17, 5, (153, 153, 153)),
    Label("polegroup", 18, _VOID, (153, 153, 153)),
    Label("traffic light", 19, 6, (250, 170, 30)),
    Label("traffic sign", 20, 7, (220, 220, 0)),
    Label("vegetation", 21, 8, (107, 142, 35)),
    Label("terrain", 22, 9, (152, 251, 152)),
    Label("sky", 23, 10, (70, 130, 180)),
    Label("person", 24, 11, (220, 20, 60)),
    Label("rider", 25, 12, (255, 0, 0)),
    Label("car", 26, 13, (0, 0, 142)),
    Label("truck", 27, 14, (0, 0, 70)),
    Label("bus", 28, 15, (0, 60, 100)),
    Label("caravan", 29, _VOID, (0, 0, 90)),
    Label("trailer", 30, _VOID, (0, 0, 110)),
    Label("train", 31, 16, (0, 80, 100)),
    Label("motorcycle", 32, 17, (0, 0, 230)),
    Label("bicycle", 33, 18, (119, 11, 32)),
    Label("license plate", -1, _VOID, (0, 0, 142)),
)
TRAIN_LABELS = tuple(sorted((row for row in LABELS if row.train_id != _VOID), key=lambda row: row.train_id))

# id -1 (license plate) is stored as 255 in an 8-bit file
LABEL_ID_TO_TRAIN_ID = {row.label_id % 256: row.train_id for row in LABELS}

# where two labels share a colour (pole and polegroup, car and license plate) the trained one wins
COLOUR_TO_TRAIN_ID = {row.colour: row.train_id for row in sorted(LABELS, key=lambda row: -row.train_id)}


class Cityscapes(FileDataset):
    """Cityscapes: ``leftImg8bit/<subset>/<city>/*`` and ``gtFine/<subset>/<city>/*``, 19 train ids.

    ``*_gtFine_labelTrainIds.png`` is read where it exists, else ``*_gtFine_labelIds.png`` is mapped.
    The official test labels are withheld, so the paper (and :mod:`ralseg.data.splits`) tests on val.
    The scene of a frame is its city.

    Args:
        root: Folder that holds ``leftImg8bit`` and ``gtFine``. Default: what ``RALSEG_CITYSCAPES`` names.
    """

    class_names = tuple(row.name for row in TRAIN_LABELS)
    colours = tuple(row.colour for row in TRAIN_LABELS)
    mask_rule = "train ids"

    def __init__(self, root: str | None = None) -> None:
        super().__init__(find_root(root, "RALSEG_CITYSCAPES", "Cityscapes"))

    def find_files(self, root: Path) -> Iterator[tuple[str, str, Path, Path]]:
        """Yield the frames of train and val; Cityscapes' own test set has no labels to read."""
        for subset in ("train", "val"):
            for image in images_below(root / "leftImg8bit" / subset):
                stem = image.stem.removesuffix("_leftImg8bit")
                folder = root / "gtFine" / subset / image.parent.name
                mask = folder / f"{stem}_gtFine_labelTrainIds.png"
                if not mask.is_file():
                    mask = folder / f"{stem}_gtFine_labelIds.png"
                yield subset, stem, image, mask

    def scene(self, index: int) -> str:
        """The city: the folder that the frame lies in."""
        return self.image_paths[index].parent.name

    def decode_mask(self, path: Path) -> NDArray[np.uint8]:
        """19 train ids, 255 = ignore, from either kind of file."""
        if path.name.endswith("_labelTrainIds.png"):
            table = {row.train_id: row.train_id for row in LABELS}
        else:
            table = LABEL_ID_TO_TRAIN_ID
        return readers.map_ids(path, readers.read_index_mask(path), table)
