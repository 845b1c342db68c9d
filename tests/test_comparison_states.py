"""States of two models: decisions on the same cases, the layer chosen apart from where it is scored, paired tests."""

from dataclasses import replace

import numpy as np
import pytest

from probe.comparison_states import read_states, same_readings, state_gap_frame, state_gaps
from probe.findings import Observed
from probe.stats import bootstrap
from tests.test_polysemy import items_of, told

SENSES = ("fruit", "company") * 24  # 48 cases, each a group of its own


@pytest.fixture(scope="module")
def items():
    return items_of(SENSES)


def seen(items, states, *, seed=0):
    """An Observed that has nothing but states."""
    return Observed(
        model="m", items=items, layers=(), heads=(), focus=np.zeros((len(items), 0, 0, 0)), cuts=None, cut_cases=(),
        target_rows={}, seed=seed, states=states, context=states[:, 0],
    )  # fmt: skip


def reading(items, states, *, compared=None, seed=0):
    mask = np.ones(len(items), dtype=bool) if compared is None else compared
    return read_states(seen(items, states, seed=seed), mask)


def noise(*, layers=2, seed=1):
    return np.random.default_rng(seed).normal(0, 1, (len(SENSES), layers, 6))


def test_the_decisions_are_those_of_the_accuracy_curve(items):
    found = reading(items, told(SENSES) + noise())
    by_layer = bootstrap(found.correct, found.groups, seed=0, resamples=1).mean
    assert by_layer == pytest.approx(found.states.accuracy) and 0.3 < by_layer[0] < by_layer[1]
    assert found.correct.shape == (48, 2) and len(set(found.groups)) == 48


def test_a_model_that_tells_the_senses_is_claimed_above_one_that_does_not(items):
    a, b = reading(items, noise()), reading(items, told(SENSES))
    last, best = state_gaps(a, b, seed=0)
    assert (last.at, last.layer_a, last.layer_b, last.gap.units) == ("last", 1, 1, 48)
    assert last.b.mean == 1 and last.a.mean < 0.7 and last.gap.mean == pytest.approx(last.b.mean - last.a.mean)
    assert last.gap.low > 0 and last.p < 0.05
    assert (best.at, best.layer_b, best.gap.units) == ("best", 1, 24) and best.p < 0.05
    frame = state_gap_frame((last, best))
    assert frame["estimate"].tolist() == [last.gap.mean, best.gap.mean] and frame["groups"].tolist() == [48, 24]


def test_two_models_that_know_nothing_are_rarely_told_apart(items):
    claims = 0
    for seed in range(30):
        a, b = (reading(items, noise(seed=2 * seed + side), seed=seed) for side in (0, 1))
        claims += any(gap.p < 0.05 for gap in state_gaps(a, b, seed=seed))
    assert claims <= 5


def test_the_layer_is_chosen_on_one_half_and_scored_on_the_other(items):
    scored = reading(items, noise()).scored[:, None]
    good, bad = told(SENSES)[:, -1], noise()[:, 0]
    wrong = 3 * told(SENSES[::-1])[:, -1]  # each sense where the other one stands, and farther out
    # In layer 1 the half that chooses tells the senses, unless it hears the other half.
    states = np.stack([np.where(scored, good, bad), np.where(scored, wrong, good)], axis=1)
    found = reading(items, states)
    assert found.best == 1 and (found.scored == scored[:, 0]).all() and scored.sum() == 24
    _, best = state_gaps(found, found, seed=0)
    assert best.a.mean == pytest.approx(found.correct[found.scored, 1].mean()) != found.correct[:, 1].mean()
    silent = reading(items, np.where(scored[:, None], noise(seed=9), states))
    assert silent.best == found.best, "the scored half has no say in the choice"


def test_equal_states_differ_by_exactly_0(items):
    states = told(SENSES) + noise()
    a, b = reading(items, states), reading(items, states.copy())
    assert same_readings(a, b) and not same_readings(a, reading(items, states + 0.1 * noise(seed=3)))
    for gap in state_gaps(a, b, seed=0):
        assert (gap.gap.mean, gap.gap.low, gap.gap.high, gap.p) == (0, 0, 0, 1)


def test_layers_are_those_of_each_model_and_may_be_more_in_one(items):
    last, _ = state_gaps(reading(items, noise()), reading(items, told(SENSES, layers=5)), seed=0)
    assert (last.layer_a, last.layer_b) == (1, 4)


def test_fewer_than_twenty_groups_are_described_and_not_tested():
    few = items_of(SENSES[:10])
    last, best = state_gaps(reading(few, noise()[:10]), reading(few, told(SENSES[:10])), seed=0)
    assert np.isnan(last.p) and last.gap.units == 10 and not np.isnan(last.gap.low)
    assert np.isnan(best.p) and best.gap.units == 5


def test_a_case_that_is_not_compared_has_no_say(items):
    compared = np.arange(48) >= 8
    changed = told(SENSES)
    changed[:8] += 100 * noise()[:8]
    one, other = (reading(items, states, compared=compared) for states in (told(SENSES), changed))
    assert same_readings(one, other) and one.states.cases == 40


def test_without_states_or_without_senses_there_is_no_reading(items):
    assert read_states(replace(seen(items, noise()), states=None), np.ones(48, dtype=bool)) is None
    assert reading(items, noise(), compared=np.zeros(48, dtype=bool)) is None
    assert reading(items_of(["fruit"] * 48), noise()) is None
    assert same_readings(None, None) and not same_readings(None, reading(items, noise()))


def test_states_that_are_all_the_same_have_no_best_layer_and_no_difference(items):
    constant = reading(items, np.ones((48, 2, 3)))
    assert constant.best is None and np.isnan(constant.correct).all()
    assert state_gaps(constant, reading(items, told(SENSES)), seed=0) == ()
