"""A shortened form of ``kills.py``: real processes, really killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # a machine that others keep busy needs minutes
SCRIPT = Path(__file__).parents[1] / "support" / "kills.py"


@pytest.fixture(scope="module")
def kill(tmp_path_factory):
    """Run trials by one process for all tests of this file, which imports torch and makes MLflow's store once."""
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    log = (tmp_path_factory.mktemp("kills") / "stderr.txt").open("w+")
    command = [sys.executable, SCRIPT, "serve"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
    server = subprocess.Popen(command, env=environment, **pipes)

    def asked(*arguments):
        server.stdin.write(json.dumps(arguments) + "\n")
        server.stdin.flush()
        lines = list(iter_until(server.stdout, "trials that went wrong:"))
        log.seek(0)
        assert lines[-1:] == ["trials that went wrong: 0\n"], "".join(lines)[-6000:] + log.read()[-3000:]
        return "".join(lines)

    yield asked
    server.stdin.close()
    server.wait(30)


def iter_until(lines, last):
    """Lines up to the one that begins with ``last``, or to the end."""
    for line in lines:
        yield line
        if line.startswith(last):
            return


def faults(*paths):
    """One run is killed at all of them: it goes on from one to the next. Calls are counted anew each time."""
    return ["--chain", *(argument for path in paths for argument in ("--fault", path))]


def test_a_game_that_is_killed_or_stopped_ends_like_one_that_was_not(kill):
    assert kill("fit", "--chain", "--signal", "KILL", "--signal", "TERM").count("the same") == 1
    moments = faults(
        "ralseg.agents.replay.ReplayBuffer.add:3",  # rewarded, but not yet remembered
        "ralseg.labels.ledger.RegionLedger.add:3",  # chosen, but not yet labelled
        "ralseg.runtime.checkpoints._keep:2",  # a checkpoint written, but not yet in its place
        "ralseg.engine.fit_trainer.episode_table:2",  # an episode ended, but not yet noted
        "ralseg.engine.fit_trainer.FitTrainer._write_policy:1",  # all played, but the policy not yet handed on
    )
    assert kill("fit", *moments).count("the same") == 1


def test_a_game_whose_steps_are_played_by_actors_ends_like_one_that_was_not_killed(kill):
    moment = faults("ralseg.engine.fit_session.FitSession.take_step:8")  # played, but not yet taken
    assert kill("fit-actors", *moment, "--signal", "TERM", "--seed", "1").count("the same") == 1


@pytest.mark.parametrize(
    ("agent", "fault"),
    [
        ("search", "ralseg.agents.policy_search.PolicySearch.update:1"),  # a group played, but not yet learned from
        ("credit", "ralseg.agents.credit_regression.CreditRegression.remember:8"),  # amid the second group
    ],
)
def test_a_group_of_games_that_is_killed_ends_like_one_that_was_not(kill, agent, fault):
    assert kill(f"fit-{agent}", "--fault", fault).count("the same") == 1


@pytest.mark.parametrize(("command", "name"), [("acquire", "INT"), ("pretrain", "TERM")])
def test_a_run_that_is_killed_or_stopped_ends_like_one_that_was_not(kill, command, name):
    assert kill(command, "--chain", "--signal", "KILL", "--signal", name, "--seed", "4").count("the same") == 1


def test_a_closed_form_acquisition_that_is_killed_ends_like_one_that_was_not(kill):
    fault = "ralseg.models.closed_form.ClosedFormSegmenter.refit:9"  # counted, but not yet fitted
    assert kill("acquire-closed", "--fault", fault).count("the same") == 1


def test_an_acquisition_that_asks_people_and_is_killed_ends_like_one_that_was_not(kill):
    assert kill("acquire-people").count("the same") == 1
    moments = faults(
        "ralseg.annotation.journal.Journal.append:9",  # a mask written, but not yet noted
        "ralseg.annotation.request.Request.write:2",  # chosen, but nobody asked yet
        "ralseg.annotation.answers.Answers.take:2",  # all answered, but not yet taken
        "ralseg.labels.ledger.RegionLedger.add:2",  # taken, but not yet learned from
    )
    assert kill("acquire-people", *moments).count("the same") == 1


def test_a_study_that_is_killed_ends_like_one_that_was_not(kill):
    """Its cells are acquisitions, which the tests above kill; `make kills` kills studies of closed forms, too."""
    assert kill("compare", "--seed", "2").count("the same") == 1
