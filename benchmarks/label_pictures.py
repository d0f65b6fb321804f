"""The pictures of docs/label.md: `ralseg label` on microscope images in a real browser, on a desk and on a tablet.

    RALSEG_DATA=/where/data/sets/are PYTHONPATH=. python benchmarks/label_pictures.py   # needs chromium and playwright

Forty of the images are known, regions of the others are labelled here: most of them by their hidden masks, under the
name of a second annotator, so that the scores on the pictures are real.
"""

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

SWITCHES = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
SIZES = {"desktop": (1280, 800), "tablet": (820, 1180)}
BUDGETS = ["--trainer.acquisition.budgets", "[24, 48]", "--trainer.acquisition.regions_per_step", "24"]
QUIET = ["--trainer.logger", "false", "--trainer.enable_progress_bar", "false"]


def copy_nuclei(source: Path, folder: Path, known: int) -> None:
    """The nuclei, with masks of so many images for training."""
    shutil.copytree(source, folder)
    for mask in sorted((folder / "masks" / "train").iterdir())[known:]:
        mask.unlink()


def ralseg(*arguments: str) -> list[str]:
    """A command."""
    return [sys.executable, "-m", "ralseg", *arguments]


def ask(url: str, path: str, body: bytes | None = None):
    """What the page says."""
    return json.load(urllib.request.urlopen(urllib.request.Request(f"{url}api/{path}", body)))


def label_by_masks(url: str, masks: Path, leave: int) -> None:
    """Answer a request by hidden masks, but for some regions."""
    while True:
        request = ask(url, "state")["request"]
        if request["wanted"] - request["answered"] <= leave:
            return
        about = ask(url, "next?who=Grace", b"")["region"]
        x, y, width, height = about["box"]
        mask = np.asarray(Image.open(masks / Path(about["image"]).with_suffix(".png")))[y : y + height, x : x + width]
        ask(url, f"regions/{about['region']}/mask?who=Grace&seconds=20&clicks=6", np.ascontiguousarray(mask).tobytes())


def shoot(page: Page, out: Path, name: str) -> None:
    """A picture of the page in 256 colours, which keeps it small."""
    page.wait_for_timeout(700)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = out / f"label_{name}.png"
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size:,} bytes", flush=True)


def draw(page: Page, *places: tuple[float, float]) -> None:
    """A stroke between places of the region, given as shares of its sides."""
    canvas = page.locator("#canvas")
    box, about = canvas.bounding_box(), canvas.evaluate("({dataset}) => ({...dataset})")
    assert box is not None
    side = 64 * float(about["scale"])
    points = [
        (box["x"] + float(about["left"]) + x * side, box["y"] + float(about["top"]) + y * side) for x, y in places
    ]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=6)
    page.mouse.up()


def in_hand(page: Page) -> None:
    """Wait for a region."""
    page.wait_for_selector('body[data-phase="label"][data-busy="false"]:not([data-region=""])', timeout=300_000)


def main() -> None:
    """Make a run, and take pictures of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--known", type=int, default=40)
    asked = parser.parse_args()
    out = asked.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    source = Path(os.environ["RALSEG_DATA"], "nuclei")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        folder = Path(place)
        copy_nuclei(source, folder / "nuclei", asked.known)
        subprocess.run(ralseg("init", "nuclei"), cwd=folder, check=True)
        subprocess.run(ralseg("pretrain", "--config", "nuclei.yaml", *QUIET), cwd=folder, check=True)
        log = folder / "label.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                ralseg("label", "--config", "nuclei.yaml", *BUDGETS, *QUIET), cwd=folder, stdout=file
            )
        while not (found := re.search(r"label here: (\S+)", log.read_text())):
            time.sleep(0.2)
        take_pictures(driver, found[1], source / "masks", out)
        process.wait()


def take_pictures(driver, url: str, masks: Path, out: Path) -> None:
    """From the first screen to the last."""
    browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=SWITCHES)
    sizes = {name: {"width": width, "height": height} for name, (width, height) in SIZES.items()}
    desk = browser.new_context(viewport=sizes["desktop"]).new_page()
    desk.goto(url)
    shoot(desk, out, "start")
    while ask(url, "state")["phase"] != "label":
        time.sleep(0.5)
    label_by_masks(url, masks / "", 12)
    desk.fill("#name", "Ada")
    desk.click("#start")
    in_hand(desk)
    desk.keyboard.press("2")
    draw(desk, (0.3, 0.3), (0.42, 0.36), (0.4, 0.48))
    shoot(desk, out, "desktop")
    tablet = browser.new_context(viewport=sizes["tablet"], has_touch=True, is_mobile=True).new_page()
    tablet.goto(url)
    tablet.fill("#name", "Linus")
    tablet.click("#start")
    in_hand(tablet)
    tablet.tap("[data-tool=superpixel]")
    tablet.tap("#classes button:nth-child(2)")
    tablet.wait_for_selector('body[data-patches]:not([data-patches=""])')
    shoot(tablet, out, "tablet")
    tablet.tap("#save")
    tablet.close()
    desk.keyboard.press("Enter")
    in_hand(desk)
    label_by_masks(url, masks, 1)
    desk.keyboard.press("Enter")
    desk.wait_for_selector("text=The model")
    in_hand(desk)
    label_by_masks(url, masks, 1)
    desk.keyboard.press("Enter")
    desk.wait_for_selector("#turn-title:text-is('Final training')", timeout=300_000)
    desk.wait_for_selector('#turn-bar[style*="3"]', timeout=300_000)  # a third is done
    shoot(desk, out, "turn")
    desk.wait_for_selector('body[data-phase="done"]', timeout=900_000)
    shoot(desk, out, "done")
    browser.close()


if __name__ == "__main__":
    main()
