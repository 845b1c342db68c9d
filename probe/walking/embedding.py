"""The walk up to the first block: the row of the table, what is added for the position, the state that comes out."""

from typing import Any

import numpy as np

from probe.walking.algebra import Floats, agrees, gap
from probe.walking.blocktrace import ModuleCall
from probe.walking.modulemath import by_formula, is_table, numbers_of, over_tokens, same, scale_between, shares_weight
from probe.walking.way import PositionKind, Way


def embedding_steps(way: Way) -> None:
    """The row of the table, what is added to it, and the state that comes out."""
    table = way.loaded.backbone.get_input_embeddings()
    before = [call for call in way.trace.before if call.result is not None]
    looked_up = next((call for call in before if is_table(call) and shares_weight(call.module, table)), None)
    if looked_up is None or looked_up.result is None:
        way.add("table_row", None, None, missing="no_lookup")
        return
    raw = numbers_of(table.weight[list(way.ids)])  # [token, dim]; the whole table in float64 may be gigabytes
    scale = scale_between(raw, looked_up.result)
    way.add(
        "table_row", None if scale is None else way.at(raw) * scale, way.at(looked_up.result), detail=_scale_text(scale)
    )
    current = looked_up.result.astype(np.float64)
    added = [call for call in before if call.result is not None and is_table(call) and call is not looked_up]
    parts = [over_tokens(call.result, way.count) for call in added]
    later = [c for c in before[before.index(looked_up) + 1 :] if c.result is not None]
    way.position = _added_position(way, added)
    _sum_of_embeddings(way, current, parts, later)


def _sum_of_embeddings(way: Way, current: Floats, parts: list[Any], later: list[ModuleCall]) -> None:
    """Follow the embedding to what the first block reads: what is added, scaled, normed, mapped."""
    goal = first_state(way)
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
        way.add("added", way.at(ours), way.at(own), detail=_scale_text(scale))
    reached = _chain(way, own, later, goal)
    if reached is None:
        way.add("embedded", None, way.at(goal), missing="other_sum")


def _chain(way: Way, current: Any, calls: list[ModuleCall], goal: Any) -> Any:
    """From a tensor through norms and linear maps to the goal, one step each; None where it is not reached."""
    for call in calls:
        if same(current, goal):
            return goal
        if call.result is None or not call.given or not same(call.given[0], current) or same(call.result, current):
            continue
        form, ours = by_formula(call)
        if ours is not None:
            way.add("embedded", way.at(ours), way.at(call.result), form=form)
            current = call.result
    return goal if same(current, goal) else None


def first_state(way: Way) -> Any:
    """What the first block reads, [token, dim]."""
    entry = way.trace.entry
    return entry if entry is not None and entry.shape == way.trace.block.given[0].shape else None


def _added_position(way: Way, added: list[ModuleCall]) -> PositionKind:
    """Which rows are added for the position, told apart from token types by that they differ between positions."""
    for call in added:
        rows = over_tokens(call.result, way.count)
        if rows is None or np.ptp(rows, axis=0).max() == 0:
            continue
        sinusoidal = _is_sinusoidal(call)
        near = numbers_of(_weight(call)[way.target : way.target + 4])  # some tables keep their first rows free
        ours = next((row for row in near if agrees(row, way.at(rows))), None)
        kind: PositionKind = "sinusoidal" if sinusoidal else "learned"
        way.add("position_row", ours, way.at(rows), form=kind)
        return kind
    return "none"


def _is_sinusoidal(call: ModuleCall) -> bool:
    """Whether a position table holds sines and cosines of position / 10000^(2i / dim), by turns or in halves."""
    table = numbers_of(_weight(call)[:40])
    angles = np.arange(len(table))[:, None] / 10000.0 ** (2 * np.arange((table.shape[1] + 1) // 2) / table.shape[1])
    sines, cosines = np.sin(angles), np.cos(angles)[:, : table.shape[1] // 2]
    turns = np.empty_like(table)
    turns[:, ::2], turns[:, 1::2] = sines, cosines
    return any(gap(form, table) < 1e-4 for form in (turns, np.concatenate([sines, cosines], axis=1)))


def _weight(call: ModuleCall) -> Any:
    return call.module.weight


def _scale_text(scale: float | None) -> str:
    return "" if scale in (None, 1.0) else f"× {scale:.6g}"
