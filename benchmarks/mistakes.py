"""How long does a typo take? Processor time of commands that fail, or only ask, against `import torch` in one run.

Run by `make bench`. What a mistake takes without the list of known options (``ralseg/known``) is measured beside it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial

from benchmarks.bars import REPEATS, Bars, in_turn, is_short, median_ratio

BAR = 0.25
"""Of the time that Python takes to import torch; machines differ in how well they read thousands of files."""
CASES = {
    "help": ["fit", "--help"],
    "a wrong option": ["fit", "--config", "camvid_dqn.yaml", "--data.bach_sizee", "3"],
    "a missing file": ["fit", "--config", "camvid_dqnn.yaml"],
    "an unknown command": ["pretrian"],
}


def seconds(command: list[str], folder: str) -> float:
    """Processor time of a process."""
    before = os.times()
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    after = os.times()
    spent = after.children_user + after.children_system
    return spent - before.children_user - before.children_system


def ralseg(arguments: list[str]) -> list[str]:
    """A command line."""
    return [sys.executable, "-m", "ralseg", *arguments]


def main() -> None:
    """Print ratios, and fail where a bar is missed."""
    bars = Bars()
    with tempfile.TemporaryDirectory() as folder:

        def timed(command: list[str]) -> Callable[[], float]:
            return partial(seconds, command, folder)

        torch = timed([sys.executable, "-c", "import torch"])
        torch()  # from the disk once
        for what, arguments in CASES.items():
            pairs = in_turn(torch, timed(ralseg(arguments)), REPEATS)
            bars.at_most(f"{what}, of `import torch`", median_ratio(pairs), BAR)
        if not is_short():
            slow = timed(ralseg(["fit", "--model", "ralseg.FPNSegmenter", "--model.dropot", "3"]))
            fast = timed(ralseg(CASES["a wrong option"]))
            print(f"a mistake that only the parser knows takes {median_ratio(in_turn(fast, slow)):.0f} times as long")
    bars.close()


if __name__ == "__main__":
    main()
