"""The session: what a step of labelling does, in `ralseg fit` and in `ralseg acquire` alike."""

import logging
import math
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ralseg.acquisition.candidates import Candidates
from ralseg.acquisition.features import class_histogram
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.pictures import side_for
from ralseg.acquisition.policy import Needs, Policy
from ralseg.acquisition.scanner import Scan, scan
from ralseg.data.datamodule import SegmentationData
from ralseg.engine.modules import LabellingModule, Trained
from ralseg.errors import NotFiniteError, RalsegError
from ralseg.labels.layout import Regions
from ralseg.labels.ledger import RegionLedger
from ralseg.labels.oracle import Answer, LabelsNeeded, Oracle, RevealedLabels
from ralseg.labels.vault import IGNORE
from ralseg.runtime import distributed
from ralseg.runtime.checkpoints import read_checkpoint
from ralseg.runtime.seeding import stream_seed

log = logging.getLogger(__name__)
_KNOWN = ("state_set", "train_set")
"""Sets whose labels a run may know."""


class Choice(NamedTuple):
    """What was chosen at a step."""

    picked: Tensor  # [K, P] positions in the pools
    values: Tensor  # [K, N] the scores that it follows from


@dataclass(frozen=True)
class EndedEpisode:
    """An episode of `ralseg fit` that has just ended."""

    record: dict[str, Any]  # its line in the history
    regions: Tensor  # [B] what it labelled, in order
    steps: Tensor  # [B] at which step
    seconds: dict[str, float]  # spent on each part
    round_metrics: dict[str, float]  # what a round of validation has shown, if one has just ended


@dataclass(frozen=True)
class StepResult:
    """What a step produced. Loggers, progress bars, tables and checkpoints read it; nothing else is told."""

    kind: str  # train, validation, or the set that is acquired from
    axis: int  # its place on the x axis of charts
    labelled: int  # regions labelled so far
    metrics: dict[str, float]
    line: str  # the step in a line
    news: str | None = None  # what has just ended (an episode, a budget), in a line
    episode: EndedEpisode | None = None
    seconds: float = 0.0  # that the whole step took
    is_budget: bool = False  # whether a budget has just been met
    rounds: list[float] = field(default_factory=list)  # area under the curve of each round of validation so far


@dataclass(frozen=True)
class TakenStep:
    """A step that another process has played: all that it needs to be taken for one that was played here."""

    score_before: float  # mean IoU before the step
    observation: Observation
    choice: Choice
    regions: Tensor  # [K] that were labelled
    histograms: Tensor  # [K, C] their class shares
    checksums: list[int]  # of their labels
    trained: Trained
    optimizer_steps: int
    seconds: dict[str, float]  # spent on each part but training and scoring


class Session(ABC):
    """Looks at candidates, has regions labelled, and keeps count. The loop says when, this class says what.

    Every random draw is a function of the run's seed, its name, and where the session stands.

    Args:
        data: The data.
        set_name: The set whose regions are labelled.
        module: The root module, with the segmenter that looks and learns.
        oracle: Who labels.
    """

    def __init__(self, data: SegmentationData, set_name: str, module: LabellingModule, oracle: Oracle) -> None:
        self.data, self.set_name, self.module = data, set_name, module
        self.segmenter = module.segmenter
        self.initial_scores: dict[str, float] = {}  # of theta_0s, by `scored_as`
        self.step = 0
        self.scores: list[
            float
        ] = []  # mean IoU on what pays, the reward set as a rule: of theta_0, and after each step
        self.seconds: dict[str, float] = {}
        self.corrected: list[int] = []  # regions whose labels have changed since they were first given
        self._observation: Observation | None = None
        self._known: tuple[Regions | None, Tensor] | None = None
        self.play_on(data.regions(set_name), oracle)
        self._histograms = torch.zeros(0, len(data.class_names))
        self._checksums: list[int] = []  # of the labels as they were given, to notice corrections

    # -- what the loop asks -----------------------------------------------------------------------

    @property
    @abstractmethod
    def weights_name(self) -> str:
        """The file of theta_0; empty for the segmenter as it was built."""

    @property
    def scored_as(self) -> str:
        """What the score of theta_0 is kept under: all that it depends on."""
        return self.weights_name

    @property
    @abstractmethod
    def steps_left(self) -> int:
        """Steps until the run is over, if every region that is asked for gets labelled."""

    @property
    @abstractmethod
    def spent(self) -> float:
        """Share of the budget that is spent."""

    @abstractmethod
    def candidates(self) -> tuple[Tensor, int, Needs]:
        """The pools [K, N] of this step, how many are taken from each, and what must be seen of them."""

    @abstractmethod
    def decide(self, observation: Observation) -> Choice:
        """Step 3 as one process makes it for all: positions in the pools, and the scores that they follow from."""

    @abstractmethod
    def learn(self, observation: Observation, choice: Choice, trained: Trained) -> StepResult:
        """Step 7: learn from what the step brought, and tell of it."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as plain values and tensors."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a checkpoint left off."""

    @property
    def is_played_elsewhere(self) -> bool:
        """Whether another process plays the present game, and its steps are only taken."""
        return False

    # -- the steps --------------------------------------------------------------------------------

    def start(self) -> None:
        """Return to theta_0 with a fresh optimizer, and hide all labels."""
        if self.weights_name:
            self.segmenter.load_weights(self.read_weights(Path(self.weights_name)))
        else:
            self.segmenter.restore(self.module.built_weights)
        self.module.reset_training()
        self.hide_labels()

    def hide_labels(self) -> None:
        """Forget what the last game has labelled and measured: another one begins."""
        self.play_on(self.regions, self.oracle)
        self._histograms, self._checksums = self._histograms[:0], []
        self.step, self.scores, self.seconds, self._observation = 0, [], {}, None
        self._known = None

    def theta_0(self) -> dict[str, Tensor]:
        """The weights that labelling starts from."""
        if not self.weights_name:
            return self.module.built_weights
        return self.segmenter.weights_in(self.read_weights(Path(self.weights_name)))

    def read_weights(self, path: Path) -> dict[str, Any]:
        """The checkpoint of theta_0."""
        return read_checkpoint(path)

    def play_on(self, regions: Regions, oracle: Oracle) -> None:
        """Label these regions from now on; none of them is labelled yet."""
        self.regions, self.oracle = regions, oracle
        self.ledger = RegionLedger(len(regions))
        self.labels = RevealedLabels(regions)

    def observe(self) -> Observation:
        """Steps 1 and 2: look at the state set and the candidates, each image once; the same answer until `label`."""
        if self._observation is None:
            pools, picks, needs = self.candidates()
            self._observation = self.look_at(pools, picks, needs)
        return self._observation

    def look_at(
        self,
        pools: Tensor,
        picks: int,
        needs: Needs,
        labels: Tensor | None = None,
        judge: Callable[[], Any] | None = None,
    ) -> Observation:
        """What a policy asks to see of candidates.

        Args:
            pools: [K, N] candidates.
            picks: Regions that will be taken from each pool.
            needs: What the policy asks for.
            labels: [K * N, *box_size] of the candidates, for measures that teach.
            judge: Gives the pixels that pay, for measures that teach.
        """
        labelled, kind = self._histograms, needs.representation
        if not needs.looks:
            return Observation.unseen(pools, picks, labelled)
        batch_size = self.data.eval_batch_size
        with self.timed("state"):
            state = torch.empty(0, 0)
            if needs.state and kind is not None:
                state_set = self.data.regions("state_set")
                what = Scan(kind.pooling, batch_size=batch_size)
                state = scan(self.segmenter, state_set, torch.arange(len(state_set)), what).vector()
        with self.timed("candidates"):
            pooling, seed = kind.pooling if kind else None, self.stream_seed("measures")
            side = side_for(pools.numel()) if needs.pictures else 0
            what = Scan(pooling, needs.measures, seed, batch_size, labelled, labels, judge, side)
            found = scan(self.segmenter, self.regions, pools.flatten(), what)
            on_labelled = self._look_at_labelled(needs)
        with self.timed("features"):
            actions = torch.empty(*pools.shape, 0)
            if kind is not None:
                before, measured = self._look_at_known(kind.known_measures, on_labelled)
                numbers, spent = self.ledger.labelled, self.spent
                what_is_there = Candidates(
                    found, labelled, before, measured, pools.flatten(), numbers, self.regions, spent
                )
                actions = kind.actions(what_is_there, pools.shape)
            return Observation(
                state,
                pools,
                actions,
                found.mean_entropy().reshape(pools.shape),
                found.histogram.reshape(*pools.shape, -1),
                picks,
                {name: values.unflatten(0, pools.shape) for name, values in found.measures.items()},
                labelled,
                {name: on_labelled[name] for name in needs.labelled_measures if name in on_labelled},
                self.spent,
            )

    def _look_at_labelled(self, needs: Needs) -> dict[str, Tensor]:
        """Measures of the regions labelled so far, where a policy or its features ask for them: [L, ...]."""
        kind = needs.representation
        wanted = dict.fromkeys((*needs.labelled_measures, *(kind.known_measures if kind else ())))
        if not wanted or not len(self.ledger):
            return {}
        seed = self.stream_seed("measures of labelled")
        what = Scan(None, tuple(wanted), seed, self.data.eval_batch_size, self._histograms)
        return scan(self.segmenter, self.regions, self.ledger.labelled, what).measures

    def _look_at_known(
        self, wanted: tuple[str, ...], on_labelled: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What theta_0's images add to what is labelled.

        Args:
            wanted: Names of measures.
            on_labelled: Measures of labelled regions, by name: [L, ...].

        Returns:
            Class shares of theta_0's regions [M, C], and each measure of all that is known [L + M, ...].
        """
        regions, shares = self.theta_0_regions()
        if not wanted or regions is None:
            return shares, on_labelled
        what = Scan(None, wanted, self.stream_seed("measures of known"), self.data.eval_batch_size, self._histograms)
        measured = scan(self.segmenter, regions, torch.arange(len(regions)), what).measures
        joined = {name: torch.cat([on_labelled.get(name, own[:0]), own]) for name, own in measured.items()}
        return shares, joined

    def theta_0_regions(self) -> tuple[Regions | None, Tensor]:
        """The regions of the images that theta_0 was trained on, where their labels are at hand, and class shares.

        Images of the acquisition set are never among them, whatever a checkpoint says: names may coincide.
        """
        if self._known is None:
            images = self.known_images()
            regions, shares = None, torch.zeros(0, len(self.data.class_names))
            if images:
                regions = self.data.regions(images)
                labels = self.data.mask_oracle(images).label(torch.arange(len(regions)))
                shares = class_histogram(labels, len(self.data.class_names))
            self._known = regions, shares
        return self._known

    def known_images(self) -> list[int]:
        """The images that theta_0 was trained on, where their labels are at hand."""
        known = {self.data.dataset.names[i]: i for name in _KNOWN for i in self.data.splits[name]}
        images = [known[name] for name in self.trained_on(self.weights_name) if name in known]
        return [index for index in images if self.data.dataset.has_mask(index)]

    def trained_on(self, name: str) -> list[str]:
        """Names of the images that a theta_0 was trained on, where its file says so."""
        about = self.read_weights(Path(name)).get("ralseg", {}) if name else {}
        return list(about.get("trained_on", ()))

    def choose(self, observation: Observation) -> Choice:
        """Step 3: choose regions; one process decides for all."""
        with self.timed("query"):
            return distributed.from_first(lambda: self.decide(observation))

    def score(self, policy: Policy, observation: Observation) -> Tensor:
        """What a policy thinks of the candidates: [K, N]."""
        scores = policy.scores(observation, self.stream("policy"))
        if scores.shape != observation.pools.shape:
            raise RalsegError(
                f"{type(policy).__name__}.scores gave the shape {tuple(scores.shape)}, but the candidates have "
                f"{tuple(observation.pools.shape)} ({self.where()})"
            )
        if not scores.isfinite().all():
            message = f"the scores of {type(policy).__name__} are not finite ({self.where()})"
            raise NotFiniteError(message, self.context() | {"scores": scores.tolist()})
        return scores

    def label(self, regions: Tensor) -> Tensor:
        """Step 4: ask the oracle, keep its answer, and show it to the segmenter; the regions that were labelled.

        Args:
            regions: [K] what was chosen.
        """
        answer = distributed.from_first(lambda: self._ask(regions))
        self.note_answer(answer.regions)
        self.ledger.add(answer.regions, self.step)
        self._keep(answer.regions, answer.labels)
        self.data.show_regions(answer.regions, self.labels, self.stream_seed("augmentation"))
        # dropout, the one draw that no generator can be given to
        torch.manual_seed(distributed.own_seed(self.stream_seed("dropout")))
        self._observation = None
        return answer.regions

    def _ask(self, regions: Tensor) -> Answer:
        """What the oracle answers; refused where that is no answer."""
        answer, name = self.oracle.ask(regions, self.step), type(self.oracle).__name__
        allowed = torch.cat([regions, torch.tensor(self.oracle.reserved(self.step), dtype=regions.dtype)])
        if not torch.isin(answer.regions, allowed).all() or len(answer.regions) > len(regions):
            raise RalsegError(f"{name} labelled regions that nobody asked for ({self.where()})")
        if not len(answer.regions):
            raise LabelsNeeded(
                f"{name} has labelled none of the {len(regions)} regions of step {self.step} yet; repeat the command "
                "with --ckpt last when it has"
            )
        return answer

    def note_answer(self, regions: Tensor) -> None:  # noqa: B027 - most sessions need not
        """Note what is known of regions that were just labelled, before anything changes."""

    def take_corrections(self, is_over: bool = False) -> None:
        """Use labels from now on that people have corrected since the run took them.

        Args:
            is_over: Whether no step follows.
        """
        answer = distributed.from_first(lambda: self.oracle.corrections(None if is_over else self.step))
        if answer is None or not len(answer.regions):
            return
        self._check(answer.regions, answer.labels)
        places = {region: place for place, region in enumerate(self.ledger.labelled.tolist())}
        changed = []
        for region, label in zip(answer.regions.tolist(), answer.labels, strict=True):
            if region in places and checksum(label) != self._checksums[places[region]]:
                changed.append(region)
                self._checksums[places[region]] = checksum(label)
                self._histograms[places[region]] = class_histogram(label[None], len(self.data.class_names))[0]
        self.labels.add(answer.regions, answer.labels)
        if changed:
            self._note_corrected(changed, "they were taken")

    def _note_corrected(self, regions: list[int], since: str) -> None:
        log.warning("the labels of %d regions have been corrected since %s: %s", len(regions), since, regions)
        self.corrected = sorted({*self.corrected, *regions})

    def _check(self, regions: Tensor, labels: Tensor) -> None:
        """Refuse labels that are not as an oracle should give them."""
        expected, num_classes = (len(regions), *self.regions.box_size), len(self.data.class_names)
        if labels.dtype != torch.uint8 or labels.shape != expected:
            raise RalsegError(
                f"{type(self.oracle).__name__} gave labels {tuple(labels.shape)} of {labels.dtype}, but {expected} of "
                f"torch.uint8 were asked for ({self.where()})"
            )
        unknown = labels[(labels >= num_classes) & (labels != IGNORE)].unique().tolist()
        if unknown:
            raise RalsegError(
                f"{type(self.oracle).__name__} gave the classes {unknown}, but there are {num_classes}, from 0 on, and "
                f"{IGNORE} for what cannot be told ({self.where()})"
            )

    def _keep(self, regions: Tensor, labels: Tensor) -> None:
        """Keep labels that are as an oracle should give them, and count their classes once."""
        self._check(regions, labels)
        self.labels.add(regions, labels)
        self._histograms = torch.cat([self._histograms, class_histogram(labels, len(self.data.class_names))])
        self._checksums += [checksum(label) for label in labels]

    def checksums(self) -> dict[int, int]:
        """What tells the labels of each labelled region from others."""
        return dict(zip(self.ledger.labelled.tolist(), self._checksums, strict=True))

    def receive(self, trained: Trained, miou: float) -> None:
        """Step 6: note the mean IoU."""
        if not (math.isfinite(miou) and math.isfinite(trained.loss)):
            message = f"loss {trained.loss} or mIoU {miou} is not finite ({self.where()})"
            raise NotFiniteError(message, self.context() | {"loss": trained.loss, "miou": miou})
        self.spend("train", trained.training_seconds)
        self.spend("reward", trained.scoring_seconds)
        self.scores.append(miou)
        self.step += 1

    def fetch_step(self) -> TakenStep:
        """The step that another process has played in place of this one; waits for it."""
        raise NotImplementedError(f"{type(self).__name__} plays all of its games itself")

    def take_step(self, step: TakenStep) -> StepResult:
        """Go on as if the step had been played here."""
        raise NotImplementedError(f"{type(self).__name__} plays all of its games itself")

    # -- where it stands --------------------------------------------------------------------------

    def counters(self) -> tuple[str, int, int]:
        """What the draws of this step are numbered by: a name, the number of the game, the step."""
        return self.set_name, 0, self.step

    def stream(self, name: str) -> torch.Generator:
        """The generator of a named draw at this step."""
        return torch.Generator().manual_seed(self.stream_seed(name))

    def stream_seed(self, name: str) -> int:
        """The seed of a named draw at this step."""
        kind, *numbers = self.counters()
        return stream_seed(self.data.seed, f"{kind} {name}", *numbers)

    def where(self) -> str:
        """Where the session stands, for error messages."""
        return f"step {self.step}"

    def context(self) -> dict[str, Any]:
        """What is known of this step, for a run that fails in it."""
        return {
            "where": self.where(),
            "theta_0": self.weights_name,
            "miou_by_step": list(self.scores),
            "labelled": self.ledger.labelled.tolist(),
            "labelled_at_step": self.ledger.steps.tolist(),
        }

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the seconds spent inside to a part of the session."""
        start = time.perf_counter()
        yield
        self.spend(part, time.perf_counter() - start)

    def spend(self, part: str, seconds: float) -> None:
        """Add seconds to a part of the session."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    # -- resuming ---------------------------------------------------------------------------------

    def progress_state(self) -> dict[str, Any]:
        """What sessions of both kinds save."""
        return {
            "step": self.step,
            "scores": list(self.scores),
            "initial_scores": dict(self.initial_scores),
            "seconds": dict(self.seconds),
            "ledger": self.ledger.state_dict(),
            "checksums": list(self._checksums),
            "corrected": list(self.corrected),
            "average": self.module.average.state_dict(),
        }

    def load_progress(self, state: dict[str, Any]) -> None:
        """Return to what :meth:`progress_state` saved. The oracle is asked again for the labels."""
        self.step, self.scores, self.seconds = state["step"], state["scores"], state["seconds"]
        self.initial_scores, self.corrected = state["initial_scores"], state["corrected"]
        self.module.average.load_state_dict(state["average"])
        self.ledger.load_state_dict(state["ledger"])
        regions, self._histograms, self._checksums = self.ledger.labelled, self._histograms[:0], []
        self._keep(regions, distributed.from_first(lambda: self.oracle.recall_at(regions, self.step)))
        checked = zip(regions.tolist(), self._checksums, state["checksums"], strict=True)
        changed = [region for region, now, before in checked if now != before]
        if changed:
            self._note_corrected(changed, "the checkpoint")
        self._observation = None


def checksum(label: Tensor) -> int:
    """What tells the labels of a region from others."""
    return zlib.crc32(label.numpy().tobytes())
