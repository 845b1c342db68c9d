"""The tap against eager attention and against brute force, on tiny random models of seven families."""

import copy
import threading

import pytest
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from probe.edits import EdgeEdit, HeadEdit
from probe.errors import TapError
from probe.labels import label_modules, layer_of
from probe.rowrequest import RowRequest
from probe.rowtap import attached, tap
from probe.wrappers import unwrapped
from tests.tiny import FAMILIES

TEXTS = ["我喜欢苹果但讨厌梨子", "苹果手机"]
QUERIES = [[2, 4], [1]]  # positions among the real tokens of each text


def batch_of(model, tokenizer, *, side="right", texts=TEXTS):
    """A padded batch and the padded positions of QUERIES; the same text on both sides of an encoder-decoder."""
    tokenizer.padding_side = side
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)
    mask = batch["attention_mask"]
    shift = [int((row == 0).sum()) if side == "left" else 0 for row in mask]
    queries = [[position + by for position in item] for item, by in zip(QUERIES, shift, strict=False)]
    if model.config.model_type in {"gpt2"}:
        batch["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = batch["input_ids"]
        batch["decoder_attention_mask"] = mask
    return dict(batch), queries[: len(texts)]


def by_stack(output, causal):
    """Eager's own attention tensors under the tap's stack names."""
    if getattr(output, "attentions", None) is not None:
        return {"decoder" if causal else "encoder": output.attentions}
    return {
        "encoder": output.encoder_attentions,
        "decoder": output.decoder_attentions,
        "cross": output.cross_attentions,
    }


def eager(model, batch):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**batch, output_attentions=True, output_hidden_states=True)
    model.set_attn_implementation("sdpa")
    causal = model.config.model_type in {"gpt2", "llama", "qwen3", "gemma3_text"}
    return output, by_stack(output, causal)


def with_lora(model):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    names = {name.split(".")[-1] for name, _ in model.named_modules()}
    targets = sorted(names & {"query", "key", "c_attn", "q_proj", "k_proj", "q", "k"})
    return get_peft_model(model, LoraConfig(r=4, target_modules=targets, init_lora_weights=False)).eval()


@pytest.mark.parametrize("lora", [False, True], ids=["plain", "lora"])
@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_equal_eager_attention(family, side, lora):
    model, tokenizer = FAMILIES[family]()
    texts = TEXTS[:1] if side == "none" else TEXTS
    batch, queries = batch_of(model, tokenizer, side="right" if side == "none" else side, texts=texts)
    if lora:
        model = with_lora(model)
    reference = eager(unwrapped(model), batch)[1]
    request = RowRequest(queries)
    with torch.no_grad(), tap(model, request):
        model(**batch)
    assert len(request.rows) == sum(len(maps) for maps in reference.values())
    for layer, rows in request.rows.items():
        full = reference[layer.stack][layer.index]  # [batch, head, query, key]
        for item, positions in enumerate(queries):
            expected = full[item][:, positions]
            assert torch.allclose(rows[item, :, : len(positions)], expected, atol=1e-5, rtol=0), layer


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_in_bfloat16_stay_within_its_rounding(family):
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer, side="left")
    model = model.to(torch.bfloat16)
    (_output, reference), first = eager(model, batch), {}
    request = RowRequest(queries)
    with torch.no_grad(), tap(model, request):
        model(**batch)
    for layer, rows in request.rows.items():
        if layer.index == 0 and layer.stack != "cross":  # later layers read states that differ by rounding already
            first[layer] = rows
            expected = reference[layer.stack][0]
            for item, positions in enumerate(queries):
                got = rows[item, :, : len(positions)]
                assert torch.allclose(got, expected[item][:, positions].float(), atol=3e-2, rtol=0), layer
        assert torch.allclose(rows.sum(-1), torch.ones(()), atol=1e-5)
    assert first


@pytest.mark.parametrize("family", FAMILIES)
def test_without_edits_the_output_is_bit_for_bit_that_of_sdpa(family):
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer, side="left")
    with torch.no_grad():
        plain = model(**batch)[0]
        with tap(model, RowRequest(queries)):
            tapped = model(**batch)[0]
        after = model(**batch)[0]
    assert torch.equal(plain, tapped)
    assert torch.equal(plain, after)
    assert model.config._attn_implementation == "sdpa"


def brute_force(model, batch, change):
    """One forward with full T × T maps in which `change(name, weights)` may alter any weight, in plain loops."""

    def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, position_bias=None, **kwargs):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if position_bias is not None:
            scores = scores + position_bias
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = change(module._cijing_layer, scores.softmax(-1))
        return (weights @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("brute_force", attention)
    AttentionMaskInterface.register("brute_force", eager_mask)
    with attached(model):  # labels the modules
        pass
    model.set_attn_implementation("brute_force")
    try:
        with torch.no_grad():
            return model(**batch)[0]
    finally:
        model.set_attn_implementation("sdpa")


@pytest.mark.parametrize("factor", [0.0, 0.25, 4.0], ids=["cut", "damp", "boost"])
@pytest.mark.parametrize("family", FAMILIES)
def test_edited_edges_equal_a_brute_force_computation(family, factor):
    model, tokenizer = FAMILIES[family]()
    batch, _ = batch_of(model, tokenizer, side="right")
    edits = [
        EdgeEdit(query=(3, 4), key=(1, 2), factor=factor, item=0, layers=frozenset({0, 1}), heads=frozenset({1, 2})),
        EdgeEdit(query=(2,), key=(0,), factor=factor, item=1),
    ]

    def change(layer, weights):
        weights = weights.clone()
        for edit in edits:
            if edit.layers is None or layer.index in edit.layers:
                for head in edit.heads or range(weights.shape[1]):
                    for row in edit.query:
                        for column in edit.key:
                            weights[edit.item, head, row, column] *= factor
                        weights[edit.item, head, row] /= weights[edit.item, head, row].sum()
        return weights

    untouched = brute_force(model, batch, lambda layer, weights: weights)
    expected = brute_force(model, batch, change)
    request = RowRequest([[3, 4], [2]], edits=edits)
    with torch.no_grad(), tap(model, request):
        edited = model(**batch)[0]
    real = batch["attention_mask"].bool()
    assert torch.allclose(edited[real], expected[real], atol=2e-5)
    assert (edited - untouched)[real].abs().max() > 1e-3
    if factor == 0.0:
        for layer, rows in request.rows.items():
            assert (rows[1, :, 0, 0] == 0).all(), layer
            cut = rows[0, 1:3][:, :, 1:3]
            assert (cut == 0).all() if layer.index in {0, 1} else (cut > 0).any(), layer
            assert torch.allclose(rows.sum(-1), torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_zeroed_head_equals_brute_force_and_its_removal_restores_every_bit(family):
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer, side="right")
    edits = [HeadEdit(heads=frozenset({1, 3}), item=0, layers=frozenset({1}))]

    def change(layer, weights):
        weights = weights.clone()
        if layer.index == 1:
            weights[0, [1, 3]] = 0.0
        return weights

    expected = brute_force(model, batch, change)
    with torch.no_grad():
        plain = model(**batch)[0]
        with tap(model, RowRequest(queries, edits=edits)):
            edited = model(**batch)[0]
        with tap(model, RowRequest(queries)):
            restored = model(**batch)[0]
    real = batch["attention_mask"].bool()
    assert torch.allclose(edited[real], expected[real], atol=2e-5)
    assert not torch.allclose(edited[0], plain[0], atol=1e-3)
    assert torch.equal(edited[1], plain[1]), "an edit of one text must not move its neighbour in the batch"
    assert torch.equal(restored, plain)


@pytest.mark.parametrize("lora", [False, True], ids=["plain", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_a_loss_on_rows_equal_eagers(family, lora):
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer, side="left")
    if lora:
        model = with_lora(model)
    root = unwrapped(model)

    def gradients(rows_of):
        model.zero_grad()
        rows = rows_of()
        loss = sum(
            -(rows[key][item, :, slot, 1 + slot].clamp_min(1e-9).log()).mean()
            for key in rows
            for item in (0,)
            for slot in (0, 1)
        )
        loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    def tapped():
        request = RowRequest(queries)
        with attached(model):
            model(**batch, rows=request)
        return {(layer.stack, layer.index): rows for layer, rows in request.rows.items()}

    def eagerly():
        root.set_attn_implementation("eager")
        output = model(**batch, output_attentions=True)
        root.set_attn_implementation("sdpa")
        causal = root.config.model_type in {"gpt2", "llama", "qwen3", "gemma3_text"}
        stacks = by_stack(output, causal)
        at = torch.tensor(queries[0])
        return {(stack, i): maps[:, :, at] for stack, all_maps in stacks.items() for i, maps in enumerate(all_maps)}

    one, two = gradients(tapped), gradients(eagerly)
    assert one.keys() == two.keys() and one
    for name in one:
        scale = float(two[name].abs().max())
        assert torch.allclose(one[name], two[name], rtol=0, atol=2e-5 * max(scale, 0.1)), name
    assert max(float(grad.abs().max()) for grad in one.values()) > 1e-4


def test_gradients_survive_non_reentrant_checkpointing_and_reentrant_is_refused():
    model, tokenizer = FAMILIES["llama"]()
    batch, queries = batch_of(model, tokenizer, side="right")
    model.train()

    def gradient():
        model.zero_grad()
        request = RowRequest(queries)
        with attached(model):
            model(**batch, rows=request, use_cache=False)
            assert all(rows.requires_grad for rows in request.rows.values())
            loss = sum(rows[0, :, 0, 1].sum() for rows in request.rows.values())
            loss.backward()
        return model.model.layers[0].self_attn.q_proj.weight.grad.clone()

    plain = gradient()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert torch.allclose(gradient(), plain, atol=1e-6)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(TapError, match="reentrant"):
        gradient()


def test_generate_through_the_context_variable_gives_rows_of_every_step():
    model, tokenizer = FAMILIES["llama"]()
    prompt = tokenizer("我喜欢苹果", return_tensors="pt")
    request = RowRequest(every_call=True)
    with tap(model, request):
        tokens = model.generate(**prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    whole = eager(model, {"input_ids": tokens[:, :-1]})[1]["decoder"]
    for layer, calls in request.calls.items():
        assert len(calls) == 4
        start = 0
        for rows in calls:
            stop = start + rows.shape[2]
            expected = whole[layer.index][:, :, start:stop, : rows.shape[3]]
            assert torch.allclose(rows, expected, atol=1e-5)
            start = stop


def test_a_windowed_layer_gives_no_weight_outside_its_window():
    model, tokenizer = FAMILIES["gemma3"]()
    batch, _ = batch_of(model, tokenizer, texts=TEXTS[:1])
    last = batch["input_ids"].shape[1] - 1
    request = RowRequest([[last]])
    with torch.no_grad(), tap(model, request):
        model(**batch)
    for layer, rows in request.rows.items():
        before_window = rows[0, :, 0, : last - 3]
        assert (before_window == 0).all() if layer.index in {0, 2} else (before_window > 0).all()


@pytest.mark.parametrize("kind", ["softcap", "sinks"])
def test_softcap_and_sinks_are_computed(kind):
    if kind == "softcap":
        config = transformers.Gemma2Config(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=32,
            initializer_range=0.5,
            attn_logit_softcapping=2.0,
            query_pre_attn_scalar=2,
        )
        model = transformers.Gemma2Model(config)
    else:
        config = transformers.GptOssConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=32,
            num_local_experts=2,
            num_experts_per_tok=1,
            initializer_range=0.5,
        )
        model = transformers.GptOssModel(config)
        for layer in model.layers:
            torch.nn.init.normal_(layer.self_attn.sinks, std=2.0)
    model.eval()
    ids = torch.arange(2, 12)[None]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        reference = model(input_ids=ids, output_attentions=True)
        request = RowRequest([[3, 9]])
        with tap(model, request):
            tapped = model(input_ids=ids)[0]
    assert torch.allclose(tapped, reference[0], atol=1e-6)
    for layer, rows in request.rows.items():
        assert torch.allclose(rows[0], reference.attentions[layer.index][0][:, [3, 9]], atol=1e-6)
    if kind == "sinks":
        assert (rows.sum(-1) < 0.999).any()


def test_layers_are_labelled_by_module_and_adapters_align_with_their_base():
    model, tokenizer = FAMILIES["bart"]()
    batch, queries = batch_of(model, tokenizer)
    base, tuned = RowRequest(queries), RowRequest(queries)
    with torch.no_grad(), tap(model, base):
        model(**batch)
    peft = with_lora(copy.deepcopy(model))
    with torch.no_grad(), tap(peft, tuned):
        peft(**batch)
    assert list(base.rows) == list(tuned.rows)
    assert {(layer.stack, layer.index) for layer in base.rows} == {
        (stack, index) for stack in ("encoder", "decoder", "cross") for index in (0, 1)
    }
    assert {layer.module for layer in base.rows if layer.stack == "cross"} == {
        "decoder.layers.0.encoder_attn",
        "decoder.layers.1.encoder_attn",
    }


@pytest.mark.parametrize("change", ["removed", "replaced", "part tapped alone", "swapped"])
def test_labels_that_stay_on_a_model_follow_when_its_layers_change(change):
    model, tokenizer = FAMILIES["bert"]()
    model = unwrapped(model)
    batch, queries = batch_of(model, tokenizer)
    layers = model.encoder.layer
    with attached(model):
        pass
    if change == "removed":
        del layers[0]
    elif change == "replaced":
        layers[1] = type(layers[2])(model.config, layer_idx=1).eval()  # a copy would have a config of its own
    elif change == "swapped":
        layers[0], layers[1] = layers[1], layers[0]
    else:
        label_modules(model.encoder)
        assert layer_of(layers[2].attention.self).module == "layer.2.attention.self"
    request = RowRequest(queries)
    with torch.no_grad(), tap(model, request):
        model(**batch)
    names = [f"encoder.layer.{index}.attention.self" for index in range(len(layers))]
    assert [layer.module for layer in request.rows] == names
    assert [layer.index for layer in request.rows] == list(range(len(layers)))


def test_filters_read_only_the_asked_layers_and_heads():
    model, tokenizer = FAMILIES["bert"]()
    batch, queries = batch_of(model, tokenizer)
    everything, some = RowRequest(queries), RowRequest(queries, layers=[1], heads=[3, 0])
    for request in (everything, some):
        with torch.no_grad(), tap(model, request):
            model(**batch)
    (layer,) = some.rows
    assert layer.index == 1
    assert torch.equal(some.rows[layer], everything.rows[layer][:, [0, 3]])


def test_two_threads_on_one_model_each_get_their_own_rows():
    model, tokenizer = FAMILIES["llama"]()
    results, errors = {}, []

    def work(name, text):
        try:
            for _ in range(20):
                request = RowRequest([[1, 2]])
                with torch.no_grad(), tap(model, request):
                    model(**tokenizer(text, return_tensors="pt"))
                results.setdefault(name, []).append(request)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=item) for item in (("a", TEXTS[0]), ("b", TEXTS[1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for name, requests in results.items():
        first = requests[0].rows
        assert len(first) == 3
        for request in requests:
            assert all(torch.equal(request.rows[layer], first[layer]) for layer in first), name
    assert model.config._attn_implementation == "sdpa"


def test_families_that_bypass_the_interface_are_refused_with_the_reason():
    config = transformers.BloomConfig(vocab_size=50, hidden_size=16, n_layer=1, n_head=2)
    with pytest.raises(TapError, match="BloomModel"), tap(transformers.BloomModel(config), RowRequest([[0]])):
        pass


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (lambda: RowRequest([[99]]), "position 99"),
        (lambda: RowRequest([[-1]]), "from 0"),
        (lambda: RowRequest([[]]), "no query"),
        (lambda: RowRequest([[0], [0]]), "2 texts"),
        (lambda: RowRequest([[1]], edits=[EdgeEdit(query=(1,), key=(99,))]), "key position 99"),
        (lambda: RowRequest([[1]], edits=[EdgeEdit(query=(1,), key=(0,), item=4)]), "text 4"),
        (lambda: RowRequest([[1]], edits=[EdgeEdit(query=(0,), key=(0,))]), "at least one"),
        (lambda: RowRequest([[1]], edits=[EdgeEdit(query=(1,), key=(0,), factor=-1.0)]), "not allowed"),
        (lambda: RowRequest([[1]], edits=[HeadEdit(heads=frozenset({9}))]), "heads 0 to 3"),
    ],
)
def test_impossible_requests_are_refused(request_, message):
    model, tokenizer = FAMILIES["llama"]()
    batch = tokenizer("苹果手机", return_tensors="pt")
    with pytest.raises(TapError, match=message), torch.no_grad():
        request = request_()
        with tap(model, request):
            model(**batch)
    assert model.config._attn_implementation == "sdpa"


def test_a_request_used_for_two_forward_passes_is_refused():
    model, tokenizer = FAMILIES["bert"]()
    batch, queries = batch_of(model, tokenizer)
    request = RowRequest(queries)
    with torch.no_grad(), tap(model, request):
        model(**batch)
        with pytest.raises(TapError, match="twice"):
            model(**batch)


def test_a_module_that_serves_several_layers_gives_rows_for_each_and_not_for_a_second_pass():
    from tests import family_zoo

    (family,) = [one for one in family_zoo.FAMILIES if one.name == "ALBERT"]
    model, ids = family_zoo.build(family), torch.arange(5, 12)[None]
    request = RowRequest([[3]], edits=[HeadEdit(heads=frozenset({0}), layers=frozenset({1}))])
    with torch.no_grad(), tap(model, request):
        model(input_ids=ids)
        assert [(layer.index, layer.module.split(".")[2]) for layer in request.rows] == [(0, "0"), (1, "0"), (2, "1")]
        with pytest.raises(TapError, match="more than 3 times"):
            model(input_ids=ids)


def test_the_tap_makes_no_tensor_of_query_times_key_size():
    from torch.utils._python_dispatch import TorchDispatchMode

    model, _ = FAMILIES["llama"](max_position_embeddings=512)
    length, largest = 300, []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(tensor, torch.Tensor) and "scaled_dot_product" not in str(func):
                    last_two = tensor.shape[-2:] if tensor.dim() >= 2 else ()
                    if list(last_two) == [length, length] or list(last_two)[::-1] == [length, length]:
                        largest.append(str(func))
            return out

    ids = torch.randint(5, 40, (1, length))
    with torch.no_grad():
        with tap(model, RowRequest([[5, 50, 150, 299]])), Watch():
            model(input_ids=ids)
        assert largest == []
        model.set_attn_implementation("eager")
        with Watch():
            model(input_ids=ids)
    assert largest, "the watch must see the maps that eager attention makes"
