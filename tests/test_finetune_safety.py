"""What a folder or a text from outside may not do: run code, write markup, take files along, mix two runs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from filelock import FileLock, Timeout

from finetune.__main__ import run as finetune
from finetune.adapters import CardFacts, card_of, states_terms
from finetune.batches import collator_of
from finetune.begun import CHECKPOINTS
from finetune.config import config_of
from finetune.errors import ConfigError, TrainingError
from finetune.parcel import parcel_of
from finetune.preflight import inspect_run
from finetune.runfolder import open_run_folder
from finetune.sweep import sweep
from finetune.train import train
from probe import CijingError, load_model
from tests.finished import PAIRS, language_model, lines, sense_texts
from tests.tiny import tiny_bart, tiny_gpt2, tiny_t5


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
        )
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


# ---- one folder, one run ---------------------------------------------------------------------------------------


def again(run, out=None):
    """The run's configuration, to be trained in the same folder."""
    told = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    return config_of({**told, "out": str(out or run)})


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_another_process_trains_in_is_left_alone(made, tmp_path, resume):
    out = tmp_path / "run"
    if resume:
        shutil.copytree(made, out)
    out.mkdir(exist_ok=True)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(out / ".lock")], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline()
        before = sorted(path.name for path in out.iterdir())
        with pytest.raises(TrainingError, match=r"^\S+ is being trained by another process: [^\n]*$"):
            train(again(made, out), resume=resume, device="cpu")
        assert sorted(path.name for path in out.iterdir()) == before
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert (out / ".lock").is_file()  # a killed run leaves it, and it is in nobody's way
    train(again(made, out), resume=resume, device="cpu")
    assert not (out / ".lock").exists()


HOLD = """
import sys, time
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print(1, flush=True)
time.sleep(60)
"""


def test_a_run_holds_its_folder_to_its_end(made, tmp_path):
    seen = []

    def look(stage, done, total):
        lock = FileLock(tmp_path / "run" / ".lock")
        with pytest.raises(Timeout):
            lock.acquire(timeout=0)
        seen.append(stage)

    train(again(made, tmp_path / "run"), device="cpu", progress=look)
    assert "training" in seen


def test_a_sweep_holds_its_folder_too(made, tmp_path):
    folder = tmp_path / "sweep"
    folder.mkdir()
    with FileLock(folder / ".lock"), pytest.raises(TrainingError, match="is being swept by another process"):
        sweep(again(made), folder=folder, axes={"lora.r": [2]}, device="cpu")
    (folder / ".lock").touch()  # of a sweep that was killed
    assert len(sweep(again(made), folder=folder, axes={"lora.r": [2]}, device="cpu").ranked) == 1
    assert not (folder / ".lock").exists()


def test_a_folder_that_cannot_be_written_is_one_line_and_nothing_is_left(made, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=r"^\S+: cannot be written [^\n]*$"):
        train(again(made, tmp_path / "file" / "run"), device="cpu")
    changed = again(made, tmp_path / "new" / "run").model_copy(update={"model": str(tmp_path / "nowhere")})
    with pytest.raises(CijingError):
        train(changed, device="cpu")
    assert not (tmp_path / "new").exists()


# ---- what no model here can ------------------------------------------------------------------------------------


def of_senses(folder, model, task, **more):
    """A configuration on texts of two senses, without pairs of their own."""
    rows = [{name: value for name, value in row.items() if name != "pairs"} for row in sense_texts("train", 24)]
    if task == "word-in-context":
        rows = [
            {**row, "second": row["text"], "second_target": "苹果", "label": ("same", "different")[place % 2]}
            for place, row in enumerate(rows)
        ]
    return {
        "model": str(folder / model), "task": task, "out": str(folder / "run"),
        "data": {"train": lines(folder / "train.jsonl", rows), "max_length": 48, "dev_share": 0},
        "training": {"max_steps": 2, "per_device_train_batch_size": 8, "use_cpu": True}, **more,
    }  # fmt: skip


@pytest.mark.parametrize(("make", "model"), [(tiny_t5, "t5"), (tiny_bart, "bart")])
@pytest.mark.parametrize(
    ("task", "paired"), [("sense", False), ("sense", True), ("word-in-context", False), ("classification", True)]
)
def test_an_encoder_decoder_is_refused_where_one_stack_is_needed(tmp_path, make, model, task, paired):
    make(tmp_path)
    (tmp_path / "pairs.yaml").write_text(PAIRS, encoding="utf-8")
    config = config_of(
        of_senses(tmp_path, model, task, **({"pairs": {"file": str(tmp_path / "pairs.yaml")}} if paired else {}))
    )
    for run in (lambda: train(config, device="cpu"), lambda: inspect_run(config)):
        with pytest.raises(ConfigError, match=r"^[^\n]+ is an encoder-decoder, [^\n]+$"):
            run()
    assert not (tmp_path / "run").exists()


def test_an_encoder_decoder_tells_texts_apart_without_pairs(tmp_path):
    tiny_bart(tmp_path)
    config = config_of(of_senses(tmp_path, "bart", "classification"))
    assert inspect_run(config).refusal is None
    assert train(config, device="cpu").steps == 2


def test_a_classifier_is_taught_with_a_tokenizer_that_has_no_pad_token(tmp_path):
    model, tokenizer = tiny_gpt2(tmp_path)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "gpt2")
    model.config.pad_token_id = None
    model.save_pretrained(tmp_path / "gpt2")
    assert load_model(str(tmp_path / "gpt2"), device="cpu").tokenizer.pad_token_id is None
    config = config_of(of_senses(tmp_path, "gpt2", "classification"))
    assert inspect_run(config).refusal is None
    folder = train(config, device="cpu").folder
    opened = open_run_folder(folder, device="cpu")
    assert opened.model.config.pad_token_id == collator_of(opened.tokenizer, "classification").pad_id


# ---- a mark that is damaged ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"facts": []}, {"files": []}, {"facts": None}, {"files": "x"}, {"weight": None}, {"weight": "much"},
     {"weight": True}, {"heads": [1]}, {"heads": {"a": [0]}}, {"heads": {"1": 3}}, {"loss_sum": None}],
    ids=str,
)  # fmt: skip
def test_a_damaged_mark_of_a_checkpoint_is_one_line(run, change):
    newest = sorted((run / CHECKPOINTS).iterdir())[-1]
    mark = json.loads((newest / "complete.json").read_text("utf-8"))
    for name, value in change.items():
        (mark if name in mark else mark["facts"])[name] = value
    (newest / "complete.json").write_text(json.dumps(mark), encoding="utf-8")
    (run / "manifest.json").unlink()  # as if killed before its end
    with pytest.raises(TrainingError, match=r"^[^\n]*complete.json [^\n]*; remove this folder to go on[^\n]*$"):
        train(again(run), resume=True, device="cpu")
