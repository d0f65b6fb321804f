"""The root module of `ralseg fit`: both players under one Trainer."""

from typing import Any, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer

from ralseg.data.module import SegmentationData
from ralseg.errors import ConfigError
from ralseg.player import SegmenterPlayer
from ralseg.query import QueryNetwork
from ralseg.segmenter import FPNSegmenter


class Ralis(SegmenterPlayer):
    """Segmenter and query network, trained by hand in the order that the loop dictates.

    ``global_step`` counts the segmenter's steps; the query network's updates are not in it.

    Args:
        segmenter: The network that learns to segment.
        query: The network that learns what to label.
        gradient_clip: Largest norm of the segmenter's gradient (paper: 4); 0 for none.
    """

    def __init__(self, segmenter: FPNSegmenter, query: QueryNetwork, gradient_clip: float = 4.0) -> None:
        super().__init__(segmenter, gradient_clip)
        self.query = query

    def setup(self, stage: str) -> None:
        """Fit both networks to the data."""
        super().setup(stage)
        data = SegmentationData.of(self)
        num_state_regions = len(data.splits.state_set) * data.grid.cells
        self.query.build(data.class_names, num_state_regions, data.seed)
        # every rank trains its own copy on the same replay: gradients that wait for no other rank
        self.query.net.requires_grad_(False)

    def check_options(self, data: SegmentationData) -> None:
        """Refuse what the game would silently ignore."""
        super().check_options(data)
        if self.query.use_state and not data.splits.state_set:
            raise ConfigError("the state_set is empty; set data.splits.state, or use_state: false in model.query")

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """One optimizer each. By now ranks share the segmenter's gradients, and not the query network's."""
        self.query.net.requires_grad_(True)
        return [self.segmenter.configure_optimizers(), self.query.configure_optimizers()]

    @property
    def query_optimizer(self) -> LightningOptimizer:
        """The second optimizer."""
        return cast(list[LightningOptimizer], self.optimizers())[1]

    def update_query(self, batch: Any) -> float:
        """Step 7: one gradient step of the query network; returns its loss."""
        optimizer = self.query_optimizer
        optimizer.zero_grad()
        loss = self.query.batch_loss(batch)
        loss.backward()  # not Lightning's, which would make ranks wait for the segmenter's gradients
        if self.query.gradient_clip:
            torch.nn.utils.clip_grad_norm_(self.query.net.parameters(), self.query.gradient_clip)
        # the optimizer itself: Lightning would count this as a step of the segmenter
        optimizer.optimizer.step()
        return float(loss.detach())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say in the file what segmenter and policy it holds."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["ralseg"]["policy"] = self.query.description()
