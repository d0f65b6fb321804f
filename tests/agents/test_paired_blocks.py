"""Regression on paired blocks: the mean of a step, shrinkage, and perturbed players."""

import pytest
import torch

from ralseg.acquisition.heuristics import Entropy
from ralseg.agents import Episode, PairedBlocks
from ralseg.agents.perturbed import Perturbed
from ralseg.agents.replay import collate
from ralseg.errors import ConfigError
from support.agents import built, memory, network, observation

CPU = torch.device("cpu")


def blocks(**options) -> PairedBlocks:
    return built(PairedBlocks(**({"prior_weight": 0.0, "shrinkage": 0.0} | options)))


def test_a_minibatch_regresses_the_mean_of_each_step():
    agent = blocks(batch_size=8)
    for i in range(6):
        agent.replay.add(memory(agent.policy, i, float(i), follow=False))
    batch = agent.draw(torch.Generator().manual_seed(0))
    assert batch.actions.shape[1] == 2
    with torch.no_grad():
        predicted = agent.policy.values(agent.policy.net, batch.states, batch.which, batch.actions).mean(1)
    loss = float(agent.batch_loss(batch).detach())
    assert loss == pytest.approx(float((predicted - batch.value).square().mean()), rel=1e-5)


def test_unequal_steps_count_by_the_mean_of_each():
    agent = blocks()
    policy = agent.policy
    steps = [memory(policy, 0, 1.0, follow=False, pools=5), memory(policy, 1, 2.0, follow=False, pools=1)]
    batch = collate([(step, step.chosen, 0) for step in steps], 2, CPU)
    zero = torch.zeros(1, dtype=torch.int64)
    means = [float(policy.values(policy.net, s.state[None], zero, s.chosen[None]).mean()) for s in steps]
    expected = ((means[0] - 1) ** 2 + (means[1] - 2) ** 2) / 2
    assert float(agent.batch_loss(batch)) == pytest.approx(expected, rel=1e-4)


def test_shrinkage_fades_with_experience():
    agent = blocks(shrinkage=10.0)
    step = memory(agent.policy, 0)
    rows = [(step, step.chosen[:1], 0), (step, step.chosen[1:], 1)]
    losses = [float(agent.batch_loss(collate(rows, experience, CPU))) for experience in (1, 10, 10**9)]
    penalty = 10 * sum(float(p.square().sum()) for p in agent.policy.net.parameters())
    assert penalty > 0
    assert losses[0] - losses[2] == pytest.approx(penalty, rel=0.02)
    assert losses[1] - losses[2] == pytest.approx(penalty / 10, rel=0.02)


def test_perturbations_come_in_opposite_pairs():
    policy = network(prior_weight=1.0)
    seen, any_generator = observation(policy, pools=40, size=5), torch.Generator()
    own = policy.scores(seen, any_generator)
    up, down = (
        Perturbed(policy, 0.5, torch.Generator().manual_seed(7), sign).scores(seen, any_generator) for sign in (1, -1)
    )
    centre = (own - own.mean()) / own.std(correction=0)
    assert torch.allclose((up + down) / 2, centre, atol=1e-4)
    assert float(((up - down) / 2).std(correction=0)) == pytest.approx(0.5, rel=1e-3)


def test_the_players_of_a_block():
    agent = blocks(block=["entropy", "policy", "perturbed", "perturbed", "perturbed"], prior_weight=0.5)
    players = [agent.player(Episode("train", role, 3, i), seed=1) for i, role in enumerate(agent.block)]
    assert isinstance(players[0], Entropy)
    assert players[1] is agent.policy
    assert [player.sign for player in players[2:]] == [1, -1, 1]
    seeds = [player.direction_seed for player in players[2:]]
    assert seeds[0] == seeds[1] != seeds[2]
    other = agent.player(Episode("train", "perturbed", 4, 2), seed=1)
    assert other.direction_seed != seeds[0]  # another block strays elsewhere


def test_a_block_compares_and_knows_its_players():
    with pytest.raises(ConfigError, match="must name at least two players"):
        PairedBlocks(block=["policy"])
    with pytest.raises(ConfigError, match="'nobody' is neither 'policy' nor one of bald"):
        blocks().player(Episode("train", "nobody", 0), seed=0)
