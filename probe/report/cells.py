"""Vectors as coloured cells: which colour each number gets, how it is written, and which rows share a table."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from probe.report.sections import StepBlock, Vector

WRITTEN_OUT = 16  # numbers; of a longer vector only the first are written, and a strip shows more of them
FIRST = 6  # numbers that are written of a longer vector
STRIP = 32  # cells of a strip
STRIP_SHARE = 0.95  # of a strip's numbers lie below the deepest colour
SHADES = 8  # on each side of zero


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number as a cell; `colour` is a class of the style sheet."""

    text: str
    colour: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One vector as a row of cells."""

    label: str
    cells: tuple[Cell, ...]
    strip: tuple[str, ...]  # colours; none where every number is written out
    dims: int
    length: str
    width: int
    marked: bool


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows under the same column names."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def cells_of(step: StepBlock) -> Iterator[Group]:
    """Give a step's vectors as tables; neighbours with the same columns stand in one, and share one colour scale."""
    place = 0
    while place < len(step.vectors):
        first = step.vectors[place]
        end = place
        while end < len(step.vectors) and _alike(step.vectors[end], first):
            end += 1
        together = step.vectors[place:end]
        largest = max(_largest(vector) for vector in together)
        rows = tuple(_row(vector, largest) for vector in together)
        yield Group(name=step.title, columns=first.columns if not rows[0].strip else (), rows=rows)
        place = end


def _alike(one: Vector, other: Vector) -> bool:
    return one.columns == other.columns and one.shares == other.shares and len(one.values) == len(other.values)


def _largest(vector: Vector) -> float:
    if vector.shares:
        return 1.0
    finite = np.abs(vector.values[np.isfinite(vector.values)])
    if not finite.size:
        return 0.0
    # Of a long vector a few numbers may dwarf the rest, which would leave the strip blank.
    return float(finite.max() if len(finite) <= WRITTEN_OUT else np.quantile(finite, STRIP_SHARE) or finite.max())


def _row(vector: Vector, largest: float) -> Row:
    lengthy = len(vector.values) > WRITTEN_OUT
    finite = vector.values[np.isfinite(vector.values)].astype(np.float64)
    colours = [_colour(float(value), largest, shares=vector.shares) for value in vector.values[:STRIP]]
    written = vector.values[:FIRST] if lengthy else vector.values
    return Row(
        label=vector.label,
        cells=tuple(
            Cell(text=_written(float(value), vector.decimals), colour=colour)
            for value, colour in zip(written, colours, strict=False)
        ),
        strip=tuple(colours) if lengthy else (),
        dims=len(vector.values),
        length=f"{np.linalg.norm(finite):.4g}",
        width=5 * len(colours) - 1,
        marked=vector.marked,
    )


def _written(value: float, decimals: int) -> str:
    if not np.isfinite(value):
        return "−∞" if value < 0 else "–"
    return f"{value + 0.0:.{decimals}f}".replace("-", "−")


def _colour(value: float, largest: float, *, shares: bool) -> str:
    if not np.isfinite(value) or largest == 0:
        return "p0"
    shade = max(round(SHADES * min(1.0, abs(value) / largest)), int(value != 0))
    return f"{'m' if value < 0 or shares else 'p'}{shade}"
