"""What must hold on a device: each check is a function of device and precision, and runs on a CPU as well.

Bounds. Rows are computed in fp32 from query and key as the layer has them, whatever their precision, and so is the
family's eager formula: they differ by the order of summation alone, ≤ 1e-5 (scores below about 50, rounded at 6e-8).
What a kernel puts out in bf16 or fp16 has every weight and the sum rounded once, each by half an eps of the largest
value at most: 2 eps with as much again in hand. TF32 is off, or fp32 would be rounded at 5e-4.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from probe.edits import EdgeEdit
from probe.labels import Layer
from probe.rowrequest import AttentionCall, RowRequest
from probe.rowtap import attached, tap

ROWS_BOUND = 1e-5
BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line: what was measured, and the bound that it must keep; without a bound it is only told."""

    part: str
    name: str
    value: float | None = None
    bound: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """Pass, fail (a NaN fails), or nothing where nothing is held against a bound."""
        if self.bound is None:
            return ""
        return "pass" if self.value is not None and self.value <= self.bound else "FAIL"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family by what it adds to plain attention; its sizes apart from width and depth."""

    stem: str  # of the class names in transformers
    adds: str
    sizes: Mapping[str, Any]
    own_kernel: bool = True  # SDPA computes it; else the family's eager function does


_DECODER = {"num_key_value_heads": 2, "max_position_embeddings": 4096, "initializer_range": 0.08, "head_dim": 64}
FAMILIES = (
    Family(stem="Bert", adds="both directions", sizes={"initializer_range": 0.08}),
    Family(stem="Llama", adds="grouped keys", sizes=_DECODER),
    Family(stem="Mistral", adds="window", sizes={**_DECODER, "sliding_window": 16}),
    Family(
        stem="Gemma2",
        adds="softcap, window",
        sizes={**_DECODER, "sliding_window": 16, "attn_logit_softcapping": 5.0},
        own_kernel=False,
    ),
    Family(
        stem="GptOss",
        adds="sinks, window",
        sizes={**_DECODER, "sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
        own_kernel=False,
    ),
    Family(stem="T5", adds="position bias", sizes={"d_kv": 64, "d_ff": 512, "num_layers": 2, "num_decoder_layers": 2}),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A random model on the device, its name, and one text's forward keywords."""

    name: str
    model: Any
    batch: dict[str, Tensor]
    queries: list[list[int]]


def subject_of(family: Family, device: torch.device, dtype: torch.dtype, *, tokens: int) -> Subject:
    """The family's random model of two layers and one text; drawn on the CPU, so that every device has the same."""
    width = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    width = {"d_model": 256, "num_heads": 4} if family.stem == "T5" else width
    config = getattr(transformers, f"{family.stem}Config")(vocab_size=512, pad_token_id=0, **width, **family.sizes)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = getattr(transformers, f"{family.stem}Model")(config).eval().to(device=device, dtype=dtype)
        ids = torch.randint(5, 500, (1, tokens)).to(device)
    if family.stem == "GptOss":
        model.set_experts_implementation("eager")  # grouped products want their own sizes; experts are not the subject
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if family.stem == "T5":
        batch |= {"decoder_input_ids": ids}
    name = f"{family.stem} ({family.adds}), {kind_of(dtype)}"
    return Subject(name=name, model=model, batch=batch, queries=[[tokens // 4, tokens // 2, tokens - 1]])


def family_checks(family: Family, device: torch.device, dtype: torch.dtype, *, tokens: int) -> Iterator[Check]:
    """Rows, output and a cut edge, by every SDPA backend that takes the family's inputs."""
    subject = subject_of(family, device, dtype, tokens=tokens)
    yield from reading(subject, kernel="its own choice")
    yield from cutting(subject)
    for backend in BACKENDS if family.own_kernel else ():
        refused = why_refused(subject, backend)
        if refused:
            yield Check(part=subject.name, name=f"{backend.name} refused", note=refused)
            continue
        with sdpa_kernel(backend):
            yield from reading(subject, kernel=backend.name)


def reading(subject: Subject, *, kernel: str) -> Iterator[Check]:
    """Rows against the eager formula, the kernel's output against rows times values, the output against a plain one."""
    plain, again = forward(subject), forward(subject)
    calls: list[AttentionCall] = []
    request = RowRequest(subject.queries, inspect=calls.append)
    with torch.no_grad(), tap(subject.model, request):
        tapped = subject.model(**subject.batch)[0]
    at = subject.queries[0]
    rows = max(gap(call.rows, formula(call)[:, :, at]) for call in calls)
    yield Check(part=subject.name, name=f"{kernel}: rows - eager formula in fp32", value=rows, bound=ROWS_BOUND)
    shares = [rebuilt(call, call.rows, at) / scale_of(call) for call in calls]
    eps = max(2 * torch.finfo(calls[0].value.dtype).eps, ROWS_BOUND)
    yield Check(part=subject.name, name=f"{kernel}: output - rows x values", value=max(shares), bound=eps)
    own = gap(plain, again)  # a kernel that does not repeat itself cannot be left as it was
    yield Check(part=subject.name, name=f"{kernel}: plain output twice", value=own, bound=0.0)
    yield Check(part=subject.name, name=f"{kernel}: output moved by reading", value=gap(plain, tapped), bound=0.0)


def cutting(subject: Subject) -> Iterator[Check]:
    """A cut edge in the first layer against whole maps with that weight set to 0 and the rest divided by its sum."""
    query, key = subject.queries[0][1], subject.queries[0][1] - 1
    plain = calls_of(subject, [query], [])
    layer, before = next(iter(plain.items()))
    edit = EdgeEdit(query=(query,), key=(key,), layers=frozenset({layer.index}), stacks=frozenset({layer.stack}))
    after = calls_of(subject, [query], [edit])[layer]
    row = formula(before)[:, :, [query]]
    sink = 0.0 if before.terms.sinks is None else 1 - row.sum(-1, keepdim=True)
    weight = row[..., key].max()
    row[..., key] = 0.0
    row = row / (row.sum(-1, keepdim=True) + sink)
    yield Check(part=subject.name, name="cut edge: row - brute force", value=gap(after.rows, row), bound=ROWS_BOUND)
    # The new output is mixed from rows rounded to the values' precision.
    eps = max(2 * torch.finfo(after.value.dtype).eps, ROWS_BOUND)
    off = rebuilt(after, row, [query]) / scale_of(after)
    yield Check(part=subject.name, name="cut edge: output - brute force", value=off, bound=eps)
    others = [place for place in range(before.output.shape[1]) if place != query]
    moved = gap(before.output[:, others], after.output[:, others])
    yield Check(part=subject.name, name="cut edge: other queries moved", value=moved, bound=0.0)
    nothing = float(weight < 1e-4)
    yield Check(part=subject.name, name="cut edge: carried next to nothing", value=nothing, bound=0.0)


def training_checks(device: torch.device, dtype: torch.dtype, *, tokens: int) -> Iterator[Check]:
    """Gradients through rows with checkpointing, whose backward computes the pass again in a thread of the device."""
    subject = subject_of(FAMILIES[1], device, dtype, tokens=tokens)
    model, part = subject.model.train(), f"training, {kind_of(dtype)}"

    def gradient(*, keyword: bool) -> Tensor:
        model.zero_grad()
        request = RowRequest(subject.queries)
        with attached(model) if keyword else tap(model, request):
            model(**subject.batch, use_cache=False, **({"rows": request} if keyword else {}))
            torch.stack([rows[..., 1].sum() for rows in request.rows.values()]).sum().backward()
        return model.layers[0].self_attn.q_proj.weight.grad.float().clone()

    plain = gradient(keyword=False)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for name, keyword in (("tap", False), ("rows=request", True)):
        share = gap(gradient(keyword=keyword), plain) / float(plain.abs().max())
        bound = max(4 * torch.finfo(dtype).eps, ROWS_BOUND)
        yield Check(part=part, name=f"checkpointed gradient, {name}, share", value=share, bound=bound)


def own_implementation_checks(name: str, device: torch.device, dtype: torch.dtype, *, tokens: int) -> Iterator[Check]:
    """A model that came with another implementation: computed by SDPA within the tap, and given back as it came."""
    subject = subject_of(FAMILIES[1], device, dtype, tokens=tokens)
    subject.model.set_attn_implementation(name)
    part = f"model loaded with {name}, {kind_of(dtype)}"
    before = forward(subject)
    calls: list[AttentionCall] = []
    with torch.no_grad(), tap(subject.model, RowRequest(subject.queries, inspect=calls.append)):
        within = subject.model(**subject.batch)[0]
    rows = max(gap(call.rows, formula(call)[:, :, subject.queries[0]]) for call in calls)
    yield Check(part=part, name="rows - eager formula in fp32", value=rows, bound=ROWS_BOUND)
    restored = float(subject.model.config._attn_implementation != name)
    yield Check(part=part, name="not restored", value=restored, bound=0.0)
    yield Check(part=part, name="output afterwards - before", value=gap(before, forward(subject)), bound=0.0)
    share = gap(before, within) / float(before.float().abs().max())
    yield Check(part=part, name="output within the tap - its own, share", value=share, note="two kernels' rounding")


def calls_of(subject: Subject, queries: list[int], edits: list[EdgeEdit]) -> dict[Layer, AttentionCall]:
    """What every layer handed to attention in one tapped pass, in the order of the calls."""
    calls: dict[Layer, AttentionCall] = {}
    request = RowRequest([queries], edits=edits, inspect=lambda call: calls.update({call.layer: call}))
    with torch.no_grad(), tap(subject.model, request):
        subject.model(**subject.batch)
    return calls


def forward(subject: Subject) -> Tensor:
    """The first output of a plain pass."""
    with torch.no_grad():
        return subject.model(**subject.batch)[0]


def formula(call: AttentionCall) -> Tensor:
    """Whole maps by the modeling file's eager function in fp32 on the very query and key of a call."""
    eager = sys.modules[type(call.module).__module__].eager_attention_forward
    query, key, value = (tensor.float() for tensor in (call.query, call.key, call.value))
    terms, mask = call.terms, call.terms.mask
    if mask is None and terms.causal:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=query.device).masked_fill(~mask, torch.finfo(torch.float32).min)
    named = {"position_bias": terms.position_bias, "softcap": terms.softcap, "s_aux": terms.sinks}
    given = {name: term for name, term in named.items() if term is not None}
    given = {name: term.float() if isinstance(term, Tensor) else term for name, term in given.items()}
    with torch.no_grad():
        return eager(call.module, query, key, value, mask, scaling=terms.scaling, dropout=0.0, **given)[1].float()


def rebuilt(call: AttentionCall, rows: Tensor, at: list[int]) -> float:
    """How far the output at some queries lies from rows times values."""
    groups = call.query.shape[1] // call.value.shape[1]
    mixed = rows @ call.value.float().repeat_interleave(groups, 1)  # [batch, head, query, dim]
    return gap(call.output[:, at].transpose(1, 2), mixed)


def scale_of(call: AttentionCall) -> float:
    """The largest number of the values, at least 1."""
    return max(1.0, float(call.value.abs().max()))


def gap(one: Tensor, other: Tensor) -> float:
    """Largest difference; NaN where either has one."""
    return float((one.float() - other.float()).abs().max())


def why_refused(subject: Subject, backend: SDPBackend) -> str:
    """Why a backend does not take the model's attention, in torch's words, or nothing."""
    with warnings.catch_warnings(record=True) as said, sdpa_kernel(backend):
        warnings.simplefilter("always")
        try:
            forward(subject)
        except RuntimeError as error:
            reasons = [str(one.message).split(" (Triggered")[0] for one in said]
            told = [reason for reason in reasons if "not used because" not in reason]
            return next(iter(told), str(error).splitlines()[0])
    return ""


def kind_of(dtype: torch.dtype) -> str:
    """Bfloat16 as bf16."""
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
