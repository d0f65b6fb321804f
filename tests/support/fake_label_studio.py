"""A server that answers as Label Studio does, as far as ralseg asks, in memory; and faults that real ones have."""

import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

TOKEN = "0123456789abcdef0123456789abcdef01234567"


class FakeLabelStudio:
    """Projects, tasks, files and storages in memory. Use as a context manager.

    ``faults`` are met by the next requests, one each: a status (``503``), ``"drop"`` (the connection ends without an
    answer), ``"lost"`` (what was asked is done, but the answer never comes), ``"cut"`` (it breaks off), ``"garbage"``
    (it is no JSON), ``"slow"``, ``"echo"`` (a refusal that repeats the header), or None for none.
    """

    def __init__(self):
        self.projects, self.tasks, self.files, self.storages = {}, {}, {}, []
        self.faults, self.requests = [], []
        self.users = {1: "ada@example.org", 2: "bob@example.org"}
        self.token = TOKEN
        self.access = None  # what a personal token was exchanged for
        self._clock = 0

    def __enter__(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def _answer(self):
                server.handle(self)

            do_GET = do_POST = do_PATCH = do_DELETE = _answer

        self._handler = Handler
        self.come()
        return self

    def __exit__(self, *_):
        self.go_away()

    def come(self, port: int = 0) -> None:
        """Start to answer."""
        self._http = ThreadingHTTPServer(("127.0.0.1", port), self._handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # clients that have not waited
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def go_away(self) -> None:
        """Answer no more; what it has it keeps."""
        self._http.shutdown()
        self._http.server_close()

    def come_back(self) -> None:
        """Answer again at the same address."""
        self.come(self._http.server_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    # -- what people do ---------------------------------------------------------------------------

    def now(self) -> str:
        self._clock += 1
        return f"2026-11-18T00:00:{self._clock:09.6f}Z"

    def annotate(self, task: int, result: list | None = None, user: int = 1, seconds: float = 10.0, skip: bool = False):
        """Submit, or skip, as a user does who starts from the prediction."""
        if result is None:
            result = self.tasks[task]["predictions"][0]["result"]
        annotation = {
            "id": len(self.tasks[task]["annotations"]) + 1000 * task,
            "completed_by": {"id": user, "email": self.users[user]},
            "was_cancelled": skip,
            "lead_time": seconds,
            "updated_at": self.now(),
            "result": result,
        }
        self.tasks[task]["annotations"].append(annotation)
        self.tasks[task]["updated_at"] = self.now()
        return annotation

    def correct(self, task: int, result: list, more_seconds: float = 5.0) -> None:
        """Change the last annotation of a task; Label Studio sums its time up."""
        annotation = self.tasks[task]["annotations"][-1]
        annotation |= {"result": result, "was_cancelled": False, "updated_at": self.now()}
        annotation["lead_time"] += more_seconds
        self.tasks[task]["updated_at"] = self.now()

    def task_of(self, region: int, blind: bool = False) -> int:
        """The newest task of a region."""
        found = [n for n, t in self.tasks.items() if t["data"]["region"] == region and t["data"]["blind"] == blind]
        return found[-1]

    # -- what the server does ---------------------------------------------------------------------

    def handle(self, request) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        fault = self.faults.pop(0) if self.faults else None
        self.requests.append((request.command, request.path, fault))
        if fault == "slow":
            time.sleep(1)
        if fault == "drop":
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        if isinstance(fault, int) or fault == "echo":
            said = request.headers.get("Authorization", "") if fault == "echo" else "as the test wants it"
            status, answer = 400 if fault == "echo" else fault, {"id": str(uuid4()), "detail": said}
        else:
            status, answer = self._respond(request, body)
        if fault == "lost":
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        content = (
            b"<html>" if fault == "garbage" else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        )
        request.send_response(status)
        if 300 <= status < 400:
            request.send_header("Location", "http://127.0.0.1:9/elsewhere")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
        if fault == "cut":
            request.connection.shutdown(socket.SHUT_RDWR)

    def _respond(self, request, body: bytes):
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path == "/api/token/refresh":
            if json.loads(body)["refresh"] != self.token:
                return self._error(401, "Token is invalid")
            self.access = uuid4().hex
            return 200, {"access": self.access}
        wanted = f"Bearer {self.access}" if self.token.count(".") == 2 else f"Token {self.token}"
        if request.headers.get("Authorization") != wanted:
            return self._error(401, "Invalid token.")
        for pattern, method, answer in ROUTES:
            match = re.fullmatch(pattern, parts.path)
            if match and method == request.command:
                is_json = request.headers.get("Content-Type") == "application/json"
                content = json.loads(body) if body and is_json else body
                return answer(self, *map(int, match.groups()), query=query, content=content)
        return self._error(404, "Not found.")

    def _error(self, status: int, detail: str):
        return status, {"id": str(uuid4()), "status_code": status, "detail": detail}  # an id, as a thing that was made

    def _page(self, entries: list, query: dict):
        size, number = int(query.get("page_size", 30)), int(query.get("page", 1))
        part = entries[(number - 1) * size : number * size]
        return None if number > 1 and not part else part

    def list_projects(self, query, content):
        found = [project for project in self.projects.values() if query.get("title", "") in project["title"]]
        part = self._page(found, query)
        return self._error(404, "Invalid page.") if part is None else (200, {"count": len(found), "results": part})

    def make_project(self, query, content):
        number = len(self.projects) + 1
        self.projects[number] = {"id": number, "model_version": "", "task_number": 0, **content}
        self._parse_config(self.projects[number])
        return 201, self.projects[number]

    def _parse_config(self, project) -> None:
        brushes = re.findall(r'<Label value="([^"]*)"', project.get("label_config", ""))
        project["parsed_label_config"] = {
            name: {"type": kind, "to_name": ["image"], "labels": brushes if name == "label" else []}
            for kind, name in re.findall(r'<(\w+Labels) name="(\w+)"', project.get("label_config", ""))
        }

    def get_project(self, number, query, content):
        return (200, self.projects[number]) if number in self.projects else self._error(404, "No Project matches.")

    def change_project(self, number, query, content):
        known = {p["model_version"] for t in self.tasks.values() if t["project"] == number for p in t["predictions"]}
        if content.get("model_version", "") not in known | {""}:
            return self._error(400, "Model version doesn't exist")
        self.projects[number] |= content
        self._parse_config(self.projects[number])
        return 200, self.projects[number]

    def put_in(self, project, query, content):
        if isinstance(content, bytes):
            name = re.search(rb'filename="([^"]*)"', content).group(1).decode()
            number = len(self.files) + 1
            png = content.partition(b"\r\n\r\n")[2].rpartition(b"\r\n--")[0].rpartition(b"\r\n--")[0] or content
            self.files[number] = {"id": number, "file": f"upload/{project}/{uuid4().hex[:8]}-{name}", "content": png}
            return 201, {"file_upload_ids": [number], "task_count": 1}
        for task in content:
            number = max(self.tasks, default=0) + 1
            self.tasks[number] = {"id": number, "project": project, "annotations": [], "updated_at": self.now(), **task}
        self.projects[project]["task_number"] += len(content)
        return 201, {"task_count": len(content)}

    def list_files(self, project, query, content):
        return 200, [{"id": f["id"], "file": f["file"]} for f in self.files.values() if f"/{project}/" in f["file"]]

    def get_file(self, number, query, content):
        return 200, {"id": number, "file": self.files[number]["file"]}

    def list_tasks(self, query, content):
        found = [
            {
                "id": number,
                "data": task["data"],
                "updated_at": task["updated_at"],
                "total_annotations": sum(not a["was_cancelled"] for a in task["annotations"]),
                "cancelled_annotations": sum(a["was_cancelled"] for a in task["annotations"]),
            }
            for number, task in self.tasks.items()
            if task["project"] == int(query["project"])
        ]
        part = self._page(found, query)
        return self._error(404, "Invalid page.") if part is None else (200, {"total": len(found), "tasks": part})

    def get_task(self, number, query, content):
        if number not in self.tasks:
            return self._error(404, "No Task matches the given query.")
        return 200, {"draft_exists": False} | self.tasks[number]

    def remove_task(self, number, query, content):
        del self.tasks[number]
        return 204, b""

    def list_storages(self, query, content):
        return 200, [storage for storage in self.storages if storage["project"] == int(query["project"])]

    def make_storage(self, query, content):
        self.storages.append(content)
        return 201, content

    def show_local_file(self, query, content):
        # as the real one: nothing is shown until the project has a storage for the folder
        folders = [storage["path"] for storage in self.storages]
        is_shown = any(f"/{query['d']}".rpartition("/")[0] in folder for folder in folders)
        return (200, b"\x89PNG") if is_shown else (404, b"")


ROUTES = [
    (r"/api/projects", "GET", FakeLabelStudio.list_projects),
    (r"/api/projects/", "POST", FakeLabelStudio.make_project),
    (r"/api/projects/(\d+)/", "GET", FakeLabelStudio.get_project),
    (r"/api/projects/(\d+)/", "PATCH", FakeLabelStudio.change_project),
    (r"/api/projects/(\d+)/import", "POST", FakeLabelStudio.put_in),
    (r"/api/projects/(\d+)/file-uploads", "GET", FakeLabelStudio.list_files),
    (r"/api/import/file-upload/(\d+)", "GET", FakeLabelStudio.get_file),
    (r"/api/tasks", "GET", FakeLabelStudio.list_tasks),
    (r"/api/tasks/(\d+)/", "GET", FakeLabelStudio.get_task),
    (r"/api/tasks/(\d+)/", "DELETE", FakeLabelStudio.remove_task),
    (r"/api/storages/localfiles", "GET", FakeLabelStudio.list_storages),
    (r"/api/storages/localfiles", "POST", FakeLabelStudio.make_storage),
    (r"/data/local-files/", "GET", FakeLabelStudio.show_local_file),
]
