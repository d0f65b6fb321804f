"""Pictures of wanted regions: what they show, what the model takes them for, and which pixels belong to them."""

from collections.abc import Callable, Container, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from ralseg.annotation.masks import encode_mask
from ralseg.annotation.request import Request, WantedRegion
from ralseg.labels.oracle import LabellingJob
from ralseg.runtime.files import write_atomically, write_png

Picture = Callable[[], NDArray[np.uint8] | None]
"""Gives an image, or what is predicted for it; made when it is first asked for."""


class Pictures:
    """The pictures of a request's folder.

    Args:
        folder: The request's folder.
        job: The run's regions, images and predictions.
    """

    def __init__(self, folder: Path, job: LabellingJob) -> None:
        self.folder, self.job = folder, job

    def write(self, request: Request, is_new: bool, answered: Container[int]) -> None:
        """Write crops, predictions and shapes that are not there yet, image by image.

        Args:
            request: What they are for.
            is_new: Whether it is asked only now: what an older model has predicted is not shown then.
            answered: Regions whose prediction stays, since answers are compared with it.
        """
        (self.folder / "masks").mkdir(parents=True, exist_ok=True)
        by_image: dict[int, list[WantedRegion]] = {}
        for wanted in request.regions:
            by_image.setdefault(image_of(self.job, wanted.region), []).append(wanted)
            if is_new and wanted.prediction is not None and wanted.region not in answered:
                (self.folder / wanted.prediction).unlink(missing_ok=True)
        for image, regions in by_image.items():
            self._write_of_image(image, regions, request)

    def _write_of_image(self, image: int, regions: list[WantedRegion], request: Request) -> None:
        pixels, predicted = cache(lambda: self.job.read_image(image)), cache(lambda: self.job.predict(image))
        for wanted in regions:
            crop = self._missing(wanted, wanted.crop, pixels)
            if crop is not None:
                write_png(self.folder / wanted.crop, crop)
            prediction = self._missing(wanted, wanted.prediction, predicted)
            if prediction is not None:
                write_atomically(self.folder / str(wanted.prediction), encode_mask(prediction, request.classes))
            inside = self.job.regions.inside(wanted.region)
            if wanted.inside is not None and inside is not None and not (self.folder / wanted.inside).is_file():
                write_png(self.folder / wanted.inside, resized(inside.to(torch.uint8) * 255, wanted.shape).numpy())

    def _missing(self, wanted: WantedRegion, name: str | None, picture: Picture) -> NDArray[np.uint8] | None:
        """What should be in a region's file; None where that is there, or nobody can say."""
        found = None if name is None or (self.folder / name).is_file() else picture()
        if found is None:
            return None
        return np.ascontiguousarray(found[wanted.y : wanted.y + wanted.height, wanted.x : wanted.x + wanted.width])

    def remove_stale(self, request: Request, known: Mapping[int, WantedRegion], answered: Container[int]) -> None:
        """Delete the pictures of earlier requests, but for predictions and shapes that answers are compared with.

        Args:
            request: The present one.
            known: All regions that were ever asked for.
            answered: Those that are answered.
        """
        now = {wanted.region for wanted in request.regions}
        for region, wanted in known.items():
            if region not in now:
                (self.folder / wanted.crop).unlink(missing_ok=True)
            if region not in now and region not in answered:
                for name in (wanted.prediction, wanted.inside):
                    if name is not None:
                        (self.folder / name).unlink(missing_ok=True)


def image_of(job: LabellingJob, region: int) -> int:
    """The position of a region's image in the set."""
    return int(job.regions.image_of(torch.tensor(region)))


def resized(mask: Tensor, size: tuple[int, int]) -> Tensor:
    """Class numbers in another size: [h, w] -> [*size]."""
    found: Tensor = transforms.resize(mask[None], list(size), InterpolationMode.NEAREST_EXACT)[0]
    return found
