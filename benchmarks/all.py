"""Runs all benchmarks, one after the other, also after one that is over its bar; `make bench`, `make bench-short`.

The last line says which were over their bars, or failed; the exit code is then 1.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bars import is_short

FULL = [
    "bald", "data_loading", "checkpoints", "memory", "step", "closed_game --repeats 1", "growth", "hundredfold",
    "start --repeats 1", "predict", "reasons", "mistakes --short",
]  # fmt: skip
SHORT = ["bald --short", "data_loading --short", "checkpoints", "memory --short", "mistakes --short"]


def main() -> None:
    """Run each in a process of its own."""
    folder, missed = Path(__file__).parent, []
    environment = os.environ | {"PYTHONPATH": str(folder.parent)}
    for what in SHORT if is_short() else FULL:
        name, *options = what.split()
        print(f"-- {what}", flush=True)
        began = time.monotonic()
        done = subprocess.run([sys.executable, folder / f"{name}.py", *options], env=environment)
        print(f"-- {what}: {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode:
            missed.append(what)
    if missed:
        raise SystemExit(f"over their bars: {', '.join(missed)}")


if __name__ == "__main__":
    main()
