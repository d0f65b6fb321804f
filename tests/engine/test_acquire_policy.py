"""Who chooses in `ralseg acquire`: learned policies, their priors, and policies of one's own."""

from pathlib import Path

import pytest
import torch

from ralseg.agents import QueryNetwork
from ralseg.data import Folder, SegmentationData, SplitSizes
from ralseg.errors import ConfigError
from ralseg.labels import GridLayout
from support.data import make_folder, small_data
from support.games import UNTRAINED, acquire, dqn, game, play, segmenter, selected

LINEAR = {"features": "summary", "use_gate": False, "use_state": False, "linear": True, "norm": "none"}


@pytest.mark.parametrize("prior", ["entropy", "margin", "bald"])
def test_a_policy_that_has_learned_nothing_is_its_prior(tmp_path, prior):
    network = QueryNetwork(**LINEAR, prior=prior, prior_weight=0.5)
    network.build(small_data().class_names, 12, 0)
    content = {"ralseg": {"policy": network.description()}, "state_dict": network.state_dict()}
    torch.save(content, tmp_path / "policy.ckpt")
    for name, policy in (("learned", str(tmp_path / "policy.ckpt")), ("object", network), ("heuristic", prior)):
        acquire(tmp_path / name, policy, options=UNTRAINED)
    assert selected(tmp_path / "learned") == selected(tmp_path / "object") == selected(tmp_path / "heuristic")


def test_a_learned_policy_is_used_as_it_was_trained(tmp_path, policy_file):
    _, result = acquire(tmp_path, policy_file, options=UNTRAINED)
    assert result["method"].startswith("learned-")
    assert len(set(selected(tmp_path))) == 10


def test_a_policy_that_does_not_fit_says_what_differs(tmp_path, policy_file):
    folder = Folder(str(make_folder(tmp_path / "data")))
    data = SegmentationData(folder, SplitSizes(1, 2), layout=GridLayout(2, 3))
    with pytest.raises(ConfigError, match=r"does not fit this data: class_names is \['sky'.*\['ground'"):
        acquire(tmp_path / "run", policy_file, data, model=segmenter(names=data.class_names))
    state = tmp_path / "state"
    play(state, game(episodes=2, validation_plays=0), dqn())
    with pytest.raises(ConfigError, match="num_state_regions is 12 in the policy and 24 here"):
        acquire(tmp_path / "run 2", str(state / "checkpoints" / "last.ckpt"), small_data(splits=SplitSizes(4, 4)))
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(ConfigError, match="holds no policy"):
        acquire(tmp_path / "run 3", str(tmp_path / "other.ckpt"))


OWN = """
import torch
from ralseg import Needs, Policy

class Rarest(Policy):
    needs = Needs(measures=("probability",))
    def __init__(self, wanted: int = 0):
        self.wanted = wanted
    def scores(self, observation, generator):
        return observation.measures["probability"][..., self.wanted]

class Wrong(Policy):
    def scores(self, observation, generator):
        return torch.zeros(3)
"""


def test_a_policy_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own_policy.py").write_text(OWN)
    _, result = acquire(tmp_path / "run", "own_policy.Rarest", args={"wanted": 2}, options=UNTRAINED)
    assert result["method"] == "own_policy.Rarest"
    for name, message in (
        ("own_policy.Rarer", "cannot be imported"),
        ("json.JSONDecoder", "is no subclass of ralseg.acquisition.policy.Policy"),
        ("entropi", "neither a file nor one of ralseg, bald, class_balanced_entropy.*did you mean 'entropy'"),
    ):
        with pytest.raises(ConfigError, match=message):
            acquire(tmp_path / "other", name)
    with pytest.raises(ConfigError, match="unexpected keyword"):
        acquire(tmp_path / "other", "own_policy.Rarest", args={"want": 2})
    with pytest.raises(Exception, match=r"Wrong.scores gave the shape \(3,\), but the candidates have \(4, 3\)"):
        acquire(tmp_path / "other", "own_policy.Wrong")
