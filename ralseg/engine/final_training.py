"""The final training: a segmenter on all labelled regions, to convergence, then tested once."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from torch.utils.data import Sampler

from ralseg.data.datamodule import SegmentationData
from ralseg.data.samples import Draw, JoinedSamples
from ralseg.engine.acquire_session import AcquireSession
from ralseg.engine.callbacks import PatientStop
from ralseg.engine.selection import by_image, labelled_pixels
from ralseg.engine.trainer import SCORE, RunTrainer
from ralseg.errors import ConfigError
from ralseg.models.schedules import check_length
from ralseg.models.segmenter import Segmenter, inverse_sqrt_weights
from ralseg.runtime import distributed
from ralseg.runtime.checkpoints import LAST, previous_of, read_checkpoint
from ralseg.runtime.files import read_json, write_atomically
from ralseg.runtime.run_folder import CHECKPOINTS
from ralseg.runtime.seeding import stream

_PLAIN = ("max_steps", "validate_every", "patience", "keep", "start", "mix", "class_weights")
_KNOWN = ("train_set", "state_set")


@dataclass(frozen=True)
class FinalTraining:
    """How a segmenter is trained on the labels that were bought. The same for every method.

    Args:
        max_steps: Iterations allowed, a multiple of ``validate_every``.
        validate_every: Iterations between scores on the reward set.
        patience: Scores without improvement after which training stops.
        keep: Which weights are tested: the ``best`` by those scores (paper), or the ``last``, for schedules that end at
            a learning rate of zero: before their end a score is as much luck as merit.
        start: From the segmenter ``acquired`` at the budget (paper), or from ``theta_0``.
        mix: Sets whose labels are known anyway and used too: ``train_set``, ``state_set``, or ``fit_set``, the images
            that theta_0 was trained on. Without them the segmenter forgets what nobody asks for, such as sky and road.
        class_weights: ``inverse_sqrt``: 1/sqrt of the class's frequency among the labels; ``theta_0``: those that
            theta_0 was trained with.
        optimizer: Made for the trainable parameters.
        scheduler: Learning-rate schedule, stepped after each iteration. A length that is left out is ``max_steps``.

    Examples:
        >>> FinalTraining(max_steps=40, validate_every=20).keep
        'best'
    """

    max_steps: int = 400
    validate_every: int = 20
    patience: int = 10
    keep: Literal["best", "last"] = "best"
    start: Literal["acquired", "theta_0"] = "acquired"
    mix: list[str] = field(default_factory=list)
    class_weights: Literal["theta_0", "inverse_sqrt"] = "theta_0"
    optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(
        parameters, lr=1e-3, momentum=0.95, weight_decay=1e-4
    )
    scheduler: LRSchedulerCallable | None = None

    def __post_init__(self) -> None:
        for key in ("max_steps", "validate_every", "patience"):
            if getattr(self, key) < 1:
                raise ConfigError(f"trainer.final.{key}={getattr(self, key)} must be at least 1")
        hidden = set(self.mix) - {*_KNOWN, "fit_set"}
        if hidden:
            raise ConfigError(
                f"trainer.final.mix={self.mix}: only train_set, state_set and fit_set may be mixed in; the labels of "
                f"{', '.join(sorted(hidden))} are hidden, or what segmenters are judged by"
            )
        if self.max_steps % self.validate_every:
            raise ConfigError(
                f"trainer.final.max_steps={self.max_steps} must be a multiple of validate_every={self.validate_every}"
            )
        check_length(self.scheduler, self.max_steps, "trainer.final.scheduler")


class RoundSampler(Sampler[Draw]):
    """Draws of one round, from one score to the next: as many samples as its iterations need.

    Shuffled passes follow each other without a seam, so a round is the same number of iterations however many
    samples there are, and a run that was cut off goes on at a round's start with the same draws.

    Args:
        num_samples: Number of samples.
        draws: Draws in a round.
        seed: Seed of order and augmentation.
    """

    def __init__(self, num_samples: int, draws: int, seed: int) -> None:
        self.num_samples, self.draws, self.seed, self.epoch = num_samples, draws, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch, which is a round."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Draws in a round."""
        return self.draws

    def __iter__(self) -> Iterator[Draw]:
        """Yield the round's draws: a stretch of the endless sequence of shuffled passes."""
        first = self.epoch * self.draws
        for number in range(first, first + self.draws):
            turn, place = divmod(number, self.num_samples)
            if place == 0 or number == first:
                generator = stream(self.seed, "final pass", turn)
                order = torch.randperm(self.num_samples, generator=generator).tolist()
                seeds = torch.randint(2**62, (self.num_samples,), generator=generator).tolist()
            yield Draw(order[place], seeds[place])


def mixed_images(data: SegmentationData, mix: list[str], theta_0: str | None) -> list[int]:
    """The images that are used beside what was bought, each once."""
    sets = [images_of(theta_0, data) if name == "fit_set" else data.labelled_images(name) for name in mix]
    return list(dict.fromkeys(index for indices in sets for index in indices))


def images_of(theta_0: str | None, data: SegmentationData) -> list[int]:
    """The images that theta_0 was trained on, as its checkpoint names them."""
    if theta_0 is None:
        raise ConfigError("trainer.final.mix: fit_set needs a theta_0; set trainer.acquisition.initial_weights")
    names = read_checkpoint(Path(theta_0)).get("ralseg", {}).get("trained_on")
    if names is None:
        raise ConfigError(
            f"trainer.final.mix: {theta_0} does not say what images it was trained on, which fit_set means; make it "
            "anew with `ralseg pretrain`, or mix train_set or state_set"
        )
    known = {data.dataset.names[index]: index for index in data.labelled_images(*_KNOWN)}
    hidden = [name for name in names if name not in known]
    if hidden:
        raise ConfigError(
            f"trainer.final.mix: {len(hidden)} of the {len(names)} images that {theta_0} was trained on are in neither "
            f"train_set nor state_set, the first: {hidden[0]}; give the data.splits that theta_0 was made with, "
            "or a theta_0 whose data.fit_on held no other sets"
        )
    return [known[name] for name in names]


def show_labels(session: AcquireSession, config: FinalTraining, mixed: list[int]) -> None:
    """Make the data give all labelled regions, one sample an image, and whole images that are mixed in."""
    data = session.data
    samples = data.region_samples(list(by_image(session).values()), session.labels)
    if mixed:
        samples = JoinedSamples(samples, data.image_samples(mixed, augment=True))
    batch_size = min(data.batch_size, len(samples))
    sampler = RoundSampler(len(samples), config.validate_every * batch_size, data.seed)
    data.show(samples, sampler, batch_size)


def label_frequencies(session: AcquireSession, mixed: list[int]) -> Tensor:
    """Share of each class among all labels of the final training: [C]."""
    data = session.data
    num_classes = len(data.class_names)
    counts = labelled_pixels(session) + sum(
        (torch.bincount(data.masks[index].flatten().int(), minlength=256) for index in mixed),
        torch.zeros(256, dtype=torch.int64),
    )
    known = counts[:num_classes].double()
    return known / known.sum().clamp(min=1)


def train_final(
    session: AcquireSession, weights: dict[str, Tensor], config: FinalTraining, folder: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """Train from ``weights`` on what is labelled, test, and return the scores; a finished one is not repeated.

    Where labels were corrected since the training began, ``stale`` in what it returns names their regions.

    Args:
        session: The acquisition at its budget.
        weights: The segmenter's weights to start from.
        config: How to train.
        folder: Folder of this training.
        options: Options of the Trainer; ``callbacks`` among them are added to its own.
    """
    report, plan = folder / "final.json", folder / "plan.json"
    options_now = {key: getattr(config, key) for key in _PLAIN}
    planned = read_json(plan)
    if planned is not None and planned != options_now:
        raise ConfigError(
            f"{folder} holds a final training with other options ({plan.name}: {json.dumps(planned)}); go on with "
            "those, or start the acquisition anew in another folder"
        )
    if distributed.rank() == 0:
        write_atomically(plan, json.dumps(options_now) + "\n")
    old_labels = distributed.from_first(lambda: _old_labels(session, folder / "labels.json", report.is_file()))
    result: dict[str, Any] | None = distributed.from_first(lambda: read_json(report))
    if result is not None:
        _keep_tested(folder, config.keep)
        return result | old_labels
    data = session.data
    mixed = mixed_images(data, config.mix, session.config.initial_weights)
    data.masks.open(mixed)
    segmenter = make_segmenter(session, weights, config, mixed)
    show_labels(session, config, mixed)
    stop = PatientStop(SCORE, mode="max", patience=config.patience)
    trainer = RunTrainer(
        default_root_dir=str(folder), max_epochs=config.max_steps // config.validate_every, num_sanity_val_steps=0,
        log_every_n_steps=1, **(options | {"callbacks": [stop, *options.get("callbacks", [])]}),
    )  # fmt: skip
    # an epoch is a round; max_steps in its stead would make Lightning end a resumed epoch twice
    trainer.pretrain(segmenter, data, ckpt="last")
    iterations = trainer.global_step
    data.show_fit_images()
    result = finish(trainer, segmenter, data, config.keep, iterations, folder)
    _keep_tested(folder, config.keep)
    return result | old_labels


def _keep_tested(folder: Path, keep: str) -> None:
    """Delete the checkpoints of a training that is over, but for the one that was tested: nobody goes on from them."""
    if distributed.rank() == 0:
        last = folder / CHECKPOINTS / LAST
        for path in (previous_of(last), last if keep == "best" else last.with_name("best.ckpt")):
            path.unlink(missing_ok=True)


def _old_labels(session: AcquireSession, path: Path, is_finished: bool) -> dict[str, list[int]]:
    """Regions whose labels were corrected since a training began: its scores are stale. Nothing where there are none.

    Args:
        session: The acquisition at its budget.
        path: Where the labels are noted that it began with.
        is_finished: Whether the training is over.
    """
    now = {str(region): checksum for region, checksum in session.checksums().items()}
    before = read_json(path)
    if not isinstance(before, dict):
        if not is_finished:
            write_atomically(path, json.dumps(now) + "\n")
        return {}
    stale = sorted(int(region) for region, checksum in now.items() if before.get(region) != checksum)
    return {"stale": stale} if stale else {}


def make_segmenter(
    session: AcquireSession, weights: dict[str, Tensor], config: FinalTraining, mixed: list[int]
) -> Segmenter:
    """A copy of the acquiring segmenter that does not touch it."""
    segmenter = session.segmenter.copy_for(config.optimizer, config.scheduler)
    segmenter.restore(weights)
    if config.class_weights == "inverse_sqrt":
        if not segmenter.trained_tensors():
            raise ConfigError(
                f"trainer.final.class_weights: {type(segmenter).__name__} weighs classes by an option of its own; "
                "leave class_weights at theta_0"
            )
        segmenter.class_weight.copy_(inverse_sqrt_weights(label_frequencies(session, mixed)))
    return segmenter


def finish(
    trainer: RunTrainer, segmenter: Segmenter, data: SegmentationData, keep: str, iterations: int, folder: Path
) -> dict[str, Any]:
    """Test the segmenter that is kept, export it, and note the scores.

    A frozen encoder is left out of checkpoints, and not written again in another format either.
    """
    scores = trainer.test(segmenter, datamodule=data, ckpt=keep)[0]
    # the weights just tested
    scores |= trainer.validate(segmenter, datamodule=data, verbose=False)[0]
    result = {"iterations": iterations, **{name: float(value) for name, value in scores.items()}}
    if trainer.is_global_zero:
        if trainer.complete_checkpoints or not segmenter.has_frozen_encoder:
            segmenter.export(folder)
        write_atomically(folder / "final.json", json.dumps(result, indent=1) + "\n")
    return result
