"""SIGTERM and Ctrl-C: finish the step, save, and leave with a code that says "resume me"."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(BaseException):
    """Someone asked this process to stop. Not an ``Exception``: nobody may swallow it by accident.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number

    def __str__(self) -> str:
        """In words; each command has its own way to go on."""
        return f"stopped by {signal.Signals(self.exit_code - 128).name}"


class Paused(Interrupted):
    """Someone asked this process to stop while it was waiting between two steps: all that it has can be saved."""


class Interrupts:
    """What this process does when it is asked to stop.

    As a rule it stops at once, which loses nothing that is on disk. After :meth:`be_patient` the first signal
    only sets :attr:`asked`, for the work to end at its next good moment; a second signal, or the end of the
    patience, stops it at once.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._patience: float | None = None
        self._timer: threading.Timer | None = None
        self._owner: int | None = None
        self._ignore_keyboard = False

    @contextmanager
    def handled(self, ignore_keyboard: bool = False) -> Iterator[None]:
        """Take the signals; without effect outside of the main thread, where Python knows no signals.

        Args:
            ignore_keyboard: Leave Ctrl-C to the parent process, which passes it on.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        self.asked, self._owner = None, os.getpid()
        self._ignore_keyboard = ignore_keyboard
        self.take()
        try:
            yield
        finally:
            self._owner = None
            for number, handler in before.items():
                signal.signal(number, handler)

    def take(self) -> None:
        """Take the signals back from whoever else has registered for them meanwhile: Lightning does."""
        if self._owner == os.getpid() and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._handle)
            signal.signal(signal.SIGINT, signal.SIG_IGN if self._ignore_keyboard else self._handle)

    def be_patient(self, seconds: float) -> None:
        """From now on the work itself looks at :attr:`asked`, and has so many seconds to end."""
        self.take()
        self._patience = seconds

    def be_impatient(self) -> None:
        """From now on stop at once again."""
        self._patience = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:  # a forked worker of a data loader: its parent decides
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        is_first, self.asked = self.asked is None, number
        for child in active_children():
            if not child.daemon:  # cells of a study; the workers of data loaders are daemons, and still needed
                child.terminate()
        if self._patience is None or not is_first:
            raise Interrupted(number)
        name = signal.Signals(number).name
        # not print(): the signal may have come in the middle of one
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\nralseg: {name}: saving, then leaving\n".encode())
        self._timer = threading.Timer(self._patience, os.kill, (os.getpid(), number))
        self._timer.daemon = True
        self._timer.start()


interrupts = Interrupts()
"""Of this process."""
