"""Whether a checkpoint's weights fit a network, and in words why not."""

from collections.abc import Mapping
from typing import Any

from ralseg.data.canvas import Canvas
from ralseg.errors import ConfigError

_SHOWN = 3


class WeightsMisfit(ConfigError):
    """Weights of another network."""


def misfit(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """What differs between the weights of a checkpoint and those of a network, the first few of each kind.

    Examples:
        >>> import torch
        >>> print(misfit({"a": torch.zeros(2), "c": torch.zeros(1)}, {"a": torch.zeros(3), "b": torch.zeros(1)}))
        the checkpoint's weights do not fit this network: 1 of another shape (a: [2] in the checkpoint, [3] here), 1
        that the checkpoint lacks (b), 1 that the network lacks (c). Most likely its constructor was given other options
    """
    shapes = {key: (_shape(saved[key]), _shape(own[key])) for key in own if key in saved}
    kinds = {
        "of another shape": [f"{key}: {a} in the checkpoint, {b} here" for key, (a, b) in shapes.items() if a != b],
        "that the checkpoint lacks": [key for key in own if key not in saved],
        "that the network lacks": [key for key in saved if key not in own],
    }
    found = [f"{len(keys)} {kind} ({_some(keys)})" for kind, keys in kinds.items() if keys]
    return (
        f"the checkpoint's weights do not fit this network: {', '.join(found)}. Most likely its constructor was given "
        "other options"
    )


def _shape(value: Any) -> list[int] | str:
    return list(value.shape) if hasattr(value, "shape") else type(value).__name__


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:_SHOWN]) + (", ..." if len(keys) > _SHOWN else "")


def canvas_difference(about: Mapping[str, Any], here: Canvas | None) -> str | None:
    """In words, how images were shown in the training of a checkpoint, where it is otherwise here; else None.

    Args:
        about: What the checkpoint says under ``ralseg``.
        here: How images are shown here; None where that is not known.
    """
    saved = about.get("canvas")
    if here is None or not isinstance(saved, dict):
        return None
    there = Canvas.from_description(saved)
    is_same = there == here or there.size is here.size is None
    return None if is_same else f"images {in_words(there)}, and here they are {in_words(here)}"


def in_words(canvas: Canvas) -> str:
    """A canvas as a person would say it.

    Examples:
        >>> in_words(Canvas((128, 192))), in_words(Canvas())
        ('of 128x192 pixels (resize: pad)', 'of their own size')
    """
    if canvas.size is None:
        return "of their own size"
    return f"of {canvas.size[0]}x{canvas.size[1]} pixels (resize: {canvas.resize})"
