"""A finished run goes to a hub whole and clean, and comes back as the same model; nothing else leaves the machine."""

import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from finetune.__main__ import run as finetune
from finetune.adapters import card_head, check_adapter, licence_id
from finetune.config import config_of
from finetune.errors import ConfigError, TrainingError
from finetune.parcel import parcel_of, public_name
from finetune.push import HubSettings, hub_settings, push_run
from finetune.train import train
from probe import load_model
from tests.finished import PAIRS, language_model, lines, sense_reader, texts
from tests.local_hub import COMMIT, Hub, serve
from tests.tiny import tiny_llama

SECRET = "hf_write"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = Hub()
    serve(hub, monkeypatch, tmp_path / "hub-cache")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    yield hub
    hub.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run on a local folder, and the files of its base."""
    folder = tmp_path_factory.mktemp("pushed")
    run = language_model(folder)
    return run, {path.name: path.read_bytes() for path in (folder / "llama").iterdir()}


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "run")


@pytest.fixture
def based(hub, made):
    """The hub has the base model as well."""
    hub.repositories["team/base"] = made[1]
    return hub


def logits(model, tokenizer):
    ids = torch.tensor([tokenizer("我喜欢苹果手机").input_ids])
    with torch.inference_mode():
        return model(input_ids=ids).logits


def test_a_pushed_run_is_loaded_by_its_id_and_gives_the_same_logits(based, run):
    done = push_run(run, HubSettings(repository="team/chips"), base="team/base")
    assert done.commit == COMMIT and based.commits == [("team/chips", "main", sorted(done.files))]
    here, there = (load_model(name, head="lm", device="cpu") for name in (str(run), "team/chips"))
    assert there.origin["base_id"] == "team/base"
    assert torch.equal(logits(here.model, here.tokenizer), logits(there.model, there.tokenizer))
    plain = load_model("team/base", head="lm", device="cpu")
    assert (logits(plain.model, plain.tokenizer) - logits(there.model, there.tokenizer)).abs().max() > 1e-4


def test_peft_alone_loads_it_by_its_id(based, run, tmp_path):
    push_run(run, HubSettings(repository="team/chips"), base="team/base")
    here = load_model(str(run), head="lm", device="cpu")
    program = """
import sys, torch, peft, transformers
model = peft.AutoPeftModelForCausalLM.from_pretrained("team/chips").eval()
tokenizer = transformers.AutoTokenizer.from_pretrained("team/chips")
ids = torch.tensor([tokenizer("我喜欢苹果手机").input_ids])
with torch.inference_mode():
    torch.save(model(input_ids=ids).logits, sys.argv[1])
"""
    environment = {**os.environ, "HF_ENDPOINT": based.address, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "logits.pt")], env=environment, check=True)
    theirs = torch.load(tmp_path / "logits.pt", weights_only=True)
    assert torch.allclose(logits(here.model, here.tokenizer), theirs, atol=1e-6)


def test_nothing_but_the_adapter_and_its_papers_is_uploaded(based, run):
    (run / "LICENSE.txt").write_text("terms", encoding="utf-8")
    (run / "corpus.jsonl").write_text("{}", encoding="utf-8")
    (run / "optimizer.pt").write_bytes(b"pickle")
    push_run(run, HubSettings(repository="team/chips"), base="team/base")
    assert sorted(based.repositories["team/chips"]) == [
        "LICENSE.txt", "README.md", "adapter.json", "adapter_config.json", "adapter_model.safetensors",
        "manifest.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


def test_no_path_of_this_machine_is_in_what_is_uploaded_and_the_hashes_are_those_of_the_upload(based, run, tmp_path):
    push_run(run, HubSettings(repository="team/chips"), base="team/base")
    uploaded = based.repositories["team/chips"]
    for name, content in uploaded.items():
        assert b"/tmp" not in content and str(tmp_path.parent).encode() not in content, name
    told = json.loads(uploaded["manifest.json"])
    assert told["config"]["data"]["train"] == ["train.jsonl"] and told["config"]["model"] == "team/base"
    assert b'base_model: "team/base"' in uploaded["README.md"] and b"- train.jsonl (" in uploaded["README.md"]
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, content in uploaded.items():
        (folder / name).write_bytes(content)
    assert check_adapter(folder)["task"] == "causal-lm"


def test_the_reading_head_goes_along(hub, tmp_path):
    run = sense_reader(tmp_path / "sense")
    hub.repositories["team/base"] = {path.name: path.read_bytes() for path in (tmp_path / "sense" / "bert").iterdir()}
    push_run(run, HubSettings(repository="team/sense"), base="team/base")
    assert "reading_head.safetensors" in hub.repositories["team/sense"]


def test_private_and_branch_are_asked_for(based, run):
    push_run(run, HubSettings(repository="team/chips", private=True, revision="v2"), base="team/base")
    assert based.created["team/chips"]["visibility"] == "private"
    assert based.commits[0][1] == "v2" and "/api/models/team/chips/branch/v2" in based.requests


# ---- refused ---------------------------------------------------------------------------------------------------


def test_a_base_that_only_this_machine_has_is_refused_and_so_is_another_model_in_its_place(based, run, tmp_path):
    with pytest.raises(TrainingError, match=r"the base llama is a local folder, which nobody else has: .* --base"):
        push_run(run, HubSettings(repository="team/chips"))
    torch.manual_seed(9)
    tiny_llama(tmp_path / "other", hidden_size=64)
    based.repositories["team/other"] = {
        path.name: path.read_bytes() for path in (tmp_path / "other" / "llama").iterdir()
    }
    with pytest.raises(TrainingError, match=r"team/other is not the model that .* was trained on"):
        push_run(run, HubSettings(repository="team/chips"), base="team/other")
    assert "team/chips" not in based.repositories


def test_a_changed_adapter_and_an_unfinished_run_are_refused_before_the_hub_is_asked(based, run):
    weights = run / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(TrainingError, match=r"adapter_model.safetensors is not the one that the run wrote"):
        parcel_of(run, base="team/base")
    (run / "manifest.json").unlink()
    with pytest.raises(TrainingError, match=r"did not come to its end"):
        parcel_of(run, base="team/base")
    assert based.requests == []


def test_a_path_that_slips_through_stops_the_upload(run):
    told = json.loads((run / "manifest.json").read_text("utf-8"))
    told["notes"] = [f"read from {Path.cwd()}/secret/corpus"]
    (run / "manifest.json").write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(TrainingError, match=r"manifest.json would tell a path of this machine"):
        parcel_of(run, base="team/base")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("id", r"'a/b/c' is no hub id; allowed is organisation/name"),
        ("offline", r"HF_HUB_OFFLINE is set"),
        ("token", r"no token; set HF_TOKEN"),
        ("unknown", r"does not know this token"),
        ("reading", r"may not write there"),
        ("closed", r"no network \(127.0.0.1 does not answer\)"),
    ],
)
def test_what_stands_in_the_way_is_one_line(based, run, monkeypatch, capsys, setting, message):
    from huggingface_hub import constants

    arguments = ["push", str(run), "a/b/c" if setting == "id" else "team/chips"]
    told = json.loads((run / "manifest.json").read_text("utf-8"))
    told["model"]["source"] = "hub"  # the question here is the way, not the base
    (run / "manifest.json").write_text(json.dumps(told), encoding="utf-8")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", setting == "offline")
    if setting == "token":
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(run / "none"))
    elif setting in ("unknown", "reading"):
        monkeypatch.setenv("HF_TOKEN", "hf_else")
        based.tokens |= {"hf_else": False} if setting == "reading" else {}
    elif setting == "closed":
        based.close()
    told["config"]["model"] = "team/base"
    (run / "manifest.json").write_text(json.dumps(told), encoding="utf-8")
    assert finetune(arguments) == 2
    shown = capsys.readouterr().err.strip()
    assert re.search(message, shown) and len(shown.splitlines()) == 1, shown
    assert based.commits == []


# ---- licences --------------------------------------------------------------------------------------------------


def test_terms_stand_in_the_metadata():
    gemma = card_head("google/gemma-3-270m", "Gemma Terms of Use")
    assert "license: gemma" in gemma and "license_link: https://ai.google.dev/gemma/terms" in gemma
    closed = card_head("a/b", "cc-by-nc-4.0")
    assert "license: cc-by-nc-4.0" in closed and "tags: [lora, cijing, non-commercial]" in closed
    assert "tags: [lora, cijing]" in card_head("a/b", "MIT") and licence_id("MIT") == "mit"
    assert licence_id("Apache License 2.0") == "apache-2.0" and licence_id("llama3.1") == "llama3.1"
    assert licence_id("") == "unknown" and "license: other" in card_head("a/b", "a licence of our own")


def test_gemmas_notice_goes_along(run):
    told = json.loads((run / "manifest.json").read_text("utf-8"))
    told["model"] = {"source": "builtin", "licence": "Gemma Terms of Use", "original": "google/gemma-3-270m"}
    told["config"]["model"] = "builtin:gemma3-270m"
    (run / "manifest.json").write_text(json.dumps(told), encoding="utf-8")
    parcel = parcel_of(run)
    assert b"Gemma is provided under and subject to the Gemma Terms of Use" in parcel.files["NOTICE"]
    assert b'base_model: "google/gemma-3-270m"' in parcel.files["README.md"]
    assert json.loads(parcel.files["adapter_config.json"])["base_model_name_or_path"] == "builtin:gemma3-270m"
    assert "a copy" in parcel.notes[0]


def test_paths_are_told_from_hub_ids_and_shipped_names():
    assert public_name("/home/me/a corpus/x.jsonl") == "x.jsonl" and public_name("C:\\data\\x.csv") == "x.csv"
    assert public_name("data/x.jsonl") == "x.jsonl" and public_name("~/x") == "x"
    assert public_name("chips/train") == "chips/train" and public_name("team/corpus") == "team/corpus"


# ---- at the end of a run ---------------------------------------------------------------------------------------


def given(folder, made, **training):
    return {
        "model": "team/base", "task": "causal-lm", "out": str(folder / "run"),
        "data": {"train": lines(folder / "train.jsonl", texts("train", 12)), "max_length": 48, "dev_share": 0.2},
        "training": {
            "max_steps": 2, "per_device_train_batch_size": 4, "use_cpu": True, "save_strategy": "steps",
            "save_steps": 1, "eval_strategy": False, "push_to_hub": True, "hub_model_id": "team/after", **training,
        },
    }  # fmt: skip


def test_a_configuration_pushes_at_the_end_and_trainer_pushes_nothing(based, made, tmp_path):
    (tmp_path / "pairs.yaml").write_text(PAIRS, encoding="utf-8")
    done = train(config_of(given(tmp_path, made, hub_private_repo=True)), device="cpu")
    assert any("uploaded to" in note and "adapter_model.safetensors" in note for note in done.notes)
    assert [commit[:2] for commit in based.commits] == [("team/after", "main")]
    assert not any("checkpoint" in name or name.endswith(".jsonl") for name in based.repositories["team/after"])
    assert based.created["team/after"]["visibility"] == "private"
    assert based.repositories["team/after"]["README.md"].startswith(b"---\nbase_model:")


def test_the_token_stands_in_no_file_no_log_and_no_message(based, made, tmp_path, monkeypatch, capsys):
    secret = "hf_a_token_that_is_only_here"
    based.tokens[secret] = True
    monkeypatch.delenv("HF_TOKEN")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    try:
        config = config_of(given(tmp_path, made, hub_token=secret))
        train(config, device="cpu")
    finally:
        logging.getLogger().removeHandler(handler)
    assert based.commits  # by that token
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files and not [path for path in files if secret.encode() in path.read_bytes()]
    assert not [name for name, content in based.repositories["team/after"].items() if secret.encode() in content]
    shown = capsys.readouterr()
    assert secret not in repr(config) + str(config) + stream.getvalue() + shown.out + shown.err
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text("utf-8"))["training"]["push_to_hub"] is True


def test_without_a_network_the_run_is_whole_and_the_line_says_how_to_go_on(based, made, tmp_path, monkeypatch):
    monkeypatch.setattr("finetune.push.ANSWER_SECONDS", 0.5)
    load_model("team/base")  # into the cache
    based.close()
    with pytest.raises(TrainingError, match=r"no network .*; the run itself is whole, .*finetune push .*team/after"):
        train(config_of(given(tmp_path, made)), device="cpu")
    assert (tmp_path / "run" / "manifest.json").is_file()


def test_what_cannot_be_pushed_is_known_before_anything_is_loaded(hub, made, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"hub_strategy 'every_save': allowed is end"):
        hub_settings({"push_to_hub": True, "hub_model_id": "a/b", "hub_strategy": "every_save"})
    with pytest.raises(ConfigError, match=r"say where to"):
        hub_settings({"push_to_hub": True})
    with pytest.raises(ConfigError, match=r"hub_always_push"):
        hub_settings({"push_to_hub": True, "hub_model_id": "a/b", "hub_always_push": True})
    local = given(tmp_path, made) | {"model": str(made[0].parent / "llama")}
    with pytest.raises(TrainingError, match=r"the base llama is a local folder"):
        train(config_of(local), device="cpu")
    with pytest.raises(TrainingError, match=r"is no hub id"):
        train(config_of(given(tmp_path, made, hub_model_id="a/b/c")), device="cpu")
    assert hub.requests == [] and not (tmp_path / "run").exists()
