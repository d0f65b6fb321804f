"""Statistics on simulated data: they must be wrong as seldom as they say, and see more with more seeds."""

import math

import numpy as np
import pytest
from scipy import stats

from ralseg.studies import statistics
from ralseg.studies.statistics import area, labels_for, labels_saved, paired_difference, seeds_needed


def detections(count: int, effect: float, trials: int = 400) -> float:
    rng = np.random.default_rng(count)
    found = 0
    for _ in range(trials):
        common = rng.normal(0, 3, count)  # theta_0s differ by more than methods do: pairing removes it
        found += paired_difference(common + rng.normal(effect, 1, count), common + rng.normal(0, 1, count)).is_clear
    return found / trials


@pytest.mark.parametrize("count", [3, 5, 6, 10, 20])
def test_equal_methods_differ_in_about_five_percent_of_studies(count, monkeypatch):
    monkeypatch.setattr(statistics, "_RESAMPLES", 999)
    # 400 studies: three standard errors around 5 % are 1.7 to 8.3 %
    assert 0.015 <= detections(count, 0.0) <= 0.085


def test_power_grows_with_seeds(monkeypatch):
    monkeypatch.setattr(statistics, "_RESAMPLES", 499)
    power = [detections(count, 1.0, 200) for count in (3, 8, 20)]
    assert power[0] < power[1] < power[2]
    assert power[2] > 0.75


def test_the_number_of_seeds_needed_gives_the_power_it_promises():
    differences = np.array([0.2, 1.4, 0.6, 1.8, 1.0])
    count = seeds_needed(differences)
    effect = differences.mean() / differences.std(ddof=1)
    assert count is not None
    rng = np.random.default_rng(0)
    samples = rng.normal(effect, 1, (4000, count))
    assert (stats.ttest_1samp(samples, 0, axis=1).pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.12)
    assert seeds_needed(np.array([1.0, -1.0, 0.001])) is None


def test_areas_and_labels():
    assert area([0, 10, 20], [0.0, 1.0, 1.0]) == pytest.approx(0.75)
    assert area([10], [0.3]) == 0.3
    assert labels_for(0.5, [10, 20, 30], [0.4, 0.6, 0.5]) == pytest.approx(15)
    assert labels_for(0.3, [10, 20], [0.4, 0.6]) == 10
    assert math.isnan(labels_for(0.7, [10, 20], [0.4, 0.6]))


def test_labels_saved():
    baseline = np.array([[40.0, 44.0, 48.0], [41.0, 45.0, 49.0]])
    saving = labels_saved([100, 200, 300], baseline + 2, baseline, target=45.5)
    assert saving.baseline_labels == pytest.approx(225)
    assert saving.labels == pytest.approx(175)
    assert saving.percent == pytest.approx(100 * 50 / 225)
    assert math.isnan(saving.low)  # two seeds are too few for an interval
    many = np.concatenate([baseline] * 4)
    saving = labels_saved([100, 200, 300], many + 2, many, target=45.5)
    assert saving.low <= saving.percent <= saving.high
    assert math.isnan(labels_saved([100, 200, 300], baseline, baseline, target=60).percent)


def test_standings():
    clear = paired_difference([2.0, 2.1, 1.9, 2.2, 2.0, 1.8], [0.0] * 6)
    assert clear.standing == "ahead"
    assert paired_difference([0.0] * 6, [2.0, 2.1, 1.9, 2.2, 2.0, 1.8]).standing == "behind"
    for undecided in ([2.0, -1.5, 0.4], [1.0], [0.0, 0.0]):
        assert paired_difference(undecided, [0.0] * len(undecided)).standing == "undecided"


def test_how_many_more_seeds_is_one_number_with_an_end():
    found = paired_difference([2.0, 0.1, 0.9], [0.0] * 3)
    assert found.more == seeds_needed(np.array([2.0, 0.1, 0.9])) - 3
    far = paired_difference([1.0, -1.0, 0.5], [0.0] * 3)
    assert far.needed is not None
    assert far.needed > 53
    assert far.more is None
    assert paired_difference([1.0], [0.0]).more is None
