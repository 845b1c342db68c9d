"""The walk out of attention: weighted sum, heads side by side, W_O, residual, norms, next state."""

from typing import Any

import numpy as np

from probe.walking.algebra import Floats, agrees
from probe.walking.blocktrace import ModuleCall
from probe.walking.modulemath import by_formula, is_linear, matrix_of, same, terms_of, through
from probe.walking.way import Way


def mixed_steps(way: Way, rows: Floats) -> None:
    """The weighted sum of values, of the head and of all heads side by side."""
    h = way.handed
    values = np.repeat(h.value, h.query.shape[0] // h.value.shape[0], axis=0).astype(np.float64)
    ours = np.einsum("hk,hkd->hd", rows, values)
    way.add("mixed", ours[way.head], h.output[way.target, way.head])
    way.add("heads", ours, h.output[way.target], rows=tuple(map(str, range(len(ours)))))


def written_step(way: Way) -> tuple[Any, Floats | None]:
    """Heads side by side through W_O: the map's output [token, model], and what each head writes for each key."""
    h = way.handed
    flat = h.output.reshape(way.count, -1)
    call = next((c for c in way.trace.calls if is_linear(c.module) and c.given and same(c.given[0], flat)), None)
    if call is None or call.result is None:
        way.add("written", None, None, missing="gate_before")
        return None, None
    columns = np.arange(call.result.shape[-1])
    way.add("written", way.at(through(call, columns)), way.at(call.result), terms=terms_of(call.module))
    matrix = matrix_of(call.module, flat.shape[1])[0].T.reshape(h.query.shape[0], h.value.shape[2], -1)
    values = np.repeat(h.value, h.query.shape[0] // h.value.shape[0], axis=0).astype(np.float64)
    return call.result, np.einsum("hkd,hdm->hkm", values, matrix)


def closing_steps(way: Way, state: Any, written: Any) -> None:
    """Residual and norms up to the next state; the feed-forward network in between is taken as the model gives it."""
    calls = [call for call in way.trace.calls if call.result is not None]
    if written is None:
        attended = way.trace.attention.result
        written = attended if attended is not None and attended.shape == state.shape else None
    named = {"x": state}  # what may stand in the last sum, by its letter
    if written is not None:
        start = next((n for n, call in enumerate(calls) if call.result is written), 0)
        named |= _residual(way, state, written, calls[start:])
    _next_state(way, named, calls)


def _residual(way: Way, state: Any, written: Any, later: list[ModuleCall]) -> dict[str, Any]:
    """State + what attention wrote: the sum that the family goes on with, normed before or after; by their letters."""
    for call in later:  # a norm of what was written, before it is added (Gemma, OLMo2)
        assert call.result is not None
        if call.given and same(call.given[0], written) and not is_linear(call.module):
            form, ours = by_formula(call)
            if ours is not None and form != "same" and call.result.shape == state.shape:
                way.add("written_normed", way.at(ours), way.at(call.result), **_norm(form, call))
                written = call.result
    total = state.astype(np.float64) + written
    for call in later:
        for own in call.given:
            if own.shape == state.shape and agrees(total, own) and not same(own, state):
                way.add("residual", way.at(total), way.at(own))
                form, ours = by_formula(call)
                if ours is None or call.given[0] is not own or form == "same" or call.result is None:
                    return {"y": written, "h": own}
                way.add("residual_normed", way.at(ours), way.at(call.result), **_norm(form, call))
                return {"y": written, "h": own, "ĥ": call.result}
    way.add("residual", way.at(total), None, missing="parallel")
    return {"y": written}


def _norm(form: str, call: ModuleCall) -> dict[str, Any]:
    assert call.result is not None
    return {"form": form, "terms": terms_of(call.module), "facts": {"d": call.result.shape[-1]}}


def _next_state(way: Way, named: dict[str, Any], calls: list[ModuleCall]) -> None:
    """The block's output as a sum of two or three tensors that were held inside, or a norm of such a sum."""
    goal = way.trace.block.result
    if goal is None:
        way.add("next", None, None, missing="other_sum")
        return
    ends = [call for call in reversed(calls) if call.given and same(call.result, goal)]
    forms = [(call.given[0], call, *by_formula(call)) for call in ends]
    normed = next((one for one in forms if one[2].endswith(("norm", "norm_one"))), None)
    inner = goal if normed is None else normed[0]
    found = _sum_to(inner, _held_tensors(way, named.get("h"), calls, inner))
    letters = () if found is None else _fed_step(way, named, found[0])
    more: dict[str, Any] = {"missing": "other_sum"}
    if found is not None:
        more = {"form": "two" if len(letters) == 2 else "three", "terms": letters}
    ours = None if found is None else way.at(found[1])
    way.add("next" if normed is None else "summed", ours, way.at(inner), **more)
    if normed is not None:
        _, call, form, whole = normed
        way.add("next", way.at(whole), way.at(goal), **_norm(form, call))


def _fed_step(way: Way, named: dict[str, Any], parts: tuple[Any, ...]) -> tuple[str, ...]:
    """A step for the one part that no step before gave, the feed-forward network's; the letters of the sum."""
    letters = [next((letter for letter, one in named.items() if same(one, part)), "f") for part in parts]
    for letter, part in zip(letters, parts, strict=True):
        if letter == "f":
            fed = way.at(part.reshape(way.count, -1))
            way.add("fed", fed, fed, form="given")
    return tuple(sorted(letters, key="xyhĥf".index))


def _held_tensors(way: Way, residual: Any, calls: list[ModuleCall], goal: Any) -> list[Any]:
    found: list[Any] = [] if residual is None else [residual]
    found += [way.trace.block.given[0]]
    for call in reversed(calls):
        found += [array for array in (call.result, *call.given) if array is not None]
    kept: list[Any] = []
    for array in found:
        if array.size == goal.size and not same(array, goal) and not any(same(array, one) for one in kept):
            kept.append(array.reshape(goal.shape))
    return kept


def _sum_to(goal: Any, held: list[Any]) -> tuple[tuple[Any, ...], Floats] | None:
    """Two held tensors, or one of the first two and two more, that add up to the goal: (the tensors, their sum)."""
    wide = [array.astype(np.float64) for array in held]
    for first in range(len(wide)):
        for second in range(first + 1, len(wide)):
            pair = wide[first] + wide[second]
            if agrees(pair, goal):
                return (held[first], held[second]), pair
    for first in range(min(2, len(wide))):
        for second in range(len(wide)):
            for third in range(second + 1, len(wide)):
                triple = wide[first] + wide[second] + wide[third]
                if first != second and first != third and agrees(triple, goal):
                    return (held[first], held[second], held[third]), triple
    return None
