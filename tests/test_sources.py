"""Every wrong source of a model is one line that says what is wrong and what is allowed."""

import json
import shutil

import pytest

from probe.errors import ModelError
from probe.sources import Access, display_name, find_source
from tests.tiny import tiny_bert


@pytest.fixture
def bert(tmp_path):
    tiny_bert(tmp_path)
    return tmp_path / "bert"


def refusal(source):
    with pytest.raises(ModelError) as caught:
        find_source(source, Access())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("source", ["./nowhere", "/no/such/folder", "a/b/c", "model.gguf", "我的模型", ""])
def test_a_path_that_is_not_there_lists_what_is_allowed(source):
    message = refusal(source) if source else refusal(" ")
    assert "no such model" in message and "builtin:NAME, a hub id" in message


def test_a_builtin_without_its_prefix_is_guessed():
    assert "did you mean builtin:e5-small?" in refusal("e5-smal")


def test_a_folder_without_config_says_so(tmp_path):
    assert "has no config.json and no adapter_config.json; allowed are" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "config.json is not valid JSON"), ("[]", "names no model_type"), ('{"hidden": 1}', "names no model_type")],
)
def test_a_broken_config_says_where(bert, content, message):
    (bert / "config.json").write_text(content)
    assert message in refusal(bert)


def test_a_config_that_is_not_text_is_one_line(bert):
    (bert / "config.json").write_bytes(b"\xff\xfe\x00")
    assert "config.json is not valid JSON" in refusal(bert)


def test_pickled_weights_are_refused_with_the_reason(bert):
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    message = refusal(bert)
    assert "only pickled ones (pytorch_model.bin), which can run code" in message


def test_no_weights_at_all_is_said(bert):
    (bert / "model.safetensors").unlink()
    assert "no weights at all" in refusal(bert)


@pytest.mark.parametrize("damage", ["short", "header", "empty"])
def test_damaged_weights_are_named(bert, damage):
    path = bert / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes({"short": data[:-100], "header": b"\xff" * 8 + data[8:], "empty": b""}[damage])
    assert "model.safetensors is damaged or incomplete" in refusal(bert)


def test_a_missing_shard_is_named(bert):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model.safetensors"}}
    (bert / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "1 of 2 weight files are missing, first model-00001-of-00002.safetensors" in refusal(bert)


def test_files_that_are_no_gguf_and_several_ggufs_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert "notes.txt is no GGUF file" in refusal(tmp_path / "notes.txt")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert "2 .gguf files: name one of them" in refusal(tmp_path)


def test_a_folder_with_one_gguf_is_that_file(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    source = find_source(tmp_path, Access())
    assert (source.gguf, source.folder) == ("a.gguf", tmp_path)


def test_a_builtin_has_no_revision():
    with pytest.raises(ModelError, match="builtin:e5-small has no revisions"):
        find_source("builtin:e5-small", Access(revision="main"))


def test_names_for_reports_carry_no_absolute_path(bert, monkeypatch):
    monkeypatch.chdir(bert.parent)
    shutil.copytree("bert", "runs/final")
    assert find_source(bert, Access()).name == "bert"
    assert find_source("runs/final", Access()).name == "runs/final"
    assert find_source("../" + bert.parent.name + "/bert", Access()).name == "bert"
    assert display_name(bert / "x.gguf") == "x.gguf"
