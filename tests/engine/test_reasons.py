"""What a run keeps of why it chose its regions: the sums, the pictures, and the same file after a kill."""

import json

import numpy as np
import pytest
import torch

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.pictures import picture
from ralseg.acquisition.policy import Reasons
from ralseg.agents.feature_policy import FeaturePolicy
from ralseg.engine.reasons import FILE, among_candidates, packed, read_reasons
from ralseg.errors import DataError
from ralseg.labels import GridLayout
from support.data import small_data
from support.games import Photograph, acquire, final, selected

SHORT = {"final": final(max_steps=2)}
RANDOM = torch.Generator().manual_seed(0)


def weighted(**options) -> FeaturePolicy:
    """A policy in which everything counts: features, time, contexts."""
    policy = FeaturePolicy(["entropy", "rarity", "novelty"], context=["confidence", "variety"], **options)
    policy.build((), 0, seed=0)
    with torch.no_grad():
        for parameter in policy.net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=RANDOM))
    return policy


def seen_by(policy: FeaturePolicy) -> Observation:
    """An observation of 4 pools of 5 with random features in one situation."""
    features = torch.randn(4, 5, 3, generator=RANDOM)
    situation = torch.tensor([0.3, -0.2, 0.4]).expand(4, 5, 3)
    pools = torch.randperm(90, generator=RANDOM)[:20].reshape(4, 5)
    actions = torch.cat([situation, features, torch.zeros(4, 5, 1)], -1)
    return Observation(torch.empty(0, 0), pools, actions, torch.zeros(4, 5), torch.zeros(4, 5, 0))


def test_the_parts_of_a_linear_score_sum_to_it():
    policy = weighted()
    seen = seen_by(policy)
    why = policy.reasons(seen)
    assert (why.names, why.rest) == (("entropy", "rarity", "novelty"), "")
    torch.testing.assert_close((why.values * why.weights).sum(-1), policy.scores(seen, RANDOM))


@pytest.mark.parametrize(
    ("options", "rest"),
    [({"hidden": 4}, "a hidden layer"), ({"hidden": 2, "randomness": 0.5}, "a hidden layer and chance")],
)
def test_what_is_no_sum_says_what_the_rest_is(options, rest):
    policy = weighted(**options)
    seen = seen_by(policy)
    why = policy.reasons(seen)
    assert why.rest == rest
    assert not torch.allclose((why.values * why.weights).sum(-1), policy.scores(seen, RANDOM))


def test_where_regions_stand_among_the_candidates():
    pools = torch.tensor([[7, 3, 9], [4, 1, 8]])
    scores = torch.tensor([[0.0, 5.0, 2.0], [4.0, 2.0, 1.0]])
    seen = Observation.unseen(pools, 1, torch.empty(0, 0))
    told = among_candidates(seen, scores, Reasons(("double",), 2 * scores[..., None]), [3, 8, 9])
    best, last, tied = told["regions"]
    assert (told["pools"], told["pool_size"], told["score"]) == (2, 3, [0.0, 1.0, 2.0, 4.0, 5.0])
    assert told["features"] == [{"name": "double", "spread": [0.0, 2.0, 4.0, 8.0, 10.0], "weight": None}]
    assert (best["rank"], best["pool_rank"], best["below"], best["values"]) == (1, 1, [1.0], [10.0])
    assert (last["rank"], last["pool_rank"], last["below"]) == (5, 3, [0.2])
    assert (tied["rank"], tied["pool_rank"], tied["below"]) == (3, 2, [0.5])  # 2 candidates below, 1 its equal


def test_pictures_are_small_and_know_what_lies_outside():
    classes = torch.arange(100).reshape(1, 10, 10)
    inside = torch.ones(1, 10, 10, dtype=torch.bool)
    inside[0, 0] = False
    assert torch.equal(picture(classes, None, 64)[0], classes[0].to(torch.uint8))
    assert picture(classes, inside, 10)[0, :2, 0].tolist() == [255, 10]
    assert picture(classes, None, 2)[0].tolist() == [[22, 27], [72, 77]]
    assert len(json.dumps(packed(torch.zeros(64, 64, dtype=torch.uint8)))) < 100


def test_each_step_of_a_run_tells_why(tmp_path):
    trainer, _ = acquire(tmp_path, "ralseg", options=SHORT)
    data, steps = trainer.fit_loop.session.data, read_reasons(tmp_path / FILE)
    assert [len(step.regions) for step in steps] == [4, 4, 2]
    assert [step.spent for step in steps] == [0, 0.4, 0.8]
    chosen = [
        (str(step.step), one.image, *one.place.replace("row ", "").split(", column "))
        for step in steps
        for one in step.regions
    ]
    assert chosen == selected(tmp_path)
    for step in steps:
        weights = [feature.weight for feature in step.features]
        for region in step.regions:
            total = sum(w * v for w, v in zip(weights, region.values, strict=True))
            assert total == pytest.approx(region.score, rel=1e-4, abs=1e-6)
            assert 1 <= region.pool_rank <= region.rank <= 12
            x, y, width, height = region.box
            mask = data.dataset.read_mask(data.dataset.names.index(region.image))[y : y + height : 2, x : x + width : 2]
            assert (region.labelled == mask).all()  # label_stride is 2
            assert region.predicted.shape == mask.shape
            assert region.predicted.max() < len(step.classes)
    learned = [np.mean([(one.predicted == one.labelled).mean() for one in step.regions]) for step in steps]
    assert len(set(learned)) > 1  # no prediction is of the same network


@pytest.mark.parametrize("name", ["uniform", "rare_bald"])
def test_heuristics_tell_what_they_measured(tmp_path, name):
    acquire(tmp_path, name, options=SHORT, budgets=[4])
    (step,) = read_reasons(tmp_path / FILE)
    assert [feature.name for feature in step.features] == {"uniform": [], "rare_bald": ["entropy", "bald"]}[name]
    assert {feature.weight for feature in step.features} <= {None}
    assert all((region.pool_rank, region.predicted.shape) == (1, (16, 16)) for region in step.regions)


def test_a_network_of_pixels_that_is_no_sum_is_told_by_its_rank(tmp_path, policy_file):
    acquire(tmp_path, policy_file, options=SHORT, candidates="global")
    first = read_reasons(tmp_path / FILE)[0]
    assert (first.pools, first.pool_size, [region.rank for region in first.regions]) == (1, 36, [1, 2, 3, 4])
    assert [feature.name for feature in first.features] == ["entropy"]


def test_regions_larger_than_a_picture(tmp_path):
    acquire(tmp_path, data=small_data(layout=GridLayout(1, 1)), options=SHORT, budgets=[2], regions_per_step=2)
    (step,) = read_reasons(tmp_path / FILE)
    assert step.regions[0].predicted.shape == step.regions[0].labelled.shape == (32, 48)


def test_a_run_that_was_killed_tells_the_same(tmp_path):
    options = {"callbacks": [Photograph(1, 2)], "checkpoint_every": 1}
    acquire(tmp_path / "whole", "bald", options=options | SHORT)
    whole = (tmp_path / "whole" / FILE).read_bytes()
    for after in (1, 2):
        cut = tmp_path / f"cut {after}"
        lines = (cut / FILE).read_bytes()
        assert whole.startswith(lines)
        # a step that was told but not saved, and half a line: both are of the process that was killed
        told = json.loads(whole.splitlines()[after]) | {"policy": "not saved"}
        (cut / FILE).write_bytes(lines + json.dumps(told).encode() + b"\n" + whole[:50])
        acquire(cut, "bald", ckpt="last", options=SHORT)
        assert (cut / FILE).read_bytes() == whole


def test_files_from_strangers_are_refused(tmp_path):
    path = tmp_path / FILE
    step = {"step": 0, "policy": "x", "classes": ["a"], "spent": 0, "pools": 1, "pool_size": 1, "score": [0] * 5}
    maps = packed(torch.zeros(1, 2, 4, 4, dtype=torch.uint8))
    region = {"region": 1, "image": "a", "place": "row 0", "box": [0, 0, 1, 1], "score": 0, "rank": 1, "pool_rank": 1}
    region |= {"values": [], "below": []}
    whole = step | {"features": [], "rest": "", "regions": [region], "maps": maps}
    path.write_text(json.dumps(whole) + "\n")
    assert read_reasons(path)[0].regions[0].predicted.shape == (4, 4)
    bomb, short = maps | {"size": [1, 2, 64, 9**9]}, maps | {"size": [1, 2, 4, 5]}
    for change in ({"maps": bomb}, {"maps": short}, {"maps": 1}, {"regions": [region, region]}, {"score": [1]}):
        path.write_text(json.dumps(whole | change) + "\n")
        with pytest.raises(DataError, match=r"reasons\.jsonl: line 1 is none that ralseg has written"):
            read_reasons(path)
    for broken in (step, [1], {}):
        path.write_text(json.dumps(broken) + "\n")
        with pytest.raises(DataError, match=r"reasons\.jsonl: line 1 is"):
            read_reasons(path)
    path.write_text("no json\n")
    with pytest.raises(DataError, match="line 1 is damaged; delete the file"):
        read_reasons(path)
