"""Several processes as one run: who does which part, and how they come to agree.

``trainer.devices`` and ``trainer.num_nodes`` start them; each is a rank. Images are shared out without copies, what was
found is gathered, and the first rank decides. With one process every function here gives back what it was given.
"""

import os
import pickle
from collections.abc import Callable, Iterable
from subprocess import Popen
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from ralseg.errors import RalsegError
from ralseg.runtime.seeding import mixed_seed

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
_BY_ALL = "every rank has met this"


def size() -> int:
    """Number of ranks."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Number of this one, from 0."""
    return distributed.get_rank() if size() > 1 else 0


def gather(mine: T) -> list[T]:
    """What each rank brings, in their order. No tensor of another device may be in it."""
    if size() == 1:
        return [mine]
    parts = [mine] * size()
    distributed.all_gather_object(parts, mine)
    return parts


def from_first(make: Callable[[], T]) -> T:
    """What the first rank makes, or the exception that it meets; the others only hear of it."""
    if size() == 1:
        return make()
    told: list[Any] = [None, None]
    problem: Exception | None = None
    if rank() == 0:
        try:
            told[0] = make()
            pickle.dumps(told[0])  # else the others would wait for what cannot be sent
        except Exception as error:
            problem, told = error, [None, sendable(error)]
    distributed.broadcast_object_list(told, src=0)
    if isinstance(told[1], Exception):
        raise raised_by_all(problem or told[1])
    made: T = told[0]
    return made


def sendable(error: Exception) -> Exception:
    """The exception, or what it says where it cannot be sent: it may hold a socket."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RalsegError(f"{type(error).__name__}: {error}")
    return error


def raised_by_all(error: E) -> E:
    """Mark an exception that every rank raises: the first one speaks for all."""
    error.add_note(_BY_ALL)
    return error


def _is_met_by_all(error: BaseException) -> bool:
    return _BY_ALL in getattr(error, "__notes__", ())


def is_reported_by_first(error: BaseException) -> bool:
    """Whether this rank need not say anything, for the first one does.

    Its exit code must then be 0: Lightning kills the first rank, which may still be saving, when another one fails.
    """
    return rank() > 0 and _is_met_by_all(error)


def total(tensor: Tensor) -> Tensor:
    """The sum over ranks."""
    if size() == 1:
        return tensor
    summed = tensor.detach().clone()
    distributed.all_reduce(summed)
    return summed


def mean(tensor: Tensor) -> Tensor:
    """The mean over ranks."""
    return tensor if size() == 1 else total(tensor) / size()


def own_seed(seed: int) -> int:
    """A seed of this rank's own: dropout of two ranks must not be the same."""
    return mixed_seed(seed, rank()) if rank() else seed


@torch.no_grad()
def share(tensors: Iterable[Tensor]) -> None:
    """Give every rank the first one's values, in place."""
    if size() > 1:
        for tensor in tensors:
            distributed.broadcast(tensor, src=0)


_followers: list[Popen[bytes]] = []


def remember_processes(error: BaseException, processes: list[Popen[bytes]]) -> None:
    """Note the processes of other ranks that do not know of an error of the first one's."""
    if not _is_met_by_all(error):
        _followers.extend(processes)


def end_processes() -> None:
    """End the processes that would wait for this one in vain; the last thing that it does."""
    for process in _followers:
        if process.poll() is None:
            process.kill()
    _followers.clear()


def dissolve() -> None:
    """Forget the other ranks, which have ended: what this process runs next starts its own."""
    if size() > 1:
        distributed.destroy_process_group()
        for key in ("LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
            os.environ.pop(key, None)
