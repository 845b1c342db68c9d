"""Paired estimates by hand and by brute force, p values by enumeration, and what chance alone makes of them."""

import itertools
import math
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from finetune.compare import resampling
from finetune.compare.contrasts import contrasts_of
from finetune.compare.items import COLUMNS
from finetune.compare.pairing import Sums
from finetune.compare.power import more_seeds, visible_difference
from finetune.compare.resampling import drawn_values, holm, student_interval, student_p
from finetune.compare.statistics import changed, results_of, values_of
from finetune.errors import DataError
from tests.compared import BOUND, SIMULATIONS, row_of, simulated, table

NAN = math.nan
SIGNS = list(itertools.product([1, -1], repeat=11))


# ---- which arms are compared ------------------------------------------------------------------------------------


def test_the_claim_stands_first_and_only_arms_that_are_there_are_compared():
    found = [(one.arm, one.against) for one in contrasts_of(["base", "lora", "lora-attention", "lora-random", "rag"])]
    assert found == [
        ("lora-attention", "lora-random"), ("lora", "base"), ("lora-attention", "base"), ("lora-random", "base"),
        ("rag", "base"), ("lora-attention", "lora"), ("lora-random", "lora"),
    ]  # fmt: skip


def test_all_arms_give_the_whole_list():
    arms = "base lora lora-attention lora-random lora-more-text rag lora-rag lora-attention-rag edge-bias gloss full"
    found = [(one.arm, one.against) for one in contrasts_of(arms.split())]
    assert len(found) == len(set(found)) == 10 + 9
    assert {("lora-attention-rag", "lora-rag"), ("lora-attention-rag", "lora-attention"), ("full", "lora")} < set(found)


# ---- estimates --------------------------------------------------------------------------------------------------


def test_the_estimate_is_the_mean_over_seeds_of_paired_differences():
    runs = {("base", -1): [0, 1, 0, 0], ("lora", 0): [1, 1, 0, 0], ("lora", 1): [1, 1, 1, 0]}
    row = results_of(table(runs, measure="accuracy")).iloc[0]
    assert (row["arm_value"], row["against_value"], row["estimate"]) == (0.625, 0.25, 0.375)
    assert (row["seed_low"], row["seed_high"], row["seeds"], row["across_seeds"]) == (0.25, 0.5, 2, False)
    assert (row["items"], row["units"], row["items_left_out"], row["tests"]) == (4, 4, 0, 0)
    assert np.isnan([row["low"], row["high"], row["p"], row["p_corrected"], row["more_seeds_low"]]).all()


def test_weights_count_and_a_perplexity_is_the_exponential_of_the_mean():
    runs = {("base", -1): [2.0, 1.0], ("lora", 0): [1.0, 1.0], ("lora", 1): [1.0, 3.0]}
    row = results_of(table(runs, measure="perplexity", weights=[3.0, 1.0])).iloc[0]
    base, first, second = math.exp(1.75), math.exp(1.0), math.exp(1.5)
    assert row["estimate"] == pytest.approx((first + second) / 2 - base)
    assert row["arm_value"] == pytest.approx((first + second) / 2)
    assert (row["seed_low"], row["seed_high"]) == pytest.approx((first - base, second - base))


def test_same_seed_stands_against_same_seed_and_others_are_left_out_and_counted():
    runs = {
        ("lora-random", 2): [10.0, 10.0], ("lora-random", 0): [1.0, 1.0], ("lora-random", 1): [5.0, 5.0],
        ("lora-attention", 0): [2.0, 2.0], ("lora-attention", 3): [99.0, 99.0], ("lora-attention", 1): [4.0, 4.0],
    }  # fmt: skip
    row = results_of(table(runs)).iloc[0]
    assert (row["estimate"], row["seed_low"], row["seed_high"]) == (0.0, -1.0, 1.0)
    assert (row["seeds"], row["seeds_left_out"]) == (2, 2)


def test_only_common_items_count_and_the_others_are_told():
    runs = {("base", -1): [1.0, 2.0, NAN, 4.0], ("lora", 0): [2.0, 3.0, 7.0, 8.0], ("lora", 1): [2.0, NAN, 9.0, 8.0]}
    given = table(runs, units=["a", "a", "b", "c"])
    row = results_of(given.drop(index=given.index[3])).iloc[0]  # base lacks item 3 as a row
    assert (row["estimate"], row["items"], row["items_left_out"]) == (1.0, 1, 3)
    assert (row["units"], row["units_left_out"]) == (1, 2)


def test_two_arms_without_training_have_no_seeds():
    row = results_of(table({("base", -1): [1.0, 2.0], ("rag", -1): [2.0, 4.0]})).iloc[0]
    assert (row["estimate"], row["seeds"]) == (1.5, 0)


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ({("lora", 0): [1.0, NAN], ("lora", 1): [NAN, 1.0], ("base", -1): [1.0, 1.0]}, "no_common_items"),
        ({("lora", 0): [1.0], ("full", 1): [1.0]}, "no_common_seeds"),
    ],
)
def test_what_cannot_be_compared_has_a_row_with_its_reason_and_is_no_test(runs, why):
    row = results_of(table(runs)).iloc[0]
    assert (row["missing"], row["tests"], row["items"]) == (why, 0, 0)
    assert np.isnan([row["estimate"], row["low"], row["p"]]).all()


def test_a_measure_that_only_one_of_both_has_is_told_as_absent():
    both = table({("lora", 0): [1.0], ("base", -1): [1.0]})
    found = results_of(pd.concat([both, table({("lora", 0): [1.0]}, measure="ablated")], ignore_index=True))
    assert found[["measure", "missing"]].to_numpy().tolist() == [["margin", ""], ["ablated", "absent"]]


@pytest.mark.parametrize("measure", ["margin", "perplexity"])
def test_estimates_agree_with_a_loop_over_rows(measure):
    random = np.random.default_rng(3)
    runs = {("base", -1): random.normal(size=30)}
    runs |= {(arm, seed): random.normal(size=30) for arm in ("lora", "lora-more-text") for seed in (0, 1, 4)}
    given = table(runs, measure=measure, weights=(weights := random.integers(1, 9, size=30).tolist()))
    given = given[random.random(len(given)) > 0.05]
    for row in results_of(given).itertuples():
        keys = [(arm, seed if arm != "base" else -1) for seed in (0, 1, 4) for arm in (row.arm, row.against)]
        have = [set(given[(given["arm"] == arm) & (given["seed"] == seed)]["item"]) for arm, seed in keys]
        common = set.intersection(*have)
        differences = []
        for pair in (keys[:2], keys[2:4], keys[4:]):
            two = []
            for key in pair:
                total = weight = 0.0
                for place, value in enumerate(runs[key]):
                    if f"item {place}" in common:
                        total, weight = total + value * weights[place], weight + weights[place]
                two.append(math.exp(total / weight) if measure == "perplexity" else total / weight)
            differences.append(two[0] - two[1])
        assert row.estimate == pytest.approx(sum(differences) / 3)
        assert (row.seed_low, row.seed_high) == pytest.approx((min(differences), max(differences)))
        assert (row.items, row.items_left_out) == (len(common), len(set.union(*have)) - len(common))


def test_what_an_arm_reaches_is_over_all_of_its_own_items():
    runs = {("base", -1): [1.0, 2.0, 3.0, 4.0, 5.0], ("lora", 0): [2.0] * 5, ("lora", 1): [4.0] * 4 + [NAN]}
    base, lora = values_of(table(runs)).to_dict("records")
    assert (base["arm"], base["estimate"], base["items"], base["seeds"]) == ("base", 3.0, 5, 0)
    assert 1.0 <= base["low"] < 2.5 < 3.5 < base["high"] <= 5.0
    assert (lora["estimate"], lora["items"], lora["items_left_out"], lora["units"]) == (3.0, 4, 1, 4)
    assert (lora["seed_low"], lora["seed_high"], lora["seeds"]) == (2.0, 4.0, 2) and math.isnan(lora["low"])


# ---- intervals --------------------------------------------------------------------------------------------------


def test_the_interval_agrees_with_theory_where_units_are_many():
    random = np.random.default_rng(0)
    base, lora = random.normal(size=(2, 800))
    row = results_of(table({("base", -1): base, ("lora", 0): lora + 0.1})).iloc[0]
    error = (lora - base).std(ddof=1) / math.sqrt(800)
    assert row["error"] == pytest.approx(error, rel=0.06) and row["visible"] == 2.8 * row["error"]
    assert (row["low"], row["high"]) == pytest.approx(
        (row["estimate"] - 1.96 * error, row["estimate"] + 1.96 * error), abs=0.15 * error
    )


@pytest.mark.parametrize("units", [8, 12])
def test_few_units_have_an_interval_that_holds_as_often_as_it_says(units):
    values = np.random.default_rng(0).normal(size=(units, 2000))
    sums = Sums(values=values, weights=np.ones(units), exp=False)
    drawn, factor, held = drawn_values(sums, seed=0), math.sqrt(units / (units - 1)), {"plain": 0, "ours": 0}
    for of_one in drawn.T:
        intervals = {
            "plain": np.quantile(of_one, [0.025, 0.975]),
            "ours": student_interval(of_one, error=of_one.std(ddof=1) * factor, degrees=units - 1),
        }
        for name, (low, high) in intervals.items():
            held[name] += low <= 0 <= high
    assert held["plain"] / 2000 < 0.925 and 0.93 < held["ours"] / 2000 < 0.97


@pytest.mark.parametrize("measure", ["margin", "perplexity"])
def test_items_repeated_within_a_unit_neither_narrow_the_interval_nor_lower_p(measure):
    random = np.random.default_rng(1)
    runs = {("base", -1): random.normal(size=20), ("lora", 0): random.normal(size=20) + 0.4}
    names = [f"u{place}" for place in range(20)]
    once = results_of(table(runs, measure=measure, units=names)).iloc[0]
    often = {run: np.repeat(values, 7) for run, values in runs.items()}
    given = table(often, measure=measure, units=np.repeat(names, 7).tolist())
    same = ["estimate", "low", "high", "error", "p"]
    repeated = results_of(given).iloc[0]
    assert repeated[same].tolist() == pytest.approx(once[same].tolist())
    assert (repeated["items"], repeated["units"]) == (140, 20)
    narrowed = results_of(given.assign(unit=given["item"])).iloc[0]
    assert narrowed["error"] < 0.5 * once["error"] and narrowed["p"] < once["p"]


def test_what_is_drawn_depends_neither_on_other_arms_nor_on_the_size_of_blocks(monkeypatch):
    random = np.random.default_rng(2)
    arms = ("base", "lora", "lora-attention", "full")
    given = table({(arm, -1 if arm == "base" else seed): random.normal(size=18) for arm in arms for seed in range(9)})
    whole = results_of(given)
    monkeypatch.setattr(resampling, "_BLOCK", 100)
    pd.testing.assert_frame_equal(results_of(given), whole, rtol=1e-9)
    alone = row_of(results_of(given[given["arm"].isin(["base", "full"])]), "full", "base")
    told = ["estimate", "low", "high", "p", "more_seeds_low"]
    assert alone[told].tolist() == pytest.approx(row_of(whole, "full", "base")[told].tolist())
    assert not results_of(given, seed=1)["low"].equals(whole["low"])


def test_memory_stays_small():
    random = np.random.default_rng(0)
    given = table({("base", -1): random.normal(size=2000), ("lora", 0): random.normal(size=2000)})
    tracemalloc.start()
    results_of(given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6 < 20_000 * 2000 * 8  # the whole of the flips would be 320 MB


# ---- p values ---------------------------------------------------------------------------------------------------


def enumerated(one, other, units, transform):
    """The exact p by all exchanges; one and other [seed, item]."""
    names = sorted(set(units))
    statistics = []
    for kept in itertools.product([True, False], repeat=len(names)):
        stays = np.array([kept[names.index(unit)] for unit in units])
        left, right = np.where(stays, one, other), np.where(stays, other, one)
        statistics.append(abs(np.mean(transform(left.mean(1)) - transform(right.mean(1)))))
    return np.mean(np.array(statistics) >= statistics[0] - 1e-12)


@pytest.mark.parametrize(("measure", "transform"), [("margin", lambda mean: mean), ("perplexity", np.exp)])
def test_p_is_the_exact_share_of_all_exchanges(measure, transform):
    units = ["a", "a", "a", "b", "c", "c", "d", "e", "f", "g"]
    for draw in range(5):
        random = np.random.default_rng(draw)
        one, other = random.normal(size=(2, 2, 10)) + np.array([0.5, 0.0])[:, None, None]
        runs = {("lora", 0): one[0], ("lora", 1): one[1], ("full", 0): other[0], ("full", 1): other[1]}
        row = results_of(table(runs, measure=measure, units=units)).iloc[0]
        assert row["p"] == row["p_units"] == pytest.approx(enumerated(other, one, units, transform))


def test_equal_answers_in_another_order_count_as_equal():
    random = np.random.default_rng(0)
    for _ in range(20):
        tenths = random.integers(-5, 6, size=11)  # whole numbers add up without rounding, tenths do not
        exact = np.mean([abs(np.dot(signs, tenths)) >= abs(tenths.sum()) for signs in SIGNS])
        runs = {("base", -1): [0.1] * 11, ("lora", 0): 0.1 + tenths / 10}
        assert results_of(table(runs)).iloc[0]["p"] == exact
    assert results_of(table({("base", -1): [0.1] * 6, ("lora", 0): [0.1] * 6})).iloc[0]["p"] == 1.0


def test_drawn_exchanges_come_near_all_of_them():
    random = np.random.default_rng(5)
    moved = random.normal(size=16) + 0.35
    row = results_of(table({("base", -1): np.zeros(16), ("lora", 0): moved})).iloc[0]
    signs = 1 - 2 * ((np.arange(2**16)[:, None] >> np.arange(16)) & 1)
    exact = np.mean(np.abs(signs @ moved) >= abs(moved.sum()) - 1e-12)
    assert row["p"] * 20_001 == pytest.approx(round(row["p"] * 20_001))  # (b + 1) / (B + 1)
    assert 0.01 < exact < 0.5 and row["p"] == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000))


def test_the_least_p_of_drawn_exchanges_is_not_zero():
    row = results_of(table({("base", -1): np.zeros(60), ("lora", 0): np.ones(60)})).iloc[0]
    assert row["p"] == 1 / 20_001


def test_holm_by_hand():
    assert holm([0.01, 0.04, NAN, 0.03, 0.005]) == pytest.approx([0.03, 0.06, NAN, 0.06, 0.02], nan_ok=True)
    assert holm([0.6, 0.9]).tolist() == [1.0, 1.0] and holm([]).tolist() == []


def test_what_counts_and_what_describes_are_corrected_apart():
    random = np.random.default_rng(0)
    runs = {("base", -1): random.normal(size=12), ("lora", 0): random.normal(size=12), ("rag", -1): np.ones(12)}
    measures = ("margin", "general_perplexity", "mass", "sink", "cut")
    found = results_of(pd.concat([table(runs, measure=name) for name in measures], ignore_index=True))
    assert found.groupby("family")["tests"].unique().map(list).to_dict() == {
        "attention": [6], "causes": [6], "forgetting": [4], "task": [4],
    }  # fmt: skip
    for group in (found["tests"] == 4, found["tests"] == 6):
        assert found["p_corrected"][group].tolist() == pytest.approx(holm(found["p"][group].tolist()).tolist())


def test_p_across_seeds_is_students():
    assert student_p(0.3, error=0.1, degrees=7) == pytest.approx(2 * stats.t.sf(3.0, df=7))
    assert student_p(-0.3, error=0.1, degrees=5.5) == pytest.approx(2 * stats.t.sf(3.0, df=5.5))
    assert (student_p(0.0, error=0.0, degrees=7), student_p(0.1, error=0.0, degrees=7)) == (1.0, 0.0)


def test_across_seeds_it_is_the_t_test_of_the_seeds_where_items_are_all_alike():
    random = np.random.default_rng(0)
    moved = random.normal(size=9) + 0.5
    runs = {("base", -1): np.zeros(30)} | {("lora", seed): np.full(30, rise) for seed, rise in enumerate(moved)}
    row = results_of(table(runs)).iloc[0]
    assert row["p"] == pytest.approx(stats.ttest_1samp(moved, 0).pvalue)
    assert row["p_units"] == 1 / 20_001
    half = stats.t.ppf(0.975, df=8) * moved.std(ddof=1) / 3
    assert (row["low"], row["high"]) == pytest.approx((moved.mean() - half, moved.mean() + half), abs=0.2 * half)


# ---- what chance makes of it ------------------------------------------------------------------------------------


def test_without_a_difference_p_and_interval_err_as_often_as_they_say():
    given = simulated(seeds=2, units=24)
    found = results_of(given)
    assert len(found) == SIMULATIONS
    assert 0.01 < (found["p"] < 0.05).mean() <= BOUND
    assert ((found["low"] <= 0) & (found["high"] >= 0)).mean() >= 1 - BOUND
    by_item = results_of(given.assign(unit=given["item"]))
    assert (by_item["p"] < 0.05).mean() > 2 * BOUND  # what the units are there for


def test_a_perplexity_errs_no_more_often():
    found = results_of(simulated(seeds=1, units=24, measure="perplexity"))
    assert 0.01 < (found["p"] < 0.05).mean() <= BOUND


def test_across_seeds_what_a_seed_moves_is_not_taken_for_a_difference():
    found = results_of(simulated(seeds=8, units=24, seed_noise=1.0))
    assert found["across_seeds"].all()
    assert (found["p"] < 0.05).mean() <= BOUND
    assert ((found["low"] <= 0) & (found["high"] >= 0)).mean() >= 1 - BOUND
    assert (found["p_units"] < 0.05).mean() > 2 * BOUND  # given these seeds there is a difference, in these seeds


@pytest.mark.parametrize("seeds", [3, 8])
def test_a_planted_difference_is_found_and_covered(seeds):
    found = results_of(simulated(seeds=seeds, units=40, effect=1.5))
    assert (found["p_corrected"] < 0.05).mean() > 0.9  # over all 200 tests
    assert ((found["low"] <= 1.5) & (found["high"] >= 1.5)).mean() >= 1 - BOUND


# ---- what the data could show -----------------------------------------------------------------------------------


def test_what_answers_that_change_can_show_by_hand_and_by_simulated_power():
    given = table({("base", -1): [0.0, 1.0] * 200, ("lora", 0): [1.0] * 400}, measure="accuracy")
    found = visible_difference(given)
    assert found["assuming"].tolist() == ["changed"] * 3 and found["assumed"].tolist() == [0.05, 0.1, 0.2]
    assert found["visible"].tolist() == pytest.approx([2.8 * math.sqrt(c / (400 + 2.8**2)) for c in (0.05, 0.1, 0.2)])
    random, visible = np.random.default_rng(0), found["visible"].iloc[2]
    counts = random.multinomial(400, [(0.2 + visible) / 2, (0.2 - visible) / 2, 0.8], size=4000)
    mean = (counts[:, 0] - counts[:, 1]) / 400
    error = np.sqrt((counts[:, :2].sum(1) / 400 - mean**2) / 400)
    assert (np.abs(mean) > 1.96 * error).mean() == pytest.approx(0.8, abs=0.03)


def test_what_margins_can_show_by_simulated_power():
    random = np.random.default_rng(1)
    base = random.normal(scale=2.0, size=300)
    found = visible_difference(table({("base", -1): base}))
    assert found["assuming"].tolist() == ["correlation"] * 2
    for row in found.itertuples():
        noise = random.normal(scale=base.std(ddof=1), size=(3000, 2, 300))
        first, second = noise[:, 0], row.assumed * noise[:, 0] + math.sqrt(1 - row.assumed**2) * noise[:, 1]
        moved = second - first + row.visible
        t = moved.mean(1) / (moved.std(1, ddof=1) / math.sqrt(300))
        assert (np.abs(t) > 1.96).mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("measure", ["accuracy", "margin", "perplexity"])
def test_items_repeated_within_a_unit_show_no_more(measure):
    random = np.random.default_rng(2)
    values = random.integers(0, 2, size=40) if measure == "accuracy" else random.normal(size=40)
    names = [f"u{place}" for place in range(40)]
    once = visible_difference(table({("base", -1): values}, measure=measure, units=names))
    often = table({("base", -1): np.repeat(values, 5)}, measure=measure, units=np.repeat(names, 5).tolist())
    found = visible_difference(often)
    assert found["visible"].tolist() == pytest.approx(once["visible"].tolist(), rel=0.02)
    assert found["design"].iloc[0] == pytest.approx(5, rel=0.03) and once["design"].iloc[0] == 1
    if measure == "perplexity":
        error = values.std(ddof=1) / math.sqrt(40) * math.exp(values.mean())
        assert once["visible"].iloc[0] == pytest.approx(2.8 * error)  # a correlation of 0.5


def test_too_few_changes_show_nothing_too_few_units_are_not_known_and_what_describes_is_left_out():
    few = visible_difference(table({("base", -1): [0.0, 1.0] * 20}, measure="accuracy"))
    assert few["visible"].iloc[0] == math.inf and few["visible"].iloc[2] < 0.2
    assert visible_difference(table({("base", -1): [0.1, 1.0, 2.0]}))["visible"].isna().all()
    assert len(visible_difference(table({("base", -1): [0.1] * 9}, measure="mass"))) == 0
    with pytest.raises(DataError, match="no items of the arm base"):
        visible_difference(table({("lora", 0): [0.1] * 9}))


def test_more_seeds_are_told_from_eight_on_as_a_range():
    moved = 0.1 + 0.3 * stats.norm.ppf((np.arange(10) + 0.5) / 10)
    low, high = more_seeds(moved, unit_error=0.0, seed=0)
    needed = (2.8 * moved.std(ddof=1) / moved.mean()) ** 2
    assert 0 < low < needed - 10 < high < math.inf
    assert more_seeds(moved[:7], unit_error=0.0, seed=0) is None
    assert more_seeds(moved, unit_error=moved.mean() / 2.8, seed=0) == (math.inf, math.inf)
    assert more_seeds(5 + moved, unit_error=0.0, seed=0) == (0.0, 0.0)
    wider = more_seeds(moved, unit_error=moved.mean() / 4, seed=0)
    assert wider[0] > low and wider[1] > high


def test_results_tell_more_seeds_only_across_seeds():
    random = np.random.default_rng(0)
    runs = {("base", -1): random.normal(size=12)}
    runs |= {("lora", seed): random.normal(size=12) for seed in range(8)}
    row = results_of(given := table(runs)).iloc[0]
    assert row["across_seeds"] and row["more_seeds_low"] > 0 and row["more_seeds_high"] >= row["more_seeds_low"]
    fewer = results_of(given[given["seed"] < 7]).iloc[0]
    assert not fewer["across_seeds"] and math.isnan(fewer["more_seeds_low"])


# ---- examples ---------------------------------------------------------------------------------------------------


def test_items_that_changed_are_told_with_their_seeds():
    runs = {
        ("base", -1): [0, 0, 1, 1, 0],
        ("lora", 0): [1, 0, 1, 0, 0], ("lora", 1): [1, 0, 0, 0, 1], ("lora", 2): [1, 0, 1, 1, 0],
    }  # fmt: skip
    found = changed(table(runs, measure="accuracy"), "lora", "base")
    assert found[["item", "to_right", "to_wrong", "seeds"]].to_numpy().tolist() == [
        ["item 0", 3, 0, 3], ["item 3", 0, 2, 3], ["item 4", 1, 0, 3], ["item 2", 0, 1, 3],
    ]  # fmt: skip
    assert len(changed(table(runs), "lora", "base")) == 0


# ---- tables that are not paired ---------------------------------------------------------------------------------

GOOD = table({("base", -1): [1.0, 2.0], ("lora", 0): [1.0, 2.0]})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            pd.concat([GOOD, GOOD.tail(1)], ignore_index=True),
            "stands twice in a run: arm lora, seed 0, margin, item item 1",
        ),
        (GOOD.assign(unit=["a", "b", "a", "c"]), "another unit in another run: arm lora"),
        (GOOD.assign(weight=[1.0, 1.0, 1.0, 2.0]), "another weight in another run: arm lora"),
        (GOOD.assign(weight=[1.0, 1.0, 1.0, -1.0]), "below 0 or no number: arm lora"),
        (GOOD.assign(weight=[1.0, NAN, 1.0, 1.0]), "below 0 or no number: arm base"),
        (GOOD.assign(value=[1.0, 1.0, -math.inf, 1.0]), "a value is infinite: arm lora"),
        (
            GOOD.assign(measure="perplexity", value=[1.0, 1.0, 701.0, 1.0]),
            "its exponential is beyond numbers: arm lora",
        ),
        (GOOD.assign(measure=["margin", "margin", "margin", "charm"]), "no such measure; there are margin, accuracy"),
        (GOOD.assign(arm="lora"), "runs with a seed and a run without"),
        (GOOD.drop(columns=["unit", "weight"]), "lacks the columns unit, weight"),
    ],
)
def test_a_table_that_is_not_paired_is_refused(given, told):
    with pytest.raises(DataError, match=told):
        results_of(given)


def test_items_without_weight_say_nothing_and_no_items_give_no_rows():
    runs = {("base", -1): [1.0, 50.0], ("lora", 0): [2.0, 90.0]}
    row = results_of(table(runs, weights=[2.0, 0.0])).iloc[0]
    assert (row["estimate"], row["items"], row["items_left_out"]) == (1.0, 1, 0)
    empty = pd.DataFrame(columns=list(COLUMNS))
    assert len(results_of(empty)) == len(values_of(empty)) == len(changed(empty, "lora", "base")) == 0
