"""A run's project on a Label Studio server: found or made, filled with tasks once, and looked at for news."""

import json
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ralseg.annotation.label_studio.client import LabelStudioClient, LabelStudioError
from ralseg.annotation.label_studio.tasks import MODEL_VERSION, has_brushes, label_config
from ralseg.annotation.request import ClassColour
from ralseg.errors import ConfigError
from ralseg.runtime.files import read_json, write_atomically

FILE, FORMAT = "label_studio.json", "ralseg.label_studio/1"
_AT_ONCE = 8  # tasks in one message: a server that goes away has at most so many that we have not heard of
_INSTRUCTION = (
    "Paint what lies inside of the yellow frame, every pixel. What is painted already is a model's guess: correct it. "
    "Strokes may leave the frame, nothing outside of it counts. A new stroke covers what is below it. Choose "
    "&quot;cannot tell&quot; for what cannot be told. Skip puts a region off; another one is asked for in its place."
)


@dataclass(frozen=True)
class TaskKey:
    """What a task asks for: a region, at a step of the run, perhaps for a second time and without a prediction."""

    step: int
    region: int
    blind: bool = False

    def as_data(self, run: str) -> dict[str, Any]:
        """As a task carries it."""
        return {"run": run, "step": self.step, "region": self.region, "blind": self.blind}

    @classmethod
    def of(cls, data: Any, run: str) -> "TaskKey | None":
        """The key of a task that belongs to a run; None for all others."""
        if not isinstance(data, dict) or data.get("run") != run:
            return None
        step, region, blind = data.get("step"), data.get("region"), data.get("blind")
        if type(step) is not int or type(region) is not int or type(blind) is not bool:
            return None
        return cls(step, region, blind)


@dataclass(frozen=True)
class Known:
    """What the list of tasks says of one."""

    key: TaskKey
    updated: str
    is_open: bool  # nobody has answered or skipped it


class LabelStudioProject:
    """The project that a run's tasks are in.

    Whatever is made on the server is looked for first, by the run's own mark: a run that was cut off between asking
    and hearing the answer makes nothing twice.

    Args:
        client: The server.
        folder: Where the run remembers its project.
        number: A project that exists already; None: one of the run's own.
    """

    def __init__(self, client: LabelStudioClient, folder: Path, number: int | None = None) -> None:
        self.client, self._path = client, folder / FILE
        self.tasks: dict[int, Known] = {}
        self._uploaded: dict[str, str] | None = None
        self._has_version = False  # whether the project shows our predictions
        self._read(number)

    @staticmethod
    def is_remembered(folder: Path) -> bool:
        """Whether a run has had a project."""
        return (folder / FILE).is_file()

    @property
    def page(self) -> str:
        """Where people label."""
        return f"{self.client.url}/projects/{self.number}/data?labeling=1"

    def task_page(self, task: int) -> str:
        """Where one task is."""
        return f"{self.client.url}/projects/{self.number}/data?task={task}"

    # -- what is remembered -----------------------------------------------------------------------

    def _read(self, number: int | None) -> None:
        content = read_json(self._path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            content = {}
        run, project, seen = (content.get(key) for key in ("run", "project", "seen"))
        self.run: str = run if isinstance(run, str) and run else secrets.token_hex(8)
        self.number = number if number is not None else project if type(project) is int else None
        self._is_given = number is not None
        is_same = self.number == project and isinstance(seen, dict)
        self._seen = {int(task): str(when) for task, when in (seen or {}).items() if task.isdigit()} if is_same else {}

    def _remember(self) -> None:
        content = {
            "format": FORMAT,
            "url": self.client.url,
            "run": self.run,
            "project": self.number,
            "seen": {str(task): when for task, when in self._seen.items()},
        }
        write_atomically(self._path, json.dumps(content, indent=1) + "\n")

    # -- the project ------------------------------------------------------------------------------

    def open(self, title: str, classes: tuple[ClassColour, ...], has_shapes: bool = False) -> None:
        """Find the run's project, or make it; then look at its tasks.

        Args:
            title: Of a new project.
            classes: The classes.
            has_shapes: Whether regions need not fill their boxes.
        """
        self._remember()  # the run's mark, before anything is made under it
        if self.number is None:
            self.number = self._find(title)
        if self.number is None:
            self.number = self._make(title, label_config(classes, has_shapes))
        else:
            self._check(classes, has_shapes)
        self._remember()
        self.refresh()

    def _find(self, title: str) -> int | None:
        """A project that was made for this run, but of which it has not heard."""
        for project in self.client.pages("/api/projects", "results", title=title, include="id,title,description"):
            if self._is_marked(project) and type(project.get("id")) is int:
                return int(project["id"])
        return None

    def _is_marked(self, project: dict[str, Any]) -> bool:
        return self.run in str(project.get("description"))

    def _make(self, title: str, interface: str) -> int:
        content = {
            "title": title,
            "description": f"Regions that ralseg asks for (run {self.run}).",
            "expert_instruction": _INSTRUCTION,
            "show_instruction": True,
            "label_config": interface,
            "sampling": "Sequential sampling",  # tasks go in by rank; uncertainty sampling is random for two people
            "skip_queue": "REQUEUE_FOR_ME",  # what was put off comes last
            "show_skip_button": True,
            "show_collab_predictions": True,
            "maximum_annotations": 1,
        }
        made = self.client.post("/api/projects/", content)
        if not isinstance(made, dict) or type(made.get("id")) is not int:
            raise LabelStudioError(f"{self.client.url}: made no project")
        return int(made["id"])

    def _check(self, classes: tuple[ClassColour, ...], has_shapes: bool) -> None:
        """Refuse a project that is another run's, or whose interface lacks the brushes."""
        where = f"{self.client.url}/projects/{self.number}"
        project = self.client.get(f"/api/projects/{self.number}/")
        if not isinstance(project, dict):
            raise LabelStudioError(f"{where}: is no project")
        self._has_version = project.get("model_version") == MODEL_VERSION
        if not self._is_given and not self._is_marked(project):
            raise ConfigError(
                f"{where} was not made by this run (its mark {self.run} is missing in the description): give the `url` "
                f"of its own server, or delete {self._path} to have a project made anew"
            )
        if has_brushes(project.get("parsed_label_config"), classes, has_shapes):
            return
        if project.get("task_number"):
            raise ConfigError(
                f"{where}: its labelling interface has not the brushes of these classes; give an empty project, or none"
            )
        self.client.patch(f"/api/projects/{self.number}/", {"label_config": label_config(classes, has_shapes)})

    # -- pictures ---------------------------------------------------------------------------------

    def upload(self, name: str, picture: Callable[[], bytes]) -> str:
        """The address of an uploaded file; sent only where the server has none of the name."""
        if self._uploaded is None:
            files = self.client.entries(f"/api/projects/{self._number}/file-uploads", all="true")
            paths = [str(file.get("file")) for file in files]
            # the server puts eight random characters and a dash before a name
            self._uploaded = {path.rpartition("/")[2][9:]: f"/data/{path}" for path in paths}
        if name not in self._uploaded:
            self._uploaded[name] = self.client.upload(self._number, name, picture())
        return self._uploaded[name]

    def local(self, path: Path, root: Path) -> str:
        """The address of a file that the server reads from disk itself. It needs a storage for the folder."""
        folder, inner = path.parent.resolve(), path.resolve()
        if root.resolve() not in folder.parents:
            raise ConfigError(
                f"images: local needs the run's folder below the server's LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT, but "
                f"{folder} is not below {root.resolve()}; give this run another --trainer.default_root_dir, or "
                "images: upload"
            )
        storages = self.client.entries("/api/storages/localfiles", project=self._number)
        if str(folder) not in [storage.get("path") for storage in storages]:
            content = {"project": self.number, "path": str(folder), "title": MODEL_VERSION, "use_blob_urls": True}
            try:
                self.client.post("/api/storages/localfiles", content)
            except LabelStudioError as error:
                raise LabelStudioError(f"{error}; {_LOCAL_HINT}") from error
        address = f"/data/local-files/?d={quote(inner.relative_to(root.resolve()).as_posix())}"
        if not self.client.serves(address):
            raise LabelStudioError(f"{self.client.url}{address}: the server does not show it; {_LOCAL_HINT}")
        return address

    @property
    def _number(self) -> int:
        assert self.number is not None, "the project is not open"
        return self.number

    # -- tasks ------------------------------------------------------------------------------------

    def add(self, wanted: Iterable[TaskKey], make: Callable[[TaskKey], dict[str, Any]]) -> int:
        """Put tasks in that are not there yet, in this order; how many.

        Args:
            wanted: What is asked for, the best first.
            make: Makes ``data`` and ``predictions`` of a task.
        """
        there = {known.key for known in self.tasks.values()}
        missing = [key for key in wanted if key not in there]
        for start in range(0, len(missing), _AT_ONCE):
            part = []
            for key in missing[start : start + _AT_ONCE]:
                task = make(key)
                part.append(task | {"data": task["data"] | key.as_data(self.run)})
            self.client.post(f"/api/projects/{self._number}/import", part)
        if not self._has_version and (there or missing):  # a version without predictions is refused
            self.client.patch(f"/api/projects/{self._number}/", {"model_version": MODEL_VERSION})
            self._has_version = True
        if missing:
            self.refresh()
        return len(missing)

    def retire(self, step: int) -> None:
        """Take tasks of other steps away that nobody has begun: people should not be served them first."""
        for task, known in list(self.tasks.items()):
            if known.is_open and known.key.step != step and not known.key.blind:
                content = self.client.get(f"/api/tasks/{task}/")
                if isinstance(content, dict) and not content.get("annotations") and not content.get("draft_exists"):
                    self.client.delete(f"/api/tasks/{task}/")
                    del self.tasks[task]

    def news(self) -> Iterator[tuple[int, TaskKey, Any]]:
        """Tasks that have changed since they were last settled: number, key, content."""
        self.refresh()
        for task, known in sorted(self.tasks.items()):
            if not known.is_open and self._seen.get(task) != known.updated:
                yield task, known.key, self.client.get(f"/api/tasks/{task}/")

    def settle(self, tasks: Iterable[int]) -> None:
        """Note that what tasks say now is on disk."""
        self._seen |= {task: self.tasks[task].updated for task in tasks}
        self._remember()

    def refresh(self) -> None:
        """Look at the list of tasks; those of others are passed over."""
        fields = "id,data,updated_at,total_annotations,cancelled_annotations"
        entries = self.client.pages("/api/tasks", "tasks", project=self._number, fields="task_only", include=fields)
        self.tasks = {}
        for entry in entries:
            key = TaskKey.of(entry.get("data"), self.run)
            if key is not None and type(entry.get("id")) is int:
                is_open = not entry.get("total_annotations") and not entry.get("cancelled_annotations")
                self.tasks[entry["id"]] = Known(key, str(entry.get("updated_at")), is_open)


def file_name(image: str) -> str:
    """A name for an image's file that is like it, that every server takes, and that no other image has.

    Examples:
        >>> file_name("train/a b.tif")
        'train_a_b.tif-7f73693d.png'
    """
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", image)[-60:].lstrip(".-")
    return f"{plain}-{zlib.crc32(image.encode()):08x}.png"


_LOCAL_HINT = (
    "start it with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT set to a "
    "folder above the run's, or give images: upload"
)
