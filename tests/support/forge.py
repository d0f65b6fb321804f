"""Commands and workers of ralseg in processes of their own, each of which costs its run and not its start.

A server imports torch, Lightning and ralseg once and forks a child for every command. It runs nothing itself, so that
it has no threads and each fork is as good as the first. A child is a process as any other: it has its own exit code,
and can be killed. (`python -m ralseg` itself is started where a test is about that.)
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any


class Forged:
    """A command in a process of its own; what tests need of `subprocess.Popen`.

    Args:
        forge: Where it was made.
        pid: Its process.
        log: What it prints.
    """

    def __init__(self, forge: "Forge", pid: int, log: Path) -> None:
        self.pid, self.log, self.returncode = pid, log, None
        self._forge = forge

    def poll(self) -> int | None:
        """Its exit code, negative after a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._forge.ask({"poll": self.pid})
        return self.returncode

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code, once it has ended."""
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), seconds)
            time.sleep(0.02)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Forge:
    """The server, as a test sees it: it starts with the first command."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def start(self, *arguments: str, folder: Path, log: Path, **environment: str) -> Forged:
        """Start `ralseg` in a folder; what it prints is added to a file."""
        asked = {"arguments": arguments, "folder": str(folder), "log": str(log), "environment": environment}
        return Forged(self, self.ask(asked), log)

    def start_worker(self, address: str) -> Forged:
        """Start a worker of `ralseg.runtime.workers` that is asked over a socket."""
        return Forged(self, self.ask({"worker": address}), Path(os.devnull))

    def packages(self) -> list[str]:
        """What an interpreter has imported for `ralseg.commands`, and nothing else."""
        return self.ask({"packages": True})

    def ask(self, request: dict[str, Any]) -> Any:
        """What the server answers."""
        with self._lock:
            if self._server is None:
                pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
                self._server = subprocess.Popen([sys.executable, __file__], **pipes)
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            return json.loads(self._server.stdout.readline())

    def close(self) -> None:
        """End the server; its children end by themselves, or were ended by who started them."""
        if self._server is not None:
            self._server.communicate()


@contextmanager
def open_forge() -> Iterator[Forge]:
    """A forge that is closed at the end."""
    forge = Forge()
    try:
        yield forge
    finally:
        forge.close()


# -- the server ------------------------------------------------------------------------------------


def serve() -> None:
    """Answer lines of requests until there are no more."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    importlib.import_module("ralseg.commands")
    packages = sorted({name.partition(".")[0] for name in sys.modules})
    for heavy in ("mlflow.tracking", "segmentation_models_pytorch", "torch._dynamo"):
        importlib.import_module(heavy)
    for line in sys.stdin:
        request = json.loads(line)
        if "packages" in request:
            answer: Any = packages
        else:
            answer = ended(request["poll"]) if "poll" in request else forked(request)
        print(json.dumps(answer), flush=True)


def ended(pid: int) -> int | None:
    """The exit code of a child that has ended."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def forked(request: dict[str, Any]) -> int:
    """The process of a command."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = work(request["worker"]) if "worker" in request else run(**request)
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def work(address: str) -> int:
    """Do the jobs of whoever listens there."""
    from ralseg.runtime.workers import serve as serve_jobs

    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(quiet, descriptor)
    connection = Client(address)
    serve_jobs(connection.fileno())
    return 0


def run(arguments: list[str], folder: str, log: str, environment: dict[str, str]) -> int:
    """Run a command in a child."""
    from ralseg.cli import main

    os.chdir(folder)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, out)):
        os.dup2(file, descriptor)
    os.environ |= environment
    sys.argv = ["ralseg", *arguments]
    sys.path.insert(0, "")  # as `python -m ralseg` has it
    return main(arguments)


if __name__ == "__main__":
    serve()
