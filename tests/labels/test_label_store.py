"""Labels in memory and on disk give the same, and a full or foreign place is named."""

import os
import pickle

import pytest
import torch

from ralseg.errors import RalsegError
from ralseg.labels.label_store import LabelStore
from support.games import acquire, final, selected


def labels(number: int) -> torch.Tensor:
    return torch.randint(0, 12, (number, 5, 7), generator=torch.Generator().manual_seed(number)).to(torch.uint8)


@pytest.mark.parametrize("memory", [0, 35 * 3, 35 * 100])
def test_what_goes_in_comes_out(memory):
    store, given = LabelStore(memory), labels(10)
    for region, label in enumerate(given):
        store[100 - region] = label
    assert all(torch.equal(store[100 - region], label) for region, label in enumerate(given))
    again = labels(11)[:10]
    for region in (0, 9, 4):  # corrections, of some in memory and some in the file
        store[100 - region] = again[region]
    changed = [store[100 - region] for region in range(10)]
    expected = [again[region] if region in (0, 9, 4) else given[region] for region in range(10)]
    assert all(torch.equal(*pair) for pair in zip(changed, expected, strict=True))
    with pytest.raises(KeyError):
        store[3]


def test_a_label_of_another_size_takes_a_place_of_its_own():
    store = LabelStore(memory=0)
    for region, size in ((1, 3), (2, 4), (1, 9), (2, 1)):
        store[region] = torch.full((size,), region, dtype=torch.uint8)
    assert store[1].tolist() == [1] * 9
    assert store[2].tolist() == [2]


def test_memory_is_used_first_and_only_so_much_of_it():
    store = LabelStore(memory=35 * 3)
    for region, label in enumerate(labels(10)):
        store[region] = label
    assert list(store._kept) == [0, 1, 2]
    assert os.fstat(store._file.fileno()).st_size == 35 * 7


def test_a_forked_worker_reads_the_file_and_nothing_has_a_name():
    store = LabelStore(memory=0)
    store[5] = labels(1)[0]
    assert os.fstat(store._file.fileno()).st_nlink == 0
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(store[5], labels(1)[0]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_other_processes_are_told_why_they_cannot_have_it():
    store = LabelStore(memory=0)
    assert torch.equal(pickle.loads(pickle.dumps(LabelStore()))._end * torch.ones(1), torch.zeros(1))
    store[5] = labels(1)[0]
    with pytest.raises(RalsegError, match=r"data\.num_workers to 0"):
        pickle.dumps(store)


@pytest.mark.parametrize("fault", ["error", "short"])
def test_a_full_disk_is_named(monkeypatch, fault):
    def full(*_):
        if fault == "error":
            raise OSError(28, "No space left on device")
        return 3

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RalsegError, match=r"do not fit there \(.*\); make room or let TMPDIR name another folder"):
        LabelStore(memory=0)[1] = labels(1)[0]


@pytest.mark.slow
def test_a_run_with_its_labels_on_disk_ends_the_same(tmp_path, monkeypatch):
    in_memory = acquire(tmp_path / "memory", options={"final": final(max_steps=2)})[1]
    monkeypatch.setattr(LabelStore.__init__, "__defaults__", (0,))
    trainer, on_disk = acquire(tmp_path / "disk", options={"final": final(max_steps=2)})
    assert trainer.fit_loop.session.labels._labels._file is not None
    assert on_disk["budgets"] == in_memory["budgets"]
    assert selected(tmp_path / "disk") == selected(tmp_path / "memory")
