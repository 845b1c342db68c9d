"""The page of a comparison: the claim first, every number in a file, nothing called better that is not."""

import ast
import json
import re
import string
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from finetune.compare import messages, page_messages, story
from finetune.compare.attention import steps_of
from finetune.compare.contrasts import Why, contrasts_of
from finetune.compare.gathered import COST_COLUMNS, QUESTION_COLUMNS, Gathered, gather
from finetune.compare.items import MEASURES, Item, items_frame
from finetune.compare.licences import OURS, Terms, licences_in, terms_of
from finetune.compare.markdown import LONGEST, markdown, picture_files
from finetune.compare.pictures import MAPS, forest_picture, map_pictures, undrawn_maps
from finetune.compare.story import FAMILIES, changed_items, page_of, sections_of, write_comparison
from finetune.compare.tables import (
    GROUPS,
    SIGNS,
    contrast_table,
    cost_table,
    difference_table,
    leading_measure,
    value_table,
    verdict_matrix,
    visible_table,
)
from finetune.compare.verdicts import Kind, verdicts_of
from finetune.domains import Question
from finetune.errors import DataError
from finetune.rag.chunks import Chunk
from finetune.rag.hits import Hit
from probe import Section, Table, open_run
from tests.compared_arms import ARMS, GAINS, drawn_items, drawn_maps, facts, gathered

LANGUAGES = ("zh", "en")
NON_COMMERCIAL = Terms(role="data", name="mcl-wic/training.en-en.data", licence="CC BY-NC-SA 4.0")


@pytest.fixture(scope="module")
def whole():
    return gathered()


@pytest.fixture(scope="module")
def pages(whole):
    return {language: sections_of(whole, language) for language in LANGUAGES}


@pytest.fixture(scope="module")
def folder(whole, pages, tmp_path_factory):
    place = tmp_path_factory.mktemp("compare") / "report"
    with pytest.MonkeyPatch.context() as patch, open_run(place) as run:
        patch.setattr(story, "sections_of", lambda given, language: pages[language])  # drawing them takes seconds
        write_comparison(whole, run, language="zh")
    return place


@pytest.fixture(scope="module")
def alike():
    """Supervision that gives what random pairs give."""
    return Gathered(facts=facts(), items=drawn_items(gains={**GAINS, "lora-attention": 0.26}, seed=4))


def part(sections, key):
    (section,) = [one for one in sections if one.key == key]
    return section


def column(table, place):
    return [row[place] for row in table.rows]


# ---- the verdict -----------------------------------------------------------------------------------------------


def test_the_sections_stand_in_their_order_in_both_languages(pages) -> None:
    keys = ["verdict", "visible", "task", "forgetting", "attention", "causes", "cost", "changed", "passages", "how"]
    assert [one.key for one in pages["zh"]] == [one.key for one in pages["en"]] == keys
    for zh, en in zip(pages["zh"], pages["en"], strict=True):
        assert len(zh.text) == len(en.text) and len(zh.tables) == len(en.tables) and len(zh.figures) == len(en.figures)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_begins_with_the_claim_and_has_one_sentence_a_contrast(whole, pages, language) -> None:
    measure, chosen = leading_measure(whole.verdicts)
    claim = next(one for one in whole.verdicts if one.is_claim and (one.measure, one.part) == (measure, chosen))
    verdict = part(pages[language], "verdict")
    assert verdict.text[0] == messages.sentence(claim, language)
    contrasts = [(one.arm, one.against) for one in contrasts_of(ARMS)]
    assert contrasts[0] == ("lora-attention", "lora-random")
    told = [f"{messages.word(arm, language)} − {messages.word(against, language)}" for arm, against in contrasts]
    assert column(verdict.tables[0], 0) == told and column(verdict.tables[2], 0) == told
    assert verdict.tables[0].rows[0][2] == verdict.text[0]


def test_contrasts_are_told_by_the_margin_on_the_part_with_the_most_items(whole) -> None:
    assert leading_measure(whole.verdicts) == ("margin", "seen facts")  # 32 items, the held-out facts 28
    few = [one for one in whole.verdicts if one.measure in ("perplexity", "f1")]
    assert leading_measure(few) == ("f1", "seen facts")
    assert leading_measure([one for one in whole.verdicts if one.family == "forgetting"]) is None


def test_what_lies_within_its_interval_is_never_called_better(alike) -> None:
    claims = [one for one in alike.verdicts if one.is_claim and one.low <= 0 <= one.high]
    assert len(claims) >= 3
    for language, better in (("en", "better"), ("zh", "更好")):
        matrix = verdict_matrix(alike.verdicts, source="", language=language)
        names = {one: matrix.columns.index(_name(one, language)) for one in claims}
        assert all(matrix.rows[0][place].startswith(SIGNS["none"]) for place in names.values())
        table = contrast_table(alike.verdicts, source="", language=language)
        leading = leading_measure(alike.verdicts)
        assert any((one.measure, one.part) == leading for one in claims)
        assert (
            better not in table.rows[0][2]
            and {"en": "no difference can be shown", "zh": "没有显示出差别"}[language] in (table.rows[0][2])
        )


def _name(one, language):
    return (
        f"{messages.word(one.measure, language)} · {page_messages.named(messages.word(one.part, language), language)}"
    )


def test_the_matrix_has_the_sign_of_every_verdict(whole) -> None:
    matrix = verdict_matrix(whole.verdicts, source="", language="en")
    shown = [one for one in whole.verdicts if one.family in ("task", "forgetting")]
    rows = {row[0]: row for row in matrix.rows}
    for one in shown:
        name = f"{messages.word(one.arm, 'en')} − {messages.word(one.against, 'en')}"
        cell = rows[name][matrix.columns.index(_name(one, "en"))]
        assert cell == f"{SIGNS[one.kind]} {messages.number(one.estimate)}"
    assert {"better", "worse", "none"} <= {one.kind for one in shown}


def test_without_random_pairs_the_page_says_what_it_cannot_tell(whole) -> None:
    arms = ("base", "lora", "lora-attention")
    few = Gathered(
        facts=facts(arms), items=whole.items[whole.items["arm"].isin(arms) & (whole.items["measure"] == "f1")]
    )
    text = {language: sections_of(few, language)[0].text[0] for language in LANGUAGES}
    assert "cannot tell whether supervision itself helps" in text["en"] and "不能回答监督本身有没有用" in text["zh"]


def test_seeds_are_told_as_the_seeds_they_are(whole, pages) -> None:
    said = " ".join(part(pages["en"], "verdict").text)
    assert "3 seeds" in said and "nothing is claimed of other seeds" in said
    for row in whole.results[whole.results["measure"] == "margin"].itertuples():
        assert row.seeds == (0 if {row.arm, row.against} <= {"base", "rag"} else 3)


# ---- families --------------------------------------------------------------------------------------------------


def test_a_difference_table_has_the_numbers_of_the_results(whole) -> None:
    rows = whole.results[whole.results["measure"] == "margin"]
    table = difference_table(rows, "c", source="", language="en")
    assert table.columns == ("contrast", "part", "difference", "95 %", "p", "visible", "seeds", "items (units)")
    for told, row in zip(table.rows, rows.to_dict("records"), strict=True):
        assert float(told[2].replace("−", "-")) == pytest.approx(row["estimate"], abs=0.0006)
        low, high = (float(end.replace("−", "-")) for end in re.split(r"…\s", told[3]))
        assert (low, high) == pytest.approx((row["low"], row["high"]), abs=0.0006)
        assert told[4] == row["p_corrected"] and told[5] == row["visible"]
        assert told[7] == f"{row['items']}\N{NO-BREAK SPACE}({row['units']})" and (told[6] is None) == (
            row["seeds"] == 0
        )


def test_the_values_stand_in_a_grid_of_arms_and_measures(whole) -> None:
    rows = whole.values[whole.values["measure"].isin(["cut", "ablated"])]
    table = value_table(rows, "c", source="", language="en")
    assert column(table, 0) == [messages.word(arm, "en") for arm in ARMS] and len(table.columns) == 5
    found = rows[(rows["arm"] == "lora") & (rows["measure"] == "cut") & (rows["part"] == "seen facts")]
    assert table.rows[1][1] == found["estimate"].iloc[0]
    assert table.rows[0][3] is None  # base has no taught heads


def test_contrasts_that_cannot_be_compared_are_counted_and_not_drawn(whole, pages) -> None:
    missing = whole.results[(whole.results["missing"] != "") & (whole.results["measure"] == "passage_share")]
    pairs = missing[["arm", "against"]].drop_duplicates()
    told = next(text for text in part(pages["en"], "attention").text if "Contrasts not listed" in text)
    assert f"share of the passages ({len(pairs)})" in told and "tables/results.csv" in told and len(pairs) == 3
    only = [one for one in whole.verdicts if one.measure == "passage_share" and one.reason == "absent"]
    assert forest_picture(only, unit="u", language="en") is None


def test_below_five_units_there_are_bare_points_and_no_claim(whole) -> None:
    items = whole.items[whole.items["unit"].isin(["fact0", "fact1"]) & (whole.items["measure"] == "margin")]
    few = Gathered(facts=facts(), items=items)
    assert {one.kind for one in few.verdicts} == {"not_comparable"}
    page = page_of(few, "en")
    assert "nothing is claimed" in page and not re.search(r"[>(\s+]nan[<)\s]", page)
    section = part(sections_of(few, "en"), "visible")
    assert section.tables == () and "fewer than 5 units" in section.text[0]


def test_a_page_has_only_what_was_measured(whole) -> None:
    items = whole.items[(whole.items["measure"] == "accuracy") & whole.items["arm"].isin(["base", "lora"])]
    keys = [one.key for one in sections_of(Gathered(facts=facts(("base", "lora")), items=items), "zh")]
    assert keys == ["verdict", "visible", "task", "changed", "how"]
    rows = [Item(measure="sink", part="general", item=str(n), unit=str(n), value=n / 9) for n in range(8)]
    alone = pd.concat([items_frame(rows, arm="base", seed=-1), items_frame(rows, arm="lora", seed=0)])
    found = sections_of(Gathered(facts=facts(("base", "lora")), items=alone), "en")
    assert [one.key for one in found] == ["verdict", "visible", "attention", "how"]
    assert found[0].text[0] == "No task was measured, so there is no verdict." and found[0].tables == ()


def test_what_cannot_be_seen_is_said_and_what_is_not_known_left_out() -> None:
    rows = [("accuracy", "test", "changed", share, seen, 6, 9, 1.5) for share, seen in ((0.05, np.inf), (0.2, 0.11))]
    rows += [("margin", "test", "correlation", 0.5, np.nan, 4, 9, np.nan)]
    columns = ["measure", "part", "assuming", "assumed", "visible", "units", "items", "design"]
    frame = pd.DataFrame(rows, columns=columns)
    (row,) = visible_table(frame, source="", language="en").rows
    assert row[1:3] == ("5% / 20% of the answers change", "never / 0.110") and row[4] == 1.5
    (row,) = visible_table(frame, source="", language="zh").rows
    assert row[2] == "看不出来 / 0.110"


def test_costs_are_means_of_an_arms_runs_in_the_pages_order() -> None:
    rows = [("lora", 0, 10.0, 8.0, 100.0, 0, 2_500_000, 20.0), ("lora", 1, 30.0, 9.0, 300.0, 0, 2_500_000, 20.0)]
    frame = pd.DataFrame([*rows, ("base", -1, 4.0, 2.0, np.nan, 0, 0, 20.0)], columns=list(COST_COLUMNS))
    table = cost_table(frame, ["base", "lora", "full"], source="", language="en")
    assert table.columns == ("arm", "seconds", "CPU seconds", "memory, MB", "trainable, M", "prompt tokens", "runs")
    assert table.rows == (("the base model", 4.0, 2.0, None, 0.0, 20.0, 1), ("LoRA", 20.0, 8.5, 300.0, 2.5, 20.0, 2))
    table = cost_table(frame.assign(device_memory_mb=[1.0, 5.0, 0.0]), ["lora"], source="", language="zh")
    assert table.columns[4] == "显存（MB）" and table.rows[0][4] == 5.0


# ---- maps ------------------------------------------------------------------------------------------------------


def test_maps_of_two_roles_are_drawn_and_the_others_counted(whole) -> None:
    third = whole.maps[whole.maps["role"] == "answer → word"].assign(role="elsewhere")
    fully = whole.maps[whole.maps["arm"] == "lora"].assign(arm="full")
    arms = (*ARMS, "full")
    more = Gathered(facts=facts(arms), items=whole.items, maps=pd.concat([whole.maps, fully, third]))
    assert (len(steps_of(arms)), len(steps_of(ARMS)), MAPS) == (7, 6, 6)
    assert undrawn_maps(more.differences) == 1 + 1 + 6 and undrawn_maps(whole.differences) == 0
    few = more.maps[more.maps["arm"].isin(["base", "lora"]) & more.maps["item"].isin(["q00", "q01"])]
    items = whole.items[(whole.items["measure"] == "f1") & whole.items["arm"].isin(["base", "lora"])]
    apart = Gathered(facts=facts(("base", "lora")), items=items, maps=few)
    pictures = map_pictures(apart.maps, apart.differences, language="en")
    assert len(pictures) == 4 and not any("elsewhere" in one.caption for one in pictures)
    section = part(sections_of(apart, "en"), "attention")  # maps alone are attention as well
    assert len(section.figures) == 4 and "1 more difference maps are not drawn" in section.text[-1]


def test_the_table_of_maps_says_how_many_items_are_compared(pages) -> None:
    section = part(pages["en"], "attention")
    table = section.tables[-1]
    assert len(table.rows) == 12 and {row[2:] for row in table.rows} == {(24, 0, 3), (24, 0, 0)}
    assert len([one for one in section.figures if "Difference of attention" in one.caption]) == 2
    assert not any("not drawn" in text for text in section.text)


def test_a_model_that_attends_to_nothing_new_has_exact_zeros() -> None:
    maps = drawn_maps(arms=("base", "lora"))
    found = Gathered(facts=facts(("base", "lora")), items=drawn_items(arms=("base", "lora")), maps=maps).differences
    below = found["layer"] < 2
    assert (found.loc[below, "difference"] == 0).all() and (found.loc[~below, "difference"] > 0).all()


# ---- examples --------------------------------------------------------------------------------------------------


def test_examples_are_the_items_whose_answer_changes_counted_by_hand(whole) -> None:
    frame = changed_items(whole)
    told = frame[(frame["arm"] == "lora-attention") & (frame["against"] == "lora-random")].set_index("item")
    right = whole.items[whole.items["measure"] == "accuracy"].set_index(["arm", "seed", "item"])["value"]
    for item in whole.questions["item"]:
        pairs = [[right[arm, seed, item] for arm in ("lora-random", "lora-attention")] for seed in (0, 1, 2)]
        gained, lost = (pairs.count(kind) for kind in ([0.0, 1.0], [1.0, 0.0]))
        assert (item in told.index) == bool(gained or lost)
        if item in told.index:
            assert (told.loc[item, "to_right"], told.loc[item, "to_wrong"]) == (gained, lost)


def test_examples_show_question_answers_and_what_both_arms_wrote(whole, pages) -> None:
    section = part(pages["en"], "changed")
    captions = [table.caption for table in section.tables]
    claim, other = "LoRA + attention against LoRA + random pairs", "LoRA + attention against the base model"
    assert captions[:2] == [f"From wrong to right: {claim}", f"From right to wrong: {claim}"]
    assert f"From wrong to right: {other}" in captions
    asked = dict(zip(whole.questions["item"], whole.questions["asked"], strict=True))
    wrote = whole.written.set_index(["arm", "seed", "item"])["text"]
    table = section.tables[0]
    assert table.columns == ("item", "asked", "right answer", "wrong answer", "before", "after", "seeds")
    for row in table.rows:
        assert row[1] == asked[row[0]]
        assert row[4:6] == (wrote["lora-random", 0, row[0]], wrote["lora-attention", 0, row[0]])
    counts = [int(row[-1].split(" / ")[0]) for row in table.rows]
    assert counts == sorted(counts, reverse=True) and 1 <= len(counts) <= 8


def test_examples_without_texts_are_told_by_their_ids(whole) -> None:
    items = whole.items[(whole.items["measure"] == "accuracy")]
    section = part(sections_of(Gathered(facts=facts(), items=items), "en"), "changed")
    assert section.tables[0].columns == ("item", "seeds")


# ---- the folder ------------------------------------------------------------------------------------------------


def test_every_table_and_picture_names_a_file_of_the_folder(pages, folder) -> None:
    sources = {one.source for section in pages["zh"] for one in (*section.tables, *section.figures)}
    assert "" not in sources
    for source in sources:
        assert (folder / source).is_file(), source
        assert (folder / source).with_suffix(".parquet").is_file(), source
    assert set(picture_files(pages["zh"])) == {f"figures/{one.name}" for one in (folder / "figures").iterdir()}
    page = (folder / "report.html").read_text("utf-8")
    assert all(f'href="./{source}"' in page for source in sources)


def test_the_tables_hold_what_the_page_says(whole, folder) -> None:
    results = pd.read_csv(folder / "tables" / "results.csv")
    pd.testing.assert_frame_equal(
        results[["estimate", "low", "high", "p_corrected"]],
        whole.results[["estimate", "low", "high", "p_corrected"]], check_exact=False, rtol=1e-5,
    )  # fmt: skip
    verdicts = pd.read_parquet(folder / "tables" / "verdicts.parquet")
    assert list(verdicts["sentence"]) == [messages.sentence(one, "zh") for one in whole.verdicts]
    again = verdicts_of(pd.read_parquet(folder / "tables" / "results.parquet").fillna({"missing": ""}))
    assert [one.kind for one in again] == [one.kind for one in whole.verdicts]


def test_the_manifest_answers_for_every_file_and_tells_inputs_and_terms(folder) -> None:
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(manifest["files"]) == files - {"manifest.json"}
    assert manifest["data"]["inputs"]["biochem/train"] == "0f" * 32 and manifest["data"]["non_commercial"] == []
    assert manifest["seeds"] == {"resampling": 0, "training": [0, 1, 2]} and manifest["notes"] == []


def test_the_markdown_links_pictures_and_tables_that_are_there_and_shows_texts_as_words(folder) -> None:
    text = (folder / "report.md").read_text("utf-8")
    links = re.findall(r"\]\(((?:figures|tables)/[^)]+)\)", text)
    assert {link for link in links if link.startswith("figures/")} == {
        f"figures/{one.name}" for one in (folder / "figures").iterdir()
    }
    assert all((folder / link).is_file() for link in links) and "http" not in "".join(links)
    assert text.startswith("# 什么真正有用\n") and text.endswith("\n")
    assert not re.search(r"(?<!\\)<(script|i|b)", text) and "\\<script\\>" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(re.fullmatch(r"\|.*\|", line) for line in rows)


def test_a_long_table_is_linked_and_not_written_out() -> None:
    rows = tuple((f"a|b\n{n}", n / 7) for n in range(LONGEST + 1))
    for count in (LONGEST, LONGEST + 1):
        table = Table(caption="c", columns=("x", "y"), rows=rows[:count], source="tables/t.csv")
        text = markdown(
            [Section(key="s", title="S", tables=(table,))], title="T", subtitle="", foot=(), made="", language="en"
        )
        assert ("| a\\|b 0 | 0 |" in text) == (count == LONGEST)
        assert (f"{LONGEST + 1} rows, see tables/t.csv" in text) == (count > LONGEST)


def test_what_texts_and_models_wrote_does_nothing_on_the_page(folder) -> None:
    page = (folder / "report.html").read_text("utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<i>延胡索酸</i>" not in page and "&lt;i&gt;延胡索酸&lt;/i&gt;" in page


def test_the_foot_tells_model_command_and_versions_and_jobs_that_are_not_done_are_named(whole, folder) -> None:
    foot = (folder / "report.html").read_text("utf-8").partition("<footer")[2]
    assert "cijing-finetune compare biochem.yaml --language zh" in foot and "torch 2.13.0" in foot
    jobs = ({"name": "lora-2", "needs": ["x-2", "y-2"], "state": "failed", "hash": "cd" * 32}, *whole.facts.jobs)
    items = whole.items[whole.items["measure"] == "f1"]
    section = part(sections_of(Gathered(facts=facts(jobs=jobs), items=items), "zh"), "how")
    assert "还有 1 个作业没有做完" in section.text[1] and "lora-2" in section.text[1]
    table = next(one for one in section.tables if one.source == "tables/jobs.csv")
    assert table.rows[0] == ("lora-2", "x-2, y-2", "失败", "cd" * 8)


@pytest.mark.parametrize(("task", "told"), [("sense", True), ("causal-lm", False), ("classification", False)])
def test_a_head_that_was_fitted_to_the_base_is_told_beside_the_verdict(whole, task, told) -> None:
    section = part(sections_of(Gathered(facts=facts(task=task), items=whole.items), "zh"), "verdict")
    assert any("拟合到底" in text for text in section.text) is told


# ---- terms -----------------------------------------------------------------------------------------------------


def test_what_comes_of_non_commercial_data_carries_its_mark_everywhere(whole, tmp_path) -> None:
    told = facts(terms=(*facts().terms, NON_COMMERCIAL))
    marked = Gathered(facts=told, items=whole.items[whole.items["measure"] == "f1"])
    with open_run(tmp_path / "run") as run:
        write_comparison(marked, run, language="en")
    page, text = ((tmp_path / "run" / name).read_text("utf-8") for name in ("report.html", "report.md"))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))
    mark = "NON-COMMERCIAL: the terms of these sources allow no commercial use: mcl-wic/training.en-en.data"
    assert manifest["notes"][0].startswith(mark) and manifest["data"]["non_commercial"] == [NON_COMMERCIAL.name]
    assert page.count(mark) == 2 and mark in text and "· non-commercial" in text
    verdict, *_, how = sections_of(marked, "zh")
    assert verdict.text[1].startswith("【非商业】")  # behind the claim
    (table,) = [one for one in how.tables if one.source == "tables/terms.csv"]
    assert table.columns == ("种类", "名称", "条款", "标记")
    assert [row[3] for row in table.rows] == [None, None, None, "非商业"]
    assert [row[2] for row in table.rows][1:3] == ["本项目自写", "没有说明，使用前请查明"]


def test_nothing_is_marked_without_cause(whole, folder) -> None:
    page = (folder / "report.html").read_text("utf-8")
    assert "非商业" not in page and "非商业" not in (folder / "report.md").read_text("utf-8")


SOURCES = """# Data
| folder | what | rows | licence | for |
|---|---|---|---|---|
| wic/ | pairs {a, b} | 8 | CC BY-NC-SA 4.0 (non-commercial) | senses |
| one/, two/ | sentences | 5 | CC BY-SA 4.0 | x |
"""


def test_terms_are_those_of_the_folder_that_a_file_lies_in(tmp_path, monkeypatch) -> None:
    shared = tmp_path / "shared"
    for name in ("wic", "two", "new"):
        (shared / name).mkdir(parents=True)
        (shared / name / "train.data").write_text("x", "utf-8")
    (shared / "SOURCES.md").write_text(SOURCES, "utf-8")
    assert licences_in(shared) == {
        "wic": "CC BY-NC-SA 4.0 (non-commercial)", "one": "CC BY-SA 4.0", "two": "CC BY-SA 4.0"
    }  # fmt: skip
    given = [str(shared / name / "train.data") for name in ("wic", "two", "new")]
    monkeypatch.setenv("CIJING_DATA", str(shared))
    found = terms_of([*given, "biochem/train", "biochem", "apple", "elsewhere/wic/t.data", "hub/set"])
    told = [(one.name, one.licence, one.non_commercial) for one in found]
    assert told == [
        ("wic/train.data", "CC BY-NC-SA 4.0 (non-commercial)", True), ("two/train.data", "CC BY-SA 4.0", False),
        ("new/train.data", "", False), ("biochem/train", OURS, False), ("biochem", OURS, False),
        ("apple", OURS, False), ("t.data", "CC BY-NC-SA 4.0 (non-commercial)", True), ("set", "", False),
    ]  # fmt: skip
    assert not any(str(tmp_path) in one.name for one in found)


def test_terms_are_also_those_of_what_a_runs_manifest_was_trained_on_and_of_its_base(tmp_path) -> None:
    (tmp_path / "SOURCES.md").write_text(SOURCES, "utf-8")
    (tmp_path / "wic").mkdir()
    (tmp_path / "wic" / "a.jsonl").write_text("x", "utf-8")
    config = {"model": "some/base", "data": {"train": [str(tmp_path / "wic" / "a.jsonl")], "dev": "chips/test"}}
    manifest = {"config": config, "model": {"licence": "cc-by-nc-4.0"}}
    found = terms_of([], [manifest, manifest], shared=tmp_path)
    assert [(one.role, one.name, one.non_commercial) for one in found] == [
        ("base", "some/base", True), ("data", "wic/a.jsonl", True), ("data", "chips/test", False)
    ]  # fmt: skip
    assert licences_in(tmp_path / "gone") == {}


@pytest.mark.parametrize(
    ("licence", "marked"),
    [("CC BY-NC-SA 4.0", True), ("non-commercial use only", True), ("cc-by-nc-4.0", True), ("Apache-2.0", False),
     ("NCSA", False), ("", False)],
)  # fmt: skip
def test_non_commercial_terms_are_known_by_name_or_in_words(licence, marked) -> None:
    assert Terms(role="data", name="x", licence=licence).non_commercial is marked


# ---- words -----------------------------------------------------------------------------------------------------


def test_both_languages_have_the_same_placeholders() -> None:
    for key, (zh, en) in page_messages._TEXTS.items():
        fields = [sorted(name for _, name, *_ in string.Formatter().parse(text) if name) for text in (zh, en)]
        assert fields[0] == fields[1], key
        assert not re.search("[\u4e00-\u9fff]", en), key


def test_no_text_that_the_page_may_ask_for_is_missing_and_none_is_left_over() -> None:
    asked = {f"kind.{kind}" for kind in get_args(Kind)} | {f"why.{why}" for why in get_args(Why)}
    asked |= {f"group.{group}" for group in GROUPS.values()} | {
        f"{family}.{end}" for family in FAMILIES for end in ("title", "text")
    }
    asked |= {"terms.base", "terms.data", "visible.changed", "visible.correlation"}
    asked |= {f"how.{name}" for name in ("licences", "jobs", "inputs", "versions")}
    asked |= {f"foot.{name}" for name in ("model", "task", "arms", "seeds", "command", "versions", "terms")}
    asked |= {"changed.to_right", "changed.to_wrong"}
    for file in Path(page_messages.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "page_text":
                asked |= {
                    one.value
                    for one in ast.walk(node.args[0])
                    if isinstance(one, ast.Constant) and "." in str(one.value)
                } | {one.value for one in [node.args[0]] if isinstance(one, ast.Constant)}
    asked |= {"visible.text", "visible.none"}
    texts = set(page_messages._TEXTS)
    assert {key for key in asked if not key.endswith(".") and not key.startswith(".")} - texts == set()
    assert texts - asked == set()


def test_every_measure_has_a_group_and_a_word() -> None:
    assert set(GROUPS) == set(MEASURES)
    assert all(messages.word(name, "zh") != name for name in MEASURES)


def test_the_chinese_page_has_chinese_headings_and_no_english_names(pages) -> None:
    for section in pages["zh"]:
        for table in section.tables:
            for name in table.columns:
                assert re.search("[\u4e00-\u9fff]", name) or name == "SHA-256", (section.key, name)
        if section.key not in ("how", "changed", "passages"):
            cells = {str(cell) for table in section.tables for row in table.rows for cell in row}
            assert not {"better", "none", "test", "base", "lora-attention", "seen facts", "answer → word"} & cells
    assert part(pages["zh"], "how").tables[1].rows[0][2] == "做完"


def test_the_english_page_has_no_chinese_of_ours(pages) -> None:
    for section in pages["en"]:
        words = [section.title, *section.text, *(one.caption for one in (*section.tables, *section.figures))]
        words += [name for table in section.tables for name in table.columns]
        assert not [text for text in words if re.search("[\u4e00-\u9fff]", text)]


# ---- jobs ------------------------------------------------------------------------------------------------------


def job_folders(place, found):
    """What each job writes: items, maps and answers as tables of its own, and its cost."""
    folders = {}
    for arm, seed in dict.fromkeys(zip(found.items["arm"], found.items["seed"], strict=True)):
        folders[arm, seed] = own = place / f"{arm}-{seed}"
        own.mkdir(parents=True)
        for name in ("items", "maps", "written"):
            frame = getattr(found, name)
            rows = frame[(frame["arm"] == arm) & (frame["seed"] == seed)]
            if name != "items":  # those name arm and seed themselves
                rows = rows.drop(columns=["arm", "seed"]).rename(
                    columns={"item": "question"} if name == "written" else {}
                )
            rows.to_parquet(own / f"{name}.parquet", index=False)
        (told,) = found.cost[(found.cost["arm"] == arm) & (found.cost["seed"] == seed)].to_dict("records")
        (own / "cost.json").write_text(json.dumps({**told, "device": "cpu", "training": {"sessions": 1}}), "utf-8")
    return folders


def test_what_jobs_wrote_is_gathered_as_it_was(tmp_path) -> None:
    arms = ("base", "lora")
    wanted = gathered(arms=arms)
    asked = [
        Question(id=row.item, group="g", prompt=row.asked, right=row.right, wrong=row.wrong, pair=None)
        for row in wanted.questions.itertuples()
    ]
    chunk = Chunk(id="d#0", document="d", start=0, end=2, text="一段", title="", tokens=1)
    hit = Hit(chunk=chunk, rank=1, score=0.5)
    found = gather(facts(arms), job_folders(tmp_path, wanted), questions=asked, passages={"q00": [hit, hit]})
    for name in ("items", "maps", "cost", "written", "questions"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(wanted, name), check_dtype=False)
    assert tuple(found.questions.columns) == QUESTION_COLUMNS
    assert found.passages.to_numpy().tolist() == [["q00", 1, "d", "一段", 0.5], ["q00", 2, "d", "一段", 0.5]]


def test_a_jobs_file_that_cannot_be_read_is_named(tmp_path) -> None:
    folders = job_folders(tmp_path, gathered(arms=("base",)))
    (tmp_path / "base--1" / "maps.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(DataError, match=r"base--1.maps\.parquet: cannot be read") as caught:
        gather(facts(("base",)), folders)
    assert "\n" not in str(caught.value)
    (tmp_path / "base--1" / "maps.parquet").unlink()
    with pytest.raises(DataError, match=r"maps\.parquet: cannot be read"):
        gather(facts(("base",)), folders)


def test_without_a_job_there_is_nothing_to_tell_and_without_base_nothing_is_said_in_advance(whole) -> None:
    with pytest.raises(DataError, match="no job of the comparison is done"):
        gather(facts(), {})
    items = whole.items[(whole.items["measure"] == "f1") & whole.items["arm"].isin(["lora", "lora-random"])]
    found = sections_of(Gathered(facts=facts(("lora", "lora-random")), items=items), "zh")
    assert "原模型没有答案" in part(found, "visible").text[0] and [one.key for one in found][2] == "task"


def test_facts_name_what_is_marked_and_what_is_not_done() -> None:
    told = facts(terms=(NON_COMMERCIAL, NON_COMMERCIAL), jobs=({"name": "lora-0", "state": "begun"},))
    assert told.marked == (NON_COMMERCIAL.name,) and told.unfinished == ("lora-0",)
    assert facts().marked == () and facts().unfinished == ()
