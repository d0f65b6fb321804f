"""Numbers that are not finite, and data that invite them."""

import json
import os
import signal
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from ralseg.agents import DQN
from ralseg.cli import main
from ralseg.data import Folder, SegmentationData, SplitSizes, SyntheticStreets
from ralseg.engine.loop import saved_session
from ralseg.errors import NotFiniteError
from ralseg.labels import GridLayout
from ralseg.runtime.checkpoints import read_checkpoint
from support.configs import PRETRAIN
from support.data import make_folder, write_png
from support.games import dqn, game, play, segmenter

LAST = "checkpoints/last.ckpt"


def test_a_loss_that_is_not_finite_keeps_the_steps_context(tmp_path):
    model = segmenter(optimizer=lambda p: torch.optim.SGD(p, lr=float("inf")))
    with pytest.raises(NotFiniteError, match=r"not finite \(episode 0, step 1\).*problem\.json"):
        play(tmp_path, game(), model=model)
    context = json.loads((tmp_path / "problem.json").read_text())
    assert len(context["labelled"]) == 8
    assert context["episode"]["kind"] == "validation"


def test_ruined_weights_are_never_saved_over_good_ones(tmp_path):
    class Ruin(pl.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            if trainer.current_epoch == 4:
                next(module.segmenter.net.decoder.parameters()).data.fill_(float("nan"))

    with pytest.raises(NotFiniteError, match=r"last\.ckpt: not written, for weights are not finite"):
        play(tmp_path, game(), callbacks=[Ruin()], checkpoint_every=1)
    assert read_checkpoint(tmp_path / LAST)["epoch"] == 3


def test_a_query_loss_that_is_not_finite_stops_the_run_before_the_next_checkpoint(tmp_path, monkeypatch):
    error, calls = DQN.error, []

    def fails_at_last(self, predicted, target):
        calls.append(error(self, predicted, target))
        return calls[-1] * float("nan") if len(calls) == 6 else calls[-1]

    monkeypatch.setattr(DQN, "error", fails_at_last)
    with pytest.raises(NotFiniteError, match=r"query network's loss is not finite after 5 updates \(episode \d+, step"):
        play(tmp_path, game(), checkpoint_every=1)
    saved = saved_session(read_checkpoint(tmp_path / LAST))
    assert saved["agent"]["updates"] == 5
    context = json.loads((tmp_path / "problem.json").read_text())
    assert context["updates"] == 5
    assert context["episode"]["kind"] == "train"


def test_pretraining_that_diverges_stops_and_keeps_the_good_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(PRETRAIN)
    arguments = ["pretrain", "--config", "tiny.yaml"]
    assert main([*arguments, "--trainer.max_epochs", "2"]) == 0
    before = Path("run", LAST).read_bytes()
    diverging = ["--model.scheduler", "torch.optim.lr_scheduler.ConstantLR", "--model.scheduler.factor", "1"]
    rate = ["--model.optimizer.init_args.lr", "1e30"]
    assert main([*arguments, *rate, *diverging, "--trainer.default_root_dir", "run2"]) == 1
    message = capsys.readouterr().err
    assert "the loss is nan" in message or "the loss is inf" in message
    assert "run2/problem.json" in message
    assert Path("run", LAST).read_bytes() == before


def odd_data(root: Path, kind: str) -> SegmentationData:
    make_folder(root, train=8, val=3, test=2, size=(64, 96))
    for path in sorted((root / "masks").rglob("*.png")):
        mask = np.random.default_rng(0).integers(0, 3, (64, 96), np.uint8)
        if kind == "void regions" and "train" in path.parts:
            mask[:, :64] = 255  # four of six regions have no label at all
        elif kind == "class absent from the reward set" and "val" in path.parts:
            mask[mask == 2] = 0
        elif kind == "one class":
            mask[:] = 1
        elif kind == "void image" and path.stem == "000":
            mask[:] = 255
        write_png(path, mask)
    if kind == "one colour":
        for path in sorted((root / "images").rglob("*.png")):
            write_png(path, np.full((64, 96, 3), 90, np.uint8))
    options = {"splits": SplitSizes(state=2, train=3), "layout": GridLayout(2, 3), "batch_size": 4}
    return SegmentationData(dataset=Folder(str(root)), **options)


KINDS = ["void regions", "class absent from the reward set", "one class", "void image", "one colour"]


@pytest.mark.parametrize("kind", KINDS)
def test_odd_data_give_finite_numbers(tmp_path, kind):
    data = odd_data(tmp_path / "data", kind)
    model = segmenter(names=data.class_names)
    trainer = play(tmp_path / "run", game(episodes=2, validation_plays=1), dqn(), data=data, model=model)
    state = {
        **trainer.lightning_module.state_dict(),
        "scores": torch.tensor(trainer.fit_loop.session.history[0]["miou"]),
    }
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())


def test_a_worker_that_is_killed_is_said_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(PRETRAIN)
    owner = os.getpid()
    read = SyntheticStreets.read_image

    def dies(self, index):
        if os.getpid() != owner:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, index)

    monkeypatch.setattr(SyntheticStreets, "read_image", dies)
    arguments = ["pretrain", "--config", "tiny.yaml", "--data.num_workers", "1"]
    assert main(arguments) == 1
    message = capsys.readouterr().err
    assert "DataLoader worker" in message
    assert "--ckpt last" in message
    monkeypatch.setattr(SyntheticStreets, "read_image", read)
    assert main([*arguments, "--ckpt", "last"]) == 0
