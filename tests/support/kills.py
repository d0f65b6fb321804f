"""Kills ralseg at random or chosen moments, resumes it, and looks whether the end is the same, bit by bit.

    python tests/support/kills.py fit --trials 20        # SIGKILL at random moments, some trials twice
    python tests/support/kills.py acquire --signal TERM  # SIGTERM: must save and leave with 143 within 10 s
    python tests/support/kills.py fit --fault ralseg.agents.replay.ReplayBuffer.add:5  # at its fifth call
    python tests/support/kills.py fit --signal KILL --signal TERM --chain  # both to one run, one after the other
    python tests/support/kills.py serve                  # one such line of arguments after another, from stdin

Children are forked from this process, which has everything imported: a trial costs its run, not its start.
`tests/runtime/test_kills.py` runs a shortened form, all of it by one process that serves.
"""

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parents[1]))  # for support.people

import torch

from ralseg.cli import main
from ralseg.engine.loop import saved_session
from ralseg.runtime import workers
from ralseg.runtime.checkpoints import read_checkpoint
from ralseg.runtime.mlflow_queue import connect
from ralseg.studies import executors

for heavy in ("mlflow.tracking", "ralseg.commands"):  # before the forks, once for all children
    importlib.import_module(heavy)

DATA = """
data:
  dataset:
    class_path: ralseg.data.SyntheticStreets
    init_args: {num_train: 14, num_val: 4, num_test: 3, height: 64, width: 96}
  splits: {state: 2, train: 5}
  layout: {class_path: ralseg.GridLayout, init_args: {rows: 2, columns: 3}}
  batch_size: 4
"""
NET = (
    "{encoder: tu-test_resnet, encoder_weights: none, pyramid_channels: 32, segmentation_channels: 32, label_stride: 2}"
)
FROZEN = NET.replace("}", ", freeze_encoder: true, cache_features: true}")
CLOSED = "model: {class_path: ralseg.ClosedFormSegmenter, init_args: "
CLOSED += "{encoder: tu-test_resnet, encoder_weights: none, components: 12}}\n"
PLAIN = "default_root_dir: run, enable_progress_bar: false, enable_model_summary: false, num_sanity_val_steps: 0"
CONFIGS = {
    "pretrain": f"trainer: {{{PLAIN}, max_epochs: 8, check_val_every_n_epoch: 2, log_every_n_steps: 1}}\n"
    f"model: {{class_path: ralseg.FPNSegmenter, init_args: {NET}}}\n",
    "fit": f"trainer: {{{PLAIN}, checkpoint_every: 3, game: {{budget: 10, regions_per_step: 4, pool_size: 3, "
    "episodes: 2, validation_plays: 1, validation_every: 2}}\n"
    f"model: {{class_path: ralseg.FPNSegmenter, init_args: {FROZEN}}}\n"
    "agent: {class_path: ralseg.DQN, init_args: {batch_size: 8, replay_size: 20, epsilon_decay: 10.0}}\n",
    "fit-actors": f"trainer: {{{PLAIN}, checkpoint_every: 2, actors: 1, game: {{budget: 10, regions_per_step: 4, "
    "pool_size: 3, episodes: 4, validation_plays: 1, validation_every: 2}}\n"
    f"{CLOSED}"
    "agent: {class_path: ralseg.PairedBlocks, init_args: {block: [entropy, policy], batch_size: 8}}\n",
    "acquire": f"trainer: {{{PLAIN}, acquisition: {{budgets: [8, 18], regions_per_step: 4, pool_size: 2}}, "
    "final: {max_steps: 6, validate_every: 2}}\n"
    f"model: {{class_path: ralseg.FPNSegmenter, init_args: {FROZEN}}}\n",
}
GROUPS = {
    "search": "PolicySearch, init_args: {features: [entropy, novelty], pairs: 2}",
    "group": "GroupAdvantage, init_args: {features: [entropy, novelty], group_size: 2, groups: 2}",
    "credit": "CreditRegression, init_args: {features: [entropy, novelty], episodes_per_update: 2}",
}
"""Agents that learn from groups of games."""
ALONE = CONFIGS["fit-actors"].partition("agent:")[0].replace("actors: 1, ", "")
CONFIGS |= {f"fit-{name}": f"{ALONE}agent: {{class_path: ralseg.{agent}}}\n" for name, agent in GROUPS.items()}
TEAM = "{skips: 5, stops: true, corrects: true, min_answers: 2, reserves: 3}"
CONFIGS["acquire-people"] = f"oracle: {{class_path: support.people.Team, init_args: {TEAM}}}\n" + CONFIGS["acquire"]
CONFIGS["acquire-closed"] = CONFIGS["acquire"].partition("model:")[0] + CLOSED
ARGUMENTS = {
    "pretrain": ["pretrain", "--config", "pretrain.yaml"],
    "fit": ["fit", "--config", "fit.yaml"],
    "fit-actors": ["fit", "--config", "fit-actors.yaml"],
    "acquire": ["acquire", "--config", "acquire.yaml", "--policy", "entropy"],
    "acquire-closed": ["acquire", "--config", "acquire-closed.yaml", "--policy", "bald"],
    "acquire-people": ["acquire", "--config", "acquire-people.yaml", "--policy", "class_balanced_entropy"],
    "compare": ["compare", "--config", "compare.yaml"],
    "compare-closed": ["compare", "--config", "compare-closed.yaml"],
}
ARGUMENTS["acquire-people"] += ["--allow_import", "support.people"]
ARGUMENTS |= {f"fit-{name}": ["fit", "--config", f"fit-{name}.yaml"] for name in GROUPS}
WITH_OTHERS = {"compare": "cells", "compare-closed": "cells", "fit-actors": "actors"}
"""Commands that start processes, which must end with them."""
START_SECONDS = 5.0
"""What such a process takes to start where it is not forked."""
COMPARE = "name: cut\nfolder: run\nacquire: acquire.yaml\nmethods: {uniform: uniform, margin: margin}\nseeds: [0]\n"


def prepare(folder: Path) -> Path:
    """A place to run in."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(text + DATA)
    (folder / "compare.yaml").write_text(COMPARE)
    (folder / "compare-closed.yaml").write_text(COMPARE.replace("acquire.yaml", "acquire-closed.yaml"))
    # making a new store takes MLflow longer than a step: here it is made once
    store = folder.parents[1] / "mlflow.db"
    if not store.is_file():
        connect(f"sqlite:///{store}").create_experiment("ralseg", (folder.parents[1] / "artifacts").as_uri())
    shutil.copy(store, folder / "mlflow.db")
    return folder


class Stop(NamedTuple):
    """One end of a process before its time: a signal at a moment, or SIGKILL at a fault."""

    signal: int
    moment: float = 0.0
    fault: str | None = None

    def __str__(self) -> str:
        return self.fault or f"{signal.Signals(self.signal).name[3:]} at {self.moment:.2f} s"


def start(command: str, folder: Path, resume: bool, stop: Stop | None = None) -> int:
    """Fork a child that runs a command in ``folder``; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.chdir(folder)
        os.setpgid(0, 0)
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        if stop is None:
            fork_others()
        elif stop.fault:
            arm(stop.fault)
        code = main(ARGUMENTS[command] + (["--ckpt", "last"] if resume and not command.startswith("compare") else []))
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fork_others() -> None:
    """Cells and actors of a run that nobody stops are forked, too: a process that starts costs more than this run."""
    executors.get_context = lambda method: multiprocessing.get_context("fork")
    waiting = [ForkedActor()]  # before there are threads

    def take(actor: workers.LocalWorker, recipe: bytes) -> None:
        actor.process = waiting.pop()
        actor._connection, actor._recipe = actor.process.connection, recipe

    workers.LocalWorker.__init__ = take


class ForkedActor:
    """What a local worker needs of its process. It ends with this one, as any worker does."""

    def __init__(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.pid, self.returncode = os.fork(), None
        if self.pid == 0:
            self.connection.close()
            workers.serve(theirs.fileno())
        theirs.close()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def arm(fault: str) -> None:
    """Make the n-th call of a function, given as ``module.Class.name:n``, the end of this process."""
    path, _, number = fault.rpartition(":")
    owner_path, _, name = path.rpartition(".")
    try:
        owner: Any = importlib.import_module(owner_path)
    except ModuleNotFoundError:
        module, _, inner = owner_path.rpartition(".")
        owner = getattr(importlib.import_module(module), inner)
    original, left = getattr(owner, name), [int(number)]

    def counted(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def finish(pid: int) -> int:
    """The exit code of a child; minus the signal that killed it."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


# -- what must be the same -------------------------------------------------------------------------


def content(folder: Path) -> dict[str, Any]:
    """Everything that a run has left and that its seed determines: no seconds, no paths of this machine."""
    found: dict[str, Any] = {}
    for path in sorted((folder / "run").rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".ckpt" and ".previous" not in path.name:
            found[name] = _plain(_of_checkpoint(read_checkpoint(path)), folder)
        elif path.name in ("history.json", "result.json", "final.json", "splits.json"):
            found[name] = _plain(json.loads(path.read_text()), folder)
        elif path.is_file() and (path.suffix == ".csv" or path.name == "reasons.jsonl" or "labels" in path.parts):
            found[name] = path.read_bytes()
    return found


def _of_checkpoint(saved: dict[str, Any]) -> dict[str, Any]:
    if "loops" not in saved:  # a policy alone
        return saved
    game = "session" in saved["loops"]["fit_loop"]["state_dict"]
    names = ("state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step", "callbacks")
    return {name: saved[name] for name in names} | {"session": saved_session(saved) if game else None}


def _plain(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {
            str(key).replace(str(folder), ""): _plain(inner, folder)
            for key, inner in value.items()
            if key not in ("seconds", "command", "commit", "cost")  # what an answer cost is lost with who was killed
        }
    if isinstance(value, list | tuple):
        return [_plain(inner, folder) for inner in value]
    return value.replace(str(folder), "") if isinstance(value, str) else value


def difference(one: Any, two: Any, where: str = "") -> str | None:
    """Where two contents differ first."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        same = one.shape == two.shape and torch.equal(one.nan_to_num(), two.nan_to_num())
        return None if same else where
    if isinstance(one, dict) and isinstance(two, dict):
        if one.keys() != two.keys():
            return f"{where}: {sorted(one.keys() ^ two.keys())} stand in one only"
        return next((d for key in one if (d := difference(one[key], two[key], f"{where}/{key}"))), None)
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return next((d for i, (a, b) in pairs if (d := difference(a, b, f"{where}[{i}]"))), None)
    same = one == two or (one != one and two != two)
    return None if same else f"{where}: {str(one)[:80]} became {str(two)[:80]}"


# -- trials ----------------------------------------------------------------------------------------


def run_trial(command: str, folder: Path, stops: list[Stop]) -> list[str]:
    """Start in ``folder``, stop and go on with each of the stops, then go on to the end; what went wrong.

    Where the run is through before a signal comes, all is done again with earlier ones.
    """
    prepare(folder)
    problems = []
    for turn, stop in enumerate(stops):
        code, said = stop_once(command, folder, stop, resume=turn > 0)
        if code == 0 and not stop.fault:
            return run_trial(command, folder, [each._replace(moment=each.moment / 2) for each in stops])
        problems += said
    code = finish(start(command, folder, resume=True))
    if code != 0:
        problems.append(f"the resumed run ended with {code}")
    problems += [f"{path.name} was left" for path in folder.rglob(".*.part")]
    return problems


def stop_once(command: str, folder: Path, stop: Stop, resume: bool) -> tuple[int, list[str]]:
    """Start or go on, and stop; the exit code, and what went wrong."""
    problems = []
    told = status_in_mlflow(folder, UNTOLD)
    pid = start(command, folder, resume, stop)
    if not stop.fault:
        time.sleep(stop.moment)
        os.kill(pid, stop.signal)
    if command in WITH_OTHERS and not ends_within(pid, 25):
        problems.append(f"{WITH_OTHERS[command]} lived on")
    asked = time.monotonic()
    code = finish(pid)
    spent = time.monotonic() - asked
    if code != (-stop.signal if stop.signal == signal.SIGKILL else 128 + stop.signal):
        problems.append(f"exit code {code} after {stop}")
    if stop.signal != signal.SIGKILL and spent > 10:
        problems.append(f"took {spent:.1f} s to leave")
    if code == 128 + stop.signal and status_in_mlflow(folder) not in (told, "KILLED"):
        problems.append(f"MLflow says {status_in_mlflow(folder)}")
    return code, problems


def ends_within(group: int, seconds: float) -> bool:
    """Whether all processes of a killed group end by themselves; the first of them is waited for elsewhere."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        living = subprocess.run(["ps", "-o", "stat=", "-g", str(group)], capture_output=True, text=True).stdout.split()
        if all(state.startswith("Z") for state in living):
            return True
        time.sleep(0.2)
    return False


UNTOLD = "SCHEDULED"
"""What MLflow is made to say before a run goes on: else nobody could tell the words of one process from another's."""


def status_in_mlflow(folder: Path, changed_to: str | None = None) -> str | None:
    """How the run ended, as MLflow knows it, or will when it is next told; in its store, that may be changed first."""
    unsent = folder / "run/unsent.jsonl"
    if unsent.is_file():
        return str(json.loads(unsent.read_text().splitlines()[-1]).get("status"))
    note = folder / "run/mlflow.json"
    if not note.is_file():
        return None
    # not by MLflow's client, which would keep the store of an earlier trial in the same place
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as store:
        run = json.loads(note.read_text())["run_id"]
        if changed_to is not None:
            store.execute("update runs set status = ? where run_uuid = ?", [changed_to, run])
            store.commit()
        return str(store.execute("select status from runs where run_uuid = ?", [run]).fetchone()[0])


def run_trials(asked: argparse.Namespace, place: Path) -> int:
    """All trials of a command, with one uninterrupted run to compare with; the number of those that went wrong."""
    expected, seconds = uninterrupted(asked.command, place)
    print(f"{asked.command}: uninterrupted {seconds:.1f} s, {len(expected)} files to compare", flush=True)
    seconds += START_SECONDS * (asked.command in WITH_OTHERS)
    return sum(try_once(asked.command, place / "trial", expected, stops) for stops in planned(asked, seconds))


@cache
def uninterrupted(command: str, place: Path) -> tuple[dict[str, Any], float]:
    """What a run leaves that nobody stops, and its seconds."""
    whole = prepare(place / "whole")
    began = time.monotonic()
    code = finish(start(command, whole, resume=False))
    seconds = time.monotonic() - began
    if code != 0:
        print((whole / "log.txt").read_text(), file=sys.stderr)
        raise SystemExit(f"the uninterrupted run of {command} ended with {code}")
    return content(whole), seconds


def planned(asked: argparse.Namespace, seconds: float) -> list[list[Stop]]:
    """The stops of each trial of a run that takes so long."""
    rng = random.Random(asked.seed)
    names = asked.signal or ([] if asked.fault else ["KILL"])
    numbers = [getattr(signal, f"SIG{name}") for name in names]
    faults = [Stop(signal.SIGKILL, fault=fault) for fault in asked.fault]
    if asked.chain:
        return [faults + at_random(rng, numbers, seconds) for _ in range(asked.trials)]
    trials = []
    for number in numbers:
        for _ in range(asked.trials):
            trials.append(at_random(rng, [number], seconds))
            trials[-1] += at_random(rng, [number], seconds, 0.6) if rng.random() < 0.4 else []
    return trials + [[fault] for fault in faults]


def at_random(rng: random.Random, numbers: list[int], seconds: float, latest: float = 0.9) -> list[Stop]:
    """Signals at random moments; those of a run that goes on come earlier."""
    moments = [rng.uniform(0.02, 0.6 if turn else latest) * seconds for turn in range(len(numbers))]
    return [Stop(number, moment) for number, moment in zip(numbers, moments, strict=True)]


def try_once(command: str, folder: Path, expected: dict[str, Any], stops: list[Stop]) -> bool:
    """One trial; whether it went wrong."""
    problems = run_trial(command, folder, stops)
    different = difference(expected, content(folder))
    problems += [different] if different else []
    what = " and ".join(map(str, stops))
    print(f"{command} stopped by {what}: {'; '.join(problems) or 'the same'}", flush=True)
    if problems:
        print((folder / "log.txt").read_text()[-3000:], flush=True)
    return bool(problems)


def arguments_of(line: list[str]) -> argparse.Namespace:
    """What a person or a test asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*ARGUMENTS, "serve"])
    parser.add_argument("--trials", type=int, default=1, help="of each signal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signal", choices=["KILL", "TERM", "INT"], action="append", default=[])
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--chain", action="store_true", help="one run meets them all: the faults, then the signals")
    return parser.parse_args(line)


def serve(place: Path) -> None:
    """Answer lines of arguments, JSON lists, until there are no more; after each, a line says how many went wrong.

    This process runs nothing itself, so that it has no threads and each fork is as good as the first.
    """
    for line in sys.stdin:
        try:
            failed = run_trials(arguments_of(json.loads(line)), place / "runs")
        except SystemExit as error:
            print(error, flush=True)
            failed = 1
        print(f"{DONE} {failed}", flush=True)


DONE = "trials that went wrong:"
"""How the last line of an answer begins."""


if __name__ == "__main__":
    typed = arguments_of(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        if typed.command == "serve":
            serve(Path(folder))
        else:
            sys.exit(bool(run_trials(typed, Path(folder) / "runs")))
