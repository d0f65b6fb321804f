"""Same seed, same run; and long runs that leak nothing."""

import os
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest

from support.data import small_data
from support.games import UNTRAINED, acquire, assert_same, dqn, everything, game, play, selected

pytestmark = pytest.mark.slow


def test_workers_do_not_change_a_run(tmp_path):
    alone = play(tmp_path / "alone", game(episodes=2))
    helped = play(tmp_path / "helped", game(episodes=2), data=small_data(flip=True, num_workers=2))
    assert_same(everything(alone), everything(helped))


def test_seeds_decide_and_hash_seeds_do_not(tmp_path):
    """This process has one hash seed, another process another one."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from support.data import small_data
from support.games import UNTRAINED, acquire
acquire(Path(sys.argv[2]), "power_bald", data=small_data(seed=0), options=UNTRAINED)
"""
    tests = str(Path(__file__).parent.parent)
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command = [sys.executable, "-c", code, tests, tmp_path / "other"]
    subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": hash_seed}, check=True, capture_output=True)
    for seed in (0, 1, 2):
        acquire(tmp_path / f"seed{seed}", "power_bald", data=small_data(seed=seed), options=UNTRAINED)
    assert (tmp_path / "seed0/selection.csv").read_bytes() == (tmp_path / "other/selection.csv").read_bytes()
    lists = [tuple(selected(tmp_path / f"seed{seed}")) for seed in (0, 1, 2)]
    assert len(set(lists)) == 3


def test_long_games_leak_nothing(tmp_path):
    seen = []

    class Count(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            seen.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * 4096))

    rules = game(budget=12, regions_per_step=1, pool_size=2, episodes=20, validation_plays=0)
    play(tmp_path, rules, dqn(replay_size=30), callbacks=[Count()], checkpoint_every=60)
    assert len(seen) == 240
    first, last = seen[60], seen[-1]
    assert last[0] <= first[0]
    assert last[1] <= first[1]
    assert last[2] - first[2] < 40e6, f"{(last[2] - first[2]) / 1e6:.0f} MB more after 180 steps"
