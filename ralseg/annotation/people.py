"""People as an oracle: a request goes out, answers come back, and the run goes on with them."""

import logging
import re
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ralseg.annotation.answers import Answers
from ralseg.annotation.journal import Cost
from ralseg.annotation.masks import Mask
from ralseg.annotation.pictures import Pictures, image_of, resized
from ralseg.annotation.request import ClassColour, Request, WantedRegion
from ralseg.data.description import default_colours
from ralseg.errors import ConfigError, DataError
from ralseg.labels.oracle import Answer, LabellingJob, LabelsNeeded, Oracle
from ralseg.labels.vault import IGNORE

log = logging.getLogger(__name__)
FOLDER = "to_label"


class PeopleOracle(Oracle):
    """Has people label regions. Write :meth:`wait` for a way to ask of your own.

    It leaves a request in ``to_label`` of the run's folder: what is wanted, with crops and predictions. Answers are
    masks beside it and lines of a journal (:class:`~ralseg.annotation.answers.Answers`), wherever they come from. A run
    that is cut off finds both again.

    Args:
        min_answers: The model goes on with so many answers of a step where somebody says so; None: with all.
        reserves: Regions of a step that may take the place of those that people skip: the policy's next best.
        reask: Share of the answers that a second annotator gives, too, without seeing the first one's.

    Examples:
        >>> import numpy as np
        >>> class Shrug(PeopleOracle):
        ...     def wait(self, request):
        ...         for wanted in request.regions:
        ...             mask = np.full(wanted.shape, 255, np.uint8)
        ...             self.answers.save(wanted.region, mask, who="nobody", source="page")
        >>> from tempfile import mkdtemp
        >>> from ralseg.data import SegmentationData
        >>> data = SegmentationData()
        >>> data.setup()
        >>> oracle = Shrug()
        >>> oracle.open(data.labelling_job("train_set", Path(mkdtemp())))
        >>> len(oracle.ask(torch.tensor([0, 30]), step=0).regions)
        2
    """

    folder: Path
    answers: Answers

    def __init__(self, min_answers: int | None = None, reserves: int = 0, reask: float = 0.05) -> None:
        if min_answers is not None and min_answers < 1:
            raise ConfigError(f"oracle.min_answers={min_answers} must be at least 1; leave it out to wait for all")
        if reserves < 0:
            raise ConfigError(f"oracle.reserves={reserves} must be 0 or more")
        if not 0 <= reask <= 1:
            raise ConfigError(f"oracle.reask={reask} must be a share, from 0 to 1")
        self.min_answers, self.reserves, self.reask = min_answers, reserves, reask
        self._used: dict[int, int] = {}  # version of each region that the run has by now

    @abstractmethod
    def wait(self, request: Request) -> None:
        """Return when :attr:`answers` are complete, or raise ``LabelsNeeded`` where the run should stop until then."""

    # -- what a run asks -------------------------------------------------------------------------

    def open(self, job: LabellingJob) -> None:
        """Take ``to_label`` in the run's folder, and the request that is there."""
        super().open(job)
        if job.folder is None:
            raise ConfigError(f"{type(self).__name__} writes into the run's folder, but this run has none")
        self.folder = job.folder / FOLDER
        self.classes = class_colours(job)
        self._pictures = Pictures(self.folder, job)
        self._used = {}
        try:
            request = Request.read(self.folder)
        except DataError:
            request = Request(-1, self.classes, ())
        self.answers = Answers(self.folder, request, job.palette)

    def asked(self, step: int) -> list[int]:
        """The regions of the request, if it is of this step."""
        return [wanted.region for wanted in self._asked(step) if not wanted.reserve]

    def reserved(self, step: int) -> list[int]:
        """The reserves of the request."""
        return [wanted.region for wanted in self._asked(step) if wanted.reserve]

    def _asked(self, step: int) -> tuple[WantedRegion, ...]:
        request = self.answers.request
        return request.regions if request.step == step else ()

    def put_off(self) -> list[int]:
        """What was skipped in earlier requests."""
        return sorted(self.answers.put_off())

    def ask(self, regions: Tensor, step: int) -> Answer:
        """Ask people, and take what they have answered: all, or less where that is enough, reserves among it.

        Once taken, an answer stays the run's: repeated, it gives the same labels, and later corrections come after.
        """
        self._request(regions.tolist(), step)
        if not self._is_taken(step):
            self.answers.take_up()
            if not self.answers.status().is_complete:
                self.wait(self.answers.request)
            status = self.answers.status()
            if not status.is_complete:
                raise LabelsNeeded(f"{status.open} of {status.wanted} regions wait for labels; --ckpt last goes on")
        versions = self.answers.take()
        self._used |= versions
        # in the order that was asked for, as other oracles answer; then reserves by rank
        asked = [region for region in regions.tolist() if region in versions]
        taken = asked + [region for region in versions if region not in asked]
        return Answer(torch.tensor(taken, dtype=torch.int64), self._labels(taken, versions))

    def _is_taken(self, step: int) -> bool:
        taken = self.answers.taken().get(step, {})
        return bool(taken) and taken.keys() <= {wanted.region for wanted in self._asked(step)}

    def label(self, regions: Tensor) -> Tensor:
        """The newest labels of regions; what is missing is asked for."""
        wanted = regions.tolist()
        self._take_up()
        if self._unanswered(wanted):
            self._request(wanted, step=-1)
            self.answers.take_up()
        if self._unanswered(wanted):
            self.wait(self.answers.request)
        missing = self._unanswered(wanted)
        if missing:
            raise LabelsNeeded(f"{len(missing)} of {len(wanted)} regions wait for labels; --ckpt last goes on")
        versions = self.answers.versions()
        self._used |= {region: versions[region] for region in wanted}
        return self._labels(wanted, versions)

    def _unanswered(self, regions: list[int]) -> list[int]:
        answered = self.answers.versions()
        return [region for region in regions if region not in answered]

    def recall_at(self, regions: Tensor, step: int) -> Tensor:
        """The versions that the run had before a step; where the journal does not know them, the newest."""
        wanted, versions = regions.tolist(), self.answers.versions_before(step)
        if not versions.keys() >= set(wanted):
            return self.recall(regions)
        self._used = {region: versions[region] for region in wanted}
        return self._labels(wanted, versions)

    def corrections(self, step: int | None) -> Answer | None:
        """Masks of which the run has an older version."""
        self._take_up()
        versions = self.answers.correct(step, self._used)
        self._used |= versions
        regions = sorted(versions)
        return Answer(torch.tensor(regions, dtype=torch.int64), self._labels(regions, versions))

    def _take_up(self) -> None:
        """Take masks that people have put there by hand; bad ones are told, and the run goes on with what it has."""
        try:
            self.answers.take_up()
        except DataError as error:
            log.warning("%s", error)

    def cost(self, regions: list[int]) -> dict[str, object]:
        """What people have spent on regions, from the journal."""
        return Cost.of(self.answers.journal.entries(), set(regions)).as_json()

    # -- requests --------------------------------------------------------------------------------

    def _request(self, regions: list[int], step: int) -> None:
        """Ask for regions. What is asked for already stays as it is, but for options that were changed since."""
        before = self.answers.request
        is_new = sorted(self.asked(step)) != sorted(regions)
        if is_new:
            request = Request(step, self.classes, self._ranked(regions), self.min_answers, self.reask)
        else:
            request = replace(before, classes=self.classes, min_answers=self.min_answers, reask=self.reask)
        self._pictures.write(request, is_new, self.answers.versions())
        shown = [(self.folder / str(wanted.prediction)).is_file() for wanted in request.regions]
        wanted = zip(request.regions, shown, strict=True)
        request = replace(
            request, regions=tuple(w if is_shown else replace(w, prediction=None) for w, is_shown in wanted)
        )
        if request != before:
            request.write(self.folder)
            self.answers = Answers(self.folder, request, self.job.palette)
        self.answers.open()
        self._pictures.remove_stale(request, self.answers.known(), self.answers.versions())

    def _ranked(self, regions: list[int]) -> tuple[WantedRegion, ...]:
        ranking = self.job.ranking()
        scores = ranking.scores
        best = sorted(regions, key=lambda region: -scores.get(region, 0.0))
        taken = {*regions, *self.answers.versions()}  # what is answered need not stand in for anything
        reserves = [region for region in ranking.reserves if region not in taken][: self.reserves]
        return tuple(
            self._wanted(region, rank, scores.get(region), rank > len(best))
            for rank, region in enumerate([*best, *reserves], start=1)
        )

    def _wanted(self, region: int, rank: int, score: float | None, reserve: bool) -> WantedRegion:
        regions, image = self.job.regions, image_of(self.job, region)
        x, y, width, height = regions.file_box(region)
        image_height, image_width = regions.images.file_size(image)
        name, inside = self._name(region), regions.inside(region)
        return WantedRegion(
            region,
            self.job.image_names[image],
            image_width,
            image_height,
            x,
            y,
            width,
            height,
            rank,
            None if score is None else float(score),
            f"crops/{name}",
            f"masks/{name}",
            f"predictions/{name}",
            None if inside is None or bool(inside.all()) else f"shapes/{name}",
            reserve,
        )

    def _name(self, region: int) -> str:
        stem = re.sub(r"[^A-Za-z0-9.-]+", "_", self.job.image_names[image_of(self.job, region)])[-60:]
        regions = self.job.regions
        place = "".join(
            f"_{name}{number}" for name, number in zip(regions.place_names, regions.place(region), strict=True)
        )
        return f"{region:07d}_{stem}{place}.png"

    # -- labels ----------------------------------------------------------------------------------

    def _labels(self, regions: list[int], versions: dict[int, int]) -> Tensor:
        """Versions of masks as the run takes them: [k, *box_size]."""
        if not regions:
            return torch.empty(0, *self.job.regions.box_size, dtype=torch.uint8)
        masks = {region: self.answers.mask(region, versions[region]) for region in regions}
        return torch.stack([self._fitted(region, mask) for region, mask in masks.items() if mask is not None])

    def _fitted(self, region: int, mask: Mask) -> Tensor:
        """A mask in the size that the run works at; what lies outside of the region is ignored."""
        regions = self.job.regions
        width, height = regions.boxes(torch.tensor(region)).tolist()[2:]
        labels = resized(torch.from_numpy(mask.copy()), (height, width))
        inside = regions.inside(region)
        return regions.fit_box(labels if inside is None else torch.where(inside, labels, IGNORE))


def class_colours(job: LabellingJob) -> tuple[ClassColour, ...]:
    """The classes of a job, each in a colour of its own: the data set's where it has one that no other class has."""
    free = [colour for colour in default_colours(2 * len(job.class_names)) if colour not in job.colours]
    chosen: list[tuple[int, int, int]] = []
    for number in range(len(job.class_names)):
        own = job.colours[number] if number < len(job.colours) else None
        chosen.append(own if own is not None and own not in chosen else free.pop(0))
    return tuple(
        ClassColour(number, name, "#{:02x}{:02x}{:02x}".format(*colour))
        for number, (name, colour) in enumerate(zip(job.class_names, chosen, strict=True))
    )
