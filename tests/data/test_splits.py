import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralseg.data import CamVid, Folder, SyntheticStreets
from ralseg.data.class_stats import choose_representative, class_distance
from ralseg.data.splits import (
    SETS,
    Splits,
    SplitSizes,
    draw_splits,
    load_splits,
    save_splits,
    state_train_distance,
)
from ralseg.errors import ConfigError, DataError
from support.data import make_folder, small_data

STREETS = SyntheticStreets(num_train=30, num_val=6, num_test=7, height=32, width=48)


@settings(max_examples=15)
@given(st.integers(0, 4), st.integers(0, 20), st.integers(0, 100))
def test_sets_are_disjoint_and_of_the_asked_size(state, train, seed):
    splits = draw_splits(STREETS, SplitSizes(state, train, seed=seed))
    sizes = {name: len(splits[name]) for name in SETS}
    assert list(sizes.values()) == [state, train, 6, 30 - state - train, 7]
    indices = [i for name in SETS for i in splits[name]]
    assert len(set(indices)) == len(indices) == len(STREETS)
    assert {STREETS.subsets[i] for i in splits.reward_set} == {"val"}
    assert {STREETS.subsets[i] for i in splits.test_set} == {"test"}


@pytest.mark.parametrize(("acquisition", "left"), [(None, 0), (0, 0), (8, 8)])
def test_the_train_set_may_take_all_that_is_left(acquisition, left):
    splits = draw_splits(STREETS, SplitSizes(2, None, acquisition=acquisition))
    assert [len(splits[name]) for name in SETS] == [2, 28 - left, 6, left, 7]
    none = draw_splits(STREETS, SplitSizes(0, None, reward=4, reward_from_train=True))
    assert [len(none[name]) for name in SETS] == [0, 26, 4, 0, 7]


def test_the_seed_decides():
    draw = [draw_splits(STREETS, SplitSizes(3, 10, seed=s)) for s in (0, 0, 1)]
    assert draw[0] == draw[1] != draw[2]


def test_state_set_is_closer_to_the_train_set_than_random_draws():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 1000, (60, 8)) * (rng.random((60, 8)) < 0.3)
    rows, distance = choose_representative(counts, 5, np.random.default_rng(1))
    assert len(set(rows)) == 5
    others = counts.sum(0) - counts[rows].sum(0)
    assert distance == pytest.approx(class_distance(counts[rows].sum(0), others))
    random = []
    for _ in range(300):
        draw = rng.choice(60, 5, replace=False)
        random.append(class_distance(counts[draw].sum(0), counts.sum(0) - counts[draw].sum(0)))
    assert distance < min(random)


def test_cityscapes_style_reward_set_comes_from_train():
    dataset = SyntheticStreets(num_train=30, num_val=6, num_test=0, height=32, width=48)
    splits = draw_splits(dataset, SplitSizes(2, 8, reward=5, reward_from_train=True))
    assert {dataset.subsets[i] for i in splits.reward_set} == {"train"}
    assert {dataset.subsets[i] for i in splits.test_set} == {"val"}
    assert [len(splits[name]) for name in SETS] == [2, 8, 5, 15, 6]


def test_images_without_a_mask_are_only_acquired(tmp_path):
    root = make_folder(tmp_path, train=8)
    for i in range(3):
        (root / f"masks/train/{i:03d}.png").unlink()
    folder = Folder(str(root))
    splits = draw_splits(folder, SplitSizes(2, 2))
    without = [i for i in range(len(folder)) if not folder.has_mask(i)]
    assert len(without) == 3
    assert set(without) <= set(splits.acquisition_set)


def test_json_round_trip_states_the_distance(tmp_path):
    splits = draw_splits(STREETS, SplitSizes(3, 10))
    path = tmp_path / "run" / "splits.json"
    save_splits(path, splits, STREETS)
    assert load_splits(path, STREETS) == splits
    content = json.loads(path.read_text())
    assert content["state_train_distance"] == pytest.approx(state_train_distance(STREETS, splits))
    assert content["state_set"][0].startswith("train_")
    assert not list(path.parent.glob("*.part"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be an object"),
        ('{"state": [], "train": []}', "'acquisition_set' is missing"),
        ('{"state": ["nobody"], "train": [], "acquisition": []}', "1 images of 'state_set' are not.*'nobody'"),
        ('{"state": "x", "train": [], "acquisition": []}', "must be a list"),
        ('{"state": ["train_00001"], "train": ["train_00001"], "acquisition": []}', "sets must be disjoint"),
    ],
)
def test_wrong_split_files_are_refused(tmp_path, content, message):
    path = tmp_path / "s.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        load_splits(path, STREETS)


def test_too_many_images_asked_for():
    with pytest.raises(ConfigError, match="asks for 40 state \\+ train images, but subset 'train' has 30"):
        draw_splits(STREETS, SplitSizes(10, 30))
    with pytest.raises(ConfigError, match="there is no set 'valid'"):
        draw_splits(STREETS, SplitSizes(1, 1))["valid"]


def test_overlapping_sets_cannot_be_made():
    with pytest.raises(DataError, match="image 1 stands in state_set and in test_set"):
        Splits([1], [2], [3], [4], [1])


def test_empty_sets_are_errors_where_they_are_needed():
    data = small_data(splits=SplitSizes(2, 0))
    data.setup()
    with pytest.raises(ConfigError, match=r"data\.fit_on=\['train_set'\] has no images"):
        data.train_dataloader()
    data = small_data(splits=SplitSizes(2, 6, test=0))
    data.setup()
    with pytest.raises(ConfigError, match="the test_set is empty"):
        data.test_dataloader()


def test_published_camvid_split(camvid_root):
    data = small_data(dataset=CamVid(camvid_root), splits="al_splits.json", size=(64, 96))
    data.setup()
    assert [len(data.splits[name]) for name in SETS] == [10, 100, 101, 257, 233]
    assert state_train_distance(data.dataset, data.splits) < 0.2
