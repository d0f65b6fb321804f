"""The observation: all that a policy knows when it chooses regions."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Observation:
    """What the agent sees at a step. K pools of N regions, R_S regions of the state set, L labelled regions.

    Examples:
        >>> seen = Observation.unseen(torch.tensor([[4, 7], [1, 9]]), picks=1, labelled=torch.zeros(0, 11))
        >>> seen.pools.shape
        torch.Size([2, 2])
    """

    state: Tensor  # [R_S, F]
    pools: Tensor  # [K, N] region numbers
    actions: Tensor  # [K, N, A + 1]; the last column is the prior: how unsure the network is, standardised
    entropy: Tensor  # [K, N] mean pixel entropy
    histogram: Tensor  # [K, N, C] share of predicted classes
    picks: int = 1  # regions that will be taken from each pool
    measures: dict[str, Tensor] = field(default_factory=dict)  # [K, N] or [K, N, D]: what the policy asked for
    labelled: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # [L, C] class shares of labelled regions
    labelled_measures: dict[str, Tensor] = field(default_factory=dict)  # [L] or [L, D]
    spent: float = 0.0  # share of the budget

    @staticmethod
    def unseen(pools: Tensor, picks: int, labelled: Tensor) -> "Observation":
        """Candidates that nobody looked at."""
        nothing = torch.empty(*pools.shape, 0)
        return Observation(torch.empty(0, 0), pools, nothing, nothing, nothing, picks, labelled=labelled)
