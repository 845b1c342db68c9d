"""When a difference may be called better, and the words it is told in."""

import math
import string
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from finetune.compare import messages
from finetune.compare.items import MEASURES
from finetune.compare.messages import number, sentence, word
from finetune.compare.statistics import results_of
from finetune.compare.verdicts import claims, verdicts_of
from tests.compared import BOUND, SIMULATIONS, simulated, table

NAN = math.nan


def given(**changed):
    """A row of results as `results_of` gives them, with what is changed."""
    runs = {("lora-random", seed): np.zeros(12) for seed in range(3)}
    runs |= {("lora-attention", seed): np.linspace(0.1, 0.3, 12) + seed / 100 for seed in range(3)}
    return results_of(table(runs)).assign(**changed)


def verdict(**changed):
    (found,) = verdicts_of(given(**changed))
    return found


ABOVE, BELOW, ACROSS = {"low": 0.1, "high": 0.3}, {"low": -0.3, "high": -0.1}, {"low": -0.1, "high": 0.3}


@pytest.mark.parametrize(
    ("measure", "p", "interval", "kind"),
    [
        ("margin", 0.01, ABOVE, "better"), ("margin", 0.01, BELOW, "worse"), ("margin", 0.01, ACROSS, "none"),
        ("margin", 0.05, ABOVE, "none"), ("margin", 0.2, BELOW, "none"), ("margin", 0.049, ABOVE, "better"),
        ("perplexity", 0.01, ABOVE, "worse"), ("perplexity", 0.01, BELOW, "better"),
        ("general_perplexity", 0.06, BELOW, "none"), ("sense_accuracy", 0.001, BELOW, "worse"),
        ("mass", 0.01, ABOVE, "higher"), ("sink", 0.01, BELOW, "lower"), ("cut", 0.3, ABOVE, "none"),
        ("margin", 0.01, {"low": 0.0, "high": 0.3}, "none"), ("margin", 0.01, {"low": -0.3, "high": 0.0}, "none"),
    ],
)  # fmt: skip
def test_better_takes_a_corrected_p_an_interval_without_zero_and_the_right_direction(measure, p, interval, kind):
    family = MEASURES[measure].family
    found = verdict(measure=measure, family=family, p_corrected=p, p=0.0001, p_units=0.0001, **interval)
    assert (found.kind, found.reason) == (kind, "")
    assert found.only_uncorrected == (kind == "none" and 0 not in interval.values() and interval != ACROSS)


def test_without_an_interval_nothing_is_claimed():
    few = table({("lora-random", 0): [0.0] * 4, ("lora-attention", 0): [9.0] * 4})
    (found,) = verdicts_of(results_of(few))
    assert (found.kind, found.reason, found.units) == ("not_comparable", "few_units", 4)
    assert sentence(found, "en") == (
        "margin (test): LoRA + attention and LoRA + random pairs, difference +9.000; with only 4 independent units "
        "there is no interval, so nothing is claimed."
    )


@pytest.mark.parametrize("reason", ["absent", "no_common_seeds", "no_common_items"])
def test_what_cannot_be_compared_says_why(reason):
    empty = dict.fromkeys(("estimate", "low", "high", "p", "p_corrected", "visible", "seed_low", "seed_high"), NAN)
    found = verdict(missing=reason, **empty)
    assert (found.kind, found.reason, found.more_seeds) == ("not_comparable", reason, None)
    for language in ("en", "zh"):
        assert "nan" not in sentence(found, language)


def test_the_claim_is_told_by_how_much_for_these_seeds_only():
    found = verdict(p_corrected=0.004)
    assert found.is_claim and claims([found, replace(found, family="attention"), replace(found, why="text")]) == (
        found,
    )
    assert (found.estimate, found.seed_low, found.seed_high) == pytest.approx((0.21, 0.2, 0.22))
    low, high = f"{found.low:.3f}", f"{found.high:.3f}"
    assert 0.15 < found.low < 0.21 < found.high < 0.27
    assert sentence(found, "en") == (
        f"margin (test): supervision beats random pairs by 0.210 ({low} to {high}); 3 seeds: +0.200 … +0.220, and for "
        "these seeds only."
    )
    assert sentence(found, "zh") == (
        f"正误之差（测试）：注意力监督胜过随机词对 0.210（{low} 至 {high}）；"
        "3 个种子：+0.200 … +0.220，只就这些种子而言。"
    )


def test_where_lower_is_better_the_gain_is_turned_round():
    found = verdict(measure="perplexity", estimate=-0.2, p_corrected=0.01, **BELOW)
    assert found.kind == "better" and found.gain == (0.2, 0.1, 0.3)
    assert "supervision beats random pairs by 0.200 (0.100 to 0.300)" in sentence(found, "en")
    assert verdict(estimate=0.2, **ABOVE).gain == (0.2, 0.1, 0.3)


def test_no_difference_names_what_would_have_been_visible_and_never_says_better():
    found = verdict(p_corrected=0.3, estimate=0.1, visible=0.28, **ACROSS)
    assert sentence(found, "en").startswith(
        "margin (test): supervision and random pairs, no difference can be shown (+0.100, −0.100 to +0.300; a "
        "difference of 0.280 would have been visible); 3 seeds: "
    )
    plain = replace(found, why="whole", against="base")
    assert "LoRA + attention and the base model, no difference can be shown (+0.100" in sentence(plain, "en")
    for text in (sentence(one, language) for one in (found, plain) for language in ("en", "zh")):
        assert not any(said in text for said in ("better", "beat", "优于", "胜过"))
    assert "没有显示出差别" in sentence(found, "zh") and "没有显示出差别" in sentence(plain, "zh")


def test_an_interval_without_zero_that_does_not_stand_after_correction_is_explained():
    found = verdict(p_corrected=0.08, tests=40, **ABOVE)
    assert "the interval leaves out 0, but corrected over 40 tests p is 0.080" in sentence(found, "en")
    assert "按 40 次检验校正后 p = 0.080" in sentence(found, "zh")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seeds": 1}, "1 seed, which says nothing of other seeds"),
        ({"seeds": 8, "across_seeds": True}, "the interval is over items and 8 seeds (+0.200 … +0.220)"),
        ({"items_left_out": 5}, "5 items that only one of both has are left out"),
        ({"more_seeds_low": 3.0, "more_seeds_high": 40.0}, "3 to 40 more seeds would be needed"),
        ({"more_seeds_low": 3.0, "more_seeds_high": math.inf}, "at least 3 more seeds would be needed"),
        ({"more_seeds_low": math.inf, "more_seeds_high": math.inf}, "no number of seeds would show"),
    ],
)
def test_what_limits_a_verdict_is_said_beside_it(changed, told):
    assert told in sentence(verdict(p_corrected=0.5, **{**ACROSS, **changed}), "en")


def test_more_seeds_are_not_asked_for_where_a_difference_is_shown_and_arms_without_training_have_none():
    shown = verdict(p_corrected=0.001, more_seeds_low=0.0, more_seeds_high=3.0)
    assert shown.more_seeds is None and "would be needed" not in sentence(shown, "en")
    assert "seed" not in sentence(verdict(seeds=0), "en")


@pytest.mark.parametrize("kind", ["better", "worse", "higher", "lower"])
def test_other_contrasts_are_told_with_their_signed_difference(kind):
    up = kind in ("better", "higher")
    measure = "margin" if kind in ("better", "worse") else "mass"
    interval = ABOVE if up else BELOW
    found = verdict(
        arm="lora", against="base", why="whole", measure=measure, family=MEASURES[measure].family, part="layer 7",
        p_corrected=0.01, estimate=0.2 if up else -0.2, **interval,
    )  # fmt: skip
    said = {"better": "better than", "worse": "worse than", "higher": "above", "lower": "below"}[kind]
    signs = "difference +0.200 (+0.100 to +0.300)" if up else "difference −0.200 (−0.300 to −0.100)"
    assert f"(layer 7): LoRA is {said} the base model, {signs}" in sentence(found, "en")
    assert "第 7 层" in sentence(found, "zh")


def test_both_languages_have_the_same_placeholders():
    for key, texts in messages._TEXTS.items():
        fields = [{name for _, name, _, _ in string.Formatter().parse(text) if name} for text in texts]
        assert fields[0] == fields[1], key
        assert texts[0] != texts[1]


def test_every_measure_has_its_word_and_small_numbers_are_not_written_as_zero():
    assert all(word(name, language) != name or language == "en" for name in MEASURES for language in ("zh", "en"))
    assert [number(value) for value in (0.0, 0.5, -0.5, 0.00042, -0.0099, 12.3456)] == [
        "0", "+0.500", "−0.500", "+0.00042", "−0.0099", "+12.346",
    ]  # fmt: skip
    assert number(0.21, signed=False) == "0.210"


def test_arms_that_give_the_same_are_said_to_be_the_same():
    runs = {("base", -1): np.arange(9.0), ("lora", 0): np.arange(9.0), ("lora", 1): np.arange(9.0)}
    (found,) = verdicts_of(results_of(table(runs)))
    assert (found.kind, found.p, found.visible) == ("none", 1.0, 0.0)
    assert sentence(found, "en") == "margin (test): LoRA and the base model are the same on every unit."
    runs["lora", 0], runs["lora", 1] = np.arange(9.0) + 1, np.arange(9.0) - 1  # the same in the mean only
    assert "no difference can be shown" in sentence(verdicts_of(results_of(table(runs)))[0], "en")


# ---- from items to verdicts -------------------------------------------------------------------------------------


def test_without_a_difference_none_of_many_is_called_better_more_often_than_by_chance():
    found = verdicts_of(results_of(simulated(seeds=2, units=24)))
    assert len(found) == SIMULATIONS and {one.kind for one in found} <= {"none", "better", "worse"}
    assert sum(one.kind != "none" for one in found) <= 1  # Holm keeps even one to 5 % over all of them


def test_a_planted_gain_is_called_better_where_a_test_by_itself_also_finds_chance():
    planted = simulated(seeds=3, units=40, effect=1.5)
    planted = planted[planted["part"].astype(int) < 5]
    null = simulated(seeds=3, units=40)
    null = null[null["part"].astype(int) >= 5]
    found = verdicts_of(results_of(pd.concat([planted, null], ignore_index=True)))
    kinds = [one.kind for one in found]
    assert kinds[:5] == ["better"] * 5 and kinds[5:].count("none") >= len(kinds) - 6
    uncorrected = sum(not one.low <= 0 <= one.high for one in found[5:]) / (SIMULATIONS - 5)
    assert 0.01 < uncorrected < BOUND  # these are what the correction is for
