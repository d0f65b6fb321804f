"""The ledger: which regions are labelled, in which order, and by which step."""

from typing import Any

import torch
from torch import Tensor

from ralseg.errors import RalsegError

ORDERED = 2**20
"""Regions up to which pools are dealt from a random order of all of them; larger sets are drawn from one by one."""


class LedgerError(RalsegError):
    """A region was entered twice, or does not exist."""


class RegionLedger:
    """Keeps count of ``num_regions`` regions, of which each may be labelled once.

    Adding a region costs O(1). Drawing pools costs a pass over all regions where there are few of them, and else only
    as much as the pools are large; see :meth:`draw_pools`. A region takes a byte, a labelled one 16 more.
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

        Up to ``ORDERED`` regions that order is made whole. In larger sets only its beginning is drawn, as far as it is
        needed, unless a quarter of the set is labelled or asked for: then drawing one by one would meet too many
        regions again. The rule reads nothing but sizes, so a resumed run follows it too.
        """
        num_pools = min(num_pools, self.num_unlabelled)
        pool_size = min(pool_size, self.num_unlabelled // max(num_pools, 1))
        if self.num_regions > ORDERED and 4 * max(len(self), num_pools * pool_size) < self.num_regions:
            return self._draw_few(num_pools, pool_size, generator)
        order = torch.rand(self.num_regions, generator=generator, dtype=torch.float64).argsort()
        if num_pools == 0:
            return torch.empty(0, 0, dtype=torch.int64)
        pools = self._deal(order, num_pools, pool_size)
        return self._deal_unlabelled(order, num_pools, pool_size) if pools is None else pools

    def _deal(self, order: Tensor, num_pools: int, pool_size: int) -> Tensor | None:
        """Deal an order out to the pools, each of which takes the first N unlabelled regions it gets: [K, N].

        None: a pool gets too few.
        """
        rows = len(order) // num_pools
        dealt = order[: rows * num_pools].reshape(rows, num_pools).T  # [K, rows]
        is_free = ~self._is_labelled[dealt]
        if not (is_free.sum(1) >= pool_size).all():
            return None
        taken = is_free & (is_free.cumsum(1) <= pool_size)
        return dealt[taken].reshape(num_pools, pool_size)

    def _deal_unlabelled(self, order: Tensor, num_pools: int, pool_size: int) -> Tensor:
        """Deal out only what is unlabelled, where few such regions are left and unevenly dealt: [K, N]."""
        left = order[~self._is_labelled[order]][: num_pools * pool_size]
        return left.reshape(pool_size, num_pools).T.contiguous()

    def _draw_few(self, num_pools: int, pool_size: int, generator: torch.Generator) -> Tensor:
        """Deal the beginning of a random order, made by drawing regions and leaving out those drawn before: [K, N]."""
        drawn = torch.empty(0, dtype=torch.int64)
        while True:
            shares = torch.rand(2 * num_pools * pool_size, generator=generator, dtype=torch.float64)
            more = (shares * self.num_regions).long().clamp(max=self.num_regions - 1)  # a product may be rounded up
            drawn = torch.cat([drawn, more])
            order = first_occurrences(drawn)
            pools = self._deal(order, num_pools, pool_size)
            if pools is not None:
                return pools
            if 2 * len(order) >= self.num_regions:  # so many small pools that one of them may never get enough
                return self._deal_unlabelled(order, num_pools, pool_size)

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


def first_occurrences(values: Tensor) -> Tensor:
    """Each value once, where it first stands: [n] -> [m].

    Examples:
        >>> first_occurrences(torch.tensor([7, 2, 7, 5, 2])).tolist()
        [7, 2, 5]
    """
    ascending, places = values.sort(stable=True)
    is_first = torch.ones(len(values), dtype=torch.bool)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return values[places[is_first].sort().values]
