"""What was trained on is never measured as if it had not been: streams, changed files, general texts, hidden twins."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from finetune.dataconfig import DataConfig
from finetune.errors import DataError
from finetune.evaluate import evaluate
from finetune.material import material_of
from finetune.records import load_records
from finetune.runfolder import open_run_folder
from tests.finished import language_model, lines, texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of files, beside it the files."""
    return language_model(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    return language_model(
        tmp_path_factory.mktemp("stream"), data__streaming=True, data__dev_share=0, data__test=[],
        data__look_ahead=8, data__shuffle_buffer=4,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def no_shared_data(monkeypatch):
    monkeypatch.delenv("CIJING_DATA", raising=False)


def opened(folder: Path):
    return open_run_folder(folder, device="cpu")


def one_line(refusal) -> str:
    said = str(refusal.value)
    assert "\n" not in said
    return said


def test_training_texts_of_a_stream_are_refused_as_test(streamed, tmp_path):
    taught = (streamed.parent / "train.jsonl").read_text("utf-8").splitlines()
    with pytest.raises(DataError, match="stands in train and in test") as refusal:
        evaluate(opened(streamed), test=[lines(tmp_path / "part.jsonl", list(map(json.loads, taught[8:])))])
    assert "part.jsonl:" in one_line(refusal)
    assert len(evaluate(opened(streamed), test=[lines(tmp_path / "other.jsonl", texts("test", 8))]).results)


@pytest.mark.parametrize("twin", ["cafe\u0301和苹果", "café和\u200b苹果", "ｃａｆé和苹果", "café和\ufeff苹\u00ad果"])
def test_a_text_that_only_looks_like_a_training_text_is_refused(tmp_path, twin):
    train = lines(tmp_path / "train.jsonl", [{"text": "café和苹果", "group": "a"}])
    test = lines(tmp_path / "test.jsonl", [{"text": twin, "group": "b"}])
    with pytest.raises(DataError, match="this text stands in test and in train"):
        load_records(DataConfig(train=train, test=test, dev_share=0), "causal-lm")


# ---- the files are those of the training -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(folder):
    return opened(folder)


@pytest.mark.parametrize("name", ["train.jsonl", "pairs.yaml"])
def test_a_training_or_pairs_file_that_changed_or_is_gone_is_named(own, name):
    file = own.folder.parent / name
    before = file.read_text("utf-8")
    try:
        file.write_text(before.replace("key: 公司", "key: 公司, part: held_out") + "\n", "utf-8")
        with pytest.raises(DataError, match=f"{name} is changed since the run was trained") as refusal:
            evaluate(own)
        one_line(refusal)
        file.unlink()
        with pytest.raises(DataError, match=f"{name} is gone since the run was trained"):
            evaluate(own)
    finally:
        file.write_text(before, "utf-8")
    assert not [note for note in evaluate(own).notes if "since" in note]


def test_a_test_file_that_changed_is_noted_and_a_run_without_hashes_too(own):
    file = own.folder.parent / "test.jsonl"
    before = file.read_text("utf-8")
    try:
        file.write_text(before + "\n", "utf-8")
        assert any("test.jsonl is changed since the run was trained" in note for note in evaluate(own).notes)
    finally:
        file.write_text(before, "utf-8")
    older = replace(own, manifest={name: value for name, value in own.manifest.items() if name != "inputs"})
    assert any("no hashes" in note for note in evaluate(older).notes)


def test_a_parcel_lists_its_hashes_by_last_name_and_is_checked_all_the_same(own):
    told = [{"file": name, "sha256": value} for name, value in own.manifest["inputs"].items()]
    assert not [
        note for note in evaluate(replace(own, manifest={**own.manifest, "inputs": told})).notes if "hash" in note
    ]
    told[0]["sha256"] = "0"
    with pytest.raises(DataError, match="is changed"):
        evaluate(replace(own, manifest={**own.manifest, "inputs": told}))


# ---- a stream's own dev part -----------------------------------------------------------------------------------


def stream_of(path, task="causal-lm", **settings):
    corpus = load_records(DataConfig(train=path, streaming=True, **{"dev_share": 0.3, **settings}), task)
    return list(corpus.train), list(corpus.dev)


def test_a_text_in_many_groups_is_refused_where_a_stream_draws_its_dev_part(tmp_path):
    rows = [{"text": f"第{place % 16}句", "group": f"g{place}"} for place in range(64)]
    with pytest.raises(DataError, match="stands before it in another group") as refusal:
        stream_of(lines(tmp_path / "many.jsonl", rows))
    assert "many.jsonl:" in one_line(refusal)
    train, dev = stream_of(lines(tmp_path / "one.jsonl", [row | {"group": row["text"]} for row in rows]))
    assert len(train) + len(dev) == 64 and not {row["text"] for row in train} & {row["text"] for row in dev}


def test_a_stream_without_groups_draws_a_text_and_its_look_alikes_as_one(tmp_path):
    forms = ("第{}句　说，苹果", "第{}句 说,苹果", "第{}句\u200b  说，苹果")
    rows = [{"text": forms[place % 3].format(place // 3)} for place in range(96)]
    train, dev = (
        {row["where"].split(":")[-1] for row in part} for part in stream_of(lines(tmp_path / "a.jsonl", rows))
    )
    assert len(train | dev) == 96 and train and dev
    assert not {(int(place) - 1) // 3 for place in train} & {(int(place) - 1) // 3 for place in dev}


# ---- numbers of pairs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [*({"weight": value} for value in (0, 0.0, False, True, "", -1)),
     *({"negatives": value} for value in (0, False, "", {}))],
)  # fmt: skip
def test_a_weight_or_negatives_of_nothing_are_refused(tmp_path, wrong):
    row = {"text": "我喜欢苹果", "pairs": [{"query": "苹果", "key": "喜欢"} | wrong]}
    with pytest.raises(DataError, match=f"pairs 1: {next(iter(wrong))} .*; allowed is") as refusal:
        load_records(DataConfig(train=lines(tmp_path / "a.jsonl", [row]), dev_share=0), "causal-lm")
    assert "a.jsonl:1" in one_line(refusal)
    row["pairs"][0] |= dict.fromkeys(("weight", "negatives"))
    corpus = load_records(DataConfig(train=lines(tmp_path / "a.jsonl", [row]), dev_share=0), "causal-lm")
    (pair,) = corpus.train["pairs"][0]
    assert (pair["weight"], pair["negatives"]) == (1.0, [])


# ---- general texts ---------------------------------------------------------------------------------------------


def test_general_texts_that_were_trained_on_or_chosen_by_are_refused(own, streamed, tmp_path):
    fresh = [{"id": f"g{place}", "text": f"别的话{place}"} for place in range(3)]
    (dev,) = (str(row["text"]) for row in material_of(own, test=None, seed=0, tell=print).corpus.dev.select([0]))
    for run, text in ((own, dev), (opened(streamed), texts("train", 1)[0]["text"] + "\u200b")):
        general = lines(tmp_path / "general.jsonl", [*fresh, {"id": "seen", "text": text}])
        with pytest.raises(DataError, match="1 of 4 general texts") as refusal:
            evaluate(run, general=general)
        assert "general.jsonl:4" in one_line(refusal) and "train.jsonl:" in one_line(refusal)
    assert "general" in evaluate(own, general=lines(tmp_path / "general.jsonl", fresh)).tables


def test_default_passages_that_were_trained_on_are_left_out_in_words(own, tmp_path, monkeypatch):
    (tmp_path / "cmrc-retrieval").mkdir()
    lines(tmp_path / "cmrc-retrieval" / "corpus.jsonl", texts("train", 16))
    monkeypatch.setenv("CIJING_DATA", str(tmp_path))
    assert "16 of 16 general texts" in evaluate(own).missing["perplexity, general text"]


# ---- names that nothing has ------------------------------------------------------------------------------------

ROWS = [{"text": f"第{place}句", "label": "ab"[place % 2], "topic": f"t{place}"} for place in range(12)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"group": "topicc"}, "data.group: no row has the column 'topicc'; did you mean topic?"),
        ({"id": "idd"}, "data.id: no row has the column 'idd'"),
        ({"label_map": {"bb": "a"}}, "data.label_map: no record has the label 'bb'; did you mean b?"),
        ({"label_map": {"neutral": None}}, r"data.label_map: no record has the label 'neutral' \(allowed: a, b\)"),
        ({"subset": "zh"}, "data.subset 'zh'"),
        ({"split": "validation"}, "data.split 'validation'"),
        ({"revision": "main"}, "data.revision 'main'"),
    ],
)  # fmt: skip
def test_a_name_that_nothing_has_is_refused_with_the_nearest(tmp_path, settings, said):
    path = lines(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(DataError, match=said) as refusal:
        load_records(DataConfig(train=path, **settings), "classification")
    one_line(refusal)
    load_records(DataConfig(train=path, group="topic", label_map={"b": "c"}, split="train"), "classification")


def test_a_column_that_no_row_of_a_stream_has_is_refused_at_its_end(tmp_path):
    path = lines(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(DataError, match="did you mean topic"):
        stream_of(path, group="topicc", dev_share=0.3)
    train, dev = stream_of(path, group="topic")
    assert len(train) + len(dev) == 12
