"""Checkpoint files that survive a kill, a full disk and a stranger."""

import contextlib
import io
import os
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from ralseg.errors import ConfigError, DataError, NotFiniteError
from ralseg.runtime.files import write_atomically

LAST = "last.ckpt"


class DurableCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target, then renames it; reads nothing but plain data.

    Lightning's own writer goes through the system's temporary folder and can lose the previous
    file when that is on another disk. The one before ``last.ckpt`` is kept.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write ``checkpoint`` to ``path``: all of it, or nothing; never weights that are ruined over good ones."""
        target = Path(path)
        ruined = [name for name, value in checkpoint.get("state_dict", {}).items() if not _is_finite(value)]
        ruined += ["an optimizer's state"] if not _is_finite(checkpoint.get("optimizer_states", [])) else []
        if ruined:
            message = f"{target}: not written, for weights are not finite ({', '.join(ruined[:3])})"
            raise NotFiniteError(message, {"epoch": checkpoint.get("epoch"), "weights": ruined})
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        before = (lambda: _keep(target)) if target.name == LAST else None
        write_atomically(target, buffer.getbuffer(), before)

    def load_checkpoint(
        self,
        path: Any,
        map_location: Callable[..., Any] | None = lambda storage, _: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint without running code in it, whatever ``weights_only`` says."""
        return read_checkpoint(Path(path), map_location)


def _is_finite(value: Any) -> bool:
    """Whether all tensors in nested containers are finite."""
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return all(map(_is_finite, inner))


def previous_of(path: Path) -> Path:
    """Where the checkpoint before ``path`` is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def _keep(path: Path) -> None:
    """Give the file a second name, which takes no room until the first one gets other content."""
    if path.is_file():
        link = path.with_name(f".{path.name}.the_link.part")
        link.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a file system without links keeps one checkpoint only
            os.link(path, link)
            link.replace(previous_of(path))


def _problem(path: Path) -> str | None:
    """What is wrong with the archive around the data; None if it is as torch wrote it.

    torch itself does not look at the checksums, so a flipped bit would become another weight.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                return "its content is compressed, which torch never writes"
            if sum(member.file_size for member in members) > path.stat().st_size:
                return "it claims to hold more than there is"
            damaged = archive.testzip()
    except Exception as error:  # zipfile raises a dozen kinds on damaged archives; each is the answer
        return str(error) or type(error).__name__
    return f"{damaged} is damaged" if damaged else None


def is_sound(path: Path) -> bool:
    """Whether every byte of a checkpoint is as it was written."""
    return _problem(path) is None


def read_checkpoint(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint from a local file; code in it is refused, not run."""
    if "://" in str(path) or str(path).startswith(("http:/", "https:/")):
        raise ConfigError(f"{path}: checkpoints are read from local files only; download it first")
    if not path.is_file():
        raise ConfigError(f"{path}: no such checkpoint")
    problem = _problem(path)
    if problem is not None:
        raise DataError(f"{path}: not a checkpoint, or damaged ({problem})")
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # torch raises pickle, zip, and runtime errors alike
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: not a checkpoint that can be read safely ({reason})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, not a checkpoint")
    return ReadCheckpoint(content, path)


class ReadCheckpoint(dict[str, Any]):
    """What was in a checkpoint, and which file that was, for those who find something wrong with it later.

    Args:
        content: What was in it.
        path: The file.
    """

    def __init__(self, content: dict[str, Any], path: Path) -> None:
        super().__init__(content)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        """Saved as a plain mapping, which can be read without running code."""
        return OrderedDict, (), None, None, iter(self.items())


def path_of(checkpoint: dict[str, Any]) -> Path | None:
    """The file that a checkpoint was read from; None where it was not, or is a copy."""
    return checkpoint.path if isinstance(checkpoint, ReadCheckpoint) else None


class CheckpointCache:
    """Reads checkpoints and keeps them, so that a file which is needed a thousand times is read once.

    A file that has changed is read again. When there is no more room, further files are read each time: what is kept
    stays, because files that are taken in turn would otherwise push each other out. States of optimizers are not kept.

    Args:
        max_bytes: How much is kept in RAM.
    """

    def __init__(self, max_bytes: int = 1_000_000_000) -> None:
        self._max_bytes = max_bytes
        self._kept: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}  # path -> (time and size, content)

    def read(self, path: Path) -> dict[str, Any]:
        """What :func:`read_checkpoint` gives, but for ``optimizer_states``. Do not write to its tensors."""
        stamp = _stamp(path)
        if path not in self._kept or self._kept[path][0] != stamp:
            self._kept.pop(path, None)
            content = read_checkpoint(path)
            content.pop("optimizer_states", None)
            if stamp is None or stamp[1] + sum(size for (_, size), _ in self._kept.values()) > self._max_bytes:
                return content
            self._kept[path] = stamp, content
        return ReadCheckpoint(self._kept[path][1], path)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written: its time and size. None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def differences(saved: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What differs between the plain values of a checkpoint and those of an object, by their innermost names.

    Examples:
        >>> differences({"net": {"width": 64}}, {"net": {"width": 32}})
        ['width: 64 in the checkpoint, 32 here']
    """
    there, own = _flat(saved), _flat(here)
    return [
        f"{key}: {there.get(key)!r} in the checkpoint, {own.get(key)!r} here"
        for key in {**own, **there}
        if there.get(key) != own.get(key)
    ]


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Nested plain values by their innermost names."""
    inner = (_flat(value) if isinstance(value, dict) else {key: value} for key, value in values.items())
    return {key: value for part in inner for key, value in part.items()}
