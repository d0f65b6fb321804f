"""Progress: what the lines of a journal amount to."""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

from ralseg.annotation.journal import Entry
from ralseg.errors import DataError


@dataclass(frozen=True)
class Claim:
    """A region that somebody is at work on."""

    who: str
    until: float
    blind: bool


@dataclass
class Progress:
    """What has been asked, answered, put off and taken so far, of all requests.

    Examples:
        >>> skipped = {"event": "skipped", "time": 0.0, "region": 7, "who": "Ada"}
        >>> Progress.of([skipped]).skipped
        {7}
    """

    known: dict[int, dict[str, Any]] = field(default_factory=dict)  # all that was ever asked for, as plain values
    saved: dict[int, Entry] = field(default_factory=dict)  # the newest answer of each region
    versions: dict[int, int] = field(default_factory=dict)  # the highest version ever given, by region
    taken: dict[int, dict[int, int]] = field(default_factory=dict)  # by step: version of each region
    corrected: dict[int, dict[int, int]] = field(default_factory=dict)  # likewise, when the step began
    reasked: set[int] = field(default_factory=set)
    put_off: set[int] = field(default_factory=set)  # skipped in earlier requests
    # of the present request alone
    step: int | None = None
    skipped: set[int] = field(default_factory=set)
    claims: dict[int, Claim] = field(default_factory=dict)
    finished: bool = False

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Progress":
        """Follow a journal from its first line to its last."""
        progress = cls()
        for entry in entries:
            progress.follow(entry)
        return progress

    def copy(self) -> "Progress":
        """What it is now; it may change."""
        kept = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return Progress(**{name: copy(value) for name, value in kept.items()})

    def follow(self, entry: Entry) -> None:
        """Take in a line; those of an unknown kind change nothing."""
        changes = {
            "asked": self._asked,
            "claimed": self._claimed,
            "saved": self._saved,
            "reask": self._reask,
            "skipped": self._skipped,
            "withdrawn": self._withdrawn,
            "finished": self._finished,
            "taken": self._taken,
            "corrected": self._corrected,
        }
        change = changes.get(entry["event"])
        if change is not None:
            try:
                change(entry)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise DataError(f"a line does not say what it should: {str(entry)[:200]} ({error!r})") from error

    def _asked(self, entry: Entry) -> None:
        self.known |= {int(content["region"]): content for content in entry["regions"]}
        if entry["step"] != self.step:
            self.put_off |= self.skipped
            self.step, self.skipped, self.claims, self.finished = entry["step"], set(), {}, False

    def _claimed(self, entry: Entry) -> None:
        self.claims[entry["region"]] = Claim(entry["who"], entry["until"], entry["blind"])

    def _saved(self, entry: Entry) -> None:
        region = entry["region"]
        self.saved[region] = entry
        self.versions[region] = max(entry["version"], self.versions.get(region, 0))
        self._release(region)
        self.put_off.discard(region)

    def _reask(self, entry: Entry) -> None:
        self.reasked.add(entry["region"])
        self.claims.pop(entry["region"], None)

    def _skipped(self, entry: Entry) -> None:
        if entry.get("blind"):  # nobody need give a second opinion
            self._reask(entry)
            return
        self._release(entry["region"])
        self.skipped.add(entry["region"])

    def _withdrawn(self, entry: Entry) -> None:
        self.saved.pop(entry["region"], None)

    def _finished(self, entry: Entry) -> None:
        self.finished = True

    def _taken(self, entry: Entry) -> None:
        self.taken[entry["step"]] = _versions(entry)

    def _corrected(self, entry: Entry) -> None:
        self.corrected[entry["step"]] = _versions(entry)

    def _release(self, region: int) -> None:
        self.claims.pop(region, None)
        self.skipped.discard(region)


def _versions(entry: Entry) -> dict[int, int]:
    return {int(region): version for region, version in entry["versions"].items()}
