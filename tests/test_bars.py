"""The benchmarks' bars: a missed one must be seen by whoever called."""

import pytest

from benchmarks.bars import Bars, in_turn, median_ratio


def test_met_bars_let_a_benchmark_end_well(capsys):
    bars = Bars()
    bars.at_most("cost", 1.5, 1.5)
    bars.at_least("gain", 1.7, 1.7)
    bars.close()
    assert capsys.readouterr().out.count("met") == 2


@pytest.mark.parametrize(("kind", "ratio"), [("at_most", 1.51), ("at_least", 1.49)])
def test_a_missed_bar_ends_with_an_error_that_names_it(kind, ratio):
    bars = Bars()
    getattr(bars, kind)("this cost", ratio, 1.5)
    bars.at_most("that cost", 1.0, 1.5)
    with pytest.raises(SystemExit) as left:
        bars.close()
    assert "this cost" in str(left.value.code)
    assert "that cost" not in str(left.value.code)


def test_a_median_of_ratios_outlives_one_bad_moment():
    first, second = iter([1.0, 1.0, 9.0, 1.0, 1.0]), iter([2.0, 2.0, 2.0, 2.0, 50.0])
    assert median_ratio(in_turn(lambda: next(first), lambda: next(second))) == 2.0
