"""What cannot be trained is refused by the look before in the very line that training gives, and early."""

import copy
import json

import pytest
import torch
import yaml

from finetune.config import config_of
from finetune.preflight import inspect_run
from finetune.train import train
from probe import CijingError, model_outline, position_rows
from tests.tiny import byte_fallback_tokenizer, tiny_bert, tiny_gemma3, tiny_llama, wordpiece_tokenizer

TEXTS = ("我喜欢苹果手机", "苹果公司发布了新品", "牛顿被苹果砸中", "手机公司发布了苹果", "我喜欢苹果但讨厌梨子")


def tiny_roberta(folder):
    """RoBERTa: of 66 positions the first two are kept for padding, so that 64 tokens fit."""
    from transformers import RobertaConfig, RobertaModel

    tokenizer = wordpiece_tokenizer()
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=66, pad_token_id=1, **sizes)
    torch.manual_seed(0)
    RobertaModel(config).save_pretrained(folder / "roberta")
    tokenizer.save_pretrained(folder / "roberta")


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusals")
    tiny_bert(folder)
    tiny_roberta(folder)
    tiny_llama(folder)
    tiny_gemma3(folder)
    rows = [{"text": text * 2, "label": "ab"[n % 2]} for n, text in enumerate(TEXTS)]
    marks = {"target": "苹果", "second_target": "苹果"}
    marked = [
        {"text": text, "second": text + "了", "label": ("same", "different")[n % 2], **marks}
        for n, text in enumerate(TEXTS)
    ]
    untaught = [{"prompt": "我喜欢苹果" * 4, "completion": "苹果"}]
    for name, given in {"texts": rows, "marked": marked, "untaught": untaught}.items():
        lines = (json.dumps(row, ensure_ascii=False) for row in given)
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    pairs = {"pairs": [{"query": "苹果", "key": "手机"}, {"query": "手机", "key": "苹果"}]}
    (folder / "pairs.yaml").write_text(yaml.safe_dump(pairs, allow_unicode=True), encoding="utf-8")
    return folder


def given(folder, model="llama", task="causal-lm", *, texts="texts", **more):
    base = {
        "model": str(folder / model), "task": task, "out": str(folder / "run"),
        "data": {"train": str(folder / f"{texts}.jsonl"), "dev_share": 0, "max_length": 32},
        "training": {"max_steps": 1, "per_device_train_batch_size": 2, "use_cpu": True, "save_strategy": "no"},
    }  # fmt: skip
    for key, value in more.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return copy.deepcopy(base)


def pairs_of(folder, **more):
    return {"file": str(folder / "pairs.yaml"), "unmet_limit": 1.0, "absent_limit": 1.0, **more}


def line_of(run):
    with pytest.raises(CijingError) as caught:
        run()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def looked_at(settings):
    found = inspect_run(config_of(settings))
    if found.refusal is not None:
        raise found.refusal


STREAM = {"streaming": True, "look_ahead": 4}
BAD = {
    "stream without steps": (
        {"data": STREAM, "training": {"max_steps": -1}}, False, "training.max_steps must say where to stop",
    ),
    "stream with workers": ({"data": STREAM, "training": {"dataloader_num_workers": 2}}, False, "allowed is 0"),
    "stream of classes without names": (
        {"data": STREAM, "model": "bert", "task": "classification"}, False, "data.labels must name the classes",
    ),
    "control of two texts": (
        {
            "model": "bert", "task": "word-in-context", "texts": "marked", "data": {"pair_encoding": "separate"},
            "attention": {"mode": "random"},
        },
        True, "attention.mode random with word-in-context: allowed with data.pair_encoding joint",
    ),
    "a head that is not there": ({"attention": {"heads": [[2, 9]]}}, True, "layers 0 to 2 of 4 heads each"),
    "a head of a layer that is not there": ({"attention": {"heads": [[7, 0]]}}, True, "attention.heads [7, 0]"),
    "a layer that is not there": ({"attention": {"layers": [1, 7]}}, True, "attention.layers [1, 7]: this model has"),
    "an adapter's layer that is not there": ({"lora": {"layers": [9]}}, False, "lora.layers [9]: this model has"),
    "an adapter's layers, none": ({"lora": {"layers": []}}, False, "lora.layers []"),
    "a map that is not there": ({"lora": {"targets": ["q_porj"]}}, False, "lora.targets 'q_porj'"),
    "another kind of model": ({"model": "bert"}, False, "does not read from left to right"),
    "no head of that kind": ({"task": "masked-lm"}, False, "the family llama has no head for it"),
    "packing without a causal mask": (
        {"model": "bert", "task": "masked-lm", "data": {"packing": True}}, False, "data.packing with task masked-lm",
    ),
    "longer than BERT's positions": (
        {"model": "bert", "task": "masked-lm", "data": {"max_length": 65}}, False, "positions for 64 tokens",
    ),
    "longer than RoBERTa's positions": (
        {"model": "roberta", "task": "classification", "data": {"max_length": 65}}, False, "positions for 64 tokens",
    ),
    "nothing to learn": ({"texts": "untaught", "data": {"max_length": 8}}, False, "the loss counts no token"),
    "pairs in the wrong order": ({"pairs": {"unmet_limit": 0.1}}, True, "pairs cannot be met"),
    "no device for 4 bit": ({"lora": {"quantize": "4bit"}}, False, "bitsandbytes"),
    "an argument that means nothing": ({"training": {"eval_strategy": "sometimes"}}, False, "training:"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_refusal_is_the_same_line_in_check_and_in_train(desk, name):
    more, paired, said = BAD[name]
    if paired:
        more = {**more, "pairs": pairs_of(desk, **more.get("pairs", {}))}
    settings = given(desk, **more)
    looked = line_of(lambda: looked_at(settings))
    trained = line_of(lambda: train(config_of(settings), device="cpu"))
    assert looked == trained and said in looked
    assert not (desk / "run").exists()


# ---- positions -------------------------------------------------------------------------------------------------


def test_a_table_of_positions_is_counted_without_the_rows_that_no_token_gets(desk):
    held = {name: position_rows(model_outline(str(desk / name)).shell) for name in ("bert", "roberta", "llama")}
    assert held == {"bert": 64, "roberta": 64, "llama": None}


@pytest.mark.parametrize("model", ["bert", "roberta"])
def test_as_long_a_text_as_is_allowed_is_trained_on(desk, tmp_path, model):
    """64 tokens on 64 usable rows: one more, and the table has no row for it."""
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(json.dumps({"text": "苹" * 90 + "a" * n, "label": "ab"[n % 2]}) for n in range(4)))
    settings = given(
        desk, model, "classification", data={"train": str(path), "max_length": 64}, out=str(tmp_path / "r")
    )
    found = inspect_run(config_of(settings))
    assert found.work.longest == 64
    assert train(config_of(settings), device="cpu").steps == 1


@pytest.mark.parametrize("model", ["llama", "gemma3"])  # rotary, and rotary with windows of 4 tokens
def test_computed_positions_are_only_warned_of(desk, tmp_path, model):
    settings = given(desk, model, data={"max_length": 300}, out=str(tmp_path / "r"))
    (caution,) = [one.text for one in inspect_run(config_of(settings)).cautions if one.name == "positions"]
    assert "beyond the 256 positions" in caution and "are split, at 256" in caution
    done = train(config_of(settings), device="cpu")
    assert caution in done.notes and done.steps == 1
    settings["data"]["max_length"] = 256
    assert not [one for one in inspect_run(config_of(settings)).cautions if one.name == "positions"]


def test_a_tokenizer_without_a_mask_is_refused_in_both(tmp_path):
    tokenizer = wordpiece_tokenizer()
    tokenizer.mask_token = None
    tiny_bert(tmp_path, head=True)
    tokenizer.save_pretrained(tmp_path / "bert")
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    settings = given(tmp_path, "bert", "masked-lm")
    looked = line_of(lambda: looked_at(settings))
    assert looked == line_of(lambda: train(config_of(settings), device="cpu")) and "no mask token" in looked
    assert byte_fallback_tokenizer().mask_token is None
