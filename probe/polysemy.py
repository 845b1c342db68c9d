"""How a model tells senses apart: heads in minimal groups, cut edges in them, senses in states; numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.captures import Prepared
from probe.contrasts import FEWEST_UNITS, SlotPair, contrasts_of, differences, slot_pairs
from probe.findings import MASS_BACK, MASS_ON_CONTROL, MASS_ON_CUE, Observed
from probe.flips import FlipTest, flip_tests
from probe.measures.focus import FOCUS, Measure
from probe.measures.states import Readout
from probe.stats import bootstrap
from probe.wordsenses import WordSenses, decide_word, senses_to_tell

SLOT_CONTRAST = "cue − neutral"
DIRECTIONS: tuple[Measure, ...] = (MASS_ON_CUE, MASS_BACK)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadContrast:
    """One contrast in one direction over all heads: cue minus neutral word in the same slot, by cue word."""

    contrast: str
    measure: Measure
    units: tuple[str, ...]
    gaps: NDArray[np.float64]  # [unit, layer, head]
    test: FlipTest
    p_max: NDArray[np.float64]  # [layer, head], over every head, direction and contrast; NaN where not tested

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
    p: float  # over all contrasts; NaN where not tested

    @property
    def tested(self) -> bool:
        """Whether there are enough cue words to claim anything."""
        return len(self.units) >= FEWEST_UNITS


@dataclass(frozen=True, kw_only=True, eq=False)
class CarrierAlone:
    """What the carrier sentence alone gives: its neutral case decided as if it were a cue case; NaN without any.

    A carrier counts once, with the sense of its group's cue cases. A group whose cue cases have several senses has no
    one label, and is left out.
    """

    accuracy: NDArray[np.float64]  # [state layer], groups weighted alike
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    cued: NDArray[np.float64]  # [state layer], of the cue cases of the same groups
    cases: int
    mixed: int  # groups left out


@dataclass(frozen=True, kw_only=True)
class WordAccuracy:
    """One word's row: accuracies at the last state layer, its baselines beside; NaN where there is none."""

    word: str
    senses: int
    cases: int
    accuracy: float
    low: float
    high: float
    frequent: float
    neighbours: float
    carrier: float


@dataclass(frozen=True, kw_only=True, eq=False)
class SenseStates:
    """What states know of the sense, layer by layer, and what is known without them."""

    readout: Readout
    senses: tuple[str, ...]
    left_out: tuple[str, ...]  # senses with too few sentences
    cases: int
    undecided: int  # of these: their sense stands in no other group
    accuracy: NDArray[np.float64]  # [state layer], nearest centroid with one group left out
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    visible: NDArray[np.bool_]  # [state layer], whether any word's states differ
    hidden: tuple[tuple[str, ...], ...]  # [state layer], words whose states are the same in all cases, left out there
    silhouette: NDArray[np.float64]
    within: NDArray[np.float64]  # mean centred cosine inside a sense
    across: NDArray[np.float64]
    context: float  # accuracy of the mean input embedding of the other words
    frequent: float  # of always guessing the word's most frequent sense, known in advance
    neighbours: float  # of a rule on the two characters beside the target
    carrier: CarrierAlone
    words: tuple[WordAccuracy, ...]


def head_contrasts(observed: Observed) -> tuple[HeadContrast, ...]:
    """All contrasts in both directions, tested as one family; empty without minimal groups.

    A direction that a causal mask forbids in every pair of a contrast is left out. A contrast of too few cue words is
    described and takes part in the family, but has no p.
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
    contrasts = [
        HeadContrast(contrast=contrast, measure=measure, units=units, gaps=gaps, test=test, p_max=p_max)
        for (contrast, measure, units, gaps), test, p_max in zip(found, family.tests, family.p_max, strict=True)
    ]
    return tuple(one if one.tested else _untested(one) for one in contrasts)


def _untested(one: HeadContrast) -> HeadContrast:
    nothing = np.full_like(one.p_max, np.nan)
    return replace(one, test=replace(one.test, p=nothing), p_max=nothing)


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
                p=float(p) if len(units) >= FEWEST_UNITS else float("nan"),
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
    """State measures over the cases that name a sense, neutral ones beside; None without a word of two senses.

    states [case, state layer, dim], context [case, dim]. Each word's senses are told apart among themselves, since
    telling words apart is easy; the numbers are means over cases of all words. In a layer in which a word's states are
    the same in all its cases the word is left out.
    """
    kept, few = senses_to_tell(items)
    if not kept:
        return None
    parts = [decide_word(items, states, context, word=word, senses=senses) for word, senses in kept.items()]
    correct = np.concatenate([part.correct for part in parts])
    interval = bootstrap(correct, [group for part in parts for group in part.groups], seed=seed)
    weights = np.array([len(part.senses) for part in parts])
    visible = np.stack([part.visible for part in parts])  # [word, state layer]
    return SenseStates(
        readout=readout,
        senses=tuple(sorted({f"{part.word} {sense}" for part in parts for sense in part.senses})),
        left_out=few,
        cases=len(correct),
        undecided=sum(part.undecided for part in parts),
        accuracy=interval.mean,
        low=interval.low,
        high=interval.high,
        visible=np.any(visible, axis=0),
        hidden=tuple(
            tuple(part.word for part in parts if not part.visible[layer]) for layer in range(visible.shape[1])
        ),
        silhouette=_weighted([part.silhouette for part in parts], weights),
        within=_weighted([part.within for part in parts], weights),
        across=_weighted([part.across for part in parts], weights),
        context=_mean(np.concatenate([part.context for part in parts])),
        frequent=_mean(np.concatenate([part.frequent for part in parts])),
        neighbours=_mean(np.concatenate([part.neighbours for part in parts])),
        carrier=_carrier_alone(parts, seed=seed),
        words=tuple(_word_accuracy(part, seed=seed) for part in parts),
    )


def _carrier_alone(parts: Sequence[WordSenses], *, seed: int) -> CarrierAlone:
    groups = [group for part in parts for group in part.carrier_groups]
    mixed = sum(part.mixed for part in parts)
    if not groups:
        nothing = np.full(len(parts[0].visible), np.nan)
        return CarrierAlone(accuracy=nothing, low=nothing, high=nothing, cued=nothing, cases=0, mixed=mixed)
    interval = bootstrap(np.concatenate([part.carrier for part in parts]), groups, seed=seed)
    cued, of = [], []
    for part in parts:
        same = [place for place, group in enumerate(part.groups) if group in part.carrier_groups]
        cued.append(part.correct[same])
        of += [part.groups[place] for place in same]
    return CarrierAlone(
        accuracy=interval.mean,
        low=interval.low,
        high=interval.high,
        cued=bootstrap(np.concatenate(cued), of, seed=seed).mean,
        cases=len(groups),
        mixed=mixed,
    )


def _word_accuracy(part: WordSenses, *, seed: int) -> WordAccuracy:
    last = bootstrap(part.correct[:, -1:], part.groups, seed=seed)
    carrier = bootstrap(part.carrier[:, -1:], part.carrier_groups, seed=seed).mean[0] if len(part.carrier) else np.nan
    return WordAccuracy(
        word=part.word,
        senses=len(set(part.senses)),
        cases=len(part.senses),
        accuracy=float(last.mean[0]),
        low=float(last.low[0]),
        high=float(last.high[0]),
        frequent=_mean(part.frequent),
        neighbours=_mean(part.neighbours),
        carrier=float(carrier),
    )


def _weighted(values: Sequence[NDArray[np.float64]], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean over words [word, state layer] weighted by their cases, words without a value left out: [state layer]."""
    grid = np.stack(values)
    known = ~np.isnan(grid)
    with np.errstate(invalid="ignore"):
        mean: NDArray[np.float64] = (weights @ np.where(known, grid, 0.0)) / (weights @ known)
    return mean


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
            "carrier alone": states.carrier.accuracy,
            "carrier low": states.carrier.low,
            "carrier high": states.carrier.high,
            "carrier cases": states.carrier.cases,
            "cue in the same groups": states.carrier.cued,
        }
    )


def word_frame(model: str, states: SenseStates) -> pd.DataFrame:
    """Accuracy by word at the last state layer, baselines beside: a table of its own in the run folder."""
    return pd.DataFrame(
        {
            "model": model,
            "word": [one.word for one in states.words],
            "state layer": len(states.accuracy) - 1,
            "readout": states.readout,
            "senses": [one.senses for one in states.words],
            "cases": [one.cases for one in states.words],
            "accuracy": [one.accuracy for one in states.words],
            "low": [one.low for one in states.words],
            "high": [one.high for one in states.words],
            "most frequent sense": [one.frequent for one in states.words],
            "two characters": [one.neighbours for one in states.words],
            "carrier alone": [one.carrier for one in states.words],
        }
    )


def best_head(one: HeadContrast) -> tuple[int, int] | None:
    """Place [layer, head] of the largest |t| of a contrast; None where no head differs or one cue word is all."""
    size = np.nan_to_num(np.abs(one.test.t))
    if not size.any():
        return None
    layer, head = np.unravel_index(int(np.argmax(size)), size.shape)
    return int(layer), int(head)


@dataclass(frozen=True, kw_only=True)
class EffectSizes:
    """A few numbers of one model on some cases, to stand beside those of another; NaN where there is none."""

    model: str
    cases: int
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
        cases=len(observed.items),
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
