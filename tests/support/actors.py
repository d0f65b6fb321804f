"""Actors without processes, which take seconds to start; and what games must have in common, whoever plays them."""

from concurrent.futures import Future
from multiprocessing.connection import Listener
from tempfile import TemporaryDirectory

import cloudpickle

from ralseg.runtime import workers
from support.forge import Forge
from support.games import everything


class PoolHere(workers.WorkerPool):
    """Does every job in this process when it is asked for; all that would travel does."""

    def __init__(self, count, recipe, engine="local", options=None, keys=()):
        self._works = [cloudpickle.loads(cloudpickle.dumps(recipe))() for _ in range(count)]
        self.done = 0

    def submit(self, job):
        future = Future()
        work = self._works[self.done % len(self._works)]
        future.set_result(workers._answer(work, workers.dumps(job)))
        self.done += 1
        return future

    def close(self):
        pass


def forged_worker(forge: Forge) -> type[workers.LocalWorker]:
    """Workers that are processes as any other, but need no seconds to start."""

    class Forged(workers.LocalWorker):
        def __init__(self, recipe):
            with TemporaryDirectory() as folder, Listener(f"{folder}/socket") as listener:
                self.process = forge.start_worker(listener.address)
                self._connection, self._recipe = listener.accept(), recipe

    return Forged


def learned(trainer) -> dict:
    """All that a run has learned and leaves: everything but the clock and the segmenter, which the next game resets."""
    found = everything(trainer)
    session = {
        key: value for key, value in found["session"].items() if key not in ("average", "is_amid_game_elsewhere")
    }
    weights = {name: weight for name, weight in found["weights"].items() if name.startswith("agent.")}
    counts = {"global_step": trainer.global_step, "epoch": trainer.current_epoch}
    return {"session": session, "weights": weights, "optimizer": found["optimizers"][1]} | counts
