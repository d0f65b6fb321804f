"""The ledger: which regions are labelled, in which order, and by which step."""

from typing import Any

import torch
from torch import Tensor

from ralseg.errors import RalsegError


class LedgerError(RalsegError):
    """A region was entered twice, or does not exist."""


class RegionLedger:
    """Keeps count of ``num_regions`` regions, of which each may be labelled once.

    Adding a region costs O(1); drawing pools is one vectorised pass over all regions.
    """

    def __init__(self, num_regions: int) -> None:
        self._is_labelled = torch.zeros(num_regions, dtype=torch.bool)
        self._order = torch.empty(num_regions, dtype=torch.int64)
        self._step = torch.empty(num_regions, dtype=torch.int64)
        self._count = 0

    def __len__(self) -> int:
        """Number of labelled regions."""
        return self._count

    @property
    def num_regions(self) -> int:
        """Number of regions, labelled or not."""
        return self._is_labelled.numel()

    @property
    def num_unlabelled(self) -> int:
        """Number of regions that can still be labelled."""
        return self.num_regions - self._count

    @property
    def labelled(self) -> Tensor:
        """The labelled regions in the order in which they were labelled: [count]."""
        return self._order[: self._count]

    @property
    def steps(self) -> Tensor:
        """The step that labelled each of ``labelled``: [count]."""
        return self._step[: self._count]

    @property
    def unlabelled(self) -> Tensor:
        """The regions that can still be labelled, in ascending order: [num_unlabelled]."""
        return (~self._is_labelled).nonzero().squeeze(1)

    def add(self, regions: Tensor, step: int) -> None:
        """Enter ``regions`` [K] as labelled by ``step``; all of them, or none on an error."""
        regions = regions.to("cpu", torch.int64).flatten()
        outside = regions[(regions < 0) | (regions >= self.num_regions)]
        if outside.numel():
            raise LedgerError(f"regions {outside.tolist()} do not exist: there are {self.num_regions}")
        values, counts = regions.unique(return_counts=True)
        again = torch.cat([regions[self._is_labelled[regions]], values[counts > 1]]).unique()
        if again.numel():
            raise LedgerError(f"regions {again.tolist()} would be labelled twice (step {step})")
        end = self._count + regions.numel()
        self._order[self._count : end] = regions
        self._step[self._count : end] = step
        self._is_labelled[regions] = True
        self._count = end

    def draw_pools(self, num_pools: int, pool_size: int, generator: torch.Generator) -> Tensor:
        """Draw K disjoint pools of N unlabelled regions, uniformly without replacement: [K, N].

        Near the end of the set the pools shrink (N first, then K), so that none is empty and no
        region stands in two pools. A random order of *all* regions, labelled or not, is dealt out to the
        pools: games that share the generator's state see the same pools but for what they labelled.
        """
        num_pools = min(num_pools, self.num_unlabelled)
        order = torch.rand(self.num_regions, generator=generator, dtype=torch.float64).argsort()
        if num_pools == 0:
            return torch.empty(0, 0, dtype=torch.int64)
        pool_size = min(pool_size, self.num_unlabelled // num_pools)
        rows = self.num_regions // num_pools
        dealt = order[: rows * num_pools].reshape(rows, num_pools).T  # [K, rows]
        is_free = ~self._is_labelled[dealt]
        if (is_free.sum(1) >= pool_size).all():
            taken = is_free & (is_free.cumsum(1) <= pool_size)
            return dealt[taken].reshape(num_pools, pool_size)
        # few are left, unevenly dealt: deal out only those
        left = order[~self._is_labelled[order]][: num_pools * pool_size]
        return left.reshape(pool_size, num_pools).T.contiguous()

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers that :meth:`load_state_dict` reads back."""
        return {
            "num_regions": self.num_regions,
            "labelled": self.labelled.clone(),
            "steps": self.steps.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to a saved state; refuses one of another number of regions."""
        if state["num_regions"] != self.num_regions:
            raise LedgerError(
                f"the saved ledger has {state['num_regions']} regions, this set has {self.num_regions}: "
                "it belongs to another split or layout"
            )
        self._count = 0
        self._is_labelled.zero_()
        self.add(state["labelled"], step=0)
        self._step[: self._count] = state["steps"]
