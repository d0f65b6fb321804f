"""A shortened form of ``kills.py``: real processes, really killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[1] / "support" / "kills.py"


@pytest.fixture(scope="module")
def kill():
    """Has a process that has imported everything run ``kills.py`` with given arguments; gives what that said."""
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, SCRIPT, "serve"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def ask(*arguments):
            print(json.dumps(arguments), file=server.stdin, flush=True)
            code, said = json.loads(server.stdout.readline())
            assert code == 0, said[-9000:]
            return said

        yield ask
        server.stdin.close()  # it removes its folder and leaves
        try:
            server.wait(60)
        finally:
            server.kill()


FAULTS = [
    "ralseg.labels.ledger.RegionLedger.add:6",  # chosen, but not yet labelled
    "ralseg.agents.replay.ReplayBuffer.add:3",  # rewarded, but not yet remembered
    "ralseg.runtime.checkpoints._keep:2",  # a checkpoint written, but not yet in its place
    "ralseg.engine.fit_trainer.episode_table:2",  # an episode ended, but not yet noted
    "ralseg.engine.fit_trainer.FitTrainer._write_policy:1",  # all played, but the policy not yet handed on
]


def test_a_game_that_is_killed_or_stopped_ends_like_one_that_was_not(kill):
    """Faults and signals one after the other: each run goes on from what the one before has left."""
    assert kill("fit", "--chain", ",".join(FAULTS), "--chain", "TERM,KILL").count("the same") == 2


def test_a_game_whose_steps_are_played_by_actors_ends_like_one_that_was_not_killed(kill):
    fault = "ralseg.engine.fit_session.FitSession.take_step:4"  # played, but not yet taken
    assert kill("fit-actors", "--seed", "1", "--chain", f"TERM,{fault}").count("the same") == 1


@pytest.mark.parametrize(
    ("agent", "fault"),
    [
        ("search", "ralseg.agents.policy_search.PolicySearch.update:1"),  # a group played, but not yet learned from
        ("credit", "ralseg.agents.credit_regression.CreditRegression.remember:8"),  # amid the second group
    ],
)
def test_a_group_of_games_that_is_killed_ends_like_one_that_was_not(kill, agent, fault):
    assert kill(f"fit-{agent}", "--chain", f"{fault},KILL").count("the same") == 1


@pytest.mark.parametrize(("command", "name"), [("acquire", "INT"), ("pretrain", "TERM")])
def test_a_run_that_is_killed_or_stopped_ends_like_one_that_was_not(kill, command, name):
    assert kill(command, "--chain", f"{name},KILL", "--seed", "4").count("the same") == 1


def test_a_closed_form_acquisition_that_is_killed_ends_like_one_that_was_not(kill):
    fault = "ralseg.models.closed_form.ClosedFormSegmenter.refit:9"  # counted, but not yet fitted
    assert kill("acquire-closed", "--chain", f"{fault},KILL").count("the same") == 1


def test_a_study_that_is_killed_ends_like_one_that_was_not(kill):
    """Its cells are acquisitions, which the tests above kill; `make kills` also does so within a closed-form study."""
    assert kill("compare", "--seed", "2").count("the same") == 1
