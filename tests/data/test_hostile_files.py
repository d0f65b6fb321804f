"""File names and files that are not what they seem."""

import os

import pytest

from ralseg.data import Folder
from ralseg.data.datamodule import SegmentationData
from ralseg.data.splits import SplitSizes
from ralseg.errors import DataError
from ralseg.labels import GridLayout
from support.data import make_folder
from support.games import acquire, segmenter, selected

NAMES = ["a b.png", 'it\'s "quoted".png', "ünïcode-日本.png", "<script>alert(1)</script>.png", "-rf.png", "%s{x}.png"]


def test_file_names_of_any_kind_stay_inside_and_whole(tmp_path):
    root = make_folder(tmp_path / "data", train=6, size=(64, 96))
    for subset in ("images", "masks"):
        for path, name in zip(sorted((root / subset / "train").iterdir()), NAMES, strict=True):
            path.rename(path.with_name(name.replace("/", "_")))
    (root / "images" / "train" / "loop").symlink_to(root / "images")
    outside = {path for path in tmp_path.rglob("*") if path.is_file()}
    data = SegmentationData(dataset=Folder(str(root)), splits=SplitSizes(state=1, train=1), layout=GridLayout(2, 3))
    acquire(tmp_path / "run", "uniform", data=data, model=segmenter(names=data.class_names))
    chosen = {row[1] for row in selected(tmp_path / "run")}
    assert chosen <= {f"train/{name.replace('/', '_')}" for name in NAMES}
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - outside
    assert all(path.is_relative_to(tmp_path / "run") for path in written)
    masks = {str(path.relative_to(tmp_path / "run/labels")) for path in (tmp_path / "run/labels").rglob("*.png")}
    assert masks == {name for name in chosen}


def test_a_pipe_in_place_of_an_image_does_not_hang(tmp_path):
    root = make_folder(tmp_path)
    (root / "images/train/000.png").unlink()
    os.mkfifo(root / "images/train/000.png")
    with pytest.raises(DataError, match=r"000\.png: not a regular file"):
        Folder(str(root)).read_image(Folder(str(root)).names.index("train/000.png"))


def test_aliases_in_yaml_do_not_grow(tmp_path):
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else 'x'}]\n" for i in range(12))
    make_folder(tmp_path)
    (tmp_path / "dataset.yaml").write_text(levels + "classes: *l11\n")
    with pytest.raises(DataError, match="unknown keys"):
        Folder(str(tmp_path))
    (tmp_path / "dataset.yaml").write_text("classes: &a [[x, x], [y]]\npalette: *a\n")
    with pytest.raises(DataError, match="'classes' must list at least two different names"):
        Folder(str(tmp_path))
