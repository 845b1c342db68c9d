"""Sets in BEIR's layout: what is read, and that every slip in one is told with its file and line."""

import json
import re

import pytest

from benchmarks import public_data
from finetune.errors import RetrievalError
from finetune.rag.beir import Passage, load_beir

CORPUS = [{"_id": "a", "title": "甲", "text": "苹果酸"}, {"_id": "b", "text": "苹果"}, {"_id": 3, "title": "丙"}]
QUERIES = [{"_id": "q1", "text": "酸？", "answers": ["酸"]}, {"_id": "q2", "text": "果？"}]
HEADER = "query-id\tcorpus-id\tscore\n"
QRELS = HEADER + "q1\ta\t2\nq1\tb\t0\n"


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(lines(CORPUS), "utf-8")
    (tmp_path / "queries.jsonl").write_text(lines(QUERIES), "utf-8")
    (tmp_path / "qrels.tsv").write_text(QRELS, "utf-8")
    return tmp_path


def test_documents_queries_and_grades_are_read_in_their_order(folder):
    found = load_beir(folder)
    assert dict(found.corpus) == {"a": Passage("甲", "苹果酸"), "b": Passage("", "苹果"), "3": Passage("丙", "")}
    assert dict(found.queries) == {"q1": "酸？", "q2": "果？"}
    assert found.qrels == {"q1": {"a": 2, "b": 0}} and found.unjudged == ["q2"]
    assert found.about == {"q1": {"answers": ["酸"]}, "q2": {}}


def test_the_shipped_set_is_the_default():
    found = load_beir()
    assert (len(found.corpus), len(found.queries), len(found.qrels)) == (115, 100, 80)
    assert {found.about[query]["kind"] for query in found.unjudged} == {"unanswerable"}


def test_the_halves_of_the_shared_set_are_found_by_their_names():
    folder = public_data.data_folder() / "cmrc-retrieval"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: set CIJING_DATA")
    found = load_beir(folder)
    assert (len(found.corpus), len(found.queries), len(found.qrels)) == (848, 1610, 1610)
    assert {grade for grades in found.qrels.values() for grade in grades.values()} == {1}


def test_the_test_part_of_beirs_own_folders_is_found(folder):
    (folder / "qrels").mkdir()
    (folder / "qrels.tsv").rename(folder / "qrels" / "test.tsv")
    assert load_beir(folder).qrels == {"q1": {"a": 2, "b": 0}}


def test_a_file_that_is_named_stands_for_the_folders(folder):
    other = folder / "others.txt"
    other.write_text(HEADER + "q2\tb\t1\n", "utf-8")
    assert load_beir(folder, qrels=other).qrels == {"q2": {"b": 1}}


@pytest.mark.parametrize(
    ("file", "text", "wanted"),
    [
        ("qrels.tsv", QRELS + "q9\ta\t1\n", r"qrels\.tsv:4: no query has the _id 'q9'"),
        ("qrels.tsv", QRELS + "q2\tz\t1\n", r"qrels\.tsv:4: no document has the _id 'z'"),
        ("qrels.tsv", QRELS + "q1\ta\t1\n", r"qrels\.tsv:4: a is judged for q1 already"),
        ("qrels.tsv", HEADER + "q1\ta\t0.5\n", r"qrels\.tsv:2: score '0\.5'; allowed is a whole number"),
        ("qrels.tsv", HEADER + "q1\ta\n", r"qrels\.tsv:2 has 2 fields"),
        (
            "qrels.tsv",
            "q1\ta\t1\nq2\tb\t1\n",
            r"qrels\.tsv:1: columns q1, a, 1; allowed are query-id, corpus-id, score",
        ),
        ("qrels.tsv", HEADER, r"qrels\.tsv has no judgments"),
        ("qrels.tsv", "query-id\tscore\tscore\nq1\ta\t1\n", r"qrels\.tsv has two columns named 'score'"),
        ("corpus.jsonl", lines(CORPUS) + "{", r"corpus\.jsonl:4 is no usable JSON"),
        ("corpus.jsonl", lines([*CORPUS, CORPUS[1]]), r"corpus\.jsonl:4: _id b stands at .*corpus\.jsonl:2 already"),
        ("corpus.jsonl", lines([{"_id": "a"}]), r"corpus\.jsonl:1: text is None; allowed is a text"),
        ("corpus.jsonl", lines([{"text": "苹果"}]), r"corpus\.jsonl:1: _id is None; allowed is a name"),
        ("corpus.jsonl", "", r"corpus\.jsonl has no rows"),
        ("queries.jsonl", lines([{"_id": "q1", "text": " \u200b"}]), r"queries\.jsonl:1: text is empty"),
        ("queries.jsonl", lines([{"_id": "q1", "title": "酸？"}]), r"queries\.jsonl:1: text is None"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_line(folder, file, text, wanted):
    (folder / file).write_text(text, "utf-8")
    with pytest.raises(RetrievalError) as caught:
        load_beir(folder)
    assert re.search(wanted, str(caught.value)) and "\n" not in str(caught.value)


def test_a_folder_with_no_file_or_with_several_is_told(folder):
    (folder / "qrels.tsv").rename(folder / "qrels_a.tsv")
    (folder / "qrels_b.tsv").write_text(QRELS, "utf-8")
    with pytest.raises(RetrievalError, match=r"several files \(qrels_a\.tsv, qrels_b\.tsv\) for qrels; .*qrels=FILE"):
        load_beir(folder)
    good = (folder / "queries.jsonl").rename(folder / "asked.jsonl")
    with pytest.raises(RetrievalError, match="no file for queries"):
        load_beir(folder)
    with pytest.raises(RetrievalError, match="is no folder"):
        load_beir(folder / "nowhere")
    with pytest.raises(RetrievalError, match=r"gone\.tsv cannot be read"):
        load_beir(folder, queries=good, qrels=folder / "gone.tsv")
