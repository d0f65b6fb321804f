"""Policies that are told what every candidate is worth."""

import pytest
import torch
from test_loop import SUMMARY, assert_same, everything, game, model, play

from ralseg.data.readers import IGNORE
from ralseg.features import class_histogram, rarity, smoothed
from ralseg.measures import Hints
from ralseg.query import TAUGHT
from ralseg.replay import ReplayBuffer, StepMemory
from ralseg.representation import look_at_regions

FEATURES = {"influence": "summary+influence", "rarity": "summary+classes"}


def options(credit):
    return SUMMARY | {"features": FEATURES[credit], "standardise": True, "credit": credit, "bootstrap": False}


def test_rarity_is_the_slope_of_the_sum_of_roots():
    labelled = torch.tensor([[0.7, 0.3, 0.0], [0.9, 0.0, 0.1]])
    frequency = smoothed(labelled.mean(0)).requires_grad_()
    (slope,) = torch.autograd.grad(2 * frequency.sqrt().sum(), frequency)
    histogram = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(rarity(histogram, labelled), histogram @ slope)
    assert torch.allclose(rarity(torch.eye(3), torch.empty(0, 3)), torch.tensor(3**0.5))  # no labels: all alike


def test_the_teacher_of_rarity_reads_labels_and_not_predictions(data):
    regions = torch.tensor([7, 0, 20])
    labels = data.oracle("train_set").label(regions)
    labels[0, :10] = IGNORE
    labels[2] = IGNORE
    classes = len(data.class_names)
    labelled = torch.eye(classes)[:2] * 0.9 + 0.1 / classes
    found = []
    for seed in (0, 1):
        network = model(seed).segmenter
        network.prepare(data)
        asked = (network, data.images, data.splits.train_set, data.grid, None, regions, 2, ("true_rarity",))
        found.append(look_at_regions(*asked, hints=Hints(labels=labels, labelled=labelled)).measures["true_rarity"])
    assert torch.equal(*found)
    assert torch.allclose(found[0], rarity(class_histogram(labels, classes), labelled))
    assert float(found[0][2]) == 0


@pytest.mark.parametrize("credit", TAUGHT)
@pytest.mark.parametrize("prior", [0.0, 0.7])
def test_every_region_gets_its_own_credit_and_the_prior_is_added(credit, prior):
    query = model(**options(credit), batch_size=64, prior_weight=prior).query
    query.build(("a", "b", "c"), 12, 0)
    width = query.representation.num_action_features(3) + 1
    features = torch.randn(60, width, generator=torch.Generator().manual_seed(0))
    worth = features[:, 2].clone()
    replay = ReplayBuffer(1000)
    replay.add(StepMemory(torch.empty(0, 0), features, worth, 0.0))
    optimizer = torch.optim.Adam(query.net.parameters(), 0.05)
    for number in range(300):
        batch = query.draw_minibatch(replay, torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        query.batch_loss(batch).backward()
        optimizer.step()
    rows = torch.zeros(1, dtype=torch.int64)
    scores = query.values(query.net, torch.empty(1, 0, 0), rows, features[None])[0].detach()
    assert torch.allclose(scores, worth + prior * features[:, -1], atol=0.1)


@pytest.mark.parametrize(("credit", "prior"), [("influence", "entropy"), ("rarity", "entropy"), ("rarity", "bald")])
def test_a_taught_policy_plays_and_resumes(tmp_path, credit, prior):
    taught = options(credit) | {"updates_per_step": 2, "prior": prior, "prior_weight": 0.5}
    rules = game(validation_plays=1)
    whole = play(tmp_path / "whole", rules, model(**taught), checkpoint_every=1)
    memory = whole.fit_loop.play.replay.steps[1]  # before any label, all are equally rare
    assert len(memory) == 12  # candidates, not only what was chosen
    assert abs(float(memory.value.mean())) < 1e-5
    assert float(memory.value.std()) > 0.5
    play(tmp_path / "cut", rules, model(**taught), max_epochs=8, checkpoint_every=1)
    resumed = play(tmp_path / "cut", rules, model(**taught), ckpt="last", checkpoint_every=1)
    assert_same(everything(whole), everything(resumed))
