"""Copies of decoded and resized images that outlive a run, so that the next one starts at once."""

import contextlib
import hashlib
import io
import json
import logging
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ralseg.errors import DataError
from ralseg.runtime.files import write_atomically

log = logging.getLogger(__name__)
VERSION = 1
"""Raise it when images come out otherwise than before: older copies are then left to be evicted."""
_CHECKSUM = 4  # bytes before the array
_SUFFIX = ".copy"
_ABANDONED = 3600.0  # seconds after which nobody goes on writing a file


def cache_folder() -> Path:
    """Where copies go unless a configuration says otherwise: ``RALSEG_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("RALSEG_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ralseg"


def file_key(path: Path) -> list[Any] | None:
    """What changes whenever a file's content does: place, size, and the times of its last changes.

    The second time cannot be set by hand, so that also a file which pretends to be old is noticed.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return [str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns]


class KeptCopies:
    """Arrays on disk by a key that says what they follow from. Losing any of them costs time, nothing else.

    Several processes may share a folder: files appear whole or not at all, and a checksum tells damaged ones, which
    are made anew. Where nothing can be written, arrays are made each time.

    Args:
        folder: Where they are kept; None keeps nothing.
        max_bytes: When there is more, those that were used longest ago go first.

    Examples:
        >>> import tempfile
        >>> copies = KeptCopies(Path(tempfile.mkdtemp()), 1_000_000)
        >>> int(copies.get(["a.jpg", 12], lambda: np.ones((2, 2), np.uint8)).sum())
        4
        >>> int(copies.get(["a.jpg", 12], lambda: np.zeros((2, 2), np.uint8)).sum())  # not made again
        4
    """

    def __init__(self, folder: Path | None, max_bytes: int) -> None:
        self._folder = folder if max_bytes > 0 else None
        self._max_bytes, self._unchecked = max_bytes, max_bytes  # the first thing written looks at what is there

    def get(self, key: Any, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The array of a key; made and kept if it is not there.

        Args:
            key: Plain values; None: there is nothing that the array follows from alone, so it is not kept.
            make: Makes it.
        """
        if self._folder is None or key is None:
            return make()
        digest = hashlib.blake2b(json.dumps([VERSION, key]).encode(), digest_size=20).hexdigest()
        path = self._folder / digest[:2] / f"{digest}{_SUFFIX}"
        found = _read(path)
        if found is None:
            found = make()
            self._write(path, found)
        return found

    def _write(self, path: Path, array: NDArray[Any]) -> None:
        assert self._folder is not None
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        content = buffer.getvalue()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # copies of images that may be private
            write_atomically(path, zlib.crc32(content).to_bytes(_CHECKSUM) + content, durable=False)
        except (DataError, OSError) as error:
            log.warning("no copies of images are kept from now on: %s", error)
            self._folder = None
            return
        self._unchecked += len(content)
        if self._unchecked > self._max_bytes // 10:
            self._unchecked = 0
            self._evict()

    def _evict(self) -> None:
        """Delete what was used longest ago until the rest fits."""
        assert self._folder is not None
        found = []
        for path in self._folder.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # another process may have deleted it
                about = path.stat()
                found.append((about.st_mtime_ns, about.st_size, path))
        for path in self._folder.glob("*/.*.part"):  # of processes that were killed
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
        excess = sum(size for _, size, _ in found) - self._max_bytes
        for _, size, path in sorted(found):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size


def _read(path: Path) -> NDArray[Any] | None:
    """The array in a file; None where there is none, or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # of another user
        os.utime(path)  # used just now
    if zlib.crc32(content[_CHECKSUM:]).to_bytes(_CHECKSUM) != content[:_CHECKSUM]:
        return None
    try:
        array: NDArray[Any] = np.load(io.BytesIO(content[_CHECKSUM:]), allow_pickle=False)
    except (ValueError, EOFError, OSError):
        return None
    return array
