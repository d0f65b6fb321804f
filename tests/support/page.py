"""The page without a run: a desk over requests that no run has made, and a person in a browser."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ralseg.annotation import Answers, ClassColour, Request, WantedRegion
from ralseg.annotation.masks import encode_mask
from ralseg.annotation.page.desk import Desk
from ralseg.annotation.page.server import Hosts, make_app
from ralseg.annotation.page.serving import Address, PageServer

TOKEN = "0123456789abcdef" * 2
PATIENCE_MS = 180_000.0  # more than a slow machine that others use needs for a step


def fake_job(answers: Answers, folder: Path | None = None) -> Any:
    """A job of one image, which holds all regions of a request."""
    wanted = answers.request.regions[0]
    image = np.random.default_rng(0).integers(0, 256, (wanted.image_height, wanted.image_width, 3), np.uint8)
    return SimpleNamespace(
        regions=SimpleNamespace(image_of=lambda regions: torch.zeros_like(regions)),
        read_image=lambda position: image,
        class_names=tuple(entry.name for entry in answers.request.classes),
        folder=folder,
    )


def make_desk(answers: Answers) -> Desk:
    """A desk that asks for a request's regions."""
    desk = Desk(fake_job(answers, answers.folder.parent), "test/run", answers)
    desk.ask(answers)
    return desk


def make_page(desk: Desk) -> Any:
    """The page as an application."""
    return make_app(desk, TOKEN, Hosts("127.0.0.1"))


# -- a request that is large enough to paint in ----------------------------------------------------

COLOURS = (ClassColour(0, "ground", "#3b6ea5"), ClassColour(1, "plant", "#f08c3a"), ClassColour(2, "stone", "#4caf50"))
BOX = (40, 32)  # width, height
IMAGE = (160, 96)


def photo_answers(folder: Path, wanted: int = 3, reserves: int = 2, **options: Any) -> Answers:
    """Regions 0, 1, ... of an image in a grid; predictions: plant on the right, ground on the left."""
    across = IMAGE[0] // BOX[0]
    regions = []
    for i in range(wanted + reserves):
        box = (BOX[0] * (i % across), BOX[1] * (i // across), *BOX)
        files = (f"crops/{i}.png", f"masks/{i}.png", f"predictions/{i}.png")
        about = WantedRegion(i, f"train/{i}.png", *IMAGE, *box, i + 1, 1.0 - i / 10, *files, reserve=i >= wanted)
        regions.append(about)
    request = Request(**{"step": 0, "classes": COLOURS, "regions": tuple(regions)} | options)
    (folder / "predictions").mkdir(parents=True)
    for entry in regions:
        (folder / entry.prediction).write_bytes(encode_mask(guess(), COLOURS))
    request.write(folder)
    answers = Answers(folder, request)
    answers.open()
    return answers


def guess() -> np.ndarray:
    """What the model takes each region for."""
    mask = np.zeros((BOX[1], BOX[0]), np.uint8)
    mask[:, 25:] = 1
    return mask


def serve(folder: Path, desk: Desk) -> tuple[Address, PageServer]:
    """The page at an address of this machine."""
    address = Address(folder)
    server = PageServer(make_app(desk, address.token, Hosts("127.0.0.1")), address)
    server.start()
    return address, server


# -- what a person does ----------------------------------------------------------------------------


class Person:
    """Somebody in front of the page, who knows the pixels of the region.

    Args:
        page: A page of playwright.
        url: Where the page is.
        name: Theirs.
    """

    def __init__(self, page: Any, url: str, name: str = "Ada") -> None:
        self.page, self.problems, self.asked = page, [], set()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url.split("/")[2]))
        page.goto(url)
        page.fill("#name", name)
        page.click("#start")

    def value(self, name: str) -> str:
        """What the page says of itself."""
        return self.page.get_attribute("body", f"data-{name}")

    def wait(self, timeout: float = PATIENCE_MS, **values: Any) -> None:
        """Wait until the page says so; scripts that wait are forbidden to it."""
        parts = "".join(f'[data-{key.replace("_", "-")}="{value}"]' for key, value in values.items())
        self.page.wait_for_selector(f"body{parts}", timeout=timeout)

    def wait_for_region(self) -> int:
        """Wait for a region in hand; which."""
        self.page.wait_for_selector('body[data-phase="label"][data-busy="false"]:not([data-region=""])')
        self.settle()
        return int(self.value("region"))

    def settle(self) -> None:
        """Let two frames be drawn: by then the picture shows what was done last."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def look(self) -> None:
        """Let the page look at the run, as it does when somebody comes back to it."""
        before = self.value("looks")
        self.page.evaluate("() => { document.dispatchEvent(new Event('visibilitychange')) }")
        self.page.wait_for_selector(f'body:not([data-looks="{before}"])')

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a place of the region, in its pixels, is on the screen."""
        canvas = self.page.locator("#canvas")
        box, about = canvas.bounding_box(), canvas.evaluate("({dataset}) => ({...dataset})")
        scale = float(about["scale"])
        return box["x"] + float(about["left"]) + x * scale, box["y"] + float(about["top"]) + y * scale

    def pixel(self, x: int, y: int) -> tuple[float, float]:
        """Where the middle of a pixel is."""
        return self.place(x + 0.5, y + 0.5)

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def draw(self, *pixels: tuple[int, int]) -> None:
        """Draw with the mouse from pixel to pixel."""
        mouse = self.page.mouse
        mouse.move(*self.pixel(*pixels[0]))
        mouse.down()
        for pixel in pixels[1:]:
            mouse.move(*self.pixel(*pixel))
        mouse.up()
        self.settle()

    def click(self, x: int, y: int) -> None:
        """Click at a pixel."""
        self.page.mouse.click(*self.pixel(x, y))
        self.settle()

    def save(self) -> int:
        """Save what is in hand; which region that was."""
        region = int(self.value("region"))
        self.page.keyboard.press("Enter")
        self.wait(saved=region, busy="false")
        return region


def stroke(mask: np.ndarray, pixels: list[tuple[int, int]], size: int, value: int) -> None:
    """What a brush should paint: all middles of pixels within size / 2 of the lines."""
    rows, columns = np.indices(mask.shape)
    for (x0, y0), (x1, y1) in zip(pixels, pixels[1:] or pixels, strict=False):
        dx, dy = x1 - x0, y1 - y0
        along = np.clip(((columns - x0) * dx + (rows - y0) * dy) / max(dx * dx + dy * dy, 1), 0, 1)
        distance = np.hypot(columns - x0 - along * dx, rows - y0 - along * dy)
        mask[distance <= size / 2 + 1e-9] = value
