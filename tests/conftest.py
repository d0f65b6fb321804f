"""Shared fixtures. The OpenMP settings must stand before torch is imported."""

import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from ralseg.data import SyntheticStreets
from ralseg.data.module import SegmentationData
from ralseg.data.splits import SplitSizes
from ralseg.regions import GridShape

settings.register_profile("ralseg", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("ralseg")


@pytest.fixture(scope="session")
def camvid_root() -> str:
    root = os.environ.get("RALSEG_CAMVID", "")
    if not Path(root, "trainannot").is_dir():
        pytest.skip("real CamVid is absent: RALSEG_CAMVID does not name its folder")
    return root


def small_data(**changes) -> SegmentationData:
    """24 synthetic streets of 64x96 pixels in 2x3 regions."""
    options = {
        "dataset": SyntheticStreets(num_train=14, num_val=5, num_test=5, height=64, width=96),
        "splits": SplitSizes(state=2, train=6),
        "grid": GridShape(2, 3),
        "batch_size": 4,
        "eval_batch_size": 4,
    }
    return SegmentationData(**(options | changes))


@pytest.fixture
def data() -> SegmentationData:
    module = small_data()
    module.setup()
    return module


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


@pytest.fixture
def study_folder(tmp_path, monkeypatch) -> Path:
    """The current folder for a test, with a small study and its configuration of `acquire` in it."""
    from studies import STUDY
    from test_acquire import CONFIG

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path
