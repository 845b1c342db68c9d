"""How a model tells senses apart: heads in minimal groups, cut edges in them, senses in states; numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.captures import Prepared
from probe.contrasts import FEWEST_UNITS, NEUTRAL, SlotPair, contrasts_of, differences, slot_pairs
from probe.findings import MASS_BACK, MASS_ON_CONTROL, MASS_ON_CUE, Observed
from probe.flips import FlipTest, flip_tests
from probe.measures.focus import FOCUS, Measure
from probe.measures.states import (
    Readout,
    cosines_by_sense,
    most_frequent_sense,
    sense_accuracy,
    silhouette,
    two_characters_rule,
)
from probe.stats import bootstrap

SLOT_CONTRAST = "cue − neutral"
DIRECTIONS: tuple[Measure, ...] = (MASS_ON_CUE, MASS_BACK)
FEWEST_CASES = 3  # a sense with fewer sentences is left out of state measures, and named


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadContrast:
    """One contrast in one direction over all heads: cue minus neutral word in the same slot, by cue word."""

    contrast: str
    measure: Measure
    units: tuple[str, ...]
    gaps: NDArray[np.float64]  # [unit, layer, head]
    test: FlipTest
    p_max: NDArray[np.float64]  # [layer, head], over every head, direction and contrast

    @property
    def tested(self) -> bool:
        """Whether there are enough cue words to claim anything."""
        return len(self.units) >= FEWEST_UNITS


@dataclass(frozen=True, kw_only=True, eq=False)
class CutContrast:
    """One contrast's cut edge in every layer: how much more the cue moves the reading word than the neutral word."""

    contrast: str
    units: tuple[str, ...]
    gaps: NDArray[np.float64]  # [unit]
    mean: float
    low: float
    high: float
    p: float  # over all contrasts


@dataclass(frozen=True, kw_only=True, eq=False)
class SenseStates:
    """What states know of the sense, layer by layer, and what is known without them."""

    readout: Readout
    senses: tuple[str, ...]
    left_out: tuple[str, ...]  # senses with too few sentences
    cases: int
    accuracy: NDArray[np.float64]  # [state layer], nearest centroid with one group left out
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    visible: NDArray[np.bool_]  # [state layer]
    silhouette: NDArray[np.float64]
    within: NDArray[np.float64]  # mean centred cosine inside a sense
    across: NDArray[np.float64]
    context: float  # accuracy of the mean input embedding of the other words
    frequent: float  # of the most frequent sense
    neighbours: float  # of a rule on the two characters beside the target


def head_contrasts(observed: Observed) -> tuple[HeadContrast, ...]:
    """All contrasts in both directions, tested as one family; empty without minimal groups.

    A direction that a causal mask forbids in every pair of a contrast is left out.
    """
    pairs = slot_pairs(observed.items)
    found = []
    for measure in DIRECTIONS:
        for contrast in contrasts_of(pairs):
            gaps, units = differences(observed.focus[:, FOCUS.index(measure)], pairs, contrast)
            seen = ~np.isnan(gaps).all((1, 2))
            if seen.any():
                found.append((contrast, measure, tuple(np.array(units)[seen]), gaps[seen]))
    if not found:
        return ()
    family = flip_tests([gaps for _, _, _, gaps in found], seed=observed.seed)
    return tuple(
        HeadContrast(contrast=contrast, measure=measure, units=units, gaps=gaps, test=test, p_max=p_max)
        for (contrast, measure, units, gaps), test, p_max in zip(found, family.tests, family.p_max, strict=True)
    )


def cut_contrasts(observed: Observed) -> tuple[CutContrast, ...]:
    """The cut edge to the cue against the cut edge to the neutral word of the same group, by cue word."""
    cuts = observed.cuts
    if cuts is None:
        return ()
    effects = np.full(len(observed.items), np.nan)
    effects[list(observed.cut_cases)] = cuts.cue[:, 0]
    pairs = slot_pairs(observed.items)
    found = []
    for contrast in contrasts_of(pairs):
        gaps, units = differences(effects, pairs, contrast)
        known = ~np.isnan(gaps)
        if known.sum() > 1:
            found.append((contrast, tuple(np.array(units)[known]), gaps[known]))
    if not found:
        return ()
    family = flip_tests([gaps for _, _, gaps in found], seed=observed.seed)
    results = []
    for (contrast, units, gaps), p in zip(found, family.p_max, strict=True):
        interval = bootstrap(gaps, units, seed=observed.seed)
        results.append(
            CutContrast(
                contrast=contrast,
                units=units,
                gaps=gaps,
                mean=float(interval.mean),
                low=float(interval.low),
                high=float(interval.high),
                p=float(p),
            )
        )
    return tuple(results)


def sense_states(
    items: Sequence[Prepared],
    states: NDArray[np.floating],
    context: NDArray[np.floating],
    *,
    readout: Readout,
    seed: int,
) -> SenseStates | None:
    """State measures over the cases that name a sense, neutral ones left out; None without a word of two senses.

    states [case, state layer, dim], context [case, dim]. Each word's senses are told apart among themselves, since
    telling words apart is easy; the numbers are means over cases of all words.
    """
    words, few = _words_with_senses(items)
    if not words:
        return None
    parts = [_decide(items, states, context, places) for places in words.values()]
    correct = np.concatenate([part.correct for part in parts])
    visible = np.any([part.visible for part in parts], axis=0)
    order = [place for places in words.values() for place in places]
    interval = bootstrap(correct, [_group(items[place]) for place in order], seed=seed)
    shares = np.array([len(places) for places in words.values()]) / len(order)
    return SenseStates(
        readout=readout,
        senses=tuple(sorted({f"{word} {items[place].case.sense}" for word, own in words.items() for place in own})),
        left_out=few,
        cases=len(order),
        accuracy=np.where(visible, interval.mean, np.nan),
        low=np.where(visible, interval.low, np.nan),
        high=np.where(visible, interval.high, np.nan),
        visible=visible,
        silhouette=shares @ np.stack([part.silhouette for part in parts]),
        within=shares @ np.stack([part.within for part in parts]),
        across=shares @ np.stack([part.across for part in parts]),
        context=float(np.nanmean(np.concatenate([part.context for part in parts]))),
        frequent=float(np.concatenate([part.frequent for part in parts]).mean()),
        neighbours=float(np.concatenate([part.neighbours for part in parts]).mean()),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _WordStates:
    """The state measures of one word; first axis case, or layer where a measure is about all cases."""

    correct: NDArray[np.float64]
    visible: NDArray[np.bool_]
    silhouette: NDArray[np.float64]
    within: NDArray[np.float64]
    across: NDArray[np.float64]
    context: NDArray[np.float64]
    frequent: NDArray[np.float64]
    neighbours: NDArray[np.float64]


def _words_with_senses(items: Sequence[Prepared]) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """Places of the cases of each word with two senses or more, and the senses that have too few sentences."""
    words: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        if item.case.sense not in ("", NEUTRAL):
            words.setdefault(_word(item), []).append(place)
    kept, few = {}, []
    for word, places in words.items():
        senses = [items[place].case.sense for place in places]
        thin = {sense for sense in senses if senses.count(sense) < FEWEST_CASES}
        few += [f"{word} {sense}" for sense in sorted(thin)]
        own = [place for place in places if items[place].case.sense not in thin]
        if len({items[place].case.sense for place in own}) > 1:
            kept[word] = own
    return kept, tuple(few)


def _decide(
    items: Sequence[Prepared], states: NDArray[np.floating], context: NDArray[np.floating], places: list[int]
) -> _WordStates:
    senses = [items[place].case.sense for place in places]
    groups = [_group(items[place]) for place in places]
    decided = sense_accuracy(states[places], senses, groups)
    within, across = cosines_by_sense(states[places], senses)
    return _WordStates(
        correct=decided.correct,
        visible=decided.visible,
        silhouette=silhouette(states[places], senses),
        within=within,
        across=across,
        context=sense_accuracy(context[places][:, None], senses, groups).correct[:, 0],
        frequent=most_frequent_sense(senses, groups),
        neighbours=two_characters_rule([_beside(items[place]) for place in places], senses, groups),
    )


def contrast_results(observed: Observed, heads: Sequence[HeadContrast], cuts: Sequence[CutContrast]) -> pd.DataFrame:
    """Contrasts as rows of the results table, with p and p_max."""
    frames = [_head_rows(observed, one) for one in heads]
    frames += [_cut_row(observed, one) for one in cuts]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def state_frame(model: str, states: SenseStates) -> pd.DataFrame:
    """State measures by state layer (0 is the embedding), baselines beside: a table of its own in the run folder."""
    layers = len(states.accuracy)
    return pd.DataFrame(
        {
            "model": model,
            "state layer": range(layers),
            "readout": states.readout,
            "senses": len(states.senses),
            "cases": states.cases,
            "visible": states.visible,
            "accuracy": states.accuracy,
            "low": states.low,
            "high": states.high,
            "silhouette": states.silhouette,
            "cosine within": states.within,
            "cosine across": states.across,
            "context embedding": states.context,
            "most frequent sense": states.frequent,
            "two characters": states.neighbours,
        }
    )


def best_head(one: HeadContrast) -> tuple[int, int]:
    """Place [layer, head] of the largest |t| of a contrast."""
    layer, head = np.unravel_index(int(np.argmax(np.nan_to_num(np.abs(one.test.t)))), one.test.t.shape)
    return int(layer), int(head)


@dataclass(frozen=True, kw_only=True)
class EffectSizes:
    """A few numbers of one model on some cases, to stand beside those of another; NaN where there is none."""

    model: str
    mass_cue: float
    mass_control: float
    effect_cue: float
    effect_control: float
    slot_gap: float  # cut edge, cue minus neutral word in the same slot
    accuracy: float  # best state layer


def effect_sizes(observed: Observed, states: SenseStates | None) -> EffectSizes:
    """Means over cases and heads, without units or intervals: for the comparison with random weights."""
    mass, control = (observed.values(measure) for measure in (MASS_ON_CUE, MASS_ON_CONTROL))
    both = np.isnan(mass) | np.isnan(control)
    cuts, slots = observed.cue_cuts, cut_contrasts(observed)
    paired = None if cuts is None else ~np.isnan(cuts.cue[:, 0] - cuts.control[:, 0])
    return EffectSizes(
        model=observed.model,
        mass_cue=_mean(mass[~both]),
        mass_control=_mean(control[~both]),
        effect_cue=_mean(cuts.cue[paired, 0]) if cuts is not None else np.nan,
        effect_control=_mean(cuts.control[paired, 0]) if cuts is not None else np.nan,
        slot_gap=_mean(np.concatenate([one.gaps for one in slots])) if slots else np.nan,
        accuracy=float(np.nanmax(states.accuracy)) if states and not np.isnan(states.accuracy).all() else np.nan,
    )


def example_pairs(items: Sequence[Prepared], *, most: int = 3) -> list[SlotPair]:
    """The first group of each of the first contrasts: chosen by order, not by what they show."""
    pairs = slot_pairs(items)
    firsts = {contrast: next(pair for pair in pairs if pair.contrast == contrast) for contrast in contrasts_of(pairs)}
    return list(firsts.values())[:most]


def _head_rows(observed: Observed, one: HeadContrast) -> pd.DataFrame:
    interval = bootstrap(one.gaps, one.units, seed=observed.seed)
    layers, heads = len(observed.layers), len(observed.heads)
    return pd.DataFrame(
        {
            "model": observed.model,
            "stack": np.repeat([layer.stack for layer in observed.layers], heads),
            "layer": np.repeat([layer.index for layer in observed.layers], heads),
            "head": np.tile(observed.heads, layers),
            "query": one.measure.query,
            "key": one.measure.key,
            "weighting": "none",
            "measure": one.measure.name,
            "contrast": f"{one.contrast}: {SLOT_CONTRAST}",
            "unit": "cue word",
            "n": interval.units.ravel(),
            "estimate": interval.mean.ravel(),
            "low": interval.low.ravel(),
            "high": interval.high.ravel(),
            "control": np.nan,
            "p": one.test.p.ravel(),
            "p_max": one.p_max.ravel(),
        }
    )


def _cut_row(observed: Observed, one: CutContrast) -> pd.DataFrame:
    assert observed.cuts is not None
    row = {
        "model": observed.model, "stack": observed.cuts.stack, "layer": -1, "head": -1, "query": "reader", "key": "cue",
        "weighting": "none", "measure": "cut effect", "contrast": f"{one.contrast}: {SLOT_CONTRAST}",
        "unit": "cue word", "n": len(one.units), "estimate": one.mean, "low": one.low, "high": one.high,
        "control": np.nan, "p": np.nan, "p_max": one.p,
    }  # fmt: skip
    return pd.DataFrame([row])


def _mean(values: NDArray[np.floating]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _word(item: Prepared) -> str:
    return item.case.meta.get("word", "") or item.case.target.cut(item.case.text)


def _group(item: Prepared) -> str:
    return item.case.group or item.case.id


def _beside(item: Prepared) -> tuple[str, str]:
    text, target = item.case.text, item.case.target
    return text[target.start - 1 : target.start] if target.start else "", text[target.end : target.end + 1]
