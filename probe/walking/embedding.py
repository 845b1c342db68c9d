"""The walk up to the first block: the row of the table, every row that is added to it, the state that comes out."""

from typing import Any

import numpy as np

from probe.walking.algebra import Floats, agrees, gap
from probe.walking.blocktrace import ModuleCall
from probe.walking.modulemath import (
    by_formula,
    is_table,
    numbers_of,
    over_tokens,
    same,
    scale_between,
    shares_weight,
    terms_of,
)
from probe.walking.way import Way

MOST_SEGMENTS = 16  # rows of a table of segments; a longer one is for positions


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
    row = None if scale is None else way.at(raw) * scale
    form = "scaled" if scale not in (None, 1.0) else ""
    way.add("table_row", row, way.at(looked_up.result), form=form, **_scaled(scale, raw.shape[1]))
    current = looked_up.result.astype(np.float64)
    tables = [call for call in before if is_table(call) and call is not looked_up]
    parts = [part for call in tables if (part := _added_row(way, call, current.shape)) is not None]
    later = before[before.index(looked_up) + 1 :]
    _sum_of_embeddings(way, current, parts, later)


def _sum_of_embeddings(way: Way, current: Floats, parts: list[tuple[str, Floats]], later: list[ModuleCall]) -> None:
    """Follow the embedding to what the first block reads: what is added, scaled, normed, mapped."""
    goal = first_state(way)
    if goal is None:
        way.add("embedded", None, None, missing="no_first_state")
        return
    total = current + sum(rows for _, rows in parts)
    wanted = [goal, *(call.given[0] for call in later if call.given)]
    sums = [(scale, total + (scale - 1.0) * current) for scale in (1.0, current.shape[-1] ** 0.5)]
    found = next(((scale, s, w) for scale, s in sums for w in wanted if agrees(s, w)), None)
    if found is None:
        way.add("added", None, None, missing="other_sum")
        way.add("embedded", None, way.at(goal), missing="other_sum")
        return
    scale, ours, own = found
    if parts or scale != 1.0:
        form, said = ("scaled" if scale != 1.0 else ""), _scaled(scale, current.shape[1])
        terms = (*said.pop("terms", ()), "e", *(letter for letter, _ in parts))
        way.add("added", way.at(ours), way.at(own), form=form, terms=terms, **said)
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
            way.add("embedded", way.at(ours), way.at(call.result), form=form, terms=terms_of(call.module))
            current = call.result
    return goal if same(current, goal) else None


def first_state(way: Way) -> Any:
    """What the first block reads, [token, dim]."""
    entry = way.trace.entry
    return entry if entry is not None and entry.shape == way.trace.block.given[0].shape else None


def _added_row(way: Way, call: ModuleCall, shape: tuple[int, ...]) -> tuple[str, Floats] | None:
    """A step for what one more table adds: (its letter in the sum, [token, dim]); None where it adds nothing here.

    Rows that differ between tokens stand for positions. One row for all is that of the segment, where the table is
    as short as a table of segments is.
    """
    rows = over_tokens(call.result, way.count)
    if rows is None or rows.shape != shape:
        return None
    kinds = len(call.module.weight)  # type: ignore[arg-type]
    if np.ptp(rows, axis=0).max() == 0 and not (way.count == 1 and kinds > MOST_SEGMENTS):
        name, letter = ("segment_row", "g") if kinds <= MOST_SEGMENTS else ("other_row", "n")
        place, ours = _row_of(call, way.at(rows), start=0)
        way.add(name, ours, way.at(rows), terms=(str(place),), facts={"row": place})
        return letter, rows
    form = _sinusoidal_form(call) or "learned"
    way.position = "learned" if form == "learned" else "sinusoidal"
    place, ours = _row_of(call, way.at(rows), start=way.target)  # some tables keep their first rows free
    shift = place - way.target
    way.add("position_row", ours, way.at(rows), form=form, terms=(str(shift),) if shift else (), facts={"row": place})
    return "p", rows


def _row_of(call: ModuleCall, own: Any, *, start: int) -> tuple[int, Any]:
    """Where in a table a row stands, looked for from `start`: (place, the row), or (start, None)."""
    near = numbers_of(call.module.weight[start : start + MOST_SEGMENTS])  # type: ignore[index]
    return next(((start + place, row) for place, row in enumerate(near) if agrees(row, own)), (start, None))


def _sinusoidal_form(call: ModuleCall) -> str:
    """How a position table holds sines and cosines of position / 10000^(2i / dim): by turns, in halves, or not ("")."""
    table = numbers_of(call.module.weight[:40])  # type: ignore[index]
    angles = np.arange(len(table))[:, None] / 10000.0 ** (2 * np.arange((table.shape[1] + 1) // 2) / table.shape[1])
    sines, cosines = np.sin(angles), np.cos(angles)[:, : table.shape[1] // 2]
    turns = np.empty_like(table)
    turns[:, ::2], turns[:, 1::2] = sines, cosines
    forms = {"sinusoidal": turns, "sinusoidal_halves": np.concatenate([sines, cosines], axis=1)}
    return next((name for name, form in forms.items() if gap(form, table) < 1e-4), "")


def _scaled(scale: float | None, dim: int) -> dict[str, Any]:
    """What a step says of the number √dim that a table's rows are multiplied by."""
    return {} if scale in (None, 1.0) else {"terms": ("c",), "facts": {"c": f"{scale:.6g}", "d": dim}}
