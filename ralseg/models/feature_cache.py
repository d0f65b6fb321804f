"""The cache of a frozen encoder's features: computed once an image, for the whole run and for the next ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ralseg.data.datamodule import SegmentationData
from ralseg.models.origins import checksum
from ralseg.runtime.copies import Mapped
from ralseg.runtime.tensor_cache import TensorCache

_MAPPINGS = 16_384
"""Files that a process maps into its memory at most; systems allow about 65,000 of them."""


class KeptFeatures:
    """Features of a data set's images on disk, for the runs to come. They follow from pixels and weights alone.

    Args:
        data: The data, set up.
        about: Plain values that features depend on beside pixels and weights.
    """

    def __init__(self, data: SegmentationData, about: list[Any]) -> None:
        self.data, self._about = data, about
        self._seen: tuple[list[tuple[int, int]], str] | None = None  # a stamp of weights, and their checksum

    def get(
        self, index: int, is_flipped: bool, encoder: nn.Module, make: Callable[[], Tensor], mapped: bool = False
    ) -> NDArray[Any]:
        """Features of an image, from an earlier run or made now; on the CPU.

        Args:
            index: Position in the data set.
            is_flipped: Of its mirror image.
            encoder: What makes them.
            make: Makes them.
            mapped: Leave them in their file, as :class:`Mapped`, so that processes share them.
        """
        pixels = self.data.image_key(index)
        key = None if pixels is None else self._key(encoder, "features", *pixels, is_flipped)
        return self.data.dataset.copies.get(key, lambda: make().cpu().numpy(), mapped)

    def shapes(self, image: Tensor, encoder: nn.Module, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """What an earlier run has noted of the features of images [1, 3, H, W] of this size, or is noted now."""
        return self.data.dataset.copies.get(self._key(encoder, "shapes", *image.shape[1:]), make)

    def _key(self, encoder: nn.Module, kind: str, *what: Any) -> list[Any] | None:
        """All that something made by the encoder follows from; None where nobody else may take it for theirs."""
        state = encoder.state_dict(keep_vars=True)  # not parameters(): some modules hide theirs from Lightning
        arithmetic = _arithmetic(next(iter(state.values())).device.type)
        return arithmetic and [kind, *what, *arithmetic, self._checksum(state), *self._about]

    def _checksum(self, state: dict[str, Tensor]) -> str:
        """Tells weights and statistics from all others; computed again when any of them was written to."""
        stamp = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in state.values()]
        if self._seen is None or self._seen[0] != stamp:
            self._seen = stamp, checksum(state)
        return self._seen[1]


def _arithmetic(device: str) -> list[Any] | None:
    """What the last bits of features depend on; None under autocast, whose features nobody else may take for theirs."""
    if torch.is_autocast_enabled(device):
        return None
    threads = torch.get_num_threads() if device == "cpu" else 0
    tensor_float = torch.backends.cudnn.allow_tf32 or torch.get_float32_matmul_precision() != "highest"
    return [device, torch.__version__, threads, torch.backends.cpu.get_cpu_capability(), tensor_float]


class FeatureCache:
    """Features of a frozen encoder, kept for each image and for its mirror image. Copies of a segmenter share it.

    Args:
        num_images: Number of images in the data set.
        ram_bytes: How much is kept in RAM; the rest goes to disk.
    """

    def __init__(self, num_images: int, ram_bytes: int) -> None:
        self._num_images, self._ram_bytes = num_images, ram_bytes
        self._kept: KeptFeatures | None = None
        self._cache: TensorCache | None = None
        self._shapes: list[torch.Size] = []
        self._dtype, self._is_plain, self._is_last, self._is_low = torch.float32, True, False, False
        self._first: list[Tensor] | None = None  # of the image that told the shapes

    def __deepcopy__(self, memo: dict[int, object]) -> "FeatureCache":
        """The same cache: it depends on the frozen encoder alone."""
        return self

    def __getstate__(self) -> dict[str, object]:
        """For other processes: an empty cache."""
        return self.__dict__ | {"_cache": None, "_shapes": [], "_kept": None, "_first": None}

    def keep(self, kept: KeptFeatures) -> None:
        """Use features of earlier runs, and leave some to later ones; other data's features are forgotten."""
        if self._kept is not None and self._kept.data is not kept.data:
            self.clear()
        self._kept, self._num_images = kept, len(kept.data.dataset)

    def clear(self) -> None:
        """Forget everything: the encoder has changed."""
        self._cache = None

    def __call__(
        self,
        encode: Callable[[Tensor], list[Tensor]],
        image: Tensor,
        index: Tensor,
        flipped: Tensor | None,
        encoder: nn.Module | None = None,
    ) -> list[Tensor]:
        """Features of a batch; those not kept yet are computed and kept.

        One image at a time: in a batch, rounding would depend on the company an image happens to be in,
        and a resumed run, which fills its cache in another order, would no longer be bit-identical.

        Args:
            encode: The encoder: [1, 3, H, W] -> feature maps.
            image: [B, 3, H, W].
            index: [B] positions in the data set.
            flipped: [B] bool; None when no image is mirrored.
            encoder: The module behind ``encode``, for features that outlive the run.
        """
        is_low = torch.is_autocast_enabled(image.device.type)
        if is_low != self._is_low:  # another Trainer's precision
            self.clear()
        self._is_low = is_low
        keys = (index * 2 + (0 if flipped is None else flipped)).tolist()
        for position, key in enumerate(keys):
            one = image[position : position + 1]
            if self._cache is None:
                self._cache = self._open(encode, one, key, encoder)
            if key not in self._cache:
                self._fill(self._cache, encode, one, key, encoder)
        assert self._cache is not None
        sizes = [shape.numel() for shape in self._shapes]
        rows = [self._cache[key].split(sizes) for key in keys]
        # each map by itself: slices of one tensor would be copied once more, by the convolutions
        maps = [torch.stack(level) for level in zip(*rows, strict=True)]
        return [
            self._as_map(level, shape).to(image.device, non_blocking=True)
            for level, shape in zip(maps, self._shapes, strict=True)
        ]

    def _as_map(self, level: Tensor, shape: torch.Size) -> Tensor:
        """[B, C * H * W] as [B, C, H, W], in the order that the encoder left it in: else each pass would reorder it."""
        if not self._is_last:
            return level.view(-1, *shape)
        channels, height, width = shape
        return level.view(-1, height, width, channels).permute(0, 3, 1, 2)

    def _open(
        self, encode: Callable[[Tensor], list[Tensor]], image: Tensor, key: int, encoder: nn.Module | None
    ) -> TensorCache:
        """Make room for features of the shapes that a first image has."""

        def make() -> NDArray[Any]:
            with torch.no_grad():
                self._first = features = encode(image)
            self._dtype = features[0].dtype
            is_plain = all(feature.dtype == torch.float32 for feature in features)
            is_last = features[-1].is_contiguous(memory_format=torch.channels_last)  # the first may be the image
            if is_plain and self._kept is not None and encoder is not None:  # before others that wait encode it, too
                self._kept.get(key // 2, bool(key % 2), encoder, lambda: _in_a_row(features, is_last))
            return np.array([[is_plain, is_last, False], *(feature.shape[1:] for feature in features)])

        self._first, self._dtype = None, torch.float32
        found = make() if self._kept is None or encoder is None else self._kept.shapes(image, encoder, make)
        if not found[0, 0] and self._first is None:
            found = make()
        self._is_plain, self._is_last = bool(found[0, 0]), bool(found[0, 1])
        self._shapes = [torch.Size(shape) for shape in found[1:].tolist()]
        size = sum(shape.numel() for shape in self._shapes)
        return TensorCache(None, 2 * self._num_images, (size,), self._dtype, self._ram_bytes)

    def _fill(
        self,
        cache: TensorCache,
        encode: Callable[[Tensor], list[Tensor]],
        image: Tensor,
        key: int,
        encoder: nn.Module | None,
    ) -> None:
        """Have features of one image in a row, of an earlier run where they are kept."""
        first, self._first = self._first, None  # what told the shapes need not be computed twice

        def make() -> Tensor:
            with torch.no_grad():
                return _in_a_row(first or encode(image), self._is_last)

        # NumPy does not know all other precisions
        if self._kept is None or encoder is None or not self._is_plain:
            cache.put(key, make())
            return
        found = self._kept.get(key // 2, bool(key % 2), encoder, make, mapped=cache.num_lent < _MAPPINGS)
        features = torch.from_numpy(found)
        if isinstance(found, Mapped):
            cache.lend(key, features)
        else:
            cache.put(key, features)


def _in_a_row(features: list[Tensor], is_last: bool) -> Tensor:
    """All maps of an image in one tensor of one dimension, pixel by pixel or channel by channel."""
    return torch.cat([(feature.permute(0, 2, 3, 1) if is_last else feature).flatten() for feature in features])
