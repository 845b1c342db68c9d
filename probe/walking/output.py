"""The walk out of attention: weighted sum, heads side by side, W_O, residual, norms, next state."""

from typing import Any

import numpy as np

from probe.walking.algebra import Floats, agrees
from probe.walking.blocktrace import ModuleCall
from probe.walking.modulemath import by_formula, is_linear, matrix_of, same, through
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
    way.add("written", way.at(through(call, columns)), way.at(call.result))
    matrix = matrix_of(call.module, flat.shape[1])[0].T.reshape(h.query.shape[0], h.value.shape[2], -1)
    values = np.repeat(h.value, h.query.shape[0] // h.value.shape[0], axis=0).astype(np.float64)
    return call.result, np.einsum("hkd,hdm->hkm", values, matrix)


def closing_steps(way: Way, state: Any, written: Any) -> None:
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


def _residual(way: Way, state: Any, written: Any, later: list[ModuleCall]) -> Any:
    """State + what attention wrote: the sum that the family goes on with, normed before or after."""
    for call in later:  # a norm of what was written, before it is added (Gemma, OLMo2)
        assert call.result is not None
        if call.given and same(call.given[0], written) and not is_linear(call.module):
            form, ours = by_formula(call)
            if ours is not None and form != "same" and call.result.shape == state.shape:
                way.add("written_normed", way.at(ours), way.at(call.result), form=form)
                written = call.result
    total = state.astype(np.float64) + written
    for call in later:
        for own in call.given:
            if own.shape == state.shape and agrees(total, own) and not same(own, state):
                way.add("residual", way.at(total), way.at(own))
                form, ours = by_formula(call)
                if ours is not None and call.given[0] is own and form != "same" and call.result is not None:
                    way.add("residual_normed", way.at(ours), way.at(call.result), form=form)
                return own
    way.add("residual", way.at(total), None, missing="parallel")
    return None


def _next_state(way: Way, residual: Any, calls: list[ModuleCall]) -> None:
    """The block's output as a sum of two or three tensors that were held inside, or a norm of such a sum."""
    goal = way.trace.block.result
    if goal is None:
        way.add("next", None, None, missing="other_sum")
        return
    ends = [call for call in reversed(calls) if call.given and same(call.result, goal)]
    forms = [(call.given[0], *by_formula(call)) for call in ends]
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
