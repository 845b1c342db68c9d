"""The walk into attention: what is read, and how query, key and value come out of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.walking import algebra
from probe.walking.algebra import Floats, agrees
from probe.walking.blocktrace import ModuleCall
from probe.walking.embedding import first_state
from probe.walking.modulemath import by_formula, is_linear, same, through
from probe.walking.way import Way


def state_step(way: Way) -> Any:
    """What the block is given, [token, dim]."""
    state = way.trace.block.given[0]
    way.add("state", way.at(state), way.at(state), form="first" if same(state, first_state(way)) else "given")
    return state


def read_step(way: Way, state: Any) -> Any:
    """What attention reads: the state itself (norm after), or what a norm makes of it."""
    source = next((array for array in way.trace.attention.given if array.shape == state.shape), None)
    if source is None:
        way.add("read", None, None, missing="no_input")
        return None
    if same(source, state):
        way.add("read", way.at(state), way.at(source), form="as_it_is")
        return source
    for call in way.trace.calls:
        if call.given and call.result is not None and same(call.given[0], state) and same(call.result, source):
            form, ours = by_formula(call)
            way.add("read", None if ours is None else way.at(ours), way.at(source), form=form)
            return source
    way.add("read", None, way.at(source), missing="other_norm")
    return source


def projection_steps(way: Way, source: Any) -> None:
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


def _projected(way: Way, own: Any, part: int, source: Any) -> _Projected | None:
    """The first of all layouts, norms and turns that gives the model's own; maps of the source itself come first."""
    h = way.handed
    maps = [call for call in way.trace.calls if call.given and call.result is not None and is_linear(call.module)]
    maps.sort(key=lambda call: source is None or not same(call.given[0], source))
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
                        ours = through(call, columns)
                        form = layout if source is not None and same(call.given[0], source) else "through_smaller"
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


def _normed(way: Way, map_call: ModuleCall, raw: Any) -> Iterator[tuple[str, Floats, Any]]:
    """Norms that were given this projection, over each head or over all heads at once: (form, ours, own)."""
    heads, count, dim = raw.shape
    flat = raw.transpose(1, 0, 2)
    for call in way.trace.calls:
        if not call.given or call.result is None or is_linear(call.module) or call.given[0].size != raw.size:
            continue
        by_token = np.array_equal(call.given[0].reshape(-1), flat.reshape(-1))
        if not by_token and not np.array_equal(call.given[0].reshape(-1), raw.reshape(-1)):
            continue
        form, ours = by_formula(call)
        if ours is None or call.result.size != raw.size or form == "same":
            continue
        shape = (count, heads, dim) if by_token else (heads, count, dim)
        turned = [part.reshape(shape) for part in (ours, call.result)]
        yield (form, *((part.transpose(1, 0, 2) if by_token else part) for part in turned))  # type: ignore[misc]


def _angles(way: Way, found: _Projected) -> None:
    """The cosines of the target's angles against the formula, with each base that the configuration names."""
    width = found.cos.shape[1]
    for base in _bases(way.loaded.backbone.config):
        for pairs in {width, width // 2}:
            angles = algebra.angles_by_formula(way.count, pairs, base)
            for form in (angles, np.concatenate([angles, angles], axis=1), np.repeat(angles, 2, axis=1)):
                if agrees(np.cos(form), found.cos):
                    way.add("angles", way.at(np.cos(form)), way.at(found.cos), form="by_base", detail=f"{base:g}")
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
