"""The root LightningModules of `fit` and `acquire`: they train by hand, in the order that the loop dictates."""

import time
from typing import Any, NamedTuple, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor

from ralseg import __version__
from ralseg.agents.base import Agent
from ralseg.data.datamodule import SegmentationData
from ralseg.data.samples import Batch
from ralseg.engine.short_training import ConvergedWeights, ShortTraining
from ralseg.errors import ConfigError
from ralseg.models.segmenter import Segmenter
from ralseg.runtime import distributed
from ralseg.runtime.checkpoints import differences

GRADIENT_CLIP = 4.0
"""Largest norm of the segmenter's gradient (paper)."""
SEGMENTER, POLICY = "segmenter.", "agent.policy."
"""What the names of the segmenter's and of the policy's weights begin with in checkpoints."""


class Trained(NamedTuple):
    """What steps 5 and 6 gave."""

    loss: float
    miou: float
    training_seconds: float
    scoring_seconds: float


class LabellingModule(pl.LightningModule):
    """Root module of `ralseg acquire`: steps 5 and 6 of the paper.

    Args:
        segmenter: The network that learns to segment.
        gradient_clip: Largest norm of the segmenter's gradient; 0 for none.
    """

    has_agent = False

    def __init__(self, segmenter: Segmenter, gradient_clip: float = GRADIENT_CLIP) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.segmenter = segmenter
        self.gradient_clip = gradient_clip
        self.average = WeightAverage(segmenter, share=1.0)
        self.converged = ConvergedWeights(segmenter, ShortTraining())
        self.built_weights: dict[str, Tensor] = {}
        self._loss = self._miou = self._started = self._scoring_seconds = 0.0

    def setup(self, stage: str) -> None:
        """Fit the segmenter to the data."""
        data = SegmentationData.of(self)
        self.check_options(data)
        self.segmenter.get_to_know(data)
        self.segmenter.prepare(data)
        # before a checkpoint is restored: theta_0 of games that are given no other
        built = {key: tensor.clone() for key, tensor in self.segmenter.state_dict().items()}
        self.built_weights = distributed.from_first(lambda: built)

    def check_options(self, data: SegmentationData) -> None:
        """Refuse what the game would silently ignore."""
        if self.segmenter.has_scheduler:
            raise ConfigError(
                "model.scheduler: the game has no learning-rate schedule; leave it out, or move it to the section "
                "pretrain of the configuration"
            )
        if self.segmenter.class_weights != "none":
            raise ConfigError(
                "model.class_weights: in the game class weights come with theta_0 (initial_weights), "
                "as `ralseg pretrain` made them; leave class_weights at none, or move it to the section pretrain"
            )

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """The segmenter's optimizer, in a list."""
        return [self.segmenter.configure_optimizers()]

    @property
    def segmenter_optimizer(self) -> LightningOptimizer:
        """The first optimizer."""
        optimizers = self.optimizers()
        return optimizers[0] if isinstance(optimizers, list) else optimizers

    def reset_training(self) -> None:
        """Forget momentum and averages: an episode begins."""
        self.segmenter_optimizer.optimizer.state.clear()
        self.average.reset()

    # -- step 5: train the segmenter on the regions just labelled ---------------------------------

    def begin_step(self) -> None:
        """Start to measure what :meth:`trained` gives."""
        self._started, self._scoring_seconds, self._miou = time.perf_counter(), 0.0, 0.0

    def trained(self) -> Trained:
        """What training and scoring since :meth:`begin_step` gave."""
        spent = time.perf_counter() - self._started
        return Trained(self._loss, self._miou, spent - self._scoring_seconds, self._scoring_seconds)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One training iteration of the segmenter on (a batch of) the regions just labelled."""
        optimizer = self.segmenter_optimizer
        optimizer.zero_grad()
        loss = self.segmenter.loss(batch)
        self.manual_backward(loss)
        if self.gradient_clip:
            trained = [weight for group in optimizer.param_groups for weight in group["params"]]
            torch.nn.utils.clip_grad_norm_(trained, self.gradient_clip)
        optimizer.step()
        distributed.share(self.segmenter.statistics())  # Lightning leaves that out where one optimises by hand
        self._loss = float(distributed.mean(loss.detach()))

    # -- step 6: mean IoU on the reward set -------------------------------------------------------

    def on_validation_start(self) -> None:
        """Score the averaged weights, which take in the step just trained, or those of a short training."""
        self._scoring_seconds -= time.perf_counter()
        self.average.swap_in()
        self.converged.swap_in()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count hits and misses."""
        self.segmenter.validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Keep the mean IoU for :meth:`trained`."""
        self._miou = float(self.segmenter.reward_iou.compute())
        self.segmenter.reward_iou.reset()

    def on_validation_end(self) -> None:
        """Go on training the weights themselves."""
        self.converged.swap_out()
        self.average.swap_out()
        self._scoring_seconds += time.perf_counter()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say in the file what segmenter it holds."""
        checkpoint["ralseg"] = {"version": __version__, "segmenter_of_game": self.segmenter.describe()}
        if self.segmenter.canvas is not None:
            checkpoint["ralseg"]["canvas"] = self.segmenter.canvas.describe()
        self.segmenter.leave_out_encoder(checkpoint, SEGMENTER)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to go on with a run of another segmenter, before its weights are touched."""
        about = checkpoint.get("ralseg", {})
        if "segmenter_of_game" not in about or ("policy" in about) != self.has_agent:
            command = "fit" if self.has_agent else "acquire"
            raise ConfigError(f"this checkpoint is not of `ralseg {command}`, which can only go on with its own")
        self.segmenter.check_fits({"ralseg": {"segmenter": about["segmenter_of_game"]}})
        weights = self.segmenter.weights_in(checkpoint, SEGMENTER)
        checkpoint["state_dict"] |= {SEGMENTER + name: tensor for name, tensor in weights.items()}


class FitModule(LabellingModule):
    """Root module of `ralseg fit`: segmenter and agent, each with its optimizer.

    ``global_step`` counts the segmenter's steps; the agent's updates are not in it.

    Args:
        segmenter: The network that learns to segment.
        agent: Who learns what to label.
        steps_per_episode: T, for the agent.
        gradient_clip: Largest norm of the segmenter's gradient; 0 for none.
    """

    has_agent = True

    def __init__(
        self, segmenter: Segmenter, agent: Agent, steps_per_episode: int, gradient_clip: float = GRADIENT_CLIP
    ) -> None:
        super().__init__(segmenter, gradient_clip)
        self.agent, self.steps_per_episode = agent, steps_per_episode
        self._trained_by_agent: list[torch.nn.Parameter] = []

    def setup(self, stage: str) -> None:
        """Fit both to the data, once: an actor plays several games with one module."""
        if self.built_weights:
            return
        super().setup(stage)
        data = SegmentationData.of(self)
        self.agent.build(data.class_names, len(data.regions("state_set")), self.steps_per_episode, data.seed)
        # every process trains its own copy on the same replay: gradients that wait for no other process
        self._trained_by_agent = [weight for weight in self.agent.parameters() if weight.requires_grad]
        for weight in self._trained_by_agent:
            weight.requires_grad_(False)

    def check_options(self, data: SegmentationData) -> None:
        """Refuse what the game would silently ignore."""
        super().check_options(data)
        if self.agent.needs.state and not data.splits.state_set:
            raise ConfigError("the state_set is empty; set data.splits.state, or use_state: false in agent")

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """One optimizer each. By now processes share the segmenter's gradients, and not the agent's."""
        for weight in self._trained_by_agent:
            weight.requires_grad_(True)
        optimizer: Any = self.agent.configure_optimizers()
        return [self.segmenter.configure_optimizers(), optimizer]

    @property
    def agent_optimizer(self) -> torch.optim.Optimizer:
        """The second optimizer itself: Lightning would count its steps as the segmenter's."""
        return cast(list[LightningOptimizer], self.optimizers())[1].optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say in the file what segmenter and policy it holds."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["ralseg"] |= {"policy": self.agent.policy.description(), "policy_prefix": POLICY}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to go on with a run of another segmenter, or of an agent whose policy is another."""
        super().on_load_checkpoint(checkpoint)
        differing = differences(checkpoint["ralseg"]["policy"], self.agent.policy.description())
        if differing:
            raise ConfigError(
                "the checkpoint is of an agent with another policy: "
                + "; ".join(differing)
                + "; go on with the agent in "
                "the run's config.yaml, or start anew in another trainer.default_root_dir"
            )


class WeightAverage:
    """An exponential moving average of the segmenter's weights, swapped in for scoring.

    Args:
        segmenter: Whose weights.
        share: Share of the new weights at each score; 1 means no averaging.
    """

    def __init__(self, segmenter: Segmenter, share: float) -> None:
        self._segmenter, self.share = segmenter, share
        self._average: list[Tensor] = []
        self._live: list[Tensor] = []

    def reset(self) -> None:
        """Start from the present weights."""
        self._average = [w.clone() for w in self._segmenter.trained_tensors()] if self.share < 1 else []

    @torch.no_grad()
    def swap_in(self) -> None:
        """Take in the present weights and put their average into the network."""
        if not self._average:
            return
        weights = self._segmenter.trained_tensors()
        self._live = [weight.clone() for weight in weights]
        for average, weight in zip(self._average, weights, strict=True):
            average.lerp_(weight, self.share)
            weight.copy_(average)

    @torch.no_grad()
    def swap_out(self) -> None:
        """Put the weights back."""
        if not self._live:
            return
        for weight, live in zip(self._segmenter.trained_tensors(), self._live, strict=True):
            weight.copy_(live)
        self._live = []

    def state_dict(self) -> list[Tensor]:
        """The averages."""
        return [average.clone() for average in self._average]

    def load_state_dict(self, state: list[Tensor]) -> None:
        """Return to saved averages."""
        device = self._segmenter.device
        self._average = [tensor.clone().to(device) for tensor in state]
