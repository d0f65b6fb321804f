"""Writing files so that a reader never meets half of one."""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ralseg.errors import DataError

_SUFFIX = ".part"
_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.part")  # as tempfile names them


def write_atomically(
    path: Path, content: str | bytes | memoryview, before: Callable[[], None] | None = None, durable: bool = True
) -> None:
    """Write ``content`` under a temporary name beside ``path``, flush it to disk, then rename it.

    Args:
        path: The file; its folder is made if need be.
        content: What will be in it.
        before: Called when the content is safe on disk, just before the renaming.
        durable: Wait for the disk, so that the file outlives a power cut. False where it can be made anew.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=_SUFFIX, dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if durable:  # what can be made anew is nobody else's business, and stays as it was made: for its owner
            Path(temporary).chmod(0o644)
        if before is not None:
            before()
        Path(temporary).replace(path)
        if durable:
            flush_folder(path.parent)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DataError(_why_not_written(path, len(data), error)) from error
        raise


def append_durably(path: Path, content: bytes) -> None:
    """Add ``content`` at the end of a file, and wait for the disk; a reader may meet a part of it."""
    try:
        with path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(_why_not_written(path, len(content), error)) from error


def flush_folder(folder: Path) -> None:
    """Make a renaming outlive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _why_not_written(path: Path, size: int, error: OSError) -> str:
    text = f"{path}: cannot be written ({error.strerror or error}); what stood there before is untouched"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        existing = next(folder for folder in path.absolute().parents if folder.exists())
        free = shutil.disk_usage(existing).free
        text += f". It needs {size:,} bytes, {free:,} are free: make room, then go on with --ckpt last"
    return text


def inside(name: str) -> PurePosixPath:
    """A relative path for any name: below whatever folder it is put, it never leads outside.

    Examples:
        >>> str(inside("../../etc/passwd")), str(inside("/a/./b.png"))
        ('__/__/etc/passwd', 'a/b.png')
    """
    parts = ["__" if part == ".." else part.replace("\0", "_") for part in PurePosixPath(name).parts]
    return PurePosixPath(*[part for part in parts if part.strip("/")] or ["_"])


def remove_leftovers(folder: Path) -> None:
    """Delete what killed processes left half-written in ``folder``; nobody else may be writing there."""
    for path in folder.glob(f".*{_SUFFIX}"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The content of a JSON file; None where there is none, or none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG of pixels [height, width] or [height, width, 3].

    Compressed lightly: a photograph takes a third of the time, and a twentieth more room.
    """
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def write_png(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write pixels [height, width] or [height, width, 3] as a PNG, atomically."""
    write_atomically(path, encode_png(pixels))


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file's content; of its name where there is no such file."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return f"no file {path}"
