"""Several processes as one run: who does which part, and how they come to agree.

``trainer.devices`` and ``trainer.num_nodes`` start them; each is a rank. Images are shared out without copies, what was
found is gathered, and the first rank decides. With one process every function here gives back what it was given.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, distributed, nn

from ralseg.randomness import mixed_seed

T = TypeVar("T")


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
    parts: list[T | None] = [None] * size()
    distributed.all_gather_object(parts, mine)
    return parts  # type: ignore[return-value]


def from_first(make: Callable[[], T]) -> T:
    """What the first rank makes, or the exception that it meets; the others only hear of it."""
    if size() == 1:
        return make()
    told: list[object] = [None, None]
    if rank() == 0:
        try:
            told[0] = make()
        except Exception as error:
            told[1] = error
    distributed.broadcast_object_list(told, src=0)
    if isinstance(told[1], Exception):
        raise told[1]
    return told[0]  # type: ignore[return-value]


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


def share_buffers(module: nn.Module) -> None:
    """Give every rank the first one's statistics of batch normalisation.

    Lightning leaves this out where a module optimises by hand.
    """
    if size() == 1:
        return
    for buffer in module.buffers():
        distributed.broadcast(buffer, src=0)
