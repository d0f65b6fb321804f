"""Small data sets."""

from pathlib import Path

import numpy as np
from PIL import Image

from ralseg.data import SegmentationData, SplitSizes, SyntheticStreets
from ralseg.labels import GridLayout


def small_data(**changes) -> SegmentationData:
    """24 synthetic streets of 64x96 pixels in 2x3 regions."""
    options = {
        "dataset": SyntheticStreets(num_train=14, num_val=5, num_test=5, height=64, width=96),
        "splits": SplitSizes(state=2, train=6),
        "layout": GridLayout(2, 3),
        "batch_size": 4,
        "eval_batch_size": 4,
    }
    return SegmentationData(**(options | changes))


class Towns(SyntheticStreets):
    """Synthetic streets of three towns in turn: the images of each subset are of A, B, C, A, B, ..."""

    def scene(self, index: int) -> str | None:
        return "ABC"[int(self.names[index].rpartition("_")[2]) % 3]


def towns(**changes) -> SegmentationData:
    """Like `small_data`, with scenes."""
    dataset = Towns(num_train=14, num_val=5, num_test=5, height=64, width=96)
    return small_data(**({"dataset": dataset} | changes))


def write_png(path: Path, pixels: np.ndarray, mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels, mode).save(path)
    return path


def make_folder(root: Path, train: int = 6, val: int = 2, test: int = 2, size: tuple[int, int] = (32, 48)) -> Path:
    """A `Folder` data set of random images with three classes."""
    rng = np.random.default_rng(0)
    for subset, count in {"train": train, "val": val, "test": test}.items():
        for i in range(count):
            write_png(root / "images" / subset / f"{i:03d}.png", rng.integers(0, 256, (*size, 3), np.uint8))
            write_png(root / "masks" / subset / f"{i:03d}.png", rng.integers(0, 3, size, np.uint8))
    (root / "dataset.yaml").write_text("classes: [ground, plant, stone]\n")
    return root


def striped_folder(
    root: Path, values=(0, 1), labelled=6, unlabelled=0, subsets=("train", "val", "test"), mask="{}.png", size=(20, 30)
):
    """Images whose masks hold ``values`` in equal stripes."""
    rng = np.random.default_rng(0)
    for subset in subsets:
        for i in range(labelled + (unlabelled if subset in ("train", "") else 0)):
            write_png(root / "images" / subset / f"{i:03d}.png", rng.integers(0, 256, (*size, 3), np.uint8))
            if i < labelled:
                stripes = np.array(values, np.uint8)[np.arange(size[1]) * len(values) // size[1]]
                write_png(root / "masks" / subset / mask.format(f"{i:03d}"), np.stack([stripes] * size[0]))
    return root
