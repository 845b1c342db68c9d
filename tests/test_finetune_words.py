"""Content words: terms stay whole, offsets are the text's, what says nothing is dropped."""

import importlib.util
import itertools
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune import words
from finetune.errors import ConfigError, DataError
from finetune.words import Segmenter, windows_of

needs_rjieba = pytest.mark.skipif(importlib.util.find_spec("rjieba") is None, reason="rjieba is not installed")
BIOCHEM = "苹果酸脱氢酶把NAD+还原，α-酮戊二酸来自异柠檬酸。"


def cut(segmenter, text):
    return [word.text for word in segmenter.words(text)]


@needs_rjieba
def test_terms_of_the_dictionary_stay_whole():
    assert "α-酮戊二酸" not in cut(Segmenter(), BIOCHEM)
    found = cut(Segmenter(["苹果酸", "α-酮戊二酸", "NAD+", "异柠檬酸"]), BIOCHEM)
    assert found == ["苹果酸", "脱氢酶", "NAD+", "还原", "α-酮戊二酸", "来自", "异柠檬酸"]


@needs_rjieba
def test_a_word_that_rjieba_does_not_know_is_whole_only_as_a_term():
    assert "能效比" not in cut(Segmenter(), "芯片的能效比很高")
    assert "能效比" in cut(Segmenter(["能效比"]), "芯片的能效比很高")


@needs_rjieba
def test_a_term_inside_a_longer_word_is_not_cut_out():
    assert cut(Segmenter(["苹果"]), "苹果酸和苹果") == ["苹果酸", "苹果"]


@needs_rjieba
def test_terms_of_one_segmenter_are_not_those_of_another():
    Segmenter(["果酸脱氢"])
    assert cut(Segmenter(), "苹果酸脱氢酶") == ["苹果酸", "脱氢酶"]
    Segmenter(["苹果螺"])
    assert Segmenter().every_word("苹果螺很多") == ["苹果", "螺", "很多"]


@needs_rjieba
def test_particles_numbers_and_signs_are_dropped():
    assert cut(Segmenter(), "他的M1芯片，用了5纳米工艺；3.5%！") == ["M1", "芯片", "纳米", "工艺"]


@needs_rjieba
def test_single_characters_are_kept_where_they_are_nouns():
    assert cut(Segmenter(), "酶占了位置") == ["酶", "位置"]


@pytest.mark.parametrize("how", ["bigrams", pytest.param("rjieba", marks=needs_rjieba)])
def test_text_without_chinese_is_cut_at_its_letters(how):
    assert cut(Segmenter(how=how), "The state-of-the-art Ärzte used 3 ATP at 25 nm.") == [
        "state-of-the-art", "Ärzte", "used", "ATP", "nm",
    ]  # fmt: skip


def test_without_rjieba_each_two_neighbouring_characters_are_a_word():
    found = Segmenter(["苹果酸"], how="bigrams").words("苹果酸与脱氢酶NADH")
    assert [(word.text, word.start) for word in found] == [
        ("苹果酸", 0), ("脱氢", 4), ("氢酶", 5), ("NADH", 7),
    ]  # fmt: skip


def test_without_rjieba_it_is_said(monkeypatch):
    monkeypatch.setattr(words, "find_spec", lambda name: None)
    assert Segmenter().how == "bigrams"
    with pytest.raises(ConfigError, match="not installed"):
        Segmenter(how="rjieba")


def test_words_that_do_not_stand_in_the_text_are_refused():
    assert [word for word, _ in words._placed("甲乙", [("甲", "n"), ("乙", "n")])] == [("甲", 0, 1), ("乙", 1, 2)]
    for wrong in ([("乙", "n")], [("甲", "n")], [("甲乙丙", "n")]):
        with pytest.raises(DataError, match="rjieba"):
            list(words._placed("甲乙", wrong))


ALPHABET = st.text(alphabet="苹果酸脱氢酶的α-M1. \r\n\t,😀𠀀é́\u3000NAD+3", max_size=60)


@pytest.mark.parametrize("how", ["bigrams", pytest.param("rjieba", marks=needs_rjieba)])
@given(text=ALPHABET)
def test_every_word_is_a_slice_of_its_text_from_left_to_right(how, text):
    found = segmenter(how).words(text)
    assert all(text[word.start : word.end] == word.text for word in found)
    assert [word.start for word in found] == sorted(word.start for word in found)
    if how == "rjieba":
        assert all(one.end <= other.start for one, other in itertools.pairwise(found))


@cache
def segmenter(how):
    return Segmenter(["苹果酸", "α-M1", "NAD+"], how=how)


def test_windows_are_consecutive_sentences():
    text = "一句。二句！“三句？”四句\nFive. 3.5 percent, e.g. six"
    assert list(windows_of(text, sentences=1)) == [
        "一句。", "二句！", "“三句？”", "四句\n", "Five.", " 3.5 percent, e.g.", " six",
    ]  # fmt: skip
    assert next(windows_of(text, sentences=3)) == "一句。二句！“三句？”"
    assert list(windows_of("。！？ 12", sentences=2)) == []


@given(text=ALPHABET, sentences=st.integers(1, 4))
def test_windows_lose_no_letter(text, sentences):
    def letters(whole):
        return [char for char in whole if char.isalpha()]

    assert letters("".join(windows_of(text, sentences=sentences))) == letters(text)
