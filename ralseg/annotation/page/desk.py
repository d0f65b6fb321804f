"""The desk: what the page shows of a request and of the run, and what it does with what people send."""

import io
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ralseg.annotation.answers import Answers
from ralseg.annotation.masks import Mask
from ralseg.annotation.page.superpixels import PATCHES, superpixels
from ralseg.annotation.request import WantedRegion
from ralseg.errors import DataError
from ralseg.labels.news import News
from ralseg.labels.oracle import LabellingJob

OVERVIEW = 640
"""Longer side of the whole image beside the region, in pixels."""
THUMBNAIL = 160
MARGIN = 0.6
"""What is shown around a region, as a share of its longer side."""
LEAST_MARGIN = 24
ALIVE_SECONDS = 70.0
"""A page that has not asked for so long is closed; browsers let hidden pages ask once a minute."""
_KEPT_IMAGES = 4

Picture = NDArray[np.uint8]
_K = TypeVar("_K")
_V = TypeVar("_V")


class Desk:
    """Shows a run to people and takes their masks. The run's thread and those of the server share it.

    Args:
        job: The regions and their images.
        run: The run's name, for the page.
        answers: Those of the last request, or of none.
    """

    def __init__(self, job: LabellingJob, run: str, answers: Answers) -> None:
        self.job, self.run, self._answers = job, run, answers
        self.answered = threading.Event()  # set whenever something has come in
        self._lock = threading.RLock()
        self._is_asking = False
        self._serial = 0
        self._news: News | None = None
        self._labelled: int | None = None
        self._pages: dict[str, float] = {}  # when each open page has asked last
        self._told: set[str] = set()  # pages that know of the end
        self._images: OrderedDict[int, Picture] = OrderedDict()
        self._patches: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    # -- what the run says ------------------------------------------------------------------------

    def ask(self, answers: Answers) -> None:
        """People may label this request from now on."""
        with self._lock:
            self._answers, self._is_asking = answers, True
            self._serial += 1

    def take(self) -> None:
        """The request is complete: it is the model's turn."""
        with self._lock:
            self._is_asking = False

    def tell(self, news: News) -> None:
        """Show what the run is doing."""
        with self._lock:
            self._news = news
            self._labelled = max(self._labelled or 0, news.labelled)  # a final training may be of an earlier budget

    def wait_until_told(self, seconds: float) -> None:
        """Wait until all open pages know of the run's end, if it has ended, but not longer than so."""
        end = time.monotonic() + seconds
        while self._phase() == "done" and time.monotonic() < end and self._untold():
            time.sleep(0.1)

    def _untold(self) -> set[str]:
        with self._lock:
            alive = {page for page, at in self._pages.items() if time.monotonic() - at < ALIVE_SECONDS}
            return alive - self._told

    # -- what the page asks -----------------------------------------------------------------------

    def state(self, who: str, page: str) -> dict[str, Any]:
        """Everything around the picture."""
        with self._lock:
            answers, news, phase = self._answers, self._news, self._phase()
            if page:
                self._pages[page] = time.monotonic()
        content: dict[str, Any] = {
            "run": self.run,
            "phase": phase,
            "classes": [asdict(entry) for entry in answers.request.classes],
            "ignore": answers.request.ignore,
            "labelled": self._labelled,
            "budgets": [] if news is None else list(news.budgets),
            "scores": [] if news is None else [score or None for score in news.scores],
            "model": _model(news),
            "request": self._request(answers, who) if answers.request.regions else None,
            "earlier": _earlier(answers),
            "result": _result(self.job, news) if phase == "done" else None,
        }
        if phase == "done":
            self._told.add(page)
        return content

    def leave(self, page: str) -> None:
        """A page was closed."""
        with self._lock:
            self._pages.pop(page, None)

    def _phase(self) -> str:
        if self._news is not None and self._news.doing == "done":
            return "done"
        return "label" if self._is_asking else "model"

    def _request(self, answers: Answers, who: str) -> dict[str, Any]:
        status, regions = answers.status(), _regions(answers, who)
        return {
            "serial": self._serial,
            "wanted": status.wanted,
            "answered": status.answered,
            "skipped": status.skipped,
            "can_finish": status.can_finish,
            "is_complete": status.is_complete,
            "regions": regions,
        }

    # -- regions ----------------------------------------------------------------------------------

    def next_for(self, who: str) -> dict[str, Any] | None:
        """The region that an annotator should label now, claimed for them."""
        with self._lock:
            if self._phase() != "label":
                return None
        wanted = self._now().next_for(who)
        return None if wanted is None else self._about(wanted)

    def open(self, region: int, who: str) -> dict[str, Any]:
        """A certain region, to label or to correct it."""
        answers = self._now()
        wanted = answers.wanted(region)
        if answers.mask(region) is None and not answers.claim(region, who=who):
            raise DataError("somebody else has this region in hand: take another one")
        return self._about(wanted)

    def claim(self, region: int, who: str) -> bool:
        """Keep a region for somebody who is still at work on it; whether it is theirs."""
        answers = self._now()
        held = answers.progress().claims.get(region)
        is_opinion = held is not None and held.who == who and held.blind
        return (region in answers.versions() and not is_opinion) or answers.claim(region, who=who)

    def _about(self, wanted: WantedRegion) -> dict[str, Any]:
        answers = self._now()
        version = 0 if wanted.blind else answers.versions().get(wanted.region, 0)
        return {
            "region": wanted.region,
            "image": wanted.image,
            "box": [wanted.x, wanted.y, wanted.width, wanted.height],
            "image_size": [wanted.image_width, wanted.image_height],
            "view": list(view_of(wanted)),
            "blind": wanted.blind,
            "saved": version > 0,
            "version": version,
            "has_prediction": not wanted.blind and answers.prediction(wanted) is not None,
            "has_shape": wanted.inside is not None,
            "note": _note(wanted, version),
        }

    def knows(self, region: int) -> bool:
        """Whether a region was ever asked for."""
        answers = self._now()
        return any(wanted.region == region for wanted in answers.request.regions) or region in answers.known()

    def wanted(self, region: int) -> WantedRegion:
        """A region that was asked for; raises ``DataError`` for any other."""
        return self._now().wanted(region)

    def start(self, region: int, blind: bool) -> Mask:
        """What the annotator starts from: the mask that is there, else the prediction, else nothing."""
        answers = self._now()
        wanted = answers.wanted(region)
        found = None if blind else answers.mask(region)
        if found is None and not blind:
            found = answers.prediction(wanted)
        return np.full(wanted.shape, answers.request.ignore, np.uint8) if found is None else found

    def prediction(self, region: int) -> Mask:
        """What the model takes a region for."""
        answers = self._now()
        found = answers.prediction(answers.wanted(region))
        if found is None:
            raise DataError(f"there is no prediction of region {region}")
        return found

    def inside(self, region: int) -> NDArray[np.uint8]:
        """Which pixels of its box belong to a region: 1 or 0."""
        answers = self._now()
        return answers.inside(answers.wanted(region)).astype(np.uint8)

    def save(self, region: int, mask: Mask, **about: Any) -> int:
        """Keep a mask that somebody has drawn; gives its version."""
        answers = self._now()
        mask = np.where(answers.inside(answers.wanted(region)), mask, answers.request.ignore).astype(np.uint8)
        version = answers.save(region, mask, source="page", **about)
        self.answered.set()
        return version

    def skip(self, region: int, who: str) -> None:
        """Put a region off."""
        self._now().skip(region, who=who)
        self.answered.set()

    def finish(self, who: str) -> None:
        """Enough is answered: the model shall go on."""
        self._now().finish(who)
        self.answered.set()

    def _now(self) -> Answers:
        with self._lock:
            return self._answers

    # -- pictures ---------------------------------------------------------------------------------

    def view(self, region: int) -> bytes:
        """The photograph of a region and what is around it, pixel by pixel: a PNG."""
        wanted = self.wanted(region)
        x, y, width, height = view_of(wanted)
        return _encoded(self._image(wanted)[y : y + height, x : x + width], "PNG")

    def overview(self, region: int) -> bytes:
        """The whole image, small: a JPEG."""
        image = Image.fromarray(self._image(self.wanted(region)))
        image.thumbnail((OVERVIEW, OVERVIEW))
        return _encoded(np.asarray(image), "JPEG")

    def thumbnail(self, region: int) -> bytes:
        """A labelled region under the colours of its classes: a small PNG."""
        answers, wanted = self._now(), self.wanted(region)
        photo = self._image(wanted)[wanted.y : wanted.y + wanted.height, wanted.x : wanted.x + wanted.width]
        mask = answers.mask(region)
        if mask is not None:
            colours = np.zeros((256, 3), np.uint8)
            for entry in answers.request.classes:
                colours[entry.number] = entry.rgb
            is_known = (mask != answers.request.ignore)[..., None]
            photo = np.where(is_known, photo * 0.55 + colours[mask] * 0.45, photo).astype(np.uint8)
        image = Image.fromarray(photo)
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        return _encoded(np.asarray(image), "PNG")

    def patches(self, region: int, level: int) -> bytes:
        """Superpixels of a region: two bytes a pixel, the lower one first."""
        if not 0 <= level < len(PATCHES):
            raise DataError(f"superpixels have the levels 0 to {len(PATCHES) - 1}, not {level}")
        wanted = self.wanted(region)

        def cut() -> bytes:
            photo = self._image(wanted)[wanted.y : wanted.y + wanted.height, wanted.x : wanted.x + wanted.width]
            return superpixels(photo, level).astype("<u2").tobytes()

        return self._kept(self._patches, (region, level), cut, 4 * len(PATCHES))

    def _image(self, wanted: WantedRegion) -> Picture:
        position = int(self.job.regions.image_of(torch.tensor(wanted.region)))
        return self._kept(self._images, position, lambda: self.job.read_image(position), _KEPT_IMAGES)

    def _kept(self, kept: "OrderedDict[_K, _V]", key: _K, make: Callable[[], _V], most: int) -> _V:
        """Something that was made before, or is made now; the last few are kept."""
        with self._lock:
            if key in kept:
                kept.move_to_end(key)
                return kept[key]
        made = make()
        with self._lock:
            kept[key] = made
            while len(kept) > most:
                kept.popitem(last=False)
        return made


def view_of(wanted: WantedRegion) -> tuple[int, int, int, int]:
    """The box of a region with a margin, as far as the image goes: x, y, width, height.

    Examples:
        >>> view_of(WantedRegion(7, "a.png", 400, 300, 0, 100, 100, 50, 1, None, "crops/7.png", "masks/7.png"))
        (0, 40, 160, 170)
    """
    margin = max(LEAST_MARGIN, round(MARGIN * max(wanted.width, wanted.height)))
    left, top = max(0, wanted.x - margin), max(0, wanted.y - margin)
    right = min(wanted.image_width, wanted.x + wanted.width + margin)
    bottom = min(wanted.image_height, wanted.y + wanted.height + margin)
    return left, top, right - left, bottom - top


def _note(wanted: WantedRegion, version: int) -> str:
    if wanted.blind:
        return "A second opinion: somebody else has labelled this region, too. Label it without their mask."
    return "You correct a region that is saved: saving keeps both masks." if version else ""


def _regions(answers: Answers, who: str) -> list[dict[str, Any]]:
    """The regions of a request in order of rank, and how each stands; reserves only once they are needed."""
    progress, now = answers.progress(), time.time()
    is_wanted = {wanted.region for wanted in answers.wanted_now()}
    found: list[dict[str, Any]] = []
    for wanted in answers.request.regions:
        region, claim, by = wanted.region, progress.claims.get(wanted.region), ""
        if region in progress.saved:
            state, by = "saved", progress.saved[region]["who"]
        elif region in progress.skipped:
            state = "skipped"
        elif claim is not None and claim.until > now:
            state, by = ("mine" if claim.who == who else "theirs"), claim.who
        elif region in is_wanted or not wanted.reserve:
            state = "open"
        else:
            continue
        found.append({"region": region, "rank": len(found) + 1, "state": state, "who": by})
    return found


def _earlier(answers: Answers) -> list[dict[str, Any]]:
    """Labelled regions of earlier requests, the newest first."""
    now = {wanted.region for wanted in answers.request.regions}
    saved = [(region, entry) for region, entry in answers.progress().saved.items() if region not in now]
    saved.sort(key=lambda pair: -pair[1]["time"])
    return [
        {"region": region, "image": entry["image"], "who": entry["who"], "version": entry["version"]}
        for region, entry in saved
    ]


def _model(news: News | None) -> dict[str, Any]:
    """The model's turn in words."""
    if news is None:
        return {"doing": "starting", "text": "It gets ready. This takes some seconds.", "share": None}
    texts = {
        "choosing": "It looks for the regions from which it can learn most.",
        "training": "It trains on what you have labelled.",
        "final": f"All {news.labelled} labels go into one model, which is then tested. This takes a while.",
        "done": "",
    }
    return {"doing": news.doing, "text": texts[news.doing], "share": news.share}


def _result(job: LabellingJob, news: News | None) -> dict[str, Any] | None:
    """Scores of the end, and the command that uses the model."""
    if news is None or news.result is None:
        return None
    budgets = [
        {
            "budget": int(budget),
            "miou": scores["test_set/miou"],
            "classes": {name: scores[key] for name in job.class_names if (key := f"test_set/iou/{name}") in scores},
        }
        for budget, scores in news.result["budgets"].items()
    ]
    folder = Path("RUN") if job.folder is None else job.folder
    return {
        "budgets": budgets,
        "text": f"{max(news.budgets)} regions are labelled. The model was tested on images that it had never seen.",
        "command": f"ralseg predict --ckpt {folder} --images FOLDER --out predictions",
    }


def _encoded(pixels: Picture, kind: str) -> bytes:
    buffer = io.BytesIO()
    options: dict[str, Any] = {"compress_level": 3} if kind == "PNG" else {"quality": 88}
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, kind, **options)
    return buffer.getvalue()
