"""The built-in policy: it is there, small and harmless, and fits any data."""

import pytest
import torch

from ralseg.agents.loading import BOX, find_policy, load_policy_alone, policy_identity, policy_in_the_box, policy_tag
from ralseg.data import SegmentationData, SplitSizes, SyntheticWorlds
from ralseg.errors import ConfigError
from ralseg.labels import GridLayout
from support.data import small_data
from support.games import UNTRAINED, acquire, game, play, selected


def test_it_is_small_and_holds_no_code():
    assert policy_in_the_box().stat().st_size < 100_000
    content = torch.load(policy_in_the_box(), weights_only=True)
    assert content["ralseg"]["policy"]["class_path"] == "ralseg.FeaturePolicy"
    assert content["ralseg"]["policy"]["fits"] == {}
    assert all(tensor.isfinite().all() for tensor in content["state_dict"].values())
    assert any(tensor.any() for tensor in content["state_dict"].values())


def test_it_fits_data_with_other_classes_regions_and_sizes():
    other = SegmentationData(
        SyntheticWorlds(1, 1, images=4, height=48, width=32), SplitSizes(state=1, train=1), layout=GridLayout(3, 2)
    )
    for data in (small_data(), other):
        data.setup()
        policy = find_policy(BOX, {}, data)
        assert policy.state_dict().keys() == load_policy_alone(policy_in_the_box()).state_dict().keys()


def test_it_has_a_name_of_its_own():
    assert policy_tag(BOX) == "ralseg"
    assert policy_identity(BOX) == policy_identity(str(policy_in_the_box()))


def test_it_acquires(tmp_path):
    _, result = acquire(tmp_path / "box", BOX, options=UNTRAINED)
    assert result["method"] == "ralseg"
    assert len(selected(tmp_path / "box")) == 10
    acquire(tmp_path / "again", str(policy_in_the_box()), options=UNTRAINED)
    assert selected(tmp_path / "again") == selected(tmp_path / "box")
    acquire(tmp_path / "uniform", "uniform", options=UNTRAINED)
    assert selected(tmp_path / "uniform") != selected(tmp_path / "box")


def test_a_policy_of_certain_classes_is_not_for_any_data(tmp_path):
    play(tmp_path, game(validation_plays=0, episodes=1))
    with pytest.raises(ConfigError, match=r"policy\.ckpt: the policy fits certain data only \(.*class_names"):
        load_policy_alone(tmp_path / "policy.ckpt")
