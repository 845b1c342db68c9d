"""The flip test against enumeration by hand, and the four tests of the test on made data."""

import itertools

import numpy as np
import pytest

from probe.flips import benjamini_hochberg, fewest_units, flip_tests


def by_hand(values):
    """Two-sided p of the mean's |t| over all sign flips, in plain loops."""

    def t(sample):
        mean = sum(sample) / len(sample)
        spread = (sum((x - mean) ** 2 for x in sample) / (len(sample) - 1)) ** 0.5
        return abs(mean) / (spread / len(sample) ** 0.5) if spread > 1e-12 else (1e12 if abs(mean) > 1e-12 else 0.0)

    flips = [
        [s * x for s, x in zip(signs, values, strict=True)] for signs in itertools.product((1, -1), repeat=len(values))
    ]
    return sum(t(flip) >= t(values) - 1e-9 for flip in flips) / len(flips)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 0.5, 1.5], [1.0, -2.0, 0.3, 0.1, -0.2, 0.7], [1.0, 1.0, 1.0, 1.0]])
def test_exact_p_values_equal_enumeration(values):
    family = flip_tests([np.array(values)], seed=0)
    assert family.tests[0].exact and family.tests[0].flips == 2 ** len(values)
    assert float(family.tests[0].p) == pytest.approx(by_hand(values))
    assert float(family.p_max[0]) == pytest.approx(by_hand(values)), "one cell needs no correction"


def test_random_flips_come_close_to_the_exact_p():
    values = np.random.default_rng(1).normal(0.6, 1.0, 14)
    exact = float(flip_tests([values], seed=0).tests[0].p)
    rough = flip_tests([values], seed=0, flips=5000)
    assert not rough.tests[0].exact
    assert float(rough.tests[0].p) == pytest.approx(exact, abs=0.015)
    assert float(rough.tests[0].p) >= 1 / 5001


def test_max_t_takes_every_head_and_contrast_into_account():
    rng = np.random.default_rng(2)
    strong = rng.normal(0, 1, (20, 30))
    strong[:, 7] += 3.0
    noise = rng.normal(0, 1, (22, 50))
    family = flip_tests([strong, noise], seed=0, flips=2000)
    alone = flip_tests([strong], seed=0, flips=2000)
    assert family.p_max[0][7] < 0.01 and (np.delete(family.p_max[0], 7) > 0.05).all() and (family.p_max[1] > 0.05).all()
    assert (family.p_max[0] >= family.tests[0].p - 1e-12).all()
    assert family.p_max[0].mean() >= alone.p_max[0].mean(), "more cells cannot make a claim easier"


def test_exchanged_labels_reject_as_rarely_as_promised_and_an_uncorrected_test_does_not():
    rejections, uncorrected = 0, 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        taste = rng.normal(0, 1, (24, 1)) * rng.normal(0, 1, (1, 144))  # heads' tastes for words are shared
        values = (taste + rng.normal(0, 0.5, (24, 144))) * rng.choice([-1, 1], (24, 1))
        family = flip_tests([values], seed=seed, flips=1000)
        rejections += bool((family.p_max[0] < 0.05).any())
        uncorrected += bool((family.tests[0].p < 0.05).any())
    assert rejections <= 18
    assert uncorrected > 18


def test_cells_without_differences_are_never_found_and_do_not_hide_the_planted_one():
    found = 0
    for seed in range(20):
        values = np.zeros((20, 4, 4))
        values[:, 3, 1] = np.abs(np.random.default_rng(seed).normal(0.3, 0.1, 20))
        family = flip_tests([values], seed=seed, flips=2000)
        hits = np.argwhere(family.p_max[0] < 0.05)
        found += hits.tolist() == [[3, 1]]
        assert (family.tests[0].t[values.sum(0) == 0] == 0).all()
    assert found == 20


def test_undefined_differences_are_left_out_and_thin_cells_have_no_p():
    values = np.array([[1.0, np.nan], [2.0, np.nan], [1.5, 3.0], [0.5, np.nan]])
    family = flip_tests([values], seed=0)
    assert family.tests[0].units.tolist() == [4, 1]
    assert np.isnan(family.tests[0].p[1]) and np.isnan(family.p_max[0][1])
    assert float(family.p_max[0][0]) == pytest.approx(by_hand([1.0, 2.0, 1.5, 0.5]))


def test_benjamini_hochberg_by_hand():
    p = np.array([0.001, 0.012, 0.04, 0.2, np.nan, 0.02])
    # sorted .001 .012 .02 .04 .2 against .01 .02 .03 .04 .05: the first four pass
    assert benjamini_hochberg(p).tolist() == [True, True, True, False, False, True]
    assert not benjamini_hochberg(np.array([0.9, 0.8])).any()


def test_the_fewest_units_are_those_of_the_design():
    assert [fewest_units(heads) for heads in (72, 144, 784)] == [12, 13, 15]
