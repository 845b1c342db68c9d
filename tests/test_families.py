"""The matrix of families: exact by the tap, exact through eager attention, or refused with the reason."""

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from probe.edits import EdgeEdit
from probe.errors import TapError
from probe.labels import Layer
from probe.routes import forward_rows
from probe.rowrequest import RowRequest
from probe.rowtap import tap
from probe.selfcheck import check_model
from tests.family_zoo import (
    FAMILIES,
    PINNED,
    VERSION,
    exists,
    found_of,
    load,
    route,
    table,
    tokenizer_of,
    written_table,
)

LOCAL = 1e-6  # rows against the family's own formula, on the same query and key
END_TO_END = 2e-5  # rows against eager's, fp32; the self-check's own bound is asked as well
TEXTS = ("我喜欢苹果但讨厌梨子", "苹果手机")
QUERY = 4  # of the shorter text
# With an older transformers the floor is tested: every family, in the plainest of each choice that can fail.
WHOLE = VERSION >= PINNED
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16} if WHOLE else {"fp32": torch.float32}
PADDINGS = ("none", "left", "right") if WHOLE else ("right",)
ADAPTERS = ("plain", "lora") if WHOLE else ("plain",)
EVERY = [pytest.param(family, id=family.name) for family in FAMILIES]
GIVEN = [pytest.param(family, id=family.name) for family in FAMILIES if family.verdict != "refused"]


def matrix(function):
    for name, values in (("padding", PADDINGS), ("dtype", DTYPES), ("lora", ADAPTERS)):
        function = pytest.mark.parametrize(name, values)(function)
    return pytest.mark.parametrize("family", GIVEN)(function)


@pytest.fixture(autouse=True)
def present(request):
    family = getattr(request.node, "callspec", None) and request.node.callspec.params.get("family")
    if family and not exists(family):
        pytest.skip(f"this transformers has no {family.stem}Model")


@dataclass(frozen=True)
class Batch:
    inputs: dict
    starts: list  # where each text begins
    lengths: list

    def rows(self):
        return [list(range(s, s + n)) for s, n in zip(self.starts, self.lengths, strict=True)]

    def real(self, item):
        return slice(self.starts[item], self.starts[item] + self.lengths[item])


def batch_of(loaded, padding):
    """One text, or two padded to one width; the same text on both sides of an encoder-decoder."""
    tokenizer = tokenizer_of()
    ids = [tokenizer(text)["input_ids"] for text in (TEXTS[1:] if padding == "none" else TEXTS)]
    width = max(map(len, ids))
    starts = [width - len(item) if padding == "left" else 0 for item in ids]
    tokens = torch.full((len(ids), width), tokenizer.pad_token_id)
    mask = torch.zeros_like(tokens)
    for row, (start, item) in enumerate(zip(starts, ids, strict=True)):
        tokens[row, start : start + len(item)] = torch.tensor(item)
        mask[row, start : start + len(item)] = 1
    inputs = {"input_ids": tokens, "attention_mask": mask}
    if loaded.kind == "encoder-decoder":
        inputs |= {"decoder_input_ids": tokens, "decoder_attention_mask": mask}
    return Batch(inputs, starts, [len(item) for item in ids])


def run(loaded, batch, **settings):
    cache = {} if loaded.kind == "encoder" else {"use_cache": False}
    with torch.no_grad():
        return loaded.backbone(**batch.inputs, output_hidden_states=True, **cache, **settings)


def states_of(output):
    names = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")
    return [output[0], *(state for name in names for state in getattr(output, name, None) or ())]


@contextmanager
def implementation(loaded, name):
    """Falcon cannot be switched by transformers, but reads its setting at each call."""
    model = loaded.backbone
    able, previous = model._can_set_attn_implementation(), model.config._attn_implementation
    switch = model.set_attn_implementation if able else partial(setattr, model.config, "_attn_implementation")
    switch(name)
    try:
        yield
    finally:
        switch(previous)


def eagerly(loaded, batch):
    """The family's own maps, in the order of a route: encoder or decoder, then cross attention; and its output."""
    with implementation(loaded, "eager"):
        output = run(loaded, batch, output_attentions=True)
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    return [maps for name in names for maps in getattr(output, name, None) or ()], output


def tapped(loaded, batch, *, edits=()):
    """Every row, the calls that gave them, and the output."""
    calls = {}
    request = RowRequest(batch.rows(), edits=edits, inspect=lambda call: calls.update({call.layer: call}))
    with tap(loaded.backbone, request):
        output = run(loaded, batch)
    return request.rows, calls, output


def formula(call, dtype=torch.float32):
    """Whole maps by the modeling file's eager function on the very query and key of a call."""
    eager = sys.modules[type(call.module).__module__].eager_attention_forward
    query, key, value = (tensor.to(dtype) for tensor in (call.query, call.key, call.value))
    terms, (queries, keys) = call.terms, (query.shape[2], key.shape[2])
    mask = terms.mask
    if mask is None and terms.causal:
        mask = torch.ones(queries, keys, dtype=torch.bool).tril()[None, None]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    named = {"position_bias": terms.position_bias, "softcap": terms.softcap, "s_aux": terms.sinks}
    given = {name: term for name, term in named.items() if term is not None}
    return eager(call.module, query, key, value, mask, scaling=terms.scaling, dropout=0.0, **given)[1]


def gap(one, other, batch):
    """Largest difference over the real tokens of a batch, of states or of rows [batch, head, query, key] with maps."""
    worst = 0.0
    for item, length in enumerate(batch.lengths):
        real = batch.real(item)
        if one.dim() == 4:  # rows begin with the text's first token, maps with the padding
            difference = one[item, :, :length] - other[item, :, real]
        else:
            difference = one[item, real].float() - other[item, real].float()
        assert torch.isfinite(difference).all()
        worst = max(worst, float(difference.abs().max()))
    return worst


def largest_gap(ones, others, batch):
    return max(gap(one, other, batch) for one, other in zip(ones, others, strict=True))


def equal(one, other, batch):
    return all(torch.equal(one[item, batch.real(item)], other[item, batch.real(item)]) for item in range(len(one)))


@pytest.mark.parametrize("family", EVERY)
def test_the_path_and_its_reason_are_those_of_the_list(family):
    path, reason = found_of(family)
    assert path == family.verdict
    assert family.reason in reason and bool(family.reason) == bool(reason)


@matrix
def test_rows_are_eagers_own_and_the_output_stays(family, padding, dtype, lora):
    loaded = load(family, dtype=DTYPES[dtype], lora=lora == "lora")
    found = route(family, dtype=DTYPES[dtype], lora=lora == "lora")
    batch = batch_of(loaded, padding)
    plain = states_of(run(loaded, batch))
    maps, reference = eagerly(loaded, batch)
    states_differ = largest_gap(plain, states_of(reference), batch)
    if found.path == "eager":
        forward = forward_rows(loaded, found, batch.inputs, RowRequest(batch.rows()), states=True)
        assert largest_gap([forward.rows[layer] for layer in found.layers], maps, batch) == 0.0
        size = max(float(state.abs().max()) for state in plain)
        assert states_differ <= (1e-5 if dtype == "fp32" else 0.05) * size
        return
    rows, calls, output = tapped(loaded, batch)
    assert list(calls) == list(rows) and set(rows) == set(found.layers)
    assert all(equal(a, b, batch) for a, b in zip(plain, states_of(output), strict=True))
    assert max(gap(rows[layer], formula(calls[layer]), batch) for layer in rows) <= LOCAL
    own = 0.0 if dtype == "fp32" else max(gap(rows[at], formula(calls[at], DTYPES[dtype]), batch) for at in rows)
    differ = largest_gap([rows[layer] for layer in found.layers], maps, batch)
    assert differ <= max(4 * states_differ, 1e-6) + own
    assert dtype == "bf16" or differ <= END_TO_END
    assert max(float(rows[layer].max(-1).values.mean()) for layer in rows) > 0.25, "near uniform rows test little"


def brute_force(loaded, batch, cut=None):
    """The states with the edge cut, by whole maps: its weight is set to 0, what is left is divided by its sum."""

    def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if kwargs.get("softcap") is not None:
            scores = kwargs["softcap"] * torch.tanh(scores / kwargs["softcap"])
        for term in (kwargs.get("position_bias"), attention_mask):
            scores = scores if term is None else scores + term
        if kwargs.get("s_aux") is not None:
            sink = kwargs["s_aux"].view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink.to(scores.dtype)], -1)
        weights = scores.softmax(-1)
        seen.append(module._cijing_layer.module)
        if cut and seen[-1] == cut.layer.module and seen.count(seen[-1]) == 1:  # ALBERT calls a module again
            weights = weights.clone()
            weights[cut.item, :, cut.row, cut.column] = 0.0
            weights[cut.item, :, cut.row] /= weights[cut.item, :, cut.row].sum(-1, keepdim=True)
        return (weights[..., : value.shape[2]] @ value).transpose(1, 2).contiguous(), None

    seen = []
    AttentionInterface.register("brute_force", attention)
    AttentionMaskInterface.register("brute_force", eager_mask)
    with implementation(loaded, "brute_force"):
        return states_of(run(loaded, batch))


@dataclass(frozen=True)
class Cut:
    """One edge of one layer, in places of the padded row."""

    layer: Layer
    item: int
    row: int
    column: int

    @property
    def edit(self):
        layers, stacks = frozenset({self.layer.index}), frozenset({self.layer.stack})
        return EdgeEdit(query=(self.row,), key=(self.column,), item=self.item, layers=layers, stacks=stacks)


def cut_of(layer, batch, rows=None):
    """The edge of the last text's query that carries most without carrying all; its first one where rows are none."""
    item, start = len(batch.lengths) - 1, batch.starts[-1]
    column = start
    if rows is not None:
        weights = rows[item, :, QUERY]
        column = int((weights * (1 - weights)).mean(0).argmax())
    return Cut(layer, item, start + QUERY, column)


@matrix
def test_a_cut_edge_is_exact_or_refused(family, padding, dtype, lora):
    loaded = load(family, dtype=DTYPES[dtype], lora=lora == "lora")
    found = route(family, dtype=DTYPES[dtype], lora=lora == "lora")
    batch = batch_of(loaded, padding)
    if found.path == "eager":
        request = RowRequest(batch.rows(), edits=[cut_of(found.layers[0], batch).edit])
        with pytest.raises(TapError, match=r"cannot be edited on the eager path \(.*interface"):
            forward_rows(loaded, found, batch.inputs, request, states=False)
        return
    rows, calls, output = tapped(loaded, batch)
    before, untouched = states_of(output), brute_force(loaded, batch)
    rounding = largest_gap(untouched, before, batch)
    for stack in dict.fromkeys(layer.stack for layer in found.layers):
        layer = next(layer for layer in found.layers if layer.stack == stack)
        cut = cut_of(layer, batch, rows[layer])
        new_rows, new_calls, new_output = tapped(loaded, batch, edits=[cut.edit])
        check_layer(cut, new_rows[layer], calls[layer], new_calls[layer], batch)
        after = states_of(new_output)
        if cut.item:
            first = batch.real(0)
            assert all(torch.equal(a[0, first], b[0, first]) for a, b in zip(before, after, strict=True))
        differ = largest_gap(brute_force(loaded, batch, cut), after, batch)
        if dtype == "fp32":
            assert differ <= max(8 * rounding, 1e-5) and largest_gap(before, after, batch) > max(20 * rounding, 1e-4)
        else:  # one rounding more or less, and experts that are chosen by it
            assert differ <= 8 * rounding + 0.1


def check_layer(cut, new_rows, call, new_call, batch):
    """In the edited layer query and key are those of the plain run: row and output are known to rounding."""
    expected = formula(call, torch.float64)[cut.item, :, cut.row].clone()
    sink = 0.0 if call.terms.sinks is None else 1 - expected.sum(-1)
    expected[:, cut.column] = 0.0
    new = new_rows[cut.item, :, QUERY]
    assert (new - expected / (expected.sum(-1) + sink)[:, None]).abs().max() <= LOCAL
    groups = call.query.shape[1] // call.value.shape[1]
    values = call.value[cut.item].double().repeat_interleave(groups, 0)
    was, now = call.output.clone(), new_call.output
    weights = expected / (expected.sum(-1) + sink)[:, None]
    mixed = (weights[:, None] @ values)[:, 0]
    # Rounded once, by half an eps of itself at most, and nothing else than fp32's own rounding before.
    half = torch.finfo(now.dtype).eps / 2 if now.dtype != torch.float32 else 0.0
    rounding = half * mixed.abs() + 2e-6 * max(1.0, float(values.abs().max()))
    assert ((now[cut.item, cut.row].double() - mixed).abs() <= rounding).all()
    moved = (now[cut.item, cut.row].float() - was[cut.item, cut.row].float()).abs().max()
    assert moved > (1e-4 if now.dtype == torch.float32 else 0.0)
    was[cut.item, cut.row] = now[cut.item, cut.row]
    assert equal(was, now, batch), "only the cut query's output may change in its layer"


@pytest.mark.parametrize("lora", ADAPTERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", GIVEN)
def test_the_self_check_passes(family, dtype, lora):
    report = check_model(load(family, dtype=DTYPES[dtype], lora=lora == "lora"))
    assert [item for item in report.items if item.status == "fail"] == []
    skipped = {item.name for item in report.items if item.status == "skip"}
    compared = {
        "rows = eager formula",
        "end to end = eager",
        "layer labels",
        "rows × values = output",
        "output unchanged",
    }
    assert skipped - {"padding left"} == (compared if family.verdict == "eager" else set())


@pytest.mark.parametrize("family", GIVEN)
def test_the_adapter_moves_the_rows(family):
    plain, tuned = (load(family, lora=lora) for lora in (False, True))
    batch = batch_of(plain, "none")
    assert largest_gap(eagerly(plain, batch)[0], eagerly(tuned, batch)[0], batch) > 1e-3


@pytest.mark.skipif(not WHOLE, reason="the README's table is that of the pinned transformers")
def test_the_readme_table_is_what_the_matrix_finds():
    assert written_table() == table(), "write it with: python -m tests.family_zoo"
