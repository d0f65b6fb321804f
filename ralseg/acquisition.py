"""Spending a budget on the acquisition set: `ralseg acquire`, up to the final training."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ralseg.data.module import SegmentationData
from ralseg.errors import ConfigError, PoolExhausted
from ralseg.files import file_hash
from ralseg.labelling import Labelling
from ralseg.oracle import Oracle
from ralseg.people import PeopleOracle
from ralseg.player import SegmenterPlayer
from ralseg.policies import Needs, Policy

SET = "acquisition_set"


@dataclass(frozen=True)
class AcquisitionConfig:
    """How the budget is spent. Defaults are the paper's for CamVid.

    Args:
        budgets: Numbers of labelled regions at which a segmenter is trained to convergence and tested. The
            acquisition goes on to the largest one.
        regions_per_step: K, regions labelled at a step.
        candidates: ``pools``: the best of each of K pools of N regions. ``global``: the best K of all
            unlabelled regions, which are all looked at in each step.
        pool_size: N, regions in a pool (paper: 10 for all methods but uniform).
        initial_weights: theta_0, a checkpoint of ``ralseg pretrain``. None: the segmenter as it is built.
        score_steps: Also measure the mean IoU on the reward set after every step, for curves. Costs a pass
            over the reward set a step; the choice of regions never depends on it.
    """

    budgets: list[int] = field(default_factory=lambda: [480])
    regions_per_step: int = 24
    candidates: Literal["pools", "global"] = "pools"
    pool_size: int = 10
    initial_weights: str | None = None
    score_steps: bool = False

    def __post_init__(self) -> None:
        for key in ("regions_per_step", "pool_size"):
            if getattr(self, key) < 1:
                raise ConfigError(f"trainer.acquisition.{key}={getattr(self, key)} must be at least 1")
        budgets = self.budgets
        if not budgets or budgets != sorted(set(budgets)) or budgets[0] < 1:
            raise ConfigError(f"trainer.acquisition.budgets={budgets} must be ascending numbers from 1, each once")

    def step_sizes(self) -> list[int]:
        """Regions labelled at each step. Steps before a budget may be short, so that it is met exactly."""
        sizes, labelled = [], 0
        for budget in self.budgets:
            while labelled < budget:
                sizes.append(min(self.regions_per_step, budget - labelled))
                labelled += sizes[-1]
        return sizes


class Acquisition(Labelling):
    """A policy at work on the acquisition set.

    Args:
        config: How the budget is spent.
        data: The data.
        player: The segmenter that learns from the labels as they come.
        oracle: Who labels.
        policy: Who chooses.
        policy_identity: What tells this policy from others; a run goes on only with the same one.
    """

    def __init__(
        self,
        config: AcquisitionConfig,
        data: SegmentationData,
        player: SegmenterPlayer,
        oracle: Oracle,
        policy: Policy,
        policy_identity: str = "",
    ) -> None:
        super().__init__(data, SET, player, oracle)
        self.config, self.policy, self.policy_identity = config, policy, policy_identity
        self.sizes = config.step_sizes()
        self.values: list[float] = []  # score of each labelled region
        self.predicted: list[Tensor] = []  # [C] predicted class shares of each labelled region, when it was chosen
        available = self.ledger.num_regions
        if config.budgets[-1] > available:
            raise PoolExhausted(
                f"trainer.acquisition.budgets: {config.budgets[-1]} exceeds the {available} regions of the {SET} "
                f"({len(data.splits[SET])} images of {data.grid.cells}); lower it"
            )

    @property
    def weights_name(self) -> str:
        """The file of theta_0."""
        return self.config.initial_weights or ""

    @property
    def is_over(self) -> bool:
        """Whether the largest budget is spent."""
        return len(self.ledger) >= self.config.budgets[-1]

    def axis(self, epoch: int) -> int:
        """Labelled regions: charts become budget curves."""
        return len(self.ledger)

    def observe(self) -> None:
        """Steps 1 and 2: draw the candidates and look at them."""
        count = self.sizes[self.step]
        if self.config.candidates == "global":
            self.observation = self.look_at(self.ledger.unlabelled[None], self.policy.needs, picks=count)
        else:
            pools = self.ledger.draw_pools(count, self.config.pool_size, self.stream("pools"))
            self.observation = self.look_at(pools, self.policy.needs)

    def choose(self) -> Tensor:
        """Step 3: the best of each pool: [K, picks]."""
        assert self.observation is not None
        with self.timed("query"):
            self.action_values = self.score(self.policy)
            return self._as_asked(self.action_values.topk(self.observation.picks, 1).indices)

    def reveal(self, decision: tuple[Tensor, Tensor]) -> None:
        """Step 4: the oracle labels the regions."""
        seen = self.observation
        assert seen is not None
        picked, self.action_values = decision
        regions = seen.pools.gather(1, picked)
        if self.policy.needs.looks:
            histogram = seen.histogram[torch.arange(len(picked))[:, None], picked]
        else:
            histogram = self.look_at(regions, Needs()).histogram
        self.have_labelled(regions.flatten())
        self.values += self.action_values.gather(1, picked).flatten().tolist()
        self.predicted += list(histogram.flatten(0, 1).half())

    def _as_asked(self, picked: Tensor) -> Tensor:
        """What people have been asked to label at this step already, if anything: rounding may rank a tie anew."""
        assert self.observation is not None
        pools = self.observation.pools
        asked: list[int] = self.oracle.asked() if isinstance(self.oracle, PeopleOracle) else []
        is_asked = torch.isin(pools, torch.tensor(asked, dtype=pools.dtype))
        if len(asked) != picked.numel() or not (is_asked.sum(1) == picked.shape[1]).all():
            return picked
        return is_asked.int().topk(picked.shape[1], 1).indices

    def receive(self, miou: float) -> None:
        """Step 6, where it is wished: note the mean IoU."""
        super().receive(miou if self.config.score_steps else 0.0)

    def learn(self) -> None:
        """A policy at work learns nothing."""

    # -- what is told of it ----------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """The figures of the step just made."""
        metrics = {
            "acquisition/labelled": float(len(self.ledger)),
            "acquisition/labelled_percent": 100 * len(self.ledger) / self.ledger.num_regions,
            "acquisition/score": sum(self.values[-self.sizes[self.step - 1] :]) / self.sizes[self.step - 1],
            "segmenter/loss": self.player.loss,
        }
        if self.config.score_steps:
            metrics["reward_set/miou"] = self.scores[-1]
        return metrics

    def describe(self) -> str:
        """The step just made, in a line."""
        miou = f" mIoU {100 * self.scores[-1]:.2f}" if self.config.score_steps and self.scores else ""
        return f"step {self.step}/{len(self.sizes)} labelled {len(self.ledger)}/{self.config.budgets[-1]}{miou}"

    def summarise(self) -> str:
        """The budget just reached, in a line."""
        return self.describe()

    @property
    def has_news(self) -> bool:
        """Whether one of the budgets has just been reached."""
        return len(self.ledger) in self.config.budgets

    # -- resuming --------------------------------------------------------------------------------

    def _rules(self) -> dict[str, Any]:
        """What may not change when a run goes on; larger budgets may follow."""
        return {
            "regions_per_step": self.config.regions_per_step,
            "candidates": self.config.candidates,
            "pool_size": self.config.pool_size,
            "initial_weights": file_hash(self.weights_name) if self.weights_name else "",
            "seed": self.data.seed,
            "policy": self.policy_identity,
            "grid": [self.data.grid.rows, self.data.grid.columns, self.data.grid.height, self.data.grid.width],
            "steps so far": self.sizes[: self.step],
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as plain values and tensors."""
        return {
            "step": self.step,
            "rules": self._rules(),
            "scores": self.scores,
            "initial_scores": dict(self.initial_scores),
            "seconds": dict(self.seconds),
            "ledger": self.ledger.state_dict(),
            "values": list(self.values),
            "predicted": torch.stack(self.predicted) if self.predicted else torch.empty(0),
            "average": self.player.average.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint left off."""
        self.step = state["step"]
        differing = [name for name, value in self._rules().items() if state["rules"].get(name) != value]
        if differing:
            raise ConfigError(
                "the checkpoint is of an acquisition with other rules: " + ", ".join(differing) + " differ; "
                "go on with the configuration in the run's folder, or start anew"
            )
        self.scores, self.initial_scores, self.seconds = state["scores"], state["initial_scores"], state["seconds"]
        self._load_ledger(state["ledger"])
        self.values, self.predicted = state["values"], list(state["predicted"])
        self.player.average.load_state_dict(state["average"])
