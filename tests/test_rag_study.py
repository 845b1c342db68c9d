"""A judged set measured whole: retrieval, thresholds and their files, answers, and the page that tells of them."""

import json
import re
import shutil
import string
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from finetune.errors import RetrievalError
from finetune.rag import messages
from finetune.rag.ask import Writing
from finetune.rag.evaluation import UseOfContext, UseSettings
from finetune.rag.fusion import halves
from finetune.rag.story import by_place, command_of, effects_by, page_of, sections_of, table_rows, verdicts, write_study
from finetune.rag.study import StudySettings, study_passages
from finetune.rag.threshold import Threshold, Trial
from finetune.rag.thresholds import load_threshold, searched_with, threshold_text
from probe import open_run
from probe.models import model_from_parts
from tests.passage_set import PASSAGES, QRELS, QUESTIONS, write_set
from tests.tiny import FAMILIES, tiny_bert

USE = UseSettings(writing=Writing(instruction="", max_new_tokens=4), places=3)


@pytest.fixture(scope="module")
def llama():
    return model_from_parts(*FAMILIES["llama"](max_position_embeddings=2048), name="llama")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Settings of an index of words alone, and the folder of the encoder that gives it its tokens."""
    folder = tmp_path_factory.mktemp("encoder")
    tiny_bert(folder)
    return StudySettings(encoder=None, tokenizer=str(folder / "bert"), k=2, use=USE)


@pytest.fixture(scope="module")
def study(llama, words, tmp_path_factory):
    return study_passages(llama, write_set(tmp_path_factory.mktemp("set")), settings=words)


@pytest.fixture(scope="module")
def dense(words, tmp_path_factory):
    folder = write_set(tmp_path_factory.mktemp("set"))
    return study_passages(None, folder, settings=replace(words, encoder=words.tokenizer))


def cell(frame, **wanted):
    for name, value in wanted.items():
        frame = frame[frame[name] == value]
    (row,) = frame.to_dict("records")
    return row


def test_a_set_is_searched_and_measured_by_its_own_ids(study) -> None:
    best = study.rankings[(study.rankings["rank"] == 1) & (study.rankings["mode"] == "lexical")]
    found = dict(zip(best["query"], best["passage"], strict=True))
    judged = {query: passage for query, passage, grade in QRELS if passage not in ("firm-2",)}
    right = np.mean([found[query] == passage for query, passage in judged.items()])
    row = cell(study.retrieval, mode="lexical", half="all", measure="mrr@1")
    units = {"q1": 1, "q2": 1, "q3": 1, "q4": 1, "q5": 1, "q6": 1}
    assert row["queries"] == len(units) and row["units"] == 5
    assert right == 1.0 and row["estimate"] == 1.0
    assert cell(study.retrieval, mode="lexical", half="all", measure="recall@1")["estimate"] < 1  # q6 has two
    assert (study.questions, study.passages, study.unanswerable) == (6, 8, 2)
    assert (study.judged, study.elsewhere, study.name) == (6, 2, study.name) and study.name != ""


def test_what_was_found_goes_to_the_model_under_the_sets_ids(study) -> None:
    assert {"chip-1", "acid-1"} <= set(study.use.left_out["passage"])
    gold = study.use.left_out[study.use.left_out["gold"]]
    assert set(zip(gold["question"], gold["passage"], strict=True)) <= {(one[0], one[1]) for one in QRELS}
    assert len(gold) >= 6
    assert study.use.left_out.groupby("question").size().max() == 2  # k


def test_without_vectors_nothing_is_fused_and_no_weight_chosen(study) -> None:
    assert set(study.retrieval["mode"]) == {"lexical"}
    assert study.weight is None and study.against.empty
    assert study.made_from["encoder"] is None


def test_the_hybrid_is_told_at_its_chosen_weight_everywhere(dense, words, tmp_path) -> None:
    from finetune.rag.documents import Columns
    from finetune.rag.index import IndexSettings, build_index, open_index
    from finetune.rag.retrieve import retrieve

    chosen, other = halves([query for query, *_ in QUESTIONS[:6]])
    assert dense.weight.queries == len(chosen) > 0 < len(other)
    (better,) = set(dense.against["better"])
    assert better in ("lexical", "dense")
    assert set(dense.against["arm"]) == {better, "hybrid", "difference"}
    for arm in (better, "hybrid"):
        own = cell(dense.retrieval, mode=arm, half="other", measure="mrr@5")["estimate"]
        assert cell(dense.against, arm=arm, measure="mrr@5")["estimate"] == own
    assert set(dense.against["queries"]) == {len(other)}
    folder = write_set(tmp_path / "set")
    settings = IndexSettings(encoder=words.tokenizer, tokenizer=words.tokenizer, size=512, duplicates="keep")
    build_index([folder / "corpus.jsonl"], tmp_path / "index", settings, columns=Columns(id="_id"))
    with open_index(tmp_path / "index") as index:
        (hits,) = retrieve(index, [QUESTIONS[0][1]], k=10, mode="hybrid", weight=dense.weight.weight)
    told = dense.rankings[(dense.rankings["mode"] == "hybrid") & (dense.rankings["query"] == "q1")]
    assert list(told["passage"]) == [hit.chunk.document.partition("#")[2] for hit in hits]
    assert list(told["score"]) == [hit.score for hit in hits]


def test_without_a_model_there_is_retrieval_alone(dense) -> None:
    assert dense.use is None
    assert dense.questions == len(QUESTIONS)
    assert set(dense.retrieval["mode"]) == {"lexical", "dense", "hybrid"}
    assert set(dense.trials) == {"lexical", "dense"}
    assert dense.kept_trial() is dense.trials["dense"]
    assert [one.key for one in sections_of(dense, StudySettings(), "zh")] == ["retrieval", "threshold"]


def test_thresholds_are_chosen_on_questions_about_something_else_and_tried_on_the_subject(study) -> None:
    table = study.thresholds
    assert set(table["score"]) == {"lexical"}
    assert "false answers, on the subject" in set(table["measure"])
    row = cell(table, measure="false answers, on the subject")
    assert row["questions"] == 2 and np.isnan(row["low"])
    assert row["threshold"] == study.trials["lexical"].threshold.score


@pytest.mark.parametrize(
    ("changes", "measures"),
    [
        ({"elsewhere": None}, {"balanced accuracy", "false refusals", "false answers", "AUROC"}),
        ({"elsewhere": [("e1", "马拉松？")], "contradictions": None}, {"AUROC", "false answers"}),
        ({"questions": QUESTIONS[:7]}, {"AUROC", "false answers"}),  # one unanswerable question
        ({"questions": QUESTIONS[:6], "elsewhere": None}, set()),
        ({"qrels": [*QRELS, ("u1", "firm-1", 0), ("u2", "chip-1", 0)]}, {"AUROC", "AUROC, on the subject"}),
    ],
)
def test_a_set_may_lack_files_and_unanswerable_questions(words, tmp_path, changes, measures) -> None:
    found = study_passages(None, write_set(tmp_path, **changes), settings=words)
    assert measures <= set(found.thresholds["measure"])
    assert bool(measures) == bool(found.trials)
    assert found.unanswerable == len(changes.get("questions", QUESTIONS)) - 6
    if "qrels" not in changes:
        assert "AUROC, on the subject" not in set(found.thresholds["measure"])
    assert sections_of(found, words, "en")[0].key == "retrieval"


def test_a_set_of_one_question_is_measured_and_nothing_is_claimed_of_it(llama, words, tmp_path) -> None:
    folder = write_set(
        tmp_path, passages=PASSAGES[:2], questions=QUESTIONS[:1], qrels=QRELS[:1], contradictions=None, elsewhere=None
    )
    found = study_passages(llama, folder, settings=replace(words, encoder=words.tokenizer))
    assert found.weight is None and found.trials == {}
    assert set(found.use.conditions["condition"]) == {"none", "wrong", "gold", "retrieved"}
    for language, said in (("en", "nothing is claimed"), ("zh", "没有结论")):
        assert all(said in line for line in verdicts(found.use, language))
    page = page_of(found, words, model="llama", language="en")
    assert "equal weights" in page and not re.search(r"[>(\s+]nan[<)\s]", page)


def test_a_limit_changes_nothing_for_the_questions_that_are_kept(study, llama, words, tmp_path) -> None:
    few = study_passages(llama, write_set(tmp_path), settings=replace(words, limit=2)).use
    assert list(dict.fromkeys(few.conditions["question"])) == ["q1", "q2"]
    for name in ("conditions", "places", "left_out"):
        whole = getattr(study.use, name)
        kept = whole[whole["question"].isin(["q1", "q2"])].reset_index(drop=True)
        pd.testing.assert_frame_equal(getattr(few, name), kept)


def test_what_cannot_be_measured_is_refused_before_anything_is_indexed(llama, words, tmp_path, monkeypatch) -> None:
    said: list[str] = []
    settings = replace(words, tokenizer=str(tmp_path / "is not there"))  # where an index would stop
    bert = model_from_parts(*FAMILIES["bert"](head=True), name="bert")
    with pytest.raises(RetrievalError, match="bert is an encoder; allowed are decoders"):
        study_passages(bert, write_set(tmp_path / "a"), settings=settings, progress=lambda *one: said.append(one[0]))
    plain = [(name, text, None, None) for name, text, *_ in QUESTIONS]
    with pytest.raises(RetrievalError, match=r"no question of the set has an answer.*--model none"):
        study_passages(llama, write_set(tmp_path / "b", questions=plain), settings=settings)
    nothing = [(query, passage, 0) for query, passage, _ in QRELS]
    with pytest.raises(RetrievalError, match="no passage is judged to answer a question"):
        study_passages(None, write_set(tmp_path / "c", qrels=nothing), settings=settings)
    assert said == []
    found = study_passages(None, tmp_path / "b", settings=words)
    assert cell(found.retrieval, mode="lexical", half="all", measure="mrr@1")["estimate"] == 1.0


# ---- the page ---------------------------------------------------------------------------------------------------


def use_of(results, **frames):
    columns = ["measure", "condition", "against", "estimate", "low", "high", "units", "questions"]
    empty = {name: pd.DataFrame() for name in ("conditions", "places", "left_out", "heads")}
    return UseOfContext(results=pd.DataFrame(results, columns=columns), **{**empty, **frames})


def part(found, key, settings, language="en"):
    (section,) = [one for one in sections_of(found, settings, language) if one.key == key]
    return section


def test_the_page_shows_the_rows_that_are_results_in_full_height(study, dense, words) -> None:
    found, against = part(dense, "retrieval", words).tables
    other = dense.judged - dense.weight.queries
    assert found.whole and against.whole and found.columns[-1] == "queries"
    assert {row[-1] for row in found.rows} == {other} and len(found.rows) == 3 * 4
    assert [row[1] for row in against.rows[:3]] == [dense.against["better"][0], "hybrid", "difference"]
    (alone,) = part(study, "retrieval", words).tables
    assert {row[-1] for row in alone.rows} == {study.judged} and len(alone.rows) == 4
    assert set(dense.retrieval["half"]) == {"all", "chosen", "other"}


@pytest.mark.parametrize(
    ("weight", "en", "zh"),
    [(0.0, "hybrid is then lexical alone", "就是词检索本身"), (1.0, "hybrid is then dense alone", "就是向量检索本身")],
)
def test_a_weight_of_0_or_1_is_told_to_be_one_mode_alone(dense, words, weight, en, zh) -> None:
    chosen = dense.weight.queries
    for language, said, parts in (
        ("en", en, f"{chosen} and {6 - chosen} questions"), ("zh", zh, f"{chosen} 与 {6 - chosen} 题")
    ):  # fmt: skip
        alone = replace(dense, weight=replace(dense.weight, weight=weight))
        between = replace(dense, weight=replace(dense.weight, weight=0.3))
        assert said in part(alone, "retrieval", words, language).text[1]
        (text,) = part(between, "retrieval", words, language).text
        assert "0.30" in text and parts in text


@pytest.mark.parametrize(
    ("low", "high", "en", "zh"),
    [
        (0.1, 0.3, "towards the right answer", "更倾向正确答案"),
        (-0.3, -0.1, "towards the wrong answer", "更倾向错误答案"),
        (-0.1, 0.3, "no difference is shown", "没有显示出差别"),
        (0.0, 0.3, "no difference is shown", "没有显示出差别"),
        (float("nan"), float("nan"), "nothing is claimed", "没有结论"),
    ],
)
def test_a_difference_is_named_only_where_its_interval_leaves_0_out(low, high, en, zh) -> None:
    estimate = 0.2 if np.isnan(low) else (low + high) / 2
    rows = [("margin", "gold", "none", estimate, low, high, 9, 12), ("margin", "gold", "", 1.0, 0.9, 1.1, 9, 12)]
    for language, said in (("en", en), ("zh", zh)):
        (line,) = verdicts(use_of(rows), language)
        assert said in line and "nan" not in line
        assert {"en": "gold − none", "zh": "能回答的资料 − 没有资料"}[language] in line
        assert "12" in line and f"{estimate:+.3f}" in line


def test_the_page_leads_with_the_verdict_and_escapes_what_documents_and_models_wrote(study, words) -> None:
    page = page_of(study, words, model="<i>llama</i>", language="zh")
    assert "<script>" not in page.partition("</head>")[2] or "来？<script>" not in page
    assert "哪里？&lt;script&gt;" in page
    assert "&lt;i&gt;llama&lt;/i&gt;" in page and "<i>llama" not in page
    keys = [one.key for one in sections_of(study, words, "zh")]
    assert keys == ["verdict", "retrieval", "threshold", "use", "places", "left-out", "heads", "examples"]


def test_both_languages_have_the_same_texts_with_the_same_placeholders(study, words) -> None:
    for key, (zh, en) in messages._TEXTS.items():
        fields = [sorted(name for _, name, *_ in string.Formatter().parse(text) if name) for text in (zh, en)]
        assert fields[0] == fields[1], key
    pages = {language: sections_of(study, words, language) for language in ("zh", "en")}
    assert [one.key for one in pages["zh"]] == [one.key for one in pages["en"]]
    assert not any(
        "\u4e00" <= sign <= "\u9fff" for one in pages["en"] for text in (one.title, *one.text) for sign in text
    )


def test_the_chinese_page_has_chinese_words_for_what_is_named(study, dense, words) -> None:
    names = {"contains", "gold", "wrong", "retrieved", "margin", "dropped", "lexical", "dense", "hybrid", "difference"}
    names |= {"true", "false", "false answers", "false answers, on the subject", "balanced accuracy", "right", "f1"}
    for found in (study, dense):
        for section in sections_of(found, words, "zh"):
            cells = {value for table in section.tables for row in table.rows for value in row}
            assert not names & cells, section.key
            assert not re.search(rf"\b(?:{'|'.join(sorted(names))})\b", " ".join(section.text), re.A), section.key
    assert {row[0] for row in part(study, "left-out", words, "zh").tables[0].rows} == {"是", "否"}
    shown = {row[2] for row in part(study, "threshold", words, "zh").tables[0].rows}
    assert {"误答", "误答（不离题）", "平衡准确率"} <= shown
    assert part(study, "examples", words, "zh").tables[0].columns[3:6] == ("没有资料", "别的资料", "能回答的资料")
    assert {"gold", "none"} <= set(study.use.results["condition"])


def test_the_title_asks_what_was_measured_and_the_foot_tells_how(study, dense, words, tmp_path) -> None:
    (tmp_path / "my model").mkdir()
    place = str(tmp_path / "my model")
    asked = {one: page_of(study, words, model=place, language=one) for one in ("zh", "en")}
    assert "<title>Were the passages used?" in asked["en"] and "<title>资料有没有用上" in asked["zh"]
    alone = {one: page_of(dense, words, model="e5", language=one) for one in ("zh", "en")}
    assert "<title>Are the right passages found?" in alone["en"] and "<title>资料找得到吗" in alone["zh"]
    for page in (*asked.values(), *alone.values()):
        foot = page.partition("<footer")[2]
        assert "cijing-finetune passages " in foot and "--seed 0" in foot and str(tmp_path) not in foot
    assert "--model none" in alone["en"] and "--model &#39;my model&#39; --encoder none" in asked["zh"]
    changed = replace(words, terms=tmp_path / "t.tsv", limit=2, use=replace(USE, left_out=False, places=None))
    told = command_of(study, changed, model="m")
    assert told == (
        f"cijing-finetune passages {study.name} --model m --encoder none --terms t.tsv --k 2 --limit 2 "
        "--order best-first --language zh --max-new-tokens 4 --seed 0 --no-places --no-effects"
    )


def test_places_and_effects_have_intervals_over_units() -> None:
    places = pd.DataFrame(
        [(f"q{n}", f"d{n // 2}", 1, -float(n // 2), 0.5, 1.0) for n in range(12)],
        columns=["question", "unit", "place", "right", "share", "per_token"],
    )
    row = cell(by_place(use_of([], places=places)), place=1, measure="right")
    assert (row["estimate"], row["units"], row["questions"]) == (-2.5, 6, 12)
    assert -5 < row["low"] < row["high"] < 0
    left = pd.DataFrame(
        [("d1", True, 2.0, 3.0, 1.0, True, 0.4), ("d2", False, 0.0, None, 0.0, None, 0.1)],
        columns=["unit", "gold", "dropped", "swapped", "cut", "used", "share"],
    )
    found = effects_by(use_of([], left_out=left), "gold")
    assert cell(found, gold="true", measure="used")["estimate"] == 1.0
    assert np.isnan(cell(found, gold="false", measure="swapped")["estimate"])
    assert np.isnan(cell(found, gold="true", measure="dropped")["low"])
    used = effects_by(use_of([], left_out=left), "used")  # a passage without a swap is in neither group
    assert set(used["used"]) == {"true"} and set(used["passages"]) == {1}


def test_examples_show_question_and_right_answer_in_the_sets_order(study, words) -> None:
    (section,) = [one for one in sections_of(study, words, "en") if one.key == "examples"]
    (table,) = section.tables
    assert table.columns == ("question", "asked", "right_answer", "none", "wrong", "gold", "contradicting", "retrieved")
    assert [row[:3] for row in table.rows] == [one[:3] for one in QUESTIONS[:6]]
    assert table.rows[1][6] is None  # nothing contradicts


def test_a_run_folder_has_every_table_the_threshold_and_the_settings(study, words, tmp_path) -> None:
    with open_run(tmp_path / "run") as run:
        write_study(study, words, run, page=page_of(study, words, model="llama", language="zh"))
    tables = {one.stem for one in (tmp_path / "run" / "tables").iterdir()}
    assert tables == {
        "retrieval", "rankings", "thresholds", "results", "conditions", "heads", "places", "by_place", "left_out"
    }  # fmt: skip
    assert load_threshold(tmp_path / "run" / "threshold.json", study.made_from) == study.trials["lexical"].threshold
    config = json.loads((tmp_path / "run" / "manifest.json").read_text("utf-8"))["config"]
    assert config["use"]["writing"]["max_new_tokens"] == 4 and config["k"] == 2 and config["encoder"] is None


def test_rows_for_a_terminal_are_words() -> None:
    frame = pd.DataFrame({"a": [0.12345], "b": ["x"], "c": [3]})
    assert table_rows(frame, ["b", "a", "c"]) == [["x", "0.123", "3"]]
    assert table_rows(pd.DataFrame({"a": [float("nan")]}), ["a"]) == [["–"]]


# ---- thresholds in files ----------------------------------------------------------------------------------------

MADE_FROM = {
    "encoder": {"name": "one", "weights": "aa", "pooling": "mean"},
    "words": {"rjieba": "1", "rules": "1", "terms": "tt"}, "store": None,
}  # fmt: skip


def trial(field="dense", score=0.5):
    rows = [("AUROC", 0.9, float("nan"), float("nan"), 4)]
    table = pd.DataFrame(rows, columns=["measure", "estimate", "low", "high", "questions"])
    return Trial(threshold=Threshold(score=score, false_refusals=0.1, false_answers=0.2, field=field), table=table)


def test_a_threshold_comes_back_as_it_was_written(tmp_path) -> None:
    text = threshold_text(trial(), MADE_FROM)
    (tmp_path / "t.json").write_text(text, "utf-8")
    assert "NaN" not in text and json.loads(text)["held_out"] == {"AUROC": [0.9, None, None]}
    assert load_threshold(tmp_path / "t.json", MADE_FROM) == trial().threshold
    assert searched_with(MADE_FROM)["words"] == {"rjieba": "1", "rules": "1"}


def test_a_threshold_of_another_encoder_or_of_other_words_is_refused(tmp_path) -> None:
    others = {**MADE_FROM, "encoder": {**MADE_FROM["encoder"], "weights": "bb"}}
    words = {**MADE_FROM, "words": {**MADE_FROM["words"], "rules": "2"}}
    terms = {**MADE_FROM, "words": {**MADE_FROM["words"], "terms": "uu"}}
    for field, refused, taken in (("dense", others, words), ("lexical", words, others)):
        (tmp_path / "t.json").write_text(threshold_text(trial(field), MADE_FROM), "utf-8")
        with pytest.raises(RetrievalError, match="was chosen on scores of another") as caught:
            load_threshold(tmp_path / "t.json", refused)
        assert "\n" not in str(caught.value)
        assert load_threshold(tmp_path / "t.json", taken).field == field
        assert load_threshold(tmp_path / "t.json", terms).field == field
    (tmp_path / "t.json").write_text(threshold_text(trial(), MADE_FROM), "utf-8")
    with pytest.raises(RetrievalError, match="another encoder"):
        load_threshold(tmp_path / "t.json", {**MADE_FROM, "encoder": None})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("0.5,", "NaN,"), r"t\.json: score: .*finite"),
        (lambda text: text.replace("0.5,", "Infinity,"), r"t\.json: score: .*finite"),
        (lambda text: text.replace('"dense"', '"guess"'), r"t\.json: field: "),
        (lambda text: text[:40], r"t\.json: its JSON: "),
    ],
)
def test_a_file_that_is_no_threshold_is_told_in_a_line(tmp_path, change, said) -> None:
    (tmp_path / "t.json").write_text(change(threshold_text(trial(), MADE_FROM)), "utf-8")
    with pytest.raises(RetrievalError, match=said) as caught:
        load_threshold(tmp_path / "t.json", MADE_FROM)
    assert "\n" not in str(caught.value)
    shutil.rmtree(tmp_path)
    with pytest.raises(RetrievalError, match="cannot be read"):
        load_threshold(tmp_path / "t.json", MADE_FROM)
