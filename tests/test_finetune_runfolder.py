"""A finished run opened again: the same model, or refused with what is not as the run left it."""

import json
import shutil

import pytest
import torch
from peft import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from finetune.errors import ConfigError, TrainingError
from finetune.runfolder import open_run_folder
from probe import load_model
from tests.finished import classifier, language_model, sense_reader


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {"lm": language_model(folder / "lm"), "sense": sense_reader(folder / "sense")}


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of the language model's run that a test may spoil."""
    return shutil.copytree(runs["lm"], tmp_path / "run")


IDS = torch.tensor([[2, 270, 280, 290, 275]])


def logits(model):
    with torch.inference_mode():
        return model(input_ids=IDS).logits


def test_the_run_is_opened_with_its_configuration_heads_and_weights(runs):
    run = open_run_folder(runs["lm"], device="cpu")
    assert run.config.task == "causal-lm" and run.config.out == str(runs["lm"]) and run.labels == ()
    assert run.heads == {2: (0, 1, 2, 3)}
    saved = load_file(runs["lm"] / "adapter_model.safetensors")
    loaded = get_peft_model_state_dict(run.model)
    assert saved.keys() == loaded.keys() and all(torch.equal(saved[name], loaded[name]) for name in saved)
    assert any(bool(saved[name].any()) for name in saved if "lora_B" in name)
    assert not run.model.training and not any(weight.requires_grad for weight in run.model.parameters())


def test_with_the_adapter_off_it_is_the_base_to_the_last_bit(runs):
    run = open_run_folder(runs["lm"], device="cpu")
    base = load_model(run.config.model, device="cpu", dtype="float32", head="lm").model
    with run.base() as off:
        assert torch.equal(logits(off), logits(base))
    assert not torch.equal(logits(run.model), logits(base))


def test_a_reading_head_comes_back_as_it_was_trained(runs):
    run = open_run_folder(runs["sense"], device="cpu")
    saved = load_file(runs["sense"] / "reading_head.safetensors")
    assert run.labels == ("company", "fruit")
    assert torch.equal(run.model.reading_head.out.weight, saved["out.weight"])


@pytest.mark.parametrize("task", ["classification", "masked-lm"])
def test_a_head_that_was_drawn_at_random_is_the_same_one_when_opened_again(tmp_path, task):
    folder = classifier(tmp_path, task=task)
    ids = torch.tensor([[2, 30, 31, 32, 3]])
    with torch.inference_mode():
        one, other = (open_run_folder(folder, device="cpu").model(input_ids=ids).logits for _ in range(2))
    assert torch.equal(one, other)


def test_the_card_of_a_run_has_the_metadata_that_the_hub_reads(runs):
    card = (runs["lm"] / "README.md").read_text("utf-8")
    assert card.startswith("---\nbase_model: ") and "\nlibrary_name: peft\n" in card


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "README.md"])
def test_a_tampered_file_is_refused_by_name(copied, name):
    content = (copied / name).read_bytes()
    (copied / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(TrainingError, match=f"{name} is not the one that the run wrote"):
        open_run_folder(copied, device="cpu")


def test_a_run_without_a_hash_of_its_weights_is_refused(copied):
    told = json.loads((copied / "adapter.json").read_text("utf-8"))
    del told["hashes"]["adapter_model.safetensors"]
    (copied / "adapter.json").write_text(json.dumps(told))
    with pytest.raises(TrainingError, match=r"no hash of adapter_model.safetensors"):
        open_run_folder(copied, device="cpu")


def test_an_adapter_with_a_tensor_too_few_is_refused_even_with_a_hash_that_fits(copied):
    import hashlib

    path = copied / "adapter_model.safetensors"
    saved = load_file(path)
    lost = sorted(saved)[0]
    save_file({name: tensor for name, tensor in saved.items() if name != lost}, path)
    told = json.loads((copied / "adapter.json").read_text("utf-8"))
    told["hashes"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (copied / "adapter.json").write_text(json.dumps(told))
    with pytest.raises(TrainingError, match="1 tensors of the adapter do not fit its base"):
        open_run_folder(copied, device="cpu")


def test_another_base_under_the_same_name_is_refused(copied, runs, tmp_path):
    from tests.tiny import tiny_llama

    base = runs["lm"].parent / "llama"
    kept = shutil.copytree(base, tmp_path / "kept")
    try:
        tiny_llama(runs["lm"].parent, seed=5)
        with pytest.raises(TrainingError, match="is not the model that the run was trained on"):
            open_run_folder(copied, device="cpu")
    finally:
        shutil.copytree(kept, base, dirs_exist_ok=True)


def test_a_run_that_did_not_end_and_a_folder_that_is_none_are_told_apart(copied, tmp_path):
    (copied / "manifest.json").unlink()
    with pytest.raises(TrainingError, match="did not come to its end: go on with `finetune train --resume`"):
        open_run_folder(copied)
    with pytest.raises(TrainingError, match="no run"):
        open_run_folder(tmp_path / "nowhere")


def test_a_configuration_that_was_changed_afterwards_is_refused_with_the_difference(copied):
    text = (copied / "config.yaml").read_text("utf-8")
    (copied / "config.yaml").write_text(text.replace("seed: 0\n", "seed: 7\n"), encoding="utf-8")
    with pytest.raises(ConfigError, match="seed: 0 then, 7 now"):
        open_run_folder(copied)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"config": 3}'])
def test_a_damaged_manifest_is_one_clear_line(copied, content):
    (copied / "manifest.json").write_text(content)
    with pytest.raises(TrainingError, match=r"manifest.json is") as caught:
        open_run_folder(copied)
    assert "\n" not in str(caught.value)
