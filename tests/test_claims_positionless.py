"""Positions are taken out of a copy, and what is left of them is seen; scores are made zero in every family."""

import copy

import numpy as np
import pytest
import torch
from claims_bench import bench, decoder, tiny

from probe.capture import capture_prepared, prepare
from probe.captures import CaptureOptions
from probe.cases import case_of
from probe.claims.order import order
from probe.claims.positionless import doubled, is_causal, left_of_positions, without_positions
from probe.claims.rows import idle_heads, scaled_scores
from probe.claims_story import claim_lines, claims_frame
from probe.models import model_from_parts
from tests.family_zoo import FAMILIES, build, load, route

ZOO = {family.name: family for family in FAMILIES}
LENGTH = 20


def left_of(name: str) -> str:
    model = build(ZOO[name])
    return left_of_positions(doubled(model), token=40, length=LENGTH, causal=is_causal(model))


def tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def test_order_leaves_a_bfloat16_model_with_float32_buffers_as_it_is():
    model = copy.deepcopy(decoder().model).to(torch.bfloat16)
    for module in model.modules():
        if "inv_freq" in dict(module.named_buffers(recurse=False)):
            module.inv_freq = module.inv_freq.float() * 1.0001  # a value that bfloat16 would round
    loaded = model_from_parts(model, decoder().tokenizer, name="half")
    before = tensors(model)
    assert {tensor.dtype for tensor in before.values()} == {torch.bfloat16, torch.float32}
    order(bench(load_decoder=lambda: loaded))
    after = tensors(model)
    assert [name for name, tensor in before.items() if tensor.dtype != after[name].dtype] == []
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize("name", ["BERT", "ALBERT", "NomicBERT", "RoFormer", "GPT-2", "OPT", "Llama", "Phi-3"])
def test_nothing_is_left_of_tables_and_rotations(name):
    assert left_of(name) == ""


@pytest.mark.parametrize("name", ["MPNet", "DeBERTa-v2", "ModernBERT", "BLOOM", "MPT", "Mistral", "Gemma3"])
def test_a_bias_or_a_window_is_seen_to_be_left(name):
    assert left_of(name) == "placed_rows"


def test_a_window_that_holds_the_whole_text_hides_nothing():
    model = doubled(build(ZOO["Gemma3"]))
    assert left_of_positions(model, token=40, length=4, causal=True) == ""
    assert left_of_positions(model, token=40, length=5, causal=True) == "placed_rows"


def test_states_that_know_their_place_by_other_means_are_seen():
    class Counting(torch.nn.Module):
        def forward(self, module, arguments, output):
            return output + torch.arange(output.shape[1], dtype=output.dtype)[None, :, None]

    model = doubled(build(ZOO["BERT"]))
    model.encoder.layer[-1].output.register_forward_hook(Counting())
    assert left_of_positions(model, token=40, length=LENGTH, causal=False) == "placed_states"


def test_a_fixed_table_of_rotations_turns_by_nothing_and_keeps_the_scores():
    model = doubled(build(ZOO["RoFormer"]))
    table = model.encoder.embed_positions.weight
    first, second = table[0].clone(), table[1].clone()
    with without_positions(model):
        assert torch.equal(table[1], first) and float(first.abs().max()) == 1.0
    assert torch.equal(table[1], second)


def test_a_model_without_positions_and_one_without_double_precision_say_so():
    bare = doubled(build(ZOO["Llama"]))
    for module in bare.modules():
        if hasattr(module, "inv_freq"):
            frequencies = module.inv_freq
            del module.inv_freq
            module.register_buffer("other", frequencies)
            module.inv_freq = torch.zeros_like(frequencies)
            if hasattr(module, "original_inv_freq"):
                del module.original_inv_freq
    assert left_of_positions(bare, token=40, length=LENGTH, causal=True) == "no_positions"
    assert left_of("Mixtral") == "no_double"


def test_a_model_whose_positions_stay_is_not_testable_and_the_part_says_why():
    biased = tiny("MPNetConfig", "MPNetModel")
    alibi = tiny("BloomConfig", "BloomForCausalLM", n_layer=2, n_head=4)
    finding = order(bench(load_encoder=lambda: biased, load_decoder=lambda: alibi))
    assert [(part.key, part.verdict) for part in finding.parts] == [
        ("lost_encoder", "not testable here"),
        ("lost_decoder", "not testable here"),
    ]
    assert finding.verdict == "not testable here"
    for cells in claim_lines(finding, "en").statements:
        assert cells[2] == "not testable here" and "a bias on the scores or a window is left" in cells[3]
    assert "偏置或窗口" in claim_lines(finding, "zh").statements[0][3]
    assert list(claims_frame([finding])["statement_verdict"]) == ["not testable here"] * 2
    mixed = order(bench(load_decoder=lambda: alibi))
    assert mixed.verdict == mixed.parts[0].verdict == "confirmed"


# --- scores times zero ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Phi-3", "Gemma3", "BERT"])
def test_scores_times_zero_are_uniform_in_every_layer_and_stay_finite(name):
    family = ZOO[name]
    items = prepare(load(family), [case_of("我喜欢苹果", target="苹果")])
    options = CaptureOptions(whole_maps=True)
    with scaled_scores(load(family).backbone, 0.0) as found:
        (one,) = capture_prepared(load(family), items, options=options, route=route(family))
    assert found == 2 and all(np.isfinite(states).all() for states in one.states.values())
    seen = one.rows > 0
    assert np.allclose(one.rows[seen], (1 / seen.sum(-1, keepdims=True) * seen)[seen], atol=1e-6)


def test_a_family_without_a_scale_is_named_and_not_left_out():
    alibi = tiny("BloomConfig", "BloomForCausalLM", n_layer=2, n_head=4)
    finding = idle_heads(bench(load_decoder=lambda: alibi))
    assert [part.verdict == "not testable here" for part in finding.parts] == [False, False, True, True]
    assert "no scale of the scores was found" in claim_lines(finding, "en").statements[-1][3]
