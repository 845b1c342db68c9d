"""A model's outline: what load_model would find, without its weights."""

import pytest
import torch
import transformers

from probe.errors import ModelError
from probe.models import load_model
from probe.outlines import model_outline
from tests.tiny import FAMILIES, tiny_bert, tiny_gpt2, tiny_llama


def without_weights(folder):
    for path in folder.glob("*.safetensors*"):
        path.unlink()


@pytest.mark.parametrize("head", ["none", "lm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_outline_says_what_the_loaded_model_says(tmp_path, family, head):
    FAMILIES[family](tmp_path, head=True)
    loaded = load_model(tmp_path / family, head=head)
    without_weights(tmp_path / family)
    outline = model_outline(tmp_path / family, head=head)
    kept = [name for name, _ in loaded.model.named_modules()]
    assert [name for name, _ in outline.shell.named_modules() if "pooler" not in name] == kept
    pooler = sum(weight.numel() for name, weight in outline.shell.named_parameters() if "pooler" in name)
    assert outline.parameters - pooler == loaded.model.num_parameters()
    assert (outline.kind, outline.max_positions) == (loaded.kind, loaded.max_positions)
    assert outline.tokenizer("苹果")["input_ids"] == loaded.tokenizer("苹果")["input_ids"]
    assert outline.config.to_dict()["model_type"] == loaded.backbone.config.model_type


def test_an_outline_holds_no_numbers_and_its_weights_are_never_opened(tmp_path, monkeypatch):
    tiny_llama(tmp_path)

    def refuse(*_, **__):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", refuse)
    monkeypatch.setattr("safetensors.safe_open", refuse)
    outline = model_outline(str(tmp_path / "llama"), head="lm")
    assert {weight.device for weight in outline.shell.parameters()} == {torch.device("meta")}
    with pytest.raises(AssertionError, match="weights were loaded"):
        load_model(tmp_path / "llama")


def test_the_outline_of_an_adapter_is_that_of_its_base_with_its_weights_absent(tmp_path):
    import peft

    model, _ = tiny_llama(tmp_path)
    model.name_or_path = str(tmp_path / "llama")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    adapted.save_pretrained(tmp_path / "adapter")
    without_weights(tmp_path / "llama")
    outline = model_outline(tmp_path / "adapter", head="lm")
    assert outline.origin["adapter"] == "LORA" and outline.kind == "decoder"


def test_what_can_be_seen_without_weights_is_refused_in_one_line(tmp_path):
    tiny_bert(tmp_path)
    _, other = tiny_gpt2()
    other.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").unlink(missing_ok=True)
    with pytest.raises(ModelError, match="the tokenizer belongs to another model") as error:
        model_outline(tmp_path / "bert")
    assert "\n" not in str(error.value)
    with pytest.raises(ModelError, match="no such model"):
        model_outline(tmp_path / "nothing")
