"""The segmenter: what ralseg may ask of a network that segments, whatever its architecture."""

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn import functional

from ralseg import __version__
from ralseg.data.datamodule import SegmentationData
from ralseg.data.samples import Batch
from ralseg.errors import ConfigError
from ralseg.labels.layout import RegionMaps, Regions
from ralseg.labels.vault import IGNORE
from ralseg.models.metrics import IoU
from ralseg.runtime import distributed
from ralseg.runtime.checkpoints import differences

_DROPOUT = (nn.Dropout, nn.Dropout2d)


def masked_cross_entropy(logits: Tensor, mask: Tensor, weight: Tensor | None = None) -> Tensor:
    """Weighted mean cross-entropy over labelled pixels; 0, not NaN, where there is none.

    Where several processes share a batch, the mean of what they get is that of the whole batch, and so is the mean of
    their gradients, however their labelled pixels are distributed.

    Args:
        logits: [B, C, H, W].
        mask: [B, H, W] class indices, 255 = not labelled.
        weight: [C] or None.

    Example:
        >>> logits = torch.zeros(1, 2, 1, 2)
        >>> float(masked_cross_entropy(logits, torch.full((1, 1, 2), 255)))
        0.0
    """
    target = mask.long()
    loss = functional.cross_entropy(logits, target, weight, ignore_index=IGNORE, reduction="sum")
    labelled = target != IGNORE
    total = labelled.sum() if weight is None else weight[target[labelled]].sum()
    return loss / distributed.mean(total.to(loss.dtype)).clamp(min=torch.finfo(loss.dtype).tiny)


def predicted_classes(logits: Tensor) -> Tensor:
    """The most probable class of each pixel: [B, C, H, W] -> [B, H, W].

    ``max`` instead of ``argmax``: the same answer, ten times faster across channels on a CPU.
    """
    return logits.max(1).indices


def inverse_sqrt_weights(frequencies: Tensor) -> Tensor:
    """Class weights 1/sqrt(frequency), scaled to mean 1 over pixels: [C] -> [C].

    Frequencies below 0.2 % count as 0.2 %: a class of which a few pixels happen to be labelled would
    otherwise outweigh all others and drive training apart.
    """
    weights = frequencies.clamp(min=2e-3).rsqrt()
    return weights / (weights * frequencies).sum()


class Seeds(NamedTuple):
    """What random draws of a look at images follow from: they must not depend on which images share a batch."""

    step: int  # of what is drawn once for all images
    images: list[int]  # of what is drawn for each image


class Prediction:
    """What a segmenter says about a batch of images, and what else acquisition functions may ask it.

    Args:
        segmenter: The segmenter, in evaluation mode.
        image: [b, 3, H, W] uint8.
        logits: [b, C, h, w] at every ``label_stride``-th pixel.
    """

    def __init__(self, segmenter: "Segmenter", image: Tensor, logits: Tensor) -> None:
        self.segmenter, self.image, self.logits = segmenter, image, logits

    def embedding(self) -> Tensor:
        """A map of features that covers the images: [b, D, ?, ?]; class probabilities, unless overridden."""
        return self.logits.softmax(1)

    def cut(self, regions: Regions, rows: Tensor, numbers: Tensor) -> RegionMaps:
        """Logits at regions: [r, C, h, w].

        Args:
            regions: How images are cut.
            rows: [r] the image of each region in this batch.
            numbers: [r] the regions.
        """
        return regions.cut(self.logits, rows, numbers)

    def average(self, regions: Regions, rows: Tensor, numbers: Tensor) -> Tensor:
        """Mean of :meth:`embedding` over regions: [r, D]."""
        return regions.average(self.embedding(), rows, numbers)

    def sampled_at(
        self, regions: Regions, rows: Tensor, numbers: Tensor, samples: int, seeds: Seeds
    ) -> Iterator[Tensor]:
        """What :meth:`sampled` gives, at regions; each [r, C, h, w]."""
        for logits in self.sampled(samples, seeds):
            yield regions.cut(logits, rows, numbers).values

    def frame(self) -> Tensor:
        """Mean of :meth:`embedding` over whole images: [b, D]."""
        return self.embedding().mean((2, 3))

    def credit(self, regions: Regions, rows: Tensor, numbers: Tensor, labels: Tensor, judge: Any) -> Tensor:
        """The change of mean IoU on the judge's pixels if one region alone were labelled: [r].

        Args:
            regions: How images are cut.
            rows: [r] the image of each region in this batch.
            numbers: [r] the regions.
            labels: [r, h, w] their labels, at ``label_stride``.
            judge: What the segmenter's ``reward_pixels`` gave.
        """
        raise ConfigError(
            "the credit of one region needs a segmenter that can be refitted at once, such as "
            f"ralseg.ClosedFormSegmenter; model {type(self.segmenter).__name__} cannot"
        )

    def sampled(self, samples: int, seeds: Seeds) -> Iterator[Tensor]:
        """Logits under random dropout, for BALD; each [b, C, h, w].

        Args:
            samples: Number of dropout masks.
            seeds: What is drawn follows from these.
        """
        dropouts = [module for module in self.segmenter.modules() if isinstance(module, _DROPOUT) and 0 < module.p < 1]
        if not dropouts:
            raise ConfigError(
                f"BALD samples a network's dropout, but model {type(self.segmenter).__name__} has none; give it a "
                "Dropout layer, or choose another policy"
            )
        stride = self.segmenter.label_stride
        for sample in range(samples):
            rows = []
            for row, seed in enumerate(seeds.images):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed + sample)
                    for module in dropouts:
                        module.train()
                    rows.append(self.segmenter(self.image[row : row + 1])[..., ::stride, ::stride])
                    for module in dropouts:
                        module.eval()
            yield torch.cat(rows)


class Segmenter(pl.LightningModule):
    """A network that gives each pixel a class. Subclass it and write ``forward`` for a network of your own.

    It trains alone (``pretrain``, final trainings) or in the game. What may be overridden: :meth:`predict_batch` to
    share work between predictions, embedding and dropout samples; :meth:`logits` to compute less than every pixel;
    :meth:`describe` for what a checkpoint must match.

    Args:
        class_names: Names of the classes; the command line takes them from the data.
        label_stride: Train and score on every n-th row and column of pixels, 1, 2 or 4: cheaper on a
            small CPU. Tests always use every pixel.
        class_weights: ``none``, or ``inverse_sqrt``: weigh a class by 1/sqrt of its frequency in the
            labelled images ("ours": without, rare classes stay near 0 at small scale).
        optimizer: Made for the trainable parameters (paper: SGD, momentum 0.95, weight decay 1e-4).
        scheduler: Learning-rate schedule, stepped after each training step.

    Example:
        >>> class PixelColours(Segmenter):
        ...     def __init__(self, class_names: tuple[str, ...], **options):
        ...         super().__init__(class_names, **options)
        ...         self.net = nn.Conv2d(3, len(class_names), 1)
        ...     def forward(self, image):
        ...         return self.net(image / 255)
        >>> PixelColours(("road", "sky"))(torch.zeros(1, 3, 4, 6, dtype=torch.uint8)).shape
        torch.Size([1, 2, 4, 6])
    """

    class_weight: Tensor

    def __init__(
        self,
        class_names: tuple[str, ...],
        label_stride: Literal[1, 2, 4] = 1,
        class_weights: Literal["none", "inverse_sqrt"] = "none",
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(
            parameters, lr=1e-3, momentum=0.95, weight_decay=1e-4
        ),
        scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__()
        self.class_names = tuple(class_names)
        self.label_stride, self.class_weights = label_stride, class_weights
        self.has_scheduler = scheduler is not None
        self._optimizer, self._scheduler = optimizer, scheduler
        self.register_buffer("class_weight", torch.ones(len(self.class_names)))
        self.reward_iou = IoU(self.class_names)
        self.test_iou = IoU(self.class_names)

    # -- what a subclass says ---------------------------------------------------------------------

    def forward(self, image: Tensor) -> Tensor:
        """Logits of every pixel: [B, 3, H, W] uint8 -> [B, C, H, W]."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(image): [B, 3, H, W] -> [B, C, H, W]")

    def describe(self) -> dict[str, Any]:
        """Plain values that a checkpoint must share with this segmenter to fit it."""
        return {"class": type(self).__name__, "class_names": list(self.class_names)}

    def prepare(self, data: SegmentationData) -> None:
        """Get to know the data before training or playing; nothing to do by default."""

    def logits(self, image: Tensor, index: Tensor, flipped: Tensor | None = None, stride: int = 1) -> Tensor:
        """As :meth:`forward`, at every ``stride``-th pixel.

        Args:
            image: [B, 3, H, W] uint8.
            index: [B] positions in the data set, for segmenters that keep what they computed for an image.
            flipped: [B] bool; None when no image is mirrored.
            stride: [B, C, ceil(H / stride), ceil(W / stride)] come back.
        """
        logits: Tensor = self(image)
        return logits[..., ::stride, ::stride]

    def at_labels(self, maps: Tensor) -> Tensor:
        """Masks at the pixels that logits of ``label_stride`` stand for: [..., H, W] -> [..., h, w]."""
        return maps[..., :: self.label_stride, :: self.label_stride]

    def predict_batch(self, image: Tensor, index: Tensor) -> Prediction:
        """What acquisition functions look at; shapes as in :meth:`logits`, at ``label_stride``."""
        return Prediction(self, image, self.logits(image, index, stride=self.label_stride))

    def reward_pixels(self, batches: Iterable[Batch], number: int, generator: torch.Generator) -> Any:
        """What :meth:`Prediction.credit` needs of the images that pay; None where it is not offered.

        Args:
            batches: The images that pay, with their labels.
            number: Pixels to draw.
            generator: Draws them.
        """

    def trained_tensors(self) -> list[Tensor]:
        """What training changes, floating-point statistics included; the game may average it over steps."""
        return [tensor for tensor in self.state_dict(keep_vars=False).values() if tensor.is_floating_point()]

    def statistics(self) -> list[Tensor]:
        """Buffers that training changes, which processes of one run must share."""
        return list(self.buffers())

    def export(self, folder: Path) -> None:
        """Write the network in a format of others below ``folder``; nothing by default."""

    # -- Lightning --------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Take class weights and the number of images from the data."""
        data = SegmentationData.of(self)
        if stage == "fit" and self.class_weights == "inverse_sqrt":
            self.class_weight.copy_(inverse_sqrt_weights(data.fit_class_frequencies()))
        self.prepare(data)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the labelled pixels of a batch."""
        logits = self.logits(batch.image, batch.image_index, batch.flipped, self.label_stride)
        return masked_cross_entropy(logits, self.at_labels(batch.mask), self.class_weight)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of one batch."""
        loss = self.loss(batch)
        self.log("segmenter/loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count hits and misses on the reward set."""
        logits = self.logits(batch.image, batch.image_index, stride=self.label_stride)
        self.reward_iou.update(predicted_classes(logits), self.at_labels(batch.mask).long())

    def on_validation_epoch_end(self) -> None:
        """Log the mean IoU on the reward set."""
        self.log("reward_set/miou", self.reward_iou.compute(), prog_bar=True, sync_dist=True)
        self.reward_iou.reset()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Count hits and misses on the test set, at every pixel."""
        logits = self.logits(batch.image, batch.image_index)
        self.test_iou.update(predicted_classes(logits), batch.mask.long())

    def on_test_epoch_end(self) -> None:
        """Log mean IoU and the IoU of each class that occurs."""
        self.log("test_set/miou", self.test_iou.compute(), sync_dist=True)
        by_class = {f"test_set/iou/{name}": iou for name, iou in self.test_iou.per_class().items()}
        self.log_dict(by_class, sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Optimizer and schedule of the trainable parameters."""
        optimizer = self._optimizer([p for p in self.parameters() if p.requires_grad])
        if self._scheduler is None:
            return optimizer
        scheduler = {"scheduler": self._scheduler(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    # -- checkpoints ------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say in the file what it fits and what it has seen, in plain values."""
        checkpoint["ralseg"] = {"version": __version__, "segmenter": self.describe()}
        names = self._fit_names()
        if names is not None:
            checkpoint["ralseg"]["trained_on"] = names

    def _fit_names(self) -> list[str] | None:
        """The images of this training; None if it is on regions of them, or on data that are not ralseg's."""
        data = SegmentationData.of(self)
        return data.fit_names() if isinstance(data, SegmentationData) and data.trains_on_fit_images else None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint that does not fit, and to go on with one of a training on other images."""
        self.check_fits(checkpoint)
        trained_on = checkpoint["ralseg"].get("trained_on")
        is_fitting = self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING
        if is_fitting and trained_on is not None and trained_on != self._fit_names():
            raise ConfigError(
                "the checkpoint is of a training on other images; go on with the data.dataset, data.splits, "
                "data.fit_on, data.fit_images and seed_everything of its run's config.yaml, or start anew in another "
                "trainer.default_root_dir"
            )

    def check_fits(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another network, saying what differs."""
        saved = checkpoint.get("ralseg", {}).get("segmenter")
        if not isinstance(saved, dict):
            raise ConfigError("this file is not a ralseg segmenter checkpoint (`ralseg pretrain` writes those)")
        differing = differences(saved, self.describe())
        if differing:
            raise ConfigError("the checkpoint does not fit this model: " + "; ".join(differing))

    def load_weights(self, checkpoint: dict[str, Any]) -> None:
        """Take the weights of a ``ralseg pretrain`` checkpoint, if they fit."""
        self.check_fits(checkpoint)
        self.restore(checkpoint["state_dict"])

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take weights."""
        self.load_state_dict(state)

    def copy_for(self, optimizer: OptimizerCallable, scheduler: LRSchedulerCallable | None) -> "Segmenter":
        """A copy that trains by itself, with the same weights and class weights."""
        copied = copy.deepcopy(self)
        copied._optimizer, copied._scheduler, copied.has_scheduler = optimizer, scheduler, scheduler is not None
        return copied
