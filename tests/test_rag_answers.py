"""Answers held against right ones: what does not count, and what F1 counts, with numbers worked by hand."""

import pytest

from finetune.errors import RetrievalError
from finetune.rag.answers import answer_units, character_f1, contains, exact_match, normalised


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("「Ｍ１」 芯片。", "m1芯片"),
        ("苹果酸（L-Malate）\u200b\ufe0f", "苹果酸lmalate"),
        ("３．５ 倍", "3.5倍"),
        ("1,000\u3000个", "1000个"),
        ("12,34", "1234"),
        ("2:1，½", "2:11/2"),
        ("−5℃", "-5°c"),
        ("M-1", "m1"),
        ("50％。", "50%"),
        ("第3.", "第3"),
        ("Straße", "strasse"),
        ("C++", "c++"),
        ("鐵", "鐵"),
    ],
)
def test_width_case_punctuation_and_white_space_do_not_count(text: str, read: str) -> None:
    assert normalised(text) == read


@pytest.mark.parametrize(("one", "other"), [("3.5", "35"), ("1/2", "12"), ("-5", "5"), ("50%", "50"), ("鐵", "铁")])
def test_what_makes_another_answer_counts(one: str, other: str) -> None:
    assert not exact_match(one, other)


def test_units_are_chinese_characters_and_whole_latin_runs() -> None:
    assert answer_units("1,000 nm") == ["1000", "nm"]
    assert answer_units("约 44 MB，M1 Pro的α-酮戊二酸") == [
        "约", "44", "mb", "m1", "pro", "的", "α", "酮", "戊", "二", "酸"
    ]  # fmt: skip


def test_f1_of_chinese_counts_characters_where_f1_between_spaces_is_exact_match() -> None:
    # 7 units of the answer, 4 of the gold, all 4 shared: precision 4/7, recall 1.
    answer, gold = "它攒下山梨糖醇。", "山梨糖醇"
    assert answer_units(answer) == list("它攒下山梨糖醇")
    assert character_f1(answer, gold) == pytest.approx(2 * 4 / (7 + 4))
    assert not exact_match(answer, gold)
    assert set(answer.split()) & set(gold.split()) == set()  # the trap: by white space nothing is shared


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("苹果苹果", "苹果", 2 * 2 / (4 + 2)),  # each as often as both have it
        ("苹果", "苹果苹果", 2 * 2 / (2 + 4)),
        ("苹果苹果", "红苹果，青苹果", 2 * 4 / (4 + 6)),
        ("果苹", "苹果", 1.0),  # no order
        ("M2芯片", "M1芯片", 2 * 2 / (3 + 3)),
        ("M2", "M1", 0.0),
        ("the White House", "white house", 2 * 2 / (3 + 2)),  # no article is dropped
        ("white house", "WhiteHouse", 1.0),  # an exact match, though no unit is shared
        ("", "铁", 0.0),
        ("。", "铁", 0.0),
    ],
)
def test_f1_is_what_the_hand_reckons(answer: str, gold: str, f1: float) -> None:
    assert character_f1(answer, gold) == pytest.approx(f1)


def test_the_best_of_several_right_answers_counts() -> None:
    golds = ["四十四兆字节", "44兆字节"]
    assert exact_match("44 兆字节。", golds)
    assert character_f1("44兆", golds) == pytest.approx(2 * 2 / (2 + 4))


def test_one_right_answer_is_not_taken_for_its_characters() -> None:
    assert not exact_match("铁", "铁锈")
    assert character_f1("铁", "铁锈") == pytest.approx(2 / 3)


def test_an_answer_contains_whole_units_in_their_order() -> None:
    assert contains("少的是铁元素", "铁")
    assert contains("用的是 M1。", ["A14", "m1"])
    assert not contains("M10", "M1")
    assert not contains("铁和锈", "铁锈")
    assert contains("White House", "WhiteHouse")


@pytest.mark.parametrize("golds", [[], "", ["铁", "。"]])
def test_right_answers_with_nothing_to_read_are_refused(golds: str | list[str]) -> None:
    with pytest.raises(RetrievalError, match=r"right answers .*: allowed are"):
        exact_match("铁", golds)
