"""The segmenter: what ralseg may ask of a network that segments, whatever its architecture."""

import copy
import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ralseg import __version__
from ralseg.data.any_image import AnyImage, read_any_image
from ralseg.data.base import Colour
from ralseg.data.canvas import Canvas
from ralseg.data.datamodule import SegmentationData
from ralseg.data.samples import Batch
from ralseg.errors import ConfigError
from ralseg.labels.vault import IGNORE
from ralseg.models.metrics import IoU
from ralseg.models.origins import NamesEncoder
from ralseg.models.prediction import Prediction, in_full
from ralseg.models.recipe import recipe_of
from ralseg.models.schedules import check_resumed, length_of, make_schedule
from ralseg.models.weights import WeightsMisfit, canvas_difference, misfit
from ralseg.models.whole_image import TILE, ImagePrediction, Place, segment
from ralseg.runtime import distributed
from ralseg.runtime.checkpoints import differences

log = logging.getLogger(__name__)
_COUNTABLE = 255
"""Classes that a byte can number from 1 on."""


def masked_cross_entropy(logits: Tensor, mask: Tensor, weight: Tensor | None = None) -> Tensor:
    """Weighted mean cross-entropy over labelled pixels; 0, not NaN, where there is none.

    Where several processes share a batch, the mean of what they get is that of the whole batch, and so is the mean of
    their gradients, however their labelled pixels are distributed.

    Args:
        logits: [B, C, H, W].
        mask: [B, H, W] class indices, 255 = not labelled.
        weight: [C] or None.

    Examples:
        >>> logits = torch.zeros(1, 2, 1, 2)
        >>> float(masked_cross_entropy(logits, torch.full((1, 1, 2), 255)))
        0.0
    """
    target = mask.long()
    weight = None if weight is None else weight.to(logits)
    loss = functional.cross_entropy(logits, target, weight, ignore_index=IGNORE, reduction="sum")
    labelled = target != IGNORE
    total = labelled.sum() if weight is None else weight[target[labelled]].sum()
    return loss / distributed.mean(total.to(loss.dtype)).clamp(min=torch.finfo(loss.dtype).tiny)


def predicted_classes(logits: Tensor) -> Tensor:
    """The most probable class of each pixel, the first of equals: [B, C, H, W] -> [B, H, W].

    What ``argmax`` says, ten times faster across channels on a CPU: largest values are found many at a time, and so is
    the first class that has one.

    Examples:
        >>> predicted_classes(torch.tensor([0.0, 2.0, 2.0]).reshape(1, 3, 1, 1)).tolist()
        [[[1]]]
    """
    number = logits.shape[1]
    if not logits.is_contiguous() or number > _COUNTABLE:
        return logits.max(1).indices  # the way for channels_last
    has_largest = (logits == logits.amax(1, keepdim=True)).view(torch.uint8)
    places = torch.arange(number, 0, -1, dtype=torch.uint8, device=logits.device)  # from behind: the first is the most
    first = number - has_largest.mul_(places[:, None, None]).amax(1).long()
    return first.clamp_(max=number - 1)  # no class is as large as a NaN


def inverse_sqrt_weights(frequencies: Tensor) -> Tensor:
    """Class weights 1/sqrt(frequency), scaled to mean 1 over pixels: [C] -> [C].

    Frequencies below 0.2 % count as 0.2 %: a class of which a few pixels happen to be labelled would
    otherwise outweigh all others and drive training apart.
    """
    weights = frequencies.clamp(min=2e-3).rsqrt()
    return weights / (weights * frequencies).sum()


class Segmenter(NamesEncoder):
    """A network that gives each pixel a class. Subclass it and write ``forward`` for a network of your own.

    It trains alone (``pretrain``, final trainings) or in the game. What may be overridden: :meth:`predict_batch` to
    share work between predictions, embedding and dropout samples; :meth:`logits` to compute less than every pixel;
    :meth:`describe` for what a checkpoint must match.

    A checkpoint says how its segmenter was made, so :func:`ralseg.load_segmenter` needs the file alone, as long as the
    constructor's arguments are plain values.

    Attributes:
        canvas: How training showed images; None until a training or a checkpoint says it.
        colours: One RGB colour a class, for pictures; None likewise.

    Args:
        class_names: Names of the classes; the command line takes them from the data.
        label_stride: Train and score on every n-th row and column of pixels, 1, 2 or 4: cheaper on a
            small CPU. Tests always use every pixel.
        class_weights: ``none``, or ``inverse_sqrt``: weigh a class by 1/sqrt of its frequency in the
            labelled images ("ours": without, rare classes stay near 0 at small scale).
        optimizer: Made for the trainable parameters (paper: SGD, momentum 0.95, weight decay 1e-4).
        scheduler: Learning-rate schedule, stepped after each training step. A length that is left out (``total_steps``
            of OneCycleLR, say) is the run's.

    Examples:
        >>> class PixelColours(Segmenter):
        ...     def __init__(self, class_names: tuple[str, ...], **options):
        ...         super().__init__(class_names, **options)
        ...         self.net = torch.nn.Conv2d(3, len(class_names), 1)
        ...     def forward(self, image):
        ...         return self.net(image / 255)
        >>> PixelColours(("road", "sky"))(torch.zeros(1, 3, 4, 6, dtype=torch.uint8)).shape
        torch.Size([1, 2, 4, 6])
        >>> PixelColours(("road", "sky")).predict(np.zeros((4, 6, 3), np.uint8)).shape
        (4, 6)
    """

    class_weight: Tensor
    canvas: Canvas | None = None
    colours: tuple[Colour, ...] | None = None
    _warned_of: str | None = None

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
        self._schedule_length: int | None = None
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

    def tile_logits(self, image: Tensor, place: Place) -> Tensor:
        """As :meth:`forward`, for a tile of a larger image; override it where a pixel's place in the image counts."""
        logits: Tensor = self(image)
        return logits

    def at_labels(self, maps: Tensor) -> Tensor:
        """Masks at the pixels that logits of ``label_stride`` stand for: [..., H, W] -> [..., h, w]."""
        return maps[..., :: self.label_stride, :: self.label_stride]

    def predict_batch(self, image: Tensor, index: Tensor) -> Prediction:
        """What acquisition functions look at; shapes as in :meth:`logits`, at ``label_stride``."""
        return Prediction(self, image, self.logits(image, index, stride=self.label_stride))

    def in_precision(self) -> AbstractContextManager[None]:
        """Passes inside have the precision of the Trainer whose run this is, as Lightning's own steps have."""
        return nullcontext() if self._trainer is None else self._trainer.precision_plugin.forward_context()

    @torch.no_grad()
    def look(self, image: Tensor, index: Tensor) -> Prediction:
        """As :meth:`predict_batch`, in the precision of the Trainer."""
        with self.in_precision():
            return self.predict_batch(image, index)

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

    # -- single images ----------------------------------------------------------------------------

    def predict(self, image: AnyImage) -> NDArray[np.uint8]:
        """The class of each pixel of one image, in its own size: [H, W], positions in ``class_names``.

        Args:
            image: [H, W, 3] or grey [H, W] of uint8 or of floats from 0 to 1, an image of Pillow's, or a file.
        """
        return self.predict_image(image, confidence=False).classes

    @torch.no_grad()
    def predict_image(
        self, image: AnyImage, confidence: bool = True, probabilities: bool = False, tile: int = TILE
    ) -> ImagePrediction:
        """As :meth:`predict`, with the probability of each pixel's class and, if wanted, of all classes.

        Args:
            image: As :meth:`predict` takes it.
            confidence: Give the probability of the predicted class: [H, W].
            probabilities: Give those of all classes: [C, H, W], two bytes each.
            tile: Pixels of a tile's side for large images, where training kept images at their own size; 0: no tiles.
        """
        pixels = read_any_image(image)
        was_training = self.training
        if was_training:
            self.eval()
        try:
            return segment(
                lambda part, place: self.tile_logits(part.to(self.device), place),
                pixels,
                self.canvas or Canvas(),
                len(self.class_names),
                tile,
                confidence,
                probabilities,
            )
        finally:
            if was_training:
                self.train()

    # -- Lightning --------------------------------------------------------------------------------

    def get_to_know(self, data: SegmentationData) -> None:
        """Note what checkpoints say of the data: how images are shown, and the classes' colours."""
        self.canvas, self.colours = data.canvas, tuple(data.dataset.colours)

    def setup(self, stage: str) -> None:
        """Take class weights and the number of images from the data."""
        data = SegmentationData.of(self)
        if isinstance(data, SegmentationData):
            self.get_to_know(data)
        if stage == "fit" and self.class_weights == "inverse_sqrt":
            self.class_weight.copy_(inverse_sqrt_weights(data.fit_class_frequencies()))
        self.prepare(data)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the labelled pixels of a batch."""
        logits = self.logits(batch.image, batch.image_index, batch.flipped, self.label_stride)
        return masked_cross_entropy(in_full(logits), self.at_labels(batch.mask), self.class_weight)

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

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Classes of a batch, in the size that the run works at, padding included: [B, H, W]."""
        return predicted_classes(self.logits(batch.image, batch.image_index))

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
        schedule = make_schedule(self._scheduler, optimizer, self._trainer)
        self._schedule_length = length_of(schedule)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Refuse a resumed schedule of a shorter run."""
        for config in self.trainer.lr_scheduler_configs:
            check_resumed(config.scheduler, self._schedule_length)

    # -- checkpoints ------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say in the file what it fits, how it is made again and what it has seen, in plain values."""
        checkpoint["ralseg"] = {"version": __version__, "segmenter": self.describe(), **self.about()}
        names = self._fit_names()
        if names is not None:
            checkpoint["ralseg"]["trained_on"] = names
        self.leave_out_encoder(checkpoint)

    def about(self) -> dict[str, Any]:
        """What predictions need besides weights: how the segmenter is made, how images are shown to it, colours."""
        shown = {} if self.canvas is None else {"canvas": self.canvas.describe()}
        colours = {} if self.colours is None else {"colours": [list(colour) for colour in self.colours]}
        return {"made": recipe_of(self), **shown, **colours}

    def card(self) -> dict[str, Any]:
        """What a user of the exported network must know: classes, colours, and how images are brought to it."""
        canvas = (self.canvas or Canvas()).describe()
        colours = None if self.colours is None else [list(colour) for colour in self.colours]
        return {"class_names": list(self.class_names), "colours": colours, **canvas}

    def _fit_names(self) -> list[str] | None:
        """The images of this training; None if it is on regions of them, or on data that are not ralseg's."""
        data = SegmentationData.of(self)
        return data.fit_names() if isinstance(data, SegmentationData) and data.trains_on_fit_images else None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint that does not fit, and to go on with one of a training on other images."""
        self.check_fits(checkpoint)
        checkpoint["state_dict"] = self.weights_in(checkpoint)
        self._warn_of_other_canvas(checkpoint)
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
        """Take the weights of a ``ralseg pretrain`` checkpoint, if they fit; images of another size are warned of."""
        self.check_fits(checkpoint)
        try:
            self.restore(self.weights_in(checkpoint))
        except WeightsMisfit as error:
            made = checkpoint["ralseg"].get("made", {}).get("init_args", {})
            differing = differences(made, recipe_of(self)["init_args"]) if made else []
            hint = f" ({'; '.join(differing)})" if differing else ""
            raise ConfigError(f"{error}{hint}") from error
        self._warn_of_other_canvas(checkpoint)

    def _warn_of_other_canvas(self, checkpoint: dict[str, Any]) -> None:
        """Say once that images were shown otherwise; weights may be meant to go from one data set to another."""
        differing = canvas_difference(checkpoint["ralseg"], self.canvas)
        if differing and differing != self._warned_of:
            log.warning("the segmenter's checkpoint is of a training on %s; it may do worse here", differing)
            self._warned_of = differing

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Take weights; what does not fit is named."""
        try:
            return super().load_state_dict(state_dict, *args, **kwargs)
        except RuntimeError as error:
            raise WeightsMisfit(f"{type(self).__name__}: {misfit(state_dict, self.state_dict())}") from error

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take weights."""
        self.load_state_dict(state)

    def copy_for(self, optimizer: OptimizerCallable, scheduler: LRSchedulerCallable | None) -> "Segmenter":
        """A copy that trains by itself, with the same weights and class weights."""
        copied = copy.deepcopy(self)
        copied._optimizer, copied._scheduler, copied.has_scheduler = optimizer, scheduler, scheduler is not None
        return copied
