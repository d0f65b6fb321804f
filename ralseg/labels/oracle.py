"""Oracles: whoever labels regions, and the only way to the labels of an unlabelled region."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ralseg.errors import DataError, RalsegError
from ralseg.labels.layout import Regions
from ralseg.labels.vault import IGNORE, MaskVault


class LabelsNeeded(RalsegError):
    """Regions wait for people to label them. The run stops, and the same command goes on later: not a failure.

    Example:
        >>> LabelsNeeded("24 regions wait for labels").exit_code
        0
    """

    exit_code = 0


@dataclass(frozen=True)
class LabellingJob:
    """What an oracle works on: the regions of a set, and where it may leave files.

    Attributes:
        regions: The regions, and how they lie in their images.
        image_names: The name of each image of the set.
        class_names: The classes; a label is a position here.
        read_image: Gives an image's file by its position in the set: [height, width, 3].
        masks: The hidden masks, for oracles that reveal them.
        has_mask: Whether there is one for the image at a position in the set.
        folder: The run's folder; None where there is none.
    """

    regions: Regions
    image_names: list[str]
    class_names: tuple[str, ...]
    read_image: Callable[[int], NDArray[np.uint8]]
    masks: MaskVault
    has_mask: Callable[[int], bool]
    folder: Path | None = None


@dataclass(frozen=True)
class Answer:
    """Labels that came back. Fewer regions than were asked for: the others may be asked for again later.

    Example:
        >>> len(Answer(torch.tensor([7]), torch.zeros(1, 32, 32, dtype=torch.uint8)).regions)
        1
    """

    regions: Tensor  # [k]
    labels: Tensor  # [k, *box_size] of uint8; 255 = ignore, and outside of the region


class Oracle(ABC):
    """Labels regions. Write :meth:`label` for an oracle of your own; the rest is for those that need time.

    The run calls :meth:`open` once. At each step it takes up what :meth:`asked` says is under way, or asks anew by
    :meth:`ask`. A run that is resumed gets the labels of all earlier steps by :meth:`recall`: what has been corrected
    since is used from then on, and the run says so.

    Example:
        >>> class AllRoad(Oracle):
        ...     def label(self, regions):
        ...         return torch.zeros(len(regions), *self.job.regions.box_size, dtype=torch.uint8)
    """

    job: LabellingJob

    def open(self, job: LabellingJob) -> None:
        """Get to know the regions; called once, before anything is asked."""
        self.job = job

    @abstractmethod
    def label(self, regions: Tensor) -> Tensor:
        """Labels of regions: [k] -> [k, *box_size] of uint8, 255 = ignore, and outside of the region.

        Raise :class:`LabelsNeeded` where they are not there yet.
        """

    def asked(self, step: int) -> list[int]:
        """The regions that were asked for at this step before the run was cut off; none by default."""
        return []

    def ask(self, regions: Tensor, step: int) -> Answer:
        """Have the regions of a step labelled: all of them, or some and the others at a later step.

        Raise :class:`LabelsNeeded` where the run should stop and wait.
        """
        return Answer(regions, self.label(regions))

    def recall(self, regions: Tensor) -> Tensor:
        """The labels of regions that were answered earlier, as they are now: [k] -> [k, *box_size]."""
        return self.label(regions)


class MaskOracle(Oracle):
    """Reveals the hidden masks of a set, region by region.

    Example:
        >>> from ralseg.data import SegmentationData
        >>> data = SegmentationData()
        >>> data.setup()
        >>> oracle = MaskOracle()
        >>> oracle.open(data.labelling_job("train_set"))
        >>> oracle.label(torch.tensor([0, 30])).shape == (2, *data.regions("train_set").box_size)
        True
    """

    def open(self, job: LabellingJob) -> None:
        """Refuse a set in which an image has no mask."""
        super().open(job)
        missing = [name for position, name in enumerate(job.image_names) if not job.has_mask(position)]
        if missing:
            raise DataError(
                f"{len(missing)} images to label have no mask to reveal, the first: {missing[0]}; ask people by "
                "--oracle crops, or leave these images out of the set"
            )

    def label(self, regions: Tensor) -> Tensor:
        """Copy the labels of each region out of its image's mask."""
        job = self.job
        boxes = job.regions.boxes(regions).tolist()
        images = job.regions.image_of(regions).tolist()
        found = []
        for region, image, box in zip(regions.tolist(), images, boxes, strict=True):
            labels = job.masks.reveal_box(job.regions.images.indices[image], tuple(box))
            inside = job.regions.inside(region)
            if inside is not None:
                labels[~inside] = IGNORE
            found.append(job.regions.fit_box(labels))
        return torch.stack(found) if found else torch.empty(0, *job.regions.box_size, dtype=torch.uint8)


class RevealedLabels:
    """The labels that an oracle has given so far; all other pixels are ignored.

    Args:
        regions: How the regions lie in their images.
    """

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self._labels: dict[int, Tensor] = {}

    def add(self, regions: Tensor, labels: Tensor) -> None:
        """Keep the labels [k, *box_size] of regions [k]; what was known of them is replaced."""
        for region, label in zip(regions.tolist(), labels, strict=True):
            self._labels[region] = label

    def __getitem__(self, region: int) -> Tensor:
        """Labels of one revealed region: [*box_size]."""
        return self._labels[region]

    def mask(self, regions: list[int]) -> Tensor:
        """A whole image's mask that shows only ``regions``, which must be of one image: [height, width]."""
        images = self.regions.images
        mask = torch.full((images.height, images.width), IGNORE, dtype=torch.uint8)
        for region, (x, y, width, height) in zip(
            regions, self.regions.boxes(torch.tensor(regions)).tolist(), strict=True
        ):
            window, label = mask[y : y + height, x : x + width], self._labels[region][:height, :width]
            window.copy_(torch.where(label == IGNORE, window, label))
        return mask
