"""Who runs the cells of a study: processes of this machine, SLURM through submitit, or a Ray cluster.

An executor takes cells and gives each back as it ends, with what went wrong. A cell goes on where an earlier try was
cut off, so an executor may stop and start it anywhere; all it needs is the same folders on every machine.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol

from ralseg.errors import ConfigError
from ralseg.runtime import distributed
from ralseg.runtime.ray_cluster import RayCluster, optional_package
from ralseg.runtime.signals import Interrupted, interrupts
from ralseg.studies.plan import Acquire, Cell, Study, run_cell

Outcome = tuple[Cell, str | None]
_ORPHAN_SECONDS = 9.0  # a step's grace, and then some
_DIED = "the process died: killed, or out of memory"
_PASSED_ON = ("MLFLOW_", "RALSEG_", "OMP_", "GOMP_", "HF_")


class Executor(Protocol):
    """Runs cells somewhere."""

    def run(self, cells: list[Cell], acquire: Acquire) -> Iterator[Outcome]:
        """Each cell as it ends, with what went wrong."""


def make_executor(config: Study) -> Executor:
    """The executor that a study asks for."""
    executors = {"local": Local, "submitit": Submitit, "ray": Ray}
    options = ({"jobs": config.jobs} if config.engine == "local" else {}) | config.engine_options
    try:
        executor: Executor = executors[config.engine](**options)
    except TypeError as error:
        raise ConfigError(f"engine_options={config.engine_options}: {error}") from None
    return executor


@dataclass(frozen=True)
class Task:
    """A cell as it travels to another process, with what that process must know of this one.

    Args:
        cell: The cell.
        acquire: Runs `ralseg acquire` with the values of a configuration.
        threads: Threads of torch; None: what the environment says.
        folder: Where this process works: paths of a study are relative to it.
        environment: Variables that the other process takes over.
    """

    cell: Cell
    acquire: Acquire
    threads: int | None = None
    folder: str = field(default_factory=os.getcwd)
    environment: dict[str, str] = field(
        default_factory=lambda: {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    )

    def __call__(self) -> str | None:
        """Run the cell, its output in its log."""
        import torch

        os.chdir(self.folder)
        os.environ.update(self.environment)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        log = Path(self.cell.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        with log.open("a") as file, interrupts.handled(ignore_keyboard=True):
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            try:
                return run_cell(self.cell, self.acquire)
            except Interrupted as error:
                print(error, file=sys.stderr, flush=True)
                distributed.end_processes()
                os._exit(error.exit_code)  # no other cell for this process
            finally:
                distributed.end_processes()
                distributed.dissolve()  # the next cell in this process may have devices of its own

    def checkpoint(self) -> Any:
        """What submitit sends to the queue when a job is preempted or out of time: the same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class Local:
    """Processes of this machine.

    Args:
        jobs: How many at a time, each with its share of the cores.
    """

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs

    def run(self, cells: list[Cell], acquire: Acquire) -> Iterator[Outcome]:
        """Run cells in a pool; one that dies takes the pool along, and those in it run again, each in its own."""
        for cell, problem in self._through_pool(cells, self.jobs, acquire):
            if problem is _DIED:
                yield from self._through_pool([cell], 1, acquire)
            else:
                yield cell, problem

    def _through_pool(self, cells: list[Cell], jobs: int, acquire: Acquire) -> Iterator[Outcome]:
        threads = threads_for(self.jobs)
        # spawned, not forked: torch's threads do not survive a fork
        pool = ProcessPoolExecutor(min(jobs, len(cells)), get_context("spawn"), initializer=_follow_parent)
        try:
            futures: dict[Future[str | None], Cell] = {}
            for cell in cells:
                futures[pool.submit(Task(cell, acquire, threads))] = cell
            for future in as_completed(futures):
                try:
                    yield futures[future], future.result()
                except BrokenProcessPool:
                    yield futures[future], _DIED
        finally:
            pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """End with the parent process, even if that was killed: nobody would collect this one's result."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHAN_SECONDS)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def threads_for(jobs: int) -> int:
    """Threads of each of ``jobs`` processes: what the user set, or an equal share of the cores."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(chosen) if chosen.isdigit() else max(1, cores // jobs)


class Submitit:
    """A SLURM array through submitit. The jobs outlive this process; a cell that still runs keeps its folder to itself.

    Args:
        cluster: ``slurm``; ``local`` runs the same on this machine, to try it out.
        folder: For submitit's own files; shared by all machines.
        parameters: What submitit's executor takes: ``slurm_partition``, ``timeout_min``, ``cpus_per_task``,
            ``gpus_per_node``, ``slurm_array_parallelism``, ...
    """

    def __init__(self, cluster: str = "slurm", folder: str = "runs/submitit", **parameters: Any) -> None:
        self.cluster, self.folder, self.parameters = cluster, folder, parameters

    def run(self, cells: list[Cell], acquire: Acquire) -> Iterator[Outcome]:
        """Submit an array of all cells and wait for them."""
        submitit = optional_package("submitit", "slurm", "engine")
        executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
        executor.update_parameters(**({"timeout_min": 24 * 60, "name": "ralseg"} | self.parameters))
        with executor.batch():
            jobs = [executor.submit(Task(cell, acquire)) for cell in cells]
        waiting = dict(zip(cells, jobs, strict=True))
        try:
            while waiting:
                for cell in [cell for cell, job in waiting.items() if job.done()]:
                    yield cell, self._problem(waiting.pop(cell))
                time.sleep(0.5 if self.cluster == "local" else 10.0)
        finally:
            for job in waiting.values() if self.cluster == "local" else ():
                job.cancel()

    @staticmethod
    def _problem(job: Any) -> str | None:
        try:
            found: str | None = job.result()
        except Exception as error:  # submitit raises what the job did, or its own kinds
            return f"job {job.job_id}: {error}"
        return found


class Ray:
    """Tasks of a Ray cluster that exists, or of this machine.

    Args:
        options: Of :class:`RayCluster`; each cell is a process.
    """

    def __init__(self, **options: Any) -> None:
        self.cluster = RayCluster.of(options)

    def run(self, cells: list[Cell], acquire: Acquire) -> Iterator[Outcome]:
        """Start a task for each cell and give back those that end."""
        ray = self.cluster.connect()
        # a process of its own for each cell: it redirects its output and takes signals
        remote = ray.remote(**self.cluster.needs(), max_calls=1, max_retries=1)(_run_task)
        waiting = {remote.remote(Task(cell, acquire, max(1, int(self.cluster.num_cpus)))): cell for cell in cells}
        try:
            while waiting:
                ended, _ = ray.wait(list(waiting), num_returns=1, timeout=10)
                for reference in ended:
                    yield waiting.pop(reference), self._problem(ray, reference)
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)
            self.cluster.leave()

    @staticmethod
    def _problem(ray: Any, reference: Any) -> str | None:
        try:
            found: str | None = ray.get(reference)
        except ray.exceptions.RayError as error:
            return f"Ray: {str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__}"
        return found


def _run_task(task: Task) -> str | None:
    return task()
