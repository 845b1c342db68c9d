"""The self-check passes on sound families and fails, by name, on every fault that is planted."""

import pytest
import torch
from transformers import AttentionMaskInterface

from probe import labels, rowtap
from probe.models import model_from_parts
from probe.routes import route_of
from probe.selfcheck import check_model
from tests.tiny import FAMILIES


def loaded(family, **changes):
    model, tokenizer = FAMILIES[family](head=False, **changes)
    return model_from_parts(model, tokenizer, name=f"tiny {family}")


def failures(model):
    return {item.name for item in check_model(model).items if item.status == "fail"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_check_passes_or_says_why_it_was_skipped(family):
    report = check_model(loaded(family))
    assert report.passed and report.path == "tap"
    names = [item.name for item in report.items]
    assert len(names) == len(set(names)) >= 10
    assert {item.name for item in report.items if item.status == "skip"} <= {"padding left"}
    assert all(item.why for item in report.items)


def test_half_precision_has_its_own_tolerance():
    model, tokenizer = FAMILIES["llama"](head=False)
    report = check_model(model_from_parts(model.to(torch.bfloat16), tokenizer, name="half"))
    assert report.passed
    (precision,) = [item for item in report.items if item.name == "precision"]
    assert precision.value == torch.finfo(torch.bfloat16).eps


def test_a_tap_that_ignores_padding_is_caught(monkeypatch):
    mapping = dict(AttentionMaskInterface._global_mapping)
    monkeypatch.setattr(AttentionMaskInterface, "_global_mapping", mapping)
    mapping.pop(rowtap.IMPLEMENTATION)
    assert "padding right" in failures(loaded("bert"))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (lambda rows: rows * 1.001, "rows sum to one"),
        (lambda rows: rows.roll(1, dims=1), "rows = eager formula"),
        (lambda rows: rows.roll(1, dims=-1), "end to end = eager"),
        (lambda rows: rows + 1e-5, "rows = eager formula"),
        (lambda rows: rows * float("nan"), "rows sum to one"),
        (lambda rows: rows.roll(1, dims=1), "rows × values = output"),
    ],
    ids=["scaled", "heads moved", "keys moved", "a little off", "not finite", "wrong values"],
)
def test_wrong_rows_are_caught(monkeypatch, fault, expected):
    right = rowtap.attention_rows
    monkeypatch.setattr(rowtap, "attention_rows", lambda *args, **kwargs: fault(right(*args, **kwargs)))
    assert expected in failures(loaded("llama"))


def test_a_causal_model_that_sees_later_tokens_is_caught():
    model = loaded("gpt2")
    route_of(model)
    for module in model.backbone.modules():
        if type(module).__name__ == "GPT2Attention":
            forward = module.forward

            def blind(*args, forward=forward, **kwargs):
                kwargs["attention_mask"] = torch.ones(1, 1, 1, 1, dtype=torch.bool)
                return forward(*args, **kwargs)

            module.forward = blind
    assert "causality" in failures(model)


def test_a_configuration_that_names_more_layers_than_there_are_is_caught():
    model = loaded("bert")
    model.backbone.config.num_hidden_layers = 5
    assert "layers counted" in failures(model)


def test_exchanged_layer_labels_are_caught(monkeypatch):
    right = labels._index
    monkeypatch.setattr(labels, "_index", lambda name: {0: 1, 1: 0}.get(right(name), right(name)))
    assert "layer labels" in failures(loaded("bert"))


def test_the_eager_path_is_checked_too_and_says_so():
    import transformers

    from tests.tiny import byte_level_tokenizer

    tokenizer = byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|pad|>")
    config = transformers.BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=2, n_head=4)
    report = check_model(model_from_parts(transformers.BloomModel(config).eval(), tokenizer, name="bloom"))
    assert report.path == "eager" and report.passed
    by_name = {item.name: item for item in report.items}
    assert by_name["rows sum to one"].status == by_name["padding right"].status == "pass"
    assert by_name["rows = eager formula"].status == "skip"
    assert "BloomModel" in by_name["layers counted"].why


def test_a_head_of_nan_fails_every_comparison_and_is_named():
    model = loaded("bert")
    with torch.no_grad():
        model.backbone.encoder.layer[1].attention.self.query.weight[8:16] = float("nan")
    report = check_model(model)
    failed = {item.name: item.why for item in report.items if item.status == "fail"}
    assert {"rows = eager formula", "end to end = eager", "padding right", "rows × values = output"} <= failed.keys()
    assert failed["rows sum to one"] == "weights of encoder.layer.1.attention.self, head 1 are not finite numbers"


def test_a_model_of_another_implementation_is_held_to_rounding_and_given_back_as_it_came():
    model, tokenizer = FAMILIES["llama"](head=False)
    model.set_attn_implementation("eager")
    report = check_model(model_from_parts(model, tokenizer, name="llama"))
    (item,) = [item for item in report.items if item.name == "output unchanged"]
    assert report.passed and item.bound == 1e-5 and "came with eager and computes SDPA" in item.why
    assert model.config._attn_implementation == "eager"
