"""The session of `ralseg acquire`: a policy spends a budget on the acquisition set."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.pictures import PICTURE, picture
from ralseg.acquisition.policy import Needs, Policy
from ralseg.data.datamodule import SegmentationData
from ralseg.engine.modules import LabellingModule, Trained
from ralseg.engine.reasons import among_candidates, packed
from ralseg.engine.session import Choice, Session, StepResult
from ralseg.errors import ConfigError, PoolExhausted
from ralseg.labels.oracle import Oracle, Ranking
from ralseg.runtime import distributed
from ralseg.runtime.files import file_hash

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

    Examples:
        >>> AcquisitionConfig(budgets=[30, 50], regions_per_step=20).step_sizes()
        [20, 10, 20]
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

    def step_sizes(self, labelled: int = 0) -> list[int]:
        """Regions of each step from here on. Steps before a budget may be short, so that it is met exactly."""
        sizes = []
        for budget in self.budgets:
            while labelled < budget:
                sizes.append(min(self.regions_per_step, budget - labelled))
                labelled += sizes[-1]
        return sizes


class AcquireSession(Session):
    """A policy at work on the acquisition set.

    Args:
        config: How the budget is spent.
        data: The data.
        module: The segmenter that learns from the labels as they come.
        oracle: Who labels.
        policy: Who chooses.
        policy_identity: What tells this policy from others; a run goes on only with the same one.
    """

    def __init__(
        self,
        config: AcquisitionConfig,
        data: SegmentationData,
        module: LabellingModule,
        oracle: Oracle,
        policy: Policy,
        policy_identity: str = "",
    ) -> None:
        super().__init__(data, SET, module, oracle)
        self.config, self.policy, self.policy_identity = config, policy, policy_identity
        self.asked: list[int] = []  # regions that each step asked for; an oracle may leave some out
        self.values: list[float] = []  # score of each labelled region
        self.reasons: dict[str, Any] = {}  # why the last step took its regions, see reasons.py
        self._choice: Choice | None = None  # of this step
        self._pictures: dict[int, Tensor] = {}  # predicted classes of the regions of this step, before it
        self.predicted: list[Tensor] = []  # [C] predicted class shares of each labelled region, when it was chosen
        if config.budgets[-1] > len(self.regions):
            raise PoolExhausted(
                f"trainer.acquisition.budgets: {config.budgets[-1]} exceeds the {len(self.regions)} regions of the "
                f"{len(data.splits[SET])} images of the {SET}; lower it"
            )

    @property
    def weights_name(self) -> str:
        """The file of theta_0."""
        return self.config.initial_weights or ""

    @property
    def steps_left(self) -> int:
        """Steps until the largest budget is spent."""
        return len(self.config.step_sizes(len(self.ledger)))

    @property
    def spent(self) -> float:
        """Share of the largest budget that is spent."""
        return len(self.ledger) / self.config.budgets[-1]

    def candidates(self) -> tuple[Tensor, int, Needs]:
        """K pools of N, of which one each is taken; or all unlabelled regions, of which K are."""
        count = self.config.step_sizes(len(self.ledger))[0]
        needs = replace(self.policy.needs, pictures=self.policy.needs.looks)
        if self.config.candidates == "global":
            return self.ledger.unlabelled[None], count, needs
        return self.ledger.draw_pools(count, self.config.pool_size, self.stream("pools")), 1, needs

    def observe(self) -> Observation:
        """Steps 1 and 2; labels that people have corrected since the last step are known by then."""
        if self._observation is None and self.step:
            self.take_corrections()
        return super().observe()

    def decide(self, observation: Observation) -> Choice:
        """Step 3: the best of each pool, but for what people have put off."""
        values = self.score(self.policy, observation)
        picked = self._liked(observation, values).topk(observation.picks, 1).indices
        return Choice(self._as_asked(observation, picked), values)

    def choose(self, observation: Observation) -> Choice:
        """Step 3: choose regions, and keep in mind what else there was."""
        self._choice = super().choose(observation)
        return self._choice

    def _liked(self, observation: Observation, values: Tensor) -> Tensor:
        """The scores, where what people have put off comes last: [K, N]."""
        put_off = torch.tensor(self.oracle.put_off(), dtype=observation.pools.dtype)
        return values.masked_fill(torch.isin(observation.pools, put_off).to(values.device), -math.inf)

    def _as_asked(self, observation: Observation, picked: Tensor) -> Tensor:
        """What the oracle has been asked for at this step already, if anything: rounding may rank a tie anew."""
        pools, asked = observation.pools, self.oracle.asked(self.step)
        is_asked = torch.isin(pools, torch.tensor(asked, dtype=pools.dtype))
        if len(asked) != picked.numel() or not (is_asked.sum(1) == picked.shape[1]).all():
            return picked
        return is_asked.int().topk(picked.shape[1], 1).indices

    def ranking(self) -> Ranking:
        """What the policy thinks of the candidates of this step, for oracles that tell people."""
        if self._observation is None or self._choice is None:
            return Ranking()
        pools, (picked, values) = self._observation.pools, self._choice
        scores = dict(zip(pools.flatten().tolist(), values.flatten().tolist(), strict=True))
        put_off = set(self.oracle.put_off())
        reserves = next_best(pools, self._liked(self._observation, values), picked)
        return Ranking(scores, [region for region in reserves if region not in put_off])

    def predict(self, image: int) -> NDArray[np.uint8]:
        """What the segmenter takes an image of the set for, in the size of its file: [height, width]."""
        return self.segmenter.predict(self.data.dataset.read_image(self.regions.images.indices[image]))

    def label(self, regions: Tensor) -> Tensor:
        """Step 4: have regions labelled; an oracle may leave some out."""
        labelled = super().label(regions)
        self.asked.append(len(regions))
        return labelled

    def note_answer(self, regions: Tensor) -> None:
        """Note what the segmenter had taken regions for, from what was seen of them, or else by a look at them."""
        seen = self.observe()
        if self.policy.needs.looks:
            place = {region: i for i, region in enumerate(seen.pools.flatten().tolist())}
            at = [place[region] for region in regions.tolist()]
        else:
            seen, at = self.look_at(regions[None], 1, Needs(pictures=True)), list(range(len(regions)))
        self.predicted += [share.half() for share in seen.histogram.flatten(0, 1)[at]]
        pictures = seen.measures[PICTURE].flatten(0, 1)[at]
        self._pictures = dict(zip(regions.tolist(), pictures, strict=True))

    def learn(self, observation: Observation, choice: Choice, trained: Trained) -> StepResult:
        """A policy at work learns nothing; note what the step brought."""
        self.receive(trained, trained.miou if self.config.score_steps else 0.0)
        labelled = len(self.ledger)
        new = self.ledger.labelled[self.ledger.steps == self.step - 1]
        score_of = dict(zip(observation.pools.flatten().tolist(), choice.values.flatten().tolist(), strict=True))
        self.values += [score_of[region] for region in new.tolist()]
        self.reasons = self._reasons(observation, choice.values, new.tolist())
        metrics = {
            "acquisition/labelled": float(labelled),
            "acquisition/labelled_percent": 100 * labelled / self.ledger.num_regions,
            "acquisition/score": sum(self.values[-len(new) :]) / len(new),
            "segmenter/loss": trained.loss,
        }
        if self.config.score_steps:
            metrics["reward_set/miou"] = self.scores[-1]
        miou = f" mIoU {100 * self.scores[-1]:.2f}" if self.config.score_steps else ""
        is_budget = labelled in self.config.budgets
        line = f"step {self.step}/{self.step + self.steps_left} labelled {labelled}/{self.config.budgets[-1]}{miou}"
        # labelled regions on the x axis: charts become budget curves
        return StepResult(SET, labelled, labelled, metrics, line, line if is_budget else None, is_budget=is_budget)

    def _reasons(self, observation: Observation, scores: Tensor, chosen: list[int]) -> dict[str, Any]:
        """Why this step took its regions, what they were taken for, and what their labels say."""
        told = among_candidates(observation, scores, self.policy.reasons(observation), chosen)
        owners = self.regions.image_of(torch.tensor(chosen)).tolist()
        predicted = torch.stack([self._pictures[region] for region in chosen])
        for about, region, image in zip(told["regions"], chosen, owners, strict=True):
            places = zip(self.regions.place_names, self.regions.place(region), strict=True)
            about["image"] = self.data.dataset.names[self.data.splits[SET][image]]
            about["place"] = ", ".join(f"{name} {number}" for name, number in places)
            about["box"] = list(self.regions.file_box(region))
        return {
            "step": self.step - 1,
            "policy": type(self.policy).__name__,
            "classes": list(self.data.class_names),
            "spent": (len(self.ledger) - len(chosen)) / self.config.budgets[-1],
            **told,
            "maps": packed(torch.stack([predicted, self._label_pictures(chosen, owners, max(predicted.shape[1:]))], 1)),
        }

    def _label_pictures(self, regions: list[int], owners: list[int], side: int) -> Tensor:
        """The labels of regions at the pixels at which their predictions are kept: [r, h, w]."""
        of_image: dict[int, list[int]] = {}
        for place, owner in enumerate(owners):
            of_image.setdefault(owner, []).append(place)
        found: dict[int, Tensor] = {}
        groups = list(of_image.values())
        for start in range(0, len(groups), self.data.eval_batch_size):
            batch = groups[start : start + self.data.eval_batch_size]
            masks = torch.stack([self.labels.mask([regions[place] for place in group]) for group in batch])
            rows = torch.tensor([row for row, group in enumerate(batch) for _ in group])
            places = [place for group in batch for place in group]
            wanted = torch.tensor([regions[place] for place in places])
            cut = self.regions.cut(self.segmenter.at_labels(masks), rows, wanted)
            found |= zip(places, picture(cut.values, cut.inside, side), strict=True)
        return torch.stack([found[place] for place in range(len(regions))])

    def cost(self) -> dict[str, Any]:
        """What the labels so far have cost people, as far as the oracle knows."""
        return distributed.from_first(lambda: self.oracle.cost(self.ledger.labelled.tolist()))

    # -- resuming ---------------------------------------------------------------------------------

    def _rules(self) -> dict[str, Any]:
        """What may not change when a run goes on; larger budgets may follow."""
        return {
            "regions_per_step": self.config.regions_per_step,
            "candidates": self.config.candidates,
            "pool_size": self.config.pool_size,
            "initial_weights": file_hash(self.weights_name) if self.weights_name else "",
            "seed": self.data.seed,
            "policy": self.policy_identity,
            "layout": self.regions.description(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as plain values and tensors."""
        return {
            **self.progress_state(),
            "rules": self._rules(),
            "asked": list(self.asked),
            "values": list(self.values),
            "predicted": torch.stack(self.predicted) if self.predicted else torch.empty(0),
        }

    def _sizes_so_far(self, counts: list[int]) -> list[int]:
        """What these rules ask for at each step of a run that had so many regions labelled at each."""
        sizes, labelled = [], 0
        for count in counts:
            sizes += self.config.step_sizes(labelled)[:1]
            labelled += count
        return sizes

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint left off."""
        counts = torch.bincount(state["ledger"]["steps"], minlength=state["step"]).tolist()
        differing = [name for name, value in self._rules().items() if state["rules"].get(name) != value]
        differing += ["steps so far"] if self._sizes_so_far(counts) != state["asked"] else []
        if differing:
            raise ConfigError(
                "the checkpoint is of an acquisition with other rules: " + ", ".join(differing) + " differ; "
                "go on with the configuration in the run's folder, or start anew"
            )
        self.load_progress(state)
        self.asked, self.values, self.predicted = state["asked"], state["values"], list(state["predicted"])


def next_best(pools: Tensor, values: Tensor, picked: Tensor) -> list[int]:
    """Candidates that were not picked: first the next best of each pool, the best of those first; then those after.

    Args:
        pools: [K, N] candidates.
        values: [K, N] their scores.
        picked: [K, P] positions in the pools.

    Examples:
        >>> pools, values = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[9.0, 1.0, 2.0], [7.0, 8.0, 3.0]])
        >>> next_best(pools, values, torch.tensor([[0], [1]]))
        [4, 3, 6, 2]
    """
    taken = set(pools.gather(1, picked).flatten().tolist())
    ranked: list[tuple[int, float, int]] = []
    for row in zip(pools.tolist(), values.tolist(), strict=True):
        left = [(-value, region) for region, value in zip(*row, strict=True) if region not in taken]
        ranked += [(place, *entry) for place, entry in enumerate(sorted(left, key=lambda entry: entry[0]))]
    return [region for *_, region in sorted(ranked, key=lambda entry: entry[:2])]
