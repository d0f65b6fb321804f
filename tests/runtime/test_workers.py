"""Workers: jobs in other processes, and what becomes of them when somebody dies."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from ralseg.errors import ConfigError, RalsegError
from ralseg.runtime.signals import Paused, interrupts
from ralseg.runtime.workers import WorkerPool, dumps, loads


@pytest.fixture
def pool(request):
    made = WorkerPool(1, request.param)
    yield made
    made.close()


def test_tensors_travel_to_the_last_bit():
    weights, table = torch.randn(3, 4), torch.arange(6).reshape(2, 3)
    sent = {"a": weights, "again": weights, "turned": table.T, "none": torch.empty(0, 5), "one": torch.tensor(2.5)}
    back = loads(dumps(sent))
    assert all(torch.equal(back[name], sent[name]) for name in sent)
    assert back["turned"].stride() == table.T.stride()
    assert back["a"] is back["again"]
    back["a"].add_(1)  # it can be written to
    assert loads(dumps(torch.ones(2, dtype=torch.bfloat16))).dtype == torch.bfloat16


def careful():
    def work(job):
        if job == "bad":
            raise ConfigError("agent colour='blue'")
        return os.getpid()

    return work


@pytest.mark.slow
@pytest.mark.parametrize("pool", [careful], indirect=True)
def test_an_exception_is_raised_where_the_job_came_from_and_the_worker_stays(pool):
    first = pool.result(pool.submit(1))
    with pytest.raises(ConfigError, match="colour='blue'") as raised:
        pool.result(pool.submit("bad"))
    assert "in work" in str(raised.value.__cause__)
    assert pool.result(pool.submit(2)) == first != os.getpid()


def unmakable():
    raise ConfigError("no such data")


@pytest.mark.slow
@pytest.mark.parametrize("pool", [unmakable], indirect=True)
def test_a_worker_that_cannot_be_made_says_why(pool):
    with pytest.raises(ConfigError, match="no such data"):
        pool.result(pool.submit(1))


def deadly():
    return lambda job: os._exit(9)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [deadly], indirect=True)
def test_a_job_that_ends_every_worker_is_given_up(pool, caplog):
    with pytest.raises(RalsegError, match="has ended its worker 3 times"):
        pool.result(pool.submit(1))
    assert caplog.text.count("a worker has died (exit code 9)") == 3


def sleepy():
    return lambda job: time.sleep(60)


@pytest.mark.parametrize("pool", [sleepy], indirect=True)
def test_whoever_waits_can_be_stopped(pool, monkeypatch):
    job = pool.submit(1)
    monkeypatch.setattr(interrupts, "asked", signal.SIGTERM)
    with pytest.raises(Paused) as raised:
        pool.result(job)
    assert raised.value.exit_code == 143
    worker = pool._living[0]
    pool.close()
    assert worker.process.returncode == -signal.SIGKILL


ORPHAN = """
import os, time
from ralseg.runtime.workers import WorkerPool
pool = WorkerPool(1, lambda: lambda job: os.getpid() if job else time.sleep(60))
print(pool.result(pool.submit(1)), flush=True)
pool.submit(0)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_worker_ends_with_the_process_that_asks_even_if_that_was_killed():
    # a script without `if __name__ == "__main__"`: workers do not run it again
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    assert is_alive(worker)
    parent.kill()
    parent.wait()
    end = time.monotonic() + 10
    while is_alive(worker) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_alive(worker)


def is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
