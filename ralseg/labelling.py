"""Regions of a set being labelled step by step: what both the game and `ralseg acquire` do."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ralseg import ranks
from ralseg.checkpoints import read_checkpoint
from ralseg.data.module import SegmentationData
from ralseg.errors import NotFiniteError, RalsegError
from ralseg.features import class_histogram
from ralseg.influence import reward_direction
from ralseg.ledger import RegionLedger
from ralseg.measures import NEED_DIRECTION, Hints
from ralseg.oracle import Oracle, RevealedLabels
from ralseg.player import SegmenterPlayer
from ralseg.policies import Needs, Policy
from ralseg.randomness import stream, stream_seed
from ralseg.representation import Observation, look, look_at_regions


class Labelling(ABC):
    """Looks at candidates, has regions labelled, and keeps count. The loop says when, this class says what.

    Every random draw is a function of the run's seed, its name, and where the labelling stands.

    Args:
        data: The data.
        set_name: The set whose regions are labelled.
        player: The root module, with the network that looks and learns.
        oracle: Who labels.
    """

    def __init__(self, data: SegmentationData, set_name: str, player: SegmenterPlayer, oracle: Oracle) -> None:
        self.data, self.set_name, self.player, self.oracle = data, set_name, player, oracle
        self.segmenter = player.segmenter
        self.step = 0
        self.scores: list[float] = []
        self.action_values = torch.empty(0)
        self.initial_scores: dict[str, float] = {}
        self.observation: Observation | None = None
        self.hide_labels()

    # -- what the loop calls ---------------------------------------------------------------------

    @property
    @abstractmethod
    def weights_name(self) -> str:
        """The file of theta_0; empty for the segmenter as it was built."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the budget is spent."""

    @abstractmethod
    def observe(self) -> None:
        """Steps 1 and 2: draw candidates and look at them."""

    @abstractmethod
    def choose(self) -> Tensor:
        """Step 3: positions in the pools."""

    def decide(self) -> tuple[Tensor, Tensor]:
        """Step 3, made by one process for all: positions in the pools, and the scores that they follow from."""
        picked = self.choose()
        return picked, self.action_values

    @abstractmethod
    def reveal(self, decision: tuple[Tensor, Tensor]) -> None:
        """Step 4: have the picked regions labelled."""

    @abstractmethod
    def learn(self) -> None:
        """Step 7, for those who learn."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """The figures of the step just played."""

    @abstractmethod
    def describe(self) -> str:
        """The step just played, in a line."""

    @abstractmethod
    def summarise(self) -> str:
        """What has just ended, in a line."""

    @property
    @abstractmethod
    def has_news(self) -> bool:
        """Whether there is something to summarise."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as plain values and tensors."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint left off."""

    def where(self) -> str:
        """Where the labelling stands, for error messages."""
        return f"step {self.step}"

    def context(self) -> dict[str, Any]:
        """What is known of this step, for a run that fails in it."""
        return {
            "where": self.where(),
            "theta_0": self.weights_name,
            "loss": self.player.loss,
            "miou_by_step": list(self.scores),
            "labelled": self.ledger.labelled.tolist(),
            "labelled_at_step": self.ledger.steps.tolist(),
        }

    def axis(self, epoch: int) -> int:
        """Where the step stands on the x axis of charts."""
        return epoch

    def start_episode(self) -> None:
        """Return to theta_0 with a fresh optimizer, and hide all labels."""
        if self.weights_name:
            self.segmenter.load_weights(read_checkpoint(Path(self.weights_name)))
        else:
            self.segmenter.restore(self.player.built_weights)
        self.player.segmenter_optimizer.optimizer.state.clear()
        self.player.average.reset()
        self.hide_labels()
        self.step, self.scores = 0, []

    def receive(self, miou: float) -> None:
        """Step 6: note the mean IoU."""
        if not (math.isfinite(miou) and math.isfinite(self.player.loss)):
            message = f"loss {self.player.loss} or mIoU {miou} is not finite ({self.where()})"
            raise NotFiniteError(message, self.context() | {"miou": miou})
        self.scores.append(miou)
        self.step += 1

    # -- what they share -------------------------------------------------------------------------

    def hide_labels(self) -> None:
        """Forget all labels."""
        grid = self.data.grid
        self.ledger = RegionLedger(len(self.data.splits[self.set_name]) * grid.cells)
        self.labels = RevealedLabels(grid)
        self._histograms = torch.zeros(0, len(self.data.class_names))
        self.seconds: dict[str, float] = {}

    def counters(self) -> tuple[str, int, int]:
        """What the draws of this step are numbered by: a name, the number of the game, the step."""
        return self.set_name, 0, self.step

    def stream(self, name: str) -> torch.Generator:
        """The generator of a named draw at this step."""
        kind, *numbers = self.counters()
        return stream(self.data.seed, f"{kind} {name}", *numbers)

    def stream_seed(self, name: str) -> int:
        """The seed of :meth:`stream`."""
        kind, *numbers = self.counters()
        return stream_seed(self.data.seed, f"{kind} {name}", *numbers)

    def look_at(self, pools: Tensor, needs: Needs, picks: int = 1, labels: Tensor | None = None) -> Observation:
        """Steps 1 and 2: look at the state set and at the candidates, each image once.

        Args:
            pools: [K, N] candidates.
            needs: What the policy asks for.
            picks: Regions that will be taken from each pool.
            labels: [K * N, height, width] of the candidates, for measures that teach.
        """
        labelled = self.labelled_histograms()
        if not needs.looks:
            return Observation.unseen(pools, picks, labelled)
        data, kind = self.data, needs.representation
        with self.timed("state"):
            state = self._look_at_state_set(needs)
        direction = None
        if NEED_DIRECTION & set(needs.measures):
            with self.timed("reward direction"):
                direction = reward_direction(self.segmenter, data)
        with self.timed("candidates"):
            found = look_at_regions(
                self.segmenter, data.images, data.splits[self.set_name], data.grid, kind.pooling if kind else None,
                pools.flatten(), data.eval_batch_size, needs.measures, self.stream_seed("measures"),
                Hints(direction, labels, labelled),
            )  # fmt: skip
            known = self._look_at_labelled(needs)
        with self.timed("features"):
            actions = kind.actions(found, labelled, pools.shape) if kind else torch.empty(*pools.shape, 0)
            return Observation(
                state,
                pools,
                actions,
                found.mean_entropy().reshape(pools.shape),
                found.histogram.reshape(*pools.shape, -1),
                picks,
                {name: values.unflatten(0, pools.shape) for name, values in found.measures.items()},
                labelled,
                known,
            )

    def _look_at_state_set(self, needs: Needs) -> Tensor:
        """Step 1: [R_S, F]; nothing is computed or kept for a policy without a state path."""
        if not needs.state or needs.representation is None:
            return torch.empty(0, 0)
        data, pooling = self.data, needs.representation.pooling
        images = data.splits.state_set
        return look(self.segmenter, data.images, images, data.grid, pooling, batch_size=data.eval_batch_size).vector()

    def _look_at_labelled(self, needs: Needs) -> dict[str, Tensor]:
        if not needs.labelled_measures or not len(self.ledger):
            return {}
        data = self.data
        found = look_at_regions(
            self.segmenter, data.images, data.splits[self.set_name], data.grid, None, self.ledger.labelled,
            data.eval_batch_size, needs.labelled_measures, self.stream_seed("measures of labelled"),
        )  # fmt: skip
        return found.measures

    def labelled_histograms(self) -> Tensor:
        """Ground-truth class histograms of the labelled regions, in the ledger's order: [L, C]."""
        return self._histograms

    def _take(self, regions: Tensor, labels: Tensor) -> None:
        """Keep labels, and count their classes once."""
        self.labels.add(regions, labels)
        found = class_histogram(labels, len(self.data.class_names))
        self._histograms = torch.cat([self._histograms, found])

    def _load_ledger(self, state: dict[str, Any]) -> None:
        """Return to a saved ledger. The oracle is asked again for the labels."""
        self.ledger.load_state_dict(state)
        self._take(self.ledger.labelled, self.ask(self.ledger.labelled))

    def score(self, policy: Policy) -> Tensor:
        """What a policy thinks of the candidates: [K, N]."""
        assert self.observation is not None
        scores = policy.scores(self.observation, self.stream("policy"))
        if scores.shape != self.observation.pools.shape:
            raise RalsegError(
                f"{type(policy).__name__}.scores gave the shape {tuple(scores.shape)}, but the candidates have "
                f"{tuple(self.observation.pools.shape)} ({self.where()})"
            )
        if not scores.isfinite().all():
            message = f"the scores of {type(policy).__name__} are not finite ({self.where()})"
            raise NotFiniteError(message, self.context() | {"scores": scores.tolist()})
        return scores

    def have_labelled(self, regions: Tensor) -> None:
        """Step 4: the oracle labels the regions, the sets are updated, and the segmenter is shown them."""
        labels = self.ask(regions)
        self.ledger.add(regions, self.step)
        self._take(regions, labels)
        self.data.show_regions(self.set_name, regions, self.labels, self.stream_seed("augmentation"))
        # dropout, the one draw that no generator can be given to
        torch.manual_seed(ranks.own_seed(self.stream_seed("dropout")))

    def ask(self, regions: Tensor) -> Tensor:
        """The oracle's labels; one process asks for all."""
        return ranks.from_first(lambda: self.oracle.label(regions))

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the seconds spent inside to a part of the labelling."""
        start = time.perf_counter()
        yield
        self.spend(part, time.perf_counter() - start)

    def spend(self, part: str, seconds: float) -> None:
        """Add seconds to a part of the labelling."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds
