"""Estimates by cue word, with hand-worked numbers."""

import numpy as np
import pytest

from probe.stats import FEWEST_FOR_INTERVAL, _draws, bootstrap, unit_means


def test_sentences_with_one_cue_word_are_averaged_before_they_count():
    means, names = unit_means(np.array([1.0, 3.0, 10.0]), ["like", "like", "hate"])
    assert names == ("like", "hate") and means.tolist() == [2.0, 10.0]
    assert bootstrap(np.array([1.0, 3.0, 10.0]), ["like", "like", "hate"], seed=0).mean == 6.0


def test_undefined_values_are_left_out_cell_by_cell():
    values = np.array([[1.0, np.nan], [2.0, np.nan], [3.0, 4.0], [4.0, np.nan], [5.0, np.nan]])
    found = bootstrap(values, ["a", "b", "c", "d", "e"], seed=0)
    assert found.mean.tolist() == [3.0, 4.0] and found.units.tolist() == [5, 1]
    assert np.isnan(found.low[1]) and np.isnan(found.high[1]), "one unit has no interval"
    assert found.low[0] < 3.0 < found.high[0]


def test_four_units_have_a_mean_and_no_interval_and_five_have_both():
    assert FEWEST_FOR_INTERVAL == 5
    four, five = (bootstrap(np.arange(float(n)), [str(i) for i in range(n)], seed=0) for n in (4, 5))
    assert four.mean == 1.5 and np.isnan(four.low) and np.isnan(four.high)
    assert five.mean == 2.0 and five.low < 2.0 < five.high


def test_the_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    units = [str(number) for number in range(40)]
    hits = 0
    for number in range(300):
        found = bootstrap(rng.normal(1.0, 2.0, 40), units, seed=number, resamples=500)
        hits += bool(found.low <= 1.0 <= found.high)
    assert 0.90 <= hits / 300 <= 0.98


def test_repeated_sentences_do_not_narrow_the_interval():
    values = np.random.default_rng(2).normal(0, 1, 20)
    once = bootstrap(values, [str(i) for i in range(20)], seed=3)
    often = bootstrap(np.repeat(values, 24), [str(i) for i in range(20) for _ in range(24)], seed=3)
    assert often.low == pytest.approx(once.low) and often.high == pytest.approx(once.high)


def test_a_seed_gives_the_same_interval_and_another_seed_another():
    values, units = np.arange(12.0), [str(i) for i in range(12)]
    assert bootstrap(values, units, seed=5).low == bootstrap(values, units, seed=5).low
    assert bootstrap(values, units, seed=5, resamples=200).low != bootstrap(values, units, seed=6, resamples=200).low


def test_many_units_do_not_need_all_resamples_in_memory_at_once():
    import tracemalloc

    values, units = np.random.default_rng(0).normal(size=(20_000, 4)), [str(i) for i in range(20_000)]
    tracemalloc.start()
    bootstrap(values, units, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_each_unit_is_drawn_once_on_average_and_every_resample_has_as_many_draws_as_units():
    draws = _draws(np.random.default_rng(0), 7, size=4000)
    assert draws.shape == (4000, 7) and (draws.sum(1) == 7).all()
    assert draws.mean(0) == pytest.approx(np.ones(7), abs=0.06) and draws.var(0) == pytest.approx(
        np.full(7, 6 / 7), abs=0.08
    )
