"""The candidates of a step: all that features are made of."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ralseg.acquisition.features import RegionFeatures
from ralseg.labels.layout import Regions


@dataclass(frozen=True)
class Candidates:
    """R candidates as the segmenter sees them, and what is labelled by now.

    Labelled are L regions of the set that is played on. The M regions of the images that theta_0 was trained on are
    known beside them, where their labels are at hand.

    Examples:
        >>> seen = RegionFeatures(torch.rand(6, 4), torch.zeros(6, 0), torch.rand(6, 3))
        >>> Candidates(seen, labelled=torch.rand(2, 4)).known.shape  # theta_0's labels are not at hand
        torch.Size([2, 4])
    """

    seen: RegionFeatures  # predictions and measures of the R candidates
    labelled: Tensor  # [L, C] class shares of labelled regions
    before: Tensor | None = None  # [M, C] class shares of theta_0's regions
    measures: dict[str, Tensor] = field(default_factory=dict)  # [L + M, D] each: of what is labelled and known
    numbers: Tensor | None = None  # [R] region numbers
    labelled_numbers: Tensor | None = None  # [L]
    regions: Regions | None = None  # how images are cut
    spent: float = 0.0  # share of the budget

    @property
    def known(self) -> Tensor:
        """Class shares of everything whose labels are known: [L + M, C]."""
        return self.labelled if self.before is None else torch.cat([self.labelled, self.before])
