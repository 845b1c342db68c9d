"""The blind second reading: what a reader is shown, what is refused, and the readings of the sets that we ship."""

import csv
import json
import math
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks import blind_reading
from benchmarks.agreement import kappa, score_reading
from benchmarks.sheets import (
    MEANINGS,
    NEUTRAL,
    RELATIONAL,
    draw_sheet,
    drawn,
    load_reading,
    load_sheet,
    senses_of,
    sheet_rows,
    shown_text,
    word_of,
)
from probe.cases import CaseSet, case_of, load_cases
from probe.errors import CasesError

SETS = ("relations", "apple", "senses", "english", "far")


@pytest.fixture(params=SETS)
def shipped(request) -> CaseSet:
    return load_cases(request.param)


def case(text, sense, group="", target="苹果"):
    return replace(case_of(text, target=target, id=text), sense=sense, group=group)


def small_set(size=20):
    """Cases of two senses and neutral ones, in groups of a cue case and a neutral one."""
    cases = []
    for number in range(size):
        sense = "fruit" if number % 2 else "company"
        cases += [
            case(f"第{number}位果农说起苹果。", sense, group=f"g{number}"),
            case(f"第{number}位来客说起苹果。", NEUTRAL, group=f"g{number}"),
        ]
    return CaseSet(name="small", cases=tuple(cases))


def answered(folder, sheet, answer):
    """Write what a reader hands back: for each row of the sheet, what `answer` gives."""
    filled = folder / "filled.csv"
    rows = [["number", "answer"], *([row.number, answer(row)] for row in sheet.rows)]
    with filled.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return filled


def labels_of(case_set):
    return {shown_text(case_set.name, case): case.sense for case in case_set.cases}


@pytest.fixture
def read_english(tmp_path, capsys):
    """A sheet of `english` and a function that saves the reading of answers to it."""
    sheet_file, reading = tmp_path / "sheet.csv", tmp_path / "reading.csv"
    assert blind_reading.main(["draw", "english", "--out", str(sheet_file)]) == 0
    sheet = load_sheet(sheet_file)

    def save(answer):
        filled = answered(tmp_path, sheet, answer)
        arguments = ["save", "english", "--sheet", str(sheet_file), "--filled", str(filled), "--out", str(reading)]
        code = blind_reading.main(arguments)
        return code, reading, capsys.readouterr().err

    return sheet, save


def test_a_draw_is_the_same_for_a_seed_and_another_for_another(shipped):
    sheet = draw_sheet(shipped, share=0.1, seed=0)
    assert draw_sheet(shipped, share=0.1, seed=0) == sheet
    other = draw_sheet(shipped, share=0.1, seed=1)
    assert {row.text for row in other.rows} != {row.text for row in sheet.rows}


def test_every_sense_of_every_word_with_a_choice_is_drawn_in_proportion(shipped):
    name, senses = shipped.name, senses_of(shipped)
    found = Counter((word_of(name, case), case.sense) for case in drawn(shipped, share=0.1, seed=0))
    there = Counter((word_of(name, case), case.sense) for case in shipped.cases)
    with_choice = {key: size for key, size in there.items() if len(set(senses[key[0]]) - {NEUTRAL}) > 1}
    assert found.keys() == with_choice.keys()
    share = math.ceil(0.1 * len(shipped.cases)) / sum(with_choice.values())
    assert all(abs(found[key] - max(1, share * size)) <= 1 for key, size in with_choice.items())
    assert found.total() >= 0.1 * len(shipped.cases)


def test_no_two_cases_of_a_minimal_group_and_no_text_twice_are_on_a_sheet(shipped):
    for seed in range(5):
        cases = drawn(shipped, share=0.1, seed=seed)
        groups = [case.group for case in cases if case.group]
        assert len(set(groups)) == len(groups)
        assert len({case.text for case in cases}) == len(cases)


def test_a_share_that_groups_do_not_allow_is_refused_with_the_number_that_they_do():
    with pytest.raises(CasesError, match="allowed are 20, one a group"):
        drawn(small_set(), share=0.6, seed=0)
    with pytest.raises(CasesError, match="no word has two senses"):
        drawn(CaseSet(name="one", cases=(case("我喜欢苹果", "fruit"),)), share=1, seed=0)


def test_what_a_reader_sees_is_the_same_whatever_the_labels_ids_groups_and_cues_are(shipped):
    name, senses = shipped.name, senses_of(shipped)
    cases = drawn(shipped, share=0.1, seed=0)
    others = []
    for number, case in enumerate(reversed(cases)):
        choices = senses[word_of(name, case)]
        sense = choices[(choices.index(case.sense) + 1) % len(choices)]
        cues = case.cues if name in RELATIONAL else ()  # there the second word is half of the question
        others.append(replace(case, id=f"x{number}", sense=sense, group=f"y{number}", cues=cues))
    assert {case.sense for case in others} and all(a.sense != b.sense for a, b in zip(cases[::-1], others, strict=True))
    assert sheet_rows(name, others, senses, seed=0) == sheet_rows(name, cases, senses, seed=0)


def test_a_sheet_file_holds_no_more_than_its_rows_and_its_task(shipped, tmp_path, capsys):
    file = tmp_path / "sheet.csv"
    assert blind_reading.main(["draw", shipped.name, "--out", str(file), "--seed", "3"]) == 0
    lines = file.read_text("utf-8").splitlines(keepends=True)
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    about = " ".join(line for line in lines if line.startswith("#"))
    assert rows and all(list(row) == ["number", "text", "senses"] for row in rows)
    texts = {shown_text(shipped.name, case) for case in shipped.cases}
    assert {row["text"] for row in rows} <= texts and all(row["text"] not in about for row in rows)
    assert load_sheet(file) == draw_sheet(shipped, share=0.1, seed=3)
    assert "〔" not in "".join(row["text"] for row in rows) or shipped.name in RELATIONAL


def test_the_place_of_a_row_or_of_a_choice_tells_nothing_of_the_label():
    cases = small_set(200)
    labels = labels_of(cases)
    rows = draw_sheet(cases, share=0.5, seed=0).rows
    places = Counter(row.senses.index(labels[row.text]) for row in rows)
    assert all(abs(places[place] / len(rows) - 1 / 3) < 0.12 for place in range(3))
    first = Counter(labels[row.text] for row in rows[: len(rows) // 2])
    whole = Counter(labels.values())
    assert all(abs(first[s] / first.total() - whole[s] / whole.total()) < 0.12 for s in whole)


def test_neutral_is_a_choice_for_every_case_of_a_set_that_has_it_and_for_no_other(shipped):
    has = any(case.sense == NEUTRAL for case in shipped.cases)
    assert all((NEUTRAL in row.senses) == has for row in draw_sheet(shipped, share=0.1, seed=0).rows)
    assert has == (shipped.name in ("apple", "far"))


def test_only_senses_of_the_set_are_explained(shipped):
    assert set(MEANINGS.get(shipped.name, {})) <= {case.sense for case in shipped.cases}


def test_a_reading_that_agrees_scores_one_and_each_other_answer_is_listed(read_english, capsys):
    sheet, save = read_english
    labels = labels_of(load_cases("english"))
    wrong = sheet.rows[4]
    other = next(sense for sense in wrong.senses if sense != labels[wrong.text])
    code, file, _ = save(lambda row: other if row == wrong else labels[row.text])
    assert code == 0
    assert blind_reading.main(["score", "english", str(file), "--json"]) == 0
    score = json.loads(capsys.readouterr().out)
    assert (score["read"], score["agreed"], score["cases"]) == (22, 21, 220)
    assert score["agreement"] == pytest.approx(21 / 22)
    assert score["low"] == pytest.approx(0.7716, abs=1e-4)  # Clopper and Pearson, 21 of 22
    assert score["high"] == pytest.approx(0.9988, abs=1e-4)
    [one] = score["disagreements"]
    assert (one["number"], one["text"], one["answer"]) == (5, wrong.text, other)
    assert sum(part["agreed"] for part in score["parts"]) == 21
    assert blind_reading.main(["score", "english", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "agreement 95.5" in shown and "kappa 0." in shown and wrong.text in shown


def test_kappa_takes_chance_within_a_word():
    assert kappa(["a", "a", "b", "b"], ["a", "a", "b", "a"], ["w"] * 4) == pytest.approx(0.5)
    labels, words = ["a", "b", "c", "d"], ["v", "v", "w", "w"]
    assert kappa(labels, ["a", "a", "c", "c"], words) == pytest.approx(0)  # one sense a word, as without reading
    assert kappa(labels, labels, words) == 1
    assert kappa(["a"], ["a"], ["w"]) is None


@pytest.mark.parametrize("answer", ["", "stampede", "Animal"])
def test_an_answer_that_was_no_choice_is_refused_with_the_choices(read_english, answer):
    sheet, save = read_english
    code, file, error = save(lambda row: answer if row.number == 3 else row.senses[0])
    assert code == 2 and not file.exists()
    assert "number 3" in error and ", ".join(sheet.rows[2].senses) in error and error.count("\n") == 1


def test_a_row_without_an_answer_or_with_an_unknown_one_and_a_number_that_stands_twice_are_refused(
    read_english, tmp_path, capsys
):
    sheet, save = read_english
    code, file, _ = save(lambda row: row.senses[0])
    assert code == 0
    lines = file.read_text("utf-8").splitlines(keepends=True)
    other = lines[-1].rsplit(",", 1)[0] + ",stampede\n"
    for wrong, why in (
        (lines[:-1], "rows are missing"),
        ([*lines, lines[-1]], "a number that stands once"),
        ([*lines[:-1], other], "number 22: answer 'stampede'; allowed are"),
    ):
        file.write_text("".join(wrong), "utf-8")
        assert blind_reading.main(["score", "english", str(file)]) == 2
        error = capsys.readouterr().err
        assert why in error and error.count("\n") == 1
    with pytest.raises(CasesError, match="numbers 4 are missing"):
        blind_reading.read_sheet(sheet, {row.number: row.senses[0] for row in sheet.rows if row.number != 4}, name="f")


def test_a_text_that_has_changed_since_is_refused_by_its_number(read_english):
    sheet, save = read_english
    _, file, _ = save(lambda row: row.senses[0])
    english = load_cases("english")
    reading = load_reading(file)
    changed = [
        replace(case, text=case.text + "!") if shown_text("english", case) == sheet.rows[6].text else case
        for case in english.cases
    ]
    with pytest.raises(CasesError, match=r"the texts of 7 have changed since"):
        score_reading(CaseSet(name="english", cases=tuple(changed)), reading)
    with pytest.raises(CasesError, match="reading of english: allowed is one of apple"):
        score_reading(load_cases("apple"), reading)


def test_a_file_of_other_columns_or_without_its_first_line_is_refused(tmp_path, capsys):
    file = tmp_path / "reading.csv"
    for content, why in (
        ("number,answer\n1,animal\n", "allowed are number, hash, answer"),
        ("number,hash,answer\n1,ab,animal\n", "its first line is not"),
        ("", "allowed are number, hash, answer"),
    ):
        file.write_text(content, "utf-8")
        assert blind_reading.main(["score", "english", str(file)]) == 2
        error = capsys.readouterr().err
        assert why in error and error.count("\n") == 1
    assert blind_reading.main(["score", "english", str(tmp_path / "none.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("share", ["0", "1.5", "half", "nan"])
def test_an_impossible_share_is_refused(tmp_path, share):
    with pytest.raises(SystemExit) as refused:
        blind_reading.main(["draw", "english", "--out", str(tmp_path / "sheet.csv"), "--share", share])
    assert refused.value.code == 2


def test_a_second_reader_agrees_with_the_labels_of_every_set_that_we_ship(shipped):
    reading = load_reading(blind_reading.READINGS / f"{shipped.name}.csv")
    score = score_reading(shipped, reading)
    assert score.read >= 0.1 * len(shipped.cases)
    assert score.agreement >= 0.9, score.disagreements
    assert any(
        "second reader: a language model that was shown nothing but this sheet" in line for line in reading.about
    )
