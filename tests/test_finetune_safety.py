"""What a folder or a text from outside may not do: run code, write markup, take files along, mix two runs."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from finetune.__main__ import run as finetune
from finetune.adapters import CardFacts, card_of, states_terms
from finetune.errors import TrainingError
from finetune.parcel import parcel_of
from finetune.runfolder import open_run_folder
from tests.finished import language_model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return language_model(tmp_path_factory.mktemp("safety"))


@pytest.fixture
def run(made, tmp_path):
    """A copy of a run that a test may spoil."""
    return shutil.copytree(made, tmp_path / "run")


# ---- code ------------------------------------------------------------------------------------------------------


def brings_code(run: Path, folder: Path) -> Path:
    """The run on a base whose Python code leaves a file when it is run, as its own folder says it may be."""
    settings = json.loads((run / "manifest.json").read_text("utf-8"))
    base = shutil.copytree(settings["config"]["model"], folder / "base")
    ran = folder / "ran"
    config = json.loads((base / "config.json").read_text("utf-8"))
    config |= {"model_type": "ours", "auto_map": {"AutoConfig": "ours.OursConfig"}}
    (base / "config.json").write_text(json.dumps(config), encoding="utf-8")
    code = f"open({str(ran)!r}, 'w').close()\nfrom transformers import LlamaConfig\n"
    code += "class OursConfig(LlamaConfig):\n    model_type = 'ours'\n"
    (base / "ours.py").write_text(code, encoding="utf-8")
    changed = {"model": str(base), "trust_remote_code": True}
    settings["config"] |= changed
    (run / "manifest.json").write_text(json.dumps(settings), encoding="utf-8")
    written = yaml.safe_load((run / "config.yaml").read_text("utf-8")) | changed
    (run / "config.yaml").write_text(yaml.safe_dump(written, allow_unicode=True), encoding="utf-8")
    return ran


@pytest.mark.parametrize("command", [["evaluate"], ["merge", "--out", "merged"]])
def test_a_run_folder_does_not_switch_the_code_of_its_base_on(run, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    ran = brings_code(run, tmp_path)
    assert finetune([command[0], str(run), *command[1:], "--device", "cpu"]) == 2
    assert not ran.exists()
    told = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert len(told) == 1 and "--trust-remote-code" in told[0]
    finetune([command[0], str(run), *command[1:], "--device", "cpu", "--trust-remote-code"])
    assert ran.exists()  # the flag reaches the base


def test_what_the_caller_allows_counts_and_not_what_the_folder_says(made):
    assert not open_run_folder(made, device="cpu").config.trust_remote_code
    assert open_run_folder(made, device="cpu", trust_remote_code=True).config.trust_remote_code


# ---- the card --------------------------------------------------------------------------------------------------

EVIL = (
    "a\n# Injected\u2028<script>alert(1)</script> [click](http://evil.example) ![x](y) | b | `c` \\[d] \x1b[31m\u202e"
)


def test_names_and_labels_stand_in_the_card_as_words():
    card = card_of(
        CardFacts(
            base=EVIL,
            licence=EVIL,
            task="sense",
            data=[EVIL],
            pairs=EVIL,
            arms=EVIL,
            metrics={EVIL: 1.0},
            labels=[EVIL],
            notes=[EVIL],
            steps=EVIL,
        )  # fmt: skip
    )
    body = card.split("\n---\n", 1)[1]
    headings = [line for line in body.splitlines() if line.startswith("#")]
    assert len(headings) == 9 and not any("Injected" in line for line in headings[1:])
    assert body.isprintable() is False and all(one.isprintable() or one == "\n" for one in body)
    unescaped = body.replace("\\\\", "")
    for mark in ("<", ">", "[", "]", "`c", "#" + " Injected"):
        assert unescaped.count(mark) == unescaped.count("\\" + mark), mark
    rows = [line for line in body.splitlines() if line.startswith("| a")]
    assert len(rows) == 1 and rows[0].count("|") - rows[0].count("\\|") == 3


def test_a_local_path_with_markup_in_its_name_does_not_leave_in_the_card(run, tmp_path):
    odd = "/srv/secret[1]/train#a.jsonl"
    manifest = json.loads((run / "manifest.json").read_text("utf-8"))
    manifest["config"]["data"]["train"] = [odd]
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    facts = CardFacts(base="b", licence="mit", task="causal-lm", data=[f"{odd} (3 records)"], pairs="", arms="",
                      metrics={})  # fmt: skip
    (run / "README.md").write_text(card_of(facts), encoding="utf-8")
    rehash(run)
    card = parcel_of(run, base="team/base").files["README.md"]
    assert b"secret" not in card and b"- train\\#a.jsonl (3 records)" in card


def rehash(run):
    import hashlib

    told = json.loads((run / "adapter.json").read_text("utf-8"))
    told["hashes"] = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in told["hashes"]}
    (run / "adapter.json").write_text(json.dumps(told), encoding="utf-8")


# ---- terms -----------------------------------------------------------------------------------------------------


def test_only_files_that_state_terms_go_along(run):
    for name in ("LICENSE", "NOTICE.txt", "USE_POLICY.md", "license_to_passwords.txt", "terms.key", "NOTICE.pem"):
        (run / name).write_text("x", encoding="utf-8")
    names = parcel_of(run, base="team/base").files.keys()
    assert {"LICENSE", "NOTICE.txt", "USE_POLICY.md"} <= names
    assert not {"license_to_passwords.txt", "terms.key", "NOTICE.pem"} & names
    assert states_terms("LICENSE-MODEL") and states_terms("terms_of_use.txt") and not states_terms("LICENSE\n")


@pytest.mark.parametrize("name", ["NOTICE.txt", "vocab.txt", "README.md", "manifest.json"])
def test_no_link_is_followed_out_of_the_run_folder(run, tmp_path, name):
    other = tmp_path / "private"
    other.write_bytes((run / name).read_bytes() if (run / name).is_file() else b"secret")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(other)
    with pytest.raises(TrainingError, match=rf"{name} is a link: not uploaded"):
        parcel_of(run, base="team/base")
