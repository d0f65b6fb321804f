"""A shortened form of ``kills.py``: real processes, really killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "kills.py"


def kill(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, SCRIPT, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("command", ["fit", "acquire", "pretrain"])
def test_a_killed_run_ends_like_one_that_was_not(command):
    said = kill(command, "--trials", "2")
    assert said.count("the same") == 2
    assert said.count("too late") < 2


def test_a_killed_study_ends_like_one_that_was_not():
    assert kill("compare", "--seed", "2").count("the same") == 1


@pytest.mark.parametrize(("command", "name"), [("fit", "TERM"), ("acquire", "INT"), ("pretrain", "TERM")])
def test_a_run_that_is_asked_to_stop_saves_and_says_so(command, name):
    said = kill(command, "--signal", name, "--seed", "1")
    assert said.count("the same") == 1
    assert "too late" not in said


FAULTS = [
    "ralseg.ledger.RegionLedger.add:6",  # chosen, but not yet labelled
    "ralseg.replay.ReplayBuffer.add:5",  # rewarded, but not yet remembered
    "ralseg.checkpoints._keep:2",  # a checkpoint written, but not yet in its place
    "ralseg.al_trainer.selection_table:2",  # an episode ended, but not yet noted
]


def test_kills_between_any_two_things_that_belong_together():
    faults = [argument for fault in FAULTS for argument in ("--fault", fault)]
    assert kill("fit", *faults).count("the same") == len(FAULTS)
