"""The walk into attention: what is read, and how query, key and value come out of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.walking import algebra
from probe.walking.algebra import Floats, agrees
from probe.walking.embedding import first_state
from probe.walking.modulemath import by_formula, is_linear, same, terms_of, through
from probe.walking.way import Way

ANGLE_ROWS = ("cos θ_i", "sin θ_i")


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
            row = None if ours is None else way.at(ours)
            way.add("read", row, way.at(source), form=form, terms=terms_of(call.module), facts={"d": state.shape[-1]})
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
        facts = {"d": own.shape[-1], "width": found.width}
        ours, raw = found.ours[head, kept], found.raw[head, kept]
        way.add(name, ours, raw, rows=rows, form=found.layout, terms=found.terms, facts=facts)
        if found.normed is not None:
            form, terms, ours, result = found.normed
            shown = (ours[head, kept], result[head, kept])
            way.add(f"{name}_normed", *shown, rows=rows, form=form, terms=terms, facts=facts)
        if found.scaled:
            way.add(f"{name}_scaled", found.turned[head, kept], own[head, kept], rows=rows, form="early", facts=facts)
        if found.turn is not None:
            if part == 0:
                way.position = "rotary"
                _angles(way, found.turn)
            facts = _turn_facts(way, found, head)
            turned = found.turned[head, kept]
            way.add(f"{name}_turned", turned, own[head, kept], rows=rows, form=found.turn.form, facts=facts)


def _turn_facts(way: Way, found: "_Projected", head: int) -> dict[str, str | int]:
    """The word's first pair of numbers before and after its turn, written so that they can be worked by hand."""
    assert found.turn is not None
    turn, place = found.turn, way.target
    (first, second), (first_after, second_after) = turn.first_pair
    before, after = found.before[head, place], found.turned[head, place]
    numbers = {
        "one": before[first], "other": before[second], "cos": turn.cos[place, 0], "sin": turn.sin[place, 0],
        "new_one": after[first_after], "new_other": after[second_after],
    }  # fmt: skip
    written = {name: f"{number:.4f}".replace("-", "−") for name, number in numbers.items()}
    for name in ("one", "other", "cos", "sin"):  # these stand behind a sign
        written[name] = f"({written[name]})" if written[name].startswith("−") else written[name]
    return {
        **written, "first": first, "second": second, "first_after": first_after, "second_after": second_after,
        "half": turn.cos.shape[-1], "d": 2 * turn.cos.shape[-1], "dim": len(before), "start": turn.start,
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class _Projected:
    """How one of query, key and value came about, [head, token, dim]."""

    layout: str
    width: int  # how many numbers the map was given
    terms: tuple[str, ...]
    ours: Floats
    raw: Any
    normed: tuple[str, tuple[str, ...], Floats, Any] | None  # form, terms, ours, own
    before: Any  # what was turned or scaled
    scaled: bool
    turn: algebra.Turn | None
    turned: Any


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
            for normed in (None, *_normed(way, raw)):
                before = raw if normed is None else normed[3]
                for scaled, turn, turned in _turns(before, tables):
                    if agrees(turned, own):
                        direct = source is not None and same(call.given[0], source)
                        return _Projected(
                            layout=layout if direct else "through_smaller", width=call.given[0].shape[-1],
                            terms=terms_of(call.module), ours=through(call, columns), raw=raw, normed=normed,
                            before=before, scaled=scaled, turn=turn, turned=turned,
                        )  # fmt: skip
    return None


def _turns(x: Any, tables: list[tuple[Floats, Floats]]) -> Iterator[tuple[bool, algebra.Turn | None, Any]]:
    """What may be done to a projection before it is used: (scaled, turn, result)."""
    yield False, None, x
    yield True, None, x * x.shape[-1] ** -0.5
    for cos, sin in tables:
        yield from ((False, turn, turn.turned) for turn in algebra.rotation_forms(x, cos, sin))


def _normed(way: Way, raw: Any) -> Iterator[tuple[str, tuple[str, ...], Floats, Any]]:
    """Norms that were given this projection, over each head or over all heads at once: (form, terms, ours, own)."""
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
        whole = [part.reshape(shape) for part in (ours, call.result)]
        ours, own = (part.transpose(1, 0, 2) if by_token else part for part in whole)
        yield form, terms_of(call.module), ours, own


def _angles(way: Way, turn: algebra.Turn) -> None:
    """Cosines and sines of the word's angles against the formula, with each base that the configuration names."""
    own = np.stack([way.at(turn.cos), way.at(turn.sin)])
    facts: dict[str, str | int] = {"t": way.target, "d": 2 * own.shape[1]}
    for base in _bases(way.loaded.backbone.config):
        angles = way.at(algebra.angles_by_formula(way.count, own.shape[1], base))
        ours = np.stack([np.cos(angles), np.sin(angles)])
        if agrees(ours, own):
            way.add("angles", ours, own, rows=ANGLE_ROWS, form="by_base", facts={**facts, "base": f"{base:.10g}"})
            return
    way.add("angles", None, own, rows=ANGLE_ROWS, missing="other_angles")


def _bases(config: Any) -> list[float]:
    """Every number called rope_theta in the configuration, and the customary 10000."""

    def inside(value: Any) -> Iterator[float]:
        for key, item in value.items():
            if isinstance(item, dict):
                yield from inside(item)
            elif "theta" in str(key) and isinstance(item, int | float):
                yield float(item)

    return list(dict.fromkeys([*inside(config.to_dict()), 10000.0]))
