"""Long texts: what filters save is counted, a pass can be watched by layer, and stopping one leaves nothing behind."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import prime_up_to, square_tensors
from probe import switching, terminal
from probe.capture import capture_prepared, estimate_bytes, prepare
from probe.captures import CaptureOptions, save_capture
from probe.cases import case_of
from probe.errors import TapError
from probe.generation import generate_rows
from probe.models import model_from_parts
from probe.routes import batch_for, route_of
from probe.rowrequest import RowRequest
from probe.rows import ScoreTerms, attention_rows
from probe.rowtap import attached, tap
from tests.tiny import FAMILIES
from tests.tiny import tiny_llama as llama_of

LENGTH = 1000
QUERIES = [[100, 200, 300, 400]]


class Bytes(TorchDispatchMode):
    """Sums the bytes of all tensors that a computation makes; views make none."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.made += tensor.nbytes
        return out


@pytest.fixture(scope="module")
def model():
    return llama_of(max_position_embeddings=2 * LENGTH)[0]


def bytes_of(model, request=None):
    ids = torch.arange(5, 5 + LENGTH)[None] % 40
    with torch.no_grad(), Bytes() as counter:
        if request is None:
            model(input_ids=ids, use_cache=False)
        else:
            with tap(model, request):
                model(input_ids=ids, use_cache=False)
    return counter.made


@pytest.mark.parametrize(
    ("filters", "share"),
    [({"layers": [1]}, 1 / 3), ({"heads": [2]}, 1 / 4), ({"layers": [0, 2], "heads": [0, 3]}, 1 / 3)],
    ids=["layers", "heads", "both"],
)
def test_a_filter_cuts_what_the_tap_makes_and_not_only_what_it_keeps(model, filters, share):
    plain = bytes_of(model)
    everything = bytes_of(model, RowRequest(QUERIES, value_norms=True)) - plain
    some = bytes_of(model, RowRequest(QUERIES, value_norms=True, **filters)) - plain
    assert everything > 3 * 4 * 4 * LENGTH * 4  # layers, heads, queries, keys, bytes
    assert some <= (share + 0.15) * everything


def test_fewer_rows_make_less_in_proportion(model):
    plain = bytes_of(model)
    four, one = (bytes_of(model, RowRequest([queries])) - plain for queries in (QUERIES[0], [100]))
    assert one <= 0.3 * four


def test_grouped_keys_are_neither_repeated_nor_copied():
    heads, kv_heads, dim = 8, 2, 16
    query, key = torch.randn(1, heads, LENGTH, dim), torch.randn(1, kv_heads, LENGTH, dim)
    terms = ScoreTerms(scaling=0.25, mask=None, causal=True, position_bias=None, softcap=None, sinks=None)
    for filtered in (None, [1, 6]):
        with Bytes() as counter:
            rows = attention_rows(query, key, terms, torch.tensor(QUERIES), heads=filtered)
        # Products, scaling, masking and softmax: each as large as the rows, and a mask of one byte for all heads.
        assert counter.made <= (6 if filtered else 5) * rows.nbytes + 10 * 4 * LENGTH
        repeated = heads * LENGTH * dim * 4
        assert counter.made < repeated + 4 * rows.nbytes


def test_half_precision_keys_become_float32_block_by_block(monkeypatch):
    query, key = torch.randn(1, 8, 30, 16).bfloat16(), torch.randn(1, 2, 30, 16).bfloat16()
    terms = ScoreTerms(scaling=0.25, mask=None, causal=True, position_bias=None, softcap=None, sinks=None)
    positions = torch.tensor([[3, 29]])
    whole = attention_rows(query, key, terms, positions)
    monkeypatch.setattr("probe.rows._KEYS_AT_ONCE", 7)
    assert torch.allclose(attention_rows(query, key, terms, positions), whole, atol=1e-6)
    with Bytes() as counter:
        attention_rows(query, key, terms, positions, heads=[0])
    assert counter.made > 0


@pytest.mark.parametrize("family", ["bert", "t5", "gemma3", "llama"])
def test_filtered_heads_give_the_numbers_of_the_whole(family):
    model, tokenizer = FAMILIES[family]()
    batch = dict(tokenizer(["我喜欢苹果但讨厌梨子", "苹果手机"], return_tensors="pt", padding=True))
    batch.pop("token_type_ids", None)
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = batch["input_ids"]
    everything, some = (RowRequest([[2, 3], [2]], value_norms=True, heads=heads) for heads in (None, [3, 1]))
    for request in (everything, some):
        with torch.no_grad(), tap(model, request):
            model(**batch)
    for layer, rows in some.rows.items():
        assert torch.allclose(rows, everything.rows[layer][:, [1, 3]], atol=1e-6)
        assert torch.equal(some.value_norms[layer], everything.value_norms[layer][:, [1, 3]])


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ([9], r"head 9 asked, but layers\.0\.self_attn has heads 0 to 3"),
        ([-1], "heads has -1: allowed are whole numbers from 0"),
        ([], "at least one"),
    ],
)
def test_heads_that_the_model_does_not_have_are_refused(model, heads, message):
    with pytest.raises(TapError, match=message):
        bytes_of(model, RowRequest(QUERIES, heads=heads))


def test_a_recompute_during_backward_is_no_further_layer():
    model, _ = llama_of()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    said = []
    request = RowRequest([[2]], on_layer=said.append)
    with attached(model):
        model(torch.arange(5, 10)[None], rows=request, use_cache=False)
        sum(rows.sum() for rows in request.rows.values()).backward()
    assert [layer.index for layer in said] == [0, 1, 2]


def test_the_estimate_counts_the_grids_that_a_model_makes_itself():
    """Windows need a mask, a byte and a number a pair; a plain causal text needs none."""
    length = prime_up_to(300)
    made, estimates = {}, {}
    for family in ("llama", "gemma3", "t5"):
        model, tokenizer = FAMILIES[family](**({} if family == "t5" else {"max_position_embeddings": 512}))
        loaded = model_from_parts(model, tokenizer, name=family)
        batch = batch_for(loaded, [[5] * length])
        made[family] = square_tensors(partial(loaded.backbone, **batch), length).total()
        estimates[family] = estimate_bytes(
            loaded, route_of(loaded), texts=1, length=length, queries=1, options=CaptureOptions(states=False)
        )
    activations = length * (8 * 32 + 3 * 64) * 4 + 5 * 4 * length * 4 * 8
    assert made["llama"] == 0 and estimates["llama"] < activations
    assert made["gemma3"] > 0 and estimates["gemma3"] > 5 * length**2
    assert made["t5"] > 0 and estimates["t5"] > 4 * 4 * length**2


# ---- progress and Ctrl-C --------------------------------------------------------------------------------------


def a_prepared_case(family="llama"):
    loaded = model_from_parts(*FAMILIES[family](), name=family)
    return loaded, prepare(loaded, [case_of("我喜欢苹果", target="苹果", cues=["喜欢"])])


@pytest.mark.parametrize(("family", "layers"), [("llama", 3), ("bert", 3), ("t5", 6)])
def test_a_pass_says_how_many_of_its_layers_are_done(family, layers):
    loaded, items = a_prepared_case(family)
    said = []
    list(capture_prepared(loaded, items, options=CaptureOptions(), on_layer=lambda *how_far: said.append(how_far)))
    assert said == [(done, layers) for done in range(1, layers + 1)]


def test_the_eager_path_says_how_many_layers_are_done_too_and_stops_where_it_is_told():
    """A module for each layer, and one module for all of them."""
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    tokenizer = FAMILIES["bert"]()[1]
    albert = transformers.AlbertConfig(vocab_size=len(tokenizer), embedding_size=16, **sizes)
    mpnet = transformers.MPNetConfig(vocab_size=len(tokenizer), **sizes)
    for model in (transformers.MPNetModel(mpnet), transformers.AlbertModel(albert)):
        loaded = model_from_parts(model.eval(), tokenizer, name="eager")
        route = dataclasses.replace(route_of(loaded), path="eager")
        items = prepare(loaded, [case_of("我喜欢苹果", target="苹果")])
        came_with, hooks, said = model.config._attn_implementation, hooks_of(model), []
        list(capture_prepared(loaded, items, options=CaptureOptions(), route=route,
                              on_layer=lambda *how_far, said=said: said.append(how_far)))  # fmt: skip
        assert said == [(1, 3), (2, 3), (3, 3)] and hooks_of(model) == hooks
        with pytest.raises(KeyboardInterrupt):
            list(capture_prepared(loaded, items, options=CaptureOptions(), route=route, on_layer=Stop()))
        assert hooks_of(model) == hooks and model.config._attn_implementation == came_with


def test_attend_shows_layers_only_once_it_takes_long(monkeypatch, tmp_path, capsys):
    from probe.__main__ import run

    llama_of(tmp_path)
    command = ["attend", "我喜欢苹果", "--target", "苹果", "--model", str(tmp_path / "llama")]
    assert run(command) == 0
    assert "layers" not in capsys.readouterr().err
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 0.0)
    assert run(command) == 0
    assert "layers: 1 of 3\n" in capsys.readouterr().err


class Stop:
    """Ctrl-C in the middle of the forward pass: as the second layer is done."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *how_far: object) -> None:
        self.calls += 1
        if self.calls == 2:
            raise KeyboardInterrupt


def hooks_of(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("family", ["llama", "bert", "gemma3", "t5"])
def test_ctrl_c_in_the_middle_of_a_pass_leaves_the_model_as_before(family, tmp_path):
    loaded, items = a_prepared_case(family)
    options = CaptureOptions(cache=tmp_path / "cache")
    (before,) = capture_prepared(loaded, items, options=CaptureOptions())
    hooks = hooks_of(loaded.model)
    with pytest.raises(KeyboardInterrupt):
        list(capture_prepared(loaded, items, options=options, on_layer=Stop()))
    assert loaded.backbone.config._attn_implementation == loaded.model.config._attn_implementation == "sdpa"
    assert hooks_of(loaded.model) == hooks and switching._switched == {}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    (after,) = capture_prepared(loaded, items, options=options)
    assert np.array_equal(after.rows, before.rows)
    assert all(np.array_equal(after.states[stack], before.states[stack]) for stack in before.states)


def test_ctrl_c_while_a_capture_is_written_leaves_no_file(tmp_path, monkeypatch):
    loaded, items = a_prepared_case()
    (one,) = capture_prepared(loaded, items, options=CaptureOptions())

    def interrupted(*paths: object) -> None:
        assert list(tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_capture(one, tmp_path / "one.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_a_model_generates_leaves_it_as_before(monkeypatch):
    loaded = model_from_parts(*FAMILIES["llama"](), name="llama")
    before = generate_rows(loaded, "我喜欢苹果", max_new_tokens=4, cache="static")
    calls = Stop()
    forward = type(loaded.model).forward

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls()
        return forward(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(loaded.model), "forward", interrupted)
        generate_rows(loaded, "我喜欢苹果", max_new_tokens=4, cache="static")
    assert loaded.model.config._attn_implementation == "sdpa"
    assert not hasattr(loaded.model, "_previous_max_cache_length")
    after = generate_rows(loaded, "我喜欢苹果", max_new_tokens=4, cache="static")
    assert np.array_equal(after.rows, before.rows)
