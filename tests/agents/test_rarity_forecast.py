"""The rarity forecast: an agent that is told what every candidate is worth."""

import pytest
import torch

from ralseg.acquisition.features import class_histogram, rarity, smoothed
from ralseg.acquisition.scanner import Scan, scan
from ralseg.agents import RarityForecast
from ralseg.agents.replay import StepMemory
from ralseg.labels import IGNORE
from support.games import assert_same, everything, game, play, segmenter


def test_rarity_is_the_slope_of_the_sum_of_roots():
    labelled = torch.tensor([[0.7, 0.3, 0.0], [0.9, 0.0, 0.1]])
    frequency = smoothed(labelled.mean(0)).requires_grad_()
    (slope,) = torch.autograd.grad(2 * frequency.sqrt().sum(), frequency)
    histogram = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(rarity(histogram, labelled), histogram @ slope)
    assert torch.allclose(rarity(torch.eye(3), torch.empty(0, 3)), torch.tensor(3**0.5))  # no labels: all alike


def test_the_teacher_of_rarity_reads_labels_and_not_predictions(data):
    regions = torch.tensor([7, 0, 20])
    labels = data.mask_oracle("train_set").label(regions)
    labels[0, :10] = IGNORE
    labels[2] = IGNORE
    classes = len(data.class_names)
    labelled = torch.eye(classes)[:2] * 0.9 + 0.1 / classes
    found = []
    for seed in (0, 1):
        network = segmenter(seed)
        network.prepare(data)
        what = Scan(measures=("true_rarity",), batch_size=2, labelled=labelled, labels=labels)
        found.append(scan(network, data.regions("train_set"), regions, what).measures["true_rarity"])
    assert torch.equal(*found)
    assert torch.allclose(found[0], rarity(class_histogram(labels, classes), labelled))
    assert float(found[0][2]) == 0


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_every_region_gets_its_own_credit_and_the_prior_is_added(weight):
    prior = {"prior": "bald" if weight else "entropy", "prior_weight": weight}
    agent = RarityForecast(**prior, batch_size=64, shrinkage=0.0)
    agent.build(("a", "b", "c"), 12, 3, seed=0)
    width = agent.policy.representation.num_action_features(3) + 1
    features = torch.randn(60, width, generator=torch.Generator().manual_seed(0))
    worth = features[:, 2].clone()
    agent.replay.add(StepMemory(torch.empty(0, 0), features, worth, 0.0))
    optimizer = torch.optim.Adam(agent.policy.net.parameters(), 0.05)
    for number in range(300):
        batch = agent.draw(torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        agent.batch_loss(batch).backward()
        optimizer.step()
    rows = torch.zeros(1, dtype=torch.int64)
    scores = agent.policy.values(agent.policy.net, torch.empty(1, 0, 0), rows, features[None])[0].detach()
    assert torch.allclose(scores, worth + weight * features[:, -1], atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["entropy", "bald"])
def test_a_taught_policy_plays_and_resumes(tmp_path, prior):
    def agent() -> RarityForecast:
        return RarityForecast(batch_size=8, updates_per_step=2, prior=prior, prior_weight=0.5)

    rules = game(validation_plays=1)
    whole = play(tmp_path / "whole", rules, agent())
    memory = whole.fit_loop.session.agent.replay.steps[1]  # before any label, all are equally rare
    assert len(memory) == 12  # candidates, not only what was chosen
    assert abs(float(memory.value.mean())) < 1e-5
    assert float(memory.value.std()) > 0.5
    play(tmp_path / "cut", rules, agent(), max_epochs=8, checkpoint_every=8)
    resumed = play(tmp_path / "cut", rules, agent(), ckpt="last")
    assert_same(everything(whole), everything(resumed))
