"""Captures as BertViz, TransformerLens, pandas and safetensors want them."""

import json
import os
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

from probe.capture import capture
from probe.captures import CaptureOptions, load_capture, save_capture
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


@pytest.mark.parametrize(
    ("family", "normed"),
    [("bert", []), ("gpt2", ["decoder"]), ("llama", ["decoder"]), ("t5", ["decoder", "encoder"]), ("bart", [])],
)
def test_a_state_behind_a_final_norm_is_not_called_a_residual(family, normed):
    loaded, one = whole(family)
    named = hooked_tensors(one)
    assert sorted(one.final_norms) == normed
    prefixes = {"encoder": "encoder.", "decoder": "decoder."} if len(one.states) > 1 else dict.fromkeys(one.states, "")
    _, output = own_maps(loaded, one)
    for stack, prefix in prefixes.items():
        states = output.hidden_states if prefix == "" else output[f"{stack}_hidden_states"]
        last = f"{prefix or 'blocks.'}{len(states) - 2}.hook_resid_post"
        assert (last in named) == (stack not in normed) and (f"{prefix}final_state" in named) == (stack in normed)
        kept = named[last if last in named else f"{prefix}final_state"]
        assert torch.allclose(kept, states[-1], atol=1e-4)


def test_what_stands_behind_a_final_norm_is_kept_on_disk(tmp_path):
    _, one = whole("llama")
    save_capture(one, tmp_path / "one.safetensors")
    assert load_capture(tmp_path / "one.safetensors").final_norms == frozenset({"decoder"})


def test_an_encoder_with_a_final_norm_is_seen_and_what_is_not_known_counts_as_one():
    config = transformers.ModernBertConfig(
        vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    loaded = model_from_parts(transformers.ModernBertModel(config), tiny_bert()[1], name="modern")
    (one,) = capture(loaded, [CASE], options=CaptureOptions(whole_maps=True))
    assert "final_state" in hooked_tensors(one)
    _, bert = whole("bert")
    assert "final_state" not in hooked_tensors(bert)
    assert "final_state" in hooked_tensors(replace(bert, final_norms=None))


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


@pytest.mark.parametrize("given", [None, "x", [], 5])
def test_what_is_no_single_capture_is_refused_in_one_line(given, tmp_path):
    calls = (bertviz_arguments, hooked_tensors, lambda one: save_tensors(one, tmp_path / "x"),
             lambda one: save_capture(one, tmp_path / "x"))  # fmt: skip
    for call in calls:
        with pytest.raises(OutputError, match=r"^capture is .*; allowed is one Capture"):
            call(given)
    assert not list(tmp_path.iterdir())


def test_a_table_needs_a_list_of_captures():
    _, one = whole("bert")
    for given, message in (
        (one, "captures is a Capture; .* of one too"),
        ("x", "captures is 'x'"),
        ([1], "one of the"),
    ):
        with pytest.raises(OutputError, match=f"^{message}"):
            attention_table(given)
    with pytest.raises(OutputError, match=r"^capture is a list of 1;"):
        bertviz_arguments([one])


def test_files_are_written_through_links_with_the_usual_permissions_and_nothing_but_files_is_replaced(tmp_path):
    _, one = whole("bert")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    before = os.umask(0o027)
    try:
        for write, name in ((save_tensors, "export"), (save_capture, "link")):
            write(one, str(tmp_path / name))
    finally:
        os.umask(before)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "file").is_file()
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("export", "link")] == [0o640, 0o640]
    (tmp_path / "export").chmod(0o600)
    save_tensors(one, tmp_path / "export")
    assert stat.S_IMODE((tmp_path / "export").stat().st_mode) == 0o600
    (tmp_path / "to null").symlink_to("/dev/null")
    for place, what in (("/dev/null", "a device"), (tmp_path / "to null", "a device"), (tmp_path, "a folder")):
        with pytest.raises(OutputError, match=f"is {what}.*, not a file; cannot write the export there"):
            save_tensors(one, place)
    assert {path.name for path in tmp_path.rglob("*")} == {"export", "link", "there", "file", "to null"}


def test_what_is_no_capture_is_said_by_its_kind(tmp_path):
    _, one = whole("bert")
    save_tensors(one, tmp_path / "export")
    save_file({"weight": np.zeros(2, dtype=np.float32)}, tmp_path / "weights")
    for place, what in (
        (tmp_path, "a folder"),
        (tmp_path / "export", "an export of save_tensors"),
        (tmp_path / "weights", "a safetensors file, for example a model's weights"),
        (tmp_path / "none", "no file there"),
    ):
        with pytest.raises(OutputError, match=f": {what}.*; allowed is a file that save_capture wrote$"):
            load_capture(place)
    with pytest.raises(OutputError, match=r"^path 5: allowed is the name of a file"):
        load_capture(5)
    save_capture(one, str(tmp_path / "one"))
    assert np.array_equal(load_capture(str(tmp_path / "one")).rows, one.rows)
