"""`ralseg label` from a folder of photographs to predictions, with people in a browser, and with kills on the way."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ralseg.annotation import Answers, Request
from ralseg.cli import main
from support.browser import SWITCHES, chromium, open_browser
from support.forge import Forge
from support.kills import content, difference
from support.page import PATIENCE_MS, Person, stroke

QUIET = ["--trainer.logger", "false", "--trainer.enable_progress_bar", "false"]
NUCLEUS = 1
PATIENCE = 900  # seconds: more than a slow machine that others use needs for any of this
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture
def nuclei(tmp_path, monkeypatch) -> Path:
    """Some microscope images; most of those for training have no mask."""
    root = Path(os.environ.get("RALSEG_DATA", ""), "nuclei")
    if not (root / "images" / "train").is_dir():
        pytest.skip("the nuclei are absent: RALSEG_DATA does not name the folder of data sets")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "nuclei"
    for subset, count in (("train", 20), ("val", 5), ("test", 5)):
        for kind in ("images", "masks"):
            (folder / kind / subset).mkdir(parents=True)
        for number, image in enumerate(sorted((root / "images" / subset).iterdir())[:count]):
            shutil.copy(image, folder / "images" / subset)
            if subset != "train" or number < 6:
                shutil.copy(root / "masks" / subset / f"{image.stem}.png", folder / "masks" / subset)
    shutil.copy(root / "dataset.yaml", folder)
    return folder


class Labelling:
    """A process that runs `ralseg label`.

    Args:
        forge: What starts it.
        folder: Where it is started.
        arguments: What is typed after it.
    """

    def __init__(self, forge: Forge, folder: Path, *arguments: str) -> None:
        self.log = folder / "label.log"
        self._skip = self.log.stat().st_size if self.log.exists() else 0
        self.process = forge.start("label", *arguments, *QUIET, folder=folder, log=self.log)

    def said(self) -> str:
        """Its output."""
        return self.log.read_bytes()[self._skip :].decode() if self.log.exists() else ""

    def url(self) -> str:
        """Where the page is, once it is there."""
        end = time.monotonic() + PATIENCE
        while not (found := re.search(r"label here: (http://\S+)", self.said())):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)
        return found[1]

    def end(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        return self.process.wait(seconds)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal."""
        self.process.send_signal(number)


def expected_of(request: Request, folder: Path, region: int) -> np.ndarray:
    """What the page starts from: the prediction on disk."""
    (wanted,) = [wanted for wanted in request.regions if wanted.region == region]
    return np.asarray(Image.open(folder / wanted.prediction)).copy()


def test_from_photographs_to_predictions(nuclei, forge):
    assert main(["init", "nuclei"]) == 0
    short = ["--trainer.max_epochs", "6", "--trainer.check_val_every_n_epoch", "3"]
    assert main(["pretrain", "--config", "nuclei.yaml", *short, *QUIET]) == 0
    quick = ["--trainer.acquisition.budgets", "[3, 5]", "--trainer.acquisition.regions_per_step", "3"]
    quick += ["--trainer.final.max_steps", "6", "--trainer.final.validate_every", "3"]
    labelling = Labelling(forge, nuclei.parent, "--config", "nuclei.yaml", *quick)
    folder = nuclei.parent / "runs/nuclei/acquire/to_label"
    masks: dict[int, np.ndarray] = {}
    try:
        with open_browser() as browser:
            ada = Person(browser.new_context(viewport={"width": 1280, "height": 800}).new_page(), labelling.url())
            # with the mouse
            first = ada.wait_for_region()
            request = Request.read(folder)
            assert ada.page.inner_text("#request-text") == "0 of 3 regions done"
            masks[first] = expected_of(request, folder, first)
            ada.press("2")
            ada.draw((10, 10), (40, 20), (30, 50))
            stroke(masks[first], [(10, 10), (40, 20), (30, 50)], 9, NUCLEUS)
            ada.save()
            # skipped: another one takes its place
            skipped = ada.wait_for_region()
            ada.press("x")
            ada.page.wait_for_selector(f'body[data-busy=false]:not([data-region="{skipped}"])')
            # with keys
            second = ada.wait_for_region()
            masks[second] = expected_of(request, folder, second)
            ada.press("1", "Shift+F", "0", *["ArrowUp"] * 12)
            ada.page.keyboard.down("Space")
            ada.press(*["ArrowRight"] * 6)
            ada.page.keyboard.up("Space")
            masks[second][:] = 0
            stroke(masks[second], [(32, 20), (38, 20)], 9, 255)
            ada.save()
            # the first one once more
            third = ada.wait_for_region()
            ada.page.click(f'.chip[data-region="{first}"]')
            ada.wait(region=first, busy="false")
            ada.press("0")
            ada.draw((5, 55), (15, 58))
            stroke(masks[first], [(5, 55), (15, 58)], 9, 255)
            ada.save()
            assert ada.wait_for_region() == third
            masks[third] = expected_of(request, folder, third)
            ada.save()  # as it was predicted
            ada.page.wait_for_selector("#turn:not([hidden])")
            # the model's turn, and the next request
            ada.page.wait_for_selector("text=0 of 2 regions done", timeout=1000 * PATIENCE)
            for number in range(2):
                region = ada.wait_for_region()
                assert region not in masks
                masks[region] = np.full((64, 64), number, np.uint8)
                ada.press(str(number + 1), "Shift+F")
                ada.save()
            ada.wait(phase="done", timeout=1000 * PATIENCE)
            said = ada.page.inner_text("#over")
            assert ada.problems == []
        assert labelling.end() == 0, labelling.said()
    finally:
        labelling.process.kill()
    for region, mask in masks.items():
        (file,) = folder.glob(f"masks/{region:07d}_*.png")
        found = np.asarray(Image.open(file))
        assert (found == mask).all(), (list(masks).index(region), np.argwhere(found != mask).tolist())
    entries = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert [entry["region"] for entry in entries if entry["event"] == "skipped"] == [skipped]
    assert [entry["version"] for entry in entries if entry["event"] == "saved" and entry["region"] == first] == [1, 2]
    assert [entry["unchanged"] for entry in entries if entry["event"] == "saved" and entry["region"] == third] == [True]
    # what the model has learned from is what was drawn
    run = folder.parent
    for region, mask in masks.items():
        about = next(each for entry in entries if entry["event"] == "asked" for each in entry["regions"]
                     if each["region"] == region)  # fmt: skip
        whole = np.asarray(Image.open(run / "labels" / Path(about["image"]).with_suffix(".png")))
        assert (whole[about["y"] : about["y"] + 64, about["x"] : about["x"] + 64] == mask).all()
    result = json.loads((run / "result.json").read_text())
    for budget in ("3", "5"):
        assert f"{100 * result['budgets'][budget]['test_set/miou']:.2f} %" in said
    cost = result["cost"]
    assert (cost["regions"], cost["pixels"]) == (5, 5 * 64 * 64)
    assert min(cost["clicks"], cost["minutes"], cost["changed"]) > 0
    assert result["budgets"]["3"]["cost"]["regions"] == 3
    assert main(["predict", "--config", "nuclei.yaml", "--images", "nuclei/images/test", "--out", "found"]) == 0
    assert len(list(Path("found/classes").rglob("*.png"))) == 5


# -- kills -----------------------------------------------------------------------------------------

CONFIG = """
trainer: {default_root_dir: run, enable_model_summary: false, num_sanity_val_steps: 0,
  acquisition: {budgets: [4, 10], regions_per_step: 4, pool_size: 2}, final: {max_steps: 6, validate_every: 2}}
model: {class_path: ralseg.FPNSegmenter, init_args: {encoder: tu-test_resnet, encoder_weights: none,
  pyramid_channels: 32, segmentation_channels: 32, label_stride: 2, freeze_encoder: true, cache_features: true}}
policy: entropy
data:
  dataset:
    class_path: ralseg.data.SyntheticStreets
    init_args: {num_train: 14, num_val: 4, num_test: 3, height: 64, width: 96}
  splits: {state: 2, train: 5}
  layout: {class_path: ralseg.GridLayout, init_args: {rows: 2, columns: 3}}
  batch_size: 4
"""


def playwright_error() -> type[Exception]:
    """What playwright raises."""
    return pytest.importorskip("playwright.sync_api", reason="playwright is not installed").Error


class Chromium:
    """A browser of its own process and folder, so that it can be killed and started again.

    Args:
        folder: What it remembers.
        driver: Of playwright.
    """

    def __init__(self, folder: Path, driver) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [chromium(), *SWITCHES, f"--remote-debugging-port={port}", f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        end = time.monotonic() + PATIENCE
        while not hasattr(self, "browser"):
            try:
                self.browser = driver.chromium.connect_over_cdp(f"http://127.0.0.1:{port}")
            except playwright_error():  # it is not up yet
                assert time.monotonic() < end, "the browser does not start"
                time.sleep(0.1)
        self.page = self.browser.contexts[0].new_page()
        self.page.set_default_timeout(PATIENCE_MS)

    def kill(self) -> None:
        """End it and its children at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def class_of(region: int) -> int:
    """How everybody in these tests labels a region."""
    return region % 7


def label_by_http(url: str) -> None:
    """Answer everything that is asked for, without a browser."""

    def ask(path: str, body: bytes | None = None):
        return json.load(urllib.request.urlopen(urllib.request.Request(f"{url}api/{path}", body)))

    while ask("state?page=test")["phase"] != "done":
        about = ask("next?who=Ada", b"")["region"]
        if about is None:
            time.sleep(0.05)
            continue
        *_, width, height = about["box"]
        ask(f"regions/{about['region']}/mask?who=Ada", bytes([class_of(about["region"])]) * (width * height))


def label_in_browser(page, url: str, until: float, saved: set[int]) -> bool:
    """Label until a moment, or to the end; whether the run is over. ``saved``: what the page has confirmed."""
    page.goto(url)
    if page.locator("#help[open]").count():
        page.fill("#name", "Ada")
        page.click("#start")
    while time.monotonic() < until:
        about = page.locator("body").evaluate("({dataset}) => ({...dataset})")
        if about.get("saved"):
            saved.add(int(about["saved"]))
        if about["phase"] == "done":
            return True
        if about["phase"] == "label" and about.get("region") and about.get("busy") == "false":
            page.keyboard.press(str(class_of(int(about["region"])) + 1))
            page.keyboard.press("Shift+F")
            page.keyboard.press("Enter")
        page.wait_for_timeout(30)
    return False


def plain(folder: Path) -> dict:
    """What a run has left, without what people's clocks say."""
    found = content(folder)
    for value in found.values():
        if isinstance(value, dict):
            for part in (value, *(each for each in value.get("budgets", {}).values() if isinstance(each, dict))):
                part.pop("cost", None)
    return found


def test_kills_of_server_and_browser_lose_nothing(tmp_path, forge):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium()
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
        (folder / "label.yaml").write_text(CONFIG)
    reference = Labelling(forge, whole, "--config", "label.yaml")
    label_by_http(reference.url())
    assert reference.end() == 0, reference.said()

    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng, saved, is_over = random.Random(seed), set(), False
    labelling, browser = Labelling(forge, cut, "--config", "label.yaml"), None
    with playwright.sync_playwright() as driver:
        try:
            for trial in ["server", "browser", "both", "server", "end"]:
                labelling = Labelling(forge, cut, "--config", "label.yaml") if labelling.process.poll() else labelling
                url = labelling.url()
                browser = browser or Chromium(tmp_path / "browser", driver)
                moment = time.monotonic() + (PATIENCE if trial == "end" else rng.uniform(0.5, 3.0))
                try:
                    is_over = label_in_browser(browser.page, url, moment, saved)
                except playwright_error():
                    # all was labelled before the last kill, and by now the run has come to its end without a browser
                    assert labelling.end() == 0, labelling.said()
                    is_over = True
                if is_over:
                    break
                if trial in ("server", "both"):
                    labelling.kill()
                    labelling.end()
                if trial in ("browser", "both"):
                    browser.kill()
                    browser = None
                answers = Answers(cut / "run/to_label", Request.read(cut / "run/to_label"))
                for region in saved:
                    assert (answers.mask(region) == class_of(region)).all(), region
            assert is_over
        finally:
            if browser is not None:
                browser.kill()
        assert labelling.end() == 0, labelling.said()
    assert difference(plain(whole), plain(cut)) is None
    assert not list(cut.rglob(".*.part"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_waiting_at_once_and_the_same_command_goes_on(tmp_path, forge, number):
    (tmp_path / "label.yaml").write_text(CONFIG)
    labelling = Labelling(forge, tmp_path, "--config", "label.yaml")
    url = labelling.url()
    while json.load(urllib.request.urlopen(f"{url}api/state"))["phase"] != "label":
        time.sleep(0.1)
    first = json.load(urllib.request.urlopen(urllib.request.Request(f"{url}api/next?who=Ada", b"")))["region"]
    body = bytes(first["box"][2] * first["box"][3])
    urllib.request.urlopen(urllib.request.Request(f"{url}api/regions/{first['region']}/mask?who=Ada", body))
    labelling.kill(number)
    assert labelling.end() == 128 + number  # who waits for people would have no end
    assert "the same command goes on where this one was" in labelling.said()
    again = Labelling(forge, tmp_path, "run")  # by its folder, too
    assert again.url() == url
    label_by_http(url)
    assert again.end() == 0, again.said()
    answers = Answers(tmp_path / "run/to_label", Request.read(tmp_path / "run/to_label"))
    assert (answers.mask(first["region"]) == 0).all()
    assert len(answers.versions()) == 10
