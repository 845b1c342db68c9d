"""Steps of the walk as lines for a terminal: the same numbers as on the page, without colours."""

from collections.abc import Iterator

import numpy as np

from probe.messages import Language, message
from probe.report import StepBlock, Vector, linear_text
from probe.report.cells import FIRST, WRITTEN_OUT

Lines = tuple[str, str, tuple[str, ...], list[tuple[str, ...]], str]
"""Title, formula, paragraphs, rows of a name and its cells, verdict."""


def lines_of(steps: tuple[StepBlock, ...], language: Language) -> Iterator[Lines]:
    """Give each step as print_steps wants it; where numbers belong to tokens, the tokens stand above them."""
    for step in steps:
        formula = " ,  ".join(" ".join(linear_text(formula).split()) for formula in step.formulas)
        rows: list[tuple[str, ...]] = []
        columns: tuple[str, ...] = ()
        for vector in step.vectors:
            if vector.columns and vector.columns != columns:
                rows.append(("", *vector.columns))
                columns = vector.columns
            rows.append((vector.label, *_cells(vector, language)))
        yield step.title, formula, step.text, rows, step.verdict


def _cells(vector: Vector, language: Language) -> tuple[str, ...]:
    values = vector.values
    if len(values) <= WRITTEN_OUT:
        return tuple(_written(float(value), vector.decimals) for value in values)
    first = tuple(_written(float(value), vector.decimals) for value in values[:FIRST])
    length = f"{np.linalg.norm(values[np.isfinite(values)]):.4g}"
    more = (message("walk.numbers", language, count=len(values)), message("walk.length", language, length=length))
    return (*first, "…", *more)


def _written(value: float, decimals: int) -> str:
    if not np.isfinite(value):
        return "−∞" if value < 0 else "–"
    return f"{value + 0.0:.{decimals}f}"
