"""A schedule is as long as its run, and one that was given its length is left as it is."""

from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, PolynomialLR, StepLR

from ralseg.engine.trainer import RunTrainer
from ralseg.errors import ConfigError
from ralseg.models.schedules import check_length, length_of, make_schedule
from ralseg.runtime.checkpoints import read_checkpoint
from support.data import small_data
from support.games import QUIET, Killed, assert_same, segmenter


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)


def trainer(**options) -> pl.Trainer:
    return pl.Trainer(**({"max_epochs": -1, "max_steps": 12, "enable_checkpointing": False} | QUIET | options))


ONE_CYCLE = partial(OneCycleLR, max_lr=0.1)


@pytest.mark.parametrize(
    "make", [ONE_CYCLE, partial(OneCycleLR, max_lr=0.1, total_steps=None), partial(CosineAnnealingLR, eta_min=0.01),
             partial(CosineAnnealingLR, T_max=0), partial(PolynomialLR, total_iters=0), partial(LinearLR)],
)  # fmt: skip
def test_a_length_that_is_left_out_is_the_runs(make):
    assert length_of(make_schedule(make, optimizer(), trainer())) == 12


def test_what_is_given_is_respected():
    for make, length in (
        (partial(OneCycleLR, max_lr=0.1, total_steps=20), 20),
        (partial(OneCycleLR, max_lr=0.1, epochs=4, steps_per_epoch=5), 20),
        (partial(CosineAnnealingLR, T_max=5), 5),  # it swings: shorter than the run may be meant
        (partial(LinearLR, total_iters=5), 5),  # a warm-up
        (lambda o: PolynomialLR(o, total_iters=7), 7),
        (partial(StepLR, step_size=3), None),
    ):
        assert length_of(make_schedule(make, optimizer(), trainer())) == length


def test_a_cycle_that_ends_before_the_run_is_refused_with_the_numbers():
    short = partial(OneCycleLR, max_lr=0.1, total_steps=11)
    message = r"OneCycleLR ends after total_steps=11, but the training takes 12 iterations; leave total_steps out"
    for make in (short, lambda o: short(o)):
        with pytest.raises(ConfigError, match=message):
            make_schedule(make, optimizer(), trainer())
    with pytest.raises(ConfigError, match=rf"trainer\.final\.scheduler: {message}"):
        check_length(short, 12, "trainer.final.scheduler")
    check_length(short, 11, "trainer.final.scheduler")


def test_a_run_without_an_end_gives_no_length():
    with pytest.raises(ConfigError, match=r"has no end; set trainer\.max_epochs"):
        make_schedule(ONE_CYCLE, optimizer(), trainer(max_steps=-1))


# -- whole runs --------------------------------------------------------------------------------------


def pretrain(folder, scheduler, ckpt=None, max_epochs=4, callbacks=()):
    """Train on six images in batches of 2: three iterations an epoch."""
    run = RunTrainer(default_root_dir=str(folder), max_epochs=max_epochs, callbacks=[*callbacks], **QUIET)
    run.pretrain(segmenter(scheduler=scheduler), small_data(batch_size=2), ckpt=ckpt)
    saved = read_checkpoint(folder / "checkpoints" / "last.ckpt")
    return {name: saved[name] for name in ("state_dict", "optimizer_states", "lr_schedulers", "global_step")}


class KillAfter(pl.Callback):
    """Kills the run in its third epoch."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch == 2:
            raise Killed


def test_left_out_or_given_or_cut_off_a_run_ends_the_same(tmp_path):
    given = pretrain(tmp_path / "given", partial(OneCycleLR, max_lr=0.1, total_steps=12))
    assert given["global_step"] == 12
    assert_same(pretrain(tmp_path / "left_out", ONE_CYCLE), given)
    with pytest.raises(Killed):
        pretrain(tmp_path / "cut", ONE_CYCLE, callbacks=[KillAfter()])
    assert_same(pretrain(tmp_path / "cut", ONE_CYCLE, ckpt="last"), given)


def test_a_run_does_not_go_on_with_the_schedule_of_a_shorter_one(tmp_path):
    pretrain(tmp_path, ONE_CYCLE, max_epochs=2)
    with pytest.raises(ConfigError, match="started with a learning-rate schedule of 6 iterations, and now has 12"):
        pretrain(tmp_path, ONE_CYCLE, ckpt="last", max_epochs=4)


def test_the_names_of_the_options_are_torchs():
    from ralseg.config import SCHEDULE_LENGTHS

    for kind, option in SCHEDULE_LENGTHS.items():
        assert option in getattr(lr_scheduler, kind).__init__.__code__.co_varnames
