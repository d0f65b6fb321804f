"""Small games: 36 regions in 6 images, played in seconds."""

import csv
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from ralseg.agents import DQN, Agent, PairedBlocks
from ralseg.data import SyntheticStreets
from ralseg.engine import (
    AcquireTrainer,
    AcquisitionConfig,
    FinalTraining,
    FitTrainer,
    Game,
    acquire_trainer,
    learning_curves,
)
from ralseg.engine.modules import FitModule
from ralseg.models import FPNSegmenter
from support.data import small_data

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


class Killed(Exception):
    """Stands for a process that is killed."""


class Kill(pl.Callback):
    """Ends the run in the middle of a step."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == self.epoch:
            raise Killed


class Photograph(pl.Callback):
    """Copies the run's folder in the middle of steps: what there would be if the process were killed just then.

    One run shows all moments, and need not be played once more for each of them.
    """

    def __init__(self, *epochs: int) -> None:
        self.epochs = epochs

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch in self.epochs:
            folder = Path(trainer.default_root_dir)
            shutil.copytree(folder, folder.with_name(f"cut {trainer.current_epoch}"))


@cache
def drawn(seed: int, scene: int, height: int, width: int, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Image and mask of a synthetic street."""
    street = SyntheticStreets(0, 0, 1, height, width, domain, seed)
    street._scenes = [scene]
    return DRAW_IMAGE(street, 0), DRAW_MASK(street, 0)


DRAW_IMAGE, DRAW_MASK = SyntheticStreets.read_image, SyntheticStreets.read_mask


@contextmanager
def quick() -> Iterator[pytest.MonkeyPatch]:
    """Streets are drawn once for all games of a process: a tenth of the time of a small one."""

    def kept(which: int):
        return lambda streets, index: drawn(
            streets.seed, streets._scenes[index], streets.height, streets.width, streets.domain
        )[which].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SyntheticStreets, "read_image", kept(0))
        patch.setattr(SyntheticStreets, "read_mask", kept(1))
        yield patch


def game(**changes) -> Game:
    """36 regions in 6 images; an episode labels 10 of them in steps of 4, 4 and 2."""
    options = {
        "budget": 10,
        "regions_per_step": 4,
        "pool_size": 3,
        "episodes": 4,
        "validation_plays": 1,
        "validation_every": 2,
    }
    return Game(**(options | changes))


def segmenter(seed=0, names=None, **changes) -> FPNSegmenter:
    """A tiny FPN with a frozen encoder and cached features."""
    torch.manual_seed(seed)
    options = {
        "encoder": "tu-test_resnet",
        "encoder_weights": "none",
        "pyramid_channels": 32,
        "segmentation_channels": 32,
        "freeze_encoder": True,
        "cache_features": True,
        "label_stride": 2,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    }
    return FPNSegmenter(names or small_data().class_names, **(options | changes))


def dqn(**changes) -> DQN:
    """The paper's agent, with a small batch and an exploration that soon ends."""
    return DQN(**({"batch_size": 8, "epsilon_decay": 10.0} | changes))


def blocks(**changes) -> PairedBlocks:
    """Entropy and the policy play the same games."""
    return PairedBlocks(**({"block": ["entropy", "policy"], "batch_size": 8} | changes))


def play(
    folder, rules, agent: Agent | None = None, ckpt=None, data=None, model=None, draws=False, **options
) -> FitTrainer:
    """Run a whole game and return its trainer; the session is ``trainer.fit_loop.session``.

    The learning curve, a fifth of the time, is only drawn where a test looks at it.
    """
    trainer = FitTrainer(rules, default_root_dir=str(folder), **(QUIET | options))
    data = data or small_data(flip=True)
    with quick() as patch:
        if not draws:
            patch.setattr(learning_curves, "draw_learning_curve", lambda *drawn: None)
        trainer.fit(model or segmenter(), datamodule=data, agent=agent or dqn(), ckpt=ckpt)
    return trainer


def module_of(trainer: FitTrainer) -> FitModule:
    """The root module of a trainer that has played."""
    return trainer.lightning_module


NO_SCORES = {"test_set/miou": 0.0, "reward_set/miou": 0.0, "iterations": 0}
UNTRAINED = {"final": None}
"""Options of an acquisition of which only the choice counts: the final training would take most of its time."""


def final(**changes) -> FinalTraining:
    adam = {"optimizer": lambda p: torch.optim.AdamW(p, lr=1e-3)}
    return FinalTraining(**({"max_steps": 4, "validate_every": 2} | adam | changes))


def acquire(
    folder, policy="entropy", data=None, oracle="masks", ckpt=None, options=None, args=None, model=None, **rules
):
    """Acquire 10 of 36 regions in steps of 4, 4 and 2; returns the trainer and its result."""
    rules = {"budgets": [10], "regions_per_step": 4, "pool_size": 3} | rules
    options = {"final": final()} | QUIET | (options or {})
    with quick() as patch:
        if options["final"] is None:
            options["final"] = final()
            patch.setattr(acquire_trainer, "train_final", lambda *asked: dict(NO_SCORES))
        trainer = AcquireTrainer(AcquisitionConfig(**rules), **options, default_root_dir=str(folder))
        return trainer, trainer.acquire(model or segmenter(), data or small_data(), policy, args, oracle, ckpt)


def selected(folder: Path) -> list[tuple[str, ...]]:
    """What `selection.csv` says was chosen."""
    rows = list(csv.DictReader((folder / "selection.csv").open()))
    return [(row["step"], row["image"], row["row"], row["column"]) for row in rows]


def everything(trainer: FitTrainer) -> dict:
    """All that a game depends on and leaves, but for the clock."""
    state = trainer.fit_loop.session.state_dict()
    history = [{key: value for key, value in record.items() if key != "seconds"} for record in state["history"]]
    state = {key: value for key, value in state.items() if key != "seconds"} | {"history": history}
    weights = dict(trainer.lightning_module.state_dict())
    return {"session": state, "weights": weights, "optimizers": [o.state_dict() for o in trainer.optimizers]}


def assert_same(one, two, where=""):
    """Equal to the last bit, in nested containers too; NaN equals NaN."""
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
