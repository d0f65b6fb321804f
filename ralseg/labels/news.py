"""News: what a run is doing while it asks nobody."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class News:
    """What a run is doing, for an oracle that shows it to people who wait.

    Attributes:
        doing: ``choosing`` the next regions, ``training`` on those just labelled, ``final``: the final training of a
            budget; ``done``.
        labelled: Regions that are labelled so far.
        budgets: Numbers of labelled regions at which a final segmenter is trained.
        scores: Mean IoU on the reward set, of theta_0 and after each step; empty where steps are not scored.
        budget: Whose final training it is.
        share: How much of it is done, from 0 to 1; None: nobody knows.
        result: What the run has ended with.

    Examples:
        >>> News("final", 48, (24, 48), budget=24, share=0.5).doing
        'final'
    """

    doing: Literal["choosing", "training", "final", "done"]
    labelled: int
    budgets: tuple[int, ...]
    scores: tuple[float, ...] = ()
    budget: int | None = None
    share: float | None = None
    result: dict[str, Any] | None = None
