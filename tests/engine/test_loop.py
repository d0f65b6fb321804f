"""The loop under Lightning: order of events, exactness, resuming, and what users of Lightning expect."""

import csv
import json
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loops.fit_loop import _FitLoop

from ralseg.agents.loading import load_policy
from ralseg.engine import FitTrainer
from ralseg.engine.loop import result_of, saved_session
from ralseg.errors import ConfigError, RalsegError
from ralseg.labels import GridLayout
from ralseg.runtime.checkpoints import read_checkpoint
from support.data import small_data
from support.games import Photograph, acquire, assert_same, blocks, dqn, everything, game, play, segmenter

SUMMARY = {"features": "summary", "use_gate": False, "use_state": False, "norm": "none"}


def test_lightning_still_has_what_the_loop_overrides():
    for name in ("setup_data", "on_run_start", "on_advance_start", "advance", "on_advance_end"):
        assert callable(getattr(_FitLoop, name))
    loop = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu").fit_loop
    for name in ("epoch_loop", "epoch_progress", "max_batches", "min_epochs", "max_epochs"):
        assert hasattr(loop, name)
    assert hasattr(loop.epoch_loop, "val_loop")


def test_a_game_from_start_to_end(tmp_path):
    trainer = play(tmp_path, game(), draws=True)
    history = trainer.fit_loop.session.history
    assert [r["kind"] for r in history].count("train") == 4
    assert trainer.current_epoch == len(history) * 3
    for record in history:
        assert record["labelled"] == 10  # exactly, though 4 does not divide 10
        assert len(record["miou"]) == 4
        assert all(0 <= m <= 1 for m in record["miou"])
    files = sorted((tmp_path / "episodes").iterdir())
    assert len(files) == len(history)
    rows = list(csv.DictReader(files[-1].open()))
    assert [row["step"] for row in rows] == ["0"] * 4 + ["1"] * 4 + ["2"] * 2
    places = {(row["image"], row["x"], row["y"]) for row in rows}
    assert len(places) == 10
    assert json.loads((tmp_path / "history.json").read_text()) == json.loads(json.dumps(history))
    assert (tmp_path / "learning_curve.png").stat().st_size > 10_000
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt", "last.previous.ckpt"}


def test_every_episode_starts_from_theta_0_exactly(tmp_path):
    starts = []

    class Watch(pl.Callback):
        def on_train_epoch_start(self, trainer, module):
            game = trainer.fit_loop.session
            if game.step == 0:
                weights = module.segmenter.state_dict()
                starts.append({k: v.clone() for k, v in weights.items()})
                assert not module.segmenter_optimizer.optimizer.state
                assert len(game.ledger) == 4  # this step's regions and no others

    trainer = play(tmp_path, game(), callbacks=[Watch()])
    assert len(starts) == len(trainer.fit_loop.session.history)
    for start in starts:
        assert all(torch.equal(start[k], starts[0][k]) for k in starts[0])
    moved = trainer.lightning_module.segmenter.state_dict()
    assert any(not torch.equal(moved[k], starts[0][k]) for k in moved)
    first = {r["miou"][0] for r in trainer.fit_loop.session.history}
    assert len(first) == 1  # theta_0's own score, not 0
    assert first.pop() > 0


def test_blocks_share_their_luck_and_differ_in_the_policy(tmp_path):
    rules = game(episodes=4, validation_every=100, weight_average=0.25)
    agent = blocks(prior_weight=1.0, epsilon_start=0.0, epsilon_end=0.0, updates_per_step=0)
    history = play(tmp_path, rules, agent).fit_loop.session.history
    train = [r for r in history if r["kind"] == "train"]
    # an untrained correction is entropy: with the same draws, flips and dropout, the same game to the last bit
    for entropy, policy in zip(train[::2], train[1::2], strict=True):
        assert entropy["miou"] == policy["miou"]
    assert train[0]["miou"] != train[2]["miou"]
    games = {(r["role"], r["draw"]): r["miou"] for r in history if r["kind"] == "validation"}
    assert games["policy", 0] == games["entropy", 0] != games["uniform", 0]


AGENTS = {
    "dqn": ({}, partial(dqn, replay_size=40)),
    "n-step dqn": ({}, partial(dqn, **SUMMARY, n_steps=2, prior_weight=0.5)),
    "blocks": ({"weight_average": 0.5}, blocks),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", AGENTS)
def test_a_run_that_was_cut_off_ends_like_one_that_was_not(tmp_path, kind):
    changes, agent = AGENTS[kind]
    rules, stops = game(**changes), (8, 15, 23)  # each a step or two after a checkpoint
    whole = play(tmp_path / "whole", rules, agent(), checkpoint_every=7, callbacks=[Photograph(*stops)])
    expected = everything(whole)
    for stop in stops:
        resumed = play(tmp_path / f"cut {stop}", rules, agent(), ckpt="last")
        assert whole.current_epoch == resumed.current_epoch > stop
        assert_same(expected, everything(resumed), f"cut at {stop}")


def test_a_game_with_other_rules_does_not_go_on(tmp_path):
    play(tmp_path, game(), max_epochs=5, checkpoint_every=1)
    with pytest.raises(ConfigError, match="other rules: pool_size differ"):
        play(tmp_path, game(pool_size=2), ckpt="last")
    with pytest.raises(ConfigError, match=r"other rules: .*budget"):
        play(tmp_path, game(budget=12), ckpt="last")
    with pytest.raises(ConfigError, match="another policy: prior: 'entropy' in the checkpoint, 'bald' here"):
        play(tmp_path, game(), dqn(prior="bald", prior_weight=0.5), ckpt="last")


def test_validation_never_starts_from_weights_that_were_trained_on(tmp_path):
    trainer = pl.Trainer(default_root_dir=tmp_path, max_epochs=0, logger=False, accelerator="cpu")
    trainer.fit(segmenter(), datamodule=small_data())
    trainer.save_checkpoint(tmp_path / "w.ckpt")
    weights = [str(tmp_path / "w.ckpt")]
    with pytest.raises(ConfigError, match=r"w\.ckpt is among initial_weights too"):
        play(tmp_path / "run", game(initial_weights=weights, validation_weights=weights))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({"class_weights": "inverse_sqrt"}, {}, "class weights come with theta_0"),
        ({"scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1)}, {}, "no learning-rate schedule"),
        ({}, {"precision": "16-mixed"}, "use bf16-mixed"),
        ({}, {"precision": "bf16-true"}, r"precision=bf16-true would take digits from the agent.*use bf16-mixed"),
    ],
)
def test_options_that_the_game_would_ignore_are_refused(tmp_path, model, options, message):
    with pytest.raises(ConfigError, match=message):
        play(tmp_path, game(), model=segmenter(**model), **options)


def test_without_a_state_path_no_state_is_kept(tmp_path):
    rules = game(episodes=2, validation_plays=0)
    trainer = play(tmp_path, rules, dqn(**SUMMARY))
    steps = trainer.fit_loop.session.agent.replay.steps
    assert steps
    assert all(step.state.numel() == 0 for step in steps)
    assert trainer.datamodule.trains_on_fit_images


def test_checkpoints_hold_plain_data_and_say_what_the_policy_is(tmp_path):
    play(tmp_path, game())
    content = read_checkpoint(tmp_path / "checkpoints/best.ckpt")
    policy = content["ralseg"]["policy"]
    assert policy["class_path"] == "ralseg.QueryNetwork"
    assert policy["init_args"]["features"] == "3H+KL"
    assert policy["fits"]["num_state_regions"] == 12
    assert policy["fits"]["class_names"][0] == "sky"
    assert "loops" in content


@pytest.mark.parametrize("plays", [0, 2])
def test_the_policy_alone_is_left_in_a_small_file(tmp_path, plays):
    trainer = play(tmp_path, game(validation_plays=plays))
    alone = read_checkpoint(tmp_path / "policy.ckpt")
    whole = (
        read_checkpoint(tmp_path / "checkpoints/best.ckpt")
        if plays
        else {"state_dict": trainer.lightning_module.state_dict()}
    )
    saved = {name: weight for name, weight in whole["state_dict"].items() if name.startswith("agent.policy.")}
    assert_same({f"agent.policy.{name}": weight for name, weight in alone["state_dict"].items()}, saved)
    assert any(name.startswith("net.") for name in alone["state_dict"])
    assert load_policy(tmp_path / "policy.ckpt", trainer.datamodule).needs.state


def test_a_run_that_was_cut_off_leaves_no_policy(tmp_path):
    play(tmp_path, game(), max_epochs=2)
    assert not (tmp_path / "policy.ckpt").exists()


def test_best_is_the_best_round(tmp_path):
    trainer = play(tmp_path, game())
    rounds = trainer.fit_loop.session.rounds()
    assert len(rounds) == 2
    kept = saved_session(read_checkpoint(tmp_path / "checkpoints/best.ckpt"))["history"]
    finished = max(r["round"] for r in kept)
    assert rounds[finished - 1] == max(rounds)


@pytest.mark.parametrize(("budget", "per_step", "pool"), [(36, 4, 3), (36, 30, 20), (5, 8, 100), (1, 1, 1)])
def test_small_sets_and_odd_budgets(tmp_path, budget, per_step, pool):
    rules = game(budget=budget, regions_per_step=per_step, pool_size=pool, episodes=1, validation_plays=0)
    trainer = play(tmp_path, rules, dqn(batch_size=2))
    assert trainer.fit_loop.session.history[0]["labelled"] == budget


def test_a_budget_beyond_the_set_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.game\.budget=37 exceeds the 36 regions of the train_set"):
        play(tmp_path, game(budget=37))


def test_weights_of_another_network_are_refused_by_name(tmp_path):
    trainer = pl.Trainer(default_root_dir=tmp_path, max_epochs=0, logger=False, accelerator="cpu")
    trainer.fit(segmenter(pyramid_channels=64), datamodule=small_data())
    trainer.save_checkpoint(tmp_path / "other.ckpt")
    rules = game(initial_weights=[str(tmp_path / "other.ckpt")])
    with pytest.raises(ConfigError, match=r"does not fit.*pyramid_channels: 64 in the checkpoint, 32 here"):
        play(tmp_path / "run", rules)


def test_a_run_goes_on_with_its_own_agent_and_segmenter_only(tmp_path):
    play(tmp_path, game(episodes=2, validation_plays=0))
    longer = game(episodes=4, validation_plays=0)
    with pytest.raises(ConfigError, match="the checkpoint is of an agent with another policy"):
        play(tmp_path, longer, blocks(), ckpt="last")
    with pytest.raises(ConfigError, match="pyramid_channels: 32 in the checkpoint, 64 here"):
        play(tmp_path, longer, model=segmenter(pyramid_channels=64), ckpt="last")


def test_a_player_that_does_not_exist_is_refused_before_anything_is_played(tmp_path):
    with pytest.raises(ConfigError, match="agent block: 'entropie' is neither 'policy' nor one of bald"):
        play(tmp_path, game(), blocks(block=["entropie", "policy"]))
    with pytest.raises(ConfigError, match=r"episodes=4 must be a multiple of 3, the number of episodes"):
        play(tmp_path, game(), blocks(block=["entropy", "policy", "perturbed"]))
    assert not (tmp_path / "splits.json").exists()


def test_heuristics_of_a_block_do_not_explore(tmp_path):
    rules = game(episodes=2, validation_plays=0)
    trainer = play(tmp_path, rules, blocks(block=["margin", "policy"], epsilon_start=1.0, epsilon_end=1.0))
    assert [record["epsilon"] for record in trainer.fit_loop.session.history] == [0.0, 1.0]


def test_a_run_that_reached_its_limit_can_be_repeated(tmp_path):
    for _ in range(2):
        trainer = play(tmp_path, game(), max_epochs=4, checkpoint_every=1, ckpt="last")
        assert trainer.current_epoch == 4
    assert not (tmp_path / "policy.ckpt").exists()
    play(tmp_path, game(), ckpt="last")
    assert (tmp_path / "policy.ckpt").exists()


def test_a_checkpoint_of_fit_is_none_of_acquire(tmp_path):
    play(tmp_path / "fit", game(episodes=2, validation_plays=0))
    with pytest.raises(ConfigError, match="this checkpoint is not of `ralseg acquire`"):
        acquire(tmp_path / "acquire", ckpt=str(tmp_path / "fit/checkpoints/last.ckpt"))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    model = segmenter(optimizer=lambda p: torch.optim.SGD(p, lr=float("inf")))
    with pytest.raises(RalsegError, match=r"not finite.*episode 0, step"):
        play(tmp_path, game(), model=model)


@pytest.mark.parametrize(
    ("agent", "lr", "is_told"),
    [(dqn, 100, True), (blocks, 100, False), (dqn, 1e-3, False)],
    ids=["drifts", "regresses", "learns slowly"],
)
def test_bootstrapped_values_that_drift_are_told_once(tmp_path, caplog, agent, lr, is_told):
    learner = agent(optimizer=lambda p: torch.optim.SGD(p, lr=lr))
    play(tmp_path, game(validation_plays=0), learner)
    if is_told:
        learner._warn_of_drift(1e6)
    told = [record.getMessage() for record in caplog.records if "have drifted" in record.getMessage()]
    assert len(told) == is_told
    assert all("updates the query network" in message and "agent ralseg.PairedBlocks" in message for message in told)


def test_flags_that_break_the_game_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.check_val_every_n_epoch=3"):
        FitTrainer(game(), check_val_every_n_epoch=3)
    with pytest.raises(ConfigError, match="limit_val_batches=0"):
        FitTrainer(game(), limit_val_batches=0)


def test_fast_dev_run_is_one_step_and_writes_nothing(tmp_path):
    trainer = play(tmp_path / "run", game(), fast_dev_run=True)
    assert trainer.current_epoch == 1
    assert not (tmp_path / "run").exists()


def test_whole_images_are_a_grid_of_one(tmp_path):
    rules = game(budget=4, regions_per_step=2, pool_size=2, episodes=1, validation_plays=0)
    trainer = play(tmp_path, rules, dqn(batch_size=2), data=small_data(layout=GridLayout(1, 1)))
    assert trainer.fit_loop.session.history[0]["labelled"] == 4


def test_metrics_reach_loggers_and_callbacks(tmp_path):
    seen = []

    class Listen(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            seen.append(dict(trainer.callback_metrics))

    play(tmp_path, game(), logger=CSVLogger(tmp_path / "csv"), callbacks=[Listen()])
    table = next((tmp_path / "csv").rglob("metrics.csv")).read_text().splitlines()[0]
    for name in ("train/miou", "train/gain", "query/loss", "query/epsilon", "validation/auc", "train/return"):
        assert name in table
    assert any("validation/auc" in metrics for metrics in seen)


def test_every_step_leaves_its_result_on_the_loop(tmp_path):
    seen = []

    class Listen(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            seen.append(result_of(trainer))

    trainer = play(tmp_path, game(), callbacks=[Listen()])
    history = trainer.fit_loop.session.history
    assert trainer.fit_loop.result is seen[-1]
    assert [result.axis for result in seen] == list(range(len(history) * 3))
    assert [result.labelled for result in seen] == [4, 8, 10] * len(history)
    assert [result.kind for result in seen[::3]] == [record["kind"] for record in history]
    for result in seen:
        assert result.metrics[f"{result.kind}/labelled"] == result.labelled
        assert result.seconds > 0
        assert (result.episode is not None) == (result.news is not None) == (result.labelled == 10)
        assert not result.is_budget  # an episode has none
    ended = [result.episode for result in seen if result.episode is not None]
    assert [episode.record for episode in ended] == history
    assert all(len(set(episode.regions.tolist())) == 10 for episode in ended)
    assert [len(result.rounds) for result in seen if result.episode is not None and result.episode.round_metrics] == [
        1,
        2,
    ]
