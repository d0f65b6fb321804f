"""A run's folder: what belongs to it, and who may write there."""

import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ralseg.errors import ConfigError, DataError
from ralseg.runtime.checkpoints import is_sound, previous_of
from ralseg.runtime.files import read_json, remove_leftovers, write_atomically

log = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
LOCK, OWNER = ".lock", ".owner.json"
LOCK_SECONDS = 20.0
"""How long to wait for a process that is just ending: a cell whose study was killed, data-loader workers."""
_OWN = (
    *(CHECKPOINTS, "splits.json", "config*.yaml", "test*.json", "problem*.json", "mlflow.json", "unsent.jsonl"),
    *("episodes", "history.json", "learning_curve.png", "policy.ckpt"),
    *("selection.csv", "labels", "overlays", "to_label", "budget_*", "result.json", "final.json", "plan.json", "smp"),
    *("reasons.jsonl", "explain.html"),
)


def find_checkpoint(folder: Path, name: str) -> Path:
    """``best`` or ``last`` of a run's folder, or else ``name`` as a path."""
    return folder / CHECKPOINTS / f"{name}.ckpt" if name in ("best", "last") else Path(name)


@contextmanager
def claimed(folder: Path, resume: bool, overwrite: bool) -> Iterator[None]:
    """Be the only process that writes to ``folder``, and destroy no other run there.

    Args:
        folder: The run's folder, made if need be.
        resume: The run goes on from its last checkpoint; everything stays.
        overwrite: Delete what an earlier run left (only files that ralseg writes).
    """
    with locked(folder):
        write_atomically(folder / OWNER, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}) + "\n")
        if not resume and any((folder / CHECKPOINTS).glob("*.ckpt")):
            _make_room(folder, overwrite)
        for place in (folder, *_own_folders(folder)):
            remove_leftovers(place)
        yield


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of ``folder``; the system lets go of the lock when this process dies."""
    _make(folder)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise ConfigError(
            f"{folder} is in use by {_owner(folder)}; wait for it, stop it, or give this run another "
            "--trainer.default_root_dir"
        ) from None
    except OSError as error:
        raise ConfigError(f"{folder}: nothing can be written there ({error.strerror})") from error
    try:
        yield
    finally:
        lock.release()


def _own_folders(folder: Path) -> Iterator[Path]:
    """The folders that ralseg makes below a run's."""
    for pattern in _OWN:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                yield from (path, *(inner for inner in path.rglob("*") if inner.is_dir()))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"trainer.default_root_dir={str(folder)!r} cannot be made ({error.strerror})") from error


def _owner(folder: Path) -> str:
    owner = read_json(folder / OWNER)
    is_known = isinstance(owner, dict) and {"pid", "host"} <= owner.keys()
    return f"process {owner['pid']} on {owner['host']}" if is_known else "another process"


def _make_room(folder: Path, overwrite: bool) -> None:
    if not overwrite:
        raise ConfigError(
            f"{folder} already holds a run: go on with it by --ckpt last, discard it by "
            "--trainer.overwrite true, or give this one another --trainer.default_root_dir"
        )
    for pattern in _OWN:
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def resume_point(folder: Path, ckpt: str | None) -> str | None:
    """The file to go on from; ``last`` in a folder without a run means to start one.

    Where ``last`` was damaged (a failing disk, a copy that was cut off), the one before it is taken: a run that goes
    on from there ends the same. A file that is named outright is taken or refused, never replaced.
    """
    if ckpt is None:
        return None
    path = find_checkpoint(folder, ckpt)
    if ckpt != "last":
        return str(path)
    if path.is_file() and is_sound(path):
        return str(path)
    before = previous_of(path)
    if before.is_file() and is_sound(before):
        log.warning("%s is missing or damaged; going on from %s, the one before it", path, before.name)
        return str(before)
    if path.is_file() or before.is_file():
        raise DataError(f"{path}: damaged, and so is the one before it; start anew with --trainer.overwrite true")
    return None


def numbered(folder: Path, stem: str, suffix: str) -> Path:
    """The first free name of ``stem.suffix``, ``stem-001.suffix``, ...: nothing is ever overwritten."""
    path, number = folder / f"{stem}{suffix}", 0
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number:03d}{suffix}"
    return path
