"""Checkpoints that are damaged, hostile or ruined."""

import os
import pickle
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from ralseg.errors import ConfigError, DataError
from ralseg.runtime import checkpoints
from ralseg.runtime.checkpoints import DurableCheckpointIO, is_sound, previous_of, read_checkpoint
from support.games import acquire, assert_same, everything, game, play

LAST = "checkpoints/last.ckpt"


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "empty":
        content = bytearray()
    else:
        content[len(content) // 2] ^= 1  # one bit of some tensor
    path.unlink()  # the file before it may be a second name of this one
    path.write_bytes(content)


def test_two_damaged_checkpoints_are_not_taken_for_none(tmp_path):
    play(tmp_path, game(), max_epochs=4, checkpoint_every=1)
    (tmp_path / LAST).unlink()
    damage(previous_of(tmp_path / LAST), "truncated")
    with pytest.raises(DataError, match="and so is the one before it"):
        play(tmp_path, game(), ckpt="last")


@pytest.mark.parametrize("how", ["truncated", "empty", "one bit"])
def test_a_damaged_checkpoint_is_seen(tmp_path, how):
    path = tmp_path / "w.ckpt"
    DurableCheckpointIO().save_checkpoint({"state_dict": {"w": torch.randn(5000)}}, path)
    assert is_sound(path)
    damage(path, how)
    assert not is_sound(path)
    with pytest.raises(DataError, match=r"w\.ckpt: not a checkpoint, or damaged"):
        read_checkpoint(path)


@pytest.mark.slow
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path, caplog):
    whole = play(tmp_path / "whole", game())
    play(tmp_path / "cut", game(), max_epochs=7, checkpoint_every=1)
    last = tmp_path / "cut" / LAST
    assert read_checkpoint(previous_of(last))["epoch"] == read_checkpoint(last)["epoch"] - 1
    damage(last, "one bit")
    with pytest.raises(DataError, match="damaged"):  # a file that is named is taken or refused
        play(tmp_path / "cut", game(), ckpt=str(last), checkpoint_every=1)
    caplog.clear()
    resumed = play(tmp_path / "cut", game(), ckpt="last")
    assert [r for r in caplog.records if "the one before it" in r.getMessage()]
    assert_same(everything(whole), everything(resumed))


def test_nothing_in_a_checkpoint_is_run_or_believed(tmp_path):
    marker = tmp_path / "marker"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    pickled, instantiator, bomb = (tmp_path / f"{name}.ckpt" for name in ("pickled", "instantiator", "bomb"))
    pickled.write_bytes(pickle.dumps({"state_dict": Evil()}))
    torch.save({"state_dict": {}, "hyper_parameters": Evil()}, instantiator)
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 200_000_000)
    for path in (pickled, instantiator, bomb):
        with pytest.raises(DataError, match=path.name):
            read_checkpoint(path)
    assert not marker.exists()
    # Lightning before 2.6.6 called what a checkpoint names here
    named = tmp_path / "named.ckpt"
    hyper = {"_instantiator": "os.system", "_class_path": "os.system", "command": f"touch {marker}"}
    torch.save({"state_dict": {}, "hyper_parameters": hyper}, named)
    with pytest.raises(ConfigError, match="holds no policy"):
        acquire(tmp_path / "run", str(named))
    with pytest.raises(ConfigError, match="not a ralseg segmenter"):
        acquire(tmp_path / "run2", initial_weights=str(named))
    assert not marker.exists()


@pytest.mark.slow
def test_a_tensor_that_claims_to_be_huge_is_refused(tmp_path):
    path = tmp_path / "huge.ckpt"
    torch.save({"w": torch.zeros(16)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in members if name.endswith("data.pkl"))
    claimed = members[name].replace(b"K\x10", b"J\x00\x00\x00\x70")  # 16 becomes 1.9 billion, wherever it stands
    assert claimed != members[name]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for key, value in (members | {name: claimed}).items():
            archive.writestr(key, value)
    code = f"""
import resource
from pathlib import Path
from ralseg.runtime.checkpoints import read_checkpoint
resource.setrlimit(resource.RLIMIT_AS, (6 << 30,) * 2)
read_checkpoint(Path('{path}'))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "huge.ckpt: not a checkpoint that can be read safely" in done.stderr


def test_a_cache_reads_a_file_once_until_it_changes(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(checkpoints, "read_checkpoint", lambda path: read.append(path.name) or read_checkpoint(path))
    for name in "ab":
        torch.save({"name": name, "optimizer_states": [torch.zeros(9)]}, tmp_path / name)
    cache = checkpoints.CheckpointCache()
    for _ in range(3):
        assert [cache.read(tmp_path / name) for name in "ab"] == [{"name": "a"}, {"name": "b"}]
    assert read == ["a", "b"]
    cache.read(tmp_path / "a")["name"] = "spoilt by its reader"
    assert cache.read(tmp_path / "a") == {"name": "a"}
    torch.save({"name": "new"}, tmp_path / "a")
    os.utime(tmp_path / "a", ns=(1, 1))
    assert cache.read(tmp_path / "a") == {"name": "new"}
    (tmp_path / "a").unlink()
    with pytest.raises(ConfigError, match="no such checkpoint"):
        cache.read(tmp_path / "a")


def test_a_full_cache_keeps_what_it_has(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(checkpoints, "read_checkpoint", lambda path: read.append(path.name) or read_checkpoint(path))
    for name in "abc":
        torch.save({"weights": torch.zeros(1000)}, tmp_path / name)
    cache = checkpoints.CheckpointCache(max_bytes=2 * (tmp_path / "a").stat().st_size)
    for _ in range(3):
        for name in "abc":
            assert len(cache.read(tmp_path / name)["weights"]) == 1000
    assert Counter(read) == {"a": 1, "b": 1, "c": 3}
