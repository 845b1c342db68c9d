"""The walk: on every family each step equals the model's own to 1e-5, or is listed with a reason."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from family_zoo import FAMILIES, Family, exists, load, with_lora

from probe.errors import CasesError, CijingError, ModelError
from probe.messages import MESSAGES
from probe.models import model_from_parts
from probe.rowrequest import RowRequest
from probe.rowtap import tap
from probe.walking import algebra
from probe.walking.algebra import BOUND, gap
from probe.walking.walk import Walk, walk

TEXT = "我喜欢苹果 like"
WALKABLE = [family for family in FAMILIES if family.verdict != "refused" and family.name != "DeBERTa-v2"]
# What a family does not expose; everything else must be equal.
LISTED = {
    "GPT-NeoX": {"residual": "parallel"},
    "GPT-J": {"residual": "parallel"},
    "Falcon": {"residual": "parallel"},
    "Cohere": {"residual": "parallel"},
    "BLOOM": {"scores": "fused_product", "scaled": "fused_product"},
    "Qwen3-Next": {"written": "gate_before"},
    "DeepSeek-V2": {"key": "other_projection"},
    "DeepSeek-V3": {"key": "other_projection", "angles": "other_angles"},
    "gpt-oss": {"angles": "other_angles"},
}
POSITIONS = {
    "BERT": "learned", "GPT-2": "learned", "OPT": "learned", "BART": "learned", "Marian": "sinusoidal",
    "Pegasus": "sinusoidal", "Llama": "rotary", "GPT-NeoX": "rotary", "GPT-J": "rotary", "GLM": "rotary",
    "RoFormer": "rotary", "DeepSeek-V3": "rotary", "T5": "relative_bias", "MPNet": "relative_bias", "BLOOM": "alibi",
    "MPT": "alibi",
}  # fmt: skip


@functools.cache
def walked(family: Family, head: int = 1) -> Walk:
    return walk(load(family), TEXT, target="苹果", head=head)


@pytest.mark.parametrize("family", WALKABLE, ids=lambda family: family.name)
def test_each_step_equals_the_models_own_or_is_listed(family: Family) -> None:
    if not exists(family):
        pytest.skip(f"transformers here has no {family.stem}")
    found = walked(family)
    assert {step.name: step.missing for step in found.listed} == LISTED.get(family.name, {})
    for step in found.steps:
        assert step.missing or (step.gap is not None and step.gap <= BOUND), step.name
    names = [step.name for step in found.steps]
    assert {
        "state",
        "read",
        "query",
        "key",
        "value",
        "scores",
        "mask",
        "masked",
        "weights",
        "mixed",
        "heads",
        "fed",
        "next",
    } <= {*names}
    assert len(found.equal) + len(found.listed) + sum(step.form == "given" for step in found.steps) == len(names)
    assert found.position == POSITIONS.get(family.name, found.position)


def test_a_family_whose_scores_hold_more_is_refused_in_one_line() -> None:
    (family,) = [family for family in FAMILIES if family.name == "DeBERTa-v2"]
    with pytest.raises(ModelError, match="more than query · key") as caught:
        walk(load(family), TEXT, target="苹果")
    assert "\n" not in str(caught.value)


def llama(**changes: Any) -> Any:
    return model_from_parts(*tiny.tiny_llama(head=False, **changes), name="llama")


def test_scores_weights_and_output_are_those_of_the_tap() -> None:
    loaded = llama()
    found = walk(loaded, "我喜欢苹果", target="苹果", layer=1, head=3)
    ids = torch.tensor([list(loaded.tokenizer("我喜欢苹果")["input_ids"])])
    kept: list[Any] = []
    request = RowRequest(inspect=lambda call: kept.append(call) if call.layer.index == 1 else None)
    with torch.no_grad(), tap(loaded.backbone, request):
        loaded.backbone(ids)
    (call,) = kept
    rows = {layer.index: row for layer, row in request.rows.items()}[1][0, :, found.target].numpy()
    steps = {step.name: step for step in found.steps}
    assert np.allclose(found.rows, rows, atol=1e-6) and steps["weights"].ours is not None
    assert np.allclose(steps["weights"].ours[0], rows[3], atol=1e-6)
    query, key = call.query[0, 3, found.target], call.key[0, 1]  # four heads on two key heads
    assert found.kv_head == 1 and np.allclose(steps["scores"].ours[0], (key @ query).numpy(), atol=1e-4)
    assert np.allclose(steps["mixed"].own[0], call.output[0, found.target, 3].numpy(), atol=1e-7)


def test_what_the_heads_write_for_each_key_adds_up_to_what_is_written() -> None:
    found = walk(llama(), "我喜欢苹果", target="苹果")
    steps = {step.name: step for step in found.steps}
    assert found.writes is not None
    written = np.einsum("hk,hkm->m", found.rows, found.writes)
    assert gap(written, steps["written"].own[0]) <= BOUND


def test_the_middle_layer_is_taken_and_another_can_be_asked() -> None:
    loaded = llama()
    assert walk(loaded, "我喜欢苹果", target="苹果").layer.index == 1
    first = walk(loaded, "我喜欢苹果", target="苹果", layer=0)
    forms = {step.name: step.form for step in first.steps}
    assert forms["state"] == "first" and first.depth == (0, 1, 2)


def test_the_next_state_is_the_state_that_the_next_layer_is_given() -> None:
    loaded = llama()
    ends = [walk(loaded, "我喜欢苹果", target="苹果", layer=layer).steps for layer in (0, 1)]
    last, start = ends[0][-1], next(step for step in ends[1] if step.name == "state")
    assert last.name == "next" and np.array_equal(last.own, start.own)


def test_a_word_of_several_tokens_is_followed_at_its_last() -> None:
    found = walk(llama(), "我喜欢苹果", target="喜欢")
    assert found.tokens[found.target] in ("欢", "喜欢") and found.target > 1


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"layer": 3}, ModelError, "no attention layer 3; it has 0 to 2"),
        ({"head": 4}, ModelError, "no head 4; it has 0 to 3"),
        ({"head": -1}, ModelError, "no head -1"),
        ({"target": "梨子"}, CasesError, "梨子"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(more: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        walk(llama(), "我喜欢苹果", **{"target": "苹果", **more})
    assert "\n" not in str(caught.value)


def test_half_precision_is_refused() -> None:
    loaded = model_from_parts(*(part.bfloat16() if hasattr(part, "bfloat16") else part
                                for part in tiny.tiny_llama(head=False)), name="llama")  # fmt: skip
    with pytest.raises(ModelError, match="bfloat16: the walk compares in float32"):
        walk(loaded, "我喜欢苹果", target="苹果")


def test_an_adapters_own_projections_are_followed() -> None:
    (family,) = [family for family in FAMILIES if family.name == "Llama"]
    model = with_lora(family, tiny.tiny_llama(head=False)[0])
    loaded = model_from_parts(model, tiny.tiny_llama(head=False)[1], name="llama with LoRA")
    found = walk(loaded, "我喜欢苹果", target="苹果")
    assert not found.listed and all(step.gap is not None and step.gap <= BOUND for step in found.steps)


@pytest.mark.parametrize("part", ["q_proj", "v_proj", "o_proj", "input_layernorm"])
def test_a_hook_that_changes_a_modules_result_is_seen(part: str) -> None:
    loaded = llama()
    clean = walk(loaded, "我喜欢苹果", target="苹果", layer=1)
    ends = (f"layers.1.self_attn.{part}", f"layers.1.{part}")
    (module,) = [module for name, module in loaded.backbone.named_modules() if name.endswith(ends)]
    change: Callable[..., Any] = lambda module, args, output: output * 1.01 + 0.01  # noqa: E731
    hook = module.register_forward_hook(change)
    try:
        found = walk(loaded, "我喜欢苹果", target="苹果", layer=1)
    finally:
        hook.remove()
    assert not clean.listed and found.listed


def test_the_model_is_left_as_it_was() -> None:
    loaded = llama()
    before = loaded.backbone.config._attn_implementation
    walk(loaded, "我喜欢苹果", target="苹果")
    assert loaded.backbone.config._attn_implementation == before
    hooks = [hooks_of(loaded.backbone)]  # transformers leaves hooks of its own at the first pass
    walk(loaded, "我喜欢苹果", target="苹果")
    assert hooks == [hooks_of(loaded.backbone)]


def hooks_of(model: torch.nn.Module) -> list[tuple[int, int]]:
    return [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]


def test_every_name_form_and_reason_has_its_words() -> None:
    for family in WALKABLE:
        if exists(family):
            for step in walked(family).steps:
                wanted = [f"walk.step_{step.name}"]
                wanted += [f"walk.form_{step.form}"] * (step.form not in ("", "given"))
                wanted += [f"walk.missing_{step.missing}"] * bool(step.missing)
                assert set(wanted) <= set(MESSAGES), wanted


def families(*names: str) -> list[Family]:
    return [family for family in FAMILIES if family.name in names and exists(family)]


def test_a_bias_is_told_where_the_family_has_one() -> None:
    biases = {family.name: {step.name: step.terms for step in walked(family).steps}
              for family in families("BERT", "Llama", "Qwen2", "GPT-2")}  # fmt: skip
    for name, wanted in {"BERT": "qo", "Llama": "", "Qwen2": "q", "GPT-2": "qo"}.items():
        assert ("bias" in biases[name]["query"]) == ("q" in wanted), name
        assert ("bias" in biases[name]["written"]) == ("o" in wanted), name


def test_segments_are_a_row_of_their_own_and_free_rows_of_a_position_table_are_counted() -> None:
    told = {family.name: {step.name: step for step in walked(family).steps}
            for family in families("BERT", "NomicBERT", "DistilBERT", "OPT", "Marian")}  # fmt: skip
    assert told["BERT"]["added"].terms == ("e", "g", "p") and told["NomicBERT"]["added"].terms == ("e", "g")
    assert "segment_row" not in told["DistilBERT"] and told["OPT"]["position_row"].terms == ("2",)
    assert told["Marian"]["added"].terms == ("c", "e", "p") and told["Marian"]["added"].facts["d"] == 32


def test_scores_with_the_mask_are_the_models_own_with_minus_infinity_for_its_huge_negatives() -> None:
    for family in families("GPT-2", "Llama", "Gemma2", "BLOOM", "gpt-oss"):
        steps = {step.name: step for step in walk(load(family), TEXT, target="我").steps}
        masked, mask = steps["masked"], steps["mask"]
        assert (
            masked.own is not None and np.array_equal(np.isneginf(masked.own), mask.own == 0) and (mask.own == 0).any()
        )


def test_what_is_turned_first_is_a_pair_of_the_form_that_was_found() -> None:
    random = np.random.default_rng(1)
    x, angles = random.normal(size=(1, 3, 8)), algebra.angles_by_formula(3, 2, 10000.0)
    for turn in algebra.rotation_forms(x, np.cos(angles), np.sin(angles)):
        (one, other), after = turn.first_pair
        a, b, cos, sin = x[0, 2, one], x[0, 2, other], turn.cos[2, 0], turn.sin[2, 0]
        assert np.allclose(turn.turned[0, 2, list(after)], [a * cos - b * sin, b * cos + a * sin]), turn.form


# Algebra


def test_a_gap_is_a_share_of_the_largest_number_above_one() -> None:
    assert gap([1.0, 0.5], [1.0, 0.4]) == pytest.approx(0.1)
    assert gap([1000.0, 1.0], [1000.0, 2.0]) == pytest.approx(1e-3)
    assert gap([1.0], [1.0, 2.0]) == np.inf and gap([np.nan], [1.0]) == np.inf
    assert gap([-np.inf, 1.0], [-np.inf, 1.0]) == 0 and gap([0.0, 1.0], [-np.inf, 1.0]) == np.inf


def test_rotations_keep_lengths_and_turn_by_the_difference_of_places() -> None:
    random = np.random.default_rng(0)
    query, key = random.normal(size=(2, 1, 1, 8))
    angles = algebra.angles_by_formula(12, 4, 10000.0)
    turned = {}
    for place in (2, 5, 7, 10):
        for name, x in (("q", query), ("k", key)):
            forms = algebra.rotation_forms(x, np.cos(angles[place : place + 1]), np.sin(angles[place : place + 1]))
            turned[name, place] = {turn.form: turn.turned for turn in forms}
    for form in ("halves_all", "neighbours_all"):
        near = [(turned["q", a][form] * turned["k", b][form]).sum() for a, b in ((5, 2), (10, 7))]
        assert near[0] == pytest.approx(near[1])
        assert np.linalg.norm(turned["q", 7][form]) == pytest.approx(np.linalg.norm(query))


def test_t5s_buckets_and_alibis_slopes_are_the_families_own() -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-300, 300)
    for both_ways in (True, False):
        own = T5Attention._relative_position_bucket(
            distances, bidirectional=both_ways, num_buckets=32, max_distance=128
        )
        ours = algebra.relative_buckets(distances.numpy(), buckets=32, furthest=128, both_ways=both_ways)
        assert np.array_equal(ours, own.numpy())
    for heads in (4, 6, 12, 16):
        own = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)[:, 0, 1]
        assert np.allclose(algebra.alibi_slopes(heads), own.numpy())


def test_a_step_is_a_record_that_cannot_be_changed() -> None:
    step = walked(WALKABLE[0]).steps[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [{"head": "x"}, {"head": None}, {"head": 1.5}, {"head": True}, {"layer": "1"},
                                   {"layer": True}, {"progress": 3}, {"route": 3}])  # fmt: skip
def test_a_wrong_argument_from_python_is_one_line(wrong):
    loaded = load(next(family for family in FAMILIES if family.name == "BERT"))
    with pytest.raises(CijingError, match="allowed") as caught:
        walk(loaded, "我喜欢苹果", target="苹果", **wrong)
    assert "\n" not in str(caught.value) and next(iter(wrong)) in str(caught.value)
