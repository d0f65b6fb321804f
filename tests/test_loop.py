"""The loop under Lightning: order of events, exactness, resuming, and what users of Lightning expect."""

import csv
import json
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from conftest import small_data
from lightning.pytorch.loops.fit_loop import _FitLoop

from ralseg.al_trainer import ActiveLearningTrainer
from ralseg.checkpoints import read_checkpoint
from ralseg.cli import main
from ralseg.errors import ConfigError, RalsegError
from ralseg.find_policy import load_policy
from ralseg.game import GameConfig, RewardConfig
from ralseg.query import QueryNetwork
from ralseg.ralis import Ralis
from ralseg.segmenter import FPNSegmenter

SUMMARY = {"features": "summary", "use_gate": False, "use_state": False, "linear": True, "batch_norm": False}


def game(**changes) -> GameConfig:
    """36 regions in 6 images; an episode labels 10 of them in steps of 4, 4 and 2."""
    options = {
        "budget": 10,
        "regions_per_step": 4,
        "pool_size": 3,
        "episodes": 4,
        "validation_plays": 2,
        "validation_every": 2,
        "epsilon_decay": 10.0,
    }
    return GameConfig(**(options | changes))


def model(seed=0, segmenter=None, names=None, **query) -> Ralis:
    torch.manual_seed(seed)
    options = {
        "encoder": "tu-test_resnet",
        "encoder_weights": "none",
        "pyramid_channels": 32,
        "segmentation_channels": 32,
        "freeze_encoder": True,
        "cache_features": True,
        "label_stride": 2,
    }
    options |= {"optimizer": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)} | (segmenter or {})
    names = names or small_data().class_names
    return Ralis(FPNSegmenter(names, **options), QueryNetwork(**({"batch_size": 8} | query)))


def play(folder, rules, ralis=None, ckpt=None, data=None, **options):
    """Run a whole game and return its trainer."""
    defaults = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = ActiveLearningTrainer(rules, default_root_dir=str(folder), **(defaults | options))
    trainer.fit(ralis or model(), datamodule=data or small_data(flip=True), ckpt=ckpt)
    return trainer


def test_lightning_still_has_what_the_loop_overrides():
    for name in ("setup_data", "on_run_start", "on_advance_start", "advance", "on_advance_end"):
        assert callable(getattr(_FitLoop, name))
    loop = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu").fit_loop
    for name in ("epoch_loop", "epoch_progress", "max_batches", "min_epochs", "max_epochs"):
        assert hasattr(loop, name)
    assert hasattr(loop.epoch_loop, "val_loop")


def test_a_game_from_start_to_end(tmp_path):
    trainer = play(tmp_path, game())
    history = trainer.fit_loop.play.history
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
            game = trainer.fit_loop.play
            if game.step == 0:
                weights = module.segmenter.state_dict()
                starts.append({k: v.clone() for k, v in weights.items()})
                assert not module.segmenter_optimizer.optimizer.state
                assert len(game.ledger) == 4  # this step's regions and no others

    trainer = play(tmp_path, game(), callbacks=[Watch()])
    assert len(starts) == len(trainer.fit_loop.play.history)
    for start in starts:
        assert all(torch.equal(start[k], starts[0][k]) for k in starts[0])
    moved = trainer.lightning_module.segmenter.state_dict()
    assert any(not torch.equal(moved[k], starts[0][k]) for k in moved)
    first = {r["miou"][0] for r in trainer.fit_loop.play.history}
    assert len(first) == 1  # theta_0's own score, not 0
    assert first.pop() > 0


def test_blocks_share_their_luck_and_differ_in_the_policy(tmp_path):
    rules = game(
        episodes=4, block=["entropy", "policy"], validation_every=100, epsilon_start=0.0, epsilon_end=0.0,
        reward=RewardConfig(baseline="block", scale=100, average=0.25, normalise=True),
    )  # fmt: skip
    ralis = model(**SUMMARY, standardise=True, prior_weight=1.0, returns="monte_carlo", bootstrap=False,
                  credit="step", updates_per_step=0)  # fmt: skip
    history = play(tmp_path, rules, ralis).fit_loop.play.history
    train = [r for r in history if r["kind"] == "train"]
    # an untrained correction is entropy: with the same draws, flips and dropout, the same game to the last bit
    for entropy, policy in zip(train[::2], train[1::2], strict=True):
        assert entropy["miou"] == policy["miou"]
    assert train[0]["miou"] != train[2]["miou"]
    games = {(r["role"], r["draw"]): r["miou"] for r in history if r["kind"] == "validation"}
    assert games["policy", 0] == games["entropy", 0] != games["uniform", 0]


def everything(trainer):
    play = trainer.fit_loop.play
    state = play.state_dict()
    for record in state["history"]:
        record.pop("seconds")
    state.pop("seconds")
    weights = dict(trainer.lightning_module.state_dict())
    optimizers = [o.state_dict() for o in trainer.optimizers]
    return {"play": state, "weights": weights, "optimizers": optimizers}


def assert_same(one, two, where=""):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, two), where
    elif isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_same(one[key], two[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(two), where
        for position, (a, b) in enumerate(zip(one, two, strict=True)):
            assert_same(a, b, f"{where}[{position}]")
    else:
        assert one == two or (one != one and two != two), where


DQN = {"replay_size": 40}
BLOCKS = {"block": ["entropy", "policy"], "reward": RewardConfig(baseline="block", average=0.5)}
REGRESSION = {**SUMMARY, "returns": "n_step", "n_steps": 2, "bootstrap": False, "prior_weight": 0.5}


@pytest.mark.parametrize(("rules", "query"), [({}, DQN), (BLOCKS, REGRESSION)], ids=["dqn", "blocks"])
@pytest.mark.parametrize("stop", [7, 13, 20])
def test_a_run_that_was_cut_off_ends_like_one_that_was_not(tmp_path, rules, query, stop):
    rules = game(**rules)
    whole = play(tmp_path / "whole", rules, model(**query), checkpoint_every=1)
    play(tmp_path / "cut", rules, model(**query), max_epochs=stop, checkpoint_every=1)
    resumed = play(tmp_path / "cut", rules, model(**query), ckpt="last", checkpoint_every=1)
    assert whole.current_epoch == resumed.current_epoch > stop
    assert_same(everything(whole), everything(resumed))


def test_a_game_with_other_rules_does_not_go_on(tmp_path):
    play(tmp_path, game(), max_epochs=5, checkpoint_every=1)
    with pytest.raises(ConfigError, match="other rules: pool_size differ"):
        play(tmp_path, game(pool_size=2), ckpt="last")
    with pytest.raises(ConfigError, match=r"other rules: .*budget"):
        play(tmp_path, game(budget=12), ckpt="last")
    with pytest.raises(ConfigError, match="other rules: prior differ"):
        play(tmp_path, game(), model(prior="bald", prior_weight=0.5), ckpt="last")


def test_a_run_of_before_the_prior_could_be_chosen_goes_on(tmp_path):
    play(tmp_path, game(), max_epochs=5, checkpoint_every=1)
    file = tmp_path / "checkpoints" / "last.ckpt"
    saved = read_checkpoint(file)
    del saved["loops"]["fit_loop"]["state_dict"]["play"]["rules"]["prior"]
    torch.save(saved, file)
    assert play(tmp_path, game(), ckpt="last").fit_loop.play.is_over


def test_validation_never_starts_from_weights_that_were_trained_on(tmp_path):
    trainer = pl.Trainer(default_root_dir=tmp_path, max_epochs=0, logger=False, accelerator="cpu")
    trainer.fit(model().segmenter, datamodule=small_data())
    trainer.save_checkpoint(tmp_path / "w.ckpt")
    weights = [str(tmp_path / "w.ckpt")]
    with pytest.raises(ConfigError, match=r"w\.ckpt is among initial_weights too"):
        play(tmp_path / "run", game(initial_weights=weights, validation_weights=weights))


@pytest.mark.parametrize(
    ("segmenter", "options", "message"),
    [
        ({"class_weights": "inverse_sqrt"}, {}, "class weights come with theta_0"),
        ({"scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1)}, {}, "no learning-rate schedule"),
        ({}, {"precision": "16-mixed"}, "use bf16-mixed"),
    ],
)
def test_options_that_the_game_would_ignore_are_refused(tmp_path, segmenter, options, message):
    with pytest.raises(ConfigError, match=message):
        play(tmp_path, game(), model(segmenter=segmenter), **options)


def test_without_a_state_path_no_state_is_kept(tmp_path):
    rules = game(episodes=2, validation_plays=0)
    trainer = play(tmp_path, rules, model(**SUMMARY, returns="monte_carlo", bootstrap=False))
    assert all(step.state.numel() == 0 for step in trainer.fit_loop.play.replay.steps)
    assert trainer.datamodule.step_loader is None


def test_checkpoints_hold_plain_data_and_say_what_the_policy_is(tmp_path):
    play(tmp_path, game())
    content = read_checkpoint(tmp_path / "checkpoints/best.ckpt")
    policy = content["ralseg"]["policy"]
    assert policy["features"] == "3H+KL"
    assert policy["num_state_regions"] == 12
    assert policy["class_names"][0] == "sky"
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
    assert all(torch.equal(weight, whole["state_dict"][name]) for name, weight in alone["state_dict"].items())
    assert any(name.startswith("query.net.") for name in alone["state_dict"])
    assert not any(name.startswith("segmenter.") for name in alone["state_dict"])
    assert load_policy(tmp_path / "policy.ckpt", trainer.datamodule).needs.state


def test_a_run_that_was_cut_off_leaves_no_policy(tmp_path):
    play(tmp_path, game(), max_epochs=2)
    assert not (tmp_path / "policy.ckpt").exists()


def test_best_is_the_best_round(tmp_path):
    trainer = play(tmp_path, game())
    rounds = trainer.fit_loop.play.rounds
    assert len(rounds) == 2
    kept = read_checkpoint(tmp_path / "checkpoints/best.ckpt")["loops"]["fit_loop"]["state_dict"]["play"]["history"]
    finished = max(r["round"] for r in kept)
    assert rounds[finished - 1] == max(rounds)


@pytest.mark.parametrize(("budget", "per_step", "pool"), [(36, 4, 3), (36, 30, 20), (5, 8, 100), (1, 1, 1)])
def test_small_sets_and_odd_budgets(tmp_path, budget, per_step, pool):
    rules = game(budget=budget, regions_per_step=per_step, pool_size=pool, episodes=1, validation_plays=0)
    ralis = model(batch_size=2)
    trainer = play(tmp_path, rules, ralis)
    assert trainer.fit_loop.play.history[0]["labelled"] == budget


def test_a_budget_beyond_the_set_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.game\.budget=37 exceeds the 36 regions of the train_set"):
        play(tmp_path, game(budget=37))


def test_weights_of_another_network_are_refused_by_name(tmp_path):
    trainer = pl.Trainer(default_root_dir=tmp_path, max_epochs=0, logger=False, accelerator="cpu")
    ralis = model(segmenter={"pyramid_channels": 64})
    trainer.fit(ralis.segmenter, datamodule=small_data())
    trainer.save_checkpoint(tmp_path / "other.ckpt")
    rules = game(initial_weights=[str(tmp_path / "other.ckpt")])
    with pytest.raises(ConfigError, match="pyramid_channels: 64 in the checkpoint, 32 here"):
        play(tmp_path / "run", rules)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    ralis = model(segmenter={"optimizer": lambda p: torch.optim.SGD(p, lr=float("inf"))})
    with pytest.raises(RalsegError, match=r"not finite.*episode 0, step"):
        play(tmp_path, game(), ralis)


@pytest.mark.parametrize(("bootstrap", "lr", "is_told"), [(True, 100, True), (False, 100, False), (True, 1e-3, False)])
def test_bootstrapped_values_that_drift_are_told_once(tmp_path, caplog, bootstrap, lr, is_told):
    query = {"bootstrap": bootstrap, "optimizer": lambda p: torch.optim.SGD(p, lr=lr)}
    trainer = play(tmp_path, game(validation_plays=0), model(**query))
    if is_told:
        trainer.fit_loop.play.action_values = torch.tensor([1e6])
        trainer.fit_loop.play._warn_of_drift()
    told = [record.getMessage() for record in caplog.records if "have drifted" in record.getMessage()]
    assert len(told) == is_told
    assert all(message.startswith("episode 0, step 3") and "bootstrap: false" in message for message in told)


def test_flags_that_break_the_game_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer\.check_val_every_n_epoch=3"):
        ActiveLearningTrainer(game(), check_val_every_n_epoch=3)
    with pytest.raises(ConfigError, match="limit_val_batches=0"):
        ActiveLearningTrainer(game(), limit_val_batches=0)


def test_fast_dev_run_is_one_step_and_writes_nothing(tmp_path):
    trainer = play(tmp_path / "run", game(), fast_dev_run=True)
    assert trainer.current_epoch == 1
    assert not (tmp_path / "run").exists()


def test_whole_images_are_a_grid_of_one(tmp_path):
    from ralseg.regions import GridShape

    rules = game(budget=4, regions_per_step=2, pool_size=2, episodes=1, validation_plays=0)
    trainer = play(tmp_path, rules, model(batch_size=2), data=small_data(grid=GridShape(1, 1)))
    assert trainer.fit_loop.play.history[0]["labelled"] == 4


def test_metrics_reach_loggers_and_callbacks(tmp_path):
    seen = []

    class Listen(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            seen.append(dict(trainer.callback_metrics))

    from lightning.pytorch.loggers import CSVLogger

    play(tmp_path, game(), logger=CSVLogger(tmp_path / "csv"), callbacks=[Listen()])
    table = next((tmp_path / "csv").rglob("metrics.csv")).read_text().splitlines()[0]
    for name in ("train/miou", "train/gain", "query/loss", "query/epsilon", "validation/auc", "train/return"):
        assert name in table
    assert any("validation/auc" in metrics for metrics in seen)


FIT = """
seed_everything: 3
trainer:
  default_root_dir: run
  logger: false
  enable_model_summary: false
  game: {budget: 6, regions_per_step: 3, pool_size: 2, episodes: 2, validation_plays: 1, validation_every: 2}
model:
  segmenter:
    class_path: ralseg.segmenter.FPNSegmenter
    init_args: {encoder: tu-test_resnet, encoder_weights: none, pyramid_channels: 32, segmentation_channels: 32}
  query: {class_path: ralseg.query.QueryNetwork, init_args: {batch_size: 4}}
data:
  dataset:
    class_path: ralseg.data.SyntheticStreets
    init_args: {num_train: 10, num_val: 3, num_test: 3, height: 64, width: 96}
  splits: {state: 2, train: 4}
  grid: {rows: 2, columns: 3}
  crop: [48, 64]
"""


def test_fit_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("fit.yaml").write_text(FIT)
    assert main(["fit", "--config", "fit.yaml"]) == 0
    out = capsys.readouterr().out
    assert "greedy validation" in out
    assert "episode 5/5" in out
    assert "s left" in out
    assert Path("run/config.yaml").is_file()
    assert main(["fit", "--config", "fit.yaml"]) == 2  # never over an earlier run
    options = ["--trainer.game.episodes", "4", "--ckpt", "last"]
    assert main(["fit", "--config", "fit.yaml", *options]) == 0  # more episodes: it goes on
    assert main(["fit", "--config", "fit.yaml", "--trainer.game.budget", "600", "--trainer.overwrite", "true"]) == 4
    assert "exceeds the 24 regions" in capsys.readouterr().err
