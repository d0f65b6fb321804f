"""Games that other processes play for a run: asked for ahead of time, taken step by step."""

from concurrent.futures import Future
from dataclasses import dataclass

from torch import Tensor

from ralseg.engine.session import TakenStep
from ralseg.runtime.workers import WorkerPool


@dataclass(frozen=True)
class GameJob:
    """One game to play, with all of the run's state that it depends on."""

    number: int  # of the episode in the plan
    training_steps: int  # of the run, when it begins
    weights: dict[str, Tensor]  # the agent's, and its buffers
    initial_scores: dict[str, float]  # mean IoU of the theta_0s that are known by now


class GamesElsewhere:
    """The games that have been asked for and are not taken yet.

    Args:
        pool: Who plays them.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._asked: dict[int, Future[bytes]] = {}
        self._taken: tuple[int, list[TakenStep]] = -1, []

    def __contains__(self, number: int) -> bool:
        """Whether an episode has been asked for."""
        return number in self._asked or number == self._taken[0]

    def ask(self, job: GameJob) -> None:
        """Have a game played as soon as a process is free."""
        self._asked[job.number] = self._pool.submit(job)

    def steps(self, number: int) -> list[TakenStep]:
        """All steps of an episode; waits until it is played."""
        if number != self._taken[0]:
            played: list[TakenStep] = self._pool.result(self._asked[number])
            self._taken = number, played
            del self._asked[number]
        return self._taken[1]
