"""Scenes of images: each data set's own way to know them, and patterns that strangers wrote."""

import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from ralseg.cli import main
from ralseg.data import GTAV, CamVid, Cityscapes, Folder, SegmentationData, SyntheticStreets, name_pattern
from ralseg.data.name_pattern import check_pattern, search_names
from ralseg.errors import DataError, HiddenLabelError
from support.data import make_folder, small_data, towns, write_png

PIXELS = np.zeros((6, 12, 3), np.uint8)
SCENES = ("0001TP", "0006R0", "0016E5", "Seq05VD")  # of CamVid


def scenes_of(dataset) -> list[str | None]:
    return [dataset.scene(index) for index in range(len(dataset))]


def folder_with(root: Path, names: list[str], description: str = "") -> Folder:
    for name in names:
        write_png(root / "images" / name, PIXELS)
    (root / "dataset.yaml").write_text("classes: [ground, plant]\n" + description)
    return Folder(str(root))


def test_camvid_knows_the_drive(tmp_path):
    for name in ("0001TP_006690.png", "0016E5_00390.png", "Seq05VD_f0_0.png", "_f1.png", "plain.png"):
        write_png(tmp_path / "train" / name, PIXELS)
    dataset = CamVid(str(tmp_path))
    found = dict(zip(dataset.names, scenes_of(dataset), strict=True))
    assert list(found.values()) == ["0001TP", "0016E5", "Seq05VD", None, None]
    assert found["plain.png"] is None


def test_cityscapes_knows_the_city(tmp_path):
    for city, frame in (("aachen", "000001"), ("aachen", "000002"), ("bad_toelz", "000003")):
        write_png(tmp_path / f"leftImg8bit/train/{city}/{city}_{frame}_000019_leftImg8bit.png", PIXELS)
    assert scenes_of(Cityscapes(str(tmp_path))) == ["aachen", "aachen", "bad_toelz"]


def test_others_know_none(tmp_path):
    write_png(tmp_path / "images/0_1.png", PIXELS)
    assert scenes_of(GTAV(str(tmp_path))) == [None]
    assert set(scenes_of(SyntheticStreets(num_train=2))) == {None}


def test_a_folder_has_its_subfolders_as_scenes(tmp_path):
    names = ["train/0.png", "train/town/1.png", "train/town/left/2.png", "val/coast/3.png"]
    assert scenes_of(folder_with(tmp_path, names)) == [None, "town", "town", "coast"]


def test_a_folder_finds_scenes_by_its_pattern(tmp_path):
    names = ["train/berlin_0.png", "train/sub/rome_1.png", "val/berlin_2.png"]
    dataset = folder_with(tmp_path, names, "scenes: '([a-z]+)_[0-9]+'\n")
    assert scenes_of(dataset) == ["berlin", "rome", "berlin"]


@pytest.mark.parametrize("pattern", ["/([a-z]+)_", "/(?:oslo)?([a-z]*)", "_0|(_1)"])
def test_a_name_without_a_scene_is_an_error_when_it_is_asked_for(tmp_path, pattern):
    dataset = folder_with(tmp_path, ["train/oslo_1.png", "train/0.png"], f"scenes: '{pattern}'\n")
    with pytest.raises(DataError, match=r"dataset\.yaml: 'scenes: .*finds no scene in the name of image train/0\.png"):
        dataset.scene(dataset.names.index("train/0.png"))
    if pattern == "/([a-z]+)_":
        assert dataset.scene(dataset.names.index("train/oslo_1.png")) == "oslo"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("'['", "is not a regular expression: unterminated character set"),
        ("'a{1,99999999999999999999}(b)'", "is not a regular expression"),
        ("'^[a-z]+'", "must have exactly one group.*has 0"),
        ("'(a)(b)'", r"must have exactly one group.*has 2; write \(\?: \)"),
        ("''", "must be a regular expression of 1 to 200 characters"),
        (f"'({'a' * 199})'", "must be a regular expression of 1 to 200 characters"),
        ("7", "must be a regular expression of 1 to 200 characters, got 7"),
        ("[a]", "must be a regular expression of 1 to 200 characters"),
    ],
)
def test_patterns_that_cannot_be_searched_for_are_refused_at_once(tmp_path, pattern, message):
    with pytest.raises(DataError, match=rf"dataset\.yaml: 'scenes' {message}"):
        folder_with(tmp_path, ["train/0.png"], f"scenes: {pattern}\n")


def test_a_pattern_that_would_search_for_years_is_stopped(monkeypatch):
    monkeypatch.setattr(name_pattern, "SECONDS", 1.0)
    pattern = check_pattern("^((?:a|a)+)+$", "dataset.yaml: 'scenes'")
    began = time.monotonic()
    with pytest.raises(DataError, match=r"dataset\.yaml: 'scenes': .* takes more than 1 s for 2 names"):
        search_names(pattern, ["b", "a" * 60 + "!"], "dataset.yaml: 'scenes'")
    assert time.monotonic() - began < 20


def test_names_of_any_kind_are_searched():
    names = ["train/caf\u00e9_1.png", "train/\udcff_2.png", 'train/"quoted"\n_3.png']
    assert search_names(r"/([^/]*)_", names, "x") == ["caf\u00e9", "\udcff", '"quoted"\n']
    assert search_names("(a)", [], "x") == []


def test_check_counts_the_scenes_of_each_set(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = make_folder(tmp_path / "mine", train=9)
    for place, path in enumerate(sorted((root / "images/train").iterdir())):
        for kind in ("images", "masks"):
            (root / kind / "train" / f"s{place % 3}").mkdir(exist_ok=True)
            shutil.move(root / kind / "train" / path.name, root / kind / "train" / f"s{place % 3}" / path.name)
    dataset = {"class_path": "ralseg.data.Folder", "init_args": {"root": str(root)}}
    layout = {"class_path": "ralseg.GridLayout", "init_args": {"rows": 2, "columns": 2}}
    content = {"dataset": dataset, "layout": layout, "splits": {"state": 1, "train": 7}}
    Path("mine.yaml").write_text(yaml.safe_dump({"data": content}))
    assert main(["data", "check", "--config", "mine.yaml"]) == 0
    # of nine images in three scenes seven hold all of them; reward and test lie in no subfolder
    assert json.loads(Path("data_check/report.json").read_text())["scenes"] == {
        "state_set": 1,
        "train_set": 3,
        "acquisition_set": 1,
    }
    assert re.search(r"scenes: state_set 1, train_set 3, acquisition_set 1", capsys.readouterr().out)
    with (root / "dataset.yaml").open("a") as file:
        file.write("scenes: 'train/(s[0-9])/'\n")
    assert main(["data", "check", "--config", "mine.yaml"]) == 3
    assert "finds no scene in the name of image val/000.png" in capsys.readouterr().out.replace("\n", "")


def test_check_says_nothing_of_scenes_that_are_not_known(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("streets.yaml").write_text("data: {splits: {state: 2, train: 6}}\n")
    assert main(["data", "check", "--config", "streets.yaml"]) == 0
    assert "scenes:" not in capsys.readouterr().out


# -- what is scored on -------------------------------------------------------------------------------


def shown(data: SegmentationData) -> list[int]:
    return [index for batch in data.val_dataloader() for index in batch.image_index.tolist()]


def test_only_what_is_scored_on_is_open():
    data = small_data()
    data.setup()
    reward, train = data.splits.reward_set, data.splits.train_set
    paying = [train[1], reward[0], reward[2]]
    first = data.val_dataloader()
    assert shown(data) == reward
    data.score_on(paying)
    assert shown(data) == paying
    assert data.val_dataloader() is data.val_dataloader()  # the game asks for it at every step
    for hidden in (reward[1], train[0]):
        with pytest.raises(HiddenLabelError):
            data.masks[hidden]
    data.score_on([reward[1]])
    assert shown(data) == [reward[1]]
    with pytest.raises(HiddenLabelError):
        data.masks[train[1]]
    data.masks[data.splits.state_set[0]]
    data.score_on(None)
    assert data.val_dataloader() is first
    assert shown(data) == reward
    with pytest.raises(HiddenLabelError):
        data.masks[train[1]]


def test_regions_of_images_are_those_of_a_set_and_made_once():
    data = towns()
    data.setup()
    train, reward = data.splits.train_set, data.splits.reward_set
    assert data.regions(train) is data.regions("train_set") is data.regions(tuple(train))
    assert data.mask_oracle(train) is data.mask_oracle("train_set")
    mixed = [reward[3], train[2]]
    regions, oracle = data.regions(mixed), data.mask_oracle(mixed)
    assert regions.images.indices == mixed
    assert oracle.job.image_names == [data.dataset.names[index] for index in mixed]
    here, there = regions.of_image(1), data.regions("train_set").of_image(2)
    assert (oracle.label(here) == data.mask_oracle("train_set").label(there)).all()
    assert not (oracle.label(regions.of_image(0)) == oracle.label(here)).all()


# -- real CamVid -------------------------------------------------------------------------------------


def test_scenes_of_the_published_split(camvid_root):
    data = SegmentationData(CamVid(camvid_root), "al_splits.json")
    data.setup()
    found = {
        name: {scene: sum(data.dataset.scene(i) == scene for i in data.splits[name]) for scene in SCENES}
        for name in ("state_set", "train_set", "reward_set", "acquisition_set", "test_set")
    }
    assert found == {
        "state_set": dict(zip(SCENES, (2, 2, 6, 0), strict=True)),
        "train_set": dict(zip(SCENES, (18, 27, 55, 0), strict=True)),
        "reward_set": dict(zip(SCENES, (0, 0, 101, 0), strict=True)),
        "acquisition_set": dict(zip(SCENES, (42, 72, 143, 0), strict=True)),
        "test_set": dict(zip(SCENES, (62, 0, 0, 171), strict=True)),
    }
