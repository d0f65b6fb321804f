"""Crops that people label: what goes out, what comes back, and what is wrong with it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ralseg.annotation import CropOracle
from ralseg.data import Folder, SegmentationData, SplitSizes
from ralseg.engine.acquire_session import SET
from ralseg.errors import ConfigError, DataError
from ralseg.labels import GridLayout, LabelsNeeded
from support.data import make_folder
from support.games import acquire, segmenter, selected


@pytest.fixture
def root(tmp_path) -> Path:
    """Nine images for training; the masks of six of them are in the folder `hidden`, for people to copy from."""
    root = make_folder(tmp_path / "data", train=9, size=(66, 97))
    (tmp_path / "hidden").mkdir()
    for path in sorted((root / "masks" / "train").glob("*.png"))[3:]:
        path.rename(tmp_path / "hidden" / path.name)
    return root


def unlabelled_data(root: Path) -> SegmentationData:
    """Six images of the acquisition set, without masks, in another size than their files."""
    return SegmentationData(
        Folder(str(root)), SplitSizes(state=1, train=2), size=(32, 48), layout=GridLayout(2, 3), batch_size=4
    )


def run(root: Path, ckpt: str | None = None, oracle: str = "crops"):
    """Ask for six regions, four and then two; None while they wait for labels."""
    data = unlabelled_data(root)
    model = segmenter(names=data.class_names)
    _, result = acquire(root.parent / "run", data=data, model=model, oracle=oracle, ckpt=ckpt, budgets=[6])
    return result


def manifest(root: Path) -> dict:
    return json.loads((root.parent / "run" / "to_label" / "manifest.json").read_text())


def right_mask(root: Path, wanted: dict) -> Image.Image:
    """The hidden mask at the place of a crop."""
    box = (wanted["x"], wanted["y"], wanted["x"] + wanted["width"], wanted["y"] + wanted["height"])
    return Image.open(root.parent / "hidden" / Path(wanted["image"]).name).crop(box)


def answer(root: Path) -> None:
    """Do what people do: a mask for each crop."""
    for wanted in manifest(root)["regions"]:
        right_mask(root, wanted).save(root.parent / "run" / "to_label" / wanted["mask"])


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ["crops", "none"])  # its name until 0.1
def test_people_label_what_nobody_has_labelled(root, oracle):
    folder, rounds = root.parent / "run", 0
    result = run(root, oracle=oracle)
    while result is None:
        rounds += 1
        request = manifest(root)
        assert len(request["regions"]) == (4, 2)[rounds - 1]
        assert request["classes"] == {"0": "ground", "1": "plant", "2": "stone"}
        for wanted in request["regions"]:
            crop = Image.open(folder / "to_label" / wanted["crop"])
            assert crop.size == (wanted["width"], wanted["height"])
            whole = np.asarray(Image.open(root / "images" / "train" / Path(wanted["image"]).name))
            x, y, w, h = (wanted[key] for key in ("x", "y", "width", "height"))
            assert (np.asarray(crop) == whole[y : y + h, x : x + w]).all()
        answer(root)
        if rounds == 1:
            first = request["regions"][0]
            right_mask(root, first).resize((3, 3)).save(folder / "to_label" / first["mask"])
            with pytest.raises(DataError, match=r"mask has 3x3 pixels, its crop 33x3[23]"):
                run(root, "last", oracle)
            answer(root)
        result = run(root, "last", oracle)
    assert rounds == 2
    assert len(set(selected(folder))) == 6
    assert result["budgets"]["6"]["class_frequencies"]["available"] is None
    assert 0 <= result["budgets"]["6"]["test_set/miou"] <= 1
    assert "corrected" not in result


def test_a_mask_that_people_replace_is_read_again_and_told(root):
    assert run(root) is None
    answer(root)
    first = manifest(root)["regions"][0]
    assert run(root, "last") is None  # the next two are asked for
    answer(root)
    path = root.parent / "run" / "to_label" / first["mask"]
    Image.fromarray(np.full_like(np.asarray(Image.open(path)), 2)).save(path)
    result = run(root, "last")
    assert result["corrected"] == [first["region"]]


def test_a_request_is_the_same_until_it_is_answered(root):
    assert run(root) is None
    first = manifest(root)
    assert run(root, "last") is None
    assert manifest(root) == first
    oracle = CropOracle()
    data = unlabelled_data(root)
    data.setup()
    oracle.open(data.labelling_job(SET, root.parent / "run"))
    assert oracle.asked(0) == [wanted["region"] for wanted in first["regions"]]


def test_a_folder_is_needed_for_crops(root):
    data = unlabelled_data(root)
    data.setup()
    with pytest.raises(ConfigError, match="this run has none"):
        CropOracle().open(data.labelling_job(SET))


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"regions": 3}', '{"regions": [{"region": "x"}]}'])
def test_a_damaged_manifest_means_that_nothing_is_asked(root, tmp_path, damage):
    data = unlabelled_data(root)
    data.setup()
    oracle = CropOracle()
    oracle.open(data.labelling_job(SET, tmp_path / "run"))
    assert oracle.asked(0) == []
    (tmp_path / "run" / "to_label").mkdir(parents=True)
    (tmp_path / "run" / "to_label" / "manifest.json").write_text(damage)
    assert oracle.asked(0) == []


def test_files_with_odd_names_become_crops_that_do_not_collide(root, tmp_path):
    data = unlabelled_data(root)
    data.setup()
    names = ["../../etc/passwd", "a b", "a_b", "ä/ö.png", "x" * 300, "-rf *"]
    oracle = CropOracle()
    oracle.open(replace(data.labelling_job(SET, tmp_path / "run"), image_names=names))
    with pytest.raises(LabelsNeeded, match="36 of 36 regions wait for labels"):
        oracle.label(torch.arange(36))
    crops = sorted((tmp_path / "run" / "to_label" / "crops").iterdir())
    assert len(crops) == 36
    assert all(path.name.isascii() and " " not in path.name and len(path.name) < 120 for path in crops)
    request = json.loads((tmp_path / "run" / "to_label" / "manifest.json").read_text())
    assert {wanted["image"] for wanted in request["regions"]} == set(names)
    assert not (tmp_path / "etc").exists()
