"""Two models on the same cases: what differs, case by case, and what of it can be claimed. Numbers in, numbers out.

Everything is paired by case and by span of the text, never by token position: the two may cut a text differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.captures import Prepared
from probe.contrasts import FEWEST_UNITS
from probe.errors import CasesError
from probe.experiments.causes import EVERYWHERE
from probe.findings import (
    MASS_BACK,
    MASS_ON_CUE,
    Floats,
    Interval,
    Observed,
    mean_interval,
    results_of,
)
from probe.flips import flip_tests
from probe.measures.focus import FOCUS, Measure
from probe.stats import Estimate, bootstrap, unit_means

GAP = "B − A"
DIRECTIONS = (MASS_ON_CUE, MASS_BACK)
Side = Literal["A", "B"]
CutOf = Literal["cue", "control", "cue − control"]
SIDES: tuple[Side, ...] = ("A", "B")


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadGap:
    """B − A of one measure in every head; all arrays [layer, head]."""

    measure: Measure
    found: Estimate
    p: NDArray[np.float64]
    """Sign-flip test, uncorrected; NaN where there are too few cue words for a test."""
    p_max: NDArray[np.float64]
    """Max-T over every head and both directions: what claims are made with."""


@dataclass(frozen=True, kw_only=True)
class CutGap:
    """The effect of an edge cut in every layer, in A, in B and their difference, over the same cases."""

    of: CutOf
    a: Interval
    b: Interval
    gap: Interval
    cases: int


@dataclass(frozen=True, kw_only=True)
class TokenCount:
    """How many tokens the two take for the same characters: a confound of everything else."""

    of: Literal["target", "cue", "text"]
    a: float  # mean over cases
    b: float
    differ: int  # cases
    cases: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Two models' values on one case set, the cases in the same order."""

    a: Observed
    b: Observed

    def __post_init__(self) -> None:
        """Refuse two different sets of cases."""
        ids = [[item.case.id for item in side.items] for side in (self.a, self.b)]
        if ids[0] != ids[1]:
            raise CasesError(f"{self.a.model} and {self.b.model} were not shown the same cases; only those compare")

    @cached_property
    def same_text(self) -> NDArray[np.bool_]:
        """Which cases both models saw whole, or cut to the same text: [case]."""
        return same_texts(self.a.items, self.b.items)

    @property
    def same_heads(self) -> bool:
        """Whether layers and heads can be paired: the same modules with the same number of heads."""
        return self.a.layers == self.b.layers and self.a.heads == self.b.heads

    @cached_property
    def same_tokens(self) -> NDArray[np.bool_]:
        """Which cases take as many tokens for target and cues in both: [case]."""
        counts = [[(len(i.target), [len(c) for c in i.cues]) for i in side.items] for side in (self.a, self.b)]
        return np.array([one == other for one, other in zip(*counts, strict=True)], dtype=bool) & self.same_text

    def side(self, side: Side) -> Observed:
        """One of the two."""
        return self.a if side == "A" else self.b

    def values(self, side: Side, measure: Measure) -> Floats:
        """A measure on the cases that compare, NaN on the others: [case, layer, head]."""
        return np.where(self.same_text[:, None, None], self.side(side).values(measure), np.float32(np.nan))

    @cached_property
    def identical(self) -> bool:
        """Whether every number of B is exactly A's, as with an adapter that does nothing."""
        cuts = [side.cuts for side in (self.a, self.b)]
        if not self.same_heads or (cuts[0] is None) != (cuts[1] is None):
            return False
        pairs = [(self.a.focus, self.b.focus)]
        if cuts[0] is not None and cuts[1] is not None:
            pairs += [(cuts[0].cue, cuts[1].cue), (cuts[0].control, cuts[1].control)]
        return all(one.shape == other.shape and np.array_equal(one, other, equal_nan=True) for one, other in pairs)


def same_texts(a: Sequence[Prepared], b: Sequence[Prepared]) -> NDArray[np.bool_]:
    """Which cases of two models, in one order, have the same text: [case]."""
    return np.array([one.case.text == other.case.text for one, other in zip(a, b, strict=True)], dtype=bool)


def head_gaps(comparison: Comparison) -> tuple[HeadGap, ...]:
    """B − A of the mass target → cue and cue → target in every head; nothing where heads cannot be paired."""
    if not comparison.same_heads:
        return ()
    gaps = [comparison.values("B", one) - comparison.values("A", one) for one in DIRECTIONS]
    table, _ = unit_means(np.stack(gaps, axis=1), comparison.a.units)
    p, p_max = corrected_tests([table], seed=comparison.a.seed)
    return tuple(
        HeadGap(
            measure=measure,
            found=bootstrap(gap, comparison.a.units, seed=comparison.a.seed),
            p=p[0][place],
            p_max=p_max[0][place],
        )
        for place, (measure, gap) in enumerate(zip(DIRECTIONS, gaps, strict=True))
    )


def cut_gaps(comparison: Comparison, *, among: NDArray[np.bool_] | None = None) -> tuple[CutGap, ...]:
    """The effect of edges cut in every layer, paired over the cases where both models have the same edge to cut.

    `among` [case] takes only some of the cases. Nothing where edges cannot be cut in one of the two.
    """
    places = [place for place in paired_cuts(comparison) if among is None or among[place]]
    if not places:
        return ()
    tables = {side: cut_table(comparison.side(side), places)[:, :, 0] for side in SIDES}  # [case, cue | control]
    units = [comparison.a.units[place] for place in places]
    over = {side: tables[side][:, 0] - tables[side][:, 1] for side in SIDES}
    columns: tuple[tuple[CutOf, Floats, Floats], ...] = (
        ("cue", tables["A"][:, 0], tables["B"][:, 0]),
        ("control", tables["A"][:, 1], tables["B"][:, 1]),
        ("cue − control", over["A"], over["B"]),
    )
    found = [_cut_gap(of, a, b, units=units, seed=comparison.a.seed) for of, a, b in columns]
    return tuple(gap for gap in found if gap is not None)


def paired_cuts(comparison: Comparison) -> list[int]:
    """The cases with a cue whose edge was cut in both models, from the same word to the same word of the same text."""
    return [place for place in same_edges(comparison) if not comparison.a.neutral[place]]


def same_edges(comparison: Comparison) -> list[int]:
    """The cases, neutral ones as well, whose same edge of the same text was cut in both models."""
    edges = []
    for side in (comparison.a, comparison.b):
        if side.cuts is None:
            return []
        edges.append(dict(zip(side.cut_cases, side.cuts.directions, strict=True)))
    return [
        place
        for place, direction in edges[0].items()
        if direction and edges[1].get(place) == direction and comparison.same_text[place]
    ]


def cut_table(observed: Observed, places: Sequence[int]) -> Floats:
    """Cut effects of some cases: [case, cue | control, 1 + layer], column 0 with the edge cut in every layer."""
    assert observed.cuts is not None
    rows = [observed.cut_cases.index(place) for place in places]
    return np.stack([observed.cuts.cue[rows], observed.cuts.control[rows]], axis=1)


def corrected_tests(
    tables: Sequence[NDArray[np.float64]], *, seed: int
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    """P values of differences [unit, ...], uncorrected and by max-T over all cells of all tables with enough units.

    A thin cell is described and not tested (NaN); it takes no part in the correction either.
    """
    p, p_max = ([np.full(table.shape[1:], np.nan) for table in tables] for _ in range(2))
    kept = [np.where((~np.isnan(table)).sum(0) >= FEWEST_UNITS, table, np.nan) for table in tables]
    tested = [place for place, table in enumerate(kept) if not np.isnan(table).all()]
    if tested:
        rows = [kept[place][~np.isnan(kept[place]).reshape(len(kept[place]), -1).all(1)] for place in tested]
        family = flip_tests(rows, seed=seed)
        for place, test, corrected in zip(tested, family.tests, family.p_max, strict=True):
            p[place], p_max[place] = test.p, corrected
    return p, p_max


def paired_intervals(
    a: NDArray[np.floating], b: NDArray[np.floating], units: Sequence[str], *, seed: int
) -> tuple[Interval, Interval, Interval]:
    """A, B and B − A over the cases or units that have a number in both: [case] each."""
    known = ~np.isnan(a - b)
    kept = [unit for unit, ok in zip(units, known, strict=True) if ok]
    one, other, gap = (mean_interval(values[known], kept, seed=seed) for values in (a, b, b - a))
    return one, other, gap


def token_counts(comparison: Comparison) -> tuple[TokenCount, ...]:
    """Tokens of target, cues and text in both models, over the cases that compare."""
    pairs = [
        (one, other)
        for one, other, same in zip(comparison.a.items, comparison.b.items, comparison.same_text, strict=True)
        if same
    ]
    cued = [(one, other) for one, other in pairs if one.cues]
    counts = (
        _token_count("target", [(len(one.target), len(other.target)) for one, other in pairs]),
        _token_count("cue", [(sum(map(len, one.cues)), sum(map(len, other.cues))) for one, other in cued]),
        _token_count("text", [(len(one.tokens.ids), len(other.tokens.ids)) for one, other in pairs]),
    )
    return tuple(count for count in counts if count is not None)


def by_depth(comparison: Comparison, of: Literal["mass", "cut"]) -> pd.DataFrame:
    """Mass on the cue (mean over heads) or cut effect of each layer: side, stack, layer, depth, estimate, low, high.

    Depth is layer / (layers − 1) within its stack: 0 the first layer, 1 the last, in both models.
    """
    rows = []
    for side in SIDES:
        labels, table = _layer_values(comparison, side, of)
        found = bootstrap(table, _units_of(comparison, of), seed=comparison.a.seed)
        last = {stack: max(index for name, index in labels if name == stack) for stack, _ in labels}
        for place, (stack, index) in enumerate(labels):
            depth = index / last[stack] if last[stack] else 0.0
            numbers = (float(array[place]) for array in (found.mean, found.low, found.high))
            rows.append((side, stack, index, depth, *numbers))
    return pd.DataFrame(rows, columns=["side", "stack", "layer", "depth", "estimate", "low", "high"])


def comparison_results(comparison: Comparison, gaps: Sequence[HeadGap], cuts: Sequence[CutGap]) -> pd.DataFrame:
    """The results table: both models' own rows, then those of B − A, whose `control` is A's mean."""
    frames = [results_of(comparison.a), results_of(comparison.b)]
    if comparison.same_heads:
        tested = {gap.measure: gap for gap in gaps}
        frames += [_gap_frame(comparison, measure, tested.get(measure)) for measure in FOCUS]
    if cuts:
        frames.append(_cut_frame(comparison, cuts))
    whole = pd.concat(frames, ignore_index=True)
    return whole[list(frames[0].columns)]


def _cut_gap(of: CutOf, a: Floats, b: Floats, *, units: Sequence[str], seed: int) -> CutGap | None:
    known = ~np.isnan(a - b)
    if not known.any():
        return None
    a_mean, b_mean, gap = paired_intervals(a, b, units, seed=seed)
    return CutGap(of=of, a=a_mean, b=b_mean, gap=gap, cases=int(known.sum()))


def _token_count(of: Literal["target", "cue", "text"], pairs: Sequence[tuple[int, int]]) -> TokenCount | None:
    if not pairs:
        return None
    a, b = np.mean(pairs, axis=0)
    return TokenCount(of=of, a=float(a), b=float(b), differ=sum(x != y for x, y in pairs), cases=len(pairs))


def _layer_values(
    comparison: Comparison, side: Side, of: Literal["mass", "cut"]
) -> tuple[list[tuple[str, int]], Floats]:
    """Labels and values [case, layer] of one curve."""
    observed = comparison.side(side)
    if of == "mass":
        over_heads: Floats = comparison.values(side, MASS_ON_CUE).mean(-1)
        return [(layer.stack, layer.index) for layer in observed.layers], over_heads
    assert observed.cuts is not None
    table = cut_table(observed, paired_cuts(comparison))[:, 0, 1:]
    return [(observed.cuts.stack, layer) for layer in observed.cuts.layers], table


def _units_of(comparison: Comparison, of: Literal["mass", "cut"]) -> list[str]:
    places = range(len(comparison.a.items)) if of == "mass" else paired_cuts(comparison)
    return [comparison.a.units[place] for place in places]


def _gap_frame(comparison: Comparison, measure: Measure, tested: HeadGap | None) -> pd.DataFrame:
    observed, units = comparison.a, comparison.a.units
    a, b = comparison.values("A", measure), comparison.values("B", measure)
    found = tested.found if tested else bootstrap(b - a, units, seed=observed.seed)
    both = np.where(np.isnan(b), np.float32(np.nan), a)
    return _frame(
        stack=np.repeat([layer.stack for layer in observed.layers], len(observed.heads)),
        layer=np.repeat([layer.index for layer in observed.layers], len(observed.heads)),
        head=np.tile(observed.heads, len(observed.layers)),
        query=measure.query,
        key=measure.key,
        measure=measure.name,
        contrast=GAP,
        n=found.units.ravel(),
        estimate=found.mean.ravel(),
        low=found.low.ravel(),
        high=found.high.ravel(),
        p=tested.p.ravel() if tested else np.nan,
        p_max=tested.p_max.ravel() if tested else np.nan,
        control=bootstrap(both, units, seed=observed.seed, resamples=1).mean.ravel(),
    )


def _cut_frame(comparison: Comparison, cuts: Sequence[CutGap]) -> pd.DataFrame:
    assert comparison.a.cuts is not None
    queries = {str(comparison.a.cuts.directions[row]).split(" → ")[0] for row in _cut_rows(comparison)}
    return _frame(
        stack=comparison.a.cuts.stack,
        layer=EVERYWHERE,
        head=-1,
        query=" or ".join(sorted(queries)),
        key=["control" if gap.of == "control" else "cue" for gap in cuts],
        measure="cut effect",
        contrast=[f"{GAP}, {gap.of}" if gap.of == "cue − control" else GAP for gap in cuts],
        n=[gap.gap.units for gap in cuts],
        estimate=[gap.gap.mean for gap in cuts],
        low=[gap.gap.low for gap in cuts],
        high=[gap.gap.high for gap in cuts],
        p=np.nan,
        p_max=np.nan,
        control=[gap.a.mean for gap in cuts],
    )


def _cut_rows(comparison: Comparison) -> list[int]:
    return [comparison.a.cut_cases.index(place) for place in paired_cuts(comparison)]


def _frame(**columns: object) -> pd.DataFrame:
    return pd.DataFrame({"model": GAP, "weighting": "none", "unit": "cue word", **columns})
