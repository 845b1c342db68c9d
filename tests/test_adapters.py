"""An adapter gives the same numbers live, from its folder, and merged; and is refused if a tensor does not fit."""

import json
import shutil

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from probe.errors import ModelError
from probe.models import load_model, model_from_parts
from tests.tiny import FAMILIES, tiny_bert, tiny_gpt2, tiny_llama

TARGETS = {
    "bert": ["query", "value"],
    "gpt2": ["c_attn"],
    "llama": ["q_proj", "v_proj"],
    "qwen3": ["q_proj", "o_proj"],
    "gemma3": ["q_proj", "up_proj"],
    "t5": ["q", "v"],
    "bart": ["q_proj", "v_proj"],
}
TASKS = {"bert": "FEATURE_EXTRACTION", "t5": "SEQ_2_SEQ_LM", "bart": "SEQ_2_SEQ_LM"}


def adapted(model, family, *, task="auto", **changes):
    """A LoRA whose B is not zero, so that it does something."""
    task = TASKS.get(family, "CAUSAL_LM") if task == "auto" else task
    settings = {"r": 4, "lora_alpha": 8, "target_modules": TARGETS[family], "task_type": task, **changes}
    torch.manual_seed(3)
    adapted_model = peft.get_peft_model(model, peft.LoraConfig(**settings, init_lora_weights=False)).eval()
    with torch.no_grad():  # as small as a trained one, or rounding, not the adapter, decides what is compared
        for name, weight in adapted_model.named_parameters():
            if "lora_B" in name:
                weight.mul_(0.1)
    return adapted_model


def states(loaded, text="我喜欢苹果"):
    ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
    more = {"decoder_input_ids": ids} if loaded.kind == "encoder-decoder" else {}
    with torch.no_grad():
        output = loaded.backbone(input_ids=ids, output_hidden_states=True, **more)
    parts = [output.get(name) for name in ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")]
    return torch.cat([state.flatten() for part in parts if part is not None for state in part])


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_live_folder_and_merged_give_the_same_states(tmp_path, family, head):
    model, tokenizer = FAMILIES[family](tmp_path, head=head)
    task = "FEATURE_EXTRACTION" if not head else "auto" if family != "bert" else None
    plain = states(model_from_parts(model, tokenizer, name="plain"))
    live = adapted(load_from(tmp_path / family, head), family, task=task)
    live.save_pretrained(tmp_path / "adapter")
    expected = states(model_from_parts(live, tokenizer, name="live"))

    loaded = load_model(tmp_path / "adapter")
    assert (expected - plain).abs().max() > 1e-3  # the adapter does something
    assert (states(loaded) - expected).abs().max() <= 1e-6
    assert loaded.origin["adapter"] == "LORA" and loaded.notes == ()

    merged = live.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    tokenizer.save_pretrained(tmp_path / "merged")
    difference = states(load_model(tmp_path / "merged")) - expected
    # Merging rounds W + BA to float32; the wide weights of two stacks make that up to ten times larger.
    bound = 1e-5 if family in ("t5", "bart") else 1e-6
    assert difference.abs().max() <= bound * float(expected.abs().max())


def load_from(folder, head):
    """The base as a user has it: from disk, so that PEFT writes the folder down as the base."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    return getattr(transformers, config.architectures[0]).from_pretrained(folder)


def saved_adapter(tmp_path, family="llama", *, head=True, **changes):
    FAMILIES[family](tmp_path, head=head)
    model = adapted(load_from(tmp_path / family, head), family, **changes)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def rewrite(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_live_peft_model_loads_through_load_model_too(tmp_path):
    model, tokenizer = tiny_llama()
    loaded = load_model(adapted(model, "llama"), tokenizer=tokenizer)
    assert type(loaded.model).__name__ == "PeftModelForCausalLM" and type(loaded.backbone).__name__ == "LlamaModel"


def test_the_base_may_be_named_relative_to_the_adapter_or_to_where_we_stand(tmp_path, monkeypatch):
    folder = saved_adapter(tmp_path)
    rewrite(folder, base_model_name_or_path="../llama")
    expected = states(load_model(folder))
    monkeypatch.chdir(tmp_path)
    rewrite(folder, base_model_name_or_path="./llama")
    loaded = load_model("adapter")
    assert torch.equal(states(loaded), expected)
    assert loaded.name == "adapter" and loaded.origin["base"] == "llama"
    assert str(tmp_path) not in json.dumps([*loaded.origin.values(), *loaded.notes])


@pytest.mark.real
def test_the_base_may_be_a_builtin(tmp_path):
    config = peft.LoraConfig(r=2, target_modules=["query"], task_type="FEATURE_EXTRACTION", init_lora_weights=False)
    base = load_model("builtin:e5-small")
    peft.get_peft_model(base.model, config).save_pretrained(tmp_path / "adapter")
    rewrite(tmp_path / "adapter", base_model_name_or_path="builtin:e5-small")
    loaded = load_model(tmp_path / "adapter")
    assert loaded.origin["base"] == "builtin:e5-small" and loaded.max_positions == 512
    assert any("0.98 to 0.99" in note for note in loaded.notes)
    assert loaded.fingerprint != base.fingerprint


def test_the_adapter_may_bring_its_own_tokenizer_and_needs_none(tmp_path):
    folder = saved_adapter(tmp_path)
    shutil.copy(tmp_path / "llama" / "tokenizer.json", folder)
    shutil.copy(tmp_path / "llama" / "tokenizer_config.json", folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "llama" / name).unlink()
    assert load_model(folder).tokenizer("苹果").tokens() == ["<s>", "苹果"]


def test_an_adapter_trained_on_the_base_model_also_loads_under_a_language_model_head(tmp_path):
    tiny_llama(tmp_path, head=True)
    import transformers

    base = transformers.AutoModel.from_pretrained(tmp_path / "llama")
    live = adapted(base, "llama", task="FEATURE_EXTRACTION")
    live.save_pretrained(tmp_path / "adapter")
    loaded = load_model(tmp_path / "adapter", head="lm")
    assert hasattr(loaded.model, "lm_head") and type(loaded.backbone).__name__ == "LlamaModel"
    expected = states(model_from_parts(live, loaded.tokenizer, name="live"))
    assert (states(loaded) - expected).abs().max() <= 1e-6


def test_a_classifier_saved_with_the_adapter_is_loaded_with_its_number_of_labels(tmp_path):
    import transformers

    tiny_bert(tmp_path)
    base = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "bert", num_labels=5)
    adapted(base, "bert", task="SEQ_CLS").save_pretrained(tmp_path / "adapter")
    loaded = load_model(tmp_path / "adapter")
    weight = load_file(tmp_path / "adapter" / "adapter_model.safetensors")["base_model.model.classifier.weight"]
    assert weight.shape[0] == 5
    assert torch.equal(loaded.model.base_model.model.classifier.modules_to_save["default"].weight, weight)


def test_a_tensor_that_names_no_module_is_refused(tmp_path):
    folder = saved_adapter(tmp_path)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    wrong = {name.replace("layers.0.", "layers.7."): tensor for name, tensor in tensors.items()}
    save_file(wrong, path)
    with pytest.raises(ModelError, match="name no modules of its base"):
        load_model(folder)


def test_a_tensor_that_peft_would_leave_out_is_refused(tmp_path):
    folder = saved_adapter(tmp_path)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "v_proj.lora_A" in name)
    save_file({**tensors, name.replace("v_proj", "k_proj"): tensors[name].clone()}, path)
    with pytest.raises(ModelError, match=r"1 adapter tensors do not match .*k_proj.* was not loaded"):
        load_model(folder)


def test_a_file_that_lacks_a_tensor_is_refused(tmp_path):
    folder = saved_adapter(tmp_path)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, path)
    with pytest.raises(ModelError, match="is not in the file"):
        load_model(folder)


def test_an_adapter_of_another_size_is_refused(tmp_path):
    folder = saved_adapter(tmp_path)
    shutil.rmtree(tmp_path / "llama")
    tiny_llama(tmp_path, hidden_size=64)
    with pytest.raises(ModelError, match="the adapter does not fit its base"):
        load_model(folder)


@pytest.mark.parametrize("method", ["PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING"])
def test_virtual_tokens_are_refused_with_the_reason(tmp_path, method):
    folder = saved_adapter(tmp_path)
    rewrite(folder, peft_type=method)
    with pytest.raises(ModelError, match=f"{method} adapter: its virtual tokens shift the keys"):
        load_model(folder)


def test_a_live_prefix_is_refused_too():
    model, tokenizer = tiny_gpt2()
    prefixed = peft.get_peft_model(model, peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ModelError, match="PREFIX_TUNING adapter"):
        model_from_parts(prefixed, tokenizer, name="live")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("config", "adapter_config.json is not valid JSON"),
        ("no base", "names no base model"),
        ("missing base", r"its base model cannot be had: no such model: './nowhere'"),
        ("truncated", "adapter_model.safetensors is damaged or incomplete"),
        ("pickled", r"has no adapter_model.safetensors \(adapter_model.bin is pickled"),
        ("adapter as base", "is itself an adapter"),
    ],
)
def test_a_broken_adapter_folder_is_one_line(tmp_path, damage, message):
    folder = saved_adapter(tmp_path)
    weights = folder / "adapter_model.safetensors"
    if damage == "config":
        (folder / "adapter_config.json").write_text("{")
    elif damage == "no base":
        rewrite(folder, base_model_name_or_path=None)
    elif damage == "missing base":
        rewrite(folder, base_model_name_or_path="./nowhere")
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif damage == "pickled":
        weights.rename(folder / "adapter_model.bin")
    else:
        shutil.copytree(folder, tmp_path / "second")
        rewrite(folder, base_model_name_or_path="../second")
    with pytest.raises(ModelError, match=message) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
