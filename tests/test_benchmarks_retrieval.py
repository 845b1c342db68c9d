"""The retrieval benchmark in small: its sets, its vectors' cache, and a table whose bounds can be missed."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks import retrieval
from benchmarks.public_data import data_folder
from benchmarks.retrieval import BOTH, EVEN, SHOWN, VECTORS, WORDS, bounds, cached, fields_of, main, measured
from benchmarks.retrieval_sets import BIOCHEM, Searched, sets
from finetune.errors import RetrievalError
from finetune.rag.dense import dense_encoder
from finetune.rag.fusion import halves
from tests.tiny import tiny_bert

NUMERALS = "零一二三四五六七八九"


def passage(number):
    work = "剪疏采藏"[number % 4]
    return f"第{NUMERALS[number // 10]}{NUMERALS[number % 10]}号果园在山谷里种苹果，{work}由人手完成。"


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Public sets' layout with sentences of our own: 40 passages with a question each, and 32 paragraphs."""
    cmrc, biochem = tmp_path / "data" / "cmrc-retrieval", tmp_path / "data" / "wiki-biochem"
    cmrc.mkdir(parents=True)
    biochem.mkdir()
    rows = [{"_id": f"P{n}", "title": "", "text": passage(n)} for n in range(40)]
    asked = [{"_id": f"P{n}_Q", "text": passage(n)[:5]} for n in range(40)]
    write(cmrc / "corpus.jsonl", rows)
    write(cmrc / "queries_half.jsonl", asked)
    judged = "".join(f"P{n}_Q\tP{n}\t1\n" for n in range(40))
    (cmrc / "qrels_half.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged, "utf-8")
    write(biochem / "wiki_biochem.jsonl", [{"title": "", "text": f"{passage(n)}苹果酸"} for n in range(40, 72)])
    monkeypatch.setenv("CIJING_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def write(file, rows):
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


@pytest.fixture
def encoder(tmp_path):
    tiny_bert(tmp_path)
    return str(tmp_path / "bert")


def test_the_small_preset_prints_every_set_part_and_field_and_writes_its_table(data, encoder, tmp_path, capsys):
    file = tmp_path / "table.csv"
    assert main(["--preset", "small", "--encoder", encoder, "--table", str(file)]) == 0
    table = pd.read_csv(file)
    parts = table.groupby("set", sort=False)["part"].unique().map(list).to_dict()
    assert parts == {"cmrc": ["all", "first half", "second half"], "own": ["all", "first half", "second half"],
                     "biochem": ["all"]}  # fmt: skip
    whole = table[(table["set"] == "cmrc") & (table["part"] == "all")]
    fields = list(dict.fromkeys(whole["field"]))
    assert fields[:4] == [WORDS, VECTORS, BOTH, EVEN] and all(" - " in name for name in fields[4:]) and len(fields) == 6
    assert set(table["measure"]) == set(SHOWN) and not table["estimate"].isna().any()
    assert whole.set_index(["field", "measure"]).at[(WORDS, "recall@5"), "queries"] == 24
    biochem = table[table["set"] == "biochem"]
    assert set(biochem["queries"]) == {len(BIOCHEM)}
    chosen = {
        name: set(table[(table["set"] == name) & (table["field"] == BOTH)]["weight"]) for name in ("cmrc", "biochem")
    }
    assert chosen["cmrc"] == chosen["biochem"]  # its questions are too few to choose by
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) >= 42 and "kept" not in printed.out  # a small run has no bounds
    assert "24 passage texts embedded" in printed.err


def test_without_public_data_the_shipped_set_is_measured(encoder, tmp_path, monkeypatch):
    monkeypatch.setenv("CIJING_DATA", str(tmp_path / "nowhere"))
    assert [one.name for one in sets(data_folder(), most=24)] == ["own"]


def test_vectors_are_made_once_for_an_encoder_and_a_text(data, encoder, tmp_path, capsys):
    texts = ["苹果", "苹果酸", "苹果"]
    first = cached(dense_encoder(encoder), tmp_path / "cache")(texts, "passage")
    assert np.array_equal(first[0], first[2]) and "2 passage texts embedded" in capsys.readouterr().err
    again = cached(dense_encoder(encoder), tmp_path / "cache")(texts[::-1], "passage")
    assert np.array_equal(again, first[::-1]) and capsys.readouterr().err == ""
    cached(dense_encoder(encoder, passage_prefix="p: "), tmp_path / "cache")(texts, "passage")
    assert "2 passage texts embedded" in capsys.readouterr().err
    cached(dense_encoder(encoder), tmp_path / "cache")(texts, "query")
    assert "2 query texts embedded" in capsys.readouterr().err


def by_field(table, part, measure="recall@1"):
    return table[(table["part"] == part) & (table["measure"] == measure)].set_index("field")


def made_set(count=40):
    """Questions whose words and whose vectors each find their passage for one half of them: fused, more than either."""
    passages = {f"p{n}": passage(n) for n in range(count)}
    queries = {f"q{n}": passage(n)[:5] if n % 2 else "什么？" for n in range(count)}
    return Searched(
        name="made", passages=passages, queries=queries, qrels={f"q{n}": {f"p{n}": 1} for n in range(count)}
    )


def planted(given):
    """Vectors that find the questions that no words find, told apart by their order."""

    def embed(texts, kind):
        eye = np.eye(len(given.passages), dtype=np.float32)
        if kind == "passage":
            return eye
        return np.stack([np.roll(one, 1) if place % 2 else one for place, one in enumerate(eye)])

    return embed


def test_both_fields_together_find_what_either_finds(monkeypatch):
    given = made_set()
    table = measured([given], planted(given))
    found = by_field(table, "all")["estimate"]
    assert (found[WORDS], found[VECTORS]) == (0.5, 0.5) and found[BOTH] > 0.7
    first, second = halves(given.queries)
    weight = fields_of(given, planted(given)).weight(first)
    assert set(table[table["field"] == BOTH]["weight"]) == {weight}
    assert by_field(table, "second half")["queries"][BOTH] == len(second)
    gain = by_field(table, "second half").loc[lambda rows: rows.index.str.startswith(f"{BOTH} - ")].iloc[0]
    own = by_field(table, "second half")["estimate"]
    assert gain["estimate"] == pytest.approx(own[BOTH] - max(own[WORDS], own[VECTORS])) and gain["low"] <= gain["high"]


def table_of(**recalls):
    rows = [("cmrc", "all", WORDS, recalls["whole"]), ("cmrc", "second half", WORDS, recalls["words"])]
    rows += [("cmrc", "second half", VECTORS, recalls["vectors"]), ("cmrc", "second half", BOTH, recalls["both"])]
    return pd.DataFrame(rows, columns=["set", "part", "field", "estimate"]).assign(measure="recall@1")


def test_the_bounds_are_kept_and_missed_where_they_should_be():
    kept = [one for _, one in bounds(table_of(whole=0.93, words=0.94, vectors=0.90, both=0.931))]
    assert kept == [True, True]
    missed = [one for _, one in bounds(table_of(whole=0.929, words=0.90, vectors=0.95, both=0.939))]
    assert missed == [False, False]
    assert list(bounds(table_of(whole=1, words=1, vectors=1, both=1).assign(set="own"))) == []


def test_a_missed_bound_leaves_with_1_and_a_broken_set_with_2(data, encoder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(retrieval, "LEAST_RECALL", 1.01)
    assert main(["--preset", "full", "--encoder", encoder, "--table", str(tmp_path / "t.csv")]) == 1
    assert "MISSED cmrc, all: R@1 of words" in capsys.readouterr().out
    (data / "wiki-biochem" / "wiki_biochem.jsonl").write_text("", "utf-8")
    with pytest.raises(RetrievalError, match="has 0 lines"):
        list(sets(data, most=24))
    assert main(["--preset", "small", "--encoder", encoder]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_each_question_of_ours_is_answered_by_its_paragraphs():
    """A word of the paragraph's answer, as we read it; with the public file alone."""
    file = data_folder() / "wiki-biochem" / "wiki_biochem.jsonl"
    if not file.is_file():
        pytest.skip(f"no {file}: set CIJING_DATA")
    texts = [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]
    answers = (
        *("香豆酸", "瓦尔登", "L-苹果酸", "丙酮酸", "酸味", "线粒体", "不能透过内膜", "32", "三羧酸循环", "GTP"),
        *(
            "异柠檬酸",
            "乌头酸酶",
            "琥珀酸脱氢酶",
            "苹果酸",
            "三分子NADH",
            "郑州",
            "台湾",
            "2-3年",
            "苹果日报",
            "产量少",
        ),
    )
    for (question, lines), answer in zip(BIOCHEM, answers, strict=True):
        assert all(answer in texts[line - 1] for line in lines), question
        assert not any(question[:8] in text for text in texts), question
