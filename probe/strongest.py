"""The heads that give the cue the most: chosen on one half of the cue words, judged on the other, mass and cause."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.experiments.causes import HeadCuts, edge_of
from probe.findings import (
    CONTRAST,
    CONTROL_BACK,
    MASS_BACK,
    MASS_ON_CONTROL,
    MASS_ON_CUE,
    Interval,
    Observed,
    mean_interval,
)
from probe.flips import fewest_units, flip_tests
from probe.stats import FEWEST_FOR_INTERVAL, LEVEL, unit_means

HEADS_JUDGED = 8  # chosen for their mass; as many others are drawn at random and stand beside them
FEWEST_JUDGED = fewest_units(2, level=LEVEL)
"""With fewer cue words a head that both looks and moves could never be shown to: two numbers share the flips."""


@dataclass(frozen=True, kw_only=True)
class Standout:
    """The head chosen on one half of the cue words and scored on the other."""

    stack: str
    layer: int
    head: int
    score: Interval


@dataclass(frozen=True, kw_only=True)
class HeadPlan:
    """Which heads to cut the edge in, and in which cases: none of the cue words that chose them."""

    heads: tuple[tuple[int, int], ...]  # layer and head as the model counts them; the chosen ones first
    chosen: int
    cases: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class HeadScore:
    """Mass and cut edge of one head on the same cases, each beside its matched control word."""

    layer: int
    head: int
    drawn: bool  # at random, to stand beside those chosen for their mass
    mass: Interval  # cue minus control
    mass_cue: float
    mass_p: float  # max-T over all heads judged, mass and effect
    effect: Interval
    effect_cue: float
    effect_p: float

    @property
    def tested(self) -> bool:
        """Whether there are cue words enough for p to say anything of mass and effect alike."""
        return min(self.mass.units, self.effect.units) >= FEWEST_JUDGED

    @property
    def looks(self) -> bool:
        """Whether the reading word gives the cue more than the control in this head."""
        return self.tested and self.mass_p < LEVEL and self.mass.mean > 0

    @property
    def moves(self) -> bool:
        """Whether cutting the edge to the cue in this head moves the reading word more than the control's edge."""
        return self.tested and self.effect_p < LEVEL and self.effect.mean > 0


def strongest_head(observed: Observed) -> Standout | None:
    """The head with the largest mass on the cue above the control, chosen on half of the cue words, scored on the rest.

    None where the units with both numbers are too few for an interval on the second half.
    """
    difference = observed.values(MASS_ON_CUE) - observed.values(MASS_ON_CONTROL)  # [case, layer, head]
    halves = _halves(observed, ~np.isnan(difference).all((1, 2)))
    if halves is None:
        return None
    first, second = halves
    by_head = np.nanmean(difference[first], axis=0)  # [layer, head]
    layer, head = np.unravel_index(int(np.nanargmax(by_head)), by_head.shape)
    units = [observed.units[place] for place in second]
    score = mean_interval(difference[second, layer, head], units, seed=observed.seed)
    label = observed.layers[int(layer)]
    return Standout(stack=label.stack, layer=label.index, head=observed.heads[int(head)], score=score)


def plan_heads(observed: Observed, *, cases: int) -> HeadPlan | None:
    """The HEADS_JUDGED heads with the most mass on the cue above the control, and as many drawn among the others.

    Mass is read from the word that reads. The heads are chosen on one half of the cue words; at most `cases` cases of
    the other half, one a cue word as far as that goes, are named to judge them. None where there are too few.
    """
    gaps = reading_gaps(observed)
    halves = _halves(observed, ~np.isnan(gaps).all((1, 2)))
    if halves is None or cases < FEWEST_FOR_INTERVAL:
        return None
    first, second = halves
    stack = "decoder" if observed.causal else "encoder"
    rows = [row for row, layer in enumerate(observed.layers) if layer.stack == stack]
    by_head = np.nanmean(gaps[first][:, rows], axis=0)  # [layer, head]
    order = np.argsort(-np.nan_to_num(by_head, nan=-np.inf), axis=None, kind="stable")
    strong, rest = order[:HEADS_JUDGED], order[HEADS_JUDGED:]
    drawn = np.random.default_rng(observed.seed).permutation(rest)[: len(strong)]
    named = [
        (observed.layers[rows[cell // len(observed.heads)]].index, observed.heads[cell % len(observed.heads)])
        for cell in (*strong, *np.sort(drawn))
    ]
    return HeadPlan(heads=tuple(named), chosen=len(strong), cases=_one_each(observed.units, second, most=cases))


def reading_gaps(observed: Observed) -> NDArray[np.float32]:
    """Mass of the reading word on its partner minus that on the control: [case, layer, head]."""
    forward = observed.values(MASS_ON_CUE) - observed.values(MASS_ON_CONTROL)
    back = observed.values(MASS_BACK) - observed.values(CONTROL_BACK)
    return np.where(_turned(observed)[:, None, None], back, forward)


def head_scores(observed: Observed, plan: HeadPlan, cuts: HeadCuts) -> tuple[HeadScore, ...]:
    """Judge each planned head on the planned cases, `cuts` having one row for each of them."""
    where = list(plan.cases)
    turned = _turned(observed)[where, None, None]
    cue, control = (
        np.where(turned, observed.values(back)[where], observed.values(forward)[where])
        for forward, back in ((MASS_ON_CUE, MASS_BACK), (MASS_ON_CONTROL, CONTROL_BACK))
    )
    rows = {(layer.stack, layer.index): row for row, layer in enumerate(observed.layers)}
    at = [(rows[cuts.stack, layer], observed.heads.index(head)) for layer, head in plan.heads]
    mass, mass_control = (np.stack([grid[:, row, head] for row, head in at], axis=1) for grid in (cue, control))
    units = [observed.units[place] for place in where]
    gaps = (mass - mass_control, cuts.cue - cuts.control)  # each [case, head]
    mass_p, effect_p = flip_tests([unit_means(gap, units)[0] for gap in gaps], seed=observed.seed).p_max
    return tuple(
        HeadScore(
            layer=layer,
            head=head,
            drawn=number >= plan.chosen,
            mass=mean_interval(gaps[0][:, number], units, seed=observed.seed),
            mass_cue=_paired_mean(mass[:, number], gaps[0][:, number], units),
            mass_p=float(mass_p[number]),
            effect=mean_interval(gaps[1][:, number], units, seed=observed.seed),
            effect_cue=_paired_mean(cuts.cue[:, number], gaps[1][:, number], units),
            effect_p=float(effect_p[number]),
        )
        for number, (layer, head) in enumerate(plan.heads)
    )


def score_results(observed: Observed, scores: Sequence[HeadScore], *, stack: str) -> pd.DataFrame:
    """The cut edges of single heads as rows of the results table."""
    rows = [
        {
            "model": observed.model, "stack": stack, "layer": one.layer, "head": one.head, "query": "reader",
            "key": "cue", "weighting": "none", "measure": "cut effect", "contrast": CONTRAST, "unit": "cue word",
            "n": one.effect.units, "estimate": one.effect.mean, "low": one.effect.low, "high": one.effect.high,
            "control": one.effect_cue - one.effect.mean, "p": np.nan, "p_max": one.effect_p,
        }
        for one in scores
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _turned(observed: Observed) -> NDArray[np.bool_]:
    """Cases in which the cue is the word that reads."""
    edges = [edge_of(item, causal=observed.causal) for item in observed.items]
    return np.array([edge is not None and edge.direction == "cue → target" for edge in edges])


def _halves(observed: Observed, known: Any) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """Places of the known cases, a truth value each, of either half of the cue words; None where they are too few."""
    names = sorted({unit for unit, ok in zip(observed.units, known, strict=True) if ok})
    if len(names) < 2 * FEWEST_FOR_INTERVAL:
        return None
    shuffled = np.random.default_rng(observed.seed).permutation(len(names))
    choosing = {names[index] for index in shuffled[: len(names) // 2]}
    first = np.array([unit in choosing for unit in observed.units])
    return np.flatnonzero(known & first), np.flatnonzero(known & ~first)


def _one_each(units: Sequence[str], places: NDArray[np.intp], *, most: int) -> tuple[int, ...]:
    """At most `most` of the places, spread over them; a cue word comes again only when all have come."""
    seen: dict[str, int] = {}
    turns = []
    for place in places:
        seen[units[place]] = seen.get(units[place], 0) + 1
        turns.append(seen[units[place]])
    firsts = [int(place) for place, turn in zip(places, turns, strict=True) if turn == 1]
    if len(firsts) >= most:
        return tuple(firsts[int(i)] for i in np.linspace(0, len(firsts) - 1, most))
    order = np.argsort(turns, kind="stable")
    return tuple(sorted(int(place) for place in places[order][:most]))


def _paired_mean(values: NDArray[np.floating], gaps: NDArray[np.floating], units: Sequence[str]) -> float:
    """Mean over units of the cases whose gap is known, so that it can stand beside the gap's."""
    means, _ = unit_means(np.where(np.isnan(gaps), np.nan, values), units)
    known = means[~np.isnan(means)]
    return float(known.mean()) if known.size else float("nan")
