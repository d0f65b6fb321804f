"""The segmenter f: an FPN that trains alone (theta_0, final training) or as a player of the game."""

import copy
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import segmentation_models_pytorch as smp
import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.nn import functional

from ralseg import __version__, encoders, ranks
from ralseg.data.cache import TensorCache
from ralseg.data.module import SegmentationData
from ralseg.data.readers import IGNORE
from ralseg.data.samples import Batch
from ralseg.errors import ConfigError
from ralseg.metrics import IoU

log = logging.getLogger(__name__)


def masked_cross_entropy(logits: Tensor, mask: Tensor, weight: Tensor | None = None) -> Tensor:
    """Weighted mean cross-entropy over labelled pixels; 0, not NaN, where there is none.

    Where several ranks share a batch, the mean of what they get is that of the whole batch, and so is the mean of
    their gradients, however their labelled pixels are distributed.

    Args:
        logits: [B, C, H, W].
        mask: [B, H, W] class indices, 255 = not labelled.
        weight: [C] or None.
    """
    target = mask.long()
    loss = functional.cross_entropy(logits, target, weight, ignore_index=IGNORE, reduction="sum")
    labelled = target != IGNORE
    total = labelled.sum() if weight is None else weight[target[labelled]].sum()
    return loss / ranks.mean(total.to(loss.dtype)).clamp(min=torch.finfo(loss.dtype).tiny)


def predicted_classes(logits: Tensor) -> Tensor:
    """The most probable class of each pixel: [B, C, H, W] -> [B, H, W].

    ``max`` instead of ``argmax``: the same answer, ten times faster across channels on a CPU.
    """
    return logits.max(1).indices


def inverse_sqrt_weights(frequencies: Tensor) -> Tensor:
    """Class weights 1/sqrt(frequency), scaled to mean 1 over pixels.

    Frequencies below 0.2 % count as 0.2 %: a class of which a few pixels happen to be labelled would
    otherwise outweigh all others and drive training apart.
    """
    weights = frequencies.clamp(min=2e-3).rsqrt()
    return weights / (weights * frequencies).sum()


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # one that a test was the first to ask for may serve a training later
def _upsampling_matrix(small: int, padded: int, kept: int, stride: int) -> Tensor:
    """Linear interpolation from ``small`` to ``padded`` points (ends aligned), every ``stride``-th of ``kept``."""
    position = torch.arange(0, kept, stride, dtype=torch.float64) * (small - 1) / max(padded - 1, 1)
    low = position.floor().long().clamp(max=max(small - 2, 0))
    fraction = position - low
    matrix = torch.zeros(len(position), small, dtype=torch.float64)
    rows = torch.arange(len(position))
    matrix[rows, low] = 1 - fraction
    matrix[rows, (low + 1).clamp(max=small - 1)] += fraction
    return matrix.float()


class FPNSegmenter(pl.LightningModule):
    """A feature pyramid network around any encoder of segmentation-models-pytorch.

    Args:
        class_names: Names of the classes; the command line takes them from the data.
        encoder: Encoder name of segmentation-models-pytorch (paper: resnet50).
        encoder_weights: ``imagenet`` (downloaded), ``efficientnet_lite0`` (installed by pip),
            ``none``, or a file of weights for this encoder.
        pyramid_channels: Width of the pyramid.
        segmentation_channels: Width of the segmentation branch, a multiple of 32.
        dropout: Dropout before the last layer; BALD samples from it.
        freeze_encoder: Train the decoder only.
        cache_features: With a frozen encoder, compute its features once an image for the whole run.
        feature_cache_gb: How many GB of features are kept in RAM; the rest goes to disk.
        label_stride: Train and score on every n-th row and column of pixels, 1, 2 or 4: cheaper on a
            small CPU. Tests always use every pixel.
        class_weights: ``none``, or ``inverse_sqrt``: weigh a class by 1/sqrt of its frequency in the
            labelled images ("ours": without, rare classes stay near 0 at small scale).
        optimizer: Made for the trainable parameters (paper: SGD, momentum 0.95, weight decay 1e-4).
        scheduler: Learning-rate schedule, stepped after each training step.
    """

    class_weight: Tensor
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        class_names: tuple[str, ...],
        encoder: str = "resnet50",
        encoder_weights: str = "imagenet",
        pyramid_channels: int = 256,
        segmentation_channels: int = 128,
        dropout: float = 0.2,
        freeze_encoder: bool = False,
        cache_features: bool = False,
        feature_cache_gb: float = 4.0,
        label_stride: Literal[1, 2, 4] = 1,
        class_weights: Literal["none", "inverse_sqrt"] = "none",
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(
            parameters, lr=1e-3, momentum=0.95, weight_decay=1e-4
        ),
        scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__()
        if segmentation_channels % 32:
            raise ConfigError(f"model.segmentation_channels={segmentation_channels} must be a multiple of 32")
        if cache_features and not freeze_encoder:
            raise ConfigError("model.cache_features needs model.freeze_encoder: a trained encoder's features change")
        self.class_names = tuple(class_names)
        self.architecture = {
            "encoder": encoder,
            "pyramid_channels": pyramid_channels,
            "segmentation_channels": segmentation_channels,
            "class_names": list(self.class_names),
        }
        self.freeze_encoder, self.cache_features = freeze_encoder, cache_features
        self._feature_cache_bytes = int(feature_cache_gb * 1e9)
        self.label_stride = label_stride
        self.class_weights, self.has_scheduler = class_weights, scheduler is not None
        self._optimizer, self._scheduler = optimizer, scheduler

        self.net = self._build(encoder, encoder_weights, pyramid_channels, segmentation_channels, dropout)
        if freeze_encoder:
            self.net.encoder.requires_grad_(False).eval()
        mean, std = encoders.normalisation(encoder)
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer("class_weight", torch.ones(len(self.class_names)))
        self.features: FeatureCache | None = None
        self.reward_iou = IoU(self.class_names)
        self.test_iou = IoU(self.class_names)
        self.train()

    def _build(self, encoder: str, weights: str, pyramid: int, segmentation: int, dropout: float) -> smp.FPN:
        from_hub = "imagenet" if weights == "imagenet" else None
        try:
            net = smp.FPN(
                encoder,
                encoder_weights=from_hub,
                decoder_pyramid_channels=pyramid,
                decoder_segmentation_channels=segmentation,
                decoder_dropout=dropout,
                classes=len(self.class_names),
            )
        except KeyError as error:
            raise ConfigError(f"model.encoder={encoder!r}: {error.args[0]}") from error
        except (OSError, RuntimeError) as error:
            if from_hub is None:
                raise
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"model.encoder_weights=imagenet: the weights of {encoder} could not be downloaded ({reason}); "
                + encoders.offline_alternatives(encoder)
            ) from error
        if weights == encoders.LITE0:
            encoders.load_lite0(encoder, net.encoder)
        elif weights not in ("imagenet", "none"):
            encoders.load_file(Path(weights), net.encoder)
        return net

    def train(self, mode: bool = True) -> "FPNSegmenter":
        """Set training mode; a frozen encoder keeps its statistics."""
        if not self.freeze_encoder:
            return super().train(mode)
        # not through all modules of the encoder each time: the game changes mode several times a step
        self.training = self.net.training = mode
        self.net.decoder.train(mode)
        self.net.segmentation_head.train(mode)
        return self

    # -- the network in two halves ---------------------------------------------------------------

    def encode(self, image: Tensor) -> list[Tensor]:
        """The four feature maps that the decoder reads: [B, 3, H, W] uint8 -> strides 4, 8, 16, 32.

        Images of any size: they are padded at the bottom and right to a multiple of the encoder's stride.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze_encoder):
            pixels = (image.to(self.mean.dtype) - self.mean) / self.std
            stride = self.net.encoder.output_stride
            bottom, right = -image.shape[-2] % stride, -image.shape[-1] % stride
            if bottom or right:
                pixels = functional.pad(pixels, (0, right, 0, bottom), mode="replicate")
            features: list[Tensor] = self.net.encoder(pixels)[-4:]
            return features

    def decode(self, features: list[Tensor], height: int, width: int, stride: int = 1) -> Tensor:
        """Logits at every ``stride``-th pixel: [B, C, ceil(height / stride), ceil(width / stride)]."""
        return self.upsample(self.classify(self.merge(features)), height, width, stride)

    def merge(self, features: list[Tensor]) -> Tensor:
        """Decoder up to and with its dropout: [B, D, padded height / 4, padded width / 4]."""
        merged: Tensor = self.net.decoder(features)
        return merged

    def classify(self, merged: Tensor) -> Tensor:
        """The last convolution: [B, D, h, w] -> [B, C, h, w]."""
        coarse: Tensor = self.net.segmentation_head[0](merged)
        return coarse

    def upsample(self, coarse: Tensor, height: int, width: int, stride: int = 1) -> Tensor:
        """The network's own bilinear upsampling, evaluated only where it is asked for."""
        small_height, small_width = coarse.shape[-2:]
        if stride == 1:
            logits = functional.interpolate(coarse, scale_factor=4, mode="bilinear", align_corners=True)
            return logits[..., :height, :width]
        rows = _upsampling_matrix(small_height, 4 * small_height, height, stride).to(coarse)
        columns = _upsampling_matrix(small_width, 4 * small_width, width, stride).to(coarse)
        return rows @ coarse @ columns.T

    def forward(self, image: Tensor) -> Tensor:
        """Logits of every pixel: [B, 3, H, W] uint8 -> [B, C, H, W]."""
        return self.decode(self.encode(image), image.shape[-2], image.shape[-1])

    def logits(self, image: Tensor, index: Tensor, flipped: Tensor | None = None, stride: int = 1) -> Tensor:
        """As :meth:`forward`, at a stride, with cached features where they are kept.

        Args:
            image: [B, 3, H, W] uint8.
            index: [B] positions in the data set, by which features are kept.
            flipped: [B] bool; None when no image is mirrored.
            stride: See :meth:`decode`.
        """
        features = self.encoded(image, index, flipped)
        return self.decode(features, image.shape[-2], image.shape[-1], stride)

    def encoded(self, image: Tensor, index: Tensor, flipped: Tensor | None = None) -> list[Tensor]:
        """As :meth:`encode`, with cached features where they are kept."""
        return self.encode(image) if self.features is None else self.features(self, image, index, flipped)

    # -- Lightning -------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Take class weights and the number of images from the data."""
        data = SegmentationData.of(self)
        if stage == "fit" and self.class_weights == "inverse_sqrt":
            self.class_weight.copy_(inverse_sqrt_weights(data.fit_class_frequencies()))
        self.prepare(data)

    def prepare(self, data: SegmentationData) -> None:
        """Make room for cached features, where they are wanted."""
        if self.cache_features and self.features is None:
            if data.augmentation.crop is not None:
                raise ConfigError("model.cache_features needs whole images: set data.crop to null")
            self.features = FeatureCache(len(data.dataset), self._feature_cache_bytes)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the labelled pixels of a batch."""
        stride = self.label_stride
        logits = self.logits(batch.image, batch.image_index, batch.flipped, stride)
        return masked_cross_entropy(logits, batch.mask[..., ::stride, ::stride], self.class_weight)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of one batch."""
        loss = self.loss(batch)
        self.log("segmenter/loss", loss, prog_bar=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count hits and misses on the reward set."""
        stride = self.label_stride
        logits = self.logits(batch.image, batch.image_index, stride=stride)
        self.reward_iou.update(predicted_classes(logits), batch.mask[..., ::stride, ::stride].long())

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

    # -- checkpoints -----------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say in the file what it fits and what it has seen, in plain values."""
        checkpoint["ralseg"] = {"version": __version__, "segmenter": self.architecture}
        names = self._whole_images()
        if names is not None:
            checkpoint["ralseg"]["trained_on"] = names

    def _whole_images(self) -> list[str] | None:
        """The images of this training; None if it is on regions of them, or on data that are not ralseg's."""
        data = SegmentationData.of(self)
        return data.fit_names() if isinstance(data, SegmentationData) and data.step_loader is None else None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint that does not fit, and to go on with one of a training on other images."""
        self.check_fits(checkpoint)
        trained_on = checkpoint["ralseg"].get("trained_on")
        is_fitting = self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING
        if is_fitting and trained_on is not None and trained_on != self._whole_images():
            raise ConfigError(
                "the checkpoint is of a training on other images; go on with the data.dataset, data.splits, "
                "data.fit_on, data.fit_images and seed_everything of its run's config.yaml, or start anew in another "
                "trainer.default_root_dir"
            )

    def check_fits(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another architecture, saying what differs."""
        saved = checkpoint.get("ralseg", {}).get("segmenter")
        if not isinstance(saved, dict):
            raise ConfigError("this file is not a ralseg segmenter checkpoint (`ralseg pretrain` writes those)")
        differing = [
            f"{key}: {saved.get(key)!r} in the checkpoint, {value!r} here"
            for key, value in self.architecture.items()
            if saved.get(key) != value
        ]
        if differing:
            raise ConfigError("the checkpoint does not fit this model: " + "; ".join(differing))

    def twin(self, optimizer: OptimizerCallable, scheduler: LRSchedulerCallable | None) -> "FPNSegmenter":
        """A copy that trains by itself, with the same weights and class weights; cached features are shared."""
        features, self.features = self.features, None
        twin = copy.deepcopy(self)
        self.features = twin.features = features
        twin._optimizer, twin._scheduler, twin.has_scheduler = optimizer, scheduler, scheduler is not None
        return twin

    def _has_encoder_of(self, state: dict[str, Tensor]) -> bool:
        own = self.net.encoder.state_dict(prefix="net.encoder.")
        return all(key in state and torch.equal(tensor.cpu(), state[key].cpu()) for key, tensor in own.items())

    def load_weights(self, checkpoint: dict[str, Any]) -> None:
        """Take the weights of a ``ralseg pretrain`` checkpoint, if they fit."""
        self.check_fits(checkpoint)
        self.restore(checkpoint["state_dict"])

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take weights; features of another encoder are forgotten."""
        if self.features is not None and not self._has_encoder_of(state):
            self.features.clear()
        self.load_state_dict(state)


class FeatureCache:
    """Features of a frozen encoder, kept for each image and for its mirror image.

    Args:
        num_images: Number of images in the data set.
        ram_bytes: How much is kept in RAM; the rest goes to disk.
    """

    def __init__(self, num_images: int, ram_bytes: int) -> None:
        self._num_images, self._ram_bytes = num_images, ram_bytes
        self._cache: TensorCache | None = None
        self._shapes: list[torch.Size] = []

    def clear(self) -> None:
        """Forget everything: the encoder has changed."""
        self._cache = None

    def __call__(self, segmenter: FPNSegmenter, image: Tensor, index: Tensor, flipped: Tensor | None) -> list[Tensor]:
        """Features of a batch; those not kept yet are computed and kept.

        One image at a time: in a batch, rounding would depend on the company an image happens to be in,
        and a resumed run, which fills its cache in another order, would no longer be bit-identical.
        """
        keys = (index * 2 + (0 if flipped is None else flipped)).tolist()
        for position, key in enumerate(keys):
            if self._cache is None or key not in self._cache:
                with torch.no_grad():
                    self._keep(key, segmenter.encode(image[position : position + 1]))
        assert self._cache is not None
        flat = self._cache.stack(keys).to(image.device, non_blocking=True)
        parts = flat.split([shape.numel() for shape in self._shapes], dim=1)
        return [part.view(len(keys), *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _keep(self, key: int, features: list[Tensor]) -> None:
        if self._cache is None:
            self._shapes = [feature.shape[1:] for feature in features]
            size = sum(shape.numel() for shape in self._shapes)
            self._cache = TensorCache(None, 2 * self._num_images, (size,), features[0].dtype, self._ram_bytes)
        self._cache.put(key, torch.cat([feature.flatten() for feature in features]))
