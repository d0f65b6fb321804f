"""Checkpoint files that survive a kill, a full disk and a stranger."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from ralseg.errors import ConfigError, DataError
from ralseg.files import write_atomically


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target, then renames it; reads nothing but plain data.

    Lightning's own writer goes through the system's temporary folder and can lose the previous
    file when that is on another disk.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``: all of it, or nothing."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_atomically(Path(path), buffer.getbuffer())

    def load_checkpoint(
        self,
        path: Any,
        map_location: Callable[..., Any] | None = lambda storage, _: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint without running code in it, whatever ``weights_only`` says."""
        return read_checkpoint(Path(path), map_location)


def read_checkpoint(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint from a local file; code in it is refused, not run."""
    if "://" in str(path) or str(path).startswith(("http:/", "https:/")):
        raise ConfigError(f"{path}: checkpoints are read from local files only; download it first")
    if not path.is_file():
        raise ConfigError(f"{path}: no such checkpoint")
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # torch raises pickle, zip, and runtime errors alike
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: not a checkpoint that can be read safely ({reason})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, not a checkpoint")
    return content
