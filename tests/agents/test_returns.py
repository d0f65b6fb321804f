"""Rewards, returns and exploration of agents, by hand."""

from types import SimpleNamespace

import pytest
import torch

from ralseg.agents import DQN, PairedBlocks, PlayedStep, RarityForecast
from ralseg.errors import ConfigError


def played(member, step, gain):
    return PlayedStep(member, step, gain, torch.zeros(1, 1), torch.arange(6.0).reshape(2, 3, 1), torch.tensor([2, 0]))


@pytest.mark.parametrize("kind", [DQN, PairedBlocks, RarityForecast])
def test_exploration_falls_to_its_end(kind):
    agent = kind(epsilon_start=0.9, epsilon_end=0.05, epsilon_decay=10)
    assert agent.epsilon(0) == pytest.approx(0.9)
    assert agent.epsilon(10) == pytest.approx(0.05 + 0.85 / 2.718281828)
    assert agent.epsilon(10_000) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("horizon", "values", "discounts"),
    [(1, [1, 2, 4], [0.5, 0.5, 0.5]), (2, [2, 4, 4], [0.25, 0.25, 0.5]), (9, [3, 4, 4], [0.125, 0.25, 0.5])],
)
@pytest.mark.parametrize("scale", [1, 100])
def test_returns_of_dqn(horizon, values, discounts, scale):
    agent = DQN(n_steps=horizon, gamma=0.5, reward_scale=scale)
    steps = [played(0, step, gain) for step, gain in enumerate([1, 2, 4])]
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        agent.remember(step, after and SimpleNamespace(state=after.state, actions=after.actions))
    assert [m.value for m in agent.waiting] == [scale * value for value in values]
    assert [m.discount for m in agent.waiting] == discounts
    for t, memory in enumerate(agent.waiting):
        follows = t + horizon < 3
        assert (memory.next_actions is not None) == follows
        if follows:
            assert memory.next_actions is steps[t + horizon].actions  # shared, not copied
        assert memory.chosen.flatten().tolist() == [2.0, 3.0]
    assert agent.episode == []


@pytest.mark.parametrize(("gamma", "returns"), [(0.0, [-100, -200, 100, 200]), (0.5, [-200, -200, 200, 200])])
def test_a_block_is_paid_for_what_it_gains_over_its_mean(gamma, returns):
    agent = PairedBlocks(block=["uniform", "policy"], gamma=gamma)
    for member, gains in enumerate(([1, 2], [3, 6])):
        for step, gain in enumerate(gains):
            assert agent.waiting == []  # nothing before the block is complete
            agent.remember(played(member, step, gain), None if step else object())
    seen, expected = 0.0, []
    for number, value in enumerate(returns, 1):
        seen += value**2
        expected.append(value / (seen / number) ** 0.5)  # in deviations of all returns so far
    assert [m.value for m in agent.waiting] == pytest.approx(expected)
    assert all(m.next_actions is None for m in agent.waiting)
    assert all(m.chosen.flatten().tolist() == [2.0, 3.0] for m in agent.waiting)
    assert agent.played == []


def test_a_block_that_was_cut_off_goes_on():
    whole, cut = (PairedBlocks(block=["uniform", "policy"]) for _ in range(2))
    first, second = ([played(m, step, m + step / 7) for step in range(3)] for m in range(2))
    for step in first + second:
        whole.remember(step, None if step.step == 2 else object())
    for step in [*first, second[0]]:
        cut.remember(step, None if step.step == 2 else object())
    resumed = PairedBlocks(block=["uniform", "policy"])
    resumed.load_memory(cut.memory())
    for step in second[1:]:
        resumed.remember(step, None if step.step == 2 else object())
    assert [m.value for m in resumed.waiting] == [m.value for m in whole.waiting]


def test_impossible_options_are_refused():
    with pytest.raises(ConfigError, match="must name at least two players"):
        PairedBlocks(block=["policy"])
    with pytest.raises(ConfigError, match="n_steps=0 must be at least 1"):
        DQN(n_steps=0)
