"""Questions with what may be put before them: what each passage may hold, and what a choice depends on."""

import pytest

from finetune.errors import RetrievalError
from finetune.rag.answers import contains
from finetune.rag.beir import load_beir
from finetune.rag.puzzles import conditions, load_puzzles, places, unit_of
from tests.passage_set import PASSAGES, QRELS, QUESTIONS, write_set
from tests.tiny import byte_fallback_tokenizer

TOKENIZER = byte_fallback_tokenizer()


def puzzles_of(folder, *, seed=0, **changes):
    write_set(folder, **changes)
    return {one.id: one for one in load_puzzles(load_beir(folder), TOKENIZER, folder=folder, seed=seed)}


def test_questions_with_both_answers_and_a_gold_passage_are_puzzles_and_others_are_not(tmp_path):
    more = [*QUESTIONS, ("q7", "没有错误答案？", "台积电", None), ("q8", "没有资料？", "台积电", "三星")]
    found = puzzles_of(tmp_path, questions=more, qrels=[*QRELS, ("q7", "chip-1", 1), ("q8", "chip-1", 0)])
    assert list(found) == ["q1", "q2", "q3", "q4", "q5", "q6"]
    one = found["q1"]
    assert (one.question, one.answer, one.wrong, one.gold.id) == ("M1芯片由谁制造？", "台积电", "三星", "chip-1")
    assert one.gold.tokens == len(TOKENIZER(one.gold.text, add_special_tokens=False)["input_ids"])


def test_the_passage_of_the_highest_grade_is_gold_and_its_document_the_unit(tmp_path):
    found = puzzles_of(tmp_path)
    assert (found["q6"].gold.id, found["q6"].relevant) == ("firm-1", {"firm-1", "firm-2"})
    assert [one.unit for one in found.values()] == ["d1", "d3", "d4", "d5", "d5", "d6"]
    given = load_beir(tmp_path)
    assert unit_of(given, "u1") == "u1"
    assert unit_of(load_beir(write_set(tmp_path, passages=PASSAGES)), "q5") == "d5"


def test_no_other_passage_is_judged_to_help_or_shows_an_answer_in_text_or_title(tmp_path):
    more = [
        *PASSAGES,
        ("chip-3", "台积电", "它是一家代工厂。", "chip", "d8"),  # the right answer in its title alone
        ("chip-4", "", "三星也做芯片。", "chip", "d9"),  # the wrong answer
    ]
    found = puzzles_of(tmp_path, passages=more)
    others = {one.id for one in found["q1"].others}
    assert others == {"chip-2", "acid-1", "acid-2", "fruit-1", "fruit-2", "firm-1", "firm-2"}
    for one in found.values():
        assert not one.relevant & {other.id for other in one.others}
        for other in one.others:
            assert not contains(f"{other.title} {other.text}", [one.answer, one.wrong])
    assert "chip-2" not in {one.id for one in found["q5"].others}  # 秋天 is the wrong answer


def test_a_copy_of_the_gold_passage_or_of_another_is_no_other(tmp_path):
    text = PASSAGES[1][2]
    more = [*PASSAGES, ("copy-1", "", f"{text} ", "chip", "d8"), ("copy-2", "", text + "。", "chip", "d8")]
    found = puzzles_of(tmp_path, passages=more)["q2"]
    assert len({one.id for one in found.others} & {"chip-2", "copy-1", "copy-2"}) == 1
    questions = [("q1", "哪个季节发布？", "九月", "三月")]
    copied = puzzles_of(
        tmp_path / "copied", passages=more, questions=questions, qrels=[("q1", "chip-2", 1)], contradictions=None
    )
    assert not {one.id for one in copied["q1"].others} & {"chip-2", "copy-1", "copy-2"}


def test_the_gold_passages_topic_comes_first_and_a_seed_draws_the_order(tmp_path):
    orders = set()
    for seed in range(6):
        found = puzzles_of(tmp_path, seed=seed)["q1"]
        assert found.others[0].id == "chip-2"
        orders.add(tuple(one.id for one in found.others))
    assert len(orders) > 1
    assert puzzles_of(tmp_path, seed=3)["q1"] == puzzles_of(tmp_path, seed=3)["q1"]


def test_what_a_question_gets_does_not_depend_on_the_questions_beside_it(tmp_path):
    whole = puzzles_of(tmp_path / "all")
    few = puzzles_of(tmp_path / "few", questions=QUESTIONS[2:4], qrels=QRELS[2:4], contradictions=None)
    assert few["q4"] == whole["q4"]
    assert few["q3"].others == whole["q3"].others


def test_what_contradicts_goes_by_the_gold_passages_name_so_that_a_prompt_tells_nothing_but_its_text(tmp_path):
    found = puzzles_of(tmp_path)
    against, gold = found["q1"].contradicting, found["q1"].gold
    assert against.text == "M1芯片由三星制造，工艺是五纳米。"
    assert (against.document, against.title) == (gold.document, gold.title)
    assert against.id != gold.id
    assert found["q2"].contradicting is None
    assert puzzles_of(tmp_path / "none", contradictions=None)["q1"].contradicting is None


def test_conditions_are_those_that_a_question_has(tmp_path):
    found = puzzles_of(tmp_path)
    assert {name: [one.id for one in put] for name, put in conditions(found["q1"], [found["q2"].gold]).items()} == {
        "none": [], "wrong": ["chip-2"], "gold": ["chip-1"], "contradicting": ["contradictions.jsonl#q1"],
        "retrieved": ["acid-1"],
    }  # fmt: skip
    assert list(conditions(found["q2"])) == ["none", "wrong", "gold"]
    lonely = puzzles_of(
        tmp_path / "one", passages=PASSAGES[:1], questions=QUESTIONS[:1], qrels=QRELS[:1], contradictions=None
    )["q1"]
    assert list(conditions(lonely)) == ["none", "gold"]  # no passage at all is not "a wrong one"


def test_the_gold_passage_is_put_first_in_the_middle_and_last_among_the_same_others(tmp_path):
    puzzle = puzzles_of(tmp_path)["q1"]
    found = places(puzzle, 5)
    assert list(found) == [1, 3, 5]
    for place, put in found.items():
        assert put[place - 1] is puzzle.gold
        assert tuple(one for one in put if one is not puzzle.gold) == puzzle.others[:4]
    assert list(places(puzzle, 2)) == [1, 2]
    assert places(puzzle, 1) == {1: (puzzle.gold,)}
    with pytest.raises(RetrievalError, match=r"0 passages .*: allowed are whole numbers from 1"):
        places(puzzle, 0)


def test_a_set_without_such_a_question_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(RetrievalError, match=r"no question of the set has an answer.*--model none"):
        puzzles_of(tmp_path, questions=[(name, text, None, None) for name, text, *_ in QUESTIONS])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"query": "q9", "text": "三星。"}', r"contradictions\.jsonl:1: query 'q9': allowed are a query of the set"),
        ('{"query": ["q1"], "text": "三星。"}', r"contradictions\.jsonl:1: query \['q1'\]"),
        ('{"query": "q1"}', r"contradictions\.jsonl:1: query 'q1'"),
        ('{"query": "q1", "text": "三星。"}\n' * 2, r"contradictions\.jsonl:2: query q1 has a .* already"),
        ("[", r"contradictions\.jsonl:1"),
    ],
)
def test_a_line_that_contradicts_nothing_is_told(tmp_path, line, said):
    write_set(tmp_path)
    (tmp_path / "contradictions.jsonl").write_text(line, "utf-8")
    with pytest.raises(RetrievalError, match=said) as caught:
        load_puzzles(load_beir(tmp_path), TOKENIZER, folder=tmp_path)
    assert "\n" not in str(caught.value)
