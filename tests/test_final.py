"""The final training: what it is shown, what it keeps, and that it can be cut off."""

import json

import pytest
import segmentation_models_pytorch as smp
import torch
from conftest import small_data
from lightning.pytorch.callbacks import EarlyStopping
from test_acquire import Killed, acquire, final, selected

from ralseg.checkpoints import read_checkpoint
from ralseg.errors import ConfigError
from ralseg.final import RoundSampler, mixed_images


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_weights_that_are_kept_are_the_ones_that_are_tested(tmp_path, keep):
    _, result = acquire(tmp_path, options={"final": final(keep=keep)})
    folder = tmp_path / "budget_000010"
    saved = read_checkpoint(folder / "checkpoints" / f"{keep}.ckpt")
    kept = smp.from_pretrained(str(folder / "smp")).state_dict()
    assert all(torch.equal(weight, saved["state_dict"][f"net.{name}"]) for name, weight in kept.items())
    assert json.loads((folder / "test.json").read_text())["checkpoint"].endswith(f"{keep}.ckpt")
    if keep == "best":
        best = next(state for name, state in saved["callbacks"].items() if "best_model_score" in state)
        assert result["budgets"]["10"]["reward_set/miou"] == pytest.approx(float(best["best_model_score"]))


def test_a_final_training_that_was_cut_off_ends_the_same(tmp_path, monkeypatch):
    options = {"final": final(max_steps=8, patience=9)}
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


def test_the_images_of_theta_0_can_be_mixed_in():
    theta_0s = small_data(fit_on=["train_set", "state_set"], fit_images=3, seed=4)
    theta_0s.setup("fit")
    data = small_data(fit_on=["train_set", "state_set"], fit_images=3, seed=4)
    data.setup("fit")
    assert mixed_images(data, ["fit_set"]) == theta_0s.fit_indices()
    assert len(mixed_images(data, ["fit_set", "train_set", "state_set"])) == len(data.splits["train_set"]) + len(
        data.splits["state_set"]
    )


def test_hidden_images_are_refused_before_anything_is_acquired(tmp_path):
    data = small_data(fit_on=["train_set", "test_set"])
    with pytest.raises(ConfigError, match=r"data.fit_on=.*labels of test_set are hidden"):
        acquire(tmp_path, data=data, options={"final": final(mix=["fit_set"])})
    assert not (tmp_path / "selection.csv").exists()


def test_rounds_are_stretches_of_one_sequence():
    def draws(epoch, size):
        sampler = RoundSampler(5, size, seed=3)
        sampler.set_epoch(epoch)
        return list(sampler)

    long = draws(0, 12)
    assert draws(0, 4) + draws(1, 4) + draws(2, 4) == long
    assert sorted(draw.position for draw in long[:5]) == sorted(draw.position for draw in long[5:10]) == [0, 1, 2, 3, 4]
