"""Minimal groups in two models: pairs that both give, what is claimed of B − A and what is not."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from probe.capture import prepare
from probe.comparison import Comparison
from probe.comparison_senses import sense_gap_results, sense_gaps, shared_pairs
from probe.contrasts import slot_pairs
from probe.experiments.causes import CutEffects
from probe.findings import MASS_ON_CUE, Observed
from probe.labels import Layer
from probe.measures.focus import FOCUS
from probe.models import model_from_parts
from tests.test_contrasts import slot_case
from tests.tiny import tiny_bert, tiny_gpt2

WORDS = ["".join(pair) for pair in permutations("喜欢讨厌热爱手机", 2)]


def slot_cases(groups=24, *, contrasts=("fruit",)):
    """Groups of a cue, a word of its own each, and a neutral word of its own in the same slot."""
    cases = []
    for number in range(groups):
        sense, cue, neutral = contrasts[number % len(contrasts)], WORDS[2 * number], WORDS[2 * number + 1]
        cases.append(slot_case(f"c{number}", cue, sense, group=str(number)))
        cases.append(slot_case(f"n{number}", neutral, "neutral", group=str(number)))
    return cases


def prepared(cases, build=tiny_bert):
    return prepare(model_from_parts(*build(head=False), name="t"), cases)


@pytest.fixture(scope="module")
def items():
    return prepared(slot_cases())


def observed(items, values, *, name, effects=None):
    """An Observed with mass target → slot [case, layer, head] and effects [case] set by hand."""
    grid = np.full((len(items), len(FOCUS), *values.shape[1:]), np.nan, dtype=np.float32)
    grid[:, FOCUS.index(MASS_ON_CUE)] = values
    cuts = None
    if effects is not None:
        table = np.asarray(effects, dtype=np.float32)[:, None]
        cuts = CutEffects(
            layers=(), stack="encoder", directions=("target → cue",) * len(items), cue=table, control=table * 0,
            last=np.zeros((len(items), 3, 1), dtype=np.float32),
        )  # fmt: skip
    return Observed(
        model=name, items=items, focus=grid, cuts=cuts, target_rows={}, seed=0,
        layers=tuple(Layer("encoder", index, f"layer.{index}") for index in range(values.shape[1])),
        heads=tuple(range(values.shape[2])), cut_cases=tuple(range(len(items))) if cuts else (),
    )  # fmt: skip


def drawn(count, seed):
    return np.random.default_rng(seed).uniform(0.1, 0.4, (count, 2, 3))


CUE = np.arange(48) % 2 == 0  # the cue cases of `slot_cases`


def test_the_head_that_prefers_the_cue_in_one_model_is_claimed_and_one_that_prefers_both_words_is_not(items):
    a = drawn(48, 0)
    b = a + np.random.default_rng(1).normal(0, 0.01, a.shape)
    b[CUE, 1, 2] += 0.2
    b[:, 0, 0] += 0.2  # more for cue and neutral word alike: a taste for the slot
    gaps = sense_gaps(Comparison(a=observed(items, a, name="a"), b=observed(items, b, name="b")))
    (one,) = gaps.heads
    assert (one.contrast, one.measure, one.found.units.tolist()) == ("fruit", MASS_ON_CUE, [[24] * 3] * 2)
    assert np.argwhere(one.p_max < 0.05).tolist() == [[1, 2]]
    assert one.found.mean[1, 2] == pytest.approx(0.2, abs=0.01) and one.found.low[1, 2] > 0.19
    assert one.a == pytest.approx((a[CUE] - a[~CUE]).mean(0))
    assert [len(side) for side in (gaps.a, gaps.b)] == [1, 1] and (gaps.a[0].p_max >= 0.05).all()
    assert (gaps.b[0].p_max < 0.05).sum() == 1 and gaps.b[0].p_max[1, 2] < 0.05


def test_exchanged_models_are_rarely_told_apart(items):
    claims = 0
    for seed in range(20):
        a, b = (observed(items, drawn(48, 2 * seed + side), name=str(side)) for side in (0, 1))
        claims += bool((sense_gaps(Comparison(a=a, b=b)).heads[0].p_max < 0.05).any())
    assert claims <= 4


def test_cut_edges_are_compared_by_contrast_over_the_cue_words_of_both():
    cases = prepared(slot_cases(25, contrasts=("fruit", "company", "fruit", "fruit", "fruit")))
    count, cue = len(cases), np.arange(50) % 2 == 0
    rng = np.random.default_rng(0)
    effects = rng.uniform(0.1, 0.2, count)
    more = effects + np.where(cue, 0.1, 0.0) + rng.normal(0, 0.01, count)
    more[0] = np.nan  # one cue word has no number in B
    flat = np.zeros((count, 1, 1))
    pair = Comparison(
        a=observed(cases, flat, name="a", effects=effects), b=observed(cases, flat, name="b", effects=more)
    )
    fruit, company = sense_gaps(pair).cuts
    at = np.array([place for place in range(2, 50, 2) if place // 2 % 5 != 1])
    assert fruit.contrast == "fruit" and fruit.gap.units == 19 and company.gap.units == 5
    assert fruit.a.mean == pytest.approx((effects[at] - effects[at + 1]).mean(), abs=1e-6)
    assert fruit.gap.mean == pytest.approx(fruit.b.mean - fruit.a.mean, abs=1e-6)
    assert fruit.gap.low > 0.05 and np.isnan(fruit.p), "nineteen cue words are described, not tested"


def test_a_pair_without_a_number_in_one_model_is_left_out_of_the_mean_of_the_other():
    cases = prepared(
        [
            slot_case(f"{kind}{group}", word, sense, group=group)
            for group, neutral in (("1", "讨厌"), ("2", "热爱"))
            for kind, word, sense in (("c", "喜欢", "fruit"), ("n", neutral, "neutral"))
        ]
    )
    flat, a, b = np.zeros((4, 1, 1)), [0.5, 0.1, 0.9, 0.1], [0.7, 0.1, np.nan, 0.1]
    pair = Comparison(a=observed(cases, flat, name="a", effects=a), b=observed(cases, flat, name="b", effects=b))
    (one,) = sense_gaps(pair).cuts
    assert (one.a.mean, one.b.mean, one.gap.mean) == pytest.approx((0.4, 0.6, 0.2))


def test_enough_cue_words_are_tested_and_the_sign_is_kept(items):
    effects = np.random.default_rng(0).uniform(0.1, 0.2, 48)
    flat = np.zeros((48, 1, 1))
    for shift in (0.1, -0.1):
        b = observed(items, flat, name="b", effects=effects + np.where(CUE, shift, 0.0))
        (one,) = sense_gaps(Comparison(a=observed(items, flat, name="a", effects=effects), b=b)).cuts
        assert one.gap.mean == pytest.approx(shift, abs=1e-6) and one.p < 0.05
    both = observed(items, flat, name="b", effects=effects + 0.1)
    (one,) = sense_gaps(Comparison(a=observed(items, flat, name="a", effects=effects), b=both)).cuts
    assert one.gap.mean == pytest.approx(0, abs=1e-6), "an edge that matters more to both words is no difference"


def test_equal_models_differ_by_exactly_0(items):
    a = observed(items, drawn(48, 0), name="a", effects=drawn(48, 1)[:, 0, 0])
    gaps = sense_gaps(Comparison(a=a, b=a))
    (one,), (cut,) = gaps.heads, gaps.cuts
    assert all((grid == 0).all() for grid in (one.found.mean, one.found.low, one.found.high)) and (one.p_max == 1).all()
    assert (cut.gap.mean, cut.gap.low, cut.gap.high, cut.p) == (0, 0, 0, 1)


def test_only_pairs_that_both_tokenizers_give_are_compared():
    cases = [
        slot_case("a", "喜欢", "fruit", group="1"),  # one piece of bytes, and its neutral word more
        slot_case("b", "讨厌", "neutral", group="1"),
        slot_case("c", "手机", "device", group="2"),
        slot_case("d", "砸砸", "neutral", group="2"),
    ]
    one, other = prepared(cases), prepared(cases, tiny_gpt2)
    assert [len(slot_pairs(side)) for side in (one, other)] == [2, 1]
    flat = np.zeros((4, 1, 1))
    pair = Comparison(a=observed(one, flat, name="a"), b=observed(other, flat, name="b"))
    assert [found.contrast for found in shared_pairs(pair)] == ["device"]
    gaps = sense_gaps(pair)
    assert gaps.given == (2, 1) and [found.contrast for found in gaps.a] == ["device"]


def test_models_of_other_shapes_are_counted_and_not_subtracted(items):
    a = drawn(48, 0)
    a[CUE, 1, 2] += 0.3
    b = observed(items, np.random.default_rng(1).uniform(0.1, 0.4, (48, 3, 3)), name="b")
    gaps = sense_gaps(Comparison(a=observed(items, a, name="a"), b=b))
    assert gaps.heads == () and gaps.cuts == ()
    assert (gaps.a[0].p_max < 0.05).sum() == 1 and gaps.b[0].p_max.shape == (3, 3)


def test_the_rows_of_the_results_table_hold_both_models_and_their_difference(items):
    a, b = (observed(items, drawn(48, seed), name=name, effects=drawn(48, seed)[:, 0, 0]) for seed, name in
            ((0, "a"), (1, "b")))  # fmt: skip
    pair = Comparison(a=a, b=b)
    frame = sense_gap_results(pair, sense_gaps(pair))
    mass = frame[frame["measure"] == "attention mass"].pivot(
        index=["layer", "head"], columns="model", values="estimate"
    )
    assert mass["B − A"].to_numpy() == pytest.approx((mass["b"] - mass["a"]).to_numpy()) and len(mass) == 6
    cut = frame[frame["measure"] == "cut effect"].set_index("model")["estimate"]
    assert cut["B − A"] == pytest.approx(cut["b"] - cut["a"]) and set(frame["contrast"]) == {"fruit: cue − neutral"}
    own = frame[frame["model"] == "B − A"]
    assert own["control"].to_numpy() == pytest.approx([*mass["a"], cut["a"]]) and (own["n"] == 24).all()


def test_without_minimal_groups_there_is_nothing():
    cases = prepared([slot_case(name, "喜欢", "fruit", group="") for name in "ab"])
    pair = Comparison(a=observed(cases, np.ones((2, 1, 1)), name="a"), b=observed(cases, np.ones((2, 1, 1)), name="b"))
    gaps = sense_gaps(pair)
    assert (gaps.pairs, gaps.given, gaps.a, gaps.heads, gaps.cuts) == ((), (0, 0), (), (), ())
    assert isinstance(sense_gap_results(pair, gaps), pd.DataFrame) and sense_gap_results(pair, gaps).empty
