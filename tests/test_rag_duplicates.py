"""Texts that stand twice: word for word, and nearly, against a comparison of each with each."""

import random
import time

import pytest

from finetune.errors import RetrievalError
from finetune.rag.duplicates import GRAM, Twin, as_read, find_duplicates, letters_of


def grams(text: str) -> set[str]:
    letters = letters_of(text).ljust(GRAM, "\0")
    return {letters[place : place + GRAM] for place in range(len(letters) - GRAM + 1)}


def each_with_each(texts: list[str], threshold: float) -> dict[int, float]:
    """Which texts have an earlier, kept one that is as similar, and how similar the most similar one is."""
    kept: list[int] = []
    found: dict[int, float] = {}
    for place, text in enumerate(texts):
        most = max((jaccard(grams(text), grams(texts[other])) for other in kept), default=0.0)
        if most >= threshold:
            found[place] = most
        else:
            kept.append(place)
    return found


def jaccard(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other)


def drawn_texts(seed: int) -> list[str]:
    """Texts of a few letters with copies that are changed here and there, some of them very short."""
    draw = random.Random(seed)
    texts: list[str] = []
    while len(texts) < 150:
        text = "".join(draw.choices("苹果酸脱氢酶是一种的", k=draw.choice([1, 4, 6, 12, 60, 200])))
        for _ in range(draw.randrange(4)):
            places = sorted(draw.sample(range(len(text)), min(len(text), draw.randrange(4))))
            changed = "".join("梨" if place in places else letter for place, letter in enumerate(text))
            texts.append(changed[draw.randrange(2) * draw.randrange(5) :] or "梨")
        texts.append(text)
    draw.shuffle(texts)
    return list(dict.fromkeys(texts))


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.95])
@pytest.mark.parametrize("seed", range(5))
def test_near_duplicates_are_those_that_a_comparison_of_each_with_each_finds(threshold, seed):
    texts = drawn_texts(seed)
    found = find_duplicates(texts, threshold=threshold)
    wanted = each_with_each(texts, threshold)
    assert len(wanted) > 1 and found.exact == ()
    assert {twin.place: twin.similarity for twin in found.near} == pytest.approx(wanted)
    kept = set(range(len(texts))) - wanted.keys()
    for place, first, similarity in found.near:
        assert first in kept and first < place and jaccard(grams(texts[place]), grams(texts[first])) == similarity


def test_texts_that_read_the_same_are_one_whatever_their_width_and_white_space():
    texts = ["苹果 Apple, 很甜!", "梨", "苹果　Ａｐｐｌｅ， 很甜！", "\n苹果\u00a0Apple,\n很甜!\t", "梨 "]
    found = find_duplicates(texts, threshold=None)
    assert found.exact == (Twin(2, 0, 1.0), Twin(3, 0, 1.0), Twin(4, 1, 1.0))
    assert as_read("caf\u00e9") == as_read("cafe\u0301")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("剂量是1.5毫克", "剂量是15毫克"), ("保存于-5°C", "保存于5°C"), ("他写C++程序", "他写C#程序"),
        ("x>y", "x<y"), ("增长+12%", "增长-12%"), ("共10²个", "共102个"), ("剂量是1 5毫克", "剂量是15毫克"),
        ("基因Sox2", "基因SOX2"), ("他来了。", "他来了？"),
    ],
)  # fmt: skip
def test_texts_that_differ_in_a_sign_a_space_between_digits_or_case_are_two_texts(one, other):
    assert as_read(one) != as_read(other)
    assert find_duplicates([one, other]).exact == ()


def test_the_same_letters_with_other_signs_are_near_ones_of_full_similarity():
    assert find_duplicates(["苹果 Apple，很甜。", "梨", "苹果ａｐｐｌｅ很甜"]).near == (Twin(2, 0, 1.0),)


def test_texts_without_letters_are_compared_by_their_signs():
    found = find_duplicates(["？！", "……", "?！", "", " "])
    assert found.exact == (Twin(2, 0, 1.0), Twin(4, 3, 1.0)) and found.near == ()


def test_no_chain_of_small_changes_joins_texts_that_differ():
    text = "".join(chr(0x4E00 + number) for number in range(100))
    chain = [text[step * 5 : 60 + step * 5] for step in range(8)]
    found = find_duplicates(chain, threshold=0.8)
    assert [(twin.place, twin.first) for twin in found.near] == [(1, 0), (3, 2), (5, 4), (7, 6)]


def test_a_text_goes_to_the_most_similar_one_that_stays():
    text = "".join(chr(0x4E00 + number) for number in range(100))
    texts = [text[12:], text[:88], text[2:90]]
    assert [(twin.place, twin.first) for twin in find_duplicates(texts, threshold=0.77).near] == [(2, 1)]


def test_near_ones_are_not_looked_for_without_a_threshold():
    texts = ["苹果酸脱氢酶是一种酶" * 3, "苹果酸脱氢酶是一种酶" * 3 + "类", "苹果酸脱氢酶是一种酶" * 3]
    assert len(find_duplicates(texts).near) == 1
    found = find_duplicates(texts, threshold=None)
    assert found.near == () and found.exact == (Twin(2, 0, 1.0),)


def test_thousands_of_copies_of_one_form_are_found_in_seconds():
    form = "兹证明第{:05d}号苹果符合出口检验检疫的各项要求，特此证明。此证自签发之日起十二个月内有效。"
    began = time.process_time()
    found = find_duplicates([form.format(number) for number in range(3000)], threshold=0.7)
    assert len(found.near) > 2900 and time.process_time() - began < 10


def test_nothing_has_no_duplicates():
    assert find_duplicates([]).near == find_duplicates(["苹果"]).exact == ()


@pytest.mark.parametrize("threshold", [0.0, 0.4, 1.0, 80])
def test_a_threshold_that_means_nothing_is_refused(threshold):
    with pytest.raises(RetrievalError, match=r"allowed is 0\.5 to below 1, or none"):
        find_duplicates(["苹果"], threshold=threshold)


def test_progress_counts_the_texts_that_are_compared():
    seen = []
    find_duplicates(["苹果", "梨", "苹果"], progress=lambda *step: seen.append(step))
    assert seen == [("near duplicates", 1, 2), ("near duplicates", 2, 2)]
