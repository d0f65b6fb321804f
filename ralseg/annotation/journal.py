"""The journal: what was asked, answered, skipped and taken, line by line; nothing in it is ever changed."""

import json
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ralseg.errors import DataError
from ralseg.runtime.files import flush_folder

log = logging.getLogger(__name__)
FILE = "journal.jsonl"
LOCK_SECONDS = 60.0
HASTY_SECONDS = 1.0
"""Who accepts a prediction unchanged in less has hardly looked at it."""

Entry = dict[str, Any]
"""``event``, ``time`` in seconds since 1970, and what belongs to the event."""


class Journal:
    """An append-only file of JSON objects, one a line, safe between threads and processes.

    Each line is on disk before :meth:`append` returns. Half a line, which a killed process left at the end, counts for
    nothing, and the next line takes its place.

    Args:
        path: The file; made with the first line.

    Attributes:
        generation: Counts how often another file has taken the journal's place: all is read anew then.

    Examples:
        >>> import tempfile
        >>> journal = Journal(Path(tempfile.mkdtemp()) / "journal.jsonl")
        >>> _ = journal.append("skipped", region=7, who="Ada")
        >>> [(entry["event"], entry["region"]) for entry in journal.entries()]
        [('skipped', 7)]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock, self._owner = self._make_lock(), os.getpid()
        self._reading = threading.Lock()  # guards what follows
        self.generation = 0
        self._forget()

    def _make_lock(self) -> FileLock:
        """A lock that each thread holds for itself."""
        return FileLock(self.path.with_name(f".{self.path.name}.lock"))

    def _forget(self) -> None:
        self._entries: list[Entry] = []
        self._end, self._lines = 0, 0  # of what was read: bytes, lines

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all others out, so that what is decided by the entries still holds when a line is added."""
        if self._owner != os.getpid():  # a lock must not be used beyond a fork
            self._lock, self._owner = self._make_lock(), os.getpid()
        lock = self._lock
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=LOCK_SECONDS)
        except Timeout:
            raise DataError(
                f"{self.path}: another process has held it for {LOCK_SECONDS:.0f} s; end that one"
            ) from None
        except OSError as error:
            raise DataError(f"{self.path}: nothing can be written there ({error.strerror})") from error
        try:
            yield
        finally:
            lock.release()

    def append(self, event: str, **values: Any) -> Entry:
        """Add a line, and wait until it is on disk."""
        entry = {"event": event, "time": round(time.time(), 3), **values}
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        with self.locked():
            self.entries()  # to know where the last whole line ends
            try:
                self._write(line)
            except OSError as error:
                raise DataError(f"{self.path}: cannot be written ({error.strerror}); nothing was added") from error
        return entry

    def _write(self, line: bytes) -> None:
        is_new = not self.path.exists()
        with self.path.open("ab") as file:
            file.truncate(self._end)
            try:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                file.truncate(self._end)
                raise
        if is_new:
            flush_folder(self.path.parent)

    def entries(self) -> list[Entry]:
        """All whole lines so far."""
        with self._reading:
            try:
                with self.path.open("rb") as file:
                    if os.fstat(file.fileno()).st_size < self._end:
                        self.generation += 1
                        self._forget()
                    file.seek(self._end)
                    new = file.read()
            except FileNotFoundError:
                self.generation += bool(self._entries)
                self._forget()
                new = b""
            except OSError as error:
                raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
            whole = new[: new.rfind(b"\n") + 1]
            self._end += len(whole)
            for line in whole.splitlines():
                self._lines += 1
                self._take(line)
            return list(self._entries)

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            if not isinstance(entry["event"], str) or not isinstance(entry["time"], int | float):
                raise ValueError("neither event nor time")
        except (ValueError, TypeError, KeyError, RecursionError):
            log.warning("%s: line %d is damaged and counts for nothing", self.path, self._lines)
        else:
            self._entries.append(entry)


@dataclass(frozen=True)
class Cost:
    """What labels have cost people. Clicks and minutes are sums over the answers that say so; None where none does.

    Attributes:
        regions: Regions that were answered.
        pixels: Their pixels.
        clicks: Clicks, strokes and keys, also those of corrections and second opinions.
        minutes: Minutes in front of regions, likewise.
        changed: Pixels in which the answers differ from the prediction that was shown.
        answers: Answers, also corrections and second opinions.
        counted: Answers whose clicks are known.
        timed: Answers whose time is known.
        hasty: Regions whose prediction was accepted unchanged in less than a second.
        reasked: Regions that a second annotator labelled without seeing the first one's mask.
        agreement: Share of equal pixels in those.

    Examples:
        >>> saved = {"event": "saved", "time": 0.0, "region": 7, "pixels": 96, "seconds": 30.0, "clicks": 4}
        >>> cost = Cost.of([saved, saved | {"region": 8, "seconds": 60.0}])
        >>> cost.regions, cost.pixels, cost.clicks, cost.minutes
        (2, 192, 8, 1.5)
    """

    regions: int = 0
    pixels: int = 0
    clicks: int | None = None
    minutes: float | None = None
    changed: int | None = None
    answers: int = 0
    counted: int = 0
    timed: int = 0
    hasty: int = 0
    reasked: int = 0
    agreement: float | None = None

    @classmethod
    def of(cls, entries: list[Entry], regions: Collection[int] | None = None) -> "Cost":
        """Sum up a journal's entries, of some regions or of all."""
        answers = [
            entry
            for entry in entries
            if entry["event"] in ("saved", "reask") and (regions is None or entry.get("region") in regions)
        ]
        last = {entry["region"]: entry for entry in answers if entry["event"] == "saved"}
        again = [entry for entry in answers if entry["event"] == "reask"]
        clicks, seconds = _known(answers, "clicks"), _known(answers, "seconds")
        changed = _known(list(last.values()), "changed")
        compared = sum(_known(again, "pixels"))
        equal = sum(entry["agreement"] * entry["pixels"] for entry in again)
        return cls(
            len(last),
            int(sum(_known(list(last.values()), "pixels"))),
            int(sum(clicks)) if clicks else None,
            sum(seconds) / 60 if seconds else None,
            int(sum(changed)) if changed else None,
            len(answers),
            len(clicks),
            len(seconds),
            sum(is_hasty(entry) for entry in last.values()),
            len({entry["region"] for entry in again}),
            equal / compared if compared else None,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)


def is_hasty(entry: Entry) -> bool:
    """Whether somebody has accepted a prediction unchanged in less than a second."""
    seconds = entry.get("seconds")
    return bool(entry.get("unchanged")) and seconds is not None and seconds < HASTY_SECONDS


def _known(entries: list[Entry], key: str) -> list[float]:
    return [entry[key] for entry in entries if entry.get(key) is not None]
