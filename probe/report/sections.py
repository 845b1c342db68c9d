"""What a page is made of: frozen records that check themselves, so that any study can add sections of its own."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from probe.errors import FigureError
from probe.report.formulas import Formula

Cell = str | float | int | None


class CheckRow(Protocol):
    """One line of a self-check, as `probe.selfcheck.CheckItem` has it."""

    @property
    def name(self) -> str:
        """What was checked."""

    @property
    def status(self) -> str:
        """One of pass, fail, skip."""

    @property
    def value(self) -> float | None:
        """What was measured."""

    @property
    def bound(self) -> float | None:
        """What it may be at most."""

    @property
    def why(self) -> str:
        """What the numbers mean, or why there are none."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers to read: `source` is the file in the run folder that holds them all.

    A long table scrolls, and columns of words are wide. One to be seen `whole` stands in full height, its columns as
    narrow as its words allow.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    source: str = ""
    whole: bool = False

    def __post_init__(self) -> None:
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise FigureError(
                    f"table {self.caption!r}, row {place}: {len(row)} cells for {len(self.columns)} columns"
                )
        _check_source(self.source, f"table {self.caption!r}")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A PNG with words for those who cannot see it."""

    caption: str
    png: bytes
    alt: str
    source: str = ""

    def __post_init__(self) -> None:
        if not self.png.startswith(b"\x89PNG\r\n\x1a\n"):
            raise FigureError(f"picture {self.caption!r}: not a PNG")
        if not self.alt.strip():
            raise FigureError(f"picture {self.caption!r}: needs an alternative text")
        _check_source(self.source, f"picture {self.caption!r}")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, from the PNG's first chunk."""
        return int.from_bytes(self.png[16:20], "big"), int.from_bytes(self.png[20:24], "big")


@dataclass(frozen=True, kw_only=True, eq=False)
class SentenceMap:
    """The attention of one sentence's target, in every layer and head.

    weights [layer, head, token] in 0 to 1. `target`, `cues` and `special` are token positions. `sink` is
    the position of a token that gathers attention without being special: a decoder's first token.
    `text` is the sentence as written, for the list to choose from; without it the labels are joined.
    """

    case: str
    labels: tuple[str, ...]
    target: tuple[int, ...]
    weights: NDArray[np.floating]
    cues: tuple[int, ...] = ()
    special: tuple[int, ...] = ()
    sink: int | None = None
    sense: str = ""
    note: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        if self.weights.ndim != 3 or self.weights.shape[2] != len(self.labels):
            raise FigureError(
                f"case {self.case!r}: weights of shape {self.weights.shape} for {len(self.labels)} tokens"
            )
        # Rows in half precision may sum to a little more than one.
        if not np.all((self.weights >= 0) & (self.weights <= 1.01)):
            raise FigureError(f"case {self.case!r}: attention weights must lie in 0 to 1")
        places = (*self.target, *self.cues, *self.special, *(() if self.sink is None else (self.sink,)))
        wrong = [place for place in places if not 0 <= place < len(self.labels)]
        if wrong or not self.target:
            raise FigureError(
                f"case {self.case!r}: target, cues, special and sink are positions in 0 to {len(self.labels) - 1}, "
                f"with at least one target; got {wrong or 'no target'}"
            )


@dataclass(frozen=True, kw_only=True)
class SentenceMaps:
    """Sentences for the viewer; `omitted` counts those that were left out before.

    `head_names` is for a chosen few of a model's heads; without it they are numbered from 0.
    """

    layers: tuple[str, ...]
    heads: int
    items: tuple[SentenceMap, ...]
    omitted: int = 0
    head_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.head_names and len(self.head_names) != self.heads:
            raise FigureError(f"sentences: {len(self.head_names)} head names for {self.heads} heads")
        for item in self.items:
            if item.weights.shape[:2] != (len(self.layers), self.heads):
                raise FigureError(
                    f"case {item.case!r}: weights of shape {item.weights.shape} for {len(self.layers)} layers "
                    f"and {self.heads} heads"
                )


@dataclass(frozen=True, kw_only=True, eq=False)
class Vector:
    """Numbers in coloured cells: written out where they are few; of many the first six, and a strip of the first ones.

    values [number]; `columns` names each number, for weights over tokens. `shares` are 0 to 1, all of one colour.
    """

    label: str
    values: NDArray[np.floating]
    columns: tuple[str, ...] = ()
    decimals: int = 4
    shares: bool = False
    marked: bool = False  # the word that is followed

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or not len(self.values):
            raise FigureError(f"vector {self.label!r}: numbers of shape {self.values.shape}, allowed is one axis")
        if self.columns and len(self.columns) != len(self.values):
            raise FigureError(f"vector {self.label!r}: {len(self.columns)} names for {len(self.values)} numbers")


@dataclass(frozen=True, kw_only=True, eq=False)
class StepBlock:
    """One step of a calculation: what is done, its formulas, its numbers, and whether they are right."""

    title: str
    text: tuple[str, ...] = ()
    formulas: tuple[Formula, ...] = ()  # a line each, so that they fit a narrow screen
    vectors: tuple[Vector, ...] = ()
    verdict: str = ""
    passed: bool | None = None  # None: nothing to compare


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the page. `key` names it in links; `text` are paragraphs, plain words without markup."""

    key: str
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Picture, ...] = ()
    sentences: SentenceMaps | None = None
    steps: tuple[StepBlock, ...] = ()
    checks: tuple[CheckRow, ...] | None = field(default=None)

    def __post_init__(self) -> None:
        if not self.key.replace("-", "").replace("_", "").isalnum() or not self.key.isascii():
            raise FigureError(f"section key {self.key!r}: only letters, digits, - and _")


def _check_source(source: str, where: str) -> None:
    path = PurePosixPath(source)
    if path.is_absolute() or ".." in path.parts:
        raise FigureError(f"{where}: source {source!r} must lie in the run folder")
