"""What each head writes: its output through W_O, found by following the tensor, and value norms through W_O."""

import pytest
import torch
import transformers

from probe.capture import capture
from probe.captures import CaptureOptions, load_capture, save_capture
from probe.cases import case_of
from probe.edits import EdgeEdit, HeadEdit
from probe.errors import BudgetError, TapError
from probe.models import model_from_parts
from probe.projection import linear_maps
from probe.routes import route_of
from probe.rowrequest import RowRequest
from probe.rowtap import attached, tap
from probe.wrappers import unwrapped
from tests.test_rowtap import QUERIES, batch_of, brute_force
from tests.tiny import FAMILIES, tiny_bert, tiny_gpt2, tiny_llama

# The output projection of each family's attention, named here so that the finding by tensor is held against it.
NAMES = {
    "bert": "attention.output.dense",
    "gpt2": "attn.c_proj",
    "llama": "self_attn.o_proj",
    "qwen3": "self_attn.o_proj",
    "gemma3": "self_attn.o_proj",
    "t5": ".o",
    "bart": "attn.out_proj",
}


def with_lora(model, family):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    names = [name for name, _ in model.named_modules() if name.endswith(NAMES[family])]
    config = LoraConfig(r=4, target_modules=names, init_lora_weights=False, fan_in_fan_out=family == "gpt2")
    return get_peft_model(model, config).eval()


def own_outputs(model, family, batch):
    """What each output projection gives by itself, by the name of its module in the model without wrappers."""
    found = {}
    hooks = [
        module.register_forward_hook(lambda _m, _a, output, name=name: found.update({name: output}))
        for name, module in unwrapped(model).named_modules()
        if name.endswith(NAMES[family])
    ]
    with torch.no_grad():
        model(**batch)
    for hook in hooks:
        hook.remove()
    return found


def bias_of(module):
    """The bias, of the base below an adapter as well."""
    base = getattr(module, "base_layer", module)
    return 0.0 if base.bias is None else base.bias


@pytest.mark.parametrize("lora", [False, True], ids=["plain", "lora"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_and_bias_add_up_to_the_modules_own_output(family, side, lora):
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer, side=side)
    if lora:
        model = with_lora(model, family)
    own = own_outputs(model, family, batch)
    request = RowRequest(queries, head_outputs=True)
    with torch.no_grad(), tap(model, request):
        model(**batch)
    assert len(request.head_outputs) == len(own) == len(request.rows)
    modules = dict(unwrapped(model).named_modules())
    for layer, per_head in request.head_outputs.items():
        (name,) = [name for name in own if belongs(name, layer.module)]
        total = per_head.sum(1) + bias_of(modules[name])
        for item, positions in enumerate(queries):
            expected = own[name][item, positions]
            scale = max(1.0, float(expected.abs().max()))
            assert torch.allclose(total[item, : len(positions)], expected, atol=1e-5 * scale, rtol=0), layer


def belongs(name, attention):
    """Whether a projection's name is that of an attention module, or of the module beside it (BERT)."""
    stem = attention.removesuffix(".self")
    return f".{name}".rpartition(f".{stem}.")[1] != ""


@pytest.mark.parametrize("family", FAMILIES)
def test_one_heads_output_is_what_its_part_of_the_projection_adds(family):
    """Silencing head 1 takes exactly its output away from the module's own output."""
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer, side="right")
    request = RowRequest(queries, head_outputs=True)
    with torch.no_grad(), tap(model, request):
        model(**batch)
    layer = min(request.head_outputs)  # the first layer of a stack: its input does not change
    own = own_outputs(model, family, batch)
    silent = RowRequest(queries, edits=[HeadEdit(heads=frozenset({1}), item=0, layers=frozenset({layer.index}),
                                                 stacks=frozenset({layer.stack}))])  # fmt: skip
    with tap(model, silent):
        changed = own_outputs(model, family, batch)
    (name,) = [name for name in own if belongs(name, layer.module)]
    expected = (own[name] - changed[name])[0, queries[0]]
    assert torch.allclose(request.head_outputs[layer][0, 1, : len(queries[0])], expected, atol=2e-5, rtol=0)
    assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_times_transformed_values_are_the_head_outputs_in_length(family):
    """One key alone in a row: then the head's output is that key's transformed value, and so is its norm."""
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer, side="right")
    only = 1

    def alone(layer, weights):
        kept = torch.zeros_like(weights)
        kept[..., only] = 1.0
        return kept

    request = RowRequest(queries, transformed_norms=True, value_norms=True)
    with torch.no_grad(), tap(model, request):
        model(**batch)
    # The first layer that runs: whatever stands behind it reads other states once rows are replaced.
    first = min(request.transformed_norms, key=lambda layer: (layer.stack != "encoder", layer.stack, layer.index))
    outputs = {}
    names = {name: module for name, module in model.named_modules() if name.endswith(NAMES[family])}
    (name,) = [name for name in names if belongs(name, first.module)]
    hook = names[name].register_forward_hook(lambda module, args, output: outputs.update(given=args[0]))
    brute_force(model, batch, alone)
    hook.remove()
    heads = request.transformed_norms[first].shape[1]
    given = outputs["given"][0, queries[0][0]].view(heads, -1)  # [head, dim]
    for head in range(heads):
        own = torch.zeros_like(given)
        own[head] = given[head]
        with torch.no_grad():
            through = names[name](own.flatten()) - names[name](torch.zeros_like(given).flatten())
        assert request.transformed_norms[first][0, head, only] == pytest.approx(float(through.norm()), rel=1e-4)
        assert request.value_norms[first][0, head, only] == pytest.approx(float(given[head].norm()), rel=1e-4)


def test_a_plain_request_follows_nothing_and_an_adapter_is_one_linear_map():
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer, side="right")
    request = RowRequest(queries)
    with torch.no_grad(), tap(model, request):
        assert not any(module._forward_hooks for module in model.modules())
        model(**batch)
    assert not request.head_outputs and not request.transformed_norms
    before = len(linear_maps(model))
    assert len(linear_maps(with_lora(model, "llama"))) == before
    with torch.no_grad(), tap(model, RowRequest(queries, head_outputs=True)):
        model(**batch)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("build", [tiny_gpt2, tiny_llama, tiny_bert])
def test_the_output_stays_bit_for_bit_and_filters_keep_what_was_asked(build):
    model, tokenizer = build()
    batch, queries = batch_of(model, tokenizer, side="right")
    request = RowRequest(queries, heads=[3, 1], layers=[2], head_outputs=True, transformed_norms=True)
    everything = RowRequest(queries, head_outputs=True, transformed_norms=True)
    with torch.no_grad():
        plain = model(**batch)[0]
        with tap(model, request):
            assert torch.equal(model(**batch)[0], plain)
        with tap(model, everything):
            model(**batch)
    ((layer, per_head),) = request.head_outputs.items()
    assert layer.index == 2 and list(request.transformed_norms) == [layer]
    assert torch.equal(per_head, everything.head_outputs[layer][:, [1, 3]])
    assert torch.equal(request.transformed_norms[layer], everything.transformed_norms[layer][:, [1, 3]])


def test_an_edited_edge_is_in_the_head_outputs():
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer, side="right")
    edit = EdgeEdit(query=(4,), key=(1,), heads=frozenset({2}), layers=frozenset({0}))
    plain, edited = RowRequest(queries, head_outputs=True), RowRequest(queries, head_outputs=True, edits=[edit])
    for request in (plain, edited):
        with torch.no_grad(), tap(model, request):
            model(**batch)
    layer = min(plain.head_outputs)
    moved = (edited.head_outputs[layer] - plain.head_outputs[layer]).abs().amax(-1)  # [batch, head, query]
    assert moved[0, 2, QUERIES[0].index(4)] > 1e-3
    moved[0, 2, QUERIES[0].index(4)] = 0.0
    assert moved.max() == 0.0


def test_a_gate_between_attention_and_its_projection_is_refused():
    config = transformers.Qwen3NextConfig(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, layer_types=["full_attention"] * 2, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    model = transformers.Qwen3NextModel(config).eval()
    request = RowRequest([[1]], head_outputs=True)
    with pytest.raises(TapError, match=r"^layers\.0\.self_attn: attention's output does not go into a linear map"):  # noqa: SIM117
        with torch.no_grad(), tap(model, request):
            model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)


def test_a_projection_that_is_not_linear_in_the_heads_is_refused():
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer, side="right")
    model.model.layers[1].self_attn.o_proj.register_forward_hook(lambda module, args, output: output.clamp(-0.1, 0.1))
    with pytest.raises(TapError, match=r"^layers\.1\.self_attn: its heads add up to another output than its own"):  # noqa: SIM117
        with torch.no_grad(), tap(model, RowRequest(queries, head_outputs=True)):
            model(**batch)


def test_a_request_by_keyword_cannot_follow_and_says_so():
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer, side="right")
    with pytest.raises(TapError, match=r"come with tap\(model, request\)"), attached(model):
        model(**batch, rows=RowRequest(queries, transformed_norms=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_captures_hold_what_was_asked_for_and_come_back_from_disk(tmp_path, family):
    model, tokenizer = FAMILIES[family]()
    loaded = model_from_parts(model, tokenizer, name=family)
    cases = [
        case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"], id="a"),
        case_of("苹果手机", target="苹果", id="b"),
    ]
    options = CaptureOptions(head_outputs=True, transformed_norms=True)
    together = list(capture(loaded, cases, options=options))
    for one, case in zip(together, cases, strict=True):
        (single,) = capture(loaded, [case], options=options)
        layers, heads, queries, keys = one.rows.shape
        assert one.head_outputs.shape == (layers, heads, queries, 32)
        assert one.transformed_norms.shape == one.value_norms.shape == (layers, heads, keys)
        for name in ("head_outputs", "transformed_norms"):
            assert getattr(one, name) == pytest.approx(getattr(single, name), abs=2e-5, rel=1e-5)
        save_capture(one, tmp_path / "one.safetensors")
        again = load_capture(tmp_path / "one.safetensors")
        assert (again.head_outputs == one.head_outputs).all()
        assert (again.transformed_norms == one.transformed_norms).all()
    (plain,) = capture(loaded, cases[:1])
    assert plain.head_outputs is None and plain.transformed_norms is None


def test_the_cache_does_not_answer_for_a_capture_without_head_outputs(tmp_path):
    model, tokenizer = tiny_bert()
    loaded, case = model_from_parts(model, tokenizer, name="b"), case_of("我喜欢苹果", target="苹果")
    (plain,) = capture(loaded, [case], options=CaptureOptions(cache=tmp_path))
    (more,) = capture(loaded, [case], options=CaptureOptions(cache=tmp_path, head_outputs=True))
    assert plain.head_outputs is None and more.head_outputs is not None


def test_head_outputs_count_in_the_memory_estimate():
    model, tokenizer = tiny_bert()
    loaded, case = model_from_parts(model, tokenizer, name="b"), case_of("我喜欢苹果", target="苹果")
    sizes = []
    for asked in (False, True):
        with pytest.raises(BudgetError) as caught:
            next(capture(loaded, [case], options=CaptureOptions(memory_budget=1, head_outputs=asked)))
        sizes.append(float(str(caught.value).split("needs ")[1].split(" ")[0]))
    assert sizes[1] > sizes[0]


def test_the_eager_path_refuses_head_outputs_with_its_reason():
    config = transformers.MPNetConfig(
        vocab_size=400, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    loaded = model_from_parts(transformers.MPNetModel(config), tiny_bert()[1], name="mpnet")
    assert route_of(loaded).path == "eager"
    case = case_of("我喜欢苹果", target="苹果")
    with pytest.raises(TapError, match=r"^mpnet: what heads write through W_O needs the tap"):
        next(capture(loaded, [case], options=CaptureOptions(head_outputs=True)))
