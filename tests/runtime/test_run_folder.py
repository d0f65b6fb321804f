"""Disks that are full, folders that are in use."""

import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from ralseg.cli import main
from ralseg.errors import ConfigError, DataError
from ralseg.runtime import run_folder
from ralseg.runtime.files import write_atomically
from support.configs import FIT
from support.games import game, play

LAST = "checkpoints/last.ckpt"


@contextmanager
def small_files_only():
    """As if a quota were reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.slow
def test_a_full_disk_loses_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("fit.yaml").write_text(FIT.replace("logger: false", "logger: false\n  checkpoint_every: 1"))
    command = ["fit", "--config", "fit.yaml", "--ckpt", "last"]
    assert main([*command, "--trainer.max_epochs", "3"]) == 0
    before = Path("run", LAST).read_bytes()
    with small_files_only():
        code = main(command)
    said = capsys.readouterr().err
    assert code == 3, said
    assert "last.ckpt: cannot be written (File too large)" in said
    assert "make room, then go on with --ckpt last" in said
    assert "Traceback" not in said
    assert Path("run", LAST).read_bytes() == before
    assert not list(tmp_path.rglob("*.part"))
    assert main(command) == 0


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path):
    code = f"""
import subprocess, sys, torch
from pathlib import Path
from ralseg.runtime.checkpoints import DurableCheckpointIO, read_checkpoint
from ralseg.errors import DataError
place = Path({str(tmp_path)!r})
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], check=True)
path = place / "last.ckpt"
from ralseg.runtime import run_folder
from ralseg.errors import ConfigError
subprocess.run(["mount", "-o", "remount,ro", place], check=True)
try:
    with run_folder.claimed(place, False, False):
        pass
except ConfigError as error:
    print(error)
subprocess.run(["mount", "-o", "remount,rw", place], check=True)
DurableCheckpointIO().save_checkpoint({{"w": torch.ones(400_000)}}, path)
try:
    DurableCheckpointIO().save_checkpoint({{"w": torch.zeros(500_000)}}, path)
except DataError as error:
    print(error)
assert read_checkpoint(path)["w"].sum() == 400_000
assert [p.name for p in place.iterdir()] == ["last.ckpt"], list(place.iterdir())
"""
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(probe).returncode:
        pytest.skip("this machine forbids mounts, even in a namespace of one's own; the test above needs none")
    done = subprocess.run(["unshare", "-rm", sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "last.ckpt: cannot be written (No space left on device)" in done.stdout
    assert "bytes, " in done.stdout
    assert "nothing can be written there (Read-only file system)" in done.stdout


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"trainer\.default_root_dir=.*cannot be made"):
        play(tmp_path / "file" / "run", game())
    with pytest.raises(DataError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "x.json", "{}")


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    left = tmp_path / "checkpoints" / ".last.ckpt.abc_def1.part"
    others = [tmp_path / ".mine.part", tmp_path / "other_run" / ".last.ckpt.abc_def1.part"]
    others[1].parent.mkdir()
    for path in (left, *others):
        path.write_text("half")
    with run_folder.claimed(tmp_path, resume=True, overwrite=False):
        assert not left.exists()
    assert all(path.exists() for path in others)


HOLD = """
import sys, time
from pathlib import Path
from ralseg.runtime import run_folder
with run_folder.claimed(Path(sys.argv[1]), resume=True, overwrite=False):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_and_a_dead_one_is_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 0.2)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=rf"is in use by process {holder.pid} on "):
        play(tmp_path, game(), ckpt="last")
    holder.kill()
    holder.wait()
    with run_folder.claimed(tmp_path, resume=True, overwrite=False):
        pass
