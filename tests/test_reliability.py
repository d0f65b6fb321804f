"""Faults other than kills: damaged files, full disks, second processes, signals, numbers that are none."""

import json
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from conftest import make_folder, small_data, write_png
from test_acquire import acquire, selected
from test_loop import FIT, assert_same, everything, game, model, play

from ralseg import run_folder
from ralseg.checkpoints import DurableCheckpointIO, is_sound, previous_of, read_checkpoint
from ralseg.cli import main
from ralseg.data import Folder, SyntheticStreets
from ralseg.data.module import SegmentationData
from ralseg.data.splits import SplitSizes
from ralseg.errors import ConfigError, DataError, NotFiniteError
from ralseg.files import write_atomically
from ralseg.interrupts import Interrupted, Interrupts
from ralseg.ralis import Ralis
from ralseg.regions import GridShape

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


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["truncated", "empty", "one bit"])
def test_a_damaged_checkpoint_is_seen(tmp_path, how):
    path = tmp_path / "w.ckpt"
    DurableCheckpointIO().save_checkpoint({"state_dict": {"w": torch.randn(5000)}}, path)
    assert is_sound(path)
    damage(path, how)
    assert not is_sound(path)
    with pytest.raises(DataError, match=r"w\.ckpt: not a checkpoint, or damaged"):
        read_checkpoint(path)


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path, caplog):
    whole = play(tmp_path / "whole", game(), checkpoint_every=1)
    play(tmp_path / "cut", game(), max_epochs=7, checkpoint_every=1)
    last = tmp_path / "cut" / LAST
    assert read_checkpoint(previous_of(last))["epoch"] == read_checkpoint(last)["epoch"] - 1
    damage(last, "one bit")
    with pytest.raises(DataError, match="damaged"):  # a file that is named is taken or refused
        play(tmp_path / "cut", game(), ckpt=str(last), checkpoint_every=1)
    caplog.clear()
    resumed = play(tmp_path / "cut", game(), ckpt="last", checkpoint_every=1)
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
from ralseg.checkpoints import read_checkpoint
resource.setrlimit(resource.RLIMIT_AS, (6 << 30,) * 2)
read_checkpoint(Path('{path}'))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "huge.ckpt: not a checkpoint that can be read safely" in done.stderr


# -- disks and folders -----------------------------------------------------------------------------


def small_files_only() -> None:
    """As if a quota were reached."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fit.yaml").write_text(FIT.replace("logger: false", "logger: false\n  checkpoint_every: 1"))
    command = ["fit", "--config", "fit.yaml", "--ckpt", "last"]
    assert main([*command, "--trainer.max_epochs", "3"]) == 0
    before = Path("run", LAST).read_bytes()
    limited = [sys.executable, "-m", "ralseg", *command]
    full = subprocess.run(limited, capture_output=True, text=True, preexec_fn=small_files_only)
    said = full.stderr
    assert full.returncode == 3, said
    assert "last.ckpt: cannot be written (File too large)" in said
    assert "make room, then go on with --ckpt last" in said
    assert "Traceback" not in said
    assert Path("run", LAST).read_bytes() == before
    assert not list(tmp_path.rglob("*.part"))
    assert main(command) == 0


def test_a_disk_that_is_really_full(tmp_path):
    code = f"""
import subprocess, sys, torch
from pathlib import Path
from ralseg.checkpoints import DurableCheckpointIO, read_checkpoint
from ralseg.errors import DataError
place = Path({str(tmp_path)!r})
if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place]).returncode:
    sys.exit(77)
path = place / "last.ckpt"
from ralseg import run_folder
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
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"]).returncode:
        pytest.skip("containers may forbid mounts; test_a_full_disk_loses_nothing holds without")
    done = subprocess.run(["unshare", "-rm", sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("containers may forbid mounts; test_a_full_disk_loses_nothing holds without")
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
from ralseg import run_folder
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


# -- signals ---------------------------------------------------------------------------------------


def test_outside_of_a_training_a_signal_stops_at_once():
    interrupts = Interrupts()
    with interrupts.handled(), pytest.raises(Interrupted) as stopped:
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.exit_code == 143
    assert "--ckpt last" in str(stopped.value)


def test_a_training_may_finish_its_step_once_not_twice(capfd):
    interrupts = Interrupts()
    with interrupts.handled():
        interrupts.be_patient(60)
        signal.raise_signal(signal.SIGINT)
        assert interrupts.asked == signal.SIGINT
        assert "SIGINT: saving, then leaving" in capfd.readouterr().err
        with pytest.raises(Interrupted) as stopped:
            signal.raise_signal(signal.SIGINT)
        assert stopped.value.exit_code == 130
        interrupts.be_impatient()


def test_patience_ends():
    interrupts = Interrupts()
    with interrupts.handled():
        interrupts.be_patient(0.2)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted):
            time.sleep(10)
        interrupts.be_impatient()


def test_signals_return_to_whoever_had_them():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts().handled():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


# -- numbers ---------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_keeps_the_steps_context(tmp_path):
    ralis = model(segmenter={"optimizer": lambda p: torch.optim.SGD(p, lr=float("inf"))})
    with pytest.raises(NotFiniteError, match=r"not finite \(episode 0, step 1\).*problem\.json"):
        play(tmp_path, game(), ralis)
    context = json.loads((tmp_path / "problem.json").read_text())
    assert len(context["labelled"]) == 8
    assert context["episode"]["kind"] == "validation"


def test_ruined_weights_are_never_saved_over_good_ones(tmp_path):
    class Ruin(pl.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            if trainer.current_epoch == 4:
                next(module.segmenter.net.decoder.parameters()).data.fill_(float("nan"))

    with pytest.raises(NotFiniteError, match=r"last\.ckpt: not written, for weights are not finite"):
        play(tmp_path, game(), callbacks=[Ruin()], checkpoint_every=1)
    assert read_checkpoint(tmp_path / LAST)["epoch"] == 3


def test_a_query_loss_that_is_not_finite_stops_the_run_before_the_next_checkpoint(tmp_path, monkeypatch):
    update, calls = Ralis.update_query, []

    def fails_at_last(self, batch):
        calls.append(update(self, batch))
        return float("nan") if len(calls) == 6 else calls[-1]

    monkeypatch.setattr(Ralis, "update_query", fails_at_last)
    with pytest.raises(NotFiniteError, match="query network's loss is not finite after 5 updates"):
        play(tmp_path, game(), checkpoint_every=1)
    saved = read_checkpoint(tmp_path / LAST)["loops"]["fit_loop"]["state_dict"]["play"]
    assert saved["updates"] == 5
    context = json.loads((tmp_path / "problem.json").read_text())
    assert context["updates"] == 5
    assert context["episode"]["kind"] == "train"


def test_pretraining_that_diverges_stops_and_keeps_the_good_checkpoint(tmp_path, monkeypatch, capsys):
    from test_cli import TINY

    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    arguments = ["pretrain", "--config", "tiny.yaml"]
    assert main([*arguments, "--trainer.max_epochs", "2"]) == 0
    before = Path("run", LAST).read_bytes()
    diverging = ["--model.scheduler", "torch.optim.lr_scheduler.ConstantLR", "--model.scheduler.factor", "1"]
    rate = ["--model.optimizer.init_args.lr", "1e30"]
    assert main([*arguments, *rate, *diverging, "--trainer.default_root_dir", "run2"]) == 1
    message = capsys.readouterr().err
    assert "the loss is nan" in message or "the loss is inf" in message
    assert "run2/problem.json" in message
    assert Path("run", LAST).read_bytes() == before


def odd_data(root: Path, kind: str) -> SegmentationData:
    make_folder(root, train=8, val=3, test=2, size=(64, 96))
    for path in sorted((root / "masks").rglob("*.png")):
        mask = np.random.default_rng(0).integers(0, 3, (64, 96), np.uint8)
        if kind == "void regions" and "train" in path.parts:
            mask[:, :64] = 255  # four of six regions have no label at all
        elif kind == "class absent from the reward set" and "val" in path.parts:
            mask[mask == 2] = 0
        elif kind == "one class":
            mask[:] = 1
        elif kind == "void image" and path.stem == "000":
            mask[:] = 255
        write_png(path, mask)
    if kind == "one colour":
        for path in sorted((root / "images").rglob("*.png")):
            write_png(path, np.full((64, 96, 3), 90, np.uint8))
    options = {"splits": SplitSizes(state=2, train=3), "grid": GridShape(2, 3), "batch_size": 4}
    return SegmentationData(dataset=Folder(str(root)), **options)


KINDS = ["void regions", "class absent from the reward set", "one class", "void image", "one colour"]


@pytest.mark.parametrize("kind", KINDS)
def test_odd_data_give_finite_numbers(tmp_path, kind):
    data = odd_data(tmp_path / "data", kind)
    torch.manual_seed(0)
    ralis = model(names=data.class_names)
    trainer = play(tmp_path / "run", game(episodes=2, validation_plays=1), ralis, data=data)
    state = {**trainer.lightning_module.state_dict(), "scores": torch.tensor(trainer.fit_loop.play.history[0]["miou"])}
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())


def test_a_worker_that_is_killed_is_said_so(tmp_path, monkeypatch, capsys):
    from test_cli import TINY

    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    owner = os.getpid()
    read = SyntheticStreets.read_image

    def dies(self, index):
        if os.getpid() != owner:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, index)

    monkeypatch.setattr(SyntheticStreets, "read_image", dies)
    arguments = ["pretrain", "--config", "tiny.yaml", "--data.num_workers", "1"]
    assert main(arguments) == 1
    message = capsys.readouterr().err
    assert "DataLoader worker" in message
    assert "--ckpt last" in message
    monkeypatch.setattr(SyntheticStreets, "read_image", read)
    assert main([*arguments, "--ckpt", "last"]) == 0


# -- same seed, same run ---------------------------------------------------------------------------


def test_workers_do_not_change_a_run(tmp_path):
    alone = play(tmp_path / "alone", game(episodes=2))
    helped = play(tmp_path / "helped", game(episodes=2), data=small_data(flip=True, num_workers=2))
    assert_same(everything(alone), everything(helped))


def test_seeds_decide_and_hash_seeds_do_not(tmp_path):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from conftest import small_data
from test_acquire import acquire
for seed in map(int, sys.argv[3:]):
    acquire(Path(sys.argv[2], f"seed{seed}"), "power_bald", data=small_data(seed=seed))
"""
    tests = str(Path(__file__).parent)
    for hash_seed, seeds in (("1", ["0", "1", "2"]), ("2", ["0"])):
        command = [sys.executable, "-c", code, tests, tmp_path / hash_seed, *seeds]
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": hash_seed}, check=True, capture_output=True)
    assert (tmp_path / "1/seed0/selection.csv").read_bytes() == (tmp_path / "2/seed0/selection.csv").read_bytes()
    lists = [tuple(selected(tmp_path / f"1/seed{seed}")) for seed in (0, 1, 2)]
    assert len(set(lists)) == 3


# -- names and places ------------------------------------------------------------------------------

NAMES = ["a b.png", 'it\'s "quoted".png', "ünïcode-日本.png", "<script>alert(1)</script>.png", "-rf.png", "%s{x}.png"]


def test_file_names_of_any_kind_stay_inside_and_whole(tmp_path):
    root = make_folder(tmp_path / "data", train=6, size=(64, 96))
    for subset in ("images", "masks"):
        for path, name in zip(sorted((root / subset / "train").iterdir()), NAMES, strict=True):
            path.rename(path.with_name(name.replace("/", "_")))
    (root / "images" / "train" / "loop").symlink_to(root / "images")
    outside = {path for path in tmp_path.rglob("*") if path.is_file()}
    data = SegmentationData(dataset=Folder(str(root)), splits=SplitSizes(state=1, train=1), grid=GridShape(2, 3))
    acquire(tmp_path / "run", "uniform", data=data, model_names=data.class_names)
    chosen = {row[1] for row in selected(tmp_path / "run")}
    assert chosen <= {f"train/{name.replace('/', '_')}" for name in NAMES}
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - outside
    assert all(path.is_relative_to(tmp_path / "run") for path in written)
    masks = {str(path.relative_to(tmp_path / "run/labels")) for path in (tmp_path / "run/labels").rglob("*.png")}
    assert masks == {name for name in chosen}


def test_a_pipe_in_place_of_an_image_does_not_hang(tmp_path):
    root = make_folder(tmp_path)
    (root / "images/train/000.png").unlink()
    os.mkfifo(root / "images/train/000.png")
    with pytest.raises(DataError, match=r"000\.png: not a regular file"):
        Folder(str(root)).read_image(Folder(str(root)).names.index("train/000.png"))


def test_aliases_in_yaml_do_not_grow(tmp_path):
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else 'x'}]\n" for i in range(12))
    make_folder(tmp_path)
    (tmp_path / "dataset.yaml").write_text(levels + "classes: *l11\n")
    with pytest.raises(DataError, match="unknown keys"):
        Folder(str(tmp_path))
    (tmp_path / "dataset.yaml").write_text("classes: &a [[x, x], [y]]\npalette: *a\n")
    with pytest.raises(DataError, match="'classes' must list at least two different names"):
        Folder(str(tmp_path))


# -- what a configuration may name -----------------------------------------------------------------


def test_workers_outlive_a_signal_until_the_epoch_ends():
    """SIGTERM must not be passed on to data-loader workers, which the rest of the epoch needs."""
    interrupts = Interrupts()
    context = multiprocessing.get_context("fork")
    worker, cell = (context.Process(target=time.sleep, args=(30,), daemon=daemon) for daemon in (True, False))
    with interrupts.handled():
        worker.start()
        cell.start()
        interrupts.be_patient(60)
        time.sleep(0.2)
        signal.raise_signal(signal.SIGTERM)
        cell.join(10)
        assert cell.exitcode == -signal.SIGTERM
        assert worker.is_alive()
        worker.kill()
        interrupts.be_impatient()


CALLS = {
    "a class": "{class_path: subprocess.Popen, init_args: {args: [touch, marker]}}",
    "a function": "os.system",
    "by a detour": "{class_path: ralseg.commands.subprocess.Popen, init_args: {args: [touch, marker]}}",
    "somebody's": "{class_path: evil.Optimizer}",
}


@pytest.mark.parametrize("value", CALLS.values(), ids=CALLS)
def test_a_configuration_cannot_import_what_nobody_named(tmp_path, monkeypatch, capsys, value):
    from test_cli import TINY

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    Path("evil.py").write_text("open('marker', 'w')\n")
    optimizer = "{class_path: torch.optim.AdamW, init_args: {lr: 5.0e-3}}"
    Path("evil.yaml").write_text(TINY.replace(optimizer, value))
    assert main(["pretrain", "--config", "evil.yaml"]) == 2
    assert "does not import unasked; if you trust it, add --allow_import" in capsys.readouterr().err
    assert not Path("marker").exists()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("policy: my-evil.Mine", "my-evil.py"),
        ("policy: evil.Mine", "evil.py"),
        ("policy: uniform\noracle: evil.ckpt", "evil.py"),
        ("policy: uniform\noracle: evil.Mine", "evil.py"),
    ],
)
def test_policies_and_oracles_of_a_configuration_are_not_imported(tmp_path, monkeypatch, capsys, text, name):
    from kills import CONFIGS, DATA

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    Path(name).write_text("open('marker', 'w')\n")
    Path("evil.Mine").write_text("")  # a file of that name makes no difference
    Path("acquire.yaml").write_text(f"{text}\n" + CONFIGS["acquire"] + DATA)
    arguments = ["acquire", "--config", "acquire.yaml", "--trainer.fast_dev_run", "true", "--trainer.logger", "false"]
    assert main(arguments) in (2, 3)
    assert not Path("marker").exists()


@pytest.mark.parametrize("options", ["{oracle: evil.Mine}", "{policy: evil.Mine}", "{allow_import: evil}"])
def test_a_study_cannot_allow_itself_anything(tmp_path, monkeypatch, options):
    from kills import COMPARE, CONFIGS, DATA

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    Path("evil.py").write_text("open('marker', 'w')\n")
    Path("acquire.yaml").write_text(CONFIGS["acquire"] + DATA)
    Path("compare.yaml").write_text(COMPARE + f"options: {options}\n")
    assert main(["compare", "--config", "compare.yaml", "--cell", "uniform/seed0"]) != 0
    assert not Path("marker").exists()


OWN = """
from ralseg.policies import Needs, Policy
from ralseg.data import SyntheticStreets

class Mine(Policy):
    def scores(self, seen, generator):
        return seen.entropy

class Streets(SyntheticStreets):
    pass
"""


def test_what_a_person_names_is_imported(tmp_path, monkeypatch, capsys):
    from kills import CONFIGS, DATA

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own_things.py").write_text(OWN)
    Path("acquire.yaml").write_text("policy: own_things.Mine\n" + CONFIGS["acquire"] + DATA)
    arguments = ["acquire", "--config", "acquire.yaml", "--trainer.fast_dev_run", "true", "--trainer.logger", "false"]
    assert main(arguments) == 2
    assert "--policy own_things.Mine: not imported" in capsys.readouterr().err
    assert main([*arguments, "--allow_import", "own_things"]) == 0
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    assert main([*arguments, "--policy", "own_things.Mine"]) == 0  # typed by a person
    assert main([*arguments, "--allow_import", "no such"]) == 2
    assert main([*arguments, "--allow_import"]) == 2


# -- soak ------------------------------------------------------------------------------------------


def test_long_games_leak_nothing(tmp_path):
    seen = []

    class Count(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            seen.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * 4096))

    rules = game(budget=12, regions_per_step=1, pool_size=2, episodes=20, validation_plays=0)
    play(tmp_path, rules, model(replay_size=30), callbacks=[Count()], checkpoint_every=60)
    assert len(seen) == 240
    first, last = seen[60], seen[-1]
    assert last[0] <= first[0]
    assert last[1] <= first[1]
    assert last[2] - first[2] < 40e6, f"{(last[2] - first[2]) / 1e6:.0f} MB more after 180 steps"
