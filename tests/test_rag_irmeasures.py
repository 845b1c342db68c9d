"""Recall, reciprocal rank and nDCG against numbers worked by hand and a second way of counting."""

import math
import random

import numpy as np
import pytest

from finetune.errors import RetrievalError
from finetune.rag.irmeasures import differences, first_of_each, means, retrieval_measures


def row(ranking, grades, ks=(1, 3)):
    frame = retrieval_measures({"q": ranking}, {"q": grades}, ks)
    assert len(frame) == 1
    return frame.iloc[0]


def test_the_numbers_are_those_worked_by_hand():
    # Grades 3, 2, 1 of a, b, c; ranked b x a: DCG@3 = 2/1 + 0 + 3/2 = 3.5; ideal 3/1 + 2/1.58496 + 1/2 = 4.76186.
    found = row(["b", "x", "a"], {"a": 3, "b": 2, "c": 1})
    assert found["relevant"] == 3
    assert (found["recall@1"], found["recall@3"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert (found["mrr@1"], found["mrr@3"]) == (1, 1)
    assert found["ndcg@1"] == pytest.approx(2 / 3)
    assert found["ndcg@3"] == pytest.approx(3.5 / 4.76186, abs=1e-6)


def test_the_third_rank_gives_a_third_and_a_half():
    found = row(["x", "y", "a"], {"a": 1})
    assert (found["recall@1"], found["mrr@1"], found["ndcg@1"]) == (0, 0, 0)
    assert (found["recall@3"], found["mrr@3"], found["ndcg@3"]) == (1, pytest.approx(1 / 3), pytest.approx(0.5))


def test_the_gain_is_the_grade_and_not_two_to_its_power():
    found = row(["b", "a"], {"a": 2, "b": 1}, ks=(2,))["ndcg@2"]
    assert found == pytest.approx((1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3)))  # 0.860; of 2^grade - 1: 0.797


def test_a_grade_below_one_counts_as_no_judgment():
    found = row(["bad", "a"], {"a": 1, "bad": -2, "dull": 0}, ks=(1, 2))
    assert found["relevant"] == 1
    assert (found["mrr@1"], found["mrr@2"], found["recall@2"]) == (0, 0.5, 1)
    assert found["ndcg@2"] == pytest.approx(1 / math.log2(3))


def brute_force(ranking, grades, k):
    relevant = {one for one, grade in grades.items() if grade >= 1}
    first = [one for one in ranking[:k] if one in relevant]
    recall = len(set(first)) / len(relevant)
    mrr = max([1 / (ranking.index(one) + 1) for one in first], default=0)
    orders = sorted((grades[one] for one in relevant), reverse=True)
    dcg = sum(grades[one] * math.log(2) / math.log(2 + ranking.index(one)) for one in first)
    best = sum(grade * math.log(2) / math.log(2 + place) for place, grade in enumerate(orders[:k]))
    return recall, mrr, dcg / best


def test_random_rankings_give_what_counting_one_by_one_gives():
    chance = random.Random(7)
    for _ in range(300):
        documents = [f"d{n}" for n in range(chance.randint(1, 12))]
        grades = {one: chance.randint(-1, 3) for one in documents if chance.random() < 0.6}
        ranking = chance.sample([*documents, "x", "y"], chance.randint(0, len(documents)))
        k = chance.randint(1, 13)
        found = row(ranking, grades, ks=(k,))
        values = [found[f"{name}@{k}"] for name in ("recall", "mrr", "ndcg")]
        if any(grade >= 1 for grade in grades.values()):
            assert values == pytest.approx(brute_force(ranking, grades, k))
            assert all(0 <= value <= 1 + 1e-12 for value in values)
        else:
            assert np.isnan(values).all()


def test_only_a_ranking_by_falling_grade_has_all_of_the_ndcg():
    grades = {"a": 3, "b": 2, "c": 2, "d": 1}
    assert row(["a", "c", "b", "d"], grades, ks=(4,))["ndcg@4"] == pytest.approx(1)
    assert row(["a", "b", "d", "c"], grades, ks=(4,))["ndcg@4"] < 1


def test_a_query_that_found_nothing_counts_as_zero_and_one_without_judgments_is_left_out_and_counted():
    ranked = {"found": ["a"], "unjudged": ["a"], "only zeros": ["a"]}
    qrels = {"found": {"a": 1}, "nothing": {"a": 1}, "only zeros": {"a": 0}}
    frame = retrieval_measures(ranked, qrels, (1,))
    assert list(frame["query"]) == ["found", "nothing", "only zeros", "unjudged"]
    assert frame["recall@1"].iloc[:2].tolist() == [1, 0] and frame["recall@1"].iloc[2:].isna().all()
    whole = means(frame).iloc[0]
    assert (whole["estimate"], whole["queries"], whole["unjudged"]) == (0.5, 2, 2)


def frames():
    chance = np.random.default_rng(3)
    qrels = {f"q{n}": {"a": 1} for n in range(60)}
    good = {name: ["a", "x"] if chance.random() < 0.8 else ["x", "a"] for name in qrels}
    bad = {name: list(reversed(order)) if chance.random() < 0.3 else order for name, order in good.items()}
    return retrieval_measures(good, qrels, (1, 2)), retrieval_measures(bad, qrels, (1, 2))


def test_a_mean_lies_in_its_interval_and_is_the_mean_of_the_queries():
    good, _ = frames()
    found = means(good).set_index("measure")
    assert found["estimate"].to_dict() == pytest.approx(good.drop(columns=["query", "relevant"]).mean().to_dict())
    recall = found.loc["recall@1"]
    assert recall["low"] < recall["estimate"] < recall["high"]
    half = 1.96 * math.sqrt(recall["estimate"] * (1 - recall["estimate"]) / 60)
    assert recall["high"] - recall["low"] == pytest.approx(2 * half, rel=0.15)


def test_two_systems_are_drawn_in_pairs():
    good, bad = frames()
    found = differences(bad, good).set_index(["measure", "arm"])
    gap = found.loc[("recall@1", "difference")]
    alone = means(good).set_index("measure").loc["recall@1"]
    assert gap["estimate"] == pytest.approx(good["recall@1"].mean() - bad["recall@1"].mean())
    each = (good["recall@1"] - bad["recall@1"]).std(ddof=0) / math.sqrt(60)
    assert gap["high"] - gap["low"] == pytest.approx(2 * 1.96 * each, rel=0.15)
    same = differences(good, good).set_index(["measure", "arm"]).loc[("recall@1", "difference")]
    assert (same["estimate"], same["low"], same["high"]) == (0, 0, 0)
    assert alone["estimate"] == found.loc[("recall@1", "other"), "estimate"]


def test_the_order_of_the_queries_changes_nothing():
    good, bad = frames()
    assert differences(bad, good).equals(differences(bad, good.iloc[::-1].reset_index(drop=True)))


def test_queries_that_share_a_unit_are_drawn_together():
    good, _ = frames()
    alone = means(good).iloc[0]
    together = means(good, units={query: query[:2] for query in good["query"]}).iloc[0]
    assert (alone["units"], together["units"]) == (60, 10)


def test_systems_of_other_queries_are_not_compared():
    good, bad = frames()
    with pytest.raises(ValueError, match="not the same"):
        differences(good, bad.iloc[1:])


def test_a_document_is_ranked_where_its_best_chunk_stands():
    assert first_of_each(["b", "a", "b", "c", "a"]) == ["b", "a", "c"]


def test_a_document_ranked_twice_is_refused():
    with pytest.raises(RetrievalError, match="query q: document a at ranks 1 and 3"):
        row(["a", "b", "a"], {"a": 1})


@pytest.mark.parametrize("ks", [(), (0,), (5, -1)])
def test_a_k_below_one_is_refused(ks):
    with pytest.raises(RetrievalError, match="allowed are whole numbers from 1"):
        retrieval_measures({}, {}, ks)


def test_means_of_nothing_judged_are_refused():
    with pytest.raises(RetrievalError, match="no query has a relevant document"):
        means(retrieval_measures({"q": ["a"]}, {}))
