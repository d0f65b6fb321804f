"""What a run tells MLflow, sent by a thread of its own: a store that is slow or away costs the run nothing."""

import contextlib
import json
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock

from ralseg.runtime.files import read_json, write_atomically

log = logging.getLogger(__name__)
UNSENT, RUN = "unsent.jsonl", "mlflow.json"
RETRY_SECONDS = 30.0
_BATCH = 1000  # metrics in one call: MLflow's limit
_PARAMS = 100
_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS")

Event = dict[str, Any]
"""``metrics`` with ``step`` and ``time``; or ``params``; or ``file``; or ``status``."""


def connect(uri: str) -> Any:
    """A client of a store. One process at a time makes the tables of a new SQLite file: two would collide."""
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # that tables are made is no news
    if not uri.startswith("sqlite:///"):
        return MlflowClient(uri)
    store = Path(uri.removeprefix("sqlite:///"))
    store.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(store.with_name(f".{store.name}.lock"), timeout=120):
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
        return client


def shown(text: str) -> str:
    """A store's address, or a message with one in it, without the password."""
    return re.sub(r"//[^/\s]*@", "//", text)


def reason(error: Exception) -> str:
    """What went wrong, in a line that can be shown."""
    lines = str(error).splitlines()
    return shown(lines[0][:200]) if lines else type(error).__name__


class Post:
    """Sends events in their order, and keeps in the run's folder what could not be sent.

    Unsent events are sent before others as soon as the store answers again: in this process or, by a resumed run, in
    a later one. A resumed run goes on with its run of MLflow's.

    Args:
        folder: The run's folder.
        uri: MLflow's store.
        make_run: Makes a run with that client and returns its id; called once the store answers.
    """

    def __init__(self, folder: Path, uri: str, make_run: Callable[[Any], str]) -> None:
        self.folder, self.uri, self._make_run = folder, uri, make_run
        self.run_id: str | None = None
        self._client: Any = None
        self._changed = threading.Condition()  # guards all that follows
        self._pending: deque[Event] = deque()
        self._thread: threading.Thread | None = None
        self._is_away, self._retry_at = False, 0.0
        self._old_tries = 0  # those up to this number began before somebody waits: another one follows at once
        self._tries, self._failed_try = 0, 0  # how many began, and the number of the last one that failed
        self._on_disk = 0  # pending events that the file holds, or could not take, from the first on

    def put(self, event: Event) -> None:
        """Have an event sent. Returns at once."""
        with self._changed:
            if self._thread is None:
                self._pending.extend(self._read_file())
                self._on_disk = len(self._pending)
                self._thread = threading.Thread(target=self._work, name="ralseg-post", daemon=True)
                self._thread.start()
            self._pending.append(event)
            self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until all is sent, or has been tried once more; what is not sent by then is on disk."""
        with self._changed:
            # a try that is under way began before this moment: it does not count
            self._retry_at = 0.0
            before = self._old_tries = self._tries
            self._changed.notify_all()
            is_told = self._changed.wait_for(lambda: not self._pending or self._failed_try > before, seconds)
            self._write_file()
            if not is_told:
                log.warning("MLflow at %s does not answer; what it was not told is in %s", shown(self.uri), self._file)

    @property
    def _file(self) -> Path:
        return self.folder / UNSENT

    # -- in the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, RETRY_SECONDS if self._is_away else None)
                if self._is_away:
                    self._write_file()
                if not self._pending or (self._is_away and time.monotonic() < self._retry_at):
                    continue
                events = self._next_batch()
                self._tries += 1
                number = self._tries
            problem = self._try_to_send(events)
            with self._changed:
                if problem is None:
                    for _ in events:
                        self._pending.popleft()
                    self._on_disk = max(self._on_disk - len(events), 0)
                    self._is_away = False
                    if not self._pending:
                        with contextlib.suppress(OSError):  # what is sent twice is better than a thread that is gone
                            self._file.unlink()
                else:
                    self._failed_try = number
                    self._note_absence(problem)
                self._changed.notify_all()

    def _has_work(self) -> bool:
        if self._is_away:
            return len(self._pending) > self._on_disk or time.monotonic() >= self._retry_at
        return bool(self._pending)

    def _next_batch(self) -> list[Event]:
        """The first event; where it holds metrics, those that follow it go with it."""
        total = 0
        events: list[Event] = []
        for event in self._pending:
            total += len(event.get("metrics", ()))
            if events and ("metrics" not in event or total > _BATCH):
                break
            events.append(event)
            if "metrics" not in event:
                break
        return events

    def _note_absence(self, problem: Exception) -> None:
        if not self._is_away:
            log.warning(
                "MLflow at %s failed (%s); the run goes on, and what MLflow was not told is kept in %s until it "
                "answers again, now or when the run is given again with --ckpt last",
                shown(self.uri),
                reason(problem),
                self._file,
            )
        self._is_away = True
        self._retry_at = 0.0 if self._failed_try <= self._old_tries else time.monotonic() + RETRY_SECONDS
        self._write_file()

    def _try_to_send(self, events: list[Event]) -> Exception | None:
        """Send events that belong together; what is wrong with the store, if anything."""
        try:
            self._send_or_drop(self._connected(), events)
        except Exception as error:  # whatever the store or the network raise
            return error
        return None

    def _send_or_drop(self, client: Any, events: list[Event]) -> None:
        """What MLflow will never take is dropped, but neither what came with it nor what comes after."""
        from mlflow.exceptions import MlflowException

        try:
            self._send(client, events)
        except MlflowException as error:
            if error.error_code not in _REFUSALS:
                raise
            single = _in_pieces(events)
            if len(single) > 1:
                for event in single:
                    self._send_or_drop(client, [event])
            else:
                log.warning("MLflow refuses %s: %s", single[0], reason(error))

    def _send(self, client: Any, events: list[Event]) -> None:
        from mlflow.entities import Metric, Param

        run_id, first = self.run_id, events[0]
        if "metrics" in first:
            metrics = [
                Metric(n, v, event["time"], event["step"]) for event in events for n, v in event["metrics"].items()
            ]
            for start in range(0, len(metrics), _BATCH):
                client.log_batch(run_id, metrics=metrics[start : start + _BATCH])
        elif "params" in first:
            params = [Param(name, value) for name, value in first["params"].items()]
            for start in range(0, len(params), _PARAMS):
                client.log_batch(run_id, params=params[start : start + _PARAMS])
        elif "file" in first:
            if Path(first["file"]).is_file():
                client.log_artifact(run_id, first["file"])
        elif first["status"] == "RUNNING":
            client.update_run(run_id, "RUNNING")
        else:
            client.set_terminated(run_id, first["status"])

    def _connected(self) -> Any:
        """The client; the run is made, or found again, when the store first answers."""
        if self._client is None:
            client = connect(self.uri)
            self.run_id = self._earlier_run(client) or self._make_run(client)
            note = {"uri": shown(self.uri), "run_id": self.run_id}
            write_atomically(self.folder / RUN, json.dumps(note) + "\n")
            self._client = client
        return self._client

    def _earlier_run(self, client: Any) -> str | None:
        from mlflow.exceptions import MlflowException

        note = read_json(self.folder / RUN)
        if not isinstance(note, dict) or note.get("uri") != shown(self.uri):
            return None
        try:
            client.update_run(note["run_id"], status="RUNNING")
        except MlflowException as error:
            if error.error_code in _REFUSALS:
                return None  # deleted since
            raise
        return str(note["run_id"])

    # -- the file of unsent events, one a line ---------------------------------------------------

    def _read_file(self) -> list[Event]:
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        events = []
        for line in lines:
            try:
                events.append(json.loads(line))
            except ValueError:  # the last one, of a process that was killed while it wrote
                log.warning("%s: a damaged line is passed over: MLflow misses some of the run's figures", self._file)
        return events

    def _write_file(self) -> None:
        """Add what is not in the file yet. Sent events may stay in it until the last one is sent: twice is no harm."""
        new = list(islice(self._pending, self._on_disk, None))
        if not new:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(event)}\n" for event in new)
        except OSError as error:
            log.warning("%s: cannot be written (%s); kept in memory only", self._file, error.strerror)
        self._on_disk = len(self._pending)  # also then: trying again at once would not end


def _in_pieces(events: list[Event]) -> list[Event]:
    """The same events with one metric or parameter each."""
    pieces = []
    for event in events:
        for kind in ("metrics", "params"):
            if kind in event:
                pieces += [event | {kind: {name: value}} for name, value in event[kind].items()]
        if not {"metrics", "params"} & event.keys():
            pieces.append(event)
    return pieces
