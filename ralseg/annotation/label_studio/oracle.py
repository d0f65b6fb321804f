"""Label Studio as an oracle: people label on a server, and the run waits for them or stops until they are done."""

import logging
import os
import time
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import SecretStr

from ralseg.annotation.journal import Entry
from ralseg.annotation.label_studio.client import LabelStudioClient, LabelStudioError, checked_url
from ralseg.annotation.label_studio.project import LabelStudioProject, TaskKey, file_name
from ralseg.annotation.label_studio.tasks import Painted, Picture, mask_of, newest, prediction_of
from ralseg.annotation.people import PeopleOracle
from ralseg.annotation.pictures import image_of
from ralseg.annotation.request import Request, WantedRegion
from ralseg.errors import ConfigError, DataError
from ralseg.labels.oracle import LabellingJob, LabelsNeeded
from ralseg.runtime.files import encode_png, write_png
from ralseg.runtime.signals import Interrupted, interrupts

log = logging.getLogger(__name__)
TOKEN = "LABEL_STUDIO_TOKEN"
ROOT = "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT"
SOURCE = "label_studio"
_LOOK_SECONDS = 0.25
_FIRST_RETRIES = 1  # a wrong address should be said soon


class LabelStudioOracle(PeopleOracle):
    """Puts regions on a Label Studio server as tasks, and takes what people paint there.

    A task shows the whole image with a frame around the region that cannot be moved, and the model's prediction to
    correct. Tasks are served by rank. Whatever was submitted is in the run's folder as soon as the run has looked:
    where the server or the run goes away, the same command goes on.

    Args:
        url: Where the server is.
        token: An access token, legacy or personal. None: the environment's ``LABEL_STUDIO_TOKEN``, which is the better
            place for it.
        project: A project to put the tasks into. None: one of the run's own, which it remembers.
        images: ``upload`` sends whole images to the server; ``local`` has it read them from the run's folder, which
            must lie below ``document_root``; ``crops`` sends the regions alone.
        document_root: The server's ``LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT``, for ``images: local``. None: that of
            this environment.
        wait: Whether the run waits for the answers; otherwise it stops, and the same command goes on.
        poll_seconds: Seconds between two looks at the server.
        timeout: Seconds to wait for an answer of the server.
        retries: How many times a question is asked again, with pauses of 1, 2, 4, ... up to 30 seconds.
        min_answers: The model goes on with so many answers of a step where the command is given again; None: with all.
        reserves: Regions of a step that may take the place of those that people skip: the policy's next best.
        reask: Share of the answers that a second annotator gives, too, without seeing the first one's.

    Examples:
        >>> LabelStudioOracle("http://127.0.0.1:8080", token=SecretStr("0123abcd"), wait=False).reserves
        8
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        token: SecretStr | None = None,
        project: int | None = None,
        images: Literal["upload", "local", "crops"] = "upload",
        document_root: str | None = None,
        wait: bool = True,
        poll_seconds: float = 5.0,
        timeout: float = 60.0,
        retries: int = 8,
        min_answers: int | None = None,
        reserves: int = 8,
        reask: float = 0.05,
    ) -> None:
        super().__init__(min_answers, reserves, reask)
        for name, value in (("poll_seconds", poll_seconds), ("timeout", timeout), ("retries", retries + 1)):
            if not 0 < value < 86_400:
                raise ConfigError(f"oracle.{name}: must be more than 0, and less than a day")
        self.url, self._token, self._given = checked_url(url), token, project
        self.images, self.document_root, self._waits = images, document_root, wait
        self.poll_seconds, self.timeout, self.retries = poll_seconds, timeout, retries
        self._project: LabelStudioProject | None = None
        self._problems: dict[int, str] = {}  # tasks whose answers cannot be read, and why

    # -- the run -----------------------------------------------------------------------------------

    def open(self, job: LabellingJob) -> None:
        """Take the run's folder; what the server will need is looked for now, before anything is computed."""
        super().open(job)
        self._project, self._problems = None, {}
        self._secret()
        if self.images == "local":
            self._root()

    def wait(self, request: Request) -> None:
        """Put the request on the server, and take answers until there are enough."""
        project = self._connected()
        self._take_news(project)
        if self.min_answers is not None and self.answers.status().can_finish:
            self.answers.finish("")
        project.retire(request.step)
        answered = -1
        while not self.answers.status().is_complete:
            self._put(project)
            status = self.answers.status()
            if not self._waits:
                raise LabelsNeeded(self._said(project) + " Then give the same command with --ckpt last")
            if status.answered != answered:
                print(self._said(project), flush=True)
                answered = status.answered
            self._pause()
            self._take_news(project)

    def _take_up(self) -> None:
        """Also take what was corrected on the server; where it is away, the run goes on with what it has."""
        super()._take_up()
        if not (self._project or LabelStudioProject.is_remembered(self.folder)):
            return
        try:
            self._take_news(self._connected())
        except LabelStudioError as error:
            log.warning("corrections on the server are not seen: %s", error)

    def _said(self, project: LabelStudioProject) -> str:
        """How far people are, and where they label."""
        status = self.answers.status()
        bad = "".join(f" {project.task_page(task)} cannot be read: {why}." for task, why in self._problems.items())
        return f"{status.open} of {status.wanted} regions wait for labels: label them at {project.page}.{bad}"

    def _pause(self) -> None:
        """Wait for the next look; a signal ends the waiting at once."""
        end = time.monotonic() + self.poll_seconds
        while True:
            if interrupts.asked is not None:  # nothing of this step is kept but the answers, which are on disk
                raise Interrupted(interrupts.asked)
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _LOOK_SECONDS))

    # -- the server --------------------------------------------------------------------------------

    def _secret(self) -> str:
        token = "" if self._token is None else self._token.get_secret_value()
        if not token.strip("*"):  # a configuration in a run's folder has stars in its place
            token = os.environ.get(TOKEN, "").strip()
        if not token:
            raise ConfigError(
                f"no token for {self.url}: set the environment variable {TOKEN} to the one from Label Studio's page "
                "'Account & Settings'"
            )
        return token

    def _root(self) -> Path:
        root = self.document_root or os.environ.get(ROOT, "")
        if not root:
            raise ConfigError(
                f"images: local needs document_root, the folder that the server's {ROOT} names; or give images: upload"
            )
        return Path(root)

    def _connected(self) -> LabelStudioProject:
        """The run's project, found or made when it is first needed."""
        if self._project is None:
            client = LabelStudioClient(self.url, self._secret(), self.timeout, min(_FIRST_RETRIES, self.retries))
            project = LabelStudioProject(client, self.folder, self._given)
            title = f"ralseg {self.folder.absolute().parent.name}"[:50]
            project.open(title, self.classes, self.job.regions.inside(0) is not None)
            client.retries, self._project = self.retries, project
        return self._project

    # -- what goes out -----------------------------------------------------------------------------

    def _put(self, project: LabelStudioProject) -> None:
        """Put tasks on the server for what is wanted now: by rank, then second opinions."""
        step, answers = self.answers.request.step, self.answers
        keys = [TaskKey(step, wanted.region) for wanted in answers.wanted_now()]
        people = answers.status().by_whom
        again = {wanted.region: wanted for who in people if len(people) > 1 for wanted in answers.to_reask(who)}
        keys += [TaskKey(step, region, blind=True) for region in again]
        project.add(keys, lambda key: self._task(project, key))

    def _task(self, project: LabelStudioProject, key: TaskKey) -> dict[str, Any]:
        """A task as Label Studio takes it."""
        wanted, count = self.answers.wanted(key.region), self.answers.request.wanted
        is_crop, inside = self.images == "crops", self.answers.inside(wanted.region)
        picture = Picture.crop(wanted) if is_crop else Picture.whole(wanted)
        predicted = None if key.blind else self.answers.prediction(wanted.region)
        opinion = ", a second opinion" if key.blind else ""
        place = f"{wanted.rank} of {count}" if wanted.rank <= count else f"{wanted.rank}, in place of a skipped one"
        title = f"Region {place}{opinion}: {wanted.image}"
        data = {"image": self._address(project, wanted), "title": title, "is_crop": is_crop}
        shown = prediction_of(wanted, picture, self.classes, predicted, inside, wanted.rank / count)
        return {"data": data, "predictions": [shown]}

    def _address(self, project: LabelStudioProject, wanted: WantedRegion) -> str:
        """Where the server has the picture of a region; it is brought there if need be."""
        if self.images == "crops":
            crop = self.folder / wanted.crop
            return project.upload(file_name(f"{wanted.region}_{wanted.image}"), crop.read_bytes)
        name, image = file_name(wanted.image), image_of(self.job, wanted.region)
        if self.images == "upload":
            return project.upload(name, lambda: encode_png(self.job.read_image(image)))
        path = self.folder / "images" / name
        if not path.is_file():
            write_png(path, self.job.read_image(image))
        return project.local(path, self._root())

    # -- what comes back ---------------------------------------------------------------------------

    def _take_news(self, project: LabelStudioProject) -> None:
        """Take what was submitted, skipped or corrected; what cannot be read is told, and waits to be corrected."""
        settled = []
        try:
            for task, key, content in project.news():
                try:
                    self._take(key, content)
                except LabelStudioError:
                    raise
                except DataError as error:
                    if self._problems.get(task) != str(error):
                        log.warning("%s cannot be read: %s", project.task_page(task), error)
                    self._problems[task] = str(error)
                else:
                    self._problems.pop(task, None)
                    settled.append(task)
        finally:
            project.settle(settled)

    def _take(self, key: TaskKey, content: Any) -> None:
        """Keep what a task says of its region."""
        painted, answered = newest(content), self.answers.versions()
        if painted is None:
            return
        is_now = key.step == self.answers.request.step
        if painted.is_skip:
            if is_now and not key.blind and key.region not in answered:
                self.answers.skip(key.region, who=painted.who)
            return
        wanted = self.answers.wanted(key.region)
        data = content.get("data")
        is_crop = isinstance(data, dict) and data.get("is_crop") is True
        picture = Picture.crop(wanted) if is_crop else Picture.whole(wanted)
        inside = self.answers.inside(wanted)
        mask = mask_of(painted.results, content.get("predictions"), wanted, picture, self.classes, inside)
        before = self.answers.mask(key.region)
        if key.blind:
            if before is not None and painted.who != self._first(key.region):
                seconds = painted.seconds
                self.answers.save(key.region, mask, who=painted.who, seconds=seconds, source=SOURCE, blind=True)
        elif before is None or (before != mask).any():
            seconds = self._new_seconds(key.region, painted)
            self.answers.save(key.region, mask, who=painted.who, seconds=seconds, source=SOURCE)

    def _saved(self, region: int) -> list[Entry]:
        """What the journal says of the answers to a region."""
        entries = self.answers.journal.entries()
        return [entry for entry in entries if entry["event"] == "saved" and entry["region"] == region]

    def _first(self, region: int) -> str:
        """Who has labelled a region."""
        return str(self._saved(region)[-1]["who"])

    def _new_seconds(self, region: int, painted: Painted) -> float | None:
        """Time that no earlier answer has counted: the server sums up all corrections of an annotation."""
        if painted.seconds is None:
            return None
        before = [entry for entry in self._saved(region) if (entry["source"], entry["who"]) == (SOURCE, painted.who)]
        counted = sum(entry["seconds"] or 0.0 for entry in before)
        return painted.seconds - counted if counted <= painted.seconds else painted.seconds
