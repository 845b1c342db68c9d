"""Numbers become verdicts by rules, and a number whose watched cases go wrong is not to be trusted."""

import math

import pytest

from probe.claims.records import (
    Finding,
    Number,
    Part,
    Range,
    Rule,
    exact,
    less_than,
    mean_number,
    more_than,
    share_number,
    spread,
    together,
)

WIDE = Rule(confirmed=Range(above=0.95), refuted=Range(below=0.8), between="qualified")


def number(low: float, high: float) -> Number:
    return Number(estimate=(low + high) / 2, low=low, high=high, n=9)


GOOD, NOTHING = exact(1.0), exact(0.0)


def part(found: Number, *, planted: Number = GOOD, must_fail: Number = NOTHING, **changes: object) -> Part:
    settings = {"key": "one", "rule": more_than(0.0), "unit": "share", **changes}
    return Part(number=found, planted=planted, must_fail=must_fail, **settings)


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


@pytest.mark.parametrize("watched", [{"planted": exact(-1.0)}, {"planted": number(-1, 1)}, {"must_fail": exact(1.0)}])
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
    assert Finding(key="x", why="open").verdict == "open"
    with pytest.raises(ValueError, match="give parts"):
        Finding(key="x")
    with pytest.raises(ValueError, match="give parts"):
        Finding(key="x", parts=(part(exact(1.0)),), why="open")


def test_numbers_are_made_as_by_hand():
    assert spread([0.1, 0.3, 0.2]) == Number(estimate=0.3, low=0.1, high=0.3, n=3)
    wilson = share_number(8, 10)
    assert (round(wilson.low, 3), round(wilson.high, 3)) == (0.490, 0.943)
    few = mean_number([1.0, 2.0], ["a", "b"], seed=0)
    assert few.estimate == 1.5 and math.isnan(few.low)
    one_unit_twice = mean_number([0.0, 2.0, 5.0, 5.0, 5.0, 5.0], ["a", "a", "b", "c", "d", "e"], seed=0)
    assert one_unit_twice.n == 5 and one_unit_twice.estimate == pytest.approx(21 / 5)
