"""How often whoever reads one step of `ralseg fit` changes file: `python benchmarks/hops.py [--pairs]`.

Plays the tests' small DQN game and traces it from the end of one training step to the end of the next, in the middle of
an episode. Only functions of ralseg/ count; who called one is the nearest function of ralseg/ below it on the stack, so
Lightning between the two is passed over.
"""

import argparse
import io
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from lightning.pytorch.callbacks import Callback

import ralseg
from ralseg.commands import quiet_console
from ralseg.engine.loop import session_of

PACKAGE = f"{Path(ralseg.__file__).parent}/"
TESTS = Path(__file__).parent.parent / "tests"
Function = tuple[str, str]
"""File and name."""


class Tracer(Callback):
    """Notes who calls whom in the second step of the second training episode."""

    def __init__(self) -> None:
        self.calls: dict[tuple[Function | None, Function], None] = {}  # caller and called, in their order

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        """Begin or end with this step."""
        sys.setprofile(None)
        session = session_of(trainer)
        if session.training_steps == session.game.steps_per_episode + 1:
            sys.setprofile(self.note)

    def note(self, frame, event, argument) -> None:
        """Note a call."""
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            below = frame.f_back
            while below is not None and not below.f_code.co_filename.startswith(PACKAGE):
                below = below.f_back
            self.calls[None if below is None else function(below), function(frame)] = None


def function(frame) -> Function:
    """The function that a frame belongs to."""
    return frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_qualname


def main() -> None:
    """Print the three numbers, and the pairs of files if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", action="store_true", help="also list the pairs of files, with what is called")
    arguments = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    from support.games import game, play

    quiet_console()
    tracer = Tracer()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        play(folder, game(episodes=2), callbacks=[tracer])
    first: dict[Function, Function | None] = {}
    pairs: dict[tuple[str, str], set[str]] = {}
    for caller, called in tracer.calls:
        first.setdefault(called, caller)
        if caller is not None and caller[0] != called[0]:
            pairs.setdefault((caller[0], called[0]), set()).add(called[1])
    reached = sum(caller is not None and caller[0] != called[0] for called, caller in first.items())
    print(f"files: {len({file for file, _ in first})}")
    print(f"pairs of files between which calls go: {len(pairs)}")
    print(f"functions first reached from another file: {reached} of {len(first)}")
    if arguments.pairs:
        for (caller, called), names in sorted(pairs.items()):
            print(f"{caller} -> {called}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
