"""Mixtures: slots, subsets, worlds and scenes of several data sets in one, and how YAML names them."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from ralseg.cli import main
from ralseg.data import Folder, Mixture, SegmentationData, SplitSizes, SyntheticStreets, SyntheticWorlds
from ralseg.data.class_stats import class_counts
from ralseg.errors import ConfigError
from ralseg.labels import GridLayout
from support.data import Towns, make_folder, striped_folder

SMALL = {"height": 64, "width": 96}


def parts() -> dict:
    return {"towns": Towns(4, 2, 3, **SMALL), "drawn": SyntheticWorlds(2, 1, 1, images=3, **SMALL)}


@pytest.fixture(scope="module")
def mixture():
    return Mixture(parts())


def test_images_are_named_by_family_and_those_of_test_are_left_out(mixture):
    assert len(mixture) == 6 + 9
    assert mixture.names[:2] == ["towns/train_00000", "towns/train_00001"]
    assert mixture.names[-1] == "drawn/val_000/002"
    assert not [name for name in mixture.names if "test" in name]
    assert len(set(mixture.names)) == 15


def test_there_are_as_many_slots_as_the_largest_part_has_classes(mixture):
    assert mixture.class_names[:2] == ("class_00", "class_01")
    assert len(mixture.class_names) == len(set(mixture.colours)) == 20
    assert len(Mixture({"only": SyntheticStreets(1, 0, 0)}).class_names) == 11


def test_only_worlds_that_are_all_val_are_held_out(mixture):
    held_out = {mixture.world(index) for index, subset in enumerate(mixture.subsets) if subset == "val"}
    played = {mixture.world(index) for index, subset in enumerate(mixture.subsets) if subset == "train"}
    assert held_out == {"drawn/val_000"}
    assert played == {"towns", "drawn/world_000", "drawn/world_001"}


def test_a_part_of_nothing_but_val_is_held_out():
    mixture = Mixture({"a": SyntheticStreets(2, 2, 0, **SMALL), "b": SyntheticStreets(0, 2, 5, **SMALL)})
    assert mixture.subsets == ["train"] * 4 + ["val"] * 2
    assert [mixture.world(index) for index in (0, 5)] == ["a", "b"]


def test_whole_parts_may_be_held_out():
    mixture = Mixture(parts(), held_out=["towns"])
    held_out = {mixture.world(index) for index, subset in enumerate(mixture.subsets) if subset == "val"}
    assert held_out == {"towns", "drawn/val_000"}
    with pytest.raises(ConfigError, match=r"held_out: there is no part 'town'; parts are towns, drawn"):
        Mixture(parts(), held_out=["town"])


def test_scenes_are_those_of_the_parts(mixture):
    assert [mixture.scene(index) for index in range(3)] == ["towns/A", "towns/B", "towns/C"]
    assert mixture.scene(6) == "drawn/" + parts()["drawn"].scene(0)
    assert Mixture({"streets": SyntheticStreets(1, 0, 0)}).scene(0) is None


def test_pixels_classes_and_keys_are_those_of_the_parts(mixture):
    drawn = parts()["drawn"]
    for index, inner in ((6, 0), (14, 8)):
        assert np.array_equal(mixture.read_image(index), drawn.read_image(inner))
        assert np.array_equal(mixture.read_mask(index), drawn.read_mask(inner))
        assert mixture.image_key(index) == drawn.image_key(inner) is not None
        assert mixture.mask_key(index) == drawn.mask_key(inner) is not None
    assert mixture.image_key(0) is None


def test_images_without_a_mask_and_of_strange_subsets_are_left_out(tmp_path):
    striped_folder(tmp_path, labelled=3, unlabelled=4)
    strange = SyntheticStreets(3, 0, 0, **SMALL)
    strange.subsets = ["train", "testing", "train"]
    mixture = Mixture({"own": Folder(str(tmp_path), classes=["a", "b"]), "strange": strange})
    assert [name.partition("/")[0] for name in mixture.names] == ["own"] * 6 + ["strange"] * 2
    assert all(mixture.has_mask(index) for index in range(8))
    assert [said for said in mixture.file_problems() if said.startswith("strange: subset 'testing' (1 images)")]


def test_copies_are_kept_for_all_parts(tmp_path):
    make_folder(tmp_path / "own")
    mixture = Mixture({"own": Folder(str(tmp_path / "own")), "streets": SyntheticStreets(1, 0, 0)})
    SegmentationData(mixture, cache_folder=str(tmp_path / "cache"))
    assert {id(part.copies) for part in mixture.parts.values()} == {id(mixture.copies)}
    assert class_counts(mixture, 0).sum() == 32 * 48
    assert len(list((tmp_path / "cache").glob("*/*.copy"))) == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dict, r"Mixture has no parts; name some data sets: data\.dataset\.init_args\.parts"),
        (lambda: {"a/b": SyntheticStreets(1, 0, 0)}, r"the name 'a/b' must not be empty or hold a '/'"),
        (lambda: {"": SyntheticStreets(1, 0, 0)}, r"the name '' must not be empty"),
        (lambda: {"a": SyntheticStreets(0, 0, 4)}, r"no part has a labelled image in train or val"),
    ],
)
def test_what_cannot_be_mixed_is_refused(bad, message):
    with pytest.raises(ConfigError, match=message):
        Mixture(bad())


def test_a_run_reads_a_mixture_of_sizes():
    mixture = Mixture(parts() | {"tall": SyntheticStreets(3, 0, 0, height=96, width=64)})
    splits = SplitSizes(state=2, train=10)
    data = SegmentationData(mixture, splits, size=(64, 96), layout=GridLayout(2, 3), batch_size=10, copies_gb=0)
    data.setup()
    assert {mixture.world(index) for index in data.splits.reward_set} == {"drawn/val_000"}
    assert data.splits.test_set == []
    images, masks, *_ = next(iter(data.train_dataloader()))
    assert images.shape == (10, 3, 64, 96)
    assert masks.shape == (10, 64, 96)


# -- YAML --------------------------------------------------------------------------------------------


def config(parts: dict) -> str:
    dataset = {"class_path": "ralseg.data.Mixture", "init_args": {"parts": parts}}
    layout = {"class_path": "ralseg.GridLayout", "init_args": {"rows": 2, "columns": 3}}
    data = {"dataset": dataset, "splits": {"state": 2, "train": 4}, "layout": layout}
    Path("mixture.yaml").write_text(yaml.safe_dump({"data": data}))
    return "mixture.yaml"


def test_a_configuration_names_parts_by_their_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    streets = {"num_train": 4, "num_val": 2, "num_test": 3, **SMALL}
    drawn = {"num_train_worlds": 2, "num_val_worlds": 1, "images": 3, **SMALL}
    named = {"streets": streets, "drawn": drawn}
    classes = {"streets": "ralseg.data.SyntheticStreets", "drawn": "ralseg.data.SyntheticWorlds"}
    given = {name: {"class_path": classes[name], "init_args": named[name]} for name in named}
    assert main(["data", "check", "--config", config(given), "--out", "checked"]) == 0
    report = json.loads(Path("checked/report.json").read_text())
    assert report["problems"] == []
    assert report["images"] == {"train": 12, "val": 3}


def test_a_part_is_only_imported_if_somebody_allowed_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    Path("evil.py").write_text("open('marker', 'w')\n")
    assert main(["data", "check", "--config", config({"mine": {"class_path": "evil.Data"}})]) == 2
    assert "does not import unasked" in capsys.readouterr().err
    assert not Path("marker").exists()
