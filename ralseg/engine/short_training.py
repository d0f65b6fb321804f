"""The short training: a segmenter that learns by gradients is paid for what it could become, not for one iteration."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ralseg.data.samples import Batch
from ralseg.errors import ConfigError
from ralseg.models.segmenter import Segmenter


@dataclass(frozen=True)
class ShortTraining:
    """How a step is scored: after so many iterations from theta_0 on everything labelled so far.

    Each step costs so many iterations more (docs/fit.md says how much). A closed-form segmenter is converged anyway.

    Args:
        iterations: Training iterations before each score; 0 scores the segmenter as it is (paper).
        learning_rate: Of AdamW, which starts anew for each score.

    Examples:
        >>> ShortTraining(iterations=30).iterations
        30
    """

    iterations: int = 0
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        if self.iterations < 0 or self.learning_rate <= 0:
            raise ConfigError(
                f"trainer.game.short_training.iterations={self.iterations} must be 0 or more, and learning_rate="
                f"{self.learning_rate} above 0"
            )


class ConvergedWeights:
    """Weights from a short training, put into the network while it is scored.

    Args:
        segmenter: Whose weights.
        config: How to train.
    """

    def __init__(self, segmenter: Segmenter, config: ShortTraining) -> None:
        self._segmenter, self.config = segmenter, config
        self._theta_0: dict[str, Tensor] = {}
        self._live: dict[str, Tensor] = {}
        self._batches: Iterable[Batch] = ()

    def show(self, theta_0: dict[str, Tensor], batches: Iterable[Batch]) -> None:
        """Train from theta_0 on these batches before the next score; no batches: score the weights themselves."""
        self._theta_0, self._batches = theta_0, batches

    def swap_in(self) -> None:
        """Train from theta_0; the weights themselves wait."""
        if not self.config.iterations or not self._batches:
            return
        segmenter = self._segmenter
        self._live = {key: tensor.clone() for key, tensor in segmenter.state_dict().items()}
        segmenter.restore(self._theta_0)
        was_training = segmenter.training
        segmenter.train()
        trained = [weight for weight in segmenter.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.config.learning_rate)
        with torch.enable_grad():  # Lightning scores without gradients
            for batch in self._batches:
                moved = Batch(*(part.to(segmenter.device) for part in batch))
                optimizer.zero_grad()
                segmenter.loss(moved).backward()
                optimizer.step()
        segmenter.train(was_training)

    def swap_out(self) -> None:
        """Put the weights back."""
        if self._live:
            self._segmenter.restore(self._live)
            self._live = {}
