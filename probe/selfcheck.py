"""Is what we extract right on this very model? Checks that each compare with an independent computation."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from probe.edits import HeadEdit
from probe.errors import CijingError
from probe.evidence import Evidence, gather
from probe.labels import Layer
from probe.models import LoadedModel
from probe.routes import batch_for, find_route, forward_rows
from probe.rowrequest import AttentionCall, RowRequest
from probe.rows import additive_mask
from probe.rowtap import tap
from probe.switching import untouched

Status = Literal["pass", "fail", "skip"]

# Rounding of one dtype: bound on rows that are computed by the same formula, and relative bound on states.
_LOCAL_BOUND = {torch.float32: 1e-6, torch.bfloat16: 1e-6, torch.float16: 1e-6}
_BATCH_BOUND = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True, kw_only=True)
class CheckItem:
    """One check: what was measured, against which bound, and what it means."""

    name: str
    status: Status
    value: float | None = None
    bound: float | None = None
    why: str


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """All checks of one model."""

    model: str
    path: Literal["tap", "eager"]
    items: tuple[CheckItem, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(item.status != "fail" for item in self.items)


def check_model(loaded: LoadedModel) -> CheckReport:
    """Run every check on three short texts; seconds on a small model. Never raises for a check that fails."""
    route = find_route(loaded)  # anew: what was found before is what is to be checked
    evidence = gather(loaded, route)
    items = [item for check in _CHECKS for item in _guarded(check, evidence)]
    return CheckReport(model=loaded.name, path=route.path, items=tuple(items))


def _guarded(check: Callable[[Evidence], Iterator[CheckItem]], evidence: Evidence) -> list[CheckItem]:
    """A check that cannot run is a failed check with its reason, not a crash of the others."""
    try:
        return list(check(evidence))
    except (CijingError, RuntimeError, ValueError, TypeError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return [
            CheckItem(name=check.__name__.strip("_").replace("_", " "), status="fail", why=f"could not run: {reason}")
        ]


def _calls_counted(evidence: Evidence) -> Iterator[CheckItem]:
    route, expected = evidence.route, _expected_layers(evidence.loaded)
    found = len(route.layers)
    how = "the tap was called for" if route.path == "tap" else f"eager path ({route.reason}): maps came from"
    yield CheckItem(
        name="layers counted",
        status="pass" if found == expected else "fail",
        value=found,
        bound=expected,
        why=f"{how} {found} layers; the configuration names {expected} with softmax attention",
    )


def _expected_layers(loaded: LoadedModel) -> int:
    """Softmax attention layers as the configuration counts them, cross attention included."""
    config = loaded.backbone.config
    if loaded.kind == "encoder-decoder":
        decoder = getattr(config, "num_decoder_layers", None) or getattr(config, "decoder_layers", None)
        encoder = getattr(config, "encoder_layers", None) or config.num_hidden_layers
        return int(encoder) + 2 * int(decoder or config.num_hidden_layers)
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    if kinds:
        return sum("attention" in kind and "linear" not in kind for kind in kinds)
    return int(text.num_hidden_layers)


def _rows_equal_the_eager_formula(evidence: Evidence) -> Iterator[CheckItem]:
    name = "rows = eager formula"
    if evidence.route.path == "eager":
        yield CheckItem(name=name, status="skip", why="rows on the eager path are eager's own")
        return
    bound = _LOCAL_BOUND[evidence.loaded.dtype]
    worst = _largest(float((call.rows - _dense(call)).abs().max()) for call in evidence.calls if call.rows is not None)
    yield _compared(name, worst, bound, "same query, key and mask, the family's own eager function in fp32")


def _dense(call: AttentionCall, dtype: torch.dtype = torch.float32) -> Tensor:
    """Whole maps by the modeling file's own eager function, computed in `dtype`: [batch, head, query, key]."""
    query, key, value = call.query.to(dtype), call.key.to(dtype), call.value.to(dtype)
    mask = additive_mask(call.terms, query, key)
    mask = None if mask is None else mask.to(dtype)
    eager = getattr(sys.modules[type(call.module).__module__], "eager_attention_forward", None)
    extra = {
        name: term
        for name, term in (
            ("position_bias", call.terms.position_bias),
            ("softcap", call.terms.softcap),
            ("s_aux", call.terms.sinks),
        )
        if term is not None
    }
    if eager is not None:
        weights: Tensor = eager(call.module, query, key, value, mask, scaling=call.terms.scaling, dropout=0.0, **extra)[
            1
        ]
        return weights.float()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query @ key.transpose(2, 3) * call.terms.scaling
    return (scores if mask is None else scores + mask).softmax(-1)


def _rows_equal_eager_end_to_end(evidence: Evidence) -> Iterator[CheckItem]:
    name = "end to end = eager"
    if evidence.route.path == "eager" or not evidence.eager:
        yield CheckItem(name=name, status="skip", why="there is no second path to compare with")
        return
    rows_gaps: list[float] = []
    states_gaps: list[float] = []
    for single, (maps, output) in zip(evidence.singles, evidence.eager, strict=True):
        rows_gaps.extend(float((single.rows[k] - maps[k].float()).abs().max()) for k in single.rows)
        for stack, states in single.states.items():
            theirs = _hidden(output, stack)
            states_gaps.extend(float((a.float() - b.float()).abs().max()) for a, b in zip(states, theirs, strict=True))
    states_differ = _largest(states_gaps)
    rounding = _eager_rounding(evidence)
    bound = max(4 * states_differ, 1e-6) + rounding
    why = f"4 × the largest eager–SDPA difference of a state ({states_differ:.1e})"
    yield _compared(
        name,
        _largest(rows_gaps),
        bound,
        why + (f" + eager's own rounding of a row ({rounding:.1e})" if rounding else ""),
    )


def _eager_rounding(evidence: Evidence) -> float:
    """How far the family's eager formula in half precision lies from itself in fp32, on the same query and key."""
    dtype = evidence.loaded.dtype
    if dtype == torch.float32:
        return 0.0
    return _largest(float((_dense(call, dtype) - _dense(call)).abs().max()) for call in evidence.calls)


def _hidden(output: Any, stack: str) -> tuple[Tensor, ...]:
    states: tuple[Tensor, ...] = getattr(output, f"{stack}_hidden_states", None) or output.hidden_states
    return states


def _rows_are_distributions(evidence: Evidence) -> Iterator[CheckItem]:
    rows = [layer_rows for single in evidence.singles for layer_rows in single.rows.values()]
    finite = all(bool(torch.isfinite(r).all()) for r in rows)
    low, high = min(float(r.min()) for r in rows), max(float(r.max()) for r in rows)
    sums = torch.cat([r.sum(-1).flatten() for r in rows])
    tolerance = 1e-5 if evidence.loaded.dtype == torch.float32 or evidence.route.path == "tap" else 2e-2
    has_sinks = any(call.terms.sinks is not None for call in evidence.calls)
    off = float((sums - 1).clamp_min(0).max() if has_sinks else (sums - 1).abs().max())
    inside = finite and low >= 0 and high <= 1 + tolerance
    note = f"; learned sinks take {float(1 - sums.mean()):.2f} of a row on average" if has_sinks else ""
    why = f"weights lie in {low:.3g} to {high:.3g}{note}" if finite else _not_finite(evidence)
    yield CheckItem(
        name="rows sum to one",
        status="pass" if inside and off <= tolerance else "fail",
        value=off,
        bound=tolerance,
        why=why,
    )


def _not_finite(evidence: Evidence) -> str:
    """Where the first rows stand that are NaN or infinite, in the order of the layers."""
    for single in evidence.singles:
        for layer in evidence.route.layers:
            heads = (~torch.isfinite(single.rows[layer])).any(-1).any(-1).any(0).nonzero().flatten().tolist()
            if heads:
                return f"weights of {layer.module}, head {', '.join(map(str, heads))} are not finite numbers"
    return "some weights are not finite numbers"


def _causality(evidence: Evidence) -> Iterator[CheckItem]:
    for stack in ("encoder", "decoder"):
        ahead = [
            float(rows[0].triu(1).max())
            for single in evidence.singles
            for layer, rows in single.rows.items()
            if layer.stack == stack and rows.shape[-1] > 1
        ]
        if ahead and stack == "decoder":
            yield _compared("causality", max(ahead), 0.0, "largest weight on a later token in a causal layer")
        elif ahead:
            status: Status = "pass" if min(ahead) > 0 else "fail"
            yield CheckItem(
                name="both directions", status=status, value=min(ahead), why="encoder layers see later tokens"
            )


def _padding_right(evidence: Evidence) -> Iterator[CheckItem]:
    batch = batch_for(evidence.loaded, evidence.ids)
    starts = [0] * len(evidence.ids)
    yield from _padding(evidence, batch, starts, "padding right")


def _padding_left(evidence: Evidence) -> Iterator[CheckItem]:
    """Left padding is judged only where the model itself is invariant to it: captures are padded on the right."""
    batch = batch_for(evidence.loaded, evidence.ids)
    width = batch["input_ids"].shape[1]
    starts = [width - len(item) for item in evidence.ids]
    for name, tensor in batch.items():
        batch[name] = torch.stack([row.roll(start) for row, start in zip(tensor, starts, strict=True)])
    variants = [batch]
    if evidence.loaded.kind != "encoder-decoder":
        variants.append({**batch, "position_ids": (batch["attention_mask"].cumsum(-1) - 1).clamp_min(0)})
    outcomes: list[CheckItem] = []
    for variant in variants:
        try:
            outcomes.extend(_padding(evidence, variant, starts, "padding left"))
        except TypeError:  # a family without position_ids
            continue
    best = next((item for item in outcomes if item.status == "pass"), None)
    if best is None:
        why = "positions of this family count from the pad tokens, so its own states move; captures pad on the right"
        best = CheckItem(name="padding left", status="skip", value=min(i.value or 0.0 for i in outcomes), why=why)
    yield best


def _padding(evidence: Evidence, batch: dict[str, Tensor], starts: list[int], name: str) -> Iterator[CheckItem]:
    queries = [list(range(start, start + len(item))) for start, item in zip(starts, evidence.ids, strict=True)]
    together = forward_rows(evidence.loaded, evidence.route, batch, RowRequest(queries), states=True)
    rows_gaps: list[float] = []
    states_gaps: list[float] = []
    for place, (single, start) in enumerate(zip(evidence.singles, starts, strict=True)):
        length = len(evidence.ids[place])
        for layer, rows in together.rows.items():
            mine = rows[place, :, :length, start : start + length]
            rows_gaps.append(float((mine - single.rows[layer][0]).abs().max()))
        for stack, states in together.states.items():
            for a, b in zip(states, single.states[stack], strict=True):
                gap = (a[place, start : start + length].float() - b[0].float()).norm() / _length(b[0])
                states_gaps.append(float(gap))
    # A batch may round as differently as eager and SDPA do on the same text, and no more.
    bound = max(_BATCH_BOUND[evidence.loaded.dtype], 4 * _own_rounding(evidence))
    rows_differ, states_differ = _largest(rows_gaps), _largest(states_gaps)
    worst = _largest((rows_differ, states_differ))
    yield _compared(
        name, worst, bound, f"batch against single texts: rows {rows_differ:.1e}, states {states_differ:.1e}"
    )


def _own_rounding(evidence: Evidence) -> float:
    """Largest relative difference of a token's state between the model's eager and SDPA attention."""
    gaps = [
        float(((a.float() - b.float()).norm(dim=-1) / _length(b, dim=-1)).max())
        for single, (_, output) in zip(evidence.singles, evidence.eager, strict=False)  # no eager: no pairs
        for stack, states in single.states.items()
        for a, b in zip(states, _hidden(output, stack), strict=True)
    ]
    return _largest(gaps)


def _layer_labels(evidence: Evidence) -> Iterator[CheckItem]:
    """Silence one layer: states up to it must stay, the next one must move. That ties label k to state k."""
    if evidence.route.path == "eager":
        yield CheckItem(name="layer labels", status="skip", why="labels come from the modules that returned the maps")
        return
    wrong, checked = [], 0
    for layer in evidence.route.layers:
        if layer.stack == "cross":
            continue
        moved = _first_moved_state(evidence, layer)
        checked += 1
        if moved != layer.index + 1:
            wrong.append(f"{layer.module} moves {'nothing' if moved < 0 else f'state {moved}'}")
    yield CheckItem(
        name="layer labels",
        status="fail" if wrong else "pass",
        value=len(wrong),
        bound=0,
        why="; ".join(wrong[:3]) or f"silencing layer k first moves state k + 1, for each of {checked} layers",
    )


def _first_moved_state(evidence: Evidence, layer: Layer) -> int:
    edit = HeadEdit(
        heads=frozenset(range(evidence.route.heads)), layers=frozenset({layer.index}), stacks=frozenset({layer.stack})
    )
    request = RowRequest([[0]], edits=[edit])
    batch = batch_for(evidence.loaded, evidence.ids[:1])
    silenced = forward_rows(evidence.loaded, evidence.route, batch, request, states=True).states[layer.stack]
    plain = evidence.singles[0].states[layer.stack]
    same = [bool(torch.equal(a, b)) for a, b in zip(silenced, plain, strict=True)]
    return same.index(False) if False in same else -1


def _head_mapping(evidence: Evidence) -> Iterator[CheckItem]:
    name = "rows × values = output"
    if not evidence.calls:
        yield CheckItem(name=name, status="skip", why="the eager path does not show values")
        return
    worst, scale, grouped = 0.0, 0.0, set()
    for call in evidence.calls:
        groups = call.query.shape[1] // call.value.shape[1]
        grouped.add(groups)
        assert call.rows is not None
        mixed = call.rows @ call.value.float().repeat_interleave(groups, dim=1)  # [batch, head, query, dim]
        worst = _largest((worst, float((mixed.transpose(1, 2) - call.output.float()).abs().max())))
        scale = _largest((scale, float(call.output.float().abs().max())))
    bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[evidence.loaded.dtype] * max(scale, 1.0)
    kind = f"{max(grouped)} query heads share a key head" if max(grouped) > 1 else "each head has keys of its own"
    yield _compared(name, worst, bound, f"{kind}; SDPA's output rebuilt from the rows")


def _unchanged(evidence: Evidence) -> Iterator[CheckItem]:
    name = "output unchanged"
    if evidence.route.path == "eager":
        yield CheckItem(name=name, status="skip", why="nothing is tapped on the eager path")
        return
    loaded, batch = evidence.loaded, batch_for(evidence.loaded, evidence.ids)
    with torch.inference_mode():
        with untouched(loaded.backbone):
            own = loaded.backbone.config._attn_implementation
            plain = loaded.backbone(**batch)[0]
        with tap(loaded.backbone, RowRequest([[0]] * len(evidence.ids))):
            tapped = loaded.backbone(**batch)[0]
    differ = float((plain - tapped).abs().max())
    if own == "sdpa" or differ == 0.0:
        yield _compared(name, differ, 0.0, "reading rows leaves the model's output bit for bit")
        return
    share = float(((plain.float() - tapped.float()).norm(dim=-1) / _length(plain, dim=-1)).max())
    bound = max(_BATCH_BOUND[loaded.dtype], 4 * _own_rounding(evidence))
    why = f"the model came with {own} and computes SDPA within the tap: as a share of a state, only rounding may differ"
    yield _compared(name, share, bound, why)


def _dtype_tolerance(evidence: Evidence) -> Iterator[CheckItem]:
    dtype = evidence.loaded.dtype
    eps = torch.finfo(dtype).eps
    yield CheckItem(
        name="precision",
        status="pass" if dtype in _BATCH_BOUND else "fail",
        value=eps,
        bound=_BATCH_BOUND.get(dtype),
        why=f"weights are {str(dtype).removeprefix('torch.')}; differences below the bound are rounding, not findings",
    )


def _compared(name: str, value: float, bound: float, why: str) -> CheckItem:
    # "not <=" also fails a NaN
    return CheckItem(name=name, status="pass" if value <= bound else "fail", value=value, bound=bound, why=why)


def _length(states: Tensor, *, dim: int | None = None) -> Tensor:
    """The length of states to divide by: states that are all zero differ by nothing from themselves."""
    length: Tensor = states.float().norm(dim=dim)
    return length.clamp_min(torch.finfo(torch.float32).tiny)


def _largest(values: Iterable[float]) -> float:
    """The largest of numbers from 0, NaN if any is NaN: max() passes over a NaN that does not come first."""
    known = [0.0, *values]
    return math.nan if any(map(math.isnan, known)) else max(known)


_CHECKS: tuple[Callable[[Evidence], Iterator[CheckItem]], ...] = (
    _calls_counted,
    _rows_equal_the_eager_formula,
    _rows_equal_eager_end_to_end,
    _rows_are_distributions,
    _causality,
    _padding_right,
    _padding_left,
    _layer_labels,
    _head_mapping,
    _unchanged,
    _dtype_tolerance,
)
