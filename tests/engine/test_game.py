"""Rules, plans of episodes, and what validation says, by hand."""

import pytest

from ralseg.engine.game import Game, find_weights, independent_until, plan_episodes
from ralseg.engine.learning_curves import (
    area,
    compare,
    final_gain,
    finished_rounds,
    validation_metrics,
    validation_table,
)
from ralseg.errors import ConfigError


@pytest.mark.parametrize(("budget", "steps"), [(10, 3), (8, 2), (1, 1)])
def test_steps_of_an_episode(budget, steps):
    assert Game(budget=budget, regions_per_step=4).steps_per_episode == steps


def test_plan_of_the_paper_is_episode_after_episode():
    plan = plan_episodes(Game(episodes=5, validation_plays=0), ["policy"])
    assert [(e.kind, e.role, e.draw) for e in plan] == [("train", "policy", i) for i in range(5)]


def test_plan_with_blocks_and_validation():
    game = Game(episodes=6, validation_every=3, validation_plays=2)
    kinds = [(e.kind[0], e.role[0], e.draw, e.round) for e in plan_episodes(game, ["entropy", "policy", "perturbed"])]
    baselines = [("v", role, draw, 0) for role in "ue" for draw in (0, 1)]
    block = [[("t", role, b, 0) for role in "epp"] for b in (0, 1)]
    rounds = [[("v", "p", draw, r) for draw in (0, 1)] for r in (1, 2)]
    assert kinds == baselines + block[0] + rounds[0] + block[1] + rounds[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, r"trainer\.game\.budget=0 must be at least 1"),
        ({"regions_per_step": 0}, r"trainer\.game\.regions_per_step=0 must be at least 1"),
        ({"weight_average": 0.0}, r"weight_average=0\.0 must lie in \(0, 1\]"),
    ],
)
def test_impossible_rules_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Game(**options)


@pytest.mark.parametrize(("group", "ends"), [(1, [6, 8, 12, 14, 16]), (2, [8, 14, 16]), (4, [14, 16])])
def test_games_of_a_group_do_not_depend_on_each_other(group, ends):
    rules = Game(episodes=8, validation_every=4, validation_plays=2)
    plan = plan_episodes(rules, ["plus", "minus"])
    kinds = "".join(episode.kind[0] for episode in plan)
    assert kinds == "vvvv" + "tttt" + "vv" + "tttt" + "vv"
    until, found = 0, []
    while until < len(plan):
        until = independent_until(plan, until, group)
        found.append(until)
    assert found == ends


@pytest.mark.parametrize("block", [[], ["policy", "entropy"]])
def test_episodes_that_blocks_do_not_divide_are_refused(block):
    message = f"episodes=5 must be a multiple of {len(block)}, the number of episodes"
    with pytest.raises(ConfigError, match=message):
        plan_episodes(Game(episodes=5), block)


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
