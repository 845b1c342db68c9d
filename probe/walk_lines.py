"""Steps of the walk as lines for a terminal: the same numbers as on the page, without colours."""

from collections.abc import Iterator

import numpy as np

from probe.report import StepBlock, Vector, linear_text

SHOWN = 6  # numbers of a long vector
_WRITTEN_OUT = 16
_MOST_ROWS = 8

Lines = tuple[str, str, list[tuple[str, str]], str]  # title, formula, rows of (name, numbers), verdict


def lines_of(steps: tuple[StepBlock, ...]) -> Iterator[Lines]:
    """Give each step as title, formula on one line, rows and verdict; columns that have names come first."""
    for step in steps:
        formula = "" if step.formula is None else " ".join(linear_text(step.formula).split())
        rows: list[tuple[str, str]] = [("", paragraph) for paragraph in step.text] if not step.vectors else []
        columns: tuple[str, ...] = ()
        for vector in step.vectors[:_MOST_ROWS]:
            if vector.columns and vector.columns != columns:
                rows.append(("", "  ".join(vector.columns)))
                columns = vector.columns
            rows.append((vector.label, _numbers(vector)))
        if len(step.vectors) > _MOST_ROWS:
            rows.append(("…", f"{len(step.vectors) - _MOST_ROWS} more"))
        yield step.title, formula, rows, step.verdict


def _numbers(vector: Vector) -> str:
    values = vector.values
    if len(values) <= _WRITTEN_OUT:
        return "  ".join(_written(float(value), vector.decimals) for value in values)
    first = "  ".join(_written(float(value), vector.decimals) for value in values[:SHOWN])
    return f"{first}  …  ({len(values)}, ‖·‖ {np.linalg.norm(values):.4g})"


def _written(value: float, decimals: int) -> str:
    if not np.isfinite(value):
        return "−∞" if value < 0 else "–"
    return f"{value:.{decimals}f}"
