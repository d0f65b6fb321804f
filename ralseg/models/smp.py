"""Segmenters from segmentation-models-pytorch: every architecture but DPT, whose parts are of another kind."""

import inspect
import json
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast, get_args

import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn
from torch.nn import functional

from ralseg.data.datamodule import SegmentationData
from ralseg.errors import ConfigError
from ralseg.labels.layout import Regions, Windows
from ralseg.models import encoders
from ralseg.models.feature_cache import FeatureCache, KeptFeatures
from ralseg.models.pixel_check import check_pixels
from ralseg.models.prediction import Prediction, Seeds, in_full
from ralseg.models.segmenter import Segmenter
from ralseg.models.upsampling import Windowed, upsampling_matrix
from ralseg.runtime.files import write_atomically

Architecture = Literal[
    "FPN", "Unet", "UnetPlusPlus", "MAnet", "Linknet", "PSPNet",
    "PAN", "DeepLabV3", "DeepLabV3Plus", "UPerNet", "Segformer",
]  # fmt: skip
_OWN_DROPOUT = {"FPN": "decoder_dropout", "PSPNet": "psp_dropout"}
"""Decoders that end with a dropout of their own, and what it is called."""
_OURS = {"self", "kwargs", "encoder_name", "encoder_weights", "in_channels", "classes", "activation", "aux_params"}
_OURS |= set(_OWN_DROPOUT.values())  # model.dropout says it
"""Parameters of an architecture that are not the user's."""
ABOUT = "ralseg.json"
"""What an exported network comes with."""
_SMP_INPUT = (
    "(RGB / 255 - mean) / std, float32 [batch, 3, height, width]; height and width multiples of 32: images are scaled "
    "to fit `size` (resize: pad keeps proportions, at the top left; null: their own size), then padded with their edge"
)
_SMP_USE = """
## How to use it

`net = segmentation_models_pytorch.from_pretrained("this folder").eval()`, then `net((RGB / 255 - mean) / std)` with the
mean and std of `ralseg.json`, which also says the classes, their colours and the image size. Made by ralseg.
"""


class SmpPrediction(Prediction):
    """A prediction that keeps the decoder's last map: dropout samples repeat only what comes after it.

    Args:
        segmenter: The segmenter, in evaluation mode.
        image: [b, 3, H, W] uint8.
        decoded: [b, D, ?, ?] the decoder's last map, without dropout.
    """

    segmenter: "SmpSegmenter"

    def __init__(self, segmenter: "SmpSegmenter", image: Tensor, decoded: Tensor) -> None:
        super().__init__(segmenter, image, self._finished(segmenter, image, decoded))
        self._decoded = decoded.to(segmenter.mean.dtype)  # that of the head's weights

    @staticmethod
    def _finished(segmenter: "SmpSegmenter", image: Tensor, decoded: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        return segmenter.upsample(segmenter.classify(decoded), height, width, segmenter.label_stride)

    def embedding(self) -> Tensor:
        """The decoder's last map, without what lies over padding: [b, D, ~H / factor, ~W / factor]."""
        factor = self.segmenter.upsampling
        height, width = (-(-size // factor) for size in self.image.shape[-2:])
        return in_full(self._decoded[..., :height, :width])

    def sampled(self, samples: int, seeds: Seeds) -> Iterator[Tensor]:
        """Logits under random dropout of whole channels of the decoder's last map."""
        for mask in self._masks(samples, seeds)[..., None, None]:
            yield self._finished(self.segmenter, self.image, self._decoded * mask)

    def sampled_at(
        self, regions: Regions, rows: Tensor, numbers: Tensor, samples: int, seeds: Seeds
    ) -> Iterator[Tensor]:
        """What :meth:`sampled` gives, at regions; each [r, C, h, w].

        A last layer of 1 x 1 weighs channels, upsampling mixes pixels, dropout scales channels: each is linear, and
        their order does not matter. So the decoder's map is upsampled once, and only where regions are. A mask then
        costs one product with the weights of the channels that it keeps.
        """
        head = self.segmenter.net.segmentation_head[0]
        masks = self._masks(samples, seeds)
        if head.kernel_size != (1, 1):
            yield from super().sampled_at(regions, rows, numbers, samples, seeds)
            return
        windows = regions.windows((self.logits.shape[-2], self.logits.shape[-1]), numbers)
        height, width = self.image.shape[-2:]
        channels = self.segmenter.upsample_at(self._decoded, rows, windows, (height, width)).flatten(1, 2).mT
        outside = None if windows.inside is None else ~windows.inside[:, None]
        for mask in masks[:, rows]:  # [r, D]
            logits = torch.baddbmm(head.bias[:, None], head.weight[:, :, 0, 0] * mask[:, None], channels)
            logits = logits.unflatten(2, windows.size)
            yield logits if outside is None else logits.masked_fill_(outside, 0)

    def _masks(self, samples: int, seeds: Seeds) -> Tensor:
        """What each channel is multiplied with: [samples, b, D]."""
        drop = self.segmenter.dropout
        if not 0 < drop < 1:
            raise ConfigError(f"BALD samples the decoder's dropout, but model.dropout is {drop}")
        channels = self._decoded.shape[1]
        drawn = [torch.rand(samples, channels, generator=torch.Generator().manual_seed(seed)) for seed in seeds.images]
        return ((torch.stack(drawn, 1) >= drop) / (1 - drop)).to(self._decoded)


class SmpSegmenter(Segmenter):
    """Any architecture of segmentation-models-pytorch around any of its encoders.

    Args:
        class_names: Names of the classes; the command line takes them from the data.
        arch: The architecture.
        encoder: Encoder name of segmentation-models-pytorch (paper: resnet50).
        encoder_weights: ``imagenet`` (downloaded), ``efficientnet_lite0`` (installed by pip),
            ``none``, or a file of weights for this encoder.
        encoder_strides: Strides to change in the encoder, by the name of the convolution, where weights were trained
            so: ``{stages_3.downsample.conv2.conv: 1}``. Maps that become too large for the decoder are pooled.
        decoder: Further options of the architecture as segmentation-models-pytorch names them,
            ``{decoder_channels: 64}`` for example.
        dropout: Dropout of whole channels before the last layer; BALD samples from it.
        freeze_encoder: Train the decoder only.
        cache_features: With a frozen encoder, compute its features once an image for the whole run.
        feature_cache_gb: How many GB of features are kept in RAM; the rest goes to disk.
        channels_last: Keep the channels of a pixel side by side: the same results to rounding, and faster
            (docs/scale.md).
        compile: Compile encoder and decoder with torch.compile, which takes minutes at the start; faster where there
            are no gradients.
        options: Options of every :class:`Segmenter`.

    Examples:
        >>> net = SmpSegmenter(("road", "sky"), arch="UPerNet", encoder="tu-test_resnet", encoder_weights="none")
        >>> net.eval()(torch.zeros(1, 3, 64, 96, dtype=torch.uint8)).shape
        torch.Size([1, 2, 64, 96])
    """

    mean: Tensor
    std: Tensor
    encoder_prefix = "net.encoder."
    not_kept = (*Segmenter.not_kept, "channels_last", "compile")

    def __init__(
        self,
        class_names: tuple[str, ...],
        arch: Architecture = "FPN",
        encoder: str = "resnet50",
        encoder_weights: str = "imagenet",
        encoder_strides: dict[str, int] | None = None,
        decoder: dict[str, Any] | None = None,
        dropout: float = 0.2,
        freeze_encoder: bool = False,
        cache_features: bool = False,
        feature_cache_gb: float = 4.0,
        channels_last: bool = True,
        compile: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(class_names, **options)
        if cache_features and not freeze_encoder:
            raise ConfigError("model.cache_features needs model.freeze_encoder: a trained encoder's features change")
        self.arch, self.encoder_name, self.dropout = arch, encoder, dropout
        self.decoder_options, self.encoder_strides = dict(decoder or {}), dict(encoder_strides or {})
        self.freeze_encoder, self.cache_features = freeze_encoder, cache_features
        self._feature_cache_bytes = int(feature_cache_gb * 1e9)
        self.channels_last, self._is_compiled = channels_last, compile  # `compile` is a method of every module
        self.net: Any = self._build(encoder_weights)
        self._arrange()
        if freeze_encoder:
            self.net.encoder.requires_grad_(False).eval()
        self.has_frozen_encoder = freeze_encoder
        self.note_origin(encoder_weights)
        mean, std = encoders.normalisation(encoder)
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1) * 255, persistent=False)
        self.features: FeatureCache | None = None
        self.train()

    def _build(self, weights: str) -> Any:
        options = dict(self.decoder_options)
        self._check_options(options)
        if self.arch in _OWN_DROPOUT:
            options[_OWN_DROPOUT[self.arch]] = self.dropout
        with encoders.explained_errors(self.encoder_name, weights):
            try:
                net = getattr(smp, self.arch)(
                    self.encoder_name,
                    encoder_weights=encoders.hub_weights(weights),
                    classes=len(self.class_names),
                    **options,
                )
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"model.decoder={self.decoder_options} does not fit model.arch={self.arch}: {error}"
                ) from error
        encoders.load(self.encoder_name, net.encoder, weights)
        encoders.set_strides(net.encoder, self.encoder_strides)
        return net

    def _arrange(self) -> None:
        """Bring the network into the form that this machine computes fastest with."""
        if self.channels_last:
            self.net.to(memory_format=torch.channels_last)
        if self._is_compiled:
            self.net.encoder.compile()
            self.net.decoder.compile()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy, or one in another process: what torch compiles is neither copied nor sent."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._arrange()

    def _check_options(self, options: dict[str, Any]) -> None:
        """Refuse options that the architecture does not have: the library hands them on, and some encoders take any."""
        if self.arch not in get_args(Architecture):
            close = get_close_matches(str(self.arch), get_args(Architecture), 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"model.arch={self.arch!r} is none of {', '.join(get_args(Architecture))}{hint}")
        known = set(inspect.signature(getattr(smp, self.arch).__init__).parameters) - _OURS
        unknown = [name for name in options if name not in known]
        if unknown:
            raise ConfigError(
                f"model.decoder={options} does not fit model.arch={self.arch}: it has no option {unknown[0]!r}, but "
                f"{', '.join(sorted(known))}"
            )

    def describe(self) -> dict[str, Any]:
        """Architecture, encoder, decoder and classes."""
        return {
            "arch": self.arch,
            "encoder": self.encoder_name,
            "decoder": self.decoder_options,
            "class_names": list(self.class_names),
            **({"encoder_strides": self.encoder_strides} if self.encoder_strides else {}),
        }

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """All but those of a frozen encoder: Lightning visits each several times a step, and there are hundreds."""
        memo = set() if memo is None else memo
        if self.freeze_encoder and hasattr(self, "net"):
            memo.add(self.net.encoder)  # as if it had been visited
        yield from super().named_modules(memo, prefix, remove_duplicate)

    def train(self, mode: bool = True) -> "SmpSegmenter":
        """Set training mode; a frozen encoder keeps its statistics."""
        if not self.freeze_encoder:
            return super().train(mode)
        # not through all modules of the encoder each time: the game changes mode several times a step
        self.training = self.net.training = mode
        self.net.decoder.train(mode)
        self.net.segmentation_head.train(mode)
        return self

    # -- the network in parts ---------------------------------------------------------------------

    @property
    def upsampling(self) -> int:
        """How many times larger the logits are than the decoder's last map."""
        layer = self.net.segmentation_head[1]
        return int(cast(float, layer.scale_factor)) if isinstance(layer, nn.Upsample) else 1

    def encode(self, image: Tensor) -> list[Tensor]:
        """The feature maps that the decoder reads: [B, 3, H, W] uint8 -> maps of growing stride.

        Images of any size: they are padded at the bottom and right to a multiple of the encoder's stride.
        """
        check_pixels(image)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze_encoder):
            pixels = (image.to(self.mean.dtype) - self.mean) / self.std
            stride = max(self.net.encoder.output_stride, 32)
            bottom, right = -image.shape[-2] % stride, -image.shape[-1] % stride
            if bottom or right:
                pixels = functional.pad(pixels, (0, right, 0, bottom), mode="replicate")
            features: list[Tensor] = self.net.encoder(pixels)
            if self.encoder_strides:
                features = [self._pooled(feature, pixels, level) for level, feature in enumerate(features)]
            return features[-4:] if self.arch == "FPN" else features  # what is not read need not be kept

    @staticmethod
    def _pooled(feature: Tensor, pixels: Tensor, level: int) -> Tensor:
        """A map of the size that the decoder expects at its level: half of that of the level before."""
        height, width = (size // 2**level for size in pixels.shape[-2:])
        return feature if feature.shape[-2] <= height else functional.adaptive_avg_pool2d(feature, (height, width))

    def encoded(self, image: Tensor, index: Tensor, flipped: Tensor | None = None) -> list[Tensor]:
        """As :meth:`encode`, with cached features where they are kept."""
        if self.features is None:
            return self.encode(image)
        return self.features(self.encode, image, index, flipped, self.net.encoder)

    def decode(self, features: list[Tensor]) -> Tensor:
        """The decoder up to and with dropout: [B, D, padded H / factor, padded W / factor]."""
        decoded: Tensor = self.net.decoder(features)
        if self.arch in _OWN_DROPOUT:
            return decoded
        return functional.dropout2d(decoded, self.dropout, self.training)

    def classify(self, decoded: Tensor) -> Tensor:
        """The last convolution: [B, D, h, w] -> [B, C, h, w]."""
        coarse: Tensor = self.net.segmentation_head[0](decoded)
        return coarse

    def upsample(self, coarse: Tensor, height: int, width: int, stride: int = 1) -> Tensor:
        """The network's own bilinear upsampling, evaluated only where it is asked for; never in fewer digits."""
        factor, coarse = self.upsampling, in_full(coarse)
        if factor == 1:
            return coarse[..., :height:stride, :width:stride]
        with torch.autocast(coarse.device.type, enabled=False):
            return self._upsampled(coarse, height, width, stride)

    def _upsampled(self, coarse: Tensor, height: int, width: int, stride: int) -> Tensor:
        factor, (small_height, small_width) = self.upsampling, coarse.shape[-2:]
        if stride == 1:
            logits = functional.interpolate(coarse, scale_factor=factor, mode="bilinear", align_corners=True)
            return logits[..., :height, :width]
        rows = upsampling_matrix(small_height, factor * small_height, height, stride).to(coarse)
        columns = upsampling_matrix(small_width, factor * small_width, width, stride).to(coarse)
        return rows @ coarse @ columns.T

    def upsample_at(self, maps: Tensor, rows: Tensor, windows: Windows, size: tuple[int, int]) -> Tensor:
        """As :meth:`upsample` at ``label_stride``, in windows alone: [b, D, ?, ?] -> [r, h, w, D].

        Args:
            maps: Maps of the decoder's size.
            rows: [r] the map that each window is of.
            windows: Where.
            size: Height and width of the images.
        """
        looks = []
        for axis, (kept, length) in enumerate(zip(size, windows.size, strict=True)):
            small = maps.shape[2 + axis]
            matrix = upsampling_matrix(small, self.upsampling * small, kept, self.label_stride).to(maps)
            looks.append(Windowed.of(matrix, windows.corners[:, axis], length))
        down, across = looks
        near = maps.movedim(1, -1)[rows[:, None, None], down.points[:, :, None], across.points[:, None]]
        rows_done: Tensor = (down.weights @ near.flatten(2)).unflatten(2, near.shape[2:])
        return across.weights[:, None] @ rows_done

    def forward(self, image: Tensor) -> Tensor:
        """Logits of every pixel: [B, 3, H, W] uint8 -> [B, C, H, W]."""
        decoded = self.decode(self.encode(image))
        return self.upsample(self.classify(decoded), image.shape[-2], image.shape[-1])

    def logits(self, image: Tensor, index: Tensor, flipped: Tensor | None = None, stride: int = 1) -> Tensor:
        """As :meth:`forward`, at every ``stride``-th pixel and with cached features where they are kept."""
        decoded = self.decode(self.encoded(image, index, flipped))
        return self.upsample(self.classify(decoded), image.shape[-2], image.shape[-1], stride)

    def predict_batch(self, image: Tensor, index: Tensor) -> SmpPrediction:
        """A prediction that shares encoder and decoder with its dropout samples."""
        return SmpPrediction(self, image, self.decode(self.encoded(image, index)))

    # -- the rest of a segmenter ------------------------------------------------------------------

    def prepare(self, data: SegmentationData) -> None:
        """Make room for cached features, where they are wanted."""
        if self.cache_features:
            if data.augmentation.crop is not None:
                raise ConfigError("model.cache_features needs whole images: set data.crop to null")
            about = [self.encoder_name, self.arch, self.encoder_strides, self.mean.tolist(), self.std.tolist()]
            about += [name for name, on in (("last", self.channels_last), ("compiled", self._is_compiled)) if on]
            self.features = self.features or FeatureCache(len(data.dataset), self._feature_cache_bytes)
            self.features.keep(KeptFeatures(data, about))

    def _trained_modules(self) -> list[nn.Module]:
        modules = [self.net.decoder, self.net.segmentation_head]
        return modules if self.freeze_encoder else [*modules, self.net.encoder]

    def trained_tensors(self) -> list[Tensor]:
        """Decoder and head; the encoder too where it trains."""
        states = (module.state_dict(keep_vars=False) for module in self._trained_modules())
        return [tensor for state in states for tensor in state.values() if tensor.is_floating_point()]

    def statistics(self) -> list[Tensor]:
        """None where the encoder is frozen: no other part has any that matter."""
        return [] if self.freeze_encoder and self.arch == "FPN" else list(self.net.buffers())

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take weights; features of another encoder are forgotten."""
        own = self.net.encoder.state_dict(prefix="net.encoder.")
        is_same = all(key in state and torch.equal(tensor.cpu(), state[key].cpu()) for key, tensor in own.items())
        if self.features is not None and not is_same:
            self.features.clear()
        self.load_state_dict(state)

    def export(self, folder: Path) -> None:
        """Write ``smp/``, which ``segmentation_models_pytorch.from_pretrained`` reads."""
        self.export_smp(folder / "smp")

    def export_smp(self, folder: Path) -> None:
        """Write a folder that ``segmentation_models_pytorch.from_pretrained`` reads, with what it cannot hold beside.

        ``ralseg.json`` says mean and standard deviation (of pixels from 0 to 1), classes, colours and image size.
        """
        self.net.save_pretrained(str(folder))
        strides = {"encoder_strides": self.encoder_strides} if self.encoder_strides else {}
        scale = {key: (value / 255).flatten().tolist() for key, value in (("mean", self.mean), ("std", self.std))}
        card = {"input": _SMP_INPUT, **scale, **self.card(), **strides}
        write_atomically(folder / ABOUT, json.dumps(card, indent=1, ensure_ascii=False) + "\n")
        readme = folder / "README.md"
        before = readme.read_text(encoding="utf-8") if readme.is_file() else ""
        if _SMP_USE not in before:
            write_atomically(readme, f"{before.rstrip()}\n{_SMP_USE}".lstrip())


class FPNSegmenter(SmpSegmenter):
    """The paper's segmenter: a feature pyramid network.

    Args:
        class_names: Names of the classes; the command line takes them from the data.
        encoder: Encoder name of segmentation-models-pytorch (paper: resnet50).
        encoder_weights: ``imagenet`` (downloaded), ``efficientnet_lite0`` (installed by pip),
            ``none``, or a file of weights for this encoder.
        encoder_strides: Strides to change in the encoder, by the name of the convolution, where weights were trained
            so: ``{stages_3.downsample.conv2.conv: 1}``. Maps that become too large for the decoder are pooled.
        pyramid_channels: Width of the pyramid.
        segmentation_channels: Width of the segmentation branch, a multiple of 32.
        dropout: Dropout of whole channels before the last layer; BALD samples from it.
        freeze_encoder: Train the decoder only.
        cache_features: With a frozen encoder, compute its features once an image for the whole run.
        feature_cache_gb: How many GB of features are kept in RAM; the rest goes to disk.
        options: Options of every :class:`SmpSegmenter`, ``channels_last`` and ``compile`` among them.

    Examples:
        >>> net = FPNSegmenter(("road", "sky"), encoder="tu-test_resnet", encoder_weights="none")
        >>> net.eval()(torch.zeros(1, 3, 50, 70, dtype=torch.uint8)).shape
        torch.Size([1, 2, 50, 70])
    """

    def __init__(
        self,
        class_names: tuple[str, ...],
        encoder: str = "resnet50",
        encoder_weights: str = "imagenet",
        encoder_strides: dict[str, int] | None = None,
        pyramid_channels: int = 256,
        segmentation_channels: int = 128,
        dropout: float = 0.2,
        freeze_encoder: bool = False,
        cache_features: bool = False,
        feature_cache_gb: float = 4.0,
        **options: Any,
    ) -> None:
        if segmentation_channels % 32:
            raise ConfigError(f"model.segmentation_channels={segmentation_channels} must be a multiple of 32")
        decoder = {
            "decoder_pyramid_channels": pyramid_channels,
            "decoder_segmentation_channels": segmentation_channels,
        }
        super().__init__(
            class_names,
            arch="FPN",
            encoder=encoder,
            encoder_weights=encoder_weights,
            encoder_strides=encoder_strides,
            decoder=decoder,
            dropout=dropout,
            freeze_encoder=freeze_encoder,
            cache_features=cache_features,
            feature_cache_gb=feature_cache_gb,
            **options,
        )
