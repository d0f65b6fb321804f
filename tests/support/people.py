"""People that a test can do without: they answer, skip, correct and stop early by rules, and the same way again."""

import numpy as np

from ralseg.annotation import PeopleOracle, Request, WantedRegion
from ralseg.annotation.masks import Mask
from support.games import Killed


class Team(PeopleOracle):
    """Answers with stripes that depend on the region alone.

    Args:
        skips: Put off regions whose number can be divided by this; 0: none.
        stops: Say at odd steps that the model shall go on as soon as it may.
        corrects: From the third step on, correct a region of each step before the last one.
        dies_at: A step, and after how many answers of it the process ends; -1: once its answers are taken.
        options: As every such oracle has them.
    """

    def __init__(
        self,
        skips: int = 0,
        stops: bool = False,
        corrects: bool = False,
        dies_at: tuple[int, int] | None = None,
        min_answers: int | None = None,
        reserves: int = 0,
        reask: float = 0.0,
    ) -> None:
        super().__init__(min_answers, reserves, reask)
        self.skips, self.stops, self.corrects, self.dies_at = skips, stops, corrects, dies_at
        self.requests: list[Request] = []

    def ask(self, regions, step):
        answer = super().ask(regions, step)
        if self.dies_at == (step, -1):
            raise Killed
        return answer

    def wait(self, request):
        self.requests.append(request)
        if self.corrects and request.step >= 2:
            self._correct(request.step)
        answered = self.answers.status().answered
        while not self.answers.status().is_complete:
            if self.dies_at == (request.step, answered):
                raise Killed
            wanted = self.answers.next_for("Ada")
            assert wanted is not None
            if self.skips and wanted.region % self.skips == 0 and not self._is_skipped(wanted.region):
                self.answers.skip(wanted.region, who="Ada")
                continue
            self.answers.save(wanted.region, self.stripes(wanted), who="Ada", seconds=3.0, clicks=2, source="page")
            answered += 1
            if self.stops and request.step % 2 and self.answers.status().can_finish:
                self.answers.finish("Ada")

    def _correct(self, step: int) -> None:
        """One region that was taken two steps ago: another mask, each time the same."""
        region = min(self.answers.taken()[step - 2])
        mask = self.stripes(self.answers.wanted(region), shift=1)
        self.answers.save(region, mask, who="Bob", seconds=1.0, clicks=1, source="page")

    def _is_skipped(self, region: int) -> bool:
        entries = self.answers.journal.entries()
        return any(entry["event"] == "skipped" and entry["region"] == region for entry in entries)

    def stripes(self, wanted: WantedRegion, shift: int = 0) -> Mask:
        """Rows of classes, from one that depends on the region."""
        numbers = (np.arange(wanted.height) // 8 + wanted.region + shift) % len(self.classes)
        return np.repeat(numbers[:, None], wanted.width, 1).astype(np.uint8)
