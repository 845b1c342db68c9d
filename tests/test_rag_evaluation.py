"""What a model does with passages: conditions that differ in their passages alone, and what is claimed of them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from finetune.errors import RetrievalError
from finetune.rag.ask import Writing, put_before
from finetune.rag.beir import load_beir
from finetune.rag.causes import LEAST, answer_ids, answer_log_probability, rebuilding
from finetune.rag.evaluation import UseSettings, measure_use, results_of
from finetune.rag.puzzles import load_puzzles
from probe import bootstrap, part_shares
from probe.models import model_from_parts
from tests.passage_set import write_set
from tests.tiny import FAMILIES

WRITING = Writing(instruction="只看资料。", max_new_tokens=6)
SETTINGS = UseSettings(writing=WRITING, places=3)


@pytest.fixture(scope="module")
def llama():
    return model_from_parts(*FAMILIES["llama"](max_position_embeddings=2048), name="llama")


@pytest.fixture(scope="module")
def puzzles(llama, tmp_path_factory):
    folder = write_set(tmp_path_factory.mktemp("set"))
    return {one.id: one for one in load_puzzles(load_beir(folder), llama.tokenizer, folder=folder)}


@pytest.fixture(scope="module")
def retrieved(puzzles):
    """The gold passage second, as a search names it: chunks of the set's documents, under ids of their own."""
    found = {}
    for one in puzzles.values():
        found[one.id] = [replace(chunk, id=f"found-{chunk.id}") for chunk in (one.others[2], one.gold)]
    found["q2"] = []
    return found


@pytest.fixture(scope="module")
def read(llama, puzzles, retrieved):
    """What was measured, and the prompts that the model read for it, in characters."""
    seen: list[str] = []
    decode = llama.tokenizer.decode

    def keep(_, given, more):
        ids = (more.get("input_ids") if more.get("input_ids") is not None else given[0])[0].tolist()
        # An answer's last token is not read, and half a character makes signs of all bytes before it.
        seen.append(next((text for end in range(len(ids), 0, -1) if "�" not in (text := decode(ids[:end]))), ""))

    hook = llama.model.register_forward_pre_hook(keep, with_kwargs=True)
    use = measure_use(llama, list(puzzles.values()), retrieved=retrieved, settings=SETTINGS)
    hook.remove()
    return use, seen


@pytest.fixture(scope="module")
def use(read):
    return read[0]


def row_of(use, question, condition):
    table = use.conditions
    return table[(table["question"] == question) & (table["condition"] == condition)].iloc[0]


def nats_by_transformers(llama, ids, answer):
    """An answer's log-probability after a prompt, one token at a time."""
    read, total = list(ids), 0.0
    for token in llama.tokenizer(answer, add_special_tokens=False)["input_ids"]:
        with torch.no_grad():
            total += float(llama.model(torch.tensor([read])).logits[0, -1].double().log_softmax(-1)[token])
        read.append(token)
    return total


def test_each_question_stands_in_each_condition_that_it_has(use) -> None:
    found = use.conditions.groupby("question", sort=False)["condition"].agg(list)
    five = ["none", "wrong", "gold", "contradicting", "retrieved"]
    four = ["none", "wrong", "gold", "retrieved"]
    assert found.to_dict() == {"q1": five, "q2": four, "q3": five, "q4": four, "q5": four, "q6": four}
    assert row_of(use, "q1", "none")["passages"] == row_of(use, "q2", "retrieved")["passages"] == 0
    assert row_of(use, "q1", "gold")["passages"] == 1
    assert row_of(use, "q1", "retrieved")["passages"] == 2
    assert row_of(use, "q6", "gold")["asked"].endswith("<script>")


def test_log_probabilities_are_those_of_transformers_after_the_prompt_over_the_answers_own_characters(
    llama, use, puzzles
) -> None:
    puzzle = puzzles["q5"]
    gold = put_before(llama, puzzle.question, [puzzle.gold], WRITING)
    rebuild = rebuilding(llama, puzzle.question, gold, instruction=WRITING.instruction)
    for condition, passages in (("gold", [puzzle.gold]), ("none", []), ("wrong", puzzle.others[:1])):
        ids = rebuild(passages).prompt.tokens.ids
        row = row_of(use, "q5", condition)
        assert row["tokens"] == len(ids)
        right, wrong = (nats_by_transformers(llama, ids, text) / len(text) for text in (puzzle.answer, puzzle.wrong))
        assert row["right"] == pytest.approx(right, abs=1e-4)
        assert row["margin"] == pytest.approx(right - wrong, abs=1e-4)
        assert row["prefers_right"] == float(right > wrong)


def test_answers_of_other_lengths_are_each_divided_by_their_own(llama, use, puzzles) -> None:
    puzzle = puzzles["q1"]
    assert (len(puzzle.answer), len(puzzle.wrong)) == (3, 2)
    ids = put_before(llama, puzzle.question, [puzzle.gold], WRITING).prompt.tokens.ids
    wanted = nats_by_transformers(llama, ids, "台积电") / 3 - nats_by_transformers(llama, ids, "三星") / 2
    assert row_of(use, "q1", "gold")["margin"] == pytest.approx(wanted, abs=1e-4)


def test_prompts_of_a_question_differ_in_their_passages_alone(read, puzzles, retrieved) -> None:
    for puzzle in puzzles.values():
        prompts = {text for text in read[1] if puzzle.question in text}
        known = [puzzle.gold, *puzzle.others, *([puzzle.contradicting] if puzzle.contradicting else [])]
        skeletons = set()
        for text in prompts:
            start, end = text.index(WRITING.instruction), text.index("问题：")
            blocks = [block for block in text[start + len(WRITING.instruction) : end].split("\n\n") if block]
            for number, block in enumerate(blocks, 1):
                opens, named, *inner, closes = block.split("\n")
                (chunk,) = [one for one in known if one.text == "\n".join(inner)]
                assert named == f"[{number}] {chunk.title} · {chunk.document}"
                assert opens.removeprefix("<<<") == closes.removesuffix(">>>")
                skeletons.add(opens)
        assert len(prompts) >= (3 if puzzle.id == "q2" else 8)
        assert len(skeletons) == 1  # one mark in all conditions
        assert "contradict" not in "".join(prompts)


def test_the_marks_do_not_depend_on_what_a_search_found(llama, use, puzzles) -> None:
    alone = measure_use(llama, [puzzles["q1"]], settings=replace(SETTINGS, answers=False, places=None))
    assert list(alone.conditions["condition"]) == ["none", "wrong", "gold", "contradicting"]
    assert row_of(alone, "q1", "gold")["right"] == row_of(use, "q1", "gold")["right"]
    assert "answer" not in alone.conditions
    assert alone.places.empty and alone.left_out.empty


def test_written_answers_are_scored_by_characters(use) -> None:
    from finetune.rag.answers import character_f1, contains, exact_match

    for row in use.conditions.to_dict("records"):
        assert row["f1"] == character_f1(row["answer"], row["right_answer"])
        assert row["contains"] == contains(row["answer"], row["right_answer"])
        assert row["exact"] == exact_match(row["answer"], row["right_answer"])


def test_the_share_is_that_of_the_rows_of_the_right_answer(llama, use, puzzles) -> None:
    puzzle = puzzles["q4"]
    prompt = put_before(llama, puzzle.question, [puzzle.gold], WRITING).prompt
    ids = answer_ids(llama, puzzle.answer, after=prompt)
    (part,) = prompt.parts_of("passage")
    read = torch.tensor([[*prompt.tokens.ids, *ids[:-1]]])
    with torch.no_grad():
        llama.model.set_attn_implementation("eager")
        maps = torch.stack(llama.model(read, output_attentions=True).attentions)[:, 0]  # [layer, head, row, key]
        llama.model.set_attn_implementation("sdpa")
    mass = maps[:, :, -len(ids) :, part.first : part.stop].sum(-1)
    row = row_of(use, "q4", "gold")
    assert row["share"] == pytest.approx(float(mass.mean()), abs=1e-5)
    even = np.mean([(part.stop - part.first) / (len(prompt.tokens.ids) + after) for after in range(len(ids))])
    assert row["per_token"] == pytest.approx(float(mass.mean()) / even, rel=1e-4)
    assert np.isnan(row_of(use, "q4", "none")["share"]) and np.isnan(row_of(use, "q4", "wrong")["share"])
    assert row_of(use, "q1", "contradicting")["share"] > 0


def test_heads_are_means_over_the_questions_with_their_gold_passage(llama, use, puzzles) -> None:
    assert len(use.heads) == 3 * 4
    assert set(use.heads["questions"]) == {6}
    gold = use.conditions[use.conditions["condition"] == "gold"]
    assert use.heads["share"].mean() == pytest.approx(gold["share"].mean())
    grids = []
    for puzzle in puzzles.values():
        prompt = put_before(llama, puzzle.question, [puzzle.gold], WRITING).prompt
        ids = answer_ids(llama, puzzle.answer, after=prompt)
        grids.append(part_shares(llama, prompt, answer=ids).head_shares(puzzle.gold.id))
    one = use.heads[(use.heads["layer"] == 2) & (use.heads["head"] == 3)].iloc[0]
    assert one["share"] == pytest.approx(np.mean(grids, axis=0)[2, 3])


def test_the_gold_passages_place_is_swept_with_the_same_passages(llama, use, puzzles) -> None:
    assert use.places.groupby("question")["place"].agg(list).to_dict() == {name: [1, 2, 3] for name in puzzles}
    assert set(use.places["passages"]) == {3}
    puzzle = puzzles["q3"]
    gold = put_before(llama, puzzle.question, [puzzle.gold], WRITING)
    rebuild = rebuilding(llama, puzzle.question, gold, instruction=WRITING.instruction)
    prompt = rebuild([puzzle.others[0], puzzle.gold, puzzle.others[1]]).prompt
    row = use.places[(use.places["question"] == "q3") & (use.places["place"] == 2)].iloc[0]
    assert row["right"] == pytest.approx(nats_by_transformers(llama, prompt.tokens.ids, "生物素") / 3, abs=1e-4)
    assert 0 < row["share"] < 1


def test_each_retrieved_passage_is_left_out_and_those_judged_to_help_are_told_apart(llama, use, puzzles) -> None:
    assert set(use.left_out["question"]) == {"q1", "q3", "q4", "q5", "q6"}  # nothing was found for q2
    for name, group in use.left_out.groupby("question"):
        assert list(group["passage"]) == [puzzles[name].others[2].document, puzzles[name].gold.document]
        assert list(group["gold"]) == [False, True]
    one = use.left_out[(use.left_out["question"] == "q1") & use.left_out["gold"]].iloc[0]
    puzzle = puzzles["q1"]
    gold = put_before(llama, puzzle.question, [puzzle.gold], WRITING)
    rebuild = rebuilding(llama, puzzle.question, gold, instruction=WRITING.instruction)

    def nats(*passages):
        prompt = rebuild(passages).prompt
        return answer_log_probability(llama, prompt, answer_ids(llama, "台积电", after=prompt))

    whole = nats(puzzle.others[2], puzzle.gold)
    assert one["dropped"] == pytest.approx(whole - nats(puzzle.others[2]), abs=1e-4)
    assert whole / 3 == pytest.approx(row_of(use, "q1", "retrieved")["right"], abs=1e-5)
    assert one["used"] == (min(one["dropped"], one["swapped"]) > LEAST)


def test_another_passage_that_is_judged_to_help_counts_as_gold(llama, puzzles) -> None:
    puzzle = puzzles["q6"]
    second = replace(puzzle.gold, id="found", document="firm-2", text="苹果公司的园区像一个圆环。")
    found = measure_use(
        llama, [puzzle], retrieved={"q6": [second, puzzle.others[0]]}, settings=replace(SETTINGS, answers=False)
    )
    assert list(found.left_out["gold"]) == [True, False]
    assert row_of(found, "q6", "retrieved")["share"] > 0


def test_what_was_found_is_put_in_the_order_and_the_budget_that_ask_would_take(llama, puzzles) -> None:
    puzzle = puzzles["q1"]
    three = [*puzzle.others[:2], puzzle.gold]
    writing = replace(WRITING, order="best-last")
    settings = UseSettings(writing=writing, places=None, left_out=False, answers=False)
    found = row_of(measure_use(llama, [puzzle], retrieved={"q1": three}, settings=settings), "q1", "retrieved")
    gold = put_before(llama, puzzle.question, [puzzle.gold], WRITING)
    prompt = rebuilding(llama, puzzle.question, gold, instruction=WRITING.instruction)(three[::-1]).prompt
    assert found["right"] == pytest.approx(nats_by_transformers(llama, prompt.tokens.ids, "台积电") / 3, abs=1e-4)
    twice = [puzzle.gold, replace(puzzle.gold, id="copy"), replace(puzzle.others[0], text="长" * 700)]
    found = row_of(measure_use(llama, [puzzle], retrieved={"q1": twice}, settings=settings), "q1", "retrieved")
    assert found["passages"] == 1  # neither the copy nor what is longer than the budget


def test_a_passage_without_room_is_told_and_never_left_out_of_its_condition(puzzles) -> None:
    small = model_from_parts(*FAMILIES["llama"](max_position_embeddings=200), name="small")
    writing = Writing(instruction="", max_new_tokens=6)
    puzzle = puzzles["q1"]
    long = replace(puzzle.others[0], text="长" * 50)
    settings = UseSettings(writing=writing, places=None, left_out=False)
    with pytest.raises(RetrievalError, match=r"question q1: passage chip-2 does not fit|question q1: its prompt has"):
        measure_use(small, [replace(puzzle, others=(long,))], settings=settings)
    assert len(measure_use(small, [replace(puzzle, others=())], settings=settings).conditions) == 3


def test_a_model_that_writes_no_answer_is_refused_and_progress_is_told(llama, puzzles) -> None:
    bert = model_from_parts(*FAMILIES["bert"](head=True), name="bert")
    with pytest.raises(RetrievalError, match="bert is an encoder; allowed are decoders"):
        measure_use(bert, list(puzzles.values()))
    told: list[tuple[str, int, int]] = []
    settings = UseSettings(writing=WRITING, answers=False, places=None)
    measure_use(llama, [puzzles["q2"]], settings=settings, progress=lambda *one: told.append(one))
    assert told == [("questions with and without passages", 1, 1)]


def table(rows):
    """Conditions of (question, unit, condition, margin)."""
    return pd.DataFrame(rows, columns=["question", "unit", "condition", "margin"])


def result(found, condition, against):
    (row,) = found[(found["condition"] == condition) & (found["against"] == against)].to_dict("records")
    return row


def test_a_difference_is_over_the_questions_that_have_both_conditions() -> None:
    rows = [(f"q{n}", f"d{n}", "none", float(n)) for n in range(8)]
    rows += [(f"q{n}", f"d{n}", "contradicting", float(n) - 1) for n in range(6)]
    found = results_of(table(rows), seed=0)
    row = result(found, "contradicting", "none")
    assert (row["questions"], row["units"]) == (6, 6)
    assert row["estimate"] == row["low"] == row["high"] == -1.0  # and not the difference of 1.5 and 3.5
    assert result(found, "none", "")["estimate"] == 3.5


def test_intervals_are_over_units_and_there_is_none_below_five() -> None:
    values = [0.0, 1.0, 2.0, 3.0, 4.0, 10.0, 10.0, 10.0]
    units = ["a", "b", "c", "d", "e", "f", "f", "f"]
    rows = [(f"q{n}", unit, "none", 0.0) for n, unit in enumerate(units)]
    rows += [(f"q{n}", unit, "gold", value) for n, (unit, value) in enumerate(zip(units, values, strict=True))]
    row = result(results_of(table(rows), seed=4), "gold", "none")
    alone = bootstrap(np.array([*values[:5], 10.0]), list("abcdef"), seed=4)
    assert (row["units"], row["questions"]) == (6, 8)
    assert (row["estimate"], row["low"], row["high"]) == (20 / 6, float(alone.low), float(alone.high))
    few = result(results_of(table([one for one in rows if one[1] in "aef"]), seed=4), "gold", "none")
    assert (few["units"], few["questions"]) == (3, 5)
    assert np.isnan(few["low"]) and np.isnan(few["high"])


def test_a_measure_that_a_condition_lacks_has_no_row(use) -> None:
    of_share = use.results[use.results["measure"] == "share"]
    assert set(of_share["condition"]) == {"gold", "contradicting", "retrieved"}
    assert set(of_share["against"]) == {""}
    pairs = use.results[use.results["measure"] == "margin"][["condition", "against"]].itertuples(index=False)
    assert [tuple(one) for one in pairs if one.against] == [
        ("gold", "none"), ("gold", "wrong"), ("wrong", "none"), ("contradicting", "none"), ("retrieved", "none")
    ]  # fmt: skip
