"""`ralseg cache`: what it shows, and what it deletes."""

import os

import numpy as np
import pytest

from ralseg.cli import main
from ralseg.runtime.copies import KeptCopies


@pytest.fixture
def store(tmp_path, monkeypatch):
    folder = tmp_path / "store"
    monkeypatch.setenv("RALSEG_CACHE", str(folder))
    return folder


def test_an_empty_store(store, capsys):
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{store}: holds nothing yet\n"
    assert main(["cache", "clear"]) == 0
    assert "0 copies deleted" in capsys.readouterr().out


def test_it_shows_kinds_and_clears(store, capsys):
    copies = KeptCopies(store, 10_000_000)
    for number in range(3):
        copies.get(["features", number], lambda: np.zeros(100_000, np.float32))
    copies.get(["counts", 0], lambda: np.zeros(8, np.int64))
    (store / "ab").mkdir(exist_ok=True)
    (store / "ab" / "old.copy").write_bytes(b"of a version before headers")
    (store / "mine.txt").write_text("not ralseg's")
    assert main(["cache"]) == 0
    said = capsys.readouterr().out
    for kind, number, megabytes in (("counts", 1, 0.0), ("features", 3, 1.2), ("of another version", 1, 0.0)):
        row = next(line for line in said.splitlines() if kind in line)
        assert row.replace("│", " ").split()[-4:-2] == [str(number), str(megabytes)]
    assert main(["cache", "clear"]) == 0
    assert "5 copies deleted, 1.2 MB" in capsys.readouterr().out
    assert [path.name for path in store.rglob("*")] == ["mine.txt"]


def test_only_what_was_not_used_for_long(store, capsys):
    copies = KeptCopies(store, 10_000_000)
    for number in range(4):
        copies.get(["features", number], lambda: np.zeros(10))
    old, *_ = store.rglob("*.copy")
    os.utime(old, (1, 1))
    assert main(["cache", "clear", "--unused_days", "30"]) == 0
    assert "1 copies deleted" in capsys.readouterr().out
    assert len(list(store.rglob("*.copy"))) == 3


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--folder", "/no/such/folder"], "--folder /no/such/folder: no such folder; it is what data.cache_folder"),
        (["clear", "--unused_days", "-1"], "--unused_days -1.0: must be 0 or more"),
        (["empty"], "empty"),
    ],
)
def test_what_cannot_be_meant_is_refused(typed, said, store, capsys):
    assert main(["cache", *typed]) == 2
    assert said in capsys.readouterr().err
