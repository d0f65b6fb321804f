"""How long a learning-rate schedule is: as long as the run, unless the configuration says otherwise."""

from functools import partial
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.cli import LRSchedulerCallable
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import OneCycleLR

from ralseg.config import SCHEDULE_LENGTHS
from ralseg.errors import ConfigError

_LENGTHS: dict[type, str] = {getattr(lr_scheduler, kind): option for kind, option in SCHEDULE_LENGTHS.items()}


def make_schedule(make: LRSchedulerCallable, optimizer: Optimizer, trainer: pl.Trainer | None) -> Any:
    """The schedule of an optimizer; a length that was left out (or is 0) becomes the run's number of iterations.

    Args:
        make: What the configuration gave: a ``functools.partial`` of a class, or a function of one's own, which is
            left as it is.
        optimizer: The optimizer.
        trainer: Runs the training.

    Examples:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        >>> trainer = pl.Trainer(max_epochs=-1, max_steps=90, logger=False, enable_checkpointing=False)
        >>> make_schedule(partial(OneCycleLR, max_lr=0.1), optimizer, trainer).total_steps
        90
    """
    kind = _kind_of(make)
    if kind is not None and trainer is not None and _given_length(make, kind) is None:
        make = partial(make, **{_name_of(kind): run_length(trainer)})
    schedule = make(optimizer)
    if isinstance(schedule, OneCycleLR) and trainer is not None:
        _refuse_short(schedule.total_steps, run_length(trainer), "the learning-rate schedule")
    return schedule


def run_length(trainer: pl.Trainer) -> int:
    """Iterations that a run will take if nothing stops it early."""
    steps = trainer.estimated_stepping_batches
    if steps == float("inf") or steps < 1:
        raise ConfigError(
            "a learning-rate schedule follows the run's length, but this run has no end; set trainer.max_epochs"
        )
    return int(steps)


def length_of(schedule: Any) -> int | None:
    """Iterations that a schedule is planned for; None where it has no end.

    Examples:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        >>> length_of(lr_scheduler.CosineAnnealingLR(optimizer, 60))
        60
    """
    for kind, name in _LENGTHS.items():
        if isinstance(schedule, kind):
            return int(getattr(schedule, name))
    return None


def check_length(make: LRSchedulerCallable | None, steps: int, key: str) -> None:
    """Refuse a schedule that ends before the training does and would raise there, by what is known beforehand.

    Args:
        make: What the configuration gave.
        steps: Iterations of the training.
        key: Where it stands in the configuration.
    """
    kind = _kind_of(make)
    if kind is not None and issubclass(kind, OneCycleLR):
        _refuse_short(_given_length(make, kind), steps, key)


def check_resumed(schedule: Any, planned: int | None) -> None:
    """Refuse to go on with a schedule that was made for a shorter run: its rates would not be this run's.

    Args:
        schedule: As the checkpoint has left it.
        planned: The length that this run's configuration gives it.
    """
    length = length_of(schedule)
    if length is not None and planned is not None and length < planned:
        raise ConfigError(
            f"the run was started with a learning-rate schedule of {length} iterations, and now has {planned}; go on "
            "with the trainer.max_epochs of its config.yaml, or start anew in another trainer.default_root_dir"
        )


def _kind_of(make: Any) -> type | None:
    """The class with a length that a partial function makes; None where there is none."""
    parts = (make.func, *make.args) if isinstance(make, partial) else ()
    return next((part for part in parts if isinstance(part, type) and issubclass(part, tuple(_LENGTHS))), None)


def _name_of(kind: type) -> str:
    return next(name for parent, name in _LENGTHS.items() if issubclass(kind, parent))


def _given_length(make: Any, kind: type) -> int | None:
    """The length that the configuration gives; OneCycleLR also takes it as ``epochs`` times ``steps_per_epoch``."""
    given = make.keywords
    length = given.get(_name_of(kind)) or (given.get("epochs") or 0) * (given.get("steps_per_epoch") or 0)
    return int(length) or None


def _refuse_short(length: int | None, steps: int, key: str) -> None:
    if length is not None and length < steps:
        raise ConfigError(
            f"{key}: OneCycleLR ends after total_steps={length}, but the training takes {steps} iterations; leave "
            "total_steps out, and it follows the training"
        )
