"""What other libraries make of our files, and we of theirs: datumaro, pycocotools, CVAT's own SDK.

They live in an environment of their own, which `make judges` makes; without it these tests are skipped.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ralseg.annotation import ClassColour
from ralseg.annotation.files import coco, cvat, formats
from ralseg.annotation.files.container import opened, write_members
from ralseg.annotation.files.outlines import covered
from ralseg.annotation.files.record import UNKNOWN, ClassNumbers, LabelRecord
from ralseg.annotation.files.rle import compress, decompress, run_lengths
from support.label_records import CLASSES, NAMES, found_masks, made, same, whole_masks

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("RALSEG_JUDGES") or ROOT / ".judges") / "bin/python"
JUDGE = ROOT / "tests/support/judge.py"
THEIRS = {"cvat": "default.xml", "coco": "annotations/instances_default.json", "voc": ""}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no datumaro at {PYTHON}; `make judges` installs it"),
]


def judge(*arguments) -> None:
    done = subprocess.run([PYTHON, JUDGE, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def loaded(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def written(folder: Path, kind: str, records: list[LabelRecord], masks: str = "rle", classes=CLASSES) -> Path:
    """An export with its images where datumaro looks for them."""
    write_members(folder, formats.encode(kind, records, classes, masks), False)
    for record in records:
        path = folder / (formats.IMAGE_FOLDERS[kind] or "images") / record.image
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (record.width, record.height)).save(path)
    return folder


@pytest.mark.parametrize(
    ("kind", "masks"), [("cvat", "rle"), ("coco", "rle"), ("coco", "counts"), ("coco", "polygons"), ("voc", "rle")]
)
def test_datumaro_reads_the_very_masks(tmp_path, kind, masks):
    records = made(1, (60, 90), 4)
    written(tmp_path / "ours", kind, records, masks)
    judge("read", kind, tmp_path / "ours", tmp_path / "found.npz", json.dumps(NAMES))
    assert same(loaded(tmp_path / "found.npz"), whole_masks(records))


def test_datumaro_reads_the_masks_of_a_request_and_passes_over_frames(tmp_path):
    mask = np.array([[0, 1, 2], [UNKNOWN, 1, 0]], np.uint8)
    records = [LabelRecord("train/a.png", 20, 10, (4, 5, 3, 2), mask, rank=2)]
    records.append(LabelRecord("train/a.png", 20, 10, (12, 1, 3, 2), mask[::-1], rank=1))
    for kind in ("cvat", "coco"):
        written(tmp_path / kind, kind, records)
        judge("read", kind, tmp_path / kind, tmp_path / f"{kind}.npz", json.dumps(NAMES))
        assert same(loaded(tmp_path / f"{kind}.npz"), whole_masks(records))


@pytest.mark.parametrize("kind", sorted(THEIRS))
def test_we_read_the_very_masks_that_datumaro_wrote(tmp_path, kind):
    masks = whole_masks(made(2, (60, 90), 4))
    np.savez(tmp_path / "masks.npz", **masks)
    judge("write", kind, tmp_path / "masks.npz", tmp_path / "theirs", json.dumps(NAMES))
    with opened(tmp_path / "theirs" / THEIRS[kind]) as members:
        found = found_masks(formats.decode(kind, members, CLASSES))
    assert same({name.removesuffix(".jpg"): mask for name, mask in found.items()}, masks)


def test_pycocotools_writes_and_reads_the_same_run_lengths(tmp_path):
    rng = np.random.default_rng(0)
    records = []
    for number in range(60):
        height, width = rng.integers(1, 70, 2).tolist()
        mask = np.where(rng.random((height, width)) < rng.random(), 1, UNKNOWN).astype(np.uint8)
        mask[0, 0] = 1
        records.append(LabelRecord(f"{number}.png", width, height, (0, 0, width, height), mask))
    for masks in ("rle", "counts"):
        (tmp_path / "a.json").write_text(coco.encode(records, CLASSES, masks))
        judge("coco_bits", tmp_path / "a.json", tmp_path / "bits.npz")
        bits = loaded(tmp_path / "bits.npz")
        texts = json.loads((tmp_path / "bits.json").read_text())
        for place, (record, text) in enumerate(zip(records, texts, strict=True)):
            assert (bits[str(place)].astype(bool) == (record.mask == 1)).all()
            counts = run_lengths((record.mask == 1).ravel(order="F")).tolist()
            assert compress(counts) == text
            assert decompress(text, "theirs") == counts


def test_the_sdk_of_cvat_writes_and_reads_the_same_masks(tmp_path):
    records = made(3, (40, 60), 3)
    (tmp_path / "a.xml").write_text(cvat.encode(records, CLASSES))
    judge("cvat_bits", tmp_path / "a.xml", tmp_path / "bits.npz")
    bits = list(loaded(tmp_path / "bits.npz").values())
    ours = [record.mask == number for record in records for number in record.present()]
    assert len(bits) == len(ours) == 9
    assert all((one == other).all() for one, other in zip(bits, ours, strict=True))
    assert json.loads((tmp_path / "bits.json").read_text()) == [True] * 9  # encoded again: the same numbers


def test_polygons_of_others_come_within_the_edge_of_a_pixel(tmp_path):
    """Which pixels of the edge a polygon covers is a matter of taste: pycocotools has another than we."""
    rng, polygons = np.random.default_rng(0), []
    for _ in range(200):
        corners = int(rng.integers(5, 30))
        angles, far = np.sort(rng.random(corners)) * 2 * np.pi, rng.uniform(8, 30, corners)
        polygons.append(np.stack([64 + far * np.cos(angles), 64 + far * np.sin(angles)], 1))
    content = {
        "images": [{"id": 1, "width": 128, "height": 128, "file_name": "a"}],
        "annotations": [{"image_id": 1, "segmentation": [polygon.ravel().tolist()]} for polygon in polygons],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    judge("coco_bits", tmp_path / "a.json", tmp_path / "bits.npz")
    theirs, shares = loaded(tmp_path / "bits.npz"), []
    for place, polygon in enumerate(polygons):
        ours, other = covered([polygon], (0, 0, 128, 128)), theirs[str(place)].astype(bool)
        shares.append((ours & other).sum() / (ours | other).sum())
    assert np.mean(shares) > 0.985  # 0.990 was measured
    assert min(shares) > 0.96


def test_many_classes_at_the_size_of_camvid(tmp_path):
    rng = np.random.default_rng(0)
    classes = tuple(ClassColour(number, f"class {number}", f"#{number + 1:02x}{number:02x}80") for number in range(11))
    coarse = rng.integers(0, 12, (36, 48)).astype(np.uint8)
    coarse[coarse == 11] = UNKNOWN
    mask = coarse.repeat(10, 0).repeat(10, 1)
    noise = rng.random(mask.shape) < 0.01
    mask[noise] = rng.integers(0, 11, noise.sum())
    records = [LabelRecord("a.png", 480, 360, (0, 0, 480, 360), mask)]
    names = json.dumps([entry.name for entry in classes])
    for kind in ("cvat", "coco", "voc"):
        written(tmp_path / kind, kind, records, "polygons", classes)
        judge("read", kind, tmp_path / kind, tmp_path / f"{kind}.npz", names)
        assert same(loaded(tmp_path / f"{kind}.npz"), {"a": mask})
    text = coco.encode(records, classes, "polygons").encode()
    (found,) = coco.decode(text, ClassNumbers(classes), "a.json")
    assert (found.record().mask == mask).all()
