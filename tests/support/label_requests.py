"""Requests that no run has made, for tests of what people answer."""

from pathlib import Path

import numpy as np
from PIL import Image

from ralseg.annotation import Answers, ClassColour, Request, WantedRegion

CLASSES = (ClassColour(0, "ground", "#785a3c"), ClassColour(1, "plant", "#288c3c"), ClassColour(2, "stone", "#969696"))
HEIGHT, WIDTH = 6, 8


def make_request(wanted: int = 4, reserves: int = 0, **options) -> Request:
    """Regions 10, 11, ... of one image, the first ones wanted, the others reserves."""
    regions = tuple(
        WantedRegion(
            region=10 + i,
            image="train/a.png",
            image_width=WIDTH * (wanted + reserves),
            image_height=HEIGHT,
            x=WIDTH * i,
            y=0,
            width=WIDTH,
            height=HEIGHT,
            rank=i + 1,
            score=1 - i / 100,
            crop=f"crops/{10 + i}.png",
            mask=f"masks/{10 + i}.png",
            prediction=f"predictions/{10 + i}.png",
            reserve=i >= wanted,
        )
        for i in range(wanted + reserves)
    )
    return Request(**{"step": 0, "classes": CLASSES, "regions": regions} | options)


def make_answers(folder: Path, wanted: int = 4, reserves: int = 0, **options) -> Answers:
    """Such a request in a folder, with predictions that say ground everywhere."""
    request = make_request(wanted, reserves, **options)
    request.write(folder)
    (folder / "predictions").mkdir(exist_ok=True)
    for entry in request.regions:
        Image.new("L", (WIDTH, HEIGHT)).save(folder / entry.prediction)
    answers = Answers(folder, request)
    answers.open()
    return answers


def painted(number: int, ground: int = 0) -> np.ndarray:
    """A mask of one class but for ``ground`` pixels of class 0."""
    mask = np.full((HEIGHT, WIDTH), number, np.uint8)
    mask.flat[:ground] = 0
    return mask
