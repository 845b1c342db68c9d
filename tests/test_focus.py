"""Focus measures on rows written by hand."""

from dataclasses import replace

import numpy as np
import pytest

from probe.captures import Capture
from probe.cases import case_of
from probe.errors import CijingError, TapError
from probe.findings import observation_frame
from probe.labels import Layer
from probe.measures.focus import (
    FOCUS,
    Measure,
    entropy,
    focus,
    matched_control,
    mean_distance,
    merged_row,
    rank_of,
    weighted_lengths,
    weighted_rows,
)
from probe.spans import TokenMap


def made(row, cue_row, *, stack="encoder", cues=("喜欢",), text="我喜欢苹果派"):
    """A capture of [CLS] 我 喜 欢 苹 果 派 [SEP] with one layer of one head; 苹果's two tokens share one row."""
    letters = list(text)
    offsets = np.array([[0, 0], *[[i, i + 1] for i in range(len(letters))], [len(letters)] * 2])
    special = np.array([True, *[False] * len(letters), True])
    tokens = TokenMap(
        text=text, ids=tuple(range(len(special))), offsets=offsets, special=special,
        labels=("[CLS]", *letters, "[SEP]"), unknown=np.zeros(len(special), dtype=bool), aligned="offsets",
    )  # fmt: skip
    case = case_of(text, target="苹果", cues=list(cues), id="x")
    target = tuple(range(case.target.start + 1, case.target.end + 1))
    spans = tuple(tuple(range(cue.start + 1, cue.end + 1)) for cue in case.cues)
    queries = tuple(sorted({*target, *(i for words in spans for i in words)}))
    rows = np.stack([np.array(row if i in target else cue_row, dtype=np.float32) for i in queries])[None, None]
    return Capture(
        case=case, tokens=tokens, target=target, cues=spans, layers=(Layer(stack, 0, "a"),), heads=(0,),
        queries=queries, rows=rows,
    )  # fmt: skip


#       CLS   我    喜    欢    苹    果    派   SEP
ROW = [0.10, 0.05, 0.20, 0.10, 0.15, 0.05, 0.15, 0.20]
BACK = [0.40, 0.10, 0.10, 0.10, 0.10, 0.05, 0.10, 0.05]


def value(capture, query, key, name="attention mass"):
    return focus(capture)[FOCUS.index(Measure(query, key, name)), 0, 0]


def test_masses_are_sums_over_the_words_tokens():
    one = made(ROW, BACK)
    assert value(one, "target", "cue") == pytest.approx(0.30)
    assert value(one, "target", "self") == pytest.approx(0.20)
    assert value(one, "target", "special") == pytest.approx(0.30)
    assert value(one, "target", "first") == pytest.approx(0.10)
    assert value(one, "target", "neighbours") == pytest.approx(0.10 + 0.15)  # 欢 and 派
    assert value(one, "cue", "target") == pytest.approx(0.15)


def test_the_row_of_a_word_is_the_mean_over_its_tokens():
    one = made(ROW, BACK)
    place = one.queries.index(one.target[1])
    one.rows[0, 0, place] = np.array([0.3, 0.05, 0.0, 0.1, 0.15, 0.05, 0.15, 0.2])
    assert value(one, "target", "cue") == pytest.approx((0.30 + 0.10) / 2)
    assert value(one, "target", "first") == pytest.approx(0.20)


def test_the_control_has_as_many_tokens_as_the_cue_at_the_nearest_distance():
    # candidates of two tokens outside 喜欢 and 苹果 in 我喜欢苹果派真好: 派真 (touching) and 真好 (one further)
    row = np.full(10, 0.1)
    one = made(row, row, text="我喜欢苹果派真好")
    assert matched_control(one, query=one.target, cue=one.cues[0], causal=False) == (6, 7)  # 派真, as near as 喜欢
    assert matched_control(one, query=one.target, cue=one.cues[0], causal=True) is None, "it stands after the target"


def test_punctuation_alone_is_no_control():
    row = np.full(9, 1 / 9)
    one = made(row, row, text="我喜欢苹果，。")
    assert matched_control(one, query=one.target, cue=one.cues[0], causal=False) is None
    assert np.isnan(value(one, "target", "control"))


def test_a_cue_behind_the_target_of_a_causal_model_is_not_visible_rather_than_zero():
    rows = [0.5, 0.5, 0, 0, 0, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.2, 0, 0]
    causal = made(*rows, stack="decoder", cues=("公司",), text="看苹果公司")
    assert np.isnan(value(causal, "target", "cue"))
    assert np.isnan(value(causal, "target", "cue", "cue rank"))
    assert value(causal, "cue", "target") == pytest.approx(0.4)
    both = made(*rows, cues=("公司",), text="看苹果公司")
    assert value(both, "target", "cue") == 0.0, "an encoder could see it and did not"


def test_a_case_without_cues_has_the_other_measures_and_no_invented_ones():
    one = made(ROW, BACK, cues=())
    assert np.isnan(value(one, "target", "cue")) and np.isnan(value(one, "cue", "target"))
    assert value(one, "target", "self") == pytest.approx(0.20)


def test_entropy_is_a_share_of_the_largest_possible():
    assert entropy(np.array([0.25, 0.25, 0.25, 0.25])) == pytest.approx(1.0)
    assert entropy(np.array([1.0, 0, 0, 0])) == 0.0
    assert entropy(np.array([0.5, 0.5, 0, 0])) == pytest.approx(1.0), "two visible keys, evenly"
    # by hand: -(0.75 ln 0.75 + 0.25 ln 0.25) / ln 2
    assert entropy(np.array([0.75, 0.25])) == pytest.approx(0.8113, abs=1e-4)
    assert entropy(np.array([0.075, 0.025])) == pytest.approx(0.8113, abs=1e-4), "a learned sink takes the rest"


def test_distance_counts_tokens_from_the_word_and_leaves_special_tokens_out():
    special = np.array([True, False, False, False, False, True])
    row = np.array([0.5, 0.1, 0.2, 0.1, 0.0, 0.1])
    # word at 2-3: token 1 is at distance 1, tokens 2 and 3 at 0
    assert mean_distance(row, [2, 3], special) == pytest.approx(0.1 / 0.4)
    assert np.isnan(mean_distance(np.array([1.0, 0, 0, 0, 0, 0]), [2], special))


def test_rank_shares_ties():
    among = np.array([False, True, True, True, True])
    assert rank_of(np.array([0.9, 0.4, 0.3, 0.2, 0.1]), [1], among=among) == 1
    assert rank_of(np.array([0.9, 0.4, 0.3, 0.2, 0.1]), [3], among=among) == 3
    assert rank_of(np.array([0.9, 0.2, 0.2, 0.2, 0.2]), [1], among=among) == 2.5


def weighted(norms, name="value_norms"):
    return replace(made(ROW, BACK), **{name: np.array(norms, dtype=np.float32)[None, None]})


def test_a_sink_with_a_short_vector_weighs_little():
    one = weighted([0.1, 1, 1, 1, 1, 1, 1, 0.5])
    rows = weighted_rows(one, "value norm")
    total = 0.01 + 0.05 + 0.20 + 0.10 + 0.15 + 0.05 + 0.15 + 0.10
    assert rows.sum(-1) == pytest.approx(np.ones((1, 1, 4)), abs=1e-6)
    grid = focus(one, weighting="value norm")[:, 0, 0]
    assert grid[FOCUS.index(Measure("target", "cue", "attention mass"))] == pytest.approx(0.30 / total)
    assert grid[FOCUS.index(Measure("target", "special", "attention mass"))] == pytest.approx(0.11 / total)
    assert grid[FOCUS.index(Measure("target", "first", "attention mass"))] == pytest.approx(0.01 / total)
    assert weighted_lengths(one, "value norm")[0, 0, -1, 0] == pytest.approx(0.1 * ROW[0])


def test_equal_vectors_leave_every_measure_as_it_is():
    one = weighted([2.5] * 8, "transformed_norms")
    assert focus(one, weighting="transformed norm") == pytest.approx(focus(one), nan_ok=True, abs=1e-6)
    assert weighted_rows(one, "none") is one.rows


def test_a_row_that_carries_nothing_is_not_a_number_rather_than_uniform():
    assert np.isnan(weighted_rows(weighted([0.0] * 8), "value norm")).all()


@pytest.mark.parametrize(
    ("weighting", "message"),
    [
        ("value norm", "the eager path shows no values"),
        ("transformed norm", r"CaptureOptions\(transformed_norms=True\)"),
        ("norm", "allowed are none, value norm, transformed norm"),
    ],
)
def test_a_weighting_that_the_capture_cannot_give_is_refused(weighting, message):
    with pytest.raises(TapError, match=message):
        focus(made(ROW, BACK), weighting=weighting)


def test_observations_say_how_their_rows_were_weighted():
    one = weighted([0.1, 1, 1, 1, 1, 1, 1, 0.5])
    frames = [
        observation_frame(
            focus(one, weighting=name)[None], model="m", cases=["x"], layers=one.layers, heads=one.heads, seed=0,
            weighting=name,
        )
        for name in ("none", "value norm")
    ]  # fmt: skip
    assert [set(frame["weighting"]) for frame in frames] == [{"none"}, {"value norm"}]
    first = [frame[(frame["key"] == "first")]["value"].item() for frame in frames]
    assert first[0] > 5 * first[1]


def test_a_weighting_that_there_is_not_is_refused_with_all_that_there_are():
    one = made(ROW, BACK)
    for call in (focus, weighted_rows):
        for weighting in ("foo", None, ["none"]):
            with pytest.raises(TapError, match=r"is unknown; allowed are none, value norm, transformed norm$"):
                call(one, weighting=weighting)


def test_measures_of_what_is_no_capture_are_refused_and_so_is_a_row_that_was_not_kept():
    one = made(ROW, BACK)
    for call in (
        focus,
        lambda given: weighted_rows(given, "none"),
        lambda given: weighted_lengths(given, "value norm"),
    ):
        with pytest.raises(CijingError, match=r"^capture is a list of 1; allowed is one Capture"):
            call([one])
    with pytest.raises(TapError, match=r"^token 7 of case 'x' has no row; kept are"):
        merged_row(one, [7])
