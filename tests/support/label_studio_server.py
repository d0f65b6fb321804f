"""The real Label Studio: a server of its own environment on this machine, and somebody who draws in its page."""

import io
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ralseg.annotation.label_studio.client import LabelStudioClient

PLACE = Path(__file__).parents[2] / ".label-studio"
"""Where `make label-studio` installs it."""
START_SECONDS = 900.0  # a first start makes the data base: a minute and a half on two idle cores
PATIENCE_MS = 180_000.0


@dataclass
class RealServer:
    """A running server, and the one user that it has."""

    url: str
    token: str
    root: Path  # of files that it may show
    email: str = "ada@example.org"
    password: str = "correct horse"

    def client(self) -> LabelStudioClient:
        return LabelStudioClient(self.url, self.token)


def environment() -> Path:
    """The environment that Label Studio is installed in; where there is none, the test is skipped."""
    place = Path(os.environ.get("RALSEG_LABEL_STUDIO") or PLACE)
    if not (place / "bin" / "label-studio").is_file():
        pytest.skip("no Label Studio: `make label-studio` installs it, or let RALSEG_LABEL_STUDIO name its environment")
    return place


@contextmanager
def running(folder: Path) -> Iterator[RealServer]:
    """Start a server on a free port of this machine, with an empty data base in a folder."""
    program = environment() / "bin" / "label-studio"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = RealServer(f"http://127.0.0.1:{port}", secrets.token_hex(20), folder / "files")
    server.root.mkdir(parents=True)
    settings = {
        "LABEL_STUDIO_BASE_DATA_DIR": str(folder / "data"),
        "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED": "true",
        "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT": str(server.root),
        **dict.fromkeys(("LATEST_VERSION_CHECK", "COLLECT_ANALYTICS"), "false"),
        **dict.fromkeys(("SENTRY_DSN", "FRONTEND_SENTRY_DSN"), ""),
    }
    command = [str(program), "start", "--no-browser", "--internal-host", "127.0.0.1", "--host", server.url]
    command += ["--port", str(port), "--username", server.email, "--password", server.password]
    command += ["--user-token", server.token, "--enable-legacy-api-token"]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait_for(server, process, folder / "server.log")
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(server: RealServer, process: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=10):
                return
        except OSError:
            time.sleep(1)
    pytest.fail(f"Label Studio did not start: {log.read_text()[-2000:]}")


class Annotator:
    """Somebody who labels in the real page.

    Args:
        browser: Of playwright.
        server: Where.
        project: In which project.
    """

    def __init__(self, browser: Any, server: RealServer, project: int) -> None:
        self.page = browser.new_page(viewport={"width": 1400, "height": 900})
        self.page.set_default_timeout(PATIENCE_MS)
        self.elsewhere: list[str] = []  # what it asks of other machines
        self.page.on("request", lambda request: self._note(request.url, server.url))
        self.page.goto(f"{server.url}/user/login/")
        self.page.fill("input[name=email]", server.email)
        self.page.fill("input[name=password]", server.password)
        self.page.click("button[type=submit]")
        self.page.wait_for_url(lambda url: "/user/login" not in url)
        self._stream = f"{server.url}/projects/{project}/data?labeling=1"
        self.come()

    def _note(self, url: str, own: str) -> None:
        if not url.startswith((own, "data:", "blob:")):
            self.elsewhere.append(url)

    def come(self) -> None:
        """Begin to label, and put the instructions away, which are shown first."""
        self.page.goto(self._stream)
        instructions = self.page.get_by_text("Labeling Instructions")
        instructions.wait_for()
        end = time.monotonic() + PATIENCE_MS / 1000
        while instructions.is_visible() and time.monotonic() < end:  # a key that comes too soon is not heard
            self.page.keyboard.press("Escape")
            self.page.wait_for_timeout(300)
        self._ready()

    def _ready(self) -> None:
        self.page.get_by_role("button", name="Submit").first.wait_for()
        self.page.wait_for_function("() => document.querySelector('img[src^=blob]')?.complete")
        self._rest()  # the prediction is drawn after the image

    def _rest(self) -> None:
        """Wait until the page looks the same three times in a row."""
        seen: list[bytes] = []
        while len(seen) < 3 or len(set(seen[-3:])) > 1:
            self.page.wait_for_timeout(400)
            seen.append(self.page.screenshot())
            assert len(seen) < PATIENCE_MS / 400, "the page of Label Studio does not come to rest"

    @property
    def title(self) -> str:
        """What stands above the picture."""
        return self.page.get_by_text("Region ").first.inner_text()

    def _place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the image is on the screen."""
        image = self.page.locator("img[src^=blob]").first
        box, width = image.bounding_box(), image.evaluate("image => image.naturalWidth")
        return box["x"] + x * box["width"] / width, box["y"] + y * box["width"] / width

    def stroke(self, key: str | None, *points: tuple[float, float]) -> None:
        """Choose a class by its key, and draw a line through points of the image."""
        if key is not None:
            self.page.keyboard.press(key)
        self.page.mouse.move(*self._place(*points[0]))
        self.page.mouse.down()
        for point in points[1:]:
            self.page.mouse.move(*self._place(*point), steps=10)
        self.page.mouse.up()
        self._rest()

    def take_up(self, name: str) -> None:
        """Choose a painted region of the list, to paint on with its brush."""
        self.page.keyboard.press("u")  # let go of the last one
        self.page.get_by_text(name).last.click()
        self.page.keyboard.press("b")
        self._rest()

    def submit(self) -> None:
        """Hand the task in; the next one is shown."""
        self._answer("Submit")

    def skip(self) -> None:
        """Put the task off; the next one is shown."""
        self._answer("Skip")

    def _answer(self, name: str) -> None:
        with self.page.expect_response(lambda response: "/annotations" in response.url and response.status == 201):
            title = self.title
            self.page.get_by_role("button", name=name).first.click()
        self.page.get_by_text(title, exact=True).first.wait_for(state="hidden")
        self._rest()

    def colours(self, *points: tuple[float, float]) -> list[tuple[int, int, int]]:
        """What is on the screen at points of the image."""
        shot = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        return [shot.getpixel(tuple(int(n) for n in self._place(*point))) for point in points]
