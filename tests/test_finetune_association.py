"""The log-likelihood ratio by hand and against scipy, counts by hand, and what chance may pass."""

import random
from math import log

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency

from finetune.association import count_pairs, count_words, find_ties, frequent_words, log_likelihood_ratio
from finetune.errors import DataError
from finetune.words import Segmenter

SEGMENTER = Segmenter(how="bigrams")


def counted(texts, vocabulary, **settings):
    return count_pairs(texts, SEGMENTER, vocabulary, sentences=settings.pop("sentences", 1), **settings)


def pair(counts, first, second):
    """together, first at once before second, second at once before first."""
    at = [counts.vocabulary.index(word) for word in (first, second)]
    place = np.flatnonzero((counts.first == at[0]) & (counts.second == at[1]))
    return [int(what[place].sum()) for what in (counts.together, counts.touching, counts.reversed)]


def test_the_ratio_is_that_of_dunnings_paper():
    # "the swiss", first line of his table: 110, 2442, 111, 29114.
    assert float(log_likelihood_ratio([[110, 2442], [111, 29114]])) == pytest.approx(270.72, abs=0.005)


def test_the_ratio_is_that_worked_by_hand():
    assert float(log_likelihood_ratio([[10, 0], [0, 10]])) == pytest.approx(2 * 20 * log(2))
    assert float(log_likelihood_ratio([[4, 6], [8, 12]])) == 0.0
    # Expected 3, 7, 3, 7: 2 (5 ln(5/3) + 5 ln(5/7) + 1 ln(1/3) + 9 ln(9/7))
    by_hand = 2 * (5 * log(5 / 3) + 5 * log(5 / 7) + log(1 / 3) + 9 * log(9 / 7))
    assert float(log_likelihood_ratio([[5, 5], [1, 9]])) == pytest.approx(by_hand)
    assert by_hand == pytest.approx(4.0705, abs=1e-3)


def test_the_ratio_is_scipys_g_test():
    tables = np.random.default_rng(0).integers(1, 200, size=(50, 2, 2))
    ours = log_likelihood_ratio(tables)
    for table, ratio in zip(tables, ours, strict=True):
        assert ratio == pytest.approx(chi2_contingency(table, correction=False, lambda_="log-likelihood").statistic)


def test_empty_rows_give_nothing_and_no_warning():
    with np.errstate(all="raise"):
        assert log_likelihood_ratio([[[0, 0], [3, 4]], [[0, 0], [0, 0]]]).tolist() == [0.0, 0.0]


def test_windows_are_counted_once_for_each_word_and_pair():
    texts = ["acid enzyme acid. enzyme cycle!", "cycle acid enzyme.", "other"]
    windows, words = count_words(texts, SEGMENTER, sentences=1)
    assert windows == 4 and words == {"acid": 2, "enzyme": 3, "cycle": 2, "other": 1}
    assert frequent_words(words, least=2, most=9) == ("acid", "cycle", "enzyme")
    assert frequent_words(words, least=1, most=2) == ("acid", "enzyme")
    counts = counted(texts, ("acid", "cycle", "enzyme"))
    assert counts.windows == 4 and counts.words.tolist() == [2, 2, 3]
    assert pair(counts, "acid", "enzyme")[0] == 2 and pair(counts, "acid", "cycle")[0] == 1
    assert pair(counted(texts, ("acid", "cycle", "enzyme"), sentences=2), "acid", "cycle")[0] == 2


def test_touching_is_counted_in_the_texts_order():
    counts = counted(["统一内存很快", "统一内存", "内存统一"], ("内存", "统一"))
    assert pair(counts, "内存", "统一") == [3, 1, 2]


def test_bigrams_that_only_overlap_are_no_pair():
    assert pair(counted(["脱氢酶"], ("氢酶", "脱氢")), "氢酶", "脱氢")[0] == 0


def test_memory_is_bounded_and_what_may_be_missing_is_told():
    texts = [f"w{number} x{number}" for number in range(50)] + ["w0 x0"] * 5
    vocabulary = sorted({word for text in texts for word in text.split()})
    whole, bounded = counted(texts, vocabulary), counted(texts, vocabulary, most_pairs=10)
    assert len(whole.together) == 50 and whole.missed == 0
    assert bounded.missed == 1 and pair(bounded, "w0", "x0")[0] == 6 and len(bounded.together) == 1


def corpus(seed, size=400):
    """Sentences of independent words, and of two that are tied: together or not at all."""
    drawn = random.Random(seed)
    shares = {"often": 0.7, "common": 0.7, **{f"filler{number}": 0.15 for number in range(30)}}
    texts = []
    for _ in range(size):
        words = [word for word, share in shares.items() if drawn.random() < share]
        words += ["mono", "dioxide"] if drawn.random() < 0.06 else []
        drawn.shuffle(words)
        texts.append(" ".join(words))
    return texts


def ties_of(texts, reference, **settings):
    vocabulary = frequent_words(count_words(texts, SEGMENTER, sentences=1)[1], least=3, most=100)
    return find_ties(counted(texts, vocabulary), counted(reference, vocabulary), **settings)


def test_the_tied_pair_is_found_with_its_numbers_and_the_frequent_independent_one_is_not():
    texts = corpus(0)
    found = ties_of(texts, ["filler0 filler1"] * 200)
    assert [(tie.first, tie.second) for tie in found.pairs] == [("dioxide", "mono")]
    tie, count = found.pairs[0], sum("mono" in text for text in texts)
    assert tie.together == count and tie.alone == (count, count) and tie.windows == 400
    assert tie.by_chance == pytest.approx(count * count / 400)
    table = [[count, 0], [0, 400 - count]]
    assert tie.tie == pytest.approx(float(log_likelihood_ratio(table)))
    assert tie.p == pytest.approx(chi2.sf(tie.tie, 1))
    assert tie.contrast == pytest.approx(float(log_likelihood_ratio([[count, 400 - count], [0, 200]])))
    assert (tie.reference_together, tie.reference_windows) == (0, 200)
    assert found.tests == 34 * 33 // 2


def test_a_pair_that_the_reference_has_as_often_is_not_proposed():
    assert ties_of(corpus(0), corpus(1)).pairs == ()


def test_words_that_avoid_each_other_are_not_tied():
    texts = ["acid enzyme"] * 20 + ["acid cycle"] * 20 + ["enzyme cycle"] * 3 + ["rest"] * 60
    assert {(tie.first, tie.second) for tie in ties_of(texts, ["rest"] * 50).pairs} == {
        ("acid", "cycle"), ("acid", "enzyme"),
    }  # fmt: skip


def test_words_dealt_out_at_random_give_nearly_no_ties():
    found = 0
    for seed in range(20):
        words = [word for text in corpus(seed) for word in text.split()]
        random.Random(seed).shuffle(words)
        dealt = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
        found += len(ties_of(dealt, ["nothing"] * 400).pairs)
    assert found <= 3


def test_without_the_correction_chance_does_pass():
    assert len(ties_of(corpus(0), ["nothing"] * 400, rate=0.05 * 500).pairs) > 5


def test_empty_corpora_are_refused():
    full, empty = counted(["acid enzyme"], ("acid", "enzyme")), counted([], ("acid", "enzyme"))
    with pytest.raises(DataError, match="the corpus"):
        find_ties(empty, full)
    with pytest.raises(DataError, match="reference"):
        find_ties(full, empty)
