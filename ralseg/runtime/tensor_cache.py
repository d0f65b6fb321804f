"""Everything that is costly to make is made once a run: in RAM up to a limit, then on disk."""

import mmap
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ralseg.errors import ConfigError


def _shared_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that forked workers share with this process, in anonymous memory.

    Not ``Tensor.share_memory_``: that needs /dev/shm, which containers keep small.
    """
    size = torch.Size(shape).numel()
    if size == 0:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize), dtype=dtype).reshape(shape)


class TensorCache:
    """Room for ``num_items`` tensors of one shape, each made once and kept.

    The first items live in shared memory (so that data-loader workers fill and read one copy), the
    rest in a memory-mapped file that vanishes with the process. Neither costs anything until written.

    Args:
        make: Makes item ``i`` of this shape and type when it is first asked for. None: items are
            only put in from outside (made in batches, say).
        num_items: Number of items.
        shape: Shape of each item.
        dtype: Type of each item.
        ram_bytes: How much may be kept in RAM.
        folder: Where the file for the rest goes; the system's temporary folder by default.
    """

    _ready: Tensor  # [num_items] whether each item has been made
    _ram: Tensor
    _disk: Tensor

    def __init__(
        self,
        make: Callable[[int], Tensor] | None,
        num_items: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        ram_bytes: int,
        folder: Path | None = None,
    ) -> None:
        self._make = make
        self._lent: dict[int, Tensor] = {}  # items that somebody else keeps
        self.shape = shape
        item_bytes = max(1, torch.Size(shape).numel() * dtype.itemsize)
        self.num_in_ram = min(num_items, ram_bytes // item_bytes)
        num_on_disk = num_items - self.num_in_ram
        with torch.inference_mode(False):  # a cache that a test was the first to ask may serve a training later
            self._make_room(num_items, num_on_disk, item_bytes, dtype, folder)

    def _make_room(
        self, num_items: int, num_on_disk: int, item_bytes: int, dtype: torch.dtype, folder: Path | None
    ) -> None:
        shape = self.shape
        self._ready = _shared_zeros((num_items,), torch.uint8)
        self._ram = _shared_zeros((self.num_in_ram, *shape), dtype)
        self._disk = torch.empty(0, *shape, dtype=dtype)
        if num_on_disk:
            self._check_disk(num_on_disk * item_bytes, folder)
            # an unlinked temporary file: the mapping keeps it alive, and a crash leaves nothing behind
            with tempfile.NamedTemporaryFile(prefix="ralseg-cache-", dir=folder) as file:
                file.truncate(num_on_disk * item_bytes)
                size = num_on_disk * torch.Size(shape).numel()
                self._disk = torch.from_file(file.name, shared=True, size=size, dtype=dtype)
                self._disk = self._disk.reshape(num_on_disk, *shape)

    @staticmethod
    def _check_disk(needed: int, folder: Path | None) -> None:
        """Filling a disk through a mapping would end the process without a word."""
        where = folder or Path(tempfile.gettempdir())
        free = shutil.disk_usage(where).free
        if needed > free:
            raise ConfigError(
                f"the cache needs {needed / 1e9:.1f} GB on disk, but {where} has {free / 1e9:.1f} GB free; set "
                "data.cache_folder to a larger disk, raise data.cache_gb, or lower data.size"
            )

    def __len__(self) -> int:
        """Number of items there is room for."""
        return self._ready.numel()

    def _slot(self, index: int) -> Tensor:
        if index in self._lent:
            return self._lent[index]
        if index < self.num_in_ram:
            return self._ram[index]
        return self._disk[index - self.num_in_ram]

    def __getitem__(self, index: int) -> Tensor:
        """Item ``index``, made now if it is asked for the first time. Do not write into it."""
        if index not in self:
            if self._make is None:
                raise KeyError(index)
            self.put(index, self._make(index))
        return self._slot(index)

    def __contains__(self, index: int) -> bool:
        """Whether the item has been made."""
        return index in self._lent or bool(self._ready[index])

    @property
    def num_lent(self) -> int:
        """Number of items that somebody else keeps."""
        return len(self._lent)

    def lend(self, index: int, item: Tensor) -> None:
        """Keep an item without a copy of it, for this process alone: it lies in a file, mapped into memory."""
        self._lent[index] = item

    def put(self, index: int, item: Tensor) -> None:
        """Keep an item."""
        self._slot(index).copy_(item)
        self._ready[index] = 1

    def clear(self) -> None:
        """Forget all items."""
        self._ready.zero_()
        self._lent = {}

    def in_ram(self) -> Tensor | None:
        """All items, made or not, as one tensor without a copy, where all are kept in RAM: [len(self), *shape]."""
        return self._ram if self.num_in_ram == len(self) else None

    def stack(self, indices: list[int] | Tensor) -> Tensor:
        """Several items as one new tensor: [len(indices), *shape]."""
        return torch.stack([self[int(index)] for index in indices])
