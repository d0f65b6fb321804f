"""Where labels are kept: in memory while they are few, and beyond that in a file that no run leaves behind."""

import os
import tempfile
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ralseg.errors import RalsegError

MEMORY = 2**30
"""Bytes of labels that are kept in memory: twice what the paper's largest budget takes on Cityscapes."""


class LabelStore:
    """Labels by their region. What goes beyond ``memory`` stands in an unnamed file in the system's temporary folder.

    The file is gone when its process is, however it ends: a resumed run asks its oracle for all labels again. Workers
    that are forked read it too.

    Args:
        memory: Bytes that may be kept in memory.

    Examples:
        >>> store = LabelStore(memory=0)
        >>> store[7] = torch.tensor([[3, 255]], dtype=torch.uint8)
        >>> store[7]
        tensor([[  3, 255]], dtype=torch.uint8)
    """

    def __init__(self, memory: int = MEMORY) -> None:
        self._memory = memory
        self._kept: dict[int, Tensor] = {}
        self._kept_bytes = 0
        self._places: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._file: IO[bytes] | None = None
        self._end = 0

    def __setitem__(self, region: int, label: Tensor) -> None:
        """Keep a label of uint8; what was known of the region is replaced."""
        if region in self._kept:
            self._kept_bytes -= self._kept.pop(region).numel()
        if region not in self._places and self._kept_bytes + label.numel() <= self._memory:
            self._kept[region] = label
            self._kept_bytes += label.numel()
            return
        place, shape = self._places.get(region, (self._end, tuple(label.shape)))
        if shape != tuple(label.shape):
            place = self._end
        self._write(place, label.contiguous().numpy().tobytes())
        self._places[region] = place, tuple(label.shape)
        self._end = max(self._end, place + label.numel())

    def __getitem__(self, region: int) -> Tensor:
        """The label of a region; KeyError: there is none."""
        if region in self._kept:
            return self._kept[region]
        place, shape = self._places[region]
        assert self._file is not None
        content = bytearray(os.pread(self._file.fileno(), torch.Size(shape).numel(), place))
        return torch.frombuffer(content, dtype=torch.uint8).reshape(shape)

    def _write(self, place: int, content: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="ralseg-labels-", buffering=0)  # noqa: SIM115 - as long as this
        try:
            written = os.pwrite(self._file.fileno(), content, place)
        except OSError as error:
            raise _no_room(str(error)) from error
        if written < len(content):
            raise _no_room("it is full")

    def __getstate__(self) -> dict[str, Any]:
        """For processes that are not forked: they cannot share a file without a name."""
        if self._file is not None:
            raise RalsegError(
                f"labels beyond {self._memory} bytes stand in a file that spawned processes cannot read; set "
                "data.num_workers to 0"
            )
        return self.__dict__


def _no_room(reason: str) -> RalsegError:
    folder = Path(tempfile.gettempdir())
    return RalsegError(
        f"{folder}: the labels of this run do not fit there ({reason}); make room or let TMPDIR name another folder, "
        "then go on with --ckpt last"
    )
