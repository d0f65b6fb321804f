"""The cache of a frozen encoder's features: computed once an image, for the whole run."""

from collections.abc import Callable

import torch
from torch import Tensor

from ralseg.runtime.tensor_cache import TensorCache


class FeatureCache:
    """Features of a frozen encoder, kept for each image and for its mirror image. Copies of a segmenter share it.

    Args:
        num_images: Number of images in the data set.
        ram_bytes: How much is kept in RAM; the rest goes to disk.
    """

    def __init__(self, num_images: int, ram_bytes: int) -> None:
        self._num_images, self._ram_bytes = num_images, ram_bytes
        self._cache: TensorCache | None = None
        self._shapes: list[torch.Size] = []

    def __deepcopy__(self, memo: dict[int, object]) -> "FeatureCache":
        """The same cache: it depends on the frozen encoder alone."""
        return self

    def __getstate__(self) -> dict[str, object]:
        """For other processes: an empty cache."""
        return self.__dict__ | {"_cache": None, "_shapes": []}

    def clear(self) -> None:
        """Forget everything: the encoder has changed."""
        self._cache = None

    def __call__(
        self, encode: Callable[[Tensor], list[Tensor]], image: Tensor, index: Tensor, flipped: Tensor | None
    ) -> list[Tensor]:
        """Features of a batch; those not kept yet are computed and kept.

        One image at a time: in a batch, rounding would depend on the company an image happens to be in,
        and a resumed run, which fills its cache in another order, would no longer be bit-identical.

        Args:
            encode: The encoder: [1, 3, H, W] -> feature maps.
            image: [B, 3, H, W].
            index: [B] positions in the data set.
            flipped: [B] bool; None when no image is mirrored.
        """
        keys = (index * 2 + (0 if flipped is None else flipped)).tolist()
        for position, key in enumerate(keys):
            if self._cache is None or key not in self._cache:
                with torch.no_grad():
                    self._keep(key, encode(image[position : position + 1]))
        assert self._cache is not None
        flat = self._cache.stack(keys).to(image.device, non_blocking=True)
        parts = flat.split([shape.numel() for shape in self._shapes], dim=1)
        return [part.view(len(keys), *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _keep(self, key: int, features: list[Tensor]) -> None:
        if self._cache is None:
            self._shapes = [feature.shape[1:] for feature in features]
            size = sum(shape.numel() for shape in self._shapes)
            self._cache = TensorCache(None, 2 * self._num_images, (size,), features[0].dtype, self._ram_bytes)
        self._cache.put(key, torch.cat([feature.flatten() for feature in features]))
