"""Turns: who labels which region of a request next, and how far it is."""

import zlib
from collections import Counter
from dataclasses import dataclass

from ralseg.annotation.progress import Progress
from ralseg.annotation.request import Request, WantedRegion


@dataclass(frozen=True)
class Status:
    """How far a request is.

    Attributes:
        wanted: Regions that the model waits for.
        answered: Regions that are labelled, reserves among them.
        skipped: Regions that were put off.
        open: How many answers are missing.
        is_complete: Whether the model may go on: everything is answered, or enough, and somebody has said so.
        can_finish: Whether so many are answered that somebody may say so.
        by_whom: Answers by annotator.
    """

    wanted: int
    answered: int
    skipped: int
    open: int
    is_complete: bool
    can_finish: bool
    by_whom: dict[str, int]


class Turns:
    """A request at one moment.

    Args:
        request: The request.
        progress: What has been answered so far.
        now: The time, in seconds since 1970: claims expire.
    """

    def __init__(self, request: Request, progress: Progress, now: float) -> None:
        self.request, self.progress, self.now = request, progress, now
        self.ranked = sorted(request.regions, key=lambda wanted: (wanted.reserve, wanted.rank))

    def status(self) -> Status:
        """How far the request is."""
        progress, wanted, answered = self.progress, self.request.wanted, self.answered()
        enough = wanted if self.request.min_answers is None else min(self.request.min_answers, wanted)
        is_enough = len(answered) >= max(enough, 1)
        return Status(
            wanted,
            len(answered),
            len(progress.skipped),
            self._missing(),
            len(answered) >= wanted or (progress.finished and is_enough),
            is_enough,
            dict(Counter(progress.saved[entry.region]["who"] for entry in answered)),
        )

    def answered(self) -> list[WantedRegion]:
        """What is answered: first what was wanted, then reserves, by rank."""
        return [wanted for wanted in self.ranked if wanted.region in self.progress.saved]

    def next_for(self, who: str) -> WantedRegion | None:
        """What an annotator should label now.

        First what they have claimed. Then, where another annotator has answered, a small share of that once more,
        blind. Then by rank. What was put off comes last, when no reserve is left in its place.
        """
        if self.status().is_complete:
            return None
        return next(iter(self._own(who) or self.to_reask(who) or self._free(who) or self._put_off(who)), None)

    def is_held(self, region: int, who: str) -> bool:
        """Whether somebody else has claimed a region and may still be at work on it."""
        claim = self.progress.claims.get(region)
        return claim is not None and claim.who != who and claim.until > self.now

    def _own(self, who: str) -> list[WantedRegion]:
        """What an annotator has claimed and not done; answers that are only being corrected are none of it."""
        mine = {
            region
            for region, claim in self.progress.claims.items()
            if claim.who == who and (claim.blind or region not in self.progress.saved)
        }
        return [wanted for wanted in self.ranked if wanted.region in mine]

    def to_reask(self, who: str) -> list[WantedRegion]:
        """Answers of others that this annotator should give a second opinion on."""
        return [
            wanted
            for wanted in self.answered()
            if who
            and self.progress.saved[wanted.region]["who"] not in ("", who)
            and wanted.region not in self.progress.reasked
            and is_drawn(wanted.region, self.request.reask)
            and not self.is_held(wanted.region, who)
        ]

    def _free(self, who: str) -> list[WantedRegion]:
        """What is open and not claimed by another one, best first."""
        return [wanted for wanted in self.open() if not self.is_held(wanted.region, who)]

    def _put_off(self, who: str) -> list[WantedRegion]:
        """What was skipped, where more answers are missing than regions are open."""
        if len(self.open()) >= self._missing():
            return []
        skipped = [wanted for wanted in self.ranked if wanted.region in self.progress.skipped]
        return [wanted for wanted in skipped if not self.is_held(wanted.region, who)]

    def open(self) -> list[WantedRegion]:
        """What is wanted now: as many as answers are missing, of those that nobody has put off."""
        done = self.progress.saved.keys() | self.progress.skipped
        return [wanted for wanted in self.ranked if wanted.region not in done][: self._missing()]

    def _missing(self) -> int:
        return max(0, self.request.wanted - len(self.answered()))


def is_drawn(region: int, share: float) -> bool:
    """Whether a region is among the share that is asked twice: always the same answer.

    Examples:
        >>> is_drawn(7, 0.0), is_drawn(7, 1.0)
        (False, True)
    """
    return zlib.crc32(f"reask {region}".encode()) < share * 2**32
