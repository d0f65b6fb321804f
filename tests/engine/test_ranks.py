"""Two processes do what one does: the same picks and rewards, and none waits for another in vain."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from ralseg.acquisition.scanner import Scan, scan
from ralseg.cli import main
from ralseg.data.samples import Draw, SharedBatches
from ralseg.engine.loop import saved_session
from ralseg.engine.trainer import SCORE, RunTrainer
from ralseg.errors import ConfigError, DataError
from ralseg.labels import IGNORE
from ralseg.models.segmenter import masked_cross_entropy
from ralseg.runtime import distributed
from ralseg.runtime.checkpoints import read_checkpoint
from support.data import small_data
from support.games import segmenter

SUPPORT = Path(__file__).parent.parent / "support"
TWO = ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
WITNESS = ["--trainer.callbacks+", "witness.Witness", "--allow_import", "witness"]
OPTIMIZER = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.02, "momentum": 0.9}}
SEGMENTER = {
    "encoder": "tu-test_resnet", "encoder_weights": "none", "pyramid_channels": 32, "segmentation_channels": 32,
    "dropout": 0.0, "freeze_encoder": True, "optimizer": OPTIMIZER,
}  # fmt: skip
IN_GAME = {
    "class_path": "ralseg.FPNSegmenter",
    "init_args": SEGMENTER | {"cache_features": True, "label_stride": 2},
}
AGENT = {"class_path": "ralseg.DQN", "init_args": {"batch_size": 8, "epsilon_start": 0.3}}
TRAINER = {"logger": False, "enable_model_summary": False, "enable_progress_bar": False}
GAME = {
    "budget": 12, "regions_per_step": 4, "pool_size": 3, "episodes": 1, "validation_every": 1, "validation_plays": 1,
    "weight_average": 0.5,
}  # fmt: skip


def data(num_val: int) -> dict:
    """One image of the state set, so that the second rank has none; 5 does not divide by 2."""
    streets = {"num_train": 14, "num_val": num_val, "num_test": 5, "height": 64, "width": 96}
    return {
        "dataset": {"class_path": "ralseg.data.SyntheticStreets", "init_args": streets},
        "splits": {"state": 1, "train": 7},
        "layout": {"class_path": "ralseg.GridLayout", "init_args": {"rows": 2, "columns": 3}},
        "batch_size": 5,
        "eval_batch_size": 2,
    }


def environment() -> dict[str, str]:
    """Of processes that find the witness."""
    return os.environ | {"PYTHONPATH": str(SUPPORT), "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def run(tmp_path, forge):
    """Run a command here, or in two processes as `torchrun` starts them; gives the run's folder."""

    def in_processes(count: int, config: dict, *arguments: str) -> Path:
        file, root = tmp_path / "config.yaml", tmp_path / f"{count}"
        file.write_text(yaml.safe_dump({"seed_everything": 3, **config}))
        command = [arguments[0], "--config", str(file), *arguments[1:], "--trainer.default_root_dir", str(root)]
        if count == 1:
            assert main(command) == 0
            return root
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "test"}
        place |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
        ranks = [
            forge.start(*command, *TWO, *WITNESS, folder=tmp_path, log=tmp_path / f"rank{rank}.txt", **place,
                        RANK=str(rank), LOCAL_RANK=str(rank))
            for rank in (0, 1)
        ]  # fmt: skip
        try:
            for rank in ranks:
                assert rank.wait(240) == 0, rank.log.read_text()[-3000:]
        finally:
            for rank in ranks:
                rank.kill()
        ended = [json.loads((root / f"rank{rank}.json").read_text()) for rank in (0, 1)]
        assert ended[0] == ended[1], "the ranks end with different weights"
        assert ended[0]["ranks"] == 2
        return root

    return in_processes


def scores(history: list[dict]) -> list[float]:
    return [score for episode in history for score in episode["miou"]]


@pytest.mark.slow
def test_fit_plays_the_same_game(run):
    config = {
        "trainer": TRAINER | {"game": GAME},
        "model": IN_GAME,
        "agent": AGENT,
        "data": data(num_val=5),
    }
    one, two = (run(count, config, "fit") for count in (1, 2))
    first, second = (json.loads((folder / "history.json").read_text()) for folder in (one, two))
    assert len(first) == len(second) == 4
    for path in (one / "episodes").iterdir():
        assert (two / "episodes" / path.name).read_text() == path.read_text()
    assert scores(second) == pytest.approx(scores(first), abs=1e-5)
    assert second[-1]["query_loss"] == pytest.approx(first[-1]["query_loss"], rel=1e-2)


@pytest.mark.slow
def test_acquire_when_nothing_is_left_for_the_second_rank(run):
    """The reward set has one image; the policy looks at what is labelled too, of which there is nothing at first."""
    config = {
        "trainer": TRAINER
        | {
            "acquisition": {"budgets": [6], "regions_per_step": 4, "pool_size": 3, "score_steps": True},
            "final": {"max_steps": 4, "validate_every": 2, "optimizer": OPTIMIZER},
        },
        "model": IN_GAME,
        "data": data(num_val=1),
    }
    one, two = (run(count, config, "acquire", "--policy", "coreset") for count in (1, 2))
    assert (two / "selection.csv").read_text() == (one / "selection.csv").read_text()
    first, second = (json.loads((folder / "result.json").read_text()) for folder in (one, two))
    assert second["miou_by_step"] == pytest.approx(first["miou_by_step"], abs=1e-5)
    for name, value in first["budgets"]["6"].items():
        if isinstance(value, float):
            assert second["budgets"]["6"][name] == pytest.approx(value, abs=1e-4), name


@pytest.mark.slow
def test_pretrain_counts_every_image_once(run):
    config = {
        "trainer": TRAINER | {"max_epochs": 2},
        "model": {"class_path": "ralseg.FPNSegmenter", "init_args": SEGMENTER | {"class_weights": "inverse_sqrt"}},
        "data": data(num_val=3),
    }
    one, two = (run(count, config, "pretrain") for count in (1, 2))
    first, second = (torch.load(folder / "checkpoints/last.ckpt", weights_only=True) for folder in (one, two))
    for name, weights in first["state_dict"].items():
        assert torch.allclose(second["state_dict"][name], weights, atol=1e-5), name
    best, of_two = (
        [
            float(state["best_model_score"])
            for key, state in saved["callbacks"].items()
            if "Checkpoint" in key and SCORE in key
        ]
        for saved in (first, second)
    )
    assert best
    assert of_two == pytest.approx(best, abs=1e-6)  # a copy of an image would count in it


@pytest.mark.slow
def test_statistics_of_a_trained_encoder_are_the_same_on_all_ranks(run):
    trained = IN_GAME | {"init_args": SEGMENTER | {"freeze_encoder": False}}
    rules = GAME | {"budget": 4, "validation_plays": 0}
    config = {
        "trainer": TRAINER | {"game": rules},
        "model": trained,
        "agent": AGENT,
        "data": data(num_val=2),
    }
    run(2, config, "fit")  # which looks at the weights


# -- the pieces, with ranks that are only pretended ------------------------------------------------


@pytest.fixture
def pretend(monkeypatch):
    """Make this process one rank of several."""

    def be(rank: int, size: int) -> None:
        monkeypatch.setattr(distributed, "rank", lambda: rank)
        monkeypatch.setattr(distributed, "size", lambda: size)

    return be


@pytest.mark.parametrize(("count", "size"), [(7, 2), (1, 2), (10, 3), (12, 4), (3, 8)])
def test_every_draw_is_made_once(pretend, count, size):
    draws = [Draw(position, 0) for position in range(count)]
    made, steps = [], []
    for rank in range(size):
        pretend(rank, size)
        batches = list(SharedBatches(draws, 4))
        assert len(batches) == len(SharedBatches(draws, 4))
        steps.append([len(batch) for batch in batches])
        made += [draw.position for batch in batches for draw in batch if not draw.is_void]
    assert sorted(made) == list(range(count))
    assert all(lengths == steps[0] for lengths in steps), "ranks would wait for each other"


def test_void_samples_hold_no_label():
    module = small_data()
    module.setup()
    samples = module.image_samples(module.labelled_images("reward_set"), augment=False)
    assert (samples[Draw(0, 0, is_void=True)].mask == IGNORE).all()
    assert (samples[Draw(0, 0)].mask != IGNORE).any()


def test_the_mean_of_the_ranks_losses_is_that_of_the_whole_batch(monkeypatch):
    """One rank has many labelled pixels and the other few: a mean of means would be wrong."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 8, 8, generator=generator)
    mask = torch.randint(0, 3, (2, 8, 8), generator=generator)
    mask[1, 1:] = IGNORE
    weight = torch.tensor([0.5, 1.0, 3.0])
    known = mask != IGNORE
    totals = [weight[mask[i][known[i]]].sum() for i in (0, 1)]
    whole = masked_cross_entropy(logits, mask, weight)
    monkeypatch.setattr(distributed, "mean", lambda total: sum(totals) / 2)
    parts = [masked_cross_entropy(logits[i : i + 1], mask[i : i + 1], weight) for i in (0, 1)]
    assert float(sum(parts) / 2) == pytest.approx(float(whole), rel=1e-6)


def test_regions_come_back_in_their_order(pretend, monkeypatch):
    module = small_data()
    module.setup()
    wanted = torch.tensor([17, 3, 30, 4, 0, 5])
    what = Scan("3H", ("margin", "true_rarity"), batch_size=4, labels=module.mask_oracle("train_set").label(wanted))
    arguments = (segmenter().eval(), module.regions("train_set"), wanted, what)
    alone = scan(*arguments)
    parts = []

    def bring(mine):
        parts.append(mine)
        raise StopIteration  # the other ranks' parts are still to come

    monkeypatch.setattr(distributed, "gather", bring)
    for rank in range(3):
        pretend(rank, 3)
        with pytest.raises(StopIteration):
            scan(*arguments)
    monkeypatch.setattr(distributed, "gather", lambda mine: parts)
    together = scan(*arguments)
    assert torch.allclose(together.vector(), alone.vector(), atol=1e-5)
    for name in what.measures:
        assert torch.allclose(together.measures[name], alone.measures[name], atol=1e-5)


def test_ranks_have_their_own_dropout_and_the_first_one_that_of_a_single_process(pretend):
    seeds = set()
    for rank in range(3):
        pretend(rank, 3)
        seeds.add(distributed.own_seed(11))
    assert len(seeds) == 3
    assert 11 in seeds


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork_find_unused_parameters_true", "fsdp"])
def test_other_strategies_are_refused(tmp_path, strategy):
    options = {"default_root_dir": str(tmp_path), "logger": False, "accelerator": "cpu", "devices": 2}
    with pytest.raises((ConfigError, ValueError), match=r"is not one .* use ddp|FSDP|fsdp"):
        RunTrainer(strategy=strategy, **options)


def test_what_the_first_rank_makes_or_meets_all_hear(tmp_path):
    """Results, errors, and errors that cannot be sent, between two processes."""
    script = str(SUPPORT / "two_ranks.py")
    ranks_ = [
        subprocess.Popen([sys.executable, script, str(rank), str(tmp_path / "meet")], env=environment(), text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120) for process in ranks_]
    assert [process.returncode for process in ranks_] == [0, 0], outputs
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    assert first["made"] == second["made"] == [0, "rank 0's"]
    assert first["errors"] == ["DataError: no mask", "Stubborn: holds a socket", "NotFiniteError: nan"]
    assert second["errors"] == ["DataError: no mask", "RalsegError: Stubborn: holds a socket", "NotFiniteError: nan"]
    assert first["gathered"] == second["gathered"] == [[0], [1]]
    assert first["total"] == second["total"] == 3.0
    assert first["shared"] == second["shared"] == [7.0]
    assert [first["silent"], second["silent"]] == [False, True]


def test_processes_that_know_nothing_of_an_error_are_ended():
    sleepers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
    try:
        distributed.remember_processes(distributed.raised_by_all(DataError("all know")), sleepers[:1])
        distributed.remember_processes(DataError("a full disk"), sleepers[1:])
        distributed.end_processes()
        assert sleepers[1].wait(20) != 0
        assert sleepers[0].poll() is None
    finally:
        for sleeper in sleepers:
            sleeper.kill()


def has_ended(pid: int) -> bool:
    """Whether a process is gone within some seconds, or waits only for somebody to note its end."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
        if not found.stdout.strip() or found.stdout.startswith("Z"):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_signal_to_either_rank_ends_both(tmp_path):
    """All save and leave together, with the code of the signal."""
    rules = GAME | {"budget": 24, "episodes": 40, "validation_plays": 0}
    trainer = TRAINER | {"game": rules, "checkpoint_every": 1, "default_root_dir": str(tmp_path / "run")}
    config = {"trainer": trainer, "model": IN_GAME, "agent": AGENT, "data": data(num_val=2)}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"seed_everything": 3, **config}))
    process = subprocess.Popen(
        [sys.executable, "-m", "ralseg", "fit", "--config", "config.yaml", *TWO, *WITNESS],
        cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    last = tmp_path / "run/checkpoints/last.ckpt"
    end = time.monotonic() + 120
    while not last.is_file() and time.monotonic() < end:
        time.sleep(0.1)
    follower = int((tmp_path / "run/pid1").read_text())
    os.kill(follower, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors[-2000:]
    assert errors.count("ralseg: stopped by SIGTERM") == 1
    assert has_ended(follower)
    saved = read_checkpoint(last)
    assert saved["loops"]["fit_loop"]["state_dict"]["in_step"] is False
    assert saved_session(saved)["training_steps"] > 0
