"""Random damage to everything that ralseg reads: an error that names the file, or a correct result; nothing else."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from ralseg.cli import main
from ralseg.data import Folder, SyntheticStreets
from ralseg.data.readers import read_image, read_index_mask
from ralseg.data.splits import load_splits
from ralseg.errors import DataError
from ralseg.runtime.checkpoints import DurableCheckpointIO, read_checkpoint
from support.damage import damaged, damages
from support.data import make_folder

bounded = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
few = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 17, 3), np.uint8)
STREETS = SyntheticStreets(num_train=4, num_val=2, num_test=2, height=32, width=48)


def encoded(kind):
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, kind)
    return buffer.getvalue()


FILES = {kind: encoded(kind) for kind in ("PNG", "JPEG", "TIFF", "WEBP", "BMP")}


@bounded
@given(kind=st.sampled_from(sorted(FILES)), steps=damages)
def test_images(tmp_path, kind, steps):
    path = tmp_path / "image.png"  # whatever it is: suffixes lie
    path.write_bytes(damaged(FILES[kind], steps))
    for read in (read_image, read_index_mask):
        try:
            found = read(path)
        except DataError as error:
            assert "image.png" in str(error)
        else:
            assert found.dtype == np.uint8
            assert found.ndim == (3 if read is read_image else 2)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


names_of_classes = st.sampled_from(["ground", "plant", "stone", None, 3])
mappings = st.dictionaries(st.integers(-1, 256) | names_of_classes, names_of_classes | values, max_size=4)
descriptions = st.fixed_dictionaries(
    {},
    optional={
        "classes": values | st.lists(names_of_classes, max_size=4),
        "values": values | mappings,
        "palette": values | mappings,
        "ignore": values,
        "scenes": values,
        "mask_name": values | st.sampled_from(["{stem}", "{stem}.png", "{stem}{stem}", "x/{stem}"]),
        "shares": values | st.dictionaries(st.sampled_from(["val", "test", "x"]), st.floats(), max_size=3),
    },
)


@pytest.mark.slow
@bounded
@given(description=descriptions, junk=st.none() | st.text(max_size=30))
def test_descriptions_of_data_sets(tmp_path, description, junk):
    if not (tmp_path / "images").exists():
        make_folder(tmp_path, train=2, val=1, test=1)
    text = junk if junk is not None else yaml.safe_dump({k: v for k, v in description.items() if v is not None})
    (tmp_path / "dataset.yaml").write_text(text, encoding="utf-8")
    try:
        folder = Folder(str(tmp_path))
    except DataError as error:
        assert "dataset.yaml" in str(error) or "'shares'" in str(error) or "no image" in str(error)
    else:
        assert len(folder.class_names) == len(folder.colours) >= 2


names = st.sampled_from([*STREETS.names, "../../etc/passwd", "/etc/passwd", "", "train_0000 1"])
sets = st.dictionaries(
    st.sampled_from(["state_set", "train", "reward_set", "acquisition", "test_set", "x"]), st.lists(names) | values
)


@bounded
@given(content=sets | values, junk=st.none() | st.text(max_size=30))
def test_split_files(tmp_path, content, junk):
    path = tmp_path / "splits.json"
    path.write_text(junk if junk is not None else json.dumps(content), encoding="utf-8")
    try:
        splits = load_splits(path, STREETS)
    except DataError as error:
        assert "splits.json" in str(error) or "disjoint" in str(error)
    else:
        assert all(0 <= i < len(STREETS) for i in [*splits.state_set, *splits.test_set])


@bounded
@given(steps=damages)
def test_checkpoints(tmp_path, steps):
    path = tmp_path / "some.ckpt"
    if not path.exists():
        DurableCheckpointIO().save_checkpoint({"state_dict": {"w": torch.arange(300.0)}, "epoch": 3}, path)
    good = path.read_bytes()
    other = tmp_path / "other.ckpt"
    other.write_bytes(damaged(good, steps))
    try:
        content = read_checkpoint(other)
    except DataError as error:
        assert "other.ckpt" in str(error)
    else:  # damage between the members is no damage
        assert torch.equal(content["state_dict"]["w"], torch.arange(300.0))


def test_deep_nesting_is_an_error_not_a_crash(tmp_path):
    (tmp_path / "splits.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="not valid JSON"):
        load_splits(tmp_path / "splits.json", STREETS)
    make_folder(tmp_path)
    (tmp_path / "dataset.yaml").write_text("[" * 3000)
    with pytest.raises(DataError, match="not valid YAML"):
        Folder(str(tmp_path))


CHECK = {
    "data": {
        "dataset": {
            "class_path": "ralseg.data.SyntheticStreets",
            "init_args": {"num_train": 5, "num_val": 2, "num_test": 2, "height": 32, "width": 48},
        },
        "splits": {"state": 1, "train": 2},
        "layout": {"class_path": "ralseg.labels.GridLayout", "init_args": {"rows": 2, "columns": 3}},
        "size": None,
        "crop": None,
        "fit_on": ["train_set"],
        "batch_size": 2,
        "cache_gb": 1.0,
        "seed": 0,
    }
}
PLACES = [
    *(("data", key) for key in CHECK["data"]),
    *(("data", "dataset", "init_args", key) for key in CHECK["data"]["dataset"]["init_args"]),
    *(("data", "splits", key) for key in CHECK["data"]["splits"]),
    *(("data", "layout", "init_args", key) for key in CHECK["data"]["layout"]["init_args"]),
    ("data", "dataset", "class_path"),
    ("data", "layout", "class_path"),
    ("data", "no_such_key"),
    ("seed_everything",),
]
odd = st.sampled_from(
    [-1, 0, 1, 7, 10**9, 1.5, float("nan"), "", "x", None, True, [], [0, 0], [16, 16], [-1, 5], {}, {"a": 1}, "1e3"]
)


def test_the_configuration_that_is_changed_is_right_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("right.yaml").write_text(yaml.safe_dump(CHECK))
    assert main(["data", "check", "--config", "right.yaml"]) == 0


@pytest.mark.slow
@few
@given(place=st.sampled_from(PLACES), value=odd)
def test_configurations(tmp_path, monkeypatch, capsys, place, value):
    monkeypatch.chdir(tmp_path)
    content = json.loads(json.dumps(CHECK))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    Path("odd.yaml").write_text(yaml.safe_dump(content))
    assert main(["data", "check", "--config", "odd.yaml"]) in (0, 2, 3, 4), (place, value)
    assert "Traceback" not in capsys.readouterr().err
