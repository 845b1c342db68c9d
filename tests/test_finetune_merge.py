"""Merging: the same logits, or nothing at all."""

import hashlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from finetune.adapters import MergeCheck, compare_merged
from finetune.errors import TrainingError
from finetune.merge import TEXTS, batches_of, facts_of, merge_run, refuse_unequal
from finetune.runfolder import open_run_folder
from probe import load_model
from tests.finished import classifier, language_model, sense_reader


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged")
    return {"lm": language_model(folder / "lm"), "sense": sense_reader(folder / "sense")}


@pytest.fixture
def copied(runs, tmp_path):
    return shutil.copytree(runs["lm"], tmp_path / "run")


def test_a_dozen_texts_are_compared():
    assert len(set(TEXTS)) == 12


@pytest.mark.parametrize("name", ["lm", "sense"])
def test_the_merged_folder_opens_as_a_model_that_gives_the_same(runs, tmp_path, name):
    check = merge_run(runs[name], tmp_path / "out", device="cpu")
    assert check.equal and check.texts == 12 and 0 < check.largest < 1e-3 < check.scale
    run = open_run_folder(runs[name], device="cpu")
    merged = load_model(str(tmp_path / "out"), device="cpu", head="lm" if name == "lm" else "none")
    again = compare_merged(run.model, merged.model, batches_of(merged, ["我喜欢苹果手机"]))
    assert again.equal
    with run.base() as base:  # the comparison would see it if nothing had been merged
        assert not compare_merged(base, merged.model, batches_of(merged, ["我喜欢苹果手机"])).equal
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_run_itself_is_not_changed_by_being_merged(runs, tmp_path):
    before = {path: path.read_bytes() for path in runs["lm"].iterdir() if path.is_file()}
    merge_run(runs["lm"], tmp_path / "out", device="cpu")
    assert before == {path: path.read_bytes() for path in runs["lm"].iterdir() if path.is_file()}


def test_head_card_terms_and_hashes_travel(runs, tmp_path):
    (runs["sense"].parent / "bert" / "LICENSE.txt").write_text("terms of the base", encoding="utf-8")
    merge_run(runs["sense"], tmp_path / "out", device="cpu")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "reading_head.safetensors", "README.md", "LICENSE.txt", "merged.json"} <= names
    assert not any(name.endswith((".bin", ".pt", ".part")) or "adapter" in name for name in names)
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "library_name: transformers" in card and "terms travel with this model" in card and "On 12 texts" in card
    told = facts_of(tmp_path / "out")
    assert told["labels"] == ["company", "fruit"] and told["reading_head"] == "reading_head.safetensors"
    weights = tmp_path / "out" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(TrainingError, match=r"model.safetensors is not the one that was merged"):
        facts_of(tmp_path / "out")


@pytest.mark.parametrize("task", ["classification", "masked-lm"])
def test_a_model_with_a_head_of_its_own_is_merged_with_that_head(tmp_path, task):
    folder = classifier(tmp_path / "c", task=task)
    assert merge_run(folder, tmp_path / "out", device="cpu").equal
    if task == "classification":
        run = open_run_folder(folder, device="cpu")
        merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
        assert compare_merged(run.model, merged, batches_of(run.learner.loaded, ["我喜欢苹果"])).equal
        assert merged.config.id2label == {0: "company", 1: "fruit"}


def planted(folder, change):
    """Change the adapter's tensors and sign them anew, as a run of such weights would have left them."""
    path = folder / "adapter_model.safetensors"
    save_file({name: change(name, tensor) for name, tensor in load_file(path).items()}, path)
    told = json.loads((folder / "adapter.json").read_text("utf-8"))
    told["hashes"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "adapter.json").write_text(json.dumps(told))


def cancelling(name, tensor):
    """Three large ranks that add up to nothing but rounding, which is another one when they are added first."""
    found = torch.zeros_like(tensor)
    drawn = torch.randn(max(tensor.shape), generator=torch.Generator().manual_seed(len(name)))
    if "lora_A" in name:
        found[0], found[1] = 1e4 * drawn[: tensor.shape[1]], 3e4 * drawn[: tensor.shape[1]].flip(0)
        found[2] = found[0] + found[1]
    else:
        found[:, :2] = 1e4 * drawn[: len(tensor), None]
        found[:, 2] = -found[:, 0]
    return found


def test_a_merge_that_rounding_makes_another_model_is_refused_and_leaves_nothing(copied, tmp_path):
    planted(copied, cancelling)
    with pytest.raises(TrainingError, match=r"merged and unmerged model differ by .* not merged"):
        merge_run(copied, tmp_path / "out", device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(("value", "said"), [(float("nan"), "holds what is no number"), (1e30, "not merged")])
def test_a_merge_with_numbers_that_are_none_is_refused(copied, tmp_path, value, said):
    planted(copied, lambda name, tensor: torch.full_like(tensor, value))
    with pytest.raises(TrainingError, match=said):
        merge_run(copied, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("largest", "scale", "equal"), [(9e-4, 10.0, True), (2e-3, 10.0, False), (9e-5, 0.01, True)])
def test_what_is_equal_depends_on_how_large_the_logits_are(largest, scale, equal):
    check = MergeCheck(largest=largest, scale=scale, texts=12)
    assert check.equal is equal
    if not equal:
        with pytest.raises(TrainingError, match=r"one and other differ by 0.002 where logits reach 10"):
            refuse_unequal(check, "one and other")


def test_a_tampered_adapter_is_not_merged(copied, tmp_path):
    path = copied / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(TrainingError, match="is not the one that the run wrote"):
        merge_run(copied, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_is_left_alone(runs, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(TrainingError, match="is not empty"):
        merge_run(runs["lm"], tmp_path, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_cannot_be_made_is_one_clear_line(runs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="cannot be written"):
        merge_run(runs["lm"], tmp_path / "file" / "out", device="cpu")


def test_the_commands_evaluate_and_merge_do_what_they_say(runs, tmp_path, capsys):
    from finetune.__main__ import run

    assert run(["merge", str(runs["lm"]), "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0
    assert "largest difference" in capsys.readouterr().err
    assert run(["evaluate", str(runs["lm"]), "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert "perplexity" in told and "missing: questions" in told
    assert run(["merge", str(tmp_path), "--out", str(tmp_path / "b")]) == 2
