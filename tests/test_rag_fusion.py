"""Reciprocal rank fusion: worked numbers, what holds for any two rankings, and a weight that is chosen on one half."""

import random

import pytest

from finetune.errors import RetrievalError
from finetune.rag.fusion import GRID, choose_weight, fuse, halves
from finetune.rag.hits import Ranked


def ranking(*places):
    """Scores that fall, of a scale of its own."""
    return [Ranked(place, 30.0 - rank) for rank, place in enumerate(places)]


def places(found):
    return [one.place for one in found]


def drawn(chance, size=12):
    return ranking(*chance.sample(range(size), chance.randint(0, size)))


def test_the_sums_are_those_worked_by_hand():
    found = fuse(ranking(4, 7), ranking(7, 9), weight=0.25, k=10)
    wanted = {7: 0.75 / 62 + 0.25 / 61, 4: 0.75 / 61, 9: 0.25 / 62}
    assert places(found) == [7, 4, 9]
    assert {one.place: one.score for one in found} == pytest.approx(wanted)


def test_half_and_half_is_the_papers_sum_over_two():
    found = fuse(ranking(1, 2, 3), ranking(3, 1), weight=0.5, k=3)
    assert {one.place: 2 * one.score for one in found} == pytest.approx(
        {1: 1 / 61 + 1 / 62, 3: 1 / 63 + 1 / 61, 2: 1 / 62}
    )


def test_weight_0_is_the_lexical_ranking_and_1_the_dense_one():
    chance = random.Random(1)
    for _ in range(100):
        lexical, dense = drawn(chance), drawn(chance)
        assert places(fuse(lexical, dense, weight=0, k=12)) == places(lexical)
        assert places(fuse(lexical, dense, weight=1, k=12)) == places(dense)


def test_between_them_every_chunk_of_either_comes_once_and_the_mirror_weight_swaps_the_fields():
    chance = random.Random(2)
    for _ in range(100):
        lexical, dense, weight = drawn(chance), drawn(chance), chance.uniform(0.01, 0.99)
        found = fuse(lexical, dense, weight=weight, k=99)
        assert sorted(places(found)) == sorted({*places(lexical), *places(dense)})
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        swapped = {one.place: one.score for one in fuse(dense, lexical, weight=1 - weight, k=99)}
        assert {one.place: one.score for one in found} == pytest.approx(swapped)
        assert fuse(lexical, dense, weight=weight, k=3) == found[:3]


def test_a_chunk_that_both_fields_rank_higher_is_higher():
    chance = random.Random(3)
    for _ in range(50):
        first, second = chance.sample(range(12), 12), chance.sample(range(12), 12)
        order = places(fuse(ranking(*first), ranking(*second), weight=chance.random(), k=12))
        for one in range(12):
            for other in range(12):
                if first.index(one) < first.index(other) and second.index(one) < second.index(other):
                    assert order.index(one) < order.index(other)


def test_scores_play_no_part():
    chance = random.Random(4)
    lexical, dense = drawn(chance), drawn(chance)
    other = [Ranked(one.place, -1e9) for one in dense]
    assert fuse(lexical, dense, weight=0.3, k=12) == fuse(lexical, other, weight=0.3, k=12)


def test_a_chunk_of_one_field_only_stands_by_that_field():
    assert places(fuse(ranking(5), ranking(2, 8), weight=0.4, k=9)) == [5, 2, 8]
    assert places(fuse([], ranking(2, 8), weight=0.4, k=9)) == [2, 8]
    assert fuse([], [], weight=0.4, k=9) == []


def test_equal_sums_stand_by_place_whichever_field_is_read_first():
    assert places(fuse(ranking(8, 3), ranking(3, 8), weight=0.5, k=9)) == [3, 8]
    assert places(fuse(ranking(3), ranking(8), weight=0.5, k=9)) == [3, 8]
    assert places(fuse(ranking(8), ranking(3), weight=0.5, k=9)) == [3, 8]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"weight": -0.1}, "weight -0.1"), ({"weight": 1.5}, "weight 1.5"), ({"weight": float("nan")}, "weight nan"),
        ({"k": 0}, "k 0"), ({"constant": -1}, "constant -1"), ({"constant": float("inf")}, "constant inf"),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(given, wanted):
    with pytest.raises(RetrievalError, match=f"^{wanted}: allowed are "):
        fuse([], [], **{"weight": 0.5, "k": 1, **given})


def test_a_query_is_in_its_half_whatever_stands_beside_it():
    names = [f"q{n}" for n in range(1000)]
    first, second = halves(names)
    assert sorted(first + second) == sorted(names) and 440 < len(first) < 560
    again, _ = halves(reversed(names[:300]))
    assert set(again) == {name for name in first if name in names[:300]}
    assert halves(["DEV_0_QUERY_0"]) == ([], ["DEV_0_QUERY_0"])  # as it was when the bound was measured


def test_the_weight_is_the_one_that_finds_most():
    """Two chunks a query: the right one first in the field that knows it; the fields agree on nothing else."""
    lexical = {f"l{n}": ranking(0, 1, 2) for n in range(9)} | {f"d{n}": ranking(2, 1, 0) for n in range(3)}
    dense = {f"l{n}": ranking(1, 2) for n in range(9)} | {f"d{n}": ranking(0, 1, 2) for n in range(3)}
    chosen = choose_weight(lexical, dense, {query: {0} for query in lexical})
    by_weight = {one.weight: one for one in chosen.tried}
    assert [one.weight for one in chosen.tried] == list(GRID) and chosen.queries == 12
    assert by_weight[0].recall == 9 / 12 and by_weight[1].recall == 3 / 12
    assert by_weight[chosen.weight].recall == max(one.recall for one in chosen.tried)


def test_equal_recalls_are_decided_by_the_reciprocal_rank_and_then_by_nearness_to_a_half():
    lexical, dense = {"q": ranking(1, 2, 0)}, {"q": ranking(1, 0, 2)}
    chosen = choose_weight(lexical, dense, {"q": {0}}, grid=(0, 0.25, 0.75, 1))
    assert [(one.recall, one.mrr) for one in chosen.tried] == [(0, pytest.approx(1 / 3))] * 2 + [(0, 0.5)] * 2
    assert chosen.weight == 0.75
    same = {"q": ranking(0)}
    assert choose_weight(same, same, {"q": {0}}).weight == 0.5
    assert choose_weight(same, same, {"q": {0}}, grid=(0.75, 0.25)).weight == 0.25


def test_a_query_with_two_right_chunks_has_half_a_recall_and_one_that_nothing_found_has_none():
    rankings = {"q": ranking(0, 1)}
    chosen = choose_weight(rankings, rankings, {"q": {0, 1}, "lost": {4}}, grid=(0.5,))
    assert (chosen.tried[0].recall, chosen.tried[0].mrr) == (0.25, 0.5)


def test_no_weight_is_chosen_on_nothing():
    with pytest.raises(RetrievalError, match="relevant chunk"):
        choose_weight({}, {}, {})
    with pytest.raises(RetrievalError, match="relevant chunk"):
        choose_weight({}, {}, {"q": set()})
    with pytest.raises(RetrievalError, match="grid"):
        choose_weight({}, {}, {"q": {1}}, grid=())
