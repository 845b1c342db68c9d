"""Attention step by step on a real model: each step by its formula, beside the model's own number for it.

Structure is found by following tensors: which norm was given which state, which columns of which linear map, turned in
which way, are the query. A form is accepted where its formula gives the model's own numbers to 1e-5; a step for which
none does is listed as not exposed, never guessed. Our numbers are float64, computed from the model's own numbers of
the step before, so each gap is the rounding of one step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from probe import algebra
from probe.algebra import BOUND, Floats, agrees, gap
from probe.blocktrace import PRODUCTS, BlockTrace, FunctionCall, HandedOver, ModuleCall, trace_block
from probe.capture import prepare
from probe.cases import case_of
from probe.errors import ModelError
from probe.labels import Layer
from probe.models import LoadedModel
from probe.routes import Route, batch_for, route_of
from probe.rows import ScoreTerms, allowed_keys
from probe.worked import softmax

PositionKind = Literal["learned", "sinusoidal", "rotary", "relative_bias", "alibi", "none"]
LONGEST = 512  # tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One step: what it gives for the word, by the formula and in the model.

    Rows are one vector, or one a token. `ours` is None where no formula gives the model's numbers, `own` where the
    model never holds them; then `missing` names the reason.
    """

    name: str
    ours: Floats | None  # [row, number]
    own: Floats | None  # [row, number]
    rows: tuple[str, ...] = ()  # what each row belongs to, tokens or heads
    columns: tuple[str, ...] = ()  # what each number belongs to, where it is a token
    form: str = ""  # which form of the formula the family has
    missing: str = ""

    @property
    def gap(self) -> float | None:
        """Largest difference of ours from the model's own, as a share of its largest number where that is above 1."""
        return None if self.ours is None or self.own is None else gap(self.ours, self.own)

    @property
    def numbers(self) -> Floats | None:
        """The numbers to show: the model's own where it has them, else ours."""
        return self.own if self.own is not None else self.ours


@dataclass(frozen=True, kw_only=True, eq=False)
class Walk:
    """One word's way through one layer and one head of one model."""

    model: str
    text: str
    tokens: tuple[str, ...]  # slices of the text, names of special tokens
    target: int  # the token that is followed: the word's last
    layer: Layer
    head: int
    heads: int
    kv_head: int  # the key head that the head reads
    depth: tuple[int, ...]  # every layer that could have been asked
    position: PositionKind
    steps: tuple[Step, ...]
    rows: Floats  # [head, key], the target's weights in every head of the layer
    writes: Floats | None  # [head, key, model], what each head writes for a key with weight 1; None if not exposed

    @property
    def equal(self) -> tuple[Step, ...]:
        """Steps whose formula gives the model's own numbers within 1e-5."""
        return tuple(step for step in self.steps if step.form != "given" and step.gap is not None and step.gap <= BOUND)

    @property
    def listed(self) -> tuple[Step, ...]:
        """Steps that the family does not expose, each with the reason."""
        return tuple(step for step in self.steps if step.missing)


@dataclass(kw_only=True, eq=False)
class _Way:
    """What has been found so far, and where to look."""

    loaded: LoadedModel
    trace: BlockTrace
    labels: tuple[str, ...]
    ids: tuple[int, ...]
    target: int
    head: int
    steps: list[Step] = field(default_factory=list)
    position: PositionKind = "none"

    @property
    def handed(self) -> HandedOver:
        assert self.trace.handed is not None
        return self.trace.handed

    @property
    def causal(self) -> bool:
        return self.loaded.kind == "decoder"

    @property
    def kv_head(self) -> int:
        return self.head // (self.handed.query.shape[0] // self.handed.key.shape[0])

    @property
    def count(self) -> int:
        return len(self.labels)

    def add(self, name: str, ours: Any, own: Any, **more: Any) -> None:
        """Add a step; what does not come within 1e-5 is listed with a reason instead of shown as ours."""
        a, b = (None if part is None else np.atleast_2d(np.asarray(part, dtype=np.float64)) for part in (ours, own))
        if a is not None and b is not None and not agrees(a, b) and not more.get("missing"):
            a, more = None, {**more, "missing": "other_numbers"}
        if (a is None or b is None) and not more.get("missing"):
            more["missing"] = "not_held" if b is None else "other_numbers"
        self.steps.append(Step(name=name, ours=a, own=b, **more))

    def at(self, array: Any) -> Any:
        """The target's row of a [token, number] array."""
        return array[self.target]


def walk(
    loaded: LoadedModel,
    text: str,
    *,
    target: str,
    layer: int | None = None,
    head: int = 0,
    occurrence: int = 1,
    route: Route | None = None,
) -> Walk:
    """Follow one word through one layer and head; layer None takes the middle one.

    A word cut into several tokens is followed at its last. Of an encoder-decoder the encoder is walked through.
    Raises ModelError for a layer or head that is not there and a model that is not float32, SpanError for a word that
    the text does not have.
    """
    (item,) = prepare(loaded, [case_of(text, target=target, occurrence=occurrence)])
    if loaded.dtype != torch.float32:
        raise ModelError(f"{loaded.name} is {str(loaded.dtype).removeprefix('torch.')}: the walk compares in float32")
    if len(item.tokens.ids) > LONGEST:
        raise ModelError(f"the text has {len(item.tokens.ids)} tokens; the walk takes at most {LONGEST}")
    route = route or route_of(loaded)
    stack = "encoder" if loaded.kind == "encoder-decoder" else loaded.kind
    layers = {found.index: found for found in route.layers if found.stack == stack}
    depth = tuple(sorted(layers))
    chosen = depth[len(depth) // 2] if layer is None else layer
    if chosen not in layers:
        raise ModelError(f"{loaded.name} has no attention layer {chosen}; it has {_ranges(depth)}")
    if not 0 <= head < route.heads:
        raise ModelError(f"{loaded.name} has no head {head}; it has 0 to {route.heads - 1}")
    trace = trace_block(loaded, route, batch_for(loaded, [item.tokens.ids]), layers[chosen])
    if trace.handed is None:
        raise ModelError(
            f"{loaded.name} cannot be walked through: {route.reason}, so queries and keys are not handed over"
        )
    way = _Way(
        loaded=loaded,
        trace=trace,
        labels=item.tokens.labels,
        ids=item.tokens.ids,
        target=item.target[-1],
        head=head,
    )
    rows, writes = _follow(way)
    return Walk(
        model=loaded.name, text=text, tokens=way.labels, target=way.target, layer=layers[chosen], head=head,
        heads=route.heads, kv_head=way.kv_head, depth=depth, position=way.position, steps=tuple(way.steps), rows=rows,
        writes=writes,
    )  # fmt: skip


def _ranges(numbers: Sequence[int]) -> str:
    whole = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))


def _follow(way: _Way) -> tuple[Floats, Floats | None]:
    _embedding(way)
    state = _state(way)
    source = _before_attention(way, state)
    _projections(way, source)
    rows = _weights(way)
    _mixed(way, rows)
    written, writes = _written(way)
    _after(way, state, written)
    return rows, writes


# Before the block


def _embedding(way: _Way) -> None:
    """The row of the table, what is added to it, and the state that comes out."""
    table = way.loaded.backbone.get_input_embeddings()
    before = [call for call in way.trace.before if call.result is not None]
    looked_up = next((call for call in before if _is_table(call) and _shares_weight(call.module, table)), None)
    if looked_up is None or looked_up.result is None:
        way.add("table_row", None, None, missing="no_lookup")
        return
    raw = _numbers(table.weight[list(way.ids)])  # [token, dim]; the whole table in float64 may be gigabytes
    scale = _scale_between(raw, looked_up.result)
    way.add("table_row", None if scale is None else way.at(raw) * scale, way.at(looked_up.result), form=_scaled(scale))
    current = looked_up.result.astype(np.float64)
    added = [call for call in before if call.result is not None and _is_table(call) and call is not looked_up]
    parts = [_over_tokens(call.result, way.count) for call in added]
    later = [c for c in before[before.index(looked_up) + 1 :] if c.result is not None]
    way.position = _added_position(way, added)
    _sum_of_embeddings(way, current, parts, later)


def _sum_of_embeddings(way: _Way, current: Floats, parts: list[Any], later: list[ModuleCall]) -> None:
    """Follow the embedding to what the first block reads: what is added, scaled, normed, mapped."""
    goal = _first_state(way)
    if goal is None:
        way.add("embedded", None, None, missing="no_first_state")
        return
    total = current + sum(part for part in parts if part is not None and part.shape == current.shape)
    wanted = [goal, *(call.given[0] for call in later if call.given)]
    sums = [(scale, total + (scale - 1.0) * current) for scale in (1.0, current.shape[-1] ** 0.5)]
    found = next(((scale, s, w) for scale, s in sums for w in wanted if agrees(s, w)), None)
    if found is None:
        way.add("added", None, None, missing="other_sum")
        way.add("embedded", None, way.at(goal), missing="other_sum")
        return
    scale, ours, own = found
    if len(parts) or scale != 1.0:
        way.add("added", way.at(ours), way.at(own), form=_scaled(scale) if scale != 1.0 else "")
    reached = _chain(way, own, later, goal)
    if reached is None:
        way.add("embedded", None, way.at(goal), missing="other_sum")


def _chain(way: _Way, current: Any, calls: list[ModuleCall], goal: Any) -> Any:
    """From a tensor through norms and linear maps to the goal, one step each; None where it is not reached."""
    for call in calls:
        if _same(current, goal):
            return goal
        if call.result is None or not call.given or not _same(call.given[0], current) or _same(call.result, current):
            continue
        form, ours = _by_formula(call)
        if ours is not None:
            way.add("embedded", way.at(ours), way.at(call.result), form=form)
            current = call.result
    return goal if _same(current, goal) else None


def _first_state(way: _Way) -> Any:
    """What the first block reads, [token, dim]."""
    entry = way.trace.entry
    return entry if entry is not None and entry.shape == way.trace.block.given[0].shape else None


def _added_position(way: _Way, added: list[ModuleCall]) -> PositionKind:
    """Which rows are added for the position, told apart from token types by that they differ between positions."""
    for call in added:
        rows = _over_tokens(call.result, way.count)
        if rows is None or np.ptp(rows, axis=0).max() == 0:
            continue
        sinusoidal = _is_sinusoidal(call)
        near = _numbers(call.module.weight[way.target : way.target + 4])  # some tables keep their first rows free
        ours = next((row for row in near if agrees(row, way.at(rows))), None)
        kind: PositionKind = "sinusoidal" if sinusoidal else "learned"
        way.add("position_row", ours, way.at(rows), form=kind)
        return kind
    return "none"


def _is_sinusoidal(call: ModuleCall) -> bool:
    """Whether a position table holds sines and cosines of position / 10000^(2i / dim), by turns or in halves."""
    table = _numbers(call.module.weight[:40])
    angles = np.arange(len(table))[:, None] / 10000.0 ** (2 * np.arange((table.shape[1] + 1) // 2) / table.shape[1])
    sines, cosines = np.sin(angles), np.cos(angles)[:, : table.shape[1] // 2]
    turns = np.empty_like(table)
    turns[:, ::2], turns[:, 1::2] = sines, cosines
    return any(gap(form, table) < 1e-4 for form in (turns, np.concatenate([sines, cosines], axis=1)))


# Into attention


def _state(way: _Way) -> Any:
    state = way.trace.block.given[0]
    way.add("state", way.at(state), way.at(state), form="first" if _same(state, _first_state(way)) else "given")
    return state


def _before_attention(way: _Way, state: Any) -> Any:
    """What attention reads: the state itself (norm after), or what a norm makes of it."""
    source = next((array for array in way.trace.attention.given if array.shape == state.shape), None)
    if source is None:
        way.add("read", None, None, missing="no_input")
        return None
    if _same(source, state):
        way.add("read", way.at(state), way.at(source), form="as_it_is")
        return source
    for call in way.trace.calls:
        if call.given and call.result is not None and _same(call.given[0], state) and _same(call.result, source):
            form, ours = _by_formula(call)
            way.add("read", None if ours is None else way.at(ours), way.at(source), form=form)
            return source
    way.add("read", None, way.at(source), missing="other_norm")
    return source


def _projections(way: _Way, source: Any) -> None:
    """Query, key and value: which columns of which linear map, normed and turned in which way."""
    h = way.handed
    whole = (("query", 0, h.query, way.head), ("key", 1, h.key, way.kv_head), ("value", 2, h.value, way.kv_head))
    for name, part, own, head in whole:
        found = _projected(way, own, part, source)
        rows = (way.labels[way.target],) if part == 0 else way.labels
        kept = slice(way.target, way.target + 1) if part == 0 else slice(None)
        if found is None:
            way.add(name, None, own[head, kept], rows=rows, missing="other_projection")
            continue
        way.add(name, found.ours[head, kept], found.raw[head, kept], rows=rows, form=found.layout)
        if found.normed is not None:
            form, ours, result = found.normed
            way.add(f"{name}_normed", ours[head, kept], result[head, kept], rows=rows, form=form)
        if found.turn:
            step = f"{name}_scaled" if found.cos is None else f"{name}_turned"
            way.add(step, found.turned[head, kept], own[head, kept], rows=rows, form=found.turn)
        if found.cos is not None and part == 0:
            way.position = "rotary"
            _angles(way, found)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Projected:
    """How one of query, key and value came about, [head, token, dim]."""

    layout: str
    ours: Floats
    raw: Any
    normed: tuple[str, Floats, Any] | None = None
    turn: str = ""
    turned: Any = None
    cos: Any = None


def _projected(way: _Way, own: Any, part: int, source: Any) -> _Projected | None:
    """The first of all layouts, norms and turns that gives the model's own; maps of the source itself come first."""
    h = way.handed
    maps = [call for call in way.trace.calls if call.given and call.result is not None and _is_linear(call.module)]
    maps.sort(key=lambda call: source is None or not _same(call.given[0], source))
    tables = list(algebra.angle_tables(way.trace.attention.given + way.trace.block.given, way.count))
    for call in maps:
        assert call.result is not None
        if call.result.size % way.count or call.result.shape[-2:] != (way.count, call.result.shape[-1]):
            continue
        layouts = algebra.column_layouts(
            call.result.shape[-1], part=part, heads=h.query.shape[0], kv_heads=h.key.shape[0], dim=h.query.shape[2],
            value_dim=h.value.shape[2],
        )  # fmt: skip
        for layout, columns in layouts:
            raw = call.result.reshape(way.count, -1)[:, columns].transpose(1, 0, 2)  # [head, token, dim]
            for normed in (None, *_normed(way, call, raw)):
                before = raw if normed is None else normed[2]
                for turn, turned, cos in _turns(before, tables):
                    if agrees(turned, own):
                        ours = _through(call, columns)
                        form = layout if source is not None and _same(call.given[0], source) else "through_smaller"
                        return _Projected(
                            layout=form, ours=ours, raw=raw, normed=normed, turn=turn, turned=turned, cos=cos
                        )
    return None


def _turns(x: Any, tables: list[tuple[Floats, Floats]]) -> Iterator[tuple[str, Any, Any]]:
    yield "", x, None
    for factor in (x.shape[-1] ** -0.5,):
        yield "scaled_before", x * factor, None
    for cos, sin in tables:
        for form, turned in algebra.rotation_forms(x, cos, sin):
            yield form, turned, cos


def _normed(way: _Way, map_call: ModuleCall, raw: Any) -> Iterator[tuple[str, Floats, Any]]:
    """Norms that were given this projection, over each head or over all heads at once: (form, ours, own)."""
    heads, count, dim = raw.shape
    flat = raw.transpose(1, 0, 2)
    for call in way.trace.calls:
        if not call.given or call.result is None or _is_linear(call.module) or call.given[0].size != raw.size:
            continue
        by_token = np.array_equal(call.given[0].reshape(-1), flat.reshape(-1))
        if not by_token and not np.array_equal(call.given[0].reshape(-1), raw.reshape(-1)):
            continue
        form, ours = _by_formula(call)
        if ours is None or call.result.size != raw.size or form == "same":
            continue
        shape = (count, heads, dim) if by_token else (heads, count, dim)
        turned = [part.reshape(shape) for part in (ours, call.result)]
        yield (form, *((part.transpose(1, 0, 2) if by_token else part) for part in turned))  # type: ignore[misc]


def _angles(way: _Way, found: _Projected) -> None:
    """The cosines of the target's angles against the formula, with each base that the configuration names."""
    width = found.cos.shape[1]
    for base in _bases(way.loaded.backbone.config):
        for pairs in {width, width // 2}:
            angles = algebra.angles_by_formula(way.count, pairs, base)
            for form in (angles, np.concatenate([angles, angles], axis=1), np.repeat(angles, 2, axis=1)):
                if agrees(np.cos(form), found.cos):
                    way.add("angles", way.at(np.cos(form)), way.at(found.cos), form=f"base {base:g}")
                    return
    way.add("angles", None, way.at(found.cos), missing="other_angles")


def _bases(config: Any) -> list[float]:
    """Every number called rope_theta in the configuration, and the customary 10000."""

    def inside(value: Any) -> Iterator[float]:
        for key, item in value.items():
            if isinstance(item, dict):
                yield from inside(item)
            elif "theta" in str(key) and isinstance(item, int | float):
                yield float(item)

    return list(dict.fromkeys([*inside(config.to_dict()), 10000.0]))


# Scores and weights


def _weights(way: _Way) -> Floats:
    """Scores, scaling, softcap, bias, mask, softmax, sink; gives the weights of every head [head, key]."""
    h, terms, t = way.handed, way.handed.terms, way.target
    group = h.query.shape[0] // h.key.shape[0]
    keys = np.repeat(h.key, group, axis=0).astype(np.float64)  # [head, key, dim]
    scores = np.einsum("hd,hkd->hk", h.query[:, t].astype(np.float64), keys)
    _grid_step(way, "scores", scores, tuple(name for name in PRODUCTS if name != "baddbmm"))
    current = scores * terms.scaling
    _grid_step(way, "scaled", current, (), form=f"{terms.scaling:.6g}")
    if terms.softcap is not None:
        current = terms.softcap * np.tanh(current / terms.softcap)
        _grid_step(way, "softcap", current, (), form=f"{terms.softcap:g}")
    if terms.position_bias is not None:
        bias = _over_heads(terms.position_bias, t, scores.shape)
        _bias_row(way, bias[way.head])
        current = current + bias
        _grid_step(way, "biased", current, ())
    allowed, added = _mask_row(terms, t, way.count, scores.shape)
    current = np.where(allowed, current + added, -np.inf)
    _mask_step(way, allowed[way.head])
    weights, sink = _softmax(current, terms)
    own = _grid(way, weights, ("softmax",))
    kept = None if own is None else own[way.head]
    way.add("weights", weights[way.head], kept, columns=way.labels, **_held(kept))
    if sink is not None:
        way.add("sink", sink[way.head], None if own is None else 1.0 - own[way.head].sum(), **_held(own))
    return weights


def _bias_row(way: _Way, own: Floats) -> None:
    """A bias by T5's buckets or by ALiBi's slopes; where neither gives the model's row, it is taken as given."""
    distances, config = np.arange(way.count) - way.target, way.loaded.backbone.config
    heads = way.handed.query.shape[0]
    buckets = getattr(config, "relative_attention_num_buckets", 0)
    for table in way.loaded.backbone.modules():
        if isinstance(table, torch.nn.Embedding) and tuple(table.weight.shape) == (buckets, heads):
            furthest = int(getattr(config, "relative_attention_max_distance", 128))
            for both_ways in (True, False):
                places = algebra.relative_buckets(distances, buckets=buckets, furthest=furthest, both_ways=both_ways)
                ours = _numbers(table.weight)[places, way.head]
                if agrees(ours, own):
                    way.position = "relative_bias"
                    way.add("bias_row", ours, own, columns=way.labels, form="buckets")
                    return
    slope = algebra.alibi_slopes(heads)[way.head]
    shifted = own - own[way.target]  # a softmax does not notice a number that is added to all, so the word is at 0
    if agrees(slope * distances, shifted):
        way.position = "alibi"
        way.add("bias_row", slope * distances, shifted, columns=way.labels, form="alibi")
        return
    way.position = "relative_bias"
    way.add("bias_row", None, own, columns=way.labels, missing="other_bias")


def _mask_step(way: _Way, own: Any) -> None:
    """The keys that the word may see: all, those up to itself, or those within a window."""
    away = np.arange(way.count) - way.target
    window = getattr(way.loaded.backbone.config, "sliding_window", None)
    local = getattr(way.loaded.backbone.config, "local_attention", None)
    forms = {"causal": away <= 0, "all": away == away}
    if not way.causal:
        forms = {"all": away == away, **forms}
    if isinstance(window, int):
        forms["causal_window"] = (away <= 0) & (away > -window)
    if isinstance(local, int):
        forms["window"] = np.abs(away) <= local // 2
    form = next((name for name, allowed in forms.items() if np.array_equal(allowed, own)), None)
    ours = None if form is None else forms[form]
    way.add("mask", ours, own, columns=way.labels, form=form or "", missing="" if form else "other_mask")


def _softmax(scores: Floats, terms: ScoreTerms) -> tuple[Floats, Floats | None]:
    if terms.sinks is None:
        return softmax(scores), None
    logits = terms.sinks.detach().float().cpu().numpy().astype(np.float64)[:, None]
    both = softmax(np.concatenate([scores, logits], axis=1))
    return both[:, :-1], both[:, -1]


def _mask_row(terms: ScoreTerms, target: int, count: int, shape: tuple[int, ...]) -> tuple[Any, Floats]:
    """Which keys the target may see [head, key], and what a float mask adds."""
    nothing = np.zeros(shape)
    if terms.mask is not None and terms.mask.dtype != torch.bool:
        row = _over_heads(terms.mask, target, shape)
        seen = row > torch.finfo(torch.float32).min / 2
        return seen, np.where(seen, row, 0.0)
    place = torch.tensor([[target]], device=None if terms.mask is None else terms.mask.device)
    allowed = allowed_keys(terms, place, queries=count, keys=count)
    if allowed is None:
        return np.ones(shape, dtype=bool), nothing
    return np.broadcast_to(allowed[0, :, 0].cpu().numpy(), shape), nothing


def _over_heads(grid: torch.Tensor, target: int, shape: tuple[int, ...]) -> Floats:
    """One query's row of a [1, 1 or head, query or 1, key] grid, for every head."""
    rows = grid.detach().float().cpu().numpy()[0].astype(np.float64)  # [1 or head, query or 1, key]
    return np.broadcast_to(rows[:, min(target, rows.shape[1] - 1), : shape[1]], shape)


def _grid_step(way: _Way, name: str, ours: Floats, functions: tuple[str, ...], form: str = "") -> None:
    own = _grid(way, ours, functions)
    kept = None if own is None else own[way.head]
    way.add(name, ours[way.head], kept, columns=way.labels, form=form, **_held(kept))


def _held(own: Any) -> dict[str, str]:
    return {"missing": "fused_product"} if own is None else {}


def _grid(way: _Way, ours: Floats, functions: tuple[str, ...]) -> Any:
    """The target's rows [head, key] of the model's own eager grid that comes nearest to ours.

    Named functions give the one meant; in between, the family writes its operations as it likes, and where none of its
    grids comes within the bound it does not hold this step by itself.
    """
    calls = way.trace.grids
    if "softmax" not in functions:
        end = next((place for place, call in enumerate(calls) if call.name == "softmax"), len(calls))
        calls = calls[:end]
    grids = [_of_target(call, way, ours.shape) for call in calls if not functions or call.name in functions]
    found = sorted((gap(ours, grid), place) for place, grid in enumerate(grids) if grid is not None)
    if not found or (not functions and found[0][0] > BOUND):
        return None
    return grids[found[0][1]]


def _of_target(call: FunctionCall, way: _Way, shape: tuple[int, ...]) -> Any:
    array = call.result
    if array.ndim != 3 or array.shape[0] != shape[0] or array.shape[1] != way.count:
        return None
    return array[:, way.target, : shape[1]].astype(np.float64)


# Out of attention


def _mixed(way: _Way, rows: Floats) -> None:
    """The weighted sum of values, of the head and of all heads side by side."""
    h = way.handed
    values = np.repeat(h.value, h.query.shape[0] // h.value.shape[0], axis=0).astype(np.float64)
    ours = np.einsum("hk,hkd->hd", rows, values)
    way.add("mixed", ours[way.head], h.output[way.target, way.head])
    way.add("heads", ours, h.output[way.target], rows=tuple(map(str, range(len(ours)))))


def _written(way: _Way) -> tuple[Any, Floats | None]:
    """Heads side by side through W_O: the map's output [token, model], and what each head writes for each key."""
    h = way.handed
    flat = h.output.reshape(way.count, -1)
    call = next((c for c in way.trace.calls if _is_linear(c.module) and c.given and _same(c.given[0], flat)), None)
    if call is None or call.result is None:
        way.add("written", None, None, missing="gate_before")
        return None, None
    columns = np.arange(call.result.shape[-1])
    way.add("written", way.at(_through(call, columns)), way.at(call.result))
    matrix = _matrix(call.module, flat.shape[1])[0].T.reshape(h.query.shape[0], h.value.shape[2], -1)
    values = np.repeat(h.value, h.query.shape[0] // h.value.shape[0], axis=0).astype(np.float64)
    return call.result, np.einsum("hkd,hdm->hkm", values, matrix)


def _after(way: _Way, state: Any, written: Any) -> None:
    """Residual and norms up to the next state; the feed-forward network in between is taken as the model gives it."""
    calls = [call for call in way.trace.calls if call.result is not None]
    if written is None:
        attended = way.trace.attention.result
        written = attended if attended is not None and attended.shape == state.shape else None
    residual = None
    if written is not None:
        start = next((n for n, call in enumerate(calls) if call.result is written), 0)
        residual = _residual(way, state, written, calls[start:])
    _next_state(way, residual, calls)


def _residual(way: _Way, state: Any, written: Any, later: list[ModuleCall]) -> Any:
    """State + what attention wrote: the sum that the family goes on with, normed before or after."""
    for call in later:  # a norm of what was written, before it is added (Gemma, OLMo2)
        assert call.result is not None
        if call.given and _same(call.given[0], written) and not _is_linear(call.module):
            form, ours = _by_formula(call)
            if ours is not None and form != "same" and call.result.shape == state.shape:
                way.add("written_normed", way.at(ours), way.at(call.result), form=form)
                written = call.result
    total = state.astype(np.float64) + written
    for call in later:
        for own in call.given:
            if own.shape == state.shape and agrees(total, own) and not _same(own, state):
                way.add("residual", way.at(total), way.at(own))
                form, ours = _by_formula(call)
                if ours is not None and call.given[0] is own and form != "same" and call.result is not None:
                    way.add("residual_normed", way.at(ours), way.at(call.result), form=form)
                return own
    way.add("residual", way.at(total), None, missing="parallel")
    return None


def _next_state(way: _Way, residual: Any, calls: list[ModuleCall]) -> None:
    """The block's output as a sum of two or three tensors that were held inside, or a norm of such a sum."""
    goal = way.trace.block.result
    if goal is None:
        way.add("next", None, None, missing="other_sum")
        return
    ends = [call for call in reversed(calls) if call.given and _same(call.result, goal)]
    forms = [(call.given[0], *_by_formula(call)) for call in ends]
    inner, form, ours = next((one for one in forms if one[1].endswith(("norm", "norm_one"))), (goal, "", None))
    held = _held_tensors(way, residual, calls, inner)
    total = _sum_to(inner, held)
    if inner is not goal:
        way.add("summed", None if total is None else way.at(total[1]), way.at(inner), form=total[0] if total else "",
                **({} if total else {"missing": "other_sum"}))  # fmt: skip
        way.add("next", way.at(ours), way.at(goal), form=form)
        return
    way.add("next", None if total is None else way.at(total[1]), way.at(goal), form=total[0] if total else "",
            **({} if total else {"missing": "other_sum"}))  # fmt: skip


def _held_tensors(way: _Way, residual: Any, calls: list[ModuleCall], goal: Any) -> list[Any]:
    found: list[Any] = [] if residual is None else [residual]
    found += [way.trace.block.given[0]]
    for call in reversed(calls):
        found += [array for array in (call.result, *call.given) if array is not None]
    kept: list[Any] = []
    for array in found:
        if array.size == goal.size and not _same(array, goal) and not any(_same(array, one) for one in kept):
            kept.append(array.reshape(goal.shape))
    return kept


def _sum_to(goal: Any, held: list[Any]) -> tuple[str, Floats] | None:
    """Two held tensors, or the state and two more, that add up to the goal."""
    wide = [array.astype(np.float64) for array in held]
    for first in range(len(wide)):
        for second in range(first + 1, len(wide)):
            pair = wide[first] + wide[second]
            if agrees(pair, goal):
                return "two", pair
    for first in range(min(2, len(wide))):
        for second in range(len(wide)):
            for third in range(second + 1, len(wide)):
                triple = wide[first] + wide[second] + wide[third]
                if first != second and first != third and agrees(triple, goal):
                    return "three", triple
    return None


# One module by its formula


def _by_formula(call: ModuleCall) -> tuple[str, Any]:
    """What a module makes of its first tensor, by the formula that gives its own numbers: (form, numbers or None)."""
    given, own = call.given[0], call.result
    assert own is not None
    if _same(given, own):
        return "same", given
    if _is_linear(call.module):
        return "linear", _through(call, np.arange(own.shape[-1]))
    weight, bias = (_numbers(getattr(call.module, name, None)) for name in ("weight", "bias"))
    if given.shape != own.shape or (weight is not None and weight.shape != given.shape[-1:]):
        return "", None
    for eps in _epsilons(call.module):
        for form, ours in algebra.norm_forms(given, weight, bias, eps):
            if agrees(ours, own):
                return form, ours
    return "", None


def _epsilons(module: Any) -> list[float]:
    names = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps")
    found = [getattr(module, name, None) for name in names]
    return [float(eps) for eps in found if isinstance(eps, float)] or [1e-6, 1e-5]


def _through(call: ModuleCall, columns: NDArray[np.int64]) -> Floats:
    """Chosen columns of a linear map: [token, column], or [head, token, dim] for columns [head, dim]."""
    given = call.given[0].reshape(-1, call.given[0].shape[-1]).astype(np.float64)
    matrix, bias = _matrix(call.module, given.shape[-1])
    if columns.ndim == 1:
        result: Floats = given @ matrix[columns].T + bias[columns]
        return result
    return np.einsum("ti,hdi->htd", given, matrix[columns]) + bias[columns][:, None]


def _matrix(module: Any, width: int) -> tuple[Floats, Floats]:
    """A linear map's matrix [out, in] and bias [out]; of adapters and the like what they make of unit vectors."""
    if type(module) is torch.nn.Linear and module.weight.is_floating_point():
        weight = _numbers(module.weight)
    elif type(module).__name__ == "Conv1D":
        weight = _numbers(module.weight).T
    else:
        unit = torch.eye(width, device=next(module.parameters()).device)
        with torch.inference_mode():
            bias = _numbers(module(torch.zeros_like(unit[:1])))[0]
            return (_numbers(module(unit)) - bias).T, bias
    bias = _numbers(module.bias)
    return weight, np.zeros(len(weight)) if bias is None else bias


def _is_linear(module: Any) -> bool:
    base = getattr(module, "base_layer", None)
    sized = hasattr(module, "in_features") and hasattr(module, "out_features")
    return sized or type(module).__name__ == "Conv1D" or (base is not None and _is_linear(base))


def _is_table(call: ModuleCall) -> bool:
    return isinstance(call.module, torch.nn.Embedding)


def _shares_weight(module: Any, table: Any) -> bool:
    return module is table or (
        module.weight.shape == table.weight.shape and module.weight.data_ptr() == table.weight.data_ptr()
    )


def _over_tokens(array: Any, count: int) -> Any:
    """A [token, dim] array, also of one that is the same for every token; None for another shape."""
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[0] not in (1, count):
        return None
    return np.broadcast_to(array, (count, array.shape[1])).astype(np.float64)


def _scale_between(raw: Floats, found: Any) -> float | None:
    """The number that the model multiplies a table's rows by: 1, or √dim (Gemma); None if another."""
    return next((s for s in (1.0, raw.shape[1] ** 0.5) if agrees(raw * s, found)), None)


def _scaled(scale: float | None) -> str:
    return "" if scale in (None, 1.0) else f"× {scale:.6g}"


def _same(one: Any, other: Any) -> bool:
    """Whether two arrays hold the same numbers, whatever their shape."""
    return one is not None and other is not None and one.size == other.size and np.array_equal(one.ravel(), other.ravel())


def _numbers(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().float().cpu().numpy().astype(np.float64)


Formula = Callable[..., Any]
