"""A hub is asked once and quickly; what cannot be had is one line, what is cached needs no network.

The hub here is the one of tests/local_hub.py.
"""

import time

import pytest
from huggingface_hub import constants

from probe.errors import ModelError
from probe.hub import hub_copy
from probe.models import load_model
from probe.outlines import model_outline
from tests.local_hub import COMMIT, Hub, serve
from tests.tiny import tiny_bert


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub()
    serve(hub, monkeypatch, tmp_path / "hub-cache")
    yield hub
    hub.close()


@pytest.fixture
def bert(hub, tmp_path):
    tiny_bert(tmp_path)
    folder = tmp_path / "bert"
    hub.repositories["team/tiny-bert"] = {path.name: path.read_bytes() for path in folder.iterdir()} | {
        "pytorch_model.bin": b"pickle",
        "modeling_tiny.py": b"raise SystemExit('ran')",
        "onnx/model.safetensors": b"another format",
    }
    return folder


def test_a_hub_model_loads_with_its_revision_and_licence_and_without_code_or_pickles(hub, bert):
    loaded = load_model("team/tiny-bert")
    assert loaded.name == "team/tiny-bert"
    assert (loaded.origin["source"], loaded.origin["revision"], loaded.origin["licence"]) == (
        "hub",
        COMMIT,
        "apache-2.0",
    )
    assert loaded.fingerprint == load_model(bert).fingerprint
    fetched = [path for path in hub.requests if "/resolve/" in path]
    assert fetched and not any(path.endswith((".bin", ".py")) or "onnx" in path for path in fetched)


def test_without_a_network_the_cache_is_enough(hub, bert):
    first = load_model("team/tiny-bert").fingerprint
    hub.close()
    again = load_model("team/tiny-bert")
    assert again.fingerprint == first and again.origin["revision"] == COMMIT


def test_python_files_come_only_when_asked_for(hub, bert):
    assert not list(hub_copy("team/tiny-bert").folder.glob("*.py"))
    assert list(hub_copy("team/tiny-bert", code=True).folder.glob("*.py"))


def test_no_network_and_no_cache_is_said_within_seconds(hub, monkeypatch):
    hub.close()
    start = time.monotonic()
    with pytest.raises(
        ModelError, match=r"team/none: no network \(127.0.0.1 does not answer\) and it is not in the cache"
    ):
        load_model("team/none")
    assert time.monotonic() - start < 10


def test_a_hub_that_accepts_and_never_answers_is_given_up(tmp_path, monkeypatch):
    import socket

    from probe import hub as module

    silent = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises(ModelError, match="no network"):
        hub_copy("team/none")
    assert time.monotonic() - start < 8
    silent.close()


def test_offline_mode_is_named_as_the_reason(hub, bert, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set and it is not in the cache"):
        load_model("team/tiny-bert")
    assert hub.requests == []


def test_a_model_that_does_not_exist_is_not_mistaken_for_a_missing_network(hub):
    with pytest.raises(ModelError, match="no model 'team/none' on the hub"):
        load_model("team/none")


def test_a_missing_revision_and_a_gated_model_are_told_apart(hub, bert):
    with pytest.raises(ModelError, match="team/tiny-bert has no revision 'v9'"):
        load_model("team/tiny-bert", revision="v9")
    hub.repositories["team/secret"] = {}
    with pytest.raises(ModelError, match="team/secret is gated: accept its terms"):
        load_model("team/secret")


def test_weights_that_cannot_be_used_are_refused_before_the_download(hub):
    hub.repositories["team/pickled"] = {"config.json": b"{}", "pytorch_model.bin": b""}
    hub.repositories["team/gguf"] = {"model-q4.gguf": b"GGUF"}
    with pytest.raises(ModelError, match=r"no safetensors weights; it has pickled weights \(pytorch_model.bin\)"):
        load_model("team/pickled")
    with pytest.raises(ModelError, match=r"download model-q4\.gguf and give its path"):
        load_model("team/gguf")
    assert not any("/resolve/" in path for path in hub.requests)


def test_an_outline_of_a_hub_model_fetches_no_weights(hub, bert):
    outline = model_outline("team/tiny-bert")
    assert outline.kind == "encoder" and outline.origin["id"] == "team/tiny-bert"
    assert not [path for path in hub.requests if "/resolve/" in path and path.endswith(".safetensors")]
    load_model("team/tiny-bert")
    assert [path for path in hub.requests if "/resolve/" in path and path.endswith("/model.safetensors")]
