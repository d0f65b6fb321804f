"""What MLflow is told: everything, in order, whenever the store comes back, and never at the run's expense."""

import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from ralseg.cli import main
from ralseg.runtime import mlflow_logger, mlflow_queue
from ralseg.runtime.mlflow_logger import RunLogger
from ralseg.runtime.signals import interrupts
from support.configs import PRETRAIN

HANG = 500.0
"""Seconds: no test waits for the clock, only for what happens; this ends one that would wait for ever."""


class Store:
    """Stands for MLflow: notes what arrives; fails, hangs or refuses when told to."""

    def __init__(self):
        self.is_up, self.refused = True, ()
        self.answers = threading.Event()
        self.answers.set()
        self.metrics, self.params, self.files, self.statuses, self.calls = [], {}, [], [], 0

    def _answer(self):
        self.calls += 1
        self.answers.wait(HANG)
        if not self.is_up:
            raise ConnectionError("nobody is there")

    def log_batch(self, run_id, metrics=(), params=()):
        self._answer()
        assert len(metrics) <= 1000
        assert len(params) <= 100
        for metric in metrics:
            if metric.key in self.refused:
                raise MlflowException("no such metric", error_code=1000)  # INVALID_PARAMETER_VALUE
        self.metrics += [(metric.key, metric.value, metric.step) for metric in metrics]
        self.params |= {param.key: param.value for param in params}

    def log_artifact(self, run_id, path):
        self._answer()
        self.files.append(path)

    def update_run(self, run_id, status):
        self._answer()
        self.statuses.append(status)

    def set_terminated(self, run_id, status):
        self._answer()
        self.statuses.append(status)

    def get_experiment_by_name(self, name):
        self._answer()
        return type("Experiment", (), {"experiment_id": "1"})

    def create_run(self, experiment, tags, run_name):
        self._answer()
        info = type("Info", (), {"run_id": "r"})
        return type("Run", (), {"info": info})


@pytest.fixture
def store(tmp_path, monkeypatch):
    fake = Store()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/store.db")

    def connect(uri):
        if not fake.is_up or uri != mlflow_logger.tracking_uri():  # a logger of an earlier test may still try
            raise ConnectionError("nobody is there")
        return fake

    monkeypatch.setattr(mlflow_queue, "connect", connect)
    monkeypatch.setattr(mlflow_queue, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(mlflow_logger, "FLUSH_SECONDS", HANG)
    yield fake
    fake.answers.set()


def log_steps(logger, first, last, pause=0.0):
    for step in range(first, last):
        logger.log_metrics({"loss": step / 2, "class <x>": 1.0}, step)
        time.sleep(pause)


def wait_until(is_so):
    end = time.monotonic() + HANG
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def losses(store):
    return [step for name, _, step in store.metrics if name == "loss"]


def test_everything_arrives_in_order(tmp_path, store):
    logger = RunLogger(str(tmp_path / "run"))
    logger.log_hyperparams({f"option{i}": i for i in range(250)})
    log_steps(logger, 0, 700)
    logger.log_file(Path(__file__))
    logger.finalize("success")
    assert losses(store) == list(range(700))
    assert ("class _x_", 1.0, 3) in store.metrics
    assert len(store.params) == 250
    assert store.files == [__file__]
    assert store.statuses == ["FINISHED"]


@pytest.mark.parametrize("away", ["at the start", "on the way", "to the end"])
def test_a_store_that_is_away_loses_nothing_and_warns_once(tmp_path, store, monkeypatch, caplog, away):
    logger = RunLogger(str(tmp_path))
    store.is_up = away != "at the start"
    log_steps(logger, 0, 10)
    if store.is_up:
        wait_until(lambda: losses(store) == list(range(10)))
    store.is_up = False
    log_steps(logger, 10, 20)
    wait_until(lambda: (tmp_path / "unsent.jsonl").is_file())
    if away != "to the end":
        store.is_up = True
    log_steps(logger, 20, 30)
    logger.finalize("success")
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "the run goes on" in warnings[0].getMessage()
    if away == "to the end":
        assert store.statuses == []
        kept = [json.loads(line) for line in (tmp_path / "unsent.jsonl").read_text().splitlines()]
        assert losses(store) + [event["step"] for event in kept if "metrics" in event] == list(range(30))
        later = Store()
        monkeypatch.setattr(mlflow_queue, "connect", lambda uri: later)
        again = RunLogger(str(tmp_path))  # the same run, given again with --ckpt last
        again.log_metrics({"loss": 1.0}, 30)
        again.finalize("success")
        assert losses(store) + losses(later) == list(range(31))
    else:
        later = store
        assert losses(store) == list(range(30))
    assert not (tmp_path / "unsent.jsonl").exists()
    assert later.statuses[-1] == "FINISHED"


def test_a_slow_store_does_not_hold_up_the_run(tmp_path, store):
    store.answers.clear()
    logger = RunLogger(str(tmp_path))
    log_steps(logger, 0, 200)
    assert losses(store) == []  # the run was through before the store
    store.answers.set()
    logger.finalize("success")
    assert losses(store) == list(range(200))
    assert store.calls < 20  # steps that wait for the store travel together


def test_a_store_that_hangs_is_not_waited_for(tmp_path, store, monkeypatch):
    monkeypatch.setattr(mlflow_logger, "FLUSH_SECONDS", 0.2)
    store.answers.clear()
    logger = RunLogger(str(tmp_path))
    log_steps(logger, 0, 5)
    logger.finalize("success")  # returns, although the store never answers
    assert losses(store) == []
    kept = [json.loads(line) for line in (tmp_path / "unsent.jsonl").read_text().splitlines()]
    assert [event["step"] for event in kept if "metrics" in event] == list(range(5))


def test_no_store_and_no_disk_is_said_once_not_for_ever(tmp_path, store, caplog):
    (tmp_path / "unsent.jsonl").mkdir()  # nothing can be appended to that
    store.is_up = False
    logger = RunLogger(str(tmp_path))
    log_steps(logger, 0, 5)
    logger.finalize("success")
    time.sleep(0.3)
    assert 1 <= caplog.text.count("kept in memory only") <= 7  # not one for each turn of an idle loop


def test_a_run_that_ends_twice_is_told_once(tmp_path, store, monkeypatch):
    # `acquire` ends for Lightning when the budget is spent, and goes on with the final trainings
    monkeypatch.setattr(mlflow_logger, "FLUSH_SECONDS", 0.1)
    store.answers.clear()
    logger = RunLogger(str(tmp_path))
    log_steps(logger, 0, 6)
    logger.finalize("success")
    part = logger.with_prefix("final")
    log_steps(logger, 6, 13)
    part.finalize("success")
    logger.finalize("success")
    store.answers.set()
    wait_until(lambda: store.statuses == ["FINISHED", "RUNNING", "FINISHED"])
    assert losses(store) == list(range(13))
    wait_until(lambda: not (tmp_path / "unsent.jsonl").exists())


def test_the_last_try_does_not_wait_for_its_turn(tmp_path, store, monkeypatch):
    """One is under way when the run ends, and fails; the next begins at once, not when it would be due."""
    monkeypatch.setattr(mlflow_queue, "RETRY_SECONDS", HANG)
    tries, may_fail = [], threading.Event()

    def connect(uri):
        if str(tmp_path) in uri:  # the thread of an earlier test may still try its own
            tries.append(uri)
        may_fail.wait(HANG)
        raise ConnectionError("nobody is there")

    monkeypatch.setattr(mlflow_queue, "connect", connect)
    logger = RunLogger(str(tmp_path))
    log_steps(logger, 0, 3)
    wait_until(lambda: tries)
    end = threading.Thread(target=logger.finalize, args=("success",), daemon=True)
    end.start()
    wait_until(lambda: logger.post._old_tries == 1)  # it waits, for the try after the one under way
    may_fail.set()
    end.join(HANG / 2)
    assert not end.is_alive()
    assert len(tries) == 2
    assert (tmp_path / "unsent.jsonl").is_file()


def test_a_run_that_was_told_to_leave_does_not_wait(tmp_path, store, monkeypatch):
    monkeypatch.setattr(interrupts, "asked", 15)
    monkeypatch.setattr(mlflow_logger, "HURRIED_SECONDS", 0.1)
    store.answers.clear()
    logger = RunLogger(str(tmp_path))
    log_steps(logger, 0, 5)
    logger.finalize("failed")
    kept = [json.loads(line) for line in (tmp_path / "unsent.jsonl").read_text().splitlines()]
    assert kept[-1] == {"status": "KILLED"}
    store.answers.set()
    wait_until(lambda: store.statuses == ["KILLED"])


def test_what_the_store_will_never_take_blocks_nothing(tmp_path, store):
    store.refused = ("bad",)
    logger = RunLogger(str(tmp_path))
    logger.log_hyperparams({"a": 1})
    for step in range(5):
        logger.log_metrics({"loss": 0.5, "bad": 1.0, "x" * 300: 2.0}, step)
    logger.finalize("failed")
    assert losses(store) == list(range(5))
    assert ("x" * 250, 2.0, 4) in store.metrics
    assert store.statuses == ["FAILED"]


def test_no_password_is_written_anywhere(tmp_path, store, monkeypatch, caplog, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:geheim@127.0.0.1:9/x")
    logger = RunLogger(str(tmp_path))
    log_steps(logger, 0, 3)
    wait_until(lambda: (tmp_path / "mlflow.json").is_file())
    store.is_up = False
    log_steps(logger, 3, 6)
    logger.finalize("success")
    monkeypatch.undo()  # a real client of MLflow's, whose errors have the address in them
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:ge@heim@127.0.0.1:9/x")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    again = RunLogger(str(tmp_path / "again"))
    log_steps(again, 0, 3)
    again.finalize("success")
    assert main(["dashboard"]) == 0
    kept = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) == 3
    said = "".join([caplog.text, capsys.readouterr().out, *kept])
    assert "geheim" not in said
    assert "heim@" not in said
    assert "http://127.0.0.1:9/x" in said


def test_a_damaged_file_of_unsent_events_is_passed_over(tmp_path, store, caplog):
    (tmp_path / "unsent.jsonl").write_text("{half")
    logger = RunLogger(str(tmp_path))
    log_steps(logger, 0, 3)
    logger.finalize("success")
    assert losses(store) == [0, 1, 2]
    assert "a damaged line is passed over" in caplog.text


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a machine that others keep busy needs minutes
def test_training_without_a_server_then_with_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # a store in a folder that cannot be made, as long as a file stands in its place
    Path("away").write_text("")
    uri = f"sqlite:///{tmp_path / 'away' / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    # MLflow needs a minute to make its tables where others work: the run's end waits for them, however long
    monkeypatch.setattr(mlflow_logger, "FLUSH_SECONDS", HANG)
    # and the first run's thread lives on in this process: it must not tell the store what the second run tells it
    monkeypatch.setattr(mlflow_queue, "RETRY_SECONDS", 3600.0)
    Path("tiny.yaml").write_text(PRETRAIN)
    arguments = ["pretrain", "--config", "tiny.yaml", "--trainer.logger", "true"]
    assert main(arguments) == 0
    assert Path("run/unsent.jsonl").is_file()
    Path("away").unlink()
    assert main([*arguments, "--ckpt", "last"]) == 0
    assert not Path("run/unsent.jsonl").exists()
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("ralseg").experiment_id])
    assert [m.step for m in client.get_metric_history(run.info.run_id, "segmenter/loss")] == list(range(8))
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_two_processes_may_make_one_store(tmp_path):
    code = (
        "import sys; from ralseg.runtime.mlflow_queue import connect; "
        "print(len(connect(sys.argv[1]).search_experiments()))"
    )
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path / 'mlflow.db'}"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=HANG)
        assert (process.returncode, out) == (0, "1\n"), err
