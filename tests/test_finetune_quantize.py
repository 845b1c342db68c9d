"""QLoRA where bitsandbytes is: LoRA on a base in 4 bit, rows as eager's, an adapter for anyone; else refused."""

import dataclasses
import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file

from finetune.config import LoraConfig, config_of
from finetune.errors import ConfigError
from finetune.footprint import Shape, memory_of
from finetune.learner import refuse_unfit
from finetune.merge import merge_run
from finetune.runfolder import open_run_folder
from finetune.train import train
from probe import check_model, load_model
from tests.finished import language_model

needs = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed: 4 bit is not run here"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return language_model(
        tmp_path_factory.mktemp("qlora"), lora={"quantize": "4bit"}, training__gradient_checkpointing=True,
        attention__norms_every=1, training__logging_steps=1,
    )  # fmt: skip


@needs
def test_the_base_is_in_four_bit_and_the_attention_loss_has_its_gradient(run):
    opened = open_run_folder(run, device="cpu")
    kinds = {type(module.base_layer).__name__ for module in opened.model.modules() if hasattr(module, "base_layer")}
    assert kinds == {"Linear4bit"}
    state = next(m.base_layer.weight for m in opened.model.modules() if hasattr(m, "base_layer")).quant_state
    assert state.quant_type == "nf4" and state.nested
    assert type(opened.model.get_base_model().lm_head) is torch.nn.Linear
    head, *rows = (run / "tables" / "steps.csv").read_text("utf-8").splitlines()
    place = head.split(",").index("attention_gradient")
    norms = [float(row.split(",")[place]) for row in rows if row.split(",")[place]]
    assert norms and all(norm > 0 for norm in norms)


@needs
def test_rows_of_the_tap_equal_eagers_of_the_same_quantised_model(run):
    opened = open_run_folder(run, device="cpu")
    found = check_model(load_model(opened.model, tokenizer=opened.tokenizer))
    assert found.passed and found.path == "tap"


@needs
def test_the_adapter_is_one_for_peft_and_the_quantised_model_is_near_it(run):
    whole = load_model(str(run), head="lm", device="cpu")
    opened = open_run_folder(run, device="cpu")
    ids = torch.tensor([whole.tokenizer("我喜欢苹果手机").input_ids])
    with torch.inference_mode():
        one, other = (model(input_ids=ids).logits for model in (whole.model, opened.model))
    assert 1e-5 < (one - other).abs().max() < one.abs().max()
    saved = load_file(run / "adapter_model.safetensors")
    assert all("lora" in name and tensor.dtype == torch.float32 for name, tensor in saved.items())


@needs
def test_the_run_remembers_it(run):
    told = json.loads((run / "manifest.json").read_text("utf-8"))
    assert told["config"]["lora"]["quantize"] == "4bit" and "4 bit" in (run / "README.md").read_text("utf-8")
    marks = [json.loads(path.read_text("utf-8")) for path in run.glob("checkpoints/*/complete.json")]
    assert marks and all(mark["facts"]["quantize"] == "4bit" for mark in marks)
    changed = {**told["config"], "out": str(run), "lora": {**told["config"]["lora"], "quantize": "none"}}
    with pytest.raises(ConfigError, match=r"lora.quantize: 4bit then, none now"):
        train(config_of(changed), resume=True, device="cpu")


@needs
def test_a_merge_goes_into_the_published_weights_and_says_by_how_much_it_differs(run, tmp_path):
    check = merge_run(run, tmp_path / "out", device="cpu")
    assert check.equal and check.quantised is not None and check.quantised > 10 * check.largest
    assert "merged into the published weights" in (tmp_path / "out" / "README.md").read_text("utf-8")
    merged, whole = (load_model(str(name), head="lm", device="cpu") for name in (tmp_path / "out", run))
    ids = torch.tensor([whole.tokenizer("我喜欢苹果手机").input_ids])
    with torch.inference_mode():
        assert torch.allclose(merged.model(input_ids=ids).logits, whole.model(input_ids=ids).logits, atol=1e-4)


def test_without_bitsandbytes_it_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = config_of({
        "model": "m", "task": "causal-lm", "data": {"train": "x.jsonl"},
        "lora": LoraConfig(quantize="4bit").model_dump(),
    })  # fmt: skip
    with pytest.raises(ConfigError, match=r"^lora.quantize 4bit needs bitsandbytes, which is not installed: pip"):
        refuse_unfit(config, kind="decoder", settings=None)


def test_the_memory_of_weights_in_four_bit_is_about_an_eighth():
    shape = Shape(layers=2, hidden=8, attention=8, ffn=16, heads=2, vocabulary=0, maps_kept=False)
    whole = memory_of(shape, parameters=10**6, trained=10, tokens=4, length=4)
    small = memory_of(shape, parameters=10**6, trained=10, tokens=4, length=4, quantised=10**6)
    assert small.weights / whole.weights == pytest.approx(0.129, abs=1e-3)
    assert dataclasses.replace(small, weights=whole.weights) == whole
