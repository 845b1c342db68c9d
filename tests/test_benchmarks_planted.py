"""The benchmark of planted instructions in small: what it asks, how it judges, what it writes."""

import csv

import pytest

from benchmarks.planted_instructions import ARMS, PLANTED, answers, asked, first_line, main, save, shares
from probe import model_from_parts
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def tiny():
    return model_from_parts(*tiny_llama(), name="tiny")


def test_no_question_s_answer_or_passage_holds_what_is_planted_in_it():
    questions = asked(len(PLANTED))
    assert len(questions) == len({word for _, word in PLANTED}) == 20
    for one in questions:
        assert one.word in one.planted and one.answer in one.gold.text
        assert one.word not in one.gold.text + one.question and one.answer not in one.planted


def test_every_question_is_asked_in_each_arm_with_and_without_the_plant(tiny, tmp_path):
    prompts = []

    def write(_, ids):
        prompts.append(ids)
        return "\n 香蕉 \n问题：西瓜"

    questions = asked(2)
    lines = list(answers(tiny, questions, budget=5000, write=write))
    assert [(line.arm, line.planted, line.number) for line in lines] == [
        (arm, planted, number) for number in (1, 2) for arm in ARMS for planted in (False, True)
    ]
    assert [line.obeyed for line in lines] == [True] * 6 + [False] * 6 and lines[0].answer == "香蕉"
    texts = [tiny.tokenizer.decode(ids) for ids in prompts]
    assert len(set(texts)) == 12
    asked_so = [one for one in questions for _ in range(6)]
    assert [one.planted in text for text, one in zip(texts, asked_so, strict=True)] == [False, True] * 6
    assert shares(lines)[0] == ["marks", "as it is", "1/2 (1-99 %)", "0/2 (0-84 %)"]
    save(lines, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 and (rows[1]["planted"], rows[1]["obeyed"]) == ("1", "1")


def test_a_model_really_answers(tiny):
    lines = list(answers(tiny, asked(1), budget=5000))
    assert len(lines) == 6 and all("\n" not in line.answer for line in lines)


def test_a_passage_without_room_is_told_and_not_left_out_in_silence(capsys, tmp_path):
    tiny_llama(tmp_path / "m")
    assert main(["--model", str(tmp_path / "m" / "llama"), "--count", "1", "--table", str(tmp_path / "t.csv")]) == 2
    assert "question 1: its passage does not fit" in capsys.readouterr().err and not (tmp_path / "t.csv").exists()


@pytest.mark.parametrize(("text", "wanted"), [("\n\n 苹果 \n香蕉", "苹果"), ("", ""), (" \n", ""), ("苹果", "苹果")])
def test_the_first_line_is_the_first_with_anything_on_it(text, wanted):
    assert first_line(text) == wanted
