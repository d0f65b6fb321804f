"""Rules, pay and returns, by hand."""

import pytest
import torch

from ralseg.curves import area, compare, final_gain, finished_rounds, validation_metrics, validation_table
from ralseg.errors import ConfigError
from ralseg.game import GameConfig, PlayedStep, RewardConfig, RewardStatistics, pay, plan_episodes, remember
from ralseg.play import find_weights


def played(member, step, gain):
    return PlayedStep(member, step, gain, torch.zeros(1, 1), torch.arange(6.0).reshape(2, 3, 1), torch.tensor([2, 0]))


def test_steps_and_epsilon():
    game = GameConfig(budget=10, regions_per_step=4, epsilon_start=0.9, epsilon_end=0.05, epsilon_decay=10)
    assert game.steps_per_episode == 3
    assert game.epsilon(0) == pytest.approx(0.9)
    assert game.epsilon(10) == pytest.approx(0.05 + 0.85 / 2.718281828)
    assert game.epsilon(10_000) == pytest.approx(0.05)


def test_plan_of_the_paper_is_episode_after_episode():
    plan = plan_episodes(GameConfig(episodes=5, validation_plays=0))
    assert [(e.kind, e.role, e.draw) for e in plan] == [("train", "policy", i) for i in range(5)]


def test_plan_with_blocks_and_validation():
    game = GameConfig(episodes=6, block=["entropy", "policy", "perturbed"], validation_every=3, validation_plays=2)
    kinds = [(e.kind[0], e.role[0], e.draw, e.round) for e in plan_episodes(game)]
    baselines = [("v", role, draw, 0) for role in "ue" for draw in (0, 1)]
    block = [[("t", role, b, 0) for role in "epp"] for b in (0, 1)]
    rounds = [[("v", "p", draw, r) for draw in (0, 1)] for r in (1, 2)]
    assert kinds == baselines + block[0] + rounds[0] + block[1] + rounds[1]


def test_baselines_of_the_reward():
    steps = [
        played(member, step, gain) for member, gains in enumerate(([1, 2], [3, 6])) for step, gain in enumerate(gains)
    ]
    block = ["uniform", "policy"]

    def paid(**options):
        return pay(steps, RewardConfig(**options), block, RewardStatistics(2))

    assert paid() == [1, 2, 3, 6]
    assert paid(scale=100) == [100, 200, 300, 600]
    assert paid(baseline="block") == [-1, -2, 1, 2]
    assert paid(baseline="uniform_twin") == [0, 0, 2, 4]
    assert paid(baseline="step_mean") == [1, 2, 2, 4]  # against the mean of what was seen before


@pytest.mark.parametrize(
    ("horizon", "values", "discounts"),
    [(1, [1, 2, 4], [0.5, 0.5, 0.5]), (2, [2, 4, 4], [0.25, 0.25, 0.5]), (9, [3, 4, 4], [0.125, 0.25, 0.5])],
)
def test_returns(horizon, values, discounts):
    steps = [played(0, step, 0.0) for step in range(3)]
    memories = remember(steps, [1, 2, 4], horizon, gamma=0.5, bootstrap=True)
    assert [m.value for m in memories] == values
    assert [m.discount for m in memories] == discounts
    for t, memory in enumerate(memories):
        follows = t + horizon < 3
        assert (memory.next_actions is not None) == follows
        if follows:
            assert memory.next_actions is steps[t + horizon].actions  # shared, not copied
        assert memory.chosen.flatten().tolist() == [2.0, 3.0]
    assert all(m.next_actions is None for m in remember(steps, [1, 2, 4], horizon, 0.5, bootstrap=False))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, r"trainer\.game\.budget=0 must be at least 1"),
        ({"block": []}, "block is empty"),
        ({"episodes": 5, "block": ["policy", "entropy"]}, "must be a multiple of the block's 2"),
        ({"reward": RewardConfig(baseline="uniform_twin")}, "needs one 'uniform'"),
        ({"reward": RewardConfig(baseline="block")}, "needs at least two episodes"),
        ({"reward": RewardConfig(average=0.0)}, r"average=0\.0 must lie in \(0, 1\]"),
    ],
)
def test_impossible_rules_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        GameConfig(**options)


def test_weights_are_found_by_pattern_or_missed_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        (tmp_path / f"seed{seed}").mkdir()
        (tmp_path / f"seed{seed}" / "best.ckpt").touch()
    assert [p.parent.name for p in find_weights(["seed[01]/best.ckpt"], "x")] == ["seed0", "seed1"]
    assert len(find_weights([str(tmp_path / "seed*/best.ckpt")], "x")) == 3
    with pytest.raises(ConfigError, match=r"trainer\.game\.initial_weights: no checkpoint at 'no\.ckpt'"):
        find_weights(["no.ckpt"], "initial_weights")


def record(role, draw, miou, number=0, round_number=0):
    return {"kind": "validation", "role": role, "draw": draw, "round": round_number, "miou": miou, "number": number}


def test_comparison_is_paired_by_draw():
    history = [record("uniform", d, [0.2 + d / 10, 0.21 + d / 10, 0.22 + d / 10]) for d in (0, 1)]
    history += [record("policy", d, [0.2 + d / 10, 0.23 + d / 10, 0.24 + d / 10 + d / 100], 5, 1) for d in (0, 1)]
    assert area(history[0]) == pytest.approx(1.5)
    assert final_gain(history[0]) == pytest.approx(2)
    result = compare({r["draw"]: r for r in history[2:]}, {r["draw"]: r for r in history[:2]})
    assert result.mean == pytest.approx((2.0 + 2.5) / 2)
    assert result.error == pytest.approx(0.25)
    assert finished_rounds(history, 2) == [1]
    assert validation_metrics(history, 1)["validation/auc_minus_uniform"] == pytest.approx(result.mean)
    assert validation_table(history, 2).row_count == 2
