"""The segmenter as a player: trained by hand, in the order that the loop dictates."""

import time
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from ralseg import __version__, ranks
from ralseg.data.module import SegmentationData
from ralseg.data.samples import Batch
from ralseg.errors import ConfigError
from ralseg.segmenter import FPNSegmenter


class SegmenterPlayer(pl.LightningModule):
    """Root module of `ralseg acquire`: steps 5 and 6 of the game. Only the root logs.

    Args:
        segmenter: The network that learns to segment.
        gradient_clip: Largest norm of the segmenter's gradient (paper: 4); 0 for none.
    """

    def __init__(self, segmenter: FPNSegmenter, gradient_clip: float = 4.0) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.segmenter = segmenter
        self.gradient_clip = gradient_clip
        self.average = WeightAverage(segmenter, share=1.0)
        self.miou = 0.0
        self.scoring_seconds = 0.0
        self.loss = 0.0
        self.step_number = 0
        self.step_metrics: dict[str, float] = {}
        self.round_metrics: dict[str, float] = {}

    def setup(self, stage: str) -> None:
        """Fit the segmenter to the data."""
        data = SegmentationData.of(self)
        self.check_options(data)
        self.segmenter.prepare(data)
        # before a checkpoint is restored: theta_0 of games that are given no other
        built = {key: tensor.clone() for key, tensor in self.segmenter.state_dict().items()}
        self.built_weights = ranks.from_first(lambda: built)

    def check_options(self, data: SegmentationData) -> None:
        """Refuse what the game would silently ignore."""
        if self.segmenter.has_scheduler:
            raise ConfigError("model.segmenter: the game has no learning-rate schedule; leave scheduler out")
        if self.segmenter.class_weights != "none":
            raise ConfigError(
                "model.segmenter: in the game class weights come with theta_0 (initial_weights), "
                "as `ralseg pretrain` made them; leave class_weights at none"
            )

    def configure_optimizers(self) -> Any:
        """The segmenter's optimizer, in a list."""
        return [self.segmenter.configure_optimizers()]

    @property
    def segmenter_optimizer(self) -> LightningOptimizer:
        """The first optimizer."""
        optimizers = self.optimizers()
        return optimizers[0] if isinstance(optimizers, list) else optimizers

    # -- step 5: train the segmenter on the regions just labelled --------------------------------

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One training iteration of the segmenter on (a batch of) the regions just labelled."""
        optimizer = self.segmenter_optimizer
        optimizer.zero_grad()
        loss = self.segmenter.loss(batch)
        self.manual_backward(loss)
        if self.gradient_clip:
            torch.nn.utils.clip_grad_norm_(self.segmenter.parameters(), self.gradient_clip)
        optimizer.step()
        if not self.segmenter.freeze_encoder:
            ranks.share(self.segmenter.net.buffers())  # Lightning leaves that out where one optimises by hand
        self.loss = float(ranks.mean(loss.detach()))

    def on_validation_start(self) -> None:
        """Score the averaged weights; they take in the step just trained."""
        self.scoring_seconds -= time.perf_counter()
        self.average.swap_in()

    # -- step 6: mean IoU on the reward set ------------------------------------------------------

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count hits and misses."""
        self.segmenter.validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Keep the mean IoU; the loop reads it."""
        self.miou = float(self.segmenter.reward_iou.compute())
        self.segmenter.reward_iou.reset()

    def on_validation_end(self) -> None:
        """Go on training the weights themselves."""
        self.average.swap_out()
        self.scoring_seconds += time.perf_counter()

    def on_train_epoch_end(self) -> None:
        """Give what the loop has left here to the loggers; results of a round of validation to callbacks too.

        ``self.log`` costs as much for each figure as a step's features do: it is kept for what callbacks may monitor.
        """
        for logger in self.loggers:
            logger.log_metrics(self.step_metrics, self.step_number)
        for name, value in self.round_metrics.items():
            self.log(name, value, logger=False)
        self.step_metrics, self.round_metrics = {}, {}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say in the file what segmenter it holds."""
        checkpoint["ralseg"] = {"version": __version__, "segmenter_of_game": self.segmenter.architecture}


class WeightAverage:
    """An exponential moving average of the segmenter's weights, swapped in for scoring.

    Args:
        segmenter: Whose weights.
        share: Share of the new weights at each score; 1 means no averaging.
    """

    def __init__(self, segmenter: FPNSegmenter, share: float) -> None:
        self._segmenter, self.share = segmenter, share
        self._average: list[Tensor] = []
        self._live: list[Tensor] = []

    def _weights(self) -> list[Tensor]:
        """What training changes: parameters, and the statistics of an encoder that trains."""
        net = self._segmenter.net
        modules = [net.decoder, net.segmentation_head]
        if not self._segmenter.freeze_encoder:
            modules.append(net.encoder)
        return [t for m in modules for t in m.state_dict(keep_vars=False).values() if t.is_floating_point()]

    def reset(self) -> None:
        """Start from the present weights."""
        self._average = [weight.clone() for weight in self._weights()] if self.share < 1 else []

    @torch.no_grad()
    def swap_in(self) -> None:
        """Take in the present weights and put their average into the network."""
        if not self._average:
            return
        weights = self._weights()
        self._live = [weight.clone() for weight in weights]
        for average, weight in zip(self._average, weights, strict=True):
            average.lerp_(weight, self.share)
            weight.copy_(average)

    @torch.no_grad()
    def swap_out(self) -> None:
        """Put the weights back."""
        for weight, live in zip(self._weights(), self._live, strict=False):
            weight.copy_(live)
        self._live = []

    def state_dict(self) -> list[Tensor]:
        """The averages."""
        return [average.clone() for average in self._average]

    def load_state_dict(self, state: list[Tensor]) -> None:
        """Return to saved averages."""
        device = self._segmenter.device
        self._average = [tensor.clone().to(device) for tensor in state]
