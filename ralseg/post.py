"""What a run tells MLflow, sent by a thread of its own: a store that is slow or away costs the run nothing."""

import json
import logging
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from ralseg.errors import RalsegError
from ralseg.files import read_json, write_atomically

log = logging.getLogger(__name__)
UNSENT, RUN = "unsent.jsonl", "mlflow.json"
RETRY_SECONDS = 30.0
CLOSE_SECONDS = 20.0
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


def shown(uri: str) -> str:
    """A store's address without the password that may be in it."""
    return re.sub(r"//[^/@]*@", "//", uri)


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
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._unsent: list[Event] = []
        self._client: Any = None
        self._is_away, self._retry_at = False, 0.0

    def put(self, event: Event) -> None:
        """Have an event sent. Returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="ralseg-post", daemon=True)
            self._thread.start()
        self._events.put(event)

    def close(self) -> None:
        """Wait until all is sent, or kept on disk; a store that hangs is not waited for longer than 20 s."""
        if self._thread is not None:
            self._events.put(None)
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                log.warning("MLflow at %s does not answer; what it was not told is in %s", shown(self.uri), self._file)
                self._unsent += self._drained()
                self._write_unsent()
            self._thread = None

    def _drained(self) -> list[Event]:
        events = []
        while not self._events.empty():
            events.append(self._events.get())
        return [event for event in events if event is not None]

    @property
    def _file(self) -> Path:
        return self.folder / UNSENT

    # -- in the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        self._unsent = self._read_unsent()
        open_for_more = True
        while open_for_more:
            event = self._events.get()
            open_for_more = event is not None
            self._unsent += [event] if event is not None else []
            if open_for_more and not self._events.empty():
                continue  # metrics that follow each other go together
            if not self._is_away or time.monotonic() >= self._retry_at or not open_for_more:
                self._try_to_send()
            if self._is_away:
                self._write_unsent()

    def _try_to_send(self) -> None:
        try:
            self._send_all()
            self._is_away = False
            self._file.unlink(missing_ok=True)
        except Exception as error:  # whatever the store or the network raise
            if not self._is_away:
                reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
                log.warning(
                    "MLflow at %s failed (%s); the run goes on, and what MLflow was not told is kept in %s until it "
                    "answers again, now or when the run is given again with --ckpt last",
                    shown(self.uri),
                    reason,
                    self._file,
                )
            self._is_away, self._retry_at = True, time.monotonic() + RETRY_SECONDS

    def _send_all(self) -> None:
        """Send the unsent events, each removed when it has arrived; metrics that follow each other go together."""
        client = self._connected()
        while self._unsent:
            count = 1
            if "metrics" in self._unsent[0]:
                total = 0
                for count, event in enumerate(self._unsent, 1):
                    total += len(event.get("metrics", ()))
                    if "metrics" not in event or total > _BATCH:
                        count = max(count - 1, 1)
                        break
            self._send_or_drop(client, self._unsent[:count])
            del self._unsent[:count]

    def _send_or_drop(self, client: Any, events: list[Event]) -> None:
        """An event that MLflow will never take must not block those behind it."""
        from mlflow.exceptions import MlflowException

        try:
            self._send(client, events)
        except MlflowException as error:
            if error.error_code not in _REFUSALS:
                raise
            log.warning("MLflow refuses %s: %s", sorted(events[0]), str(error).splitlines()[0][:200])

    def _send(self, client: Any, events: list[Event]) -> None:
        from mlflow.entities import Metric, Param

        run_id, first = self.run_id, events[0]
        if "metrics" in first:
            metrics = [
                Metric(name, value, event["time"], event["step"])
                for event in events
                for name, value in event["metrics"].items()
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
        elif "status" in first:
            if first["status"] == "RUNNING":
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

    def _read_unsent(self) -> list[Event]:
        try:
            return [json.loads(line) for line in self._file.read_text(encoding="utf-8").splitlines()]
        except FileNotFoundError:
            return []
        except ValueError:
            log.warning("%s is damaged and passed over: MLflow misses some of the run's figures", self._file)
            return []

    def _write_unsent(self) -> None:
        try:
            write_atomically(self._file, "".join(f"{json.dumps(event)}\n" for event in self._unsent))
        except RalsegError as error:
            log.warning("%s", error)
