import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ralseg.labels import ledger as ledger_module
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


# -- sets too large to be ordered whole ------------------------------------------------------------


@pytest.fixture
def drawn_one_by_one(monkeypatch):
    """Every set counts as large."""
    monkeypatch.setattr(ledger_module, "ORDERED", 0)


def refuse_many_draws(monkeypatch):
    """Let nobody draw as many numbers as there are regions."""
    rand = torch.rand

    def few(size, **options):
        assert size < 2**20
        return rand(size, **options)

    monkeypatch.setattr(torch, "rand", few)


def test_what_small_sets_draw_never_changes():
    """Published and resumed runs depend on it: these pools were drawn before there was another way."""
    ledger = RegionLedger(334_720)
    ledger.add(torch.arange(0, 334_720, 11), 0)
    pools = ledger.draw_pools(256, 100, generator(3))
    assert hashlib.sha256(pools.numpy().tobytes()).hexdigest()[:16] == "2f9890a19a6bec0a"


def test_large_sets_are_drawn_from_without_touching_every_region(monkeypatch):
    refuse_many_draws(monkeypatch)
    ledger = RegionLedger(33_472_000)
    ledger.add(torch.arange(0, 33_472_000, 11), 0)
    pools = ledger.draw_pools(256, 100, generator())
    assert pools.shape == (256, 100)
    assert pools.unique().numel() == 25_600
    assert (pools % 11 != 0).all()
    assert pools.max() > 33_000_000


@given(st.integers(5, 400), st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**31), st.data())
def test_few_of_many_are_disjoint_and_unlabelled(size, num_pools, pool_size, seed, data):
    ledger = RegionLedger(size)
    labelled = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=(size - 1) // 4))
    ledger.add(torch.tensor(labelled, dtype=torch.int64), step=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "ORDERED", 0)
        pools = ledger.draw_pools(num_pools, pool_size, generator(seed))
        again = RegionLedger(size)
        again.load_state_dict(ledger.state_dict())
        assert torch.equal(again.draw_pools(num_pools, pool_size, generator(seed)), pools)  # a resumed run's
    drawn = pools.flatten().tolist()
    assert len(set(drawn)) == len(drawn)
    assert not set(drawn) & set(labelled)
    left = size - len(labelled)
    assert pools.shape == (min(num_pools, left), min(pool_size, left // min(num_pools, left)))


def test_few_of_many_are_uniform_over_unlabelled_regions_and_over_places(drawn_one_by_one):
    ledger = RegionLedger(30)
    ledger.add(torch.tensor([3, 11, 12, 29]), step=0)
    stream = generator()
    anywhere, first_place = torch.zeros(30), torch.zeros(30)
    for _ in range(4000):
        pools = ledger.draw_pools(2, 3, stream)
        anywhere[pools.flatten()] += 1
        first_place[pools[0, 0]] += 1
    for counts in (anywhere, first_place):
        assert counts[[3, 11, 12, 29]].sum() == 0
        assert chisquare(counts[ledger.unlabelled].numpy()).pvalue > 1e-3


def test_few_of_many_are_nearly_the_same_whatever_is_labelled(drawn_one_by_one):
    one, other = RegionLedger(1000), RegionLedger(1000)
    one.add(torch.arange(10), 0)
    other.add(torch.arange(10, 20), 0)
    first, second = (ledger.draw_pools(10, 10, generator(5)) for ledger in (one, other))
    shared = [len(set(a.tolist()) & set(b.tolist())) for a, b in zip(first, second, strict=True)]
    assert sum(shared) >= 95


def test_a_large_set_that_is_nearly_labelled_is_still_dealt_out(drawn_one_by_one):
    ledger = RegionLedger(100)
    ledger.add(torch.arange(93), 0)
    assert sorted(ledger.draw_pools(7, 5, generator()).flatten().tolist()) == list(range(93, 100))
    ledger.add(torch.arange(93, 100), 1)
    assert ledger.draw_pools(7, 5, generator()).shape == (0, 0)


def test_many_tiny_pools_of_a_large_set_are_all_filled(drawn_one_by_one):
    ledger = RegionLedger(400)
    ledger.add(torch.arange(99), 0)
    for seed in range(20):  # one of 99 pools gets nothing but labelled regions in most of them
        assert ledger.draw_pools(99, 1, generator(seed)).unique().numel() == 99
