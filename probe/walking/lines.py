"""Steps of the walk as lines for a terminal: the same numbers as on the page, without colours."""

from collections.abc import Iterable, Iterator

import numpy as np

from probe.messages import Language, message
from probe.report import Section, StepBlock, Vector, linear_text
from probe.report.cells import FIRST, WRITTEN_OUT
from probe.report.sections import Cell

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


def lines_of_sections(sections: Iterable[Section]) -> Iterator[Lines]:
    """Give sections that hold text and tables as print_steps wants them: the head of a table, then its rows."""
    for section in sections:
        rows = [cells for table in section.tables for cells in (table.columns, *map(_row, table.rows))]
        yield section.title, "", section.text, rows, ""


def _row(cells: tuple[Cell, ...]) -> tuple[str, ...]:
    return tuple(_written(cell, 4) if isinstance(cell, float) else str(cell) for cell in cells)


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
