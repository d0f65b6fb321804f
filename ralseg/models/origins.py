"""What checkpoints leave out: a frozen encoder never changes, so its checksum and where it is from are enough."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from ralseg.errors import ConfigError, RalsegError
from ralseg.models import encoders
from ralseg.models.recipe import WEIGHTS_KEY, RemembersArguments, recipe_of
from ralseg.runtime.checkpoints import path_of

LEFT_OUT = "frozen_encoder"
"""What a checkpoint says of weights that it does not hold, under ``ralseg``."""
_FROM_LIBRARIES = ("imagenet", encoders.LITE0)


class EncoderMissing(ConfigError):
    """The encoder that a checkpoint names is not to be had, or is another one now."""


def checksum(weights: Mapping[str, Tensor]) -> str:
    """Tells weights and statistics, with their names, from all others."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in weights.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Origins:
    """Knows where an encoder's weights are from, by their checksum.

    What is left out of a checkpoint is compared to the last bit before: an encoder that anything has changed, be it one
    statistic of a normalisation, is stored whole.

    Examples:
        >>> import torch
        >>> origins = Origins()
        >>> origins.note({"bias": torch.zeros(2)}, "imagenet")
        >>> checkpoint = {"ralseg": {}, "state_dict": {"encoder.bias": torch.zeros(2), "head.bias": torch.ones(1)}}
        >>> origins.leave_out(checkpoint, "encoder.", "")
        >>> list(checkpoint["state_dict"]), checkpoint["ralseg"]["frozen_encoder"]["weights"]
        (['head.bias'], 'imagenet')
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}  # checksum -> encoder_weights
        self._made: dict[str, dict[str, Tensor]] = {}  # the encoder that was made last, by its checksum

    def note(self, weights: Mapping[str, Tensor], source: str) -> None:
        """Remember where these weights are from.

        Args:
            weights: Of an encoder as it was just loaded.
            source: As ``model.encoder_weights``; ``none`` is not worth remembering, for nobody could draw them again.
        """
        if source != "none":
            self._known[checksum(weights)] = source if source in _FROM_LIBRARIES else str(Path(source).resolve())

    def leave_out(self, checkpoint: dict[str, Any], prefix: str, root: str) -> None:
        """Take an encoder's weights out of a checkpoint, if it is known where they can be had again.

        Args:
            checkpoint: What is about to be saved.
            prefix: What the names of the encoder's weights begin with in the segmenter.
            root: What those of the segmenter begin with in the checkpoint.
        """
        state, start = checkpoint["state_dict"], root + prefix
        part = {name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)}
        found = checksum(part)
        if part and found in self._known:
            for name in part:
                del state[start + name]
            checkpoint["ralseg"][LEFT_OUT] = {"weights": self._known[found], "checksum": found}

    def take_in(
        self, checkpoint: dict[str, Any], own: Mapping[str, Tensor], make: Callable[[str], Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The weights that a checkpoint leaves out, by their names in the encoder; none where it holds all.

        Args:
            checkpoint: What was read.
            own: The encoder's weights here, which are likely to be the same.
            make: Gives the weights of an encoder from ``encoder_weights``.
        """
        about = checkpoint.get("ralseg", {}).get(LEFT_OUT)
        if about is None:
            return {}
        path, wanted, source = path_of(checkpoint), str(about.get("checksum")), str(about.get("weights"))
        where = source if _is_there(source) else self._beside(path, source)
        if checksum(own) == wanted:
            found = {name: tensor.detach().clone() for name, tensor in own.items()}
        elif wanted in self._made:
            found = self._made[wanted]
        else:
            found = dict(self._made_anew(path, where, wanted, make))
            self._made = {wanted: found}
        if not _is_there(self._known.get(wanted, "")):  # what is known here holds on this machine, the file's may not
            self._known[wanted] = where
        return found

    @staticmethod
    def _beside(path: Path | None, source: str) -> str:
        """The file of that name beside the checkpoint, if there is one; else the source as it was."""
        beside = None if path is None else path.parent / Path(source).name
        return str(beside.resolve()) if beside is not None and beside.is_file() else source

    @staticmethod
    def _made_anew(
        path: Path | None, where: str, wanted: str, make: Callable[[str], Mapping[str, Tensor]]
    ) -> Mapping[str, Tensor]:
        said = f"{path or 'the checkpoint'}: its frozen encoder is not in the file, but to be taken from {where}"
        way_out = (
            "; have the same weights there, or where they still are make a checkpoint that needs nothing else: "
            f"ralseg export --ckpt {path or 'FILE'} --format checkpoint --out whole.ckpt"
        )
        try:
            found = make(where)
        except (RalsegError, TypeError) as error:  # a class whose arguments are no plain values cannot be made again
            raise EncoderMissing(f"{said}, which fails: {error}{way_out}") from error
        is_now = checksum(found)
        if is_now != wanted:
            raise EncoderMissing(f"{said}, where another one is now (checksum {is_now}, not {wanted}){way_out}")
        return found


def _is_there(source: str) -> bool:
    """Whether weights can be had from there, as far as can be told without a look at them."""
    return source in _FROM_LIBRARIES or Path(source).is_file()


class NamesEncoder(RemembersArguments, pl.LightningModule):
    """A module whose checkpoints name a frozen encoder, by checksum and origin, instead of holding it.

    Attributes:
        encoder_prefix: What the names of the encoder's weights begin with; empty where there is no such part.
        has_frozen_encoder: Whether nothing trains it.
        origins: Knows where encoders are from; the constructor notes the one that it loads.
    """

    encoder_prefix = ""
    has_frozen_encoder = False

    def __init__(self) -> None:
        super().__init__()
        self.origins = Origins()

    def note_origin(self, weights: str) -> None:
        """Remember that the encoder has just been loaded from there."""
        if self.has_frozen_encoder and not encoders.is_rebuilding():
            self.origins.note(self._encoder_weights(), weights)

    def leave_out_encoder(self, checkpoint: dict[str, Any], root: str = "") -> None:
        """Take a frozen encoder out of what is about to be saved, unless the Trainer's checkpoints are complete.

        Args:
            checkpoint: What is about to be saved.
            root: What the names of this module's weights begin with in it.
        """
        if self.has_frozen_encoder and not getattr(self._trainer, "complete_checkpoints", False):
            self.origins.leave_out(checkpoint, self.encoder_prefix, root)

    def weights_in(self, checkpoint: dict[str, Any], root: str = "") -> dict[str, Tensor]:
        """All weights of this module in a checkpoint, with those that it only names.

        Args:
            checkpoint: What was read.
            root: What the names of this module's weights begin with in it.
        """
        saved = checkpoint["state_dict"].items()
        held = {name.removeprefix(root): tensor for name, tensor in saved if name.startswith(root)}
        found = self.origins.take_in(checkpoint, self._encoder_weights(), self._encoder_from)
        return held | {self.encoder_prefix + name: tensor for name, tensor in found.items()}

    def _encoder_weights(self) -> dict[str, Tensor]:
        prefix = self.encoder_prefix
        state = self.state_dict().items() if prefix else ()
        return {name.removeprefix(prefix): tensor for name, tensor in state if name.startswith(prefix)}

    def _encoder_from(self, weights: str) -> dict[str, Tensor]:
        """The weights that the encoder of such a module begins with."""
        arguments = recipe_of(self)["init_args"] | {WEIGHTS_KEY: weights}
        with torch.random.fork_rng(devices=[]), encoders.rebuilding(False):
            return type(self)(**arguments)._encoder_weights()
