"""Captures as BertViz, TransformerLens, pandas and safetensors want them."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from probe.capture import capture
from probe.captures import CaptureOptions
from probe.cases import case_of
from probe.errors import OutputError
from probe.export import attention_table, bertviz_arguments, hooked_tensors, save_tensors
from probe.models import model_from_parts
from probe.routes import batch_for, eager_maps
from tests.tiny import FAMILIES, tiny_bert, tiny_llama

CASE = case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"], id="pear")


def whole(family, **options):
    model, tokenizer = FAMILIES[family](head=False)
    loaded = model_from_parts(model, tokenizer, name=family)
    (one,) = capture(loaded, [CASE], options=CaptureOptions(whole_maps=True, **options))
    return loaded, one


def own_maps(loaded, one):
    """The model's own attention tensors and output, as users of these tools have them from transformers."""
    return eager_maps(loaded, batch_for(loaded, [one.tokens.ids]), states=True)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "qwen3", "gemma3"])
def test_bertviz_gets_what_output_attentions_would_give_it(family):
    loaded, one = whole(family)
    arguments = bertviz_arguments(one)
    assert list(arguments) == ["attention", "tokens"] and isinstance(arguments["attention"], tuple)
    _, output = own_maps(loaded, one)
    for ours, theirs in zip(arguments["attention"], output.attentions, strict=True):
        assert ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-5)
    assert len(arguments["tokens"]) == ours.shape[-1] and "苹" in "".join(arguments["tokens"])


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_bertviz_gets_three_kinds_of_attention_from_an_encoder_decoder(family):
    loaded, one = whole(family)
    arguments = bertviz_arguments(one)
    names = {"encoder_attention", "decoder_attention", "cross_attention", "encoder_tokens", "decoder_tokens"}
    assert set(arguments) == names
    _, output = own_maps(loaded, one)
    for name in ("encoder", "decoder", "cross"):
        for ours, theirs in zip(arguments[f"{name}_attention"], output[f"{name}_attentions"], strict=True):
            assert ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": frozenset({1, 2})}, "holds layers 1, 2 of its encoder, but BertViz numbers layers from 0"),
        ({"heads": frozenset({0, 3})}, "holds heads 0, 3 of its encoder, but BertViz numbers heads from 0"),
    ],
)
def test_a_choice_that_bertviz_would_number_wrongly_is_refused(options, message):
    with pytest.raises(OutputError, match=message):
        bertviz_arguments(whole("bert", **options)[1])


@pytest.mark.parametrize(
    "function", [bertviz_arguments, hooked_tensors, lambda one: save_tensors(one, "no.safetensors")]
)
def test_chosen_rows_are_refused_with_the_way_out(function):
    model, tokenizer = tiny_bert()
    (one,) = capture(model_from_parts(model, tokenizer, name="b"), [CASE])
    with pytest.raises(
        OutputError, match=r"^case 'pear' holds 4 of 12 rows: capture with CaptureOptions\(whole_maps=True"
    ):
        function(one)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_transformerlens_names_hold_maps_and_the_states_around_each_block(family):
    loaded, one = whole(family)
    named = hooked_tensors(one)
    _, output = own_maps(loaded, one)
    states, last = output.hidden_states, len(output.hidden_states) - 2
    assert torch.allclose(named["hook_embed"], states[0], atol=1e-5)
    for index in range(last + 1):
        assert torch.allclose(named[f"blocks.{index}.attn.hook_pattern"], output.attentions[index], atol=1e-5)
        assert torch.allclose(named[f"blocks.{index}.hook_resid_pre"], states[index], atol=1e-4)
        if index < last:
            assert torch.equal(named[f"blocks.{index}.hook_resid_post"], named[f"blocks.{index + 1}.hook_resid_pre"])
    assert named["hook_embed"].shape == (1, len(one.tokens.ids), 32)


def test_a_state_behind_the_final_norm_is_not_called_a_residual():
    loaded, one = whole("llama")
    blocks = []
    hook = loaded.backbone.layers[-1].register_forward_hook(lambda m, a, output: blocks.append(output))
    with torch.no_grad():
        last = loaded.backbone(**batch_for(loaded, [one.tokens.ids])).last_hidden_state
    hook.remove()
    named = hooked_tensors(one)
    assert "blocks.2.hook_resid_post" not in named and torch.allclose(named["final_state"], last, atol=1e-5)
    assert not torch.allclose(last, blocks[0], atol=1e-2)  # the residual is another one indeed
    assert "blocks.2.hook_resid_post" in hooked_tensors(one, final_norm=False)
    encoder = hooked_tensors(whole("bert")[1])
    assert "blocks.2.hook_resid_post" in encoder and "final_state" not in encoder


def test_layers_keep_their_own_numbers_where_a_choice_was_captured():
    _, one = whole("llama", layers=frozenset({0, 2}))
    patterns = {name for name in hooked_tensors(one) if name.endswith("hook_pattern")}
    assert patterns == {"blocks.0.attn.hook_pattern", "blocks.2.attn.hook_pattern"}


def test_an_encoder_decoder_names_its_stacks():
    _, one = whole("t5")
    named = hooked_tensors(one)
    assert {"encoder.1.attn.hook_pattern", "decoder.1.attn.hook_pattern", "decoder.1.cross_attn.hook_pattern"} <= set(
        named
    )
    assert {"encoder.hook_embed", "decoder.0.hook_resid_pre", "decoder.final_state"} <= set(named)
    assert not any(name.startswith("blocks.") for name in named)


def test_the_long_table_has_one_line_a_weight_and_can_be_turned_back():
    model, tokenizer = tiny_llama()
    (one,) = capture(model_from_parts(model, tokenizer, name="l"), [CASE])
    table = attention_table([one])
    assert list(table.columns) == [
        "case", "stack", "layer", "head", "query", "key", "query_token", "key_token", "weight",
    ]  # fmt: skip
    assert len(table) == one.rows.size
    line = table[(table["layer"] == 2) & (table["head"] == 1) & (table["query"] == one.target[0]) & (table["key"] == 1)]
    assert line["weight"].item() == one.rows[2, 1, one.queries.index(one.target[0]), 1]
    assert line["query_token"].item() == "苹果" and line["key_token"].item() == one.tokens.labels[1]
    sums = table.groupby(["case", "stack", "layer", "head", "query"])["weight"].sum()
    assert np.allclose(sums, 1.0, atol=1e-5)
    assert len(attention_table([one, one])) == 2 * len(table)
    with pytest.raises(OutputError, match="no capture"):
        attention_table([])


def test_a_safetensors_file_gives_back_every_tensor_and_says_what_it_holds(tmp_path):
    _, one = whole("bart")
    path = tmp_path / "new" / "pear.safetensors"
    save_tensors(one, path)
    expected = hooked_tensors(one)
    with safe_open(str(path), framework="pt") as stored:
        assert set(stored.keys()) == set(expected)
        assert all(torch.equal(stored.get_tensor(name), tensor) for name, tensor in expected.items())
        said = stored.metadata()
    assert said["format"] == "cijing-export-1" and json.loads(said["text"]) == CASE.text
    assert json.loads(said["tokens"]) == list(one.tokens.labels)
    assert json.loads(said["modules"])["cross.1"] == "decoder.layers.1.encoder_attn"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write the export \("):
        save_tensors(whole("bert")[1], tmp_path / "file" / "x.safetensors")
