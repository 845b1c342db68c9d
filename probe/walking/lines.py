"""Steps of the walk as lines for a terminal: the same numbers as on the page, without colours."""

from collections.abc import Iterator

import numpy as np

from probe.report import StepBlock, Vector, linear_text

SHOWN = 6  # numbers of a long vector
_WRITTEN_OUT = 16
_MOST_ROWS = 8

Lines = tuple[str, str, tuple[str, ...], list[tuple[str, ...]], str]
"""Title, formula, paragraphs, rows of a name and its cells, verdict."""


def lines_of(steps: tuple[StepBlock, ...]) -> Iterator[Lines]:
    """Give each step as print_steps wants it; where numbers belong to tokens, the tokens stand above them."""
    for step in steps:
        formula = "" if step.formula is None else " ".join(linear_text(step.formula).split())
        rows: list[tuple[str, ...]] = []
        columns: tuple[str, ...] = ()
        for vector in step.vectors[:_MOST_ROWS]:
            if vector.columns and vector.columns != columns:
                rows.append(("", *vector.columns))
                columns = vector.columns
            rows.append((vector.label, *_cells(vector)))
        if len(step.vectors) > _MOST_ROWS:
            rows.append((f"… {len(step.vectors) - _MOST_ROWS}",))
        yield step.title, formula, step.text, rows, step.verdict


def _cells(vector: Vector) -> tuple[str, ...]:
    values = vector.values
    if len(values) <= _WRITTEN_OUT:
        return tuple(_written(float(value), vector.decimals) for value in values)
    first = tuple(_written(float(value), vector.decimals) for value in values[:SHOWN])
    return (*first, f"… {len(values)}", f"‖ {np.linalg.norm(values):.4g} ‖")


def _written(value: float, decimals: int) -> str:
    if not np.isfinite(value):
        return "−∞" if value < 0 else "–"
    return f"{value + 0.0:.{decimals}f}"
