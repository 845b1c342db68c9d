"""What was trained on is never measured as if it had not been: streams, changed files, general texts, hidden twins."""

import json
from pathlib import Path

import pytest

from finetune.dataconfig import DataConfig
from finetune.errors import DataError
from finetune.evaluate import evaluate
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


@pytest.mark.parametrize(
    "twin",
    ["cafe\u0301和苹果", "café和\u200b苹果", "ｃａｆé和苹果", "café和\ufeff苹\u00ad果"],
    ids="nfd zwsp wide cf".split(),
)
def test_a_text_that_only_looks_like_a_training_text_is_refused(tmp_path, twin):
    train = lines(tmp_path / "train.jsonl", [{"text": "café和苹果", "group": "a"}])
    test = lines(tmp_path / "test.jsonl", [{"text": twin, "group": "b"}])
    with pytest.raises(DataError, match="this text stands in test and in train"):
        load_records(DataConfig(train=train, test=test, dev_share=0), "causal-lm")
