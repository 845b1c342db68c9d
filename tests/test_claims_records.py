"""Numbers become verdicts by rules, and a number whose watched cases go wrong is not to be trusted."""

import math

import numpy as np
import pytest

from probe.claims.far import peak_depth
from probe.claims.records import (
    NOTHING_MEASURED,
    Finding,
    Number,
    Part,
    Range,
    Rule,
    exact,
    hits_number,
    less_than,
    mean_number,
    more_than,
    not_testable,
    share_number,
    spread,
    together,
)
from probe.errors import CijingError

WIDE = Rule(confirmed=Range(above=0.95), refuted=Range(below=0.8), between="qualified")


def number(low: float, high: float) -> Number:
    return Number(estimate=(low + high) / 2, low=low, high=high, n=9)


GOOD, NOTHING = exact(1.0), exact(0.0)


def part(found: Number, *, planted: Number = GOOD, nothing: Number = NOTHING, **changes: object) -> Part:
    settings = {"key": "one", "rule": more_than(0.0), "unit": "share", **changes}
    return Part(number=found, planted=planted, nothing=nothing, **settings)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.96, 0.99, "confirmed"),
        (0.95, 0.99, "qualified"),  # a bound itself is not above the bound
        (0.5, 0.79, "refuted"),
        (0.5, 0.8, "qualified"),
        (0.7, 0.97, "qualified"),
        (math.nan, math.nan, "open"),
    ],
)
def test_a_rule_asks_for_the_whole_interval(low, high, verdict):
    assert WIDE.judge(number(low, high)) == verdict


def test_more_and_less_are_open_where_the_interval_holds_the_bound():
    assert [more_than(0.0).judge(number(*pair)) for pair in ((0.1, 0.2), (-0.1, 0.2), (-0.2, -0.1))] == [
        "confirmed",
        "open",
        "refuted",
    ]
    between = less_than(0.3, refuted_above=0.7)
    assert [between.judge(exact(value)) for value in (0.2, 0.5, 0.8)] == ["confirmed", "open", "refuted"]


def test_a_range_that_holds_nothing_is_refused():
    with pytest.raises(ValueError, match="above 2 and below 1"):
        Range(above=2, below=1)


def test_a_part_against_the_claim_turns_its_verdict_and_leaves_open_what_is_open():
    assert part(number(0.1, 0.2), bears="against").verdict == "refuted"
    assert part(number(-0.2, -0.1), bears="against").verdict == "confirmed"
    assert part(number(-0.2, 0.1), bears="against").verdict == "open"
    assert part(number(0.1, 0.2), bears="against").statement == "confirmed"


@pytest.mark.parametrize("watched", [{"planted": exact(-1.0)}, {"planted": number(-1, 1)}, {"nothing": exact(1.0)}])
def test_a_measure_whose_watched_case_goes_wrong_is_not_to_be_trusted(watched):
    assert part(number(0.1, 0.2)).verdict == "confirmed"
    assert part(number(0.1, 0.2), **watched).verdict == "measure not to be trusted"
    assert Finding(key="x", parts=(part(number(0.1, 0.2)), part(number(0.1, 0.2), **watched))).verdict == (
        "measure not to be trusted"
    )


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        (["confirmed", "confirmed"], "confirmed"),
        (["confirmed", "refuted"], "qualified"),
        (["refuted", "open"], "refuted"),
        (["open", "open"], "open"),
        (["confirmed", "qualified"], "qualified"),
        (["confirmed", "measure not to be trusted"], "measure not to be trusted"),
    ],
)
def test_parts_together_give_one_verdict(verdicts, verdict):
    assert together(verdicts) == verdict


def test_a_part_beside_the_claim_does_not_count():
    parts = (part(number(0.1, 0.2)), part(number(-0.2, -0.1), bears="beside"))
    assert Finding(key="x", parts=parts).verdict == "confirmed"


def test_a_finding_has_parts_that_decide_or_a_reason_for_none():
    assert Finding(key="x", why="waits").verdict == "waits"
    with pytest.raises(ValueError, match="give parts"):
        Finding(key="x")
    with pytest.raises(ValueError, match="give parts"):
        Finding(key="x", parts=(part(exact(1.0)),), why="waits")


def test_numbers_are_made_as_by_hand():
    assert spread([0.1, 0.3, 0.2]) == Number(estimate=0.3, low=0.1, high=0.3, n=3, ranged=True)
    wilson = share_number(8, 10)
    assert (round(wilson.low, 3), round(wilson.high, 3)) == (0.490, 0.943)
    few = mean_number([1.0, 2.0], ["a", "b"], seed=0)
    assert few.estimate == 1.5 and math.isnan(few.low)
    one_unit_twice = mean_number([0.0, 2.0, 5.0, 5.0, 5.0, 5.0], ["a", "a", "b", "c", "d", "e"], seed=0)
    assert one_unit_twice.n == 5 and one_unit_twice.estimate == pytest.approx(21 / 5)


def test_a_share_of_all_or_none_has_an_interval_that_did_not_collapse():
    units = list("abcdefgh")
    for hits, bounds in ((1.0, (0.676, 1.0)), (0.0, (0.0, 0.324))):
        found = hits_number([hits] * 8, units, seed=0)
        assert (found.estimate, found.n) == (hits, 8)
        assert (found.low, found.high) == pytest.approx(bounds, abs=5e-4)
    some = [1.0] * 5 + [0.0] * 3
    assert hits_number(some, units, seed=0) == mean_number(some, units, seed=0)


def test_a_trial_run_has_numbers_and_no_verdict():
    finding = Finding(key="x", parts=(part(number(0.1, 0.2)), part(number(0.1, 0.2), bears="against")))
    assert finding.verdict == "qualified"
    trial = finding.as_trial()
    assert trial.verdict == "trial run" and {one.statement for one in trial.parts} == {"trial run"}
    assert trial.parts[0].number == finding.parts[0].number and trial.parts[0].corrected == ""
    assert Finding(key="x", why="waits").as_trial().verdict == "waits"


def test_a_verdict_is_held_against_an_interval_wide_enough_for_all_statements():
    units = [str(i) for i in range(40)]
    values = np.random.default_rng(0).normal(size=40)
    clear, faint = (mean_number(values - values.mean() + shift, units, seed=0) for shift in (1.0, 0.35))
    assert all(one.wide[0] < one.low < one.high < one.wide[1] for one in (clear, faint))
    assert [part(one).statement for one in (clear, faint)] == ["confirmed", "confirmed"]
    assert [part(one).corrected for one in (clear, faint)] == ["stands", "falls"]
    few = mean_number(values[:10] + 3, units[:10], seed=0)
    assert part(few).statement == "confirmed" and part(few).corrected == "too few"
    assert [part(one).corrected for one in (exact(1.0), spread([0.5, 1.0]), number(-0.1, 0.2))] == ["", "", ""]


def test_the_wide_interval_of_a_share_is_wilsons():
    assert share_number(24, 24).wide == pytest.approx((24 / (24 + 3.290527**2), 1.0))


# --- edges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[math.nan, 1.0, 2.0], [1.0, math.nan, 2.0], [1.0, 2.0, math.nan], []])
def test_a_spread_with_a_nan_is_nan_wherever_it_stands(values):
    found = spread(values)
    assert all(map(math.isnan, (found.estimate, found.low, found.high))) and found.n == len(values)
    assert part(found).statement == "open"


@pytest.mark.parametrize(
    "unknown",
    [exact(math.nan), exact(0.0, n=0), Number(estimate=math.nan, low=-1, high=-0.5, n=3), number(math.nan, 0)],
)
def test_a_watched_case_that_is_not_known_is_not_trusted(unknown):
    assert part(number(0.1, 0.2), nothing=unknown).verdict == "measure not to be trusted"
    sure = exact(1.0, n=0) if unknown.n == 0 else unknown
    assert part(number(0.1, 0.2), planted=sure).verdict == "measure not to be trusted"


@pytest.mark.parametrize(
    ("confirmed", "refuted"),
    [({"above": 0.5}, {"below": 0.6}), ({"above": 0, "below": 1}, {"above": 0.9}), ({"below": 1}, {"above": 0})],
)
def test_a_rule_that_would_confirm_and_refute_one_number_is_refused(confirmed, refuted):
    with pytest.raises(ValueError, match="both confirms and refutes"):
        Rule(confirmed=Range(**confirmed), refuted=Range(**refuted))
    assert more_than(0.5, refuted_below=0.5).judge(exact(0.5)) == "open"  # ranges that touch hold no number in common


def test_the_peak_of_nothing_and_of_what_is_not_known_is_nan():
    gaps = np.random.default_rng(0).normal(size=(8, 10))
    gaps[3, 4] = math.nan
    for found, n in ((peak_depth(gaps, seed=0), 8), (peak_depth(np.empty((0, 10)), seed=0), 0)):
        assert math.isnan(found.estimate) and math.isnan(found.low) and found.n == n


def test_the_share_of_nothing_is_nan_and_more_hits_than_cases_are_refused():
    assert share_number(0, 0) is NOTHING_MEASURED
    for hits, n in ((3, 2), (-1, 2), (1, 0)):
        with pytest.raises(CijingError, match=f"{hits} hits of {n}: allowed are 0 to {n}"):
            share_number(hits, n)


@pytest.mark.parametrize("make", [mean_number, hits_number])
def test_the_mean_of_nothing_is_nan_of_no_units(make):
    for values, units in (([], []), ([math.nan, math.nan], ["a", "b"])):
        found = make(values, units, seed=0)
        assert math.isnan(found.estimate) and math.isnan(found.high) and found.n == 0 and not found.by_chance


def test_a_part_that_a_model_leaves_untestable_has_no_number_and_does_not_weigh():
    mute = not_testable(part(number(0.1, 0.2)), "placed_rows")
    assert mute.verdict == "not testable here" and mute.corrected == "" and not mute.number.known
    assert Finding(key="x", parts=(mute, part(number(0.1, 0.2)))).verdict == "confirmed"
    assert Finding(key="x", parts=(mute, part(number(-0.1, 0.2)))).verdict == "open"
    assert Finding(key="x", parts=(mute, mute)).verdict == "not testable here"
    assert Finding(key="x", parts=(mute,)).as_trial().verdict == "not testable here"
