"""Two models in minimal groups: cue minus neutral word in A, in B and B − A, over the pairs that both give."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.comparison import (
    DIRECTIONS,
    GAP,
    SIDES,
    Comparison,
    Side,
    corrected_tests,
    paired_intervals,
    same_edges,
)
from probe.contrasts import SlotPair, contrasts_of, differences, slot_pairs
from probe.experiments.causes import EVERYWHERE
from probe.findings import Interval, Observed
from probe.measures.focus import FOCUS, Measure
from probe.polysemy import SLOT_CONTRAST, HeadContrast, contrast_results, head_contrasts
from probe.stats import Estimate, bootstrap

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadSenseGap:
    """B − A of cue minus neutral word, of one contrast in one direction; all arrays [layer, head]."""

    contrast: str
    measure: Measure
    a: Floats  # mean over the cue words of both
    found: Estimate
    p: Floats
    """Sign-flip test, uncorrected; NaN where there are too few cue words for a test."""
    p_max: Floats
    """Max-T over every head, both directions and all contrasts: what claims are made with."""


@dataclass(frozen=True, kw_only=True)
class CutSenseGap:
    """The edge cut in every layer, cue minus neutral word, in A, in B and their difference over the same cue words."""

    contrast: str
    a: Interval
    b: Interval
    gap: Interval
    p: float  # over all contrasts; NaN where there are too few cue words for a test


@dataclass(frozen=True, kw_only=True, eq=False)
class SenseGaps:
    """What minimal groups tell of two models, over the pairs that both tokenizers give."""

    pairs: tuple[SlotPair, ...]
    given: tuple[int, int]  # how many pairs A and B give
    a: tuple[HeadContrast, ...]
    b: tuple[HeadContrast, ...]
    heads: tuple[HeadSenseGap, ...]  # none where heads cannot be paired
    cuts: tuple[CutSenseGap, ...]

    def side(self, side: Side) -> tuple[HeadContrast, ...]:
        """One model's own contrasts."""
        return self.a if side == "A" else self.b


def shared_pairs(comparison: Comparison) -> tuple[SlotPair, ...]:
    """The pairs of cue and neutral case that both tokenizers give in the same texts."""
    other, same = set(slot_pairs(comparison.b.items)), comparison.same_text
    return tuple(
        pair for pair in slot_pairs(comparison.a.items) if pair in other and same[pair.cue] and same[pair.neutral]
    )


def sense_gaps(comparison: Comparison) -> SenseGaps:
    """The contrasts of both models and of B − A, over the pairs they share."""
    pairs = shared_pairs(comparison)
    places = sorted({place for pair in pairs for place in (pair.cue, pair.neutral)})
    own = {side: head_contrasts(_among(comparison.side(side), places)) if places else () for side in SIDES}
    return SenseGaps(
        pairs=pairs,
        given=(len(slot_pairs(comparison.a.items)), len(slot_pairs(comparison.b.items))),
        a=own["A"],
        b=own["B"],
        heads=_head_gaps(comparison, pairs),
        cuts=_cut_gaps(comparison, pairs),
    )


def sense_gap_results(comparison: Comparison, gaps: SenseGaps) -> pd.DataFrame:
    """Contrasts as rows of the results table: both models' own, then B − A, whose `control` is A's mean."""
    frames = [contrast_results(comparison.side(side), gaps.side(side), ()) for side in SIDES]
    frames += [_head_rows(comparison, one) for one in gaps.heads]
    if gaps.cuts:
        frames.append(_cut_rows(comparison, gaps.cuts))
    known = [frame for frame in frames if len(frame)]
    return pd.concat(known, ignore_index=True) if known else pd.DataFrame()


def _among(observed: Observed, places: Sequence[int]) -> Observed:
    """The focus values of some cases by themselves; cuts, states and rows are left out."""
    return replace(
        observed, items=tuple(observed.items[place] for place in places), focus=observed.focus[list(places)],
        cuts=None, cut_cases=(), target_rows={}, cue_rows={}, states=None, context=None,
    )  # fmt: skip


def _head_gaps(comparison: Comparison, pairs: Sequence[SlotPair]) -> tuple[HeadSenseGap, ...]:
    if not comparison.same_heads:
        return ()
    columns = [FOCUS.index(measure) for measure in DIRECTIONS]
    a, b = (comparison.side(side).focus[:, columns] for side in SIDES)  # [case, direction, layer, head]
    hidden = np.isnan(b - a)
    contrasts = contrasts_of(pairs)
    tables = [differences(b - a, pairs, contrast) for contrast in contrasts]
    tests, corrected = corrected_tests([table for table, _ in tables], seed=comparison.a.seed)
    found = []
    for contrast, (table, units), p, p_max in zip(contrasts, tables, tests, corrected, strict=True):
        estimate = bootstrap(table, units, seed=comparison.a.seed)
        own, _ = differences(np.where(hidden, np.float32(np.nan), a), pairs, contrast)
        a_mean = bootstrap(own, units, seed=comparison.a.seed, resamples=1).mean
        for place, measure in enumerate(DIRECTIONS):
            if estimate.units[place].any():
                found.append(
                    HeadSenseGap(
                        contrast=contrast,
                        measure=measure,
                        a=a_mean[place],
                        found=_part(estimate, place),
                        p=p[place],
                        p_max=p_max[place],
                    )
                )
    return tuple(found)


def _cut_gaps(comparison: Comparison, pairs: Sequence[SlotPair]) -> tuple[CutSenseGap, ...]:
    places = same_edges(comparison)
    if not places:
        return ()
    a, b = (_effects(comparison.side(side), places) for side in SIDES)
    hidden = np.isnan(b - a)
    a[hidden], b[hidden] = np.nan, np.nan
    found = []
    for contrast in contrasts_of(pairs):
        (one, units), (other, _) = (differences(effects, pairs, contrast) for effects in (a, b))
        if not np.isnan(other - one).all():
            found.append((contrast, units, one, other))
    p = corrected_tests([other - one for _, _, one, other in found], seed=comparison.a.seed)[1]
    gaps = []
    for (contrast, units, one, other), p_max in zip(found, p, strict=True):
        a_mean, b_mean, gap = paired_intervals(one, other, units, seed=comparison.a.seed)
        gaps.append(CutSenseGap(contrast=contrast, a=a_mean, b=b_mean, gap=gap, p=float(p_max)))
    return tuple(gaps)


def _effects(observed: Observed, places: Sequence[int]) -> Floats:
    """The effect of the edge cut in every layer, NaN outside `places`: [case]."""
    assert observed.cuts is not None
    effects = np.full(len(observed.items), np.nan)
    for place in places:
        effects[place] = observed.cuts.cue[observed.cut_cases.index(place), 0]
    return effects


def _part(estimate: Estimate, place: int) -> Estimate:
    return Estimate(
        mean=estimate.mean[place], low=estimate.low[place], high=estimate.high[place], units=estimate.units[place]
    )


def _head_rows(comparison: Comparison, one: HeadSenseGap) -> pd.DataFrame:
    layers, heads = comparison.a.layers, comparison.a.heads
    return _frame(
        one.contrast,
        stack=np.repeat([layer.stack for layer in layers], len(heads)),
        layer=np.repeat([layer.index for layer in layers], len(heads)),
        head=np.tile(heads, len(layers)),
        query=one.measure.query,
        key=one.measure.key,
        measure=one.measure.name,
        n=one.found.units.ravel(),
        estimate=one.found.mean.ravel(),
        low=one.found.low.ravel(),
        high=one.found.high.ravel(),
        control=one.a.ravel(),
        p=one.p.ravel(),
        p_max=one.p_max.ravel(),
    )


def _cut_rows(comparison: Comparison, cuts: Sequence[CutSenseGap]) -> pd.DataFrame:
    """Each contrast's cut edge in A, in B and B − A."""
    rows = []
    for one in cuts:
        sides = ((comparison.a, one.a), (comparison.b, one.b))
        rows += [_cut_row(side, one.contrast, side.model, interval) for side, interval in sides]
        rows.append(_cut_row(comparison.a, one.contrast, GAP, one.gap, control=one.a.mean, p_max=one.p))
    return pd.concat(rows, ignore_index=True)


def _cut_row(
    observed: Observed,
    contrast: str,
    model: str,
    interval: Interval,
    *,
    control: float = np.nan,
    p_max: float = np.nan,
) -> pd.DataFrame:
    assert observed.cuts is not None
    frame = _frame(
        contrast, stack=[observed.cuts.stack], layer=EVERYWHERE, head=-1, query="reader", key="cue",
        measure="cut effect", n=interval.units, estimate=interval.mean, low=interval.low, high=interval.high,
        control=control, p=np.nan, p_max=p_max,
    )  # fmt: skip
    return frame.assign(model=model)


def _frame(contrast: str, **columns: object) -> pd.DataFrame:
    own = {"model": GAP, "weighting": "none", "unit": "cue word", "contrast": f"{contrast}: {SLOT_CONTRAST}"}
    return pd.DataFrame({**columns, **own})
