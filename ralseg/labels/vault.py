"""The vault of masks: code sees the labels that it may know, an oracle reveals the others."""

from collections.abc import Iterable

from torch import Tensor

from ralseg.errors import HiddenLabelError
from ralseg.runtime.tensor_cache import TensorCache

IGNORE = 255
"""The mask value that no loss and no metric counts (void, and every pixel without a label)."""


class MaskVault:
    """Holds every mask of a data set and gives out only those of opened images.

    Attributes:
        revealed: Number of boxes that oracles have revealed, for audits of the label budget.
    """

    def __init__(self, masks: TensorCache, names: list[str]) -> None:
        self._masks = masks
        self._names = names
        self._open: set[int] = set()
        self.revealed = 0

    def open(self, indices: Iterable[int]) -> None:
        """Declare whole images as labelled: their masks may be read from now on."""
        self._open.update(indices)

    def close(self, indices: Iterable[int]) -> None:
        """Hide the masks of images again: only an oracle may reveal them from now on."""
        self._open.difference_update(indices)

    def __getitem__(self, index: int) -> Tensor:
        """The mask of an opened image: [height, width] of uint8, 255 = ignore."""
        if index not in self._open:
            raise HiddenLabelError(
                f"the labels of image {self._names[index]} are hidden: only an oracle may reveal them, region by region"
            )
        return self._masks[index]

    def reveal_box(self, index: int, box: tuple[int, int, int, int]) -> Tensor:
        """Labels inside a box (x, y, width, height) of any image. For oracles only."""
        x, y, width, height = box
        self.revealed += 1
        return self._masks[index][y : y + height, x : x + width].clone()
