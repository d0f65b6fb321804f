"""Mean intersection over union, without void pixels and without classes that do not occur."""

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassJaccardIndex

from ralseg.data.readers import IGNORE
from ralseg.errors import DataError
from ralseg.runtime import distributed


class IoU(MulticlassJaccardIndex):
    """IoU of each class over all pixels seen, averaged over the classes that occur.

    A class occurs when the labels or the predictions hold it. One that does not has no IoU: it is
    left out of the mean and of :meth:`per_class`, instead of counting as 0 or NaN.

    Args:
        class_names: One name a class.
    """

    def __init__(self, class_names: tuple[str, ...]) -> None:
        super().__init__(len(class_names), average="macro", ignore_index=IGNORE, validate_args=False)
        self.class_names = class_names

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count pixels by label and prediction, as torchmetrics does, ten times faster on a CPU.

        Void is counted like a class and then left out, which is cheaper than to pick all other pixels first.

        Args:
            preds: Predicted classes, of any shape.
            target: Labels, of the same shape; 255 = void.
        """
        number = self.num_classes
        pairs = (target.long() * number).add_(preds).flatten()
        counts = torch.bincount(pairs, minlength=(IGNORE + 1) * number)
        self.confmat += counts[: number * number].view(number, number)

    def compute(self) -> Tensor:
        """Mean IoU over the classes that occur, from 0 to 1."""
        if not self.confmat.any():
            raise DataError("no pixel of this set is labelled: every mask holds nothing but void")
        return super().compute()

    def per_class(self) -> dict[str, float]:
        """IoU of each class that occurs, by name."""
        counts = distributed.total(self.confmat)
        hits = counts.diag()
        union = counts.sum(0) + counts.sum(1) - hits
        return {
            name: float(hit / total)
            for name, hit, total in zip(self.class_names, hits, union, strict=True)
            if total > 0
        }
