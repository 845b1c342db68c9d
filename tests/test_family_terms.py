"""What families add to plain attention, by hand: ALiBi, sinks, softcaps, position bias; stacks of other lengths."""

import dataclasses
import math

import pytest
import torch

from probe.edits import EdgeEdit
from probe.models import model_from_parts
from probe.routes import forward_rows, route_of
from probe.rowrequest import RowRequest
from probe.rowtap import tap
from tests.family_zoo import FAMILIES, build, load, route, tokenizer_of
from tests.test_families import DTYPES, TEXTS, Batch, batch_of, equal, formula, gap, implementation, run

ZOO = {family.name: family for family in FAMILIES}
PADDING = ("none", "left", "right")


def given_by(model, names, loaded, batch):
    """What the linear maps of these names put out, in the order of the layers, by name."""
    seen = {name: [] for name in names}
    hooks = [
        module.register_forward_hook(lambda module, args, output, own=own: seen[own].append(output))
        for path, module in model.named_modules()
        for own in names
        if path.endswith(own)
    ]
    run(loaded, batch)
    for hook in hooks:
        hook.remove()
    return seen


def softmax_by_hand(scores):
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def slopes_of(heads):
    """Press et al. 2022: 2 ** (-8 i / n); where n is no power of two, the odd ones of twice as many follow."""
    power = 2 ** int(math.log2(heads))
    first = [2 ** (-8 * (place + 1) / power) for place in range(power)]
    between = [2 ** (-8 * (place + 1) / (2 * power)) for place in range(0, 2 * power, 2)]
    return (first + between)[:heads]


ALIBI = {
    "BLOOM": (("n_head", "hidden_size"), "query_key_value", lambda out, h: out.unflatten(-1, (h, 3, -1)).unbind(-2)),
    "MPT": (("n_heads", "d_model"), "Wqkv", lambda out, h: out.unflatten(-1, (3, h, -1)).unbind(-3)),
}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize(("heads", "width"), [(4, 32), (6, 48)])
@pytest.mark.parametrize("family", ALIBI)
def test_alibi_lowers_a_score_by_the_heads_slope_for_each_token_between(family, heads, width, padding):
    (count, size), fused, parts_of = ALIBI[family]
    wide = dataclasses.replace(ZOO[family], sizes={**ZOO[family].sizes, count: heads, size: width})
    loaded = model_from_parts(build(wide), tokenizer_of(), name=family)
    batch = batch_of(loaded, padding)
    found = route_of(loaded)
    rows = forward_rows(loaded, found, batch.inputs, RowRequest(batch.rows()), states=False).rows
    for layer, out in zip(found.layers, given_by(loaded.backbone, [fused], loaded, batch)[fused], strict=True):
        query, key, _ = parts_of(out.double(), heads)  # [batch, token, head, dim]
        for item, real in enumerate(map(batch.real, range(len(batch.lengths)))):
            for head, slope in enumerate(slopes_of(heads)):
                products = query[item, real, head] @ key[item, real, head].T / math.sqrt(width / heads)
                for place in range(batch.lengths[item]):
                    scores = [float(products[place, other]) - slope * (place - other) for other in range(place + 1)]
                    own = rows[layer][item, head, place, real].tolist()
                    assert own[: place + 1] == pytest.approx(softmax_by_hand(scores), abs=2e-6)
                    assert not any(own[place + 1 :])


@pytest.mark.parametrize("padding", PADDING)
def test_a_sink_takes_its_share_of_the_row_and_the_row_sums_to_the_rest(padding):
    loaded, found = load(ZOO["gpt-oss"]), route(ZOO["gpt-oss"])
    batch, calls = batch_of(loaded, padding), {}
    with tap(loaded.backbone, RowRequest(batch.rows(), inspect=lambda call: calls.update({call.layer: call}))):
        run(loaded, batch)
    windows = loaded.backbone.config.layer_types
    for layer in found.layers:
        call, sinks = calls[layer], loaded.backbone.layers[layer.index].self_attn.sinks
        window = 4 if windows[layer.index] == "sliding_attention" else 99
        for item, start in enumerate(batch.starts):
            for head in range(4):
                for place in range(batch.lengths[item]):
                    query = call.query[item, head, start + place].double()
                    keys = call.key[item, head // 2, start : start + place + 1].double()[-window:]
                    scores = [*(keys @ query * call.terms.scaling).tolist(), float(sinks[head])]
                    *expected, sink = softmax_by_hand(scores)
                    own = call.rows[item, head, place]
                    assert float(own.sum()) == pytest.approx(1 - sink, abs=2e-6) and 0 < sink < 1
                    seen = own[start : start + place + 1][-window:].tolist()
                    assert seen == pytest.approx(expected, abs=2e-6)
    assert max(float(1 - call.rows.sum(-1).min()) for call in calls.values()) > 0.3, (
        "sinks that take nothing test little"
    )


@pytest.mark.parametrize("padding", PADDING)
def test_a_softcap_bends_scores_before_the_mask(padding):
    loaded, found = load(ZOO["Gemma2"]), route(ZOO["Gemma2"])
    batch, calls, bent = batch_of(loaded, padding), {}, 0.0
    with tap(loaded.backbone, RowRequest(batch.rows(), inspect=lambda call: calls.update({call.layer: call}))):
        run(loaded, batch)
    for layer in found.layers:
        call = calls[layer]
        window = 4 if loaded.backbone.config.layer_types[layer.index] == "sliding_attention" else 99
        for item, start in enumerate(batch.starts):
            for head in range(4):
                place = batch.lengths[item] - 1
                query = call.query[item, head, start + place].double()
                keys = call.key[item, head // 2, start : start + place + 1].double()[-window:]
                plain = (keys @ query / math.sqrt(16)).tolist()  # query_pre_attn_scalar is 16
                expected = softmax_by_hand([2.0 * math.tanh(score / 2.0) for score in plain])
                seen = call.rows[item, head, place][start : start + place + 1][-window:].tolist()
                assert seen == pytest.approx(expected, abs=2e-6)
                bent = max(bent, max(abs(a - b) for a, b in zip(softmax_by_hand(plain), expected, strict=True)))
    assert bent > 0.05


@pytest.mark.parametrize("family", ["T5", "mT5"])
@pytest.mark.parametrize("padding", PADDING)
def test_a_position_bias_is_the_first_layers_for_all_and_there_is_no_scaling(family, padding):
    loaded, batch = load(ZOO[family]), batch_of(load(ZOO[family]), padding)
    request = RowRequest(batch.rows())
    with tap(loaded.backbone, request):
        run(loaded, batch)
    model, item = loaded.backbone, len(batch.lengths) - 1
    real, length = batch.real(item), batch.lengths[item]
    assert length <= 9, "farther apart, buckets hold several distances"
    for stack, half in (("encoder", 16), ("decoder", 0)):
        names = [f"{stack}.block.{index}.layer.0.SelfAttention.{part}" for index in (0, 1) for part in "qk"]
        out = given_by(model, names, loaded, batch)
        table = getattr(model, stack).block[0].layer[0].SelfAttention.relative_attention_bias.weight  # [bucket, head]
        for index in (0, 1):
            (layer,) = (at for at in request.rows if at.stack == stack and at.index == index)
            query, key = (
                out[f"{stack}.block.{index}.layer.0.SelfAttention.{part}"][0][item, real].double().unflatten(-1, (4, 8))
                for part in "qk"
            )
            for head in range(4):
                for place in range(length):
                    others = range(length) if half else range(place + 1)
                    buckets = [place - other if other <= place else half + other - place for other in others]
                    scores = [
                        float(query[place, head] @ key[other, head] + table[bucket, head])
                        for other, bucket in zip(others, buckets, strict=True)
                    ]
                    seen = request.rows[layer][item, head, place, real][list(others)].tolist()
                    assert seen == pytest.approx(softmax_by_hand(scores), abs=2e-6)


def test_a_hybrids_layers_have_the_numbers_of_their_modules():
    found = route(ZOO["Qwen3-Next"])
    assert [(layer.index, layer.module) for layer in found.layers] == [
        (1, "layers.1.self_attn"),
        (3, "layers.3.self_attn"),
    ]
    loaded = load(ZOO["Qwen3-Next"])
    assert type(loaded.backbone.layers[1].self_attn).__name__ == "Qwen3NextAttention"
    assert not hasattr(loaded.backbone.layers[0], "self_attn")


def of_other_lengths(padding):
    """A short text answered by a long one and the other way round, both sides padded: decoder and cross differ."""
    both = [batch_of(load(ZOO["BERT"]), padding)]
    tokenizer = tokenizer_of()
    ids = [tokenizer(text)["input_ids"] for text in reversed(TEXTS)]
    ids[1].append(tokenizer.eos_token_id)  # no side is as wide as the other
    ids[0] = ids[0][:-2]
    width = max(map(len, ids)) + 1
    starts = [width - len(item) if padding == "left" else 0 for item in ids]
    tokens, mask = torch.full((2, width), tokenizer.pad_token_id), torch.zeros(2, width, dtype=torch.long)
    for row, (start, item) in enumerate(zip(starts, ids, strict=True)):
        tokens[row, start : start + len(item)] = torch.tensor(item)
        mask[row, start : start + len(item)] = 1
    inputs = {**both[0].inputs, "decoder_input_ids": tokens, "decoder_attention_mask": mask}
    return both[0], Batch(inputs, starts, [len(item) for item in ids])


@pytest.mark.parametrize("lora", ["plain", "lora"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("family", ["T5", "mT5", "BART", "mBART", "Marian", "Pegasus"])
def test_decoder_and_cross_rows_are_exact_where_source_and_answer_differ_in_length(family, padding, dtype, lora):
    loaded = load(ZOO[family], dtype=DTYPES[dtype], lora=lora == "lora")
    source, batch = of_other_lengths(padding)
    assert source.inputs["input_ids"].shape != batch.inputs["decoder_input_ids"].shape
    with implementation(loaded, "eager"):
        eager = run(loaded, batch, output_attentions=True)
    plain, calls = run(loaded, batch)[0], {}
    request = RowRequest(
        batch.rows(), stacks=["decoder", "cross"], inspect=lambda call: calls.update({call.layer: call})
    )
    with tap(loaded.backbone, request):
        assert equal(run(loaded, batch)[0], plain, batch)
    states_differ = gap(plain, eager[0], batch)
    assert {layer.stack for layer in request.rows} == {"decoder", "cross"} and len(request.rows) == 4
    for layer, rows in request.rows.items():
        maps = (eager.decoder_attentions if layer.stack == "decoder" else eager.cross_attentions)[layer.index]
        own, rounded = formula(calls[layer]), formula(calls[layer], DTYPES[dtype])
        keys = batch if layer.stack == "decoder" else source
        for item, length in enumerate(batch.lengths):
            mine, real = rows[item, :, :length], batch.real(item)
            assert (mine - own[item, :, real]).abs().max() <= 1e-6
            rounding = 0.0 if dtype == "fp32" else float((rounded - own)[item, :, real].abs().max())
            assert (mine - maps[item, :, real].float()).abs().max() <= max(4 * states_differ, 1e-6) + rounding
            assert float(mine[..., keys.real(item)].sum(-1).min()) == pytest.approx(1, abs=1e-5)
        query, column = batch.starts[1] + 2, keys.starts[1] + int(rows[1, 0, 2, keys.real(1)].argmax())
        edit = EdgeEdit(
            query=(query,), key=(column,), item=1, layers=frozenset({layer.index}), stacks=frozenset({layer.stack})
        )
        now = {}
        cut = RowRequest(
            batch.rows(),
            stacks=[layer.stack],
            edits=[edit],
            inspect=lambda call, now=now: now.update({call.layer: call}),
        )
        with tap(loaded.backbone, cut):
            edited = run(loaded, batch)[0]
        expected = own[1, :, query].double().clone()
        expected[:, column] = 0.0
        expected /= expected.sum(-1, keepdim=True)
        assert (cut.rows[layer][1, :, 2] - expected).abs().max() <= 2e-6
        mixed = (expected[:, None] @ calls[layer].value[1].double())[:, 0]
        half = 0.0 if dtype == "fp32" else torch.finfo(DTYPES[dtype]).eps / 2
        assert ((now[layer].output[1, query].double() - mixed).abs() <= half * mixed.abs() + 1e-5).all()
        assert torch.equal(edited[0, batch.real(0)], plain[0, batch.real(0)]), "the other text stays"
        assert (edited[1, batch.real(1)] != plain[1, batch.real(1)]).any()
