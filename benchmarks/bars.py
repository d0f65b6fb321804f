"""Bars: what a benchmark's ratios are held against. A benchmark that misses one leaves with exit code 1.

Ratios of two things that are measured in turn in one run count, never seconds: machines differ, and so do hours.
"""

import statistics
import sys
from collections.abc import Callable

REPEATS = 5
"""The least number of repeats that a median is taken of."""


def is_short() -> bool:
    """Whether the shortened form was asked for, by `--short`."""
    return "--short" in sys.argv[1:]


def in_turn(
    first: Callable[[], float], second: Callable[[], float], repeats: int = REPEATS
) -> list[tuple[float, float]]:
    """Seconds of both, measured in turn: what slows the machine down slows down both."""
    return [(first(), second()) for _ in range(repeats)]


def median_ratio(pairs: list[tuple[float, float]]) -> float:
    """The median of how many times the first the second takes."""
    return statistics.median(second / first for first, second in pairs)


class Bars:
    """Collects ratios and their bars, prints each, and ends the process when one is missed.

    Example:
        >>> bars = Bars()
        >>> bars.at_most("twice the work", 1.9, 2.0)
        twice the work: 1.900, at most 2: met
        >>> bars.close()
    """

    def __init__(self) -> None:
        self._missed: list[str] = []

    def at_most(self, what: str, ratio: float, bar: float) -> None:
        """A ratio that must not be larger than its bar."""
        self._note(what, ratio, f"at most {bar:g}", ratio <= bar)

    def at_least(self, what: str, ratio: float, bar: float) -> None:
        """A ratio that must not be smaller than its bar."""
        self._note(what, ratio, f"at least {bar:g}", ratio >= bar)

    def _note(self, what: str, ratio: float, bar: str, is_met: bool) -> None:
        print(f"{what}: {ratio:.3f}, {bar}: {'met' if is_met else 'MISSED'}", flush=True)
        if not is_met:
            self._missed.append(f"{what}: {ratio:.3f}, {bar}")

    def close(self) -> None:
        """Leave with exit code 1 when a bar was missed, and say which."""
        if self._missed:
            raise SystemExit("bars missed:\n  " + "\n  ".join(self._missed))
