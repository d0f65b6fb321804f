"""Oracles: whoever labels regions, and the only way to the labels of an unlabelled region."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ralseg.errors import DataError, RalsegError
from ralseg.labels.label_store import LabelStore
from ralseg.labels.layout import Regions
from ralseg.labels.news import News
from ralseg.labels.vault import IGNORE, MaskVault


class LabelsNeeded(RalsegError):
    """Regions wait for people to label them. The run stops, and the same command goes on later: not a failure.

    Examples:
        >>> LabelsNeeded("24 regions wait for labels").exit_code
        0
    """

    exit_code = 0


@dataclass(frozen=True)
class Ranking:
    """What a policy thinks of the candidates of a step.

    Attributes:
        scores: Its score of each candidate; higher is better.
        reserves: The candidates that it did not choose, the next best first.
    """

    scores: Mapping[int, float] = field(default_factory=dict)
    reserves: Sequence[int] = ()


def _no_prediction(image: int) -> NDArray[np.uint8] | None:
    return None


@dataclass(frozen=True)
class LabellingJob:
    """What an oracle works on: the regions of a set, what is known of them, and where it may leave files.

    Attributes:
        regions: The regions, and how they lie in their images.
        image_names: The name of each image of the set.
        class_names: The classes; a label is a position here.
        read_image: Gives an image's file by its position in the set: [height, width, 3].
        masks: The hidden masks, for oracles that reveal them.
        has_mask: Whether there is one for the image at a position in the set.
        folder: The run's folder; None where there is none.
        colours: One RGB colour a class, for pictures.
        palette: The class of each colour in the data set's own masks; None where they hold no colours.
        predict: What the model takes an image for now, by its position in the set: [height, width] of class numbers,
            in the size of its file; None where nobody can say.
        ranking: What the policy thinks of the candidates of the present step.
    """

    regions: Regions
    image_names: list[str]
    class_names: tuple[str, ...]
    read_image: Callable[[int], NDArray[np.uint8]]
    masks: MaskVault
    has_mask: Callable[[int], bool]
    folder: Path | None = None
    colours: tuple[tuple[int, int, int], ...] = ()
    palette: Mapping[tuple[int, int, int], int] | None = None
    predict: Callable[[int], NDArray[np.uint8] | None] = _no_prediction
    ranking: Callable[[], Ranking] = Ranking


@dataclass(frozen=True)
class Answer:
    """Labels that came back. Fewer regions than were asked for: the others may be asked for again later.

    Examples:
        >>> len(Answer(torch.tensor([7]), torch.zeros(1, 32, 32, dtype=torch.uint8)).regions)
        1
    """

    regions: Tensor  # [k]
    labels: Tensor  # [k, *box_size] of uint8; 255 = ignore, and outside of the region


class Oracle(ABC):
    """Labels regions. Write :meth:`label` for an oracle of your own; the rest is for those that need time.

    The run calls :meth:`open` once. At each step it takes up what :meth:`asked` says is under way, or asks anew by
    :meth:`ask`. A run that is resumed gets the labels of all earlier steps by :meth:`recall`: what has been corrected
    since is used from then on, and the run says so. An oracle that lets people correct labels while the run goes on
    gives them by :meth:`corrections`, and :meth:`recall_at` gives what the run had before.

    Examples:
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

    def reserved(self, step: int) -> list[int]:
        """Regions that people may label at this step in place of what was asked for; none by default."""
        return []

    def put_off(self) -> list[int]:
        """Regions that people would rather not label: chosen only where a pool holds nothing else. None by default."""
        return []

    def ask(self, regions: Tensor, step: int) -> Answer:
        """Have the regions of a step labelled: all of them, or some and the others at a later step.

        Raise :class:`LabelsNeeded` where the run should stop and wait.
        """
        return Answer(regions, self.label(regions))

    def corrections(self, step: int | None) -> Answer | None:
        """Labels that have changed since the run took them; None, the default: there are none.

        Args:
            step: The step that begins; repeated after a restart, it must be told the same. None: no step follows, and
                labels count as they are now.
        """
        return None

    def recall(self, regions: Tensor) -> Tensor:
        """The labels of regions that were answered earlier, as they are now: [k] -> [k, *box_size]."""
        return self.label(regions)

    def recall_at(self, regions: Tensor, step: int) -> Tensor:
        """The labels of regions as the run had them before a step, where the oracle knows; else as they are now."""
        return self.recall(regions)

    def cost(self, regions: list[int]) -> dict[str, Any]:
        """What labels cost: at least regions, pixels of the files, clicks and minutes; None where it is not known."""
        pixels = 0
        for region in regions:
            *_, width, height = self.job.regions.file_box(region)
            inside = self.job.regions.inside(region)
            pixels += round(width * height * (1.0 if inside is None else float(inside.float().mean())))
        return {"regions": len(regions), "pixels": pixels, "clicks": None, "minutes": None}

    def tell(self, news: News) -> None:  # noqa: B027 - most oracles have nobody to tell
        """Hear what the run is doing, for oracles that show it to people."""

    def close(self) -> None:  # noqa: B027 - most oracles hold nothing
        """Let go of what :meth:`open` has taken; called when the run ends, however it ends."""


class MaskOracle(Oracle):
    """Reveals the hidden masks of a set, region by region.

    Examples:
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
    """The labels that an oracle has given so far; all other pixels are ignored. Many of them go to disk.

    Args:
        regions: How the regions lie in their images.
    """

    def __init__(self, regions: Regions) -> None:
        self.regions = regions
        self._labels = LabelStore()

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
