"""What is wrong with a configuration: which file, which key, and what was probably meant."""

import os
import signal
import sys
from pathlib import Path

import pytest
import yaml

from ralseg import cli
from ralseg.cli import main
from ralseg.config_errors import nearest_class
from ralseg.config_words import nearest_key
from support.configs import ACQUIRE, FIT, PRETRAIN, STUDY

TEXTS = {"pretrain": PRETRAIN, "fit": FIT, "acquire": ACQUIRE, "compare": STUDY}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ralseg"])
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")  # what a command allows is not for the next test
    return tmp_path


def said_of(capsys, command, *options) -> str:
    assert main([*command.split(), *options]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) <= 2
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("command", "right", "wrong", "message"),
    [
        ("pretrain", "batch_size:", "bach_size:",
         "`ralseg pretrain` has no key data.bach_size; did you mean data.batch_size?"),
        ("pretrain", "max_epochs:", "max_epoch:",
         "`ralseg pretrain` has no key trainer.max_epoch; did you mean trainer.max_epochs?"),
        ("pretrain", "model:", "modle:", "did you mean model"),
        ("pretrain", "    encoder: ", "    encodr: ",
         "ralseg.FPNSegmenter has no option encodr (model.init_args.encodr); did you mean model.init_args.encoder?"),
        ("pretrain", "{lr:", "{lrr:", "torch.optim.AdamW has no option lrr (model.init_args.optimizer.init_args.lrr); "
         "did you mean model.init_args.optimizer.init_args.lr?"),
        ("pretrain", "num_train:", "num_trian:",
         "ralseg.data.SyntheticStreets has no option num_trian (data.dataset.init_args.num_trian); did you mean "
         "data.dataset.init_args.num_train?"),
        ("pretrain", "data.SyntheticStreets", "data.SyntheticStreet",
         "there is no class ralseg.data.SyntheticStreet for data.dataset; did you mean ralseg.data.SyntheticStreets?"),
        ("pretrain", "ralseg.FPNSegmenter", "ralseg.FPNSegmentr", "did you mean ralseg.FPNSegmenter?"),
        ("pretrain", "optim.AdamW", "optim.AdmW",
         "there is no class torch.optim.AdmW for model.optimizer; did you mean torch.optim.AdamW?"),
        ("pretrain", "batch_size: 3", "batch_size: many", "data.batch_size: expected int, but it is many"),
        ("fit", "ralseg.DQN", "ralseg.DQNN", "there is no class ralseg.DQNN for agent; did you mean ralseg.DQN?"),
        ("acquire", "budgets:", "budget:", "did you mean trainer.acquisition.budgets?"),
        ("acquire", "seed_everything: 1", "polcy: entropy", "has no key polcy; did you mean policy?"),
        ("compare", "methods:", "metods:", "did you mean methods?"),
        ("data check", "splits:", "split:", "`ralseg data check` has no key data.split"),
    ],
)  # fmt: skip
def test_a_file(capsys, command, right, wrong, message):
    text = TEXTS.get(command, PRETRAIN)
    assert right in text
    Path("mine.yaml").write_text(text.replace(right, wrong, 1))
    said = said_of(capsys, command, "--config", "mine.yaml")
    assert said.startswith("ralseg: mine.yaml: ")
    assert message in said
    assert said.rstrip().endswith(("lists all options)", "lists its options)"))
    # and in a section of a file that another one builds on
    if command in ("fit", "acquire"):
        Path("whole.yaml").write_text(yaml.safe_dump({command: yaml.safe_load(Path("mine.yaml").read_text())}))
        Path("built.yaml").write_text("base: [whole.yaml]\n")
        again = said_of(capsys, command, "--config", "built.yaml")
        assert again.startswith("ralseg: built.yaml: ")
        assert message in again


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--data.bach_size 3", "has no option --data.bach_size; did you mean --data.batch_size?"),
        ("--trainer.mx_epochs=3", "has no option --trainer.mx_epochs; did you mean --trainer.max_epochs?"),
        ("--batch_size 3", "has no option --batch_size; did you mean --data.batch_size?"),
        ("--model.encodr x", "ralseg.FPNSegmenter has no option encodr (model.encodr); did you mean model.encoder?"),
        ("--data.layout.row 3", "did you mean data.layout.rows?"),
        ("--model FPNSegmentr", "did you mean ralseg.FPNSegmenter?"),
        ("--model ralsg.FPNSegmenter", "did you mean ralseg.FPNSegmenter? If you trust it, add --allow_import ralsg"),
        ("--data.dataset ralseg.Folder", "did you mean ralseg.data.Folder?"),
        ("--model.optimizer.lr x", "model.optimizer.lr: expected float, but it is x"),
        ("--model.label_stride 3", "model.label_stride: expected one of 1, 2, 4, but it is 3"),
        ("--model.scheduler torch.optim.lr_scheduler.OneCycleLR", "model.scheduler: the following arguments are "
         "required: max_lr"),
        ("--model.scheduler.max_lr 3", "an option of model.scheduler is given, but it has no class"),
        ("--xyzzy 3", "has no option --xyzzy."),
    ],
)  # fmt: skip
def test_the_command_line(capsys, options, message):
    Path("mine.yaml").write_text(PRETRAIN)
    said = said_of(capsys, "pretrain", "--config", "mine.yaml", *options.split())
    assert message in said
    assert "mine.yaml" not in said


def test_policies_that_are_not_there(capsys):
    Path("mine.yaml").write_text(ACQUIRE)
    for policy, message in (
        ("nobody", "--policy nobody: neither a file nor one of ralseg, bald, class_balanced_entropy"),
        ("entropi", "did you mean 'entropy'?"),
        ("ralsec", "did you mean 'ralseg'?"),
        ("absent.ckpt", "--policy absent.ckpt: no such file; `ralseg fit` leaves policy.ckpt"),
        ("ralseg.Polcy", "did you mean ralseg.Policy?"),
    ):
        assert main(["acquire", "--config", "mine.yaml", "--policy", policy, "--trainer.overwrite", "true"]) == 2
        assert message in capsys.readouterr().err


def test_unknown_commands(capsys):
    assert main(["pretrian"]) == 2
    assert "unknown command 'pretrian'; did you mean pretrain? Commands are" in capsys.readouterr().err


def test_what_was_probably_meant():
    known = ["data.batch_size", "data.size", "trainer.max_epochs", "trainer.game.budget"]
    assert nearest_key("budget", known) == "trainer.game.budget"
    assert nearest_key("trainer.batch_size", known) == "data.batch_size"
    assert nearest_key("trainer.game.budgt", known) == "trainer.game.budget"
    assert nearest_key("data.size.height", known) == "data.size"
    assert nearest_key("nothing.like_it", known) is None
    assert nearest_class("ralseg.data.Foldr") == "ralseg.data.Folder"
    assert nearest_class("os.systm") is None  # nothing of other modules is looked at


@pytest.mark.parametrize(
    ("command", "way_on"),
    [
        ("fit", "; the same command with --ckpt last goes on where this one was"),
        ("compare", "; the same command goes on where this one was"),
        ("dashboard", ""),
        ("test", ""),
    ],
)
def test_a_stopped_command_says_how_to_go_on(capsys, monkeypatch, command, way_on):
    monkeypatch.setattr(cli, "run", lambda arguments: os.kill(os.getpid(), signal.SIGTERM))
    assert main([command]) == 143
    assert capsys.readouterr().err == f"ralseg: stopped by SIGTERM{way_on}\n"
