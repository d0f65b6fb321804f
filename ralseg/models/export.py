"""A trained segmenter in formats of others: ONNX, TorchScript, and segmentation-models-pytorch's own."""

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import segmentation_models_pytorch as smp
import torch
from torch import Tensor

from ralseg import __version__
from ralseg.data.canvas import Size
from ralseg.errors import ConfigError
from ralseg.models.segmenter import Segmenter
from ralseg.models.smp import ABOUT, SmpSegmenter
from ralseg.runtime.files import write_atomically

TOLERANCE = 1e-3
"""Largest difference of logits from PyTorch's, as a share of the largest logit (or of 1, where all are smaller)."""
INPUT = "image: uint8, RGB, 0 to 255, [batch, 3, height, width]; normalisation is in the graph"
OUTPUT = "logits: float32, [batch, classes, height, width]; the class of a pixel is the largest"
_ODD = ((130, 197), (161, 133))  # sizes that need padding
_OPSET = 17

Network = Callable[[Tensor], Tensor]
"""[B, 3, H, W] of uint8 -> [B, C, H, W]."""


class Exported(NamedTuple):
    """What was written."""

    difference: float  # largest, of logits from PyTorch's
    size: Size | None  # the only (height, width) that it takes; None: any


class _Attempt(NamedTuple):
    """A network in another format, not written yet."""

    content: bytes
    network: Network


def export_torchscript(segmenter: Segmenter, file: Path) -> Exported:
    """Write a TorchScript file, with ``ralseg.json`` inside it."""

    def make(size: Size | None) -> _Attempt:
        traced, buffer = _traced(segmenter, size), io.BytesIO()
        with _quiet():
            torch.jit.save(traced, buffer, _extra_files={ABOUT: json.dumps(about(segmenter, size))})
        return _Attempt(buffer.getvalue(), traced)

    return _write("torchscript", segmenter, file, make)


def export_onnx(segmenter: Segmenter, file: Path) -> Exported:
    """Write an ONNX file with metadata, as onnxruntime takes it."""
    onnx, runtime = _needed("onnx"), _needed("onnxruntime")

    def make(size: Size | None) -> _Attempt:
        model = _onnx_model(onnx, segmenter, size)
        for key, value in about(segmenter, size).items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
        onnx.checker.check_model(model)
        content = model.SerializeToString()
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        return _Attempt(content, lambda image: torch.from_numpy(session.run(None, {"image": image.numpy()})[0]))

    return _write("onnx", segmenter, file, make)


def export_smp(segmenter: Segmenter, folder: Path) -> Exported:
    """Write a folder for ``segmentation_models_pytorch.from_pretrained``."""
    if not isinstance(segmenter, SmpSegmenter):
        raise ConfigError(
            f"--format smp: {type(segmenter).__name__} is no network of segmentation-models-pytorch; use onnx or "
            "torchscript"
        )
    if segmenter.encoder_strides:
        raise ConfigError(
            f"--format smp: the encoder's strides were changed ({segmenter.encoder_strides}), which that library "
            "cannot write down; use onnx or torchscript"
        )
    segmenter.export_smp(folder)
    with _quiet():
        loaded = smp.from_pretrained(str(folder)).eval()
    known = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    mean, std = (torch.tensor(known[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    height, width = (-(-side // 32) * 32 for side in _usual_size(segmenter))
    return Exported(_check(segmenter, lambda image: loaded((image / 255 - mean) / std), [(height, width)]), None)


FORMATS: dict[str, Callable[[Segmenter, Path], Exported]] = {
    "onnx": export_onnx,
    "torchscript": export_torchscript,
    "smp": export_smp,
}


def about(segmenter: Segmenter, size: Size | None) -> dict[str, Any]:
    """What a user of an exported network must know, in plain values.

    Args:
        segmenter: The network.
        size: The only (height, width) that the export takes; None: any.
    """
    takes = "any" if size is None else list(size)
    return {"ralseg": __version__, "input": INPUT, "output": OUTPUT, "takes": takes, **segmenter.card()}


# -- making and checking -----------------------------------------------------------------------------


def _write(kind: str, segmenter: Segmenter, file: Path, make: Callable[[Size | None], _Attempt]) -> Exported:
    """Export for images of any size or, where that cannot be, of the size of training; checked, then written."""
    fixed = segmenter.canvas.size if segmenter.canvas is not None else None
    try:
        size, attempt = None, make(None)
        difference = _check(segmenter, attempt.network, [_usual_size(segmenter), *_ODD])
    except Exception as error:  # exporters raise all kinds
        if fixed is None:
            raise ConfigError(_why(kind, segmenter, error)) from error
        try:
            size, attempt = fixed, make(fixed)
            difference = _check(segmenter, attempt.network, [fixed])
        except Exception as second:
            raise ConfigError(_why(kind, segmenter, second)) from second
    write_atomically(file, attempt.content)
    return Exported(difference, size)


def _why(kind: str, segmenter: Segmenter, error: Exception) -> str:
    reason = (str(error).splitlines() or [type(error).__name__])[0].partition(". Please feel free")[0]
    other = "torchscript" if kind == "onnx" else "onnx"
    return f"--format {kind}: {type(segmenter).__name__} cannot be exported ({reason}); try --format {other}"


def _usual_size(segmenter: Segmenter) -> Size:
    size = segmenter.canvas.size if segmenter.canvas is not None else None
    return size or (128, 192)


def _pixels(batch: int, size: Size) -> Tensor:
    """Random images, always the same."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch, 3, *size), dtype=torch.uint8, generator=generator)


def _traced(segmenter: Segmenter, size: Size | None) -> Any:
    """The network as a graph; recorded on an image that needs padding, it pads every size."""
    with _quiet():
        return segmenter.to_torchscript(method="trace", example_inputs=_pixels(1, size or _ODD[0]), check_trace=False)


def _onnx_model(onnx: ModuleType, segmenter: Segmenter, size: Size | None) -> Any:
    traced = _traced(segmenter, size)
    axes = {0: "batch"} if size else {0: "batch", 2: "height", 3: "width"}
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        torch.onnx.export(
            traced,
            (_pixels(1, size or _ODD[0]),),
            Path(folder) / "network.onnx",
            dynamo=False,  # the newer exporter does not end where sizes are open
            opset_version=_OPSET,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": axes, "logits": axes},
        )
        return onnx.load_model(Path(folder) / "network.onnx")


@torch.no_grad()
def _check(segmenter: Segmenter, network: Network, sizes: list[Size]) -> float:
    """The largest difference of logits from PyTorch's, of two images of each size; too large a one is an error."""
    largest = 0.0
    for size in sizes:
        image = _pixels(2, size)
        expected, found = segmenter(image), network(image)
        allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
        difference = float((expected - found).abs().max()) if expected.shape == found.shape else float("inf")
        if not difference <= allowed:
            raise ConfigError(
                f"the exported network does not give what PyTorch gives: logits of images of {size[0]}x{size[1]} "
                f"pixels differ by up to {difference:g}, {allowed:g} is allowed"
            )
        largest = max(largest, difference)
    return largest


def _needed(name: str) -> ModuleType:
    """A package that only this needs."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ConfigError(f"--format onnx needs the package {name}: pip install 'ralseg[onnx]'") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters print: that they are old and, from their C++ parts, whole graphs. All is checked after."""
    sys.stdout.flush()
    screen = os.dup(1)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nothing:
            warnings.simplefilter("ignore")
            os.dup2(nothing.fileno(), 1)
            yield
    finally:
        os.dup2(screen, 1)
        os.close(screen)
