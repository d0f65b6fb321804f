"""The store of scaled images and features that outlives a run, so that the next one starts at once."""

import contextlib
import hashlib
import io
import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from ralseg.errors import DataError
from ralseg.runtime.files import write_atomically

log = logging.getLogger(__name__)
DAY = 86_400.0
"""Seconds within which what was used is likely to be used again."""
VERSION = 3
"""Raise it when images come out otherwise than before: older copies are then left to be evicted."""
_MAGIC = b"ralseg\0\2"
_HEADER = 64  # bytes before the array, which is thus aligned: magic, checksum of the rest, key, kind
_CHECKED = len(_MAGIC) + 4
_KEY_BYTES = 20
_KIND = slice(_CHECKED + _KEY_BYTES, _HEADER)
_SUFFIX, _LOCK = ".copy", ".lock"
_ABANDONED = 3600.0  # seconds after which nobody goes on writing a file
_PATIENCE = 60.0  # seconds to wait for another process that makes the same copy


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


class Mapped(np.ndarray[Any, np.dtype[Any]]):
    """An array that lies in a file; processes that use it at the same time share the system's copy of it."""


class KeptCopies:
    """Arrays on disk by a key that says what they follow from. Losing any of them costs time, nothing else.

    Several processes may share a folder: each array is made by one of them, while the others wait for it. Files appear
    whole or not at all; a checksum tells damaged ones, and the key those of other names, and both are made anew. Where
    nothing can be written, arrays are made each time.

    Args:
        folder: Where they are kept; None keeps nothing.
        max_bytes: When there is more, those that were used longest ago go first. Nothing goes that was used within a
            day, or by this process: a run that asks for more than fits would else replace what it is about to ask for.

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
        self._max_bytes, self._unchecked = max_bytes, max_bytes  # whoever writes first looks at what is there
        self._keeps = True  # until there is no room, or nothing can be written
        self._used: set[str] = set()  # names of files that this process has read or written

    def get(self, key: Any, make: Callable[[], NDArray[Any]], mapped: bool = False) -> NDArray[Any]:
        """The array of a key; made and kept if it is not there.

        Args:
            key: Plain values, the kind first; None: there is nothing that the array follows from alone, so it is not
                kept.
            make: Makes it.
            mapped: Leave it in the file, as :class:`Mapped`. An array that could not be kept is no such one.
        """
        if self._folder is None or key is None:
            return make()
        digest = hashlib.blake2b(json.dumps([VERSION, key]).encode(), digest_size=_KEY_BYTES).digest()
        name = digest.hex()
        path = self._folder / name[:2] / f"{name}{_SUFFIX}"
        found = _read(path, digest, mapped)
        if found is not None:
            self._used.add(path.name)
            return found
        if not self._keeps:
            return make()
        with _claimed(path):
            found = _read(path, digest, mapped)  # another process has made it meanwhile
            if found is None:
                found = make()
                self._write(path, digest, str(key[0]), found)
                again = _read(path, digest, mapped) if mapped else None
                return found if again is None else again
        return found

    def _write(self, path: Path, digest: bytes, kind: str, array: NDArray[Any]) -> None:
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        content = digest + kind.encode()[: _KIND.stop - _KIND.start].ljust(_KIND.stop - _KIND.start, b"\0")
        content += buffer.getvalue()
        if len(content) > self._max_bytes:
            return
        self._used.add(path.name)
        self._unchecked += len(content)
        if self._unchecked > self._max_bytes // 10:
            self._unchecked = 0
            self._make_room(max(len(content), self._max_bytes // 10))
        if not self._keeps:
            return
        try:
            write_atomically(path, _MAGIC + zlib.crc32(content).to_bytes(4) + content, durable=False)
        except (DataError, OSError) as error:
            log.warning("no copies of images are kept from now on: %s", error)
            self._keeps = False

    def _make_room(self, needed: int) -> None:
        """Delete what was used longest ago until so many bytes fit beside the rest."""
        assert self._folder is not None
        for pattern in ("*/.*.part", f"*/.*{_LOCK}"):  # of processes that were killed
            for path in self._folder.glob(pattern):
                with contextlib.suppress(OSError):
                    if time.time() - path.stat().st_mtime > _ABANDONED:
                        path.unlink()
        left = delete_longest_unused(self._folder, self._max_bytes - needed, self._used)
        if left > self._max_bytes - needed:
            self._keeps = False
            log.warning(
                "%s is full: %.1f GB were used within a day, or may not be deleted. No more copies are kept, and the "
                "next run makes the rest again; raise data.copies_gb (%g), or see `ralseg cache`",
                self._folder, left / 1e9, self._max_bytes / 1e9,
            )  # fmt: skip


class Copy(NamedTuple):
    """A file of a store."""

    used: float  # when it was read or written last, in seconds since 1970
    size: int
    path: Path


def all_copies(folder: Path) -> list[Copy]:
    """The files of a store, the one that was used longest ago first."""
    found = []
    for path in folder.glob(f"??/*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # another process may have deleted it
            about = path.stat()
            found.append(Copy(about.st_mtime, about.st_size, path))
    return sorted(found)


def kind_of(path: Path) -> str:
    """What a file of a store holds: image, mask, counts, features; ``of another version`` where it does not say."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except OSError:
        return "gone"
    is_ours = header.startswith(_MAGIC) and len(header) == _HEADER
    return header[_KIND].rstrip(b"\0").decode(errors="replace") if is_ours else "of another version"


def delete_longest_unused(folder: Path, max_bytes: int, kept: Container[str]) -> int:
    """Delete what was used longest ago, and not within a day, until the rest fits; bytes that are left.

    Args:
        folder: The store.
        max_bytes: What may be left.
        kept: Names of files that stay, whatever their time says: of another user's files it cannot be set.
    """
    found, now = all_copies(folder), time.time()
    left = sum(copy.size for copy in found)
    for copy in found:
        if left <= max_bytes or copy.used > now - DAY:
            break
        if copy.path.name not in kept and delete(copy.path):
            left -= copy.size
    return left


def delete(path: Path) -> bool:
    """Delete a copy; whether that was allowed, for in a folder that people share it may be another user's."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


@contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Be the only process that makes this copy; the others wait. Where locks cannot be had, everyone makes their own.

    The system lets go of the lock of a process that dies. Its file is deleted by who holds it: a process that has
    waited for the old file finds the copy there, or at worst makes it beside another one.
    """
    claim = path.with_name(f".{path.stem}{_LOCK}")
    lock = FileLock(claim, timeout=_PATIENCE)
    try:
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # copies of images that may be private
        path.parent.mkdir(exist_ok=True)
        lock.acquire(poll_interval=0.005)
    except (OSError, NotImplementedError, Timeout):
        yield
        return
    try:
        yield
    finally:
        claim.unlink(missing_ok=True)
        lock.release()


def _read(path: Path, digest: bytes, mapped: bool) -> NDArray[Any] | None:
    """The array in a file; None where there is none, or it is damaged, or of another key."""
    try:
        content = _mapped(path) if mapped else np.fromfile(path, np.uint8)
    except (OSError, ValueError, RuntimeError):  # an empty file cannot be mapped
        return None
    head = content[:_HEADER].tobytes()
    is_right = head[: len(_MAGIC)] == _MAGIC and head[_CHECKED : _KIND.start] == digest
    if not is_right or zlib.crc32(content[_CHECKED:].data).to_bytes(4) != head[len(_MAGIC) : _CHECKED]:
        return None
    with contextlib.suppress(OSError):  # of another user
        os.utime(path)  # used just now
    try:
        return _array(content[_HEADER:])
    except ValueError:
        return None


def _mapped(path: Path) -> Mapped:
    """A file's bytes; what is written to them stays in this process.

    By torch, because Python's own mappings keep their file open, and a process may have few open files.
    """
    from torch import from_file, uint8  # torch takes a second, which `ralseg cache` need not spend

    return from_file(str(path), shared=False, size=path.stat().st_size, dtype=uint8).numpy().view(Mapped)


def _array(content: NDArray[Any]) -> NDArray[Any]:
    """The array in the bytes of a file of NumPy's, without a copy."""
    header = io.BytesIO(content[:1024].tobytes())
    np.lib.format.read_magic(header)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(header)
    if dtype.hasobject:
        raise ValueError("pickles are not read")
    return content[header.tell() :].view(dtype).reshape(shape, order="F" if is_fortran else "C")
