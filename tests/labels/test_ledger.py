import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ralseg.labels.ledger import LedgerError, RegionLedger


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**31), st.data())
def test_pools_are_disjoint_unlabelled_and_as_large_as_can_be(size, num_pools, pool_size, seed, data):
    ledger = RegionLedger(size)
    labelled = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=size))
    ledger.add(torch.tensor(labelled, dtype=torch.int64), step=0)
    pools = ledger.draw_pools(num_pools, pool_size, generator(seed))
    drawn = pools.flatten().tolist()
    assert len(set(drawn)) == len(drawn)
    assert not set(drawn) & set(labelled)
    left = size - len(labelled)
    assert pools.shape[0] == min(num_pools, left)
    if left:
        assert pools.shape[1] == min(pool_size, left // pools.shape[0])


def test_pools_are_uniform_over_unlabelled_regions_and_over_places():
    ledger = RegionLedger(20)
    ledger.add(torch.tensor([3, 11, 12, 19]), step=0)
    stream = generator()
    anywhere, first_place = torch.zeros(20), torch.zeros(20)
    for _ in range(4000):
        pools = ledger.draw_pools(2, 3, stream)
        anywhere[pools.flatten()] += 1
        first_place[pools[0, 0]] += 1
    for counts in (anywhere, first_place):
        assert counts[[3, 11, 12, 19]].sum() == 0
        assert chisquare(counts[ledger.unlabelled].numpy()).pvalue > 1e-3


def test_the_same_generator_gives_nearly_the_same_pools_whatever_is_labelled():
    one, other = RegionLedger(1000), RegionLedger(1000)
    one.add(torch.arange(10), 0)
    other.add(torch.arange(10, 20), 0)
    first, second = (ledger.draw_pools(10, 10, generator(5)) for ledger in (one, other))
    shared = [len(set(a.tolist()) & set(b.tolist())) for a, b in zip(first, second, strict=True)]
    assert sum(shared) >= 95  # the same regions in the same pools


@given(st.integers(1, 50), st.integers(0, 5), st.data())
def test_round_trip(size, steps, data):
    ledger = RegionLedger(size)
    order = data.draw(st.permutations(range(size)))
    for step in range(steps):
        ledger.add(torch.tensor(order[step * 3 : step * 3 + 3], dtype=torch.int64), step)
    again = RegionLedger(size)
    again.load_state_dict(ledger.state_dict())
    assert torch.equal(again.labelled, ledger.labelled)
    assert torch.equal(again.steps, ledger.steps)
    assert torch.equal(again.unlabelled, ledger.unlabelled)
    assert torch.equal(again.draw_pools(2, 2, generator()), ledger.draw_pools(2, 2, generator()))


def test_state_is_safe_to_load(tmp_path):
    ledger = RegionLedger(5)
    ledger.add(torch.tensor([4, 2]), 0)
    torch.save(ledger.state_dict(), tmp_path / "ledger.pt")
    again = RegionLedger(5)
    again.load_state_dict(torch.load(tmp_path / "ledger.pt", weights_only=True))
    assert again.labelled.tolist() == [4, 2]


@pytest.mark.parametrize("regions", [[1, 1], [0], [-1], [5]])
def test_no_region_twice_and_none_that_does_not_exist(regions):
    ledger = RegionLedger(5)
    ledger.add(torch.tensor([0]), 0)
    with pytest.raises(LedgerError, match=str(regions[0])):
        ledger.add(torch.tensor([2, *regions]), 1)
    assert ledger.labelled.tolist() == [0]  # nothing was entered


def test_a_ledger_of_another_set_is_refused():
    with pytest.raises(LedgerError, match="another split or layout"):
        RegionLedger(5).load_state_dict(RegionLedger(6).state_dict())
