"""Writing files so that a reader never meets half of one."""

import hashlib
import io
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Write ``content`` under a temporary name beside ``path``, flush it to disk, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_png(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write pixels [height, width] or [height, width, 3] as a PNG, atomically."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    write_atomically(path, buffer.getbuffer())


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file's content; of its name where there is no such file."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return f"no file {path}"
