"""The feature store: what a closed-form segmenter has computed for the images of one data set."""

import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from ralseg.data.datamodule import SegmentationData
from ralseg.models.feature_cache import KeptFeatures
from ralseg.runtime.tensor_cache import TensorCache


class FeatureStore:
    """Features of a data set's images, and of their mirror images. Copies of a segmenter share it, files do not."""

    def __init__(self) -> None:
        self._cache: TensorCache | None = None
        self._keys: dict[int, int] = {}
        self._means: dict[int, Tensor] = {}
        self._ram_bytes = 0
        self._of: tuple[object, ...] = ()  # what the features are of
        self._basis: Tensor | None = None  # what they were made by
        self._kept: KeptFeatures | None = None  # those of earlier runs

    def __deepcopy__(self, memo: dict[int, object]) -> "FeatureStore":
        """The same store: it depends on the frozen features alone."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Empty in another process."""
        return vars(FeatureStore())

    @property
    def is_open(self) -> bool:
        """Whether there is room for features."""
        return self._cache is not None

    def open(self, data: SegmentationData, shape: tuple[int, ...], ram_bytes: int, basis: Tensor) -> None:
        """Make room for the features of a data set's images, unless it is there."""
        of = (data.dataset, data.height, data.width, data.canvas, shape)
        if not self.is_open or of[1:] != self._of[1:] or of[0] is not self._of[0] or not self._is_by(basis):
            self._of, self._basis, self._keys, self._means = of, basis.detach().cpu().clone(), {}, {}
            self._ram_bytes = ram_bytes
            self._cache = TensorCache(None, 2 * len(data.dataset), shape, torch.float32, ram_bytes)
            self._kept = KeptFeatures(data, ["grid", *shape])

    def of(self, basis: Tensor) -> "FeatureStore":
        """This store, or an empty one where other components make the features; a copy may still need this one."""
        if not self.is_open or self._is_by(basis):
            return self
        cache, fresh = self._cache, FeatureStore()
        assert cache is not None
        fresh._of, fresh._basis, fresh._ram_bytes = self._of, basis.detach().cpu().clone(), self._ram_bytes
        fresh._kept = self._kept
        fresh._cache = TensorCache(None, len(cache), cache.shape, torch.float32, self._ram_bytes)
        return fresh

    def _is_by(self, basis: Tensor) -> bool:
        return self._basis is not None and torch.equal(self._basis, basis.detach().cpu())

    def __contains__(self, slot: int) -> bool:
        """Whether an image's features are there."""
        return self._cache is not None and slot in self._cache

    def fill(self, slot: int, maker: nn.Module, image: Tensor) -> None:
        """Have an image's features here: [h, w, D], of an earlier run where they are kept.

        Args:
            slot: Twice the image's position in the data set, and one more for its mirror image.
            maker: Makes them: [1, 3, H, W] -> [1, h, w, D].
            image: [1, 3, H, W].
        """
        assert self._cache is not None
        assert self._kept is not None
        features = torch.from_numpy(self._kept.get(slot // 2, bool(slot % 2), maker, lambda: maker(image)[0]))
        self._cache.put(slot, features)
        self._means[slot] = self._without_padding(features, slot).mean((0, 1)).cpu()

    def _without_padding(self, features: Tensor, slot: int) -> Tensor:
        """The part [h', w', D] that the image itself fills; in a mirror image, that is on the right."""
        assert self._kept is not None
        data = self._kept.data
        height, width = data.content(slot // 2)
        rows = math.ceil(features.shape[0] * height / data.height)
        columns = math.ceil(features.shape[1] * width / data.width)
        return features[:rows, -columns:] if slot % 2 else features[:rows, :columns]

    def key(self, slot: int, image: Tensor) -> int:
        """A number that tells an image [3, H, W] from all others by its pixels, whatever data set it is from."""
        if slot in self._keys:
            return self._keys[slot]
        digest = hashlib.blake2b(image.cpu().numpy().tobytes(), digest_size=8).digest()
        number = int.from_bytes(digest, signed=True)
        if self.is_open:  # of one data set: an image keeps its slot
            self._keys[slot] = number
        return number

    def stack(self, slots: list[int]) -> Tensor:
        """Features of several images: [B, h, w, D]."""
        assert self._cache is not None
        return self._cache.stack(slots)

    def means(self, slots: list[int]) -> Tensor:
        """Mean features of whole images, which are all here: [B, D]."""
        return torch.stack([self._means[slot] for slot in slots])

    def everything(self) -> Tensor | None:
        """All features without a copy, where they are in RAM: [slots, h, w, D]."""
        return None if self._cache is None else self._cache.in_ram()
