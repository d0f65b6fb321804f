"""Paired comparisons, all by scipy: how much better, how sure, and how many more seeds it would take."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

LEVEL = 0.95
POWER = 0.8
FEWEST_FOR_BOOTSTRAP = 6
"""Below this a resample cannot reach beyond the observed extremes, and intervals come out too narrow."""
_RESAMPLES = 4999
MOST_SEEDS = 1000
MOST_MORE = 50
"""Beyond so many more seeds no number is said: it would be a guess about a difference close to nothing."""
Standing = Literal["ahead", "behind", "undecided"]


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences with its interval."""

    mean: float
    low: float
    high: float
    count: int
    interval: str  # "bootstrap" or "t"
    needed: int | None  # seeds for a power of 80 % if the true difference is the observed one; None: over 1000

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0

    @property
    def standing(self) -> Standing:
        """How the first stands against the second: the side of zero on which the interval lies, if it is on one."""
        if not self.is_clear:
            return "undecided"
        return "ahead" if self.mean > 0 else "behind"

    @property
    def more(self) -> int | None:
        """Seeds that an undecided comparison still lacks; None if more than 50, or if nothing tells."""
        more = None if self.needed is None else max(self.needed - self.count, 1)
        return None if more is None or more > MOST_MORE else more


def paired_difference(first: ArrayLike, second: ArrayLike) -> Difference:
    """``first - second``, seed by seed, with a 95 % interval of the mean.

    From six pairs on, a percentile bootstrap whose level is widened for small samples (Hesterberg 2015): the plain
    one finds differences where there are none in 10 % of cases and more. With fewer pairs, Student's t.
    """
    differences = np.asarray(first, float) - np.asarray(second, float)
    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return Difference(mean, -math.inf, math.inf, count, "t", None)
    if np.allclose(differences, mean):  # no spread: nothing to resample
        return Difference(mean, mean, mean, count, "t", count if mean else None)
    if count < FEWEST_FOR_BOOTSTRAP:
        low, high = stats.ttest_1samp(differences, 0).confidence_interval(LEVEL)
        return Difference(mean, float(low), float(high), count, "t", seeds_needed(differences))
    interval = stats.bootstrap(
        (differences,),
        np.mean,
        confidence_level=widened_level(count),
        n_resamples=_RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Difference(mean, float(interval.low), float(interval.high), count, "bootstrap", seeds_needed(differences))


def widened_level(count: int) -> float:
    """The nominal level at which a percentile interval of ``count`` values covers 95 %."""
    quantile = math.sqrt(count / (count - 1)) * stats.t.ppf((1 + LEVEL) / 2, count - 1)
    return float(2 * stats.norm.cdf(quantile) - 1)


def seeds_needed(differences: NDArray[np.float64]) -> int | None:
    """Pairs that a t test needs for a power of 80 %, if mean and spread stay as they are; None if over 1000."""
    spread = float(differences.std(ddof=1))
    effect = abs(float(differences.mean())) / spread if spread else math.inf

    def is_enough(count: int) -> bool:
        critical = stats.t.ppf((1 + LEVEL) / 2, count - 1)
        return bool(stats.nct.sf(critical, count - 1, effect * math.sqrt(count)) >= POWER)

    counts = range(2, MOST_SEEDS + 1)
    found = bisect.bisect_left(counts, True, key=is_enough)  # power grows with every pair
    return counts[found] if found < len(counts) else None


def area(budgets: Sequence[int], scores: Sequence[float]) -> float:
    """Mean score over the budgets: the area under the curve divided by its width."""
    if len(budgets) == 1:
        return float(scores[0])
    return float(np.trapezoid(scores, budgets) / (budgets[-1] - budgets[0]))


def labels_for(target: float, budgets: Sequence[int], scores: Sequence[float]) -> float:
    """Labels at which a budget curve first reaches ``target``, between budgets by interpolation.

    NaN if it never does. A curve that starts above the target counts as its first budget: it may have
    needed fewer.
    """
    best = np.maximum.accumulate(np.asarray(scores, float))
    if best[-1] < target:
        return math.nan
    if best[0] >= target:
        return float(budgets[0])
    after = int(np.argmax(best >= target))
    share = (target - best[after - 1]) / (best[after] - best[after - 1])
    return float(budgets[after - 1] + share * (budgets[after] - budgets[after - 1]))


@dataclass(frozen=True)
class Saving:
    """Percent of labels saved at a target score."""

    target: float
    labels: float  # of the method
    baseline_labels: float
    percent: float
    low: float
    high: float

    @property
    def standing(self) -> Standing:
        """The side of zero on which the interval lies, in whole percents; undecided if there is no interval."""
        if self.low >= 0.5:
            return "ahead"
        return "behind" if self.high <= -0.5 else "undecided"

    @property
    def is_reached(self) -> bool:
        """Whether the method's mean curve reaches the target at all."""
        return not math.isnan(self.labels)


def labels_saved(
    budgets: Sequence[int], method: NDArray[np.float64], baseline: NDArray[np.float64], target: float
) -> Saving:
    """Labels saved at ``target`` by the mean curves of [seeds, budgets], with a bootstrap over seeds in pairs.

    A resample that never reaches the target counts as having needed twice the largest budget. No interval below
    six seeds.
    """

    def percent(seeds: NDArray[np.int64]) -> float:
        mine, theirs = (labels_for(target, budgets, scores[seeds].mean(0)) for scores in (method, baseline))
        if math.isnan(mine):
            mine = budgets[-1] if math.isnan(theirs) else max(2 * budgets[-1], theirs)  # never reached: costs more
        if math.isnan(theirs):
            theirs = budgets[-1]
        return 100 * (1 - mine / theirs)

    everyone = np.arange(len(method))
    mine, theirs = (labels_for(target, budgets, scores.mean(0)) for scores in (method, baseline))
    low = high = math.nan
    if len(method) >= FEWEST_FOR_BOOTSTRAP and not (math.isnan(mine) or math.isnan(theirs)):
        found = stats.bootstrap(
            (everyone,), percent, vectorized=False, confidence_level=widened_level(len(method)), n_resamples=999,
            method="percentile", rng=np.random.default_rng(0),
        ).confidence_interval  # fmt: skip
        low, high = float(found.low), float(found.high)
    saved = math.nan if math.isnan(mine) or math.isnan(theirs) else 100 * (1 - mine / theirs)
    return Saving(target, mine, theirs, saved, low, high)
