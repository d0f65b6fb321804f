"""Answers: what came back of a request, from one annotator or several, in one process or several."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ralseg.annotation import journal
from ralseg.annotation.journal import Journal
from ralseg.annotation.mask_files import MaskFiles, digest
from ralseg.annotation.masks import Mask
from ralseg.annotation.progress import Progress
from ralseg.annotation.request import FILE, Request, WantedRegion
from ralseg.annotation.turns import Status, Turns
from ralseg.data.readers import Colour
from ralseg.errors import DataError

CLAIM_SECONDS = 300.0


class Answers:
    """The answers to a request, as its folder holds them. Threads and processes may share the folder.

    ``masks/`` holds the newest mask of each region, ``masks/old/`` every version that was ever given, and the journal
    says who gave it, when, and at what cost. A region is answered as soon as its line is in the journal.

    Args:
        folder: The request's folder.
        request: The request.
        palette: Colours of the data set's own masks, for masks that people put into ``masks/``.

    Examples:
        >>> import tempfile
        >>> from ralseg.annotation.request import ClassColour
        >>> region = WantedRegion(7, "a.png", 64, 48, 0, 0, 32, 24, 1, 0.5, "crops/7.png", "masks/7.png")
        >>> request = Request(0, (ClassColour(0, "road", "#804080"),), (region,))
        >>> answers = Answers(Path(tempfile.mkdtemp()), request)
        >>> answers.next_for("Ada").region
        7
        >>> answers.save(7, np.zeros((24, 32), np.uint8), who="Ada", seconds=12.0, clicks=3, source="page")
        1
        >>> answers.status().is_complete
        True
    """

    def __init__(self, folder: Path, request: Request, palette: Mapping[Colour, int] | None = None) -> None:
        self.folder, self.request = folder, request
        self.journal = Journal(folder / journal.FILE)
        self._files = MaskFiles(folder, request, palette)
        self._regions = {wanted.region: wanted for wanted in request.regions}
        self._following = threading.Lock()  # guards what follows
        self._progress, self._followed = Progress(), (0, 0)  # the journal's generation, and how many of its lines

    # -- asking ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Note that the request was made, once; what was skipped before is put off from then on."""
        with self.journal.locked():
            regions = [wanted.as_json() for wanted in self.request.regions]
            asked = [entry for entry in self.journal.entries() if entry["event"] == "asked"]
            if not asked or (asked[-1]["step"], asked[-1]["regions"]) != (self.request.step, regions):
                self.journal.append("asked", step=self.request.step, regions=regions)

    def next_for(self, who: str) -> WantedRegion | None:
        """What an annotator should label now, claimed for them; None: nothing is left to do."""
        with self.journal.locked():
            turns = self._turns()
            wanted = turns.next_for(who)
            if wanted is None:
                return None
            blind = wanted.region in turns.progress.saved
            self._claim(turns, wanted.region, who, CLAIM_SECONDS, blind)
            return replace(wanted, blind=blind, prediction=None if blind else wanted.prediction)

    def wanted_now(self) -> list[WantedRegion]:
        """What people should label now, the best first: as many as answers are missing, and none that was put off."""
        return self._turns().open()

    def to_reask(self, who: str) -> list[WantedRegion]:
        """Answers of others that an annotator should give a second opinion on, without seeing them."""
        return self._turns().to_reask(who)

    def claim(self, region: int, *, who: str, seconds: float = CLAIM_SECONDS) -> bool:
        """Keep a region for an annotator, and others away from it, for a while; False where another one has it."""
        with self.journal.locked():
            self.wanted(region)
            turns = self._turns()
            if turns.is_held(region, who):
                return False
            held = turns.progress.claims.get(region)
            self._claim(turns, region, who, seconds, held is not None and held.who == who and held.blind)
            return True

    def _claim(self, turns: Turns, region: int, who: str, seconds: float, blind: bool) -> None:
        """Note a claim; one that has most of its time left need not be noted again."""
        held = turns.progress.claims.get(region)
        if held is None or (held.who, held.blind) != (who, blind) or held.until < turns.now + seconds / 2:
            self.journal.append("claimed", region=region, who=who, until=round(turns.now + seconds, 3), blind=blind)

    # -- answering -------------------------------------------------------------------------------

    def save(
        self,
        region: int,
        mask: Mask,
        *,
        who: str = "",
        seconds: float | None = None,
        clicks: int | None = None,
        source: str,
        blind: bool = False,
    ) -> int:
        """Keep a mask, as a new version where there is one already; gives the version's number.

        Args:
            region: A region of this request, or of an earlier one.
            mask: [height, width] of its box: class numbers, 255 for what cannot be told.
            who: Name of the annotator.
            seconds: How long it took.
            clicks: How many clicks, strokes and keys.
            source: Where it comes from: page, files, label_studio, cvat, coco or voc.
            blind: A second opinion: compared with the mask that is there, which stays.
        """
        about = {"who": who, "seconds": seconds, "clicks": clicks, "source": source}
        with self.journal.locked():
            wanted = self.wanted(region)
            self._files.check(wanted, mask)
            if blind and region in self.progress().saved:
                return self._save_opinion(wanted, mask, about)
            return self._save(wanted, mask, about, is_there=False)

    def _save(self, wanted: WantedRegion, mask: Mask, about: dict[str, Any], is_there: bool) -> int:
        """Keep a mask; ``is_there`` where people have put it into its place themselves."""
        state, region, sha256 = self.progress(), wanted.region, digest(mask)
        before = state.saved.get(region)
        is_same = before is not None and before["sha256"] == sha256
        version = int(before["version"]) if before and is_same else state.versions.get(region, 0) + 1
        self._files.write(wanted, mask, version, is_newest=not is_there)
        changed, pixels = self._files.changed(wanted, mask), int(self._files.inside(wanted).sum())
        found = {"changed": changed, "pixels": pixels, "unchanged": changed == 0}
        self.journal.append(
            "saved", region=region, image=wanted.image, **about, **found, version=version, sha256=sha256
        )
        return version

    def _save_opinion(self, wanted: WantedRegion, mask: Mask, about: dict[str, Any]) -> int:
        first = self.progress().saved[wanted.region]
        equal = (mask == self._files.read(wanted, first["version"]))[self._files.inside(wanted)]
        self._files.write_opinion(wanted, mask)
        found = {"first": first["who"], "version": first["version"]}
        found |= {"agreement": float(equal.mean()), "pixels": int(equal.size)}
        self.journal.append("reask", region=wanted.region, image=wanted.image, **about, **found)
        return int(first["version"])

    def skip(self, region: int, *, who: str) -> None:
        """Put a region of this request off; the next reserve is wanted in its place."""
        with self.journal.locked():
            wanted, state = self.wanted(region), self.progress()
            if region not in self._regions:
                raise DataError(f"region {region} ({wanted.image}) belongs to an earlier request: it cannot be skipped")
            claim = state.claims.get(region)
            blind = region in state.saved and claim is not None and claim.blind
            if region in state.saved and not blind:
                raise DataError(f"region {region} ({wanted.image}) is answered already: it cannot be skipped")
            self.journal.append("skipped", region=region, image=wanted.image, who=who, blind=blind)

    def finish(self, who: str) -> None:
        """Say that the model shall go on with what is answered."""
        with self.journal.locked():
            status = self.status()
            if not status.can_finish:
                enough = self.request.min_answers or self.request.wanted
                raise DataError(
                    f"{status.answered} of {status.wanted} regions are answered, {enough} must be before the model "
                    "goes on; the oracle's option min_answers says how many are enough"
                )
            if not status.is_complete:
                self.journal.append("finished", who=who)

    def take_up(self, regions: Iterable[int] | None = None) -> None:
        """Take masks that people have put into ``masks/``, or replaced there; all bad ones are named at once.

        A mask that was deleted there is no answer any more, unless the model has learned from it.

        Args:
            regions: Where to look; None: all that were ever asked for.
        """
        problems = []
        with self.journal.locked():
            everywhere = self.known().keys() | self._regions.keys()
            for region in sorted(everywhere if regions is None else regions):
                try:
                    self._take_up(self.wanted(region))
                except DataError as error:
                    problems.append(str(error))
        if problems:
            text = "; ".join(problems)
            raise DataError(text if len(problems) == 1 else f"{len(problems)} masks cannot be read: {text}")

    def _take_up(self, wanted: WantedRegion) -> None:
        mask, state, region = self._files.read_newest(wanted), self.progress(), wanted.region
        before = state.saved.get(region)
        if mask is None:
            if before is not None and not any(region in versions for versions in state.taken.values()):
                self.journal.append("withdrawn", region=region, image=wanted.image)
        elif before is None or before["sha256"] != digest(mask):
            self._save(wanted, mask, {"who": "", "seconds": None, "clicks": None, "source": "files"}, is_there=True)

    # -- what the model takes --------------------------------------------------------------------

    def take(self) -> dict[int, int]:
        """The answers that the model learns from at this step, as many as were wanted at most: versions by region.

        Whoever takes first decides: a run that is repeated gets the same ones, whatever was answered since.
        """
        with self.journal.locked():
            turns = self._turns()
            taken = turns.progress.taken.get(self.request.step)
            if taken is not None and taken.keys() <= self._regions.keys():
                return taken
            saved = turns.progress.saved
            chosen = {wanted.region: saved[wanted.region]["version"] for wanted in turns.answered()}
            versions = dict(list(chosen.items())[: self.request.wanted])
            self.journal.append("taken", step=self.request.step, versions=versions)
            return versions

    def correct(self, step: int | None, used: Mapping[int, int]) -> dict[int, int]:
        """The versions that take the place of what the model has, from a step on.

        Whoever asks first decides: a step that is repeated gets the same ones, and later corrections come after it.

        Args:
            step: The step that begins; None: after all steps, the newest.
            used: The version of each region that the model has.
        """
        with self.journal.locked():
            newest, corrected = self.versions(), self.progress().corrected
            found = newest if step is None else corrected.get(step, newest)
            changed = {region: version for region, version in found.items() if used.get(region, version) != version}
            if step is not None and step not in corrected:
                self.journal.append("corrected", step=step, versions=changed)
            return changed

    def versions_before(self, step: int) -> dict[int, int]:
        """The version of each region that the model had before a step."""
        state = self.progress()
        versions: dict[int, int] = {}
        for earlier in range(step):
            versions |= state.corrected.get(earlier, {}) | state.taken.get(earlier, {})
        return versions

    def taken(self) -> dict[int, dict[int, int]]:
        """What the model has learned from: by step, the version of each region."""
        return self.progress().taken

    # -- what is there ---------------------------------------------------------------------------

    def mask(self, region: int, version: int | None = None) -> Mask | None:
        """The newest mask of a region, or a version of it: [height, width]; None where nobody has labelled it."""
        wanted, newest = self.wanted(region), self.progress().saved.get(region)
        if newest is not None and version in (None, newest["version"]):
            return self._files.read(wanted, newest["version"], newest["sha256"])
        return None if version is None else self._files.read(wanted, version)

    def prediction(self, wanted: WantedRegion | int) -> Mask | None:
        """What the model takes a region for: [height, width]; None where nobody can say."""
        return self._files.prediction(self.wanted(wanted) if isinstance(wanted, int) else wanted)

    def inside(self, wanted: WantedRegion | int) -> NDArray[np.bool_]:
        """Which pixels of its box belong to a region: [height, width]."""
        return self._files.inside(self.wanted(wanted) if isinstance(wanted, int) else wanted)

    def status(self) -> Status:
        """How far the request is."""
        return self._turns().status()

    def versions(self) -> dict[int, int]:
        """The newest version of each region that is answered, of this request and earlier ones."""
        return {region: int(entry["version"]) for region, entry in self.progress().saved.items()}

    def put_off(self) -> set[int]:
        """Regions that were skipped in requests that the model has taken the answers of, and not answered since."""
        state = self.progress()
        return state.put_off | (state.skipped if state.step in state.taken else set())

    def wanted(self, region: int) -> WantedRegion:
        """A region of this request, or of an earlier one."""
        found = self._regions.get(region)
        content = self.progress().known.get(region) if found is None else None
        if found is None and content is None:
            raise DataError(f"region {region} was never asked for; {self.folder / FILE} lists what is wanted")
        return found or WantedRegion.from_json(content)

    def known(self) -> dict[int, WantedRegion]:
        """All regions that were ever asked for, by their numbers."""
        return {region: WantedRegion.from_json(content) for region, content in self.progress().known.items()}

    def _turns(self) -> Turns:
        return Turns(self.request, self.progress(), time.time())

    def progress(self) -> Progress:
        """What the journal says by now; only new lines are read."""
        with self._following:
            entries = self.journal.entries()
            generation, followed = self._followed
            if generation != self.journal.generation or followed > len(entries):
                self._progress, followed = Progress(), 0
            self._followed = self.journal.generation, len(entries)
            try:
                for entry in entries[followed:]:
                    self._progress.follow(entry)
            except DataError as error:
                self._followed = -1, 0  # next time from the start, and the same is told
                raise DataError(f"{self.journal.path}: {error}") from error
            return self._progress.copy()
