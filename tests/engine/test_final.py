"""The final training: what it is shown, what it keeps, and that it can be cut off."""

import json
from functools import partial

import pytest
import segmentation_models_pytorch as smp
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from ralseg.data.splits import SplitSizes
from ralseg.engine.final_training import RoundSampler, mixed_images
from ralseg.engine.trainer import BestScore, RunTrainer
from ralseg.errors import ConfigError
from ralseg.runtime.checkpoints import read_checkpoint
from support.data import small_data
from support.games import QUIET, Killed, acquire, final, segmenter, selected


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_weights_that_are_kept_are_the_ones_that_are_tested(tmp_path, keep):
    _, result = acquire(tmp_path, options={"final": final(keep=keep), "complete_checkpoints": True})
    folder = tmp_path / "budget_000010"
    saved = read_checkpoint(folder / "checkpoints" / f"{keep}.ckpt")
    kept = smp.from_pretrained(str(folder / "smp")).state_dict()
    assert all(torch.equal(weight, saved["state_dict"][f"net.{name}"]) for name, weight in kept.items())
    assert json.loads((folder / "test.json").read_text())["checkpoint"].endswith(f"{keep}.ckpt")
    if keep == "best":
        best = next(state for name, state in saved["callbacks"].items() if "best_model_score" in state)
        assert result["budgets"]["10"]["reward_set/miou"] == pytest.approx(float(best["best_model_score"]))


def test_a_final_training_that_was_cut_off_ends_the_same(tmp_path, monkeypatch):
    options = {"final": final(max_steps=8, patience=9, keep="last")}
    acquire(tmp_path / "whole", options=options)
    check = EarlyStopping.on_validation_end

    def cut(self, trainer, module):
        check(self, trainer, module)
        if trainer.global_step == 6:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(EarlyStopping, "on_validation_end", cut)
        with pytest.raises(Killed):
            acquire(tmp_path / "cut", options=options)
    acquire(tmp_path / "cut", options=options, ckpt="last")
    weights = [
        read_checkpoint(tmp_path / name / "budget_000010" / "checkpoints" / "last.ckpt")["state_dict"]
        for name in ("whole", "cut")
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_schedule_is_as_long_as_the_final_training(tmp_path):
    weights = []
    for name, length in (("left_out", {}), ("given", {"total_steps": 8})):
        schedule = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=1e-2, **length)
        acquire(tmp_path / name, options={"final": final(max_steps=8, patience=9, scheduler=schedule, keep="last")})
        saved = read_checkpoint(tmp_path / name / "budget_000010" / "checkpoints" / "last.ckpt")
        assert saved["lr_schedulers"][0]["total_steps"] == saved["global_step"] == 8
        weights.append(saved["state_dict"])
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    short = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=1e-2, total_steps=6)
    with pytest.raises(ConfigError, match=r"trainer\.final\.scheduler: OneCycleLR ends after total_steps=6"):
        final(max_steps=8, scheduler=short)


def test_known_sets_can_be_mixed_in(tmp_path):
    _, alone = acquire(tmp_path / "alone")
    _, mixed = acquire(
        tmp_path / "mixed", options={"final": final(mix=["train_set"], class_weights="inverse_sqrt", start="theta_0")}
    )
    assert alone["budgets"]["10"]["test_set/miou"] != mixed["budgets"]["10"]["test_set/miou"]
    assert selected(tmp_path / "alone") == selected(tmp_path / "mixed")


def test_hidden_sets_cannot_be_mixed_in():
    for name in ("test_set", "reward_set", "acquisition_set"):
        with pytest.raises(ConfigError, match="only train_set, state_set and fit_set"):
            final(mix=[name])


@pytest.fixture
def theta_0(tmp_path) -> str:
    """A segmenter that was trained on three images for a moment."""
    data = small_data(fit_on=["train_set", "state_set"], fit_images=3, seed=4)
    trainer = RunTrainer(max_epochs=1, default_root_dir=str(tmp_path / "theta_0"), **QUIET)
    trainer.pretrain(segmenter(), data)
    return str(tmp_path / "theta_0" / "checkpoints" / "best.ckpt")


def test_the_images_of_theta_0_can_be_mixed_in_whatever_the_seed(theta_0):
    its_own = small_data(fit_on=["train_set", "state_set"], fit_images=3, seed=4)
    its_own.setup("fit")
    data = small_data(seed=5)
    data.setup("fit")
    assert len(its_own.fit_indices()) == 3
    assert mixed_images(data, ["fit_set"], theta_0) == its_own.fit_indices()
    both = data.splits["train_set"] + data.splits["state_set"]
    assert sorted(mixed_images(data, ["fit_set", "train_set", "state_set"], theta_0)) == sorted(both)


def test_the_images_of_theta_0_are_trained_on_beside_what_was_bought(tmp_path, theta_0):
    scores = {}
    for name, mix in (("alone", []), ("mixed", ["fit_set"])):
        options = {"final": final(mix=mix, class_weights="inverse_sqrt")}
        _, result = acquire(tmp_path / name, initial_weights=theta_0, options=options)
        scores[name] = result["budgets"]["10"]
    assert selected(tmp_path / "alone") == selected(tmp_path / "mixed")
    assert scores["alone"]["test_set/miou"] != scores["mixed"]["test_set/miou"]


def test_images_of_theta_0_that_are_hidden_here_are_refused_before_anything_is_acquired(tmp_path, theta_0):
    data = small_data(splits=SplitSizes(state=1, train=1))
    with pytest.raises(ConfigError, match=r"of the 3 images that .*best.ckpt was trained on are in neither"):
        acquire(tmp_path / "run", data=data, initial_weights=theta_0, options={"final": final(mix=["fit_set"])})
    assert not (tmp_path / "run" / "selection.csv").exists()


def test_a_theta_0_that_names_no_images_is_refused(tmp_path):
    data = small_data()
    data.setup("fit")
    with pytest.raises(ConfigError, match=r"set trainer.acquisition.initial_weights"):
        mixed_images(data, ["fit_set"], None)
    torch.save({"ralseg": {"segmenter": {}}}, tmp_path / "old.ckpt")
    with pytest.raises(ConfigError, match=r"old.ckpt does not say what images"):
        mixed_images(data, ["fit_set"], str(tmp_path / "old.ckpt"))


def test_a_final_training_does_not_claim_whole_images(tmp_path):
    acquire(tmp_path)
    saved = read_checkpoint(tmp_path / "budget_000010" / "checkpoints" / "best.ckpt")
    assert "trained_on" not in saved["ralseg"]


def test_rounds_are_stretches_of_one_sequence():
    def draws(epoch, size):
        sampler = RoundSampler(5, size, seed=3)
        sampler.set_epoch(epoch)
        return list(sampler)

    long = draws(0, 12)
    assert draws(0, 4) + draws(1, 4) + draws(2, 4) == long
    assert sorted(draw.position for draw in long[:5]) == sorted(draw.position for draw in long[5:10]) == [0, 1, 2, 3, 4]


def test_a_run_that_goes_on_knows_its_newest_score(tmp_path):
    options = {"monitor": "reward_set/miou", "mode": "max"}
    before, after = (BestScore(tmp_path, "best", **options) for _ in range(2))
    before.current_score = torch.tensor(0.25)
    after.load_state_dict(before.state_dict())
    assert after.state_dict() == before.state_dict()
    assert after.state_key == ModelCheckpoint(tmp_path, "best", **options).state_key
