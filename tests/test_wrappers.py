"""Rows under what stands around a model: PEFT, DDP, device maps, autocast, checkpointing, threads, torch.compile."""

import dataclasses
import threading
from functools import partial

import peft
import pytest
import torch
import transformers

from probe.anatomy import adapters_in_use
from probe.capture import capture
from probe.captures import CaptureOptions
from probe.cases import case_of
from probe.edits import EdgeEdit, HeadEdit
from probe.errors import ModelError, TapError
from probe.models import load_model, model_from_parts
from probe.rowrequest import RowRequest
from probe.rowtap import attached, tap
from probe.selfcheck import _dense, check_model
from probe.switching import eagerly
from probe.wrappers import unwrapped
from tests.test_rowtap import batch_of
from tests.tiny import FAMILIES, tiny_bert, tiny_llama

CASE = case_of("我喜欢苹果但讨厌梨子", target="苹果", cues=["喜欢"])
TARGETS = {"bert": ["query", "key"], "llama": ["q_proj", "o_proj"], "gpt2": ["c_attn"], "t5": ["q", "v"]}


def adapted(model, family, *names, **changes):
    """Several LoRAs, each with other weights that do something; the first one is active."""
    for seed, name in enumerate(names):
        torch.manual_seed(seed + 5)
        config = peft.LoraConfig(r=4, target_modules=TARGETS[family], init_lora_weights=False,
                                 fan_in_fan_out=family == "gpt2", **changes)  # fmt: skip
        if seed == 0:
            model = peft.get_peft_model(model, config, adapter_name=name)
        else:
            model.add_adapter(name, config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.mul_(0.3)
    return model.eval()


def rows_of(model, batch, queries, **options):
    request = RowRequest(queries, **options)
    with torch.no_grad(), tap(model, request):
        model(**batch)
    assert request.rows
    return request.rows


def gap(first, second):
    assert set(first) == set(second)
    return max(float((first[layer] - second[layer]).abs().max()) for layer in first)


def eager_rows(model, batch, queries):
    """Eager attention's own maps at the asked queries, in the order of the layers."""
    root = unwrapped(model)
    root.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    root.set_attn_implementation("sdpa")
    index = torch.tensor(queries)[:, None, :, None]
    return [maps.gather(2, index.expand(-1, maps.shape[1], -1, maps.shape[3])) for maps in output.attentions]


# PEFT


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_rows_follow_the_adapter_that_is_active(family):
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer)
    queries = [[2, 4], [1, 2]]
    base = rows_of(model, batch, queries)
    model = adapted(model, family, "law", "code")
    seen = {}
    for name in ("law", "code", "law"):
        model.set_adapter(name)
        rows = rows_of(model, batch, queries)
        eager = eager_rows(model, batch, queries)
        for layer, found in rows.items():
            assert torch.allclose(found, eager[layer.index], atol=1e-5)
        if name in seen:
            assert gap(rows, seen[name]) == 0.0  # back again
        seen[name] = rows
    assert gap(seen["law"], seen["code"]) > 1e-3 and gap(seen["law"], base) > 1e-3


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "t5"])
def test_a_disabled_adapter_gives_the_rows_of_the_base_and_a_merged_one_its_own(family):
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer)
    base = rows_of(model, batch, queries)
    model = adapted(model, family, "law")
    live = rows_of(model, batch, queries)
    with model.disable_adapter():
        assert gap(rows_of(model, batch, queries), base) == 0.0
    model.merge_adapter()
    merged = rows_of(model, batch, queries)
    model.unmerge_adapter()
    assert gap(live, base) > 0 and gap(merged, live) <= 1e-5
    assert gap(rows_of(model.merge_and_unload(), batch, queries), live) <= 1e-5


def test_head_outputs_follow_the_adapter_of_the_output_projection():
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer)
    model = adapted(model, "llama", "law")
    outputs = []
    for merged in (False, True):
        if merged:
            model.merge_adapter()
        request = RowRequest(queries, head_outputs=True)
        with torch.no_grad(), tap(model, request):
            model(**batch)
        outputs.append(request.head_outputs)
    with model.disable_adapter(), torch.no_grad(), tap(model, request := RowRequest(queries, head_outputs=True)):
        model(**batch)
    assert gap(*outputs) <= 1e-4 and gap(outputs[0], request.head_outputs) > 1e-2


def test_captures_of_one_cache_do_not_mix_adapters(tmp_path):
    model, tokenizer = tiny_llama()
    model = adapted(model, "llama", "law", "code")
    loaded = model_from_parts(model, tokenizer, name="both")
    options = CaptureOptions(cache=tmp_path)

    def rows(**more):
        (one,) = capture(loaded, [CASE], options=dataclasses.replace(options, **more))
        return one.rows

    law = rows()
    model.set_adapter("code")
    code = rows()
    assert (code != law).any() and (code == rows(cache=None)).all()
    with model.disable_adapter():
        assert (rows() == rows(cache=None)).all()
    model.set_adapter("law")
    assert (rows() == law).all()
    with torch.no_grad():  # trained on, in place
        for name, weight in model.named_parameters():
            if "lora_B.law" in name:
                weight.add_(0.5)
    assert (rows() != law).any() and (rows() == rows(cache=None)).all()


def test_fingerprints_tell_active_disabled_and_merged_adapters_apart():
    model, tokenizer = tiny_llama()
    model = adapted(model, "llama", "law", "code")
    prints = [model_from_parts(model, tokenizer, name="m").fingerprint]
    model.set_adapter("code")
    prints.append(model_from_parts(model, tokenizer, name="m").fingerprint)
    with model.disable_adapter():
        prints.append(model_from_parts(model, tokenizer, name="m").fingerprint)
    model.merge_adapter()
    prints.append(model_from_parts(model, tokenizer, name="m").fingerprint)
    assert len(set(prints)) == 4
    model.unmerge_adapter()
    assert adapters_in_use(tiny_llama()[0]) == ""


@pytest.mark.parametrize("config", [
    peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
])  # fmt: skip
def test_virtual_tokens_in_front_of_the_text_are_refused_and_the_base_is_not(config):
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer)
    base = rows_of(model, batch, queries)
    model = peft.get_peft_model(model, config).eval()
    with (
        pytest.raises(TapError, match=r"_TUNING puts virtual tokens in front of the text"),
        tap(model, RowRequest([[1]])),
    ):
        pass
    assert gap(rows_of(model.get_base_model(), batch, queries), base) == 0.0


# DDP and device maps


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path / 'meet'}")
    yield
    torch.distributed.destroy_process_group()


def loss_of(rows):
    return -sum(found[..., 1].mean() for found in rows.values())


def gradients(model, batch, queries):
    """Gradients of a loss on rows, by name without wrappers; the request goes as a keyword, as in training."""
    request = RowRequest(queries)
    with attached(model):
        model(**batch, rows=request)
        loss_of(request.rows).backward()
    found = {n.removeprefix("module."): p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def worst(first, second):
    assert first.keys() == second.keys() and first
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("lora", [False, True], ids=["plain", "lora"])
def test_ddp_gives_the_rows_and_gradients_of_the_model_inside(lora):
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer)
    model = adapted(model, "llama", "law") if lora else model
    rows, expected = rows_of(model, batch, queries), gradients(model, batch, queries)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    assert gap(rows_of(wrapped, batch, queries), rows) == 0.0
    assert worst(gradients(wrapped, batch, queries), expected) <= 1e-6
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-3
    inside, alone = load_model(wrapped, tokenizer=tokenizer), load_model(model, tokenizer=tokenizer)
    assert inside.model is model and inside.fingerprint == alone.fingerprint and inside.name == alone.name
    (one,), (other,) = (capture(loaded, [CASE]) for loaded in (inside, alone))
    assert (one.rows == other.rows).all() and check_model(inside).passed


MAP = {f"model.{part}": "cpu" for part in ("embed_tokens", "layers.0", "layers.1", "layers.2", "norm", "rotary_emb")}


def test_a_device_map_with_hooks_gives_the_same_rows_by_tap_and_by_keyword():
    accelerate = pytest.importorskip("accelerate")
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer)
    expected = rows_of(model, batch, queries)
    loaded = model_from_parts(model, tokenizer, name="m")
    (plain,) = capture(loaded, [CASE])
    model = accelerate.dispatch_model(model, {**MAP, "lm_head": "cpu"}, force_hooks=True)
    assert hasattr(model.model.layers[1], "_hf_hook")
    assert gap(rows_of(model, batch, queries, head_outputs=True), expected) == 0.0
    request = RowRequest(queries)
    with torch.no_grad(), attached(model):
        model(**batch, rows=request)  # the hooks move every keyword: the request must not be copied
    assert gap(request.rows, expected) == 0.0
    hooked = model_from_parts(model, tokenizer, name="m")
    (one,) = capture(hooked, [CASE], options=CaptureOptions(head_outputs=True))
    assert (one.rows == plain.rows).all() and hooked.fingerprint == loaded.fingerprint


def test_offloaded_weights_are_tapped_as_they_compute_but_not_loaded_as_a_model(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer)
    request = RowRequest(queries, head_outputs=True)
    with torch.no_grad(), tap(model, request):
        model(**batch)
    away = accelerate.cpu_offload(model, torch.device("cpu"))
    again = RowRequest(queries, head_outputs=True)
    with torch.no_grad(), tap(away, again):
        away(**batch)
    assert gap(again.rows, request.rows) == 0.0 and gap(again.head_outputs, request.head_outputs) <= 1e-5
    with pytest.raises(ModelError, match=r"^away: \d+ weights are offloaded, first .*; load it whole into memory"):
        model_from_parts(away, tokenizer, name="away")


# Precision


@pytest.mark.parametrize("lora", [False, True], ids=["plain", "lora"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "qwen3", "gemma3", "t5", "bart"])
def test_rows_under_autocast_are_exact_for_the_rounded_inputs_of_sdpa(family, lora):
    model, tokenizer = FAMILIES[family]()
    batch, _ = batch_of(model, tokenizer)
    real = batch["attention_mask"].bool()  # a pad's row may see nothing at all: uniform here, zero in SDPA
    if lora and family in TARGETS:
        model = adapted(model, family, "law")
    everything = [list(range(batch["input_ids"].shape[1]))] * 2
    calls = []
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        with tap(model, RowRequest(everything, inspect=calls.append, head_outputs=True)):
            tapped = model(**batch)[0]
        assert torch.equal(model(**batch)[0], tapped)
    for call in calls:
        assert call.rows.dtype == torch.float32 and call.query.dtype == call.key.dtype == torch.bfloat16
        assert float((call.rows - _dense(call)).abs().max()) <= 1e-6
        mixed = call.rows @ call.value.float().repeat_interleave(call.query.shape[1] // call.value.shape[1], dim=1)
        scale = max(1.0, float(call.output.float().abs().max()))
        assert float((mixed.transpose(1, 2) - call.output.float())[real].abs().max()) <= 2e-2 * scale


def test_an_edit_under_autocast_is_the_edit_of_those_inputs():
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer)
    edits = [EdgeEdit(query=(4,), key=(2,)), HeadEdit(heads=frozenset({0}), item=1)]
    request = RowRequest(queries, edits=edits)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = model(**batch).logits
        with tap(model, request):
            edited = model(**batch).logits
        again = model(**batch).logits
    assert (
        torch.equal(plain, again) and torch.equal(plain[0, :4], edited[0, :4]) and (plain[0, 4] != edited[0, 4]).any()
    )
    assert all(float(rows[0, :, 1, 2].max()) == 0.0 for rows in request.rows.values())


# Checkpointing


@pytest.mark.parametrize("lora", [False, True], ids=["plain", "lora"])
@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "t5"])
def test_checkpointed_gradients_equal_those_of_eager_attention(family, lora):
    model, tokenizer = FAMILIES[family]()
    batch, queries = batch_of(model, tokenizer)
    batch, queries = {name: tensor[:1] for name, tensor in batch.items()}, queries[:1]
    model = adapted(model, family, "law") if lora else model
    root = unwrapped(model)
    root.set_attn_implementation("eager")
    output = model(**batch, output_attentions=True)
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    maps = [maps for name in names for maps in output.get(name) or ()]
    loss_of({place: found[:, :, queries[0]] for place, found in enumerate(maps)}).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    root.set_attn_implementation("sdpa")
    root.gradient_checkpointing_enable({"use_reentrant": False})
    if lora:
        root.enable_input_require_grads()
    got = gradients(model.train(), batch, queries)
    expected = {name: expected.get(name, torch.zeros_like(grad)) for name, grad in got.items()}
    assert worst(got, expected) <= 1e-6 and max(float(grad.abs().max()) for grad in got.values()) > 1e-3
    root.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(TapError, match="reentrant gradient checkpointing"), attached(model):
        pass


# Threads


def in_threads(*works):
    """Run all at once; give what each returned, raise what any raised."""
    results, errors = {}, []

    def run(place, work):
        try:
            results[place] = work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not errors, errors
    return [results[place] for place in range(len(works))]


def test_two_threads_may_capture_from_one_model_at_once():
    """Each capture also runs eager attention on the shared model: threads must take turns, not switch under another."""
    model, tokenizer = tiny_llama()
    loaded = model_from_parts(model, tokenizer, name="m")
    cases = [CASE, case_of("苹果手机", target="苹果", id="phone")]
    expected = [next(capture(loaded, [case], options=CaptureOptions(head_outputs=True))) for case in cases]

    def work(case):
        return [next(capture(loaded, [case], options=CaptureOptions(head_outputs=True))) for _ in range(8)]

    found = in_threads(partial(work, cases[0]), partial(work, cases[1]), partial(work, cases[0]))
    for captures, one in zip(found, [*expected, expected[0]], strict=True):
        assert all((got.rows == one.rows).all() and (got.head_outputs == one.head_outputs).all() for got in captures)
    assert model.config._attn_implementation == "sdpa"


def test_a_check_beside_a_capture_in_another_thread_passes_and_leaves_the_model_as_it_was():
    model, tokenizer = tiny_bert()
    loaded = model_from_parts(model, tokenizer, name="m")
    reports, _ = in_threads(
        lambda: [check_model(loaded) for _ in range(5)],
        lambda: [next(capture(loaded, [CASE])).rows for _ in range(50)],
    )
    assert all(report.passed for report in reports) and model.config._attn_implementation == "sdpa"


def test_a_thread_that_would_wait_for_itself_is_told_so():
    model, _ = tiny_bert()
    with pytest.raises(TapError, match="cannot be tapped and computed with eager attention at once"):  # noqa: SIM117
        with tap(model, RowRequest([[1]])), eagerly(model):
            pass
    with pytest.raises(TapError, match="at once"), eagerly(model), attached(model):
        pass
    assert model.config._attn_implementation == "sdpa"


def test_two_models_of_one_configuration_may_be_tapped_inside_each_other():
    model, tokenizer = tiny_bert()
    batch, queries = batch_of(model, tokenizer)
    twin = transformers.BertModel(model.config).eval()
    outer, inner = RowRequest(queries), RowRequest(queries)
    with torch.no_grad(), tap(model, outer):
        model(**batch)
        with tap(twin, inner):
            twin(**batch)
    assert len(outer.rows) == len(inner.rows) == 3 and gap(outer.rows, inner.rows) > 1e-3
    assert model.config._attn_implementation == "sdpa"


# torch.compile


@pytest.mark.parametrize("inside", [False, True], ids=["wrapped", "in place"])
def test_a_compiled_model_gives_the_rows_of_the_model_for_request_after_request(inside):
    model, tokenizer = tiny_llama()
    batch, _ = batch_of(model, tokenizer)
    plain = {place: rows_of(model, batch, [[place], [0]]) for place in range(3)}
    torch._dynamo.reset()
    compiled = model if inside else torch.compile(model, backend="eager")
    if inside:
        model.compile(backend="eager")
    with torch.no_grad():
        before = compiled(**batch).logits
    with torch._dynamo.config.patch(recompile_limit=2):  # more requests than dynamo keeps graphs of one function
        for place in (0, 1, 2, 0):
            assert gap(rows_of(compiled, batch, [[place], [0]]), plain[place]) <= 1e-6
    with torch.no_grad():
        with tap(compiled, RowRequest([[4], [0]], edits=[EdgeEdit(query=(4,), key=(2,))])):
            assert (compiled(**batch).logits != before).any()
        assert torch.equal(compiled(**batch).logits, before)


@pytest.mark.parametrize("inside", [False, True], ids=["wrapped", "in place"])
def test_a_model_compiled_into_one_whole_graph_is_refused_with_the_reason(inside):
    model, tokenizer = tiny_llama()
    batch, queries = batch_of(model, tokenizer)
    torch._dynamo.reset()
    compiled = model if inside else torch.compile(model, backend="eager", fullgraph=True)
    if inside:
        model.compile(backend="eager", fullgraph=True)
    with pytest.raises(TapError, match=r"^LlamaForCausalLM is compiled with fullgraph=True"):  # noqa: SIM117
        with torch.no_grad(), tap(compiled, RowRequest(queries)):
            compiled(**batch)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("lora", [False, True], ids=["plain", "lora"])
def test_a_compiled_model_is_loaded_as_the_model_inside_it(lora):
    model, tokenizer = tiny_llama()
    model = adapted(model, "llama", "law") if lora else model
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)  # loaded uncompiled, so this does no harm
    with torch.no_grad():
        compiled(torch.tensor([[5, 6, 7]]))
    inside = load_model(compiled, tokenizer=tokenizer)
    assert inside.model is model and type(compiled).__name__ == "OptimizedModule"
    (one,), (other,) = (capture(x, [CASE]) for x in (inside, load_model(model, tokenizer=tokenizer)))
    assert (one.rows == other.rows).all()


def test_wrappers_that_do_not_compute_with_the_models_own_weights_are_refused_by_name():
    model, tokenizer = tiny_llama()
    with pytest.raises(
        ModelError, match=r"is a DataParallel, not a .* inside DistributedDataParallel or torch\.compile$"
    ):
        load_model(torch.nn.DataParallel(model), tokenizer=tokenizer)


# Quantised bases


@pytest.mark.filterwarnings("ignore")
def test_weights_that_torch_packed_are_refused_in_one_line():
    model, tokenizer = tiny_llama()
    packed = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    with pytest.raises(ModelError, match=r"^m: \d+ weights are packed by torch\.ao quantization, first "):
        model_from_parts(packed, tokenizer, name="m")


def quantised(tmp_path, **settings):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: 4-bit and 8-bit bases are not run here")
    _, tokenizer = tiny_llama(tmp_path, hidden_size=64, intermediate_size=128)
    config = transformers.BitsAndBytesConfig(**settings)
    folder = tmp_path / "llama"
    return transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config), tokenizer


@pytest.mark.parametrize("kind", ["fp4", "nf4"])
def test_a_four_bit_base_with_a_lora_passes_every_check(tmp_path, kind):
    settings = {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_compute_dtype": torch.float32}
    model, tokenizer = quantised(tmp_path, **settings)
    base = check_model(load_model(model, tokenizer=tokenizer))
    lora = check_model(load_model(adapted(model, "llama", "law"), tokenizer=tokenizer))
    assert base.passed and lora.passed and base.path == "tap"
    (one,) = capture(load_model(model, tokenizer=tokenizer), [CASE], options=CaptureOptions(head_outputs=True))
    assert one.head_outputs is not None


def test_an_eight_bit_base_is_refused_for_its_rows_depend_on_the_batch(tmp_path):
    model, tokenizer = quantised(tmp_path, load_in_8bit=True)
    with pytest.raises(ModelError, match=r"is loaded in 8 bit: LLM\.int8 rounds a text by its neighbours in the batch"):
        load_model(model, tokenizer=tokenizer)
