"""Workers: other processes that do one kind of job, here or on a Ray cluster, and are replaced when they die.

A worker is made once, from a recipe: a callable that `cloudpickle` can send, and that gives what does the jobs. Jobs
and answers are plain bytes. Nothing of torch's shared memory is used, which runs out of file descriptors.
"""

import copyreg
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from io import BytesIO
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Literal, Protocol

import cloudpickle

from ralseg.errors import ConfigError, RalsegError
from ralseg.runtime.ray_cluster import STUDY_KEYS, RayCluster
from ralseg.runtime.signals import Paused, interrupts

log = logging.getLogger(__name__)
Engine = Literal["local", "ray"]
TRIES = 3
"""How often a job may end its worker before the run gives up."""
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ralseg.runtime.workers import serve; serve(int(sys.argv[2]))"
)
_POLL_SECONDS = 0.1
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Of every worker: what it computes must not depend on the machine that it is on."""


class WorkerDied(Exception):
    """A worker ended in the middle of a job, or before it."""


class WorkerTraceback(Exception):
    """Where in a worker an exception came from; the cause of the same exception here."""


class Worker(Protocol):
    """Another process that does jobs."""

    def prepare(self) -> None:
        """Get ready for the first job."""

    def ask(self, job: bytes) -> bytes:
        """Have a job done; raises :class:`WorkerDied`."""

    def kill(self) -> None:
        """End it at once."""


# -- what travels ----------------------------------------------------------------------------------


def _reduced(tensor: Any) -> Any:
    """A tensor as an array: torch's own way costs half a millisecond for each."""
    import torch

    is_plain = tensor.device.type == "cpu" and not tensor.requires_grad and tensor.dtype != torch.bfloat16
    if not is_plain or not tensor.is_contiguous():  # sums over other strides would round differently
        return tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    return torch.from_numpy, (tensor.numpy(),)


def dumps(value: Any) -> bytes:
    """A value as bytes, its tensors to the last bit.

    Examples:
        >>> import torch
        >>> loads(dumps({"weights": torch.ones(2)}))
        {'weights': tensor([1., 1.])}
    """
    import torch  # a worker starts without it, to see early whether anyone is still there

    file = BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = copyreg.dispatch_table | {torch.Tensor: _reduced}
    pickler.dump(value)
    return file.getvalue()


def loads(sent: bytes) -> Any:
    """What :func:`dumps` was given, in another process of this run."""
    return pickle.loads(sent)


def _answer(work: Callable[[Any], Any], job: bytes) -> bytes:
    """What a job gives, or the exception that it meets."""
    from ralseg.runtime.distributed import sendable

    try:
        return dumps((work(loads(job)), None, ""))
    except Exception as error:
        return dumps((None, sendable(error), traceback.format_exc()))


def _opened(answer: bytes) -> Any:
    """What a job gave; raises what it met."""
    found, error, where = loads(answer)
    if error is not None:
        raise error from WorkerTraceback(where)
    return found


# -- a process of this machine ---------------------------------------------------------------------


class LocalWorker:
    """A process of this machine with one thread for torch. It ends with this one, however that ends.

    It is started by itself, not by ``multiprocessing``: that would run the user's script again.

    Args:
        recipe: Makes what does the jobs.
    """

    def __init__(self, recipe: bytes) -> None:
        self._connection, theirs = Pipe()
        command = [sys.executable, "-c", _START, json.dumps(sys.path), str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=os.environ | ONE_THREAD, pass_fds=[theirs.fileno()]
            )
        self._recipe: bytes | None = recipe

    def ask(self, job: bytes) -> bytes:
        """Have a job done."""
        try:
            self.prepare()
            self._connection.send_bytes(job)
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            self.kill()
            raise WorkerDied(f"exit code {self.process.returncode}") from error

    def prepare(self) -> None:
        """Send the recipe, so that the process is ready when the first job comes."""
        if self._recipe is not None:
            self._connection.send_bytes(self._recipe)
            self._recipe = None

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()


def serve(descriptor: int) -> None:
    """What a local worker does: make the worker from the first message, then answer jobs until nobody is there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    connection, received = Connection(descriptor), SimpleQueue[bytes]()

    def receive() -> None:
        try:
            while True:
                received.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # whoever asked is gone: nobody would collect the answer

    threading.Thread(target=receive, daemon=True).start()
    work = _made(received.get())
    while True:
        connection.send_bytes(_answer(work, received.get()))


def _made(recipe: bytes) -> Callable[[Any], Any]:
    """What does the jobs; where it cannot be made, every job says why."""
    try:
        work: Callable[[Any], Any] = cloudpickle.loads(recipe)()
    except Exception as error:
        problem = error

        def fail(job: Any) -> Any:
            raise problem

        return fail
    return work


# -- a process of a Ray cluster --------------------------------------------------------------------


class _RayServant:
    """What runs in the process of a Ray actor."""

    def __init__(self, path: list[str], folder: str, recipe: bytes) -> None:
        sys.path[:] = [*path, *(place for place in sys.path if place not in path)]
        os.chdir(folder)
        self._work = _made(recipe)

    def answer(self, job: bytes) -> bytes:
        return _answer(self._work, job)


class RayWorker:
    """A process of a Ray cluster. All machines need the same folders.

    Args:
        cluster: The cluster, connected to.
        recipe: Makes what does the jobs.
    """

    def __init__(self, cluster: RayCluster, recipe: bytes) -> None:
        self._ray = cluster.connect()
        options = cluster.needs() | {"runtime_env": {"env_vars": ONE_THREAD}}
        remote = self._ray.remote(**options)(_RayServant)
        self._actor = remote.remote([place for place in sys.path if place], os.getcwd(), recipe)

    def prepare(self) -> None:
        """Nothing to do: Ray sends the recipe by itself."""

    def ask(self, job: bytes) -> bytes:
        """Have a job done."""
        try:
            answer: bytes = self._ray.get(self._actor.answer.remote(job))
        except self._ray.exceptions.RayActorError as error:
            raise WorkerDied(str(error)) from error
        return answer

    def kill(self) -> None:
        """End it at once."""
        self._ray.kill(self._actor)


# -- several of them -------------------------------------------------------------------------------


class WorkerPool:
    """Several workers, each with one job at a time. One that dies is replaced, and its job done again.

    Args:
        count: How many.
        recipe: Makes what does the jobs, in each of them.
        engine: ``local`` or ``ray``.
        options: Of a :class:`RayCluster`; a local pool has none.
        keys: What the configuration calls engine and options, for messages.

    Examples:
        >>> pool = WorkerPool(1, lambda: abs)
        >>> [pool.result(job) for job in (pool.submit(-3), pool.submit(4))]
        [3, 4]
        >>> pool.close()
    """

    def __init__(
        self,
        count: int,
        recipe: Callable[[], Callable[[Any], Any]],
        engine: Engine = "local",
        options: dict[str, Any] | None = None,
        keys: tuple[str, str] = STUDY_KEYS,
    ) -> None:
        if engine == "local" and options:
            raise ConfigError(f"{keys[1]}={options}: local processes have no options; leave them out")
        self._count, self._recipe = count, cloudpickle.dumps(recipe)
        self._cluster: RayCluster | None = None
        if engine == "ray":
            self._cluster = RayCluster.of(options or {}, keys)
            self._cluster.connect()
        self._jobs = SimpleQueue[tuple[bytes, Future[bytes]] | None]()
        self._lock, self._is_closed = threading.Lock(), False
        self._living: list[Worker] = []
        for _ in range(count):
            threading.Thread(target=self._tend, daemon=True).start()

    def submit(self, job: Any) -> "Future[bytes]":
        """Have a job done as soon as a worker is free, in the order of asking."""
        future: Future[bytes] = Future()
        self._jobs.put((dumps(job), future))
        return future

    @staticmethod
    def result(future: "Future[bytes]") -> Any:
        """What a job gave, or the exception that it met; waits, unless this process is asked to stop."""
        while not wait([future], _POLL_SECONDS).done:
            if interrupts.asked is not None:
                raise Paused(interrupts.asked)
        return _opened(future.result())

    def close(self) -> None:
        """End all workers at once."""
        with self._lock:
            self._is_closed = True
            for worker in self._living:
                worker.kill()
        for _ in range(self._count):
            self._jobs.put(None)
        if self._cluster is not None:
            self._cluster.leave()

    def _tend(self) -> None:
        """Keep one worker alive and busy: the work of a thread."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # the worker takes this over while it starts
        worker: Worker | None = None
        with suppress(Exception):  # what is wrong is told when there is a job
            worker = self._started()
        while True:
            asked = self._jobs.get()
            if asked is None or self._is_closed:
                return
            job, future = asked
            for _ in range(TRIES):
                try:
                    worker = worker or self._started()
                    future.set_result(worker.ask(job))
                    break
                except WorkerDied as error:
                    if self._is_closed:
                        return
                    log.warning("a worker has died (%s): another one does its job", error)
                    worker = None
                except Exception as error:  # no worker can be started, say
                    future.set_exception(error)
                    break
            else:
                message = f"a job has ended its worker {TRIES} times: killed, or out of memory; use fewer workers"
                future.set_exception(RalsegError(f"{message}, then go on with --ckpt last"))

    def _started(self) -> Worker:
        worker: Worker = RayWorker(self._cluster, self._recipe) if self._cluster else LocalWorker(self._recipe)
        with self._lock:
            self._living.append(worker)
            if self._is_closed:
                worker.kill()
        with suppress(OSError):  # it may have died by now; the next job will notice
            worker.prepare()
        return worker
