"""A cue in another sentence or paragraph: mass, cut edge and sense of 苹果 by relative depth, on texts of our own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probe.capture import prepare
from probe.captures import Capture, Prepared
from probe.cases import load_cases
from probe.claims.bench import Bench, target_states
from probe.claims.records import (
    FEWEST_FOR_TAILS,
    NOTHING_MEASURED,
    WIDE_LEVEL,
    Bears,
    Finding,
    Grid,
    Number,
    Part,
    mean_number,
    more_than,
)
from probe.claims.rows import exchanged
from probe.contrasts import SlotPair, slot_pairs
from probe.experiments.causes import cut_effects
from probe.measures.focus import merged_row
from probe.measures.states import sense_accuracy
from probe.models import LoadedModel

Floats = NDArray[np.float64]
PLACES = ("same sentence", "other sentence", "other paragraph")
_BY_LAYER = "other sentence"
_LAST_THIRD = 2 / 3
_RESAMPLES = 20_000


@dataclass(frozen=True, kw_only=True, eq=False)
class _Far:
    """What one model does with the set, by place of the cue; gaps are cue minus neutral word, [pair]."""

    units: dict[str, list[str]]
    gaps: dict[str, Floats]
    alone: dict[str, Floats]  # the cue's edge by itself
    mass: dict[str, Floats]  # [pair, layer]
    accuracy: dict[str, Floats]  # [case, state layer]
    by_layer: Floats  # gaps of the cut edge where the cue stands in another sentence, [pair, layer]
    layer_units: list[str]


def far(bench: Bench) -> Finding:
    """Whether cutting 苹果's edge to a cue in another sentence or paragraph moves it, and at which depth most."""
    parts: list[Part] = []
    grids = []
    for loaded, deep in (
        (bench.encoder, bench.sizes.layer_words),
        (bench.decoder, bench.sizes.decoder_layer_words),
    ):
        found = _measured(bench, loaded, deep)
        parts += [_linked(bench, loaded, found, place) for place in PLACES]
        parts.append(_late(bench, loaded, found))
        grids += _tables(bench, loaded, found)
    return Finding(key="far", parts=tuple(parts), grids=tuple(grids))


def _measured(bench: Bench, loaded: LoadedModel, deep: int) -> _Far:
    items = _items(loaded, bench.sizes.words)
    pairs = {place: [p for p in slot_pairs(items) if _place(items[p.cue]) == place] for place in PLACES}
    cut_deep = [case for pair in pairs[_BY_LAYER][:deep] for case in (pair.cue, pair.neutral)]
    effects = cut_effects(
        loaded,
        bench.route(loaded),
        items,
        controls=[None] * len(items),
        by_layer=cut_deep,
        batch_tokens=1024,
        progress=bench.told(f"edges of far, {loaded.name}"),
    )
    captures = bench.captures(loaded, items, f"rows of far, {loaded.name}")
    moved = effects.cue.astype(np.float64)
    mass = np.array([_mass(one) for one in captures])
    return _Far(
        units={place: [pair.unit for pair in own] for place, own in pairs.items()},
        gaps={place: _differences(moved[:, 0], own) for place, own in pairs.items()},
        alone={place: moved[[pair.cue for pair in own], 0] for place, own in pairs.items()},
        mass={place: _differences(mass, own) for place, own in pairs.items()},
        accuracy={place: _senses(captures, place) for place in PLACES},
        by_layer=_differences(moved[:, 1:], pairs[_BY_LAYER][:deep]),
        layer_units=[pair.unit for pair in pairs[_BY_LAYER][:deep]],
    )


def _items(loaded: LoadedModel, words: int) -> tuple[Prepared, ...]:
    """The texts on the first `words` cue words, as many of either sense; all of them is 24."""
    cases = load_cases("far").cases
    senses: dict[str, list[str]] = {}
    for case in cases:
        if case.sense != "neutral" and _number(case.group) not in senses.setdefault(case.sense, []):
            senses[case.sense].append(_number(case.group))
    kept = {number for numbers in senses.values() for number in numbers[: words // len(senses)]}
    return prepare(loaded, [case for case in cases if _number(case.group) in kept], cut=None)


def _number(group: str) -> str:
    return group.rpartition("-")[0]  # far-01-same: all places of one cue word share far-01


def _place(item: Prepared | Capture) -> str:
    return item.case.meta["contrast"]


def _differences(values: Floats, pairs: Sequence[SlotPair]) -> Floats:
    gaps: Floats = values[[pair.cue for pair in pairs]] - values[[pair.neutral for pair in pairs]]
    return gaps


def _mass(one: Capture) -> Floats:
    """Mass of the target's row on the slot, mean over heads: [layer]."""
    slot = [index for word in one.cues for index in word]
    found: Floats = merged_row(one, one.target)[..., slot].sum(-1).mean(1).astype(np.float64)
    return found


def _senses(captures: Sequence[Capture], place: str) -> Floats:
    """1 where the state of 苹果 tells company from fruit, one cue word left out: [case, state layer]."""
    own = target_states([one for one in captures if _place(one) == place and one.case.sense != "neutral"])
    found = sense_accuracy(own.states, own.senses, own.groups)
    return np.where(found.visible, found.correct, np.nan)


def _linked(bench: Bench, loaded: LoadedModel, found: _Far, place: str) -> Part:
    """Cutting the edge to the cue above cutting it to the neutral word in the same slot."""
    gap, units = found.gaps[place], found.units[place]
    bears: Bears = "beside" if place == PLACES[0] else "for"
    return Part(
        key=f"linked_{place.replace(' ', '_')}",
        model=loaded.name,
        bears=bears,
        rule=more_than(0.0),
        unit="share",
        number=mean_number(gap, units, seed=bench.seed),
        planted=mean_number(found.alone[place], units, seed=bench.seed),
        nothing=mean_number(exchanged(gap, seed=bench.seed), units, seed=bench.seed),
    )


def _late(bench: Bench, loaded: LoadedModel, found: _Far) -> Part:
    """Where the cut edge's effect is largest, as a share of the depth; watched by a bump at either end."""
    gaps, seed = found.by_layer, bench.seed
    bump = 10 * (np.abs(gaps).max(initial=0.0) + 1e-6)
    last, first = gaps.copy(), gaps.copy()
    last[:, -1] += bump
    first[:, 0] += bump
    return Part(
        key="late",
        model=loaded.name,
        rule=more_than(_LAST_THIRD),
        unit="depth",
        number=peak_depth(gaps, seed=seed),
        planted=peak_depth(last, seed=seed),
        nothing=peak_depth(first, seed=seed),
    )


def peak_depth(gaps: Floats, *, seed: int) -> Number:
    """Relative depth of the layer with the largest mean, with a bootstrap interval over pairs; gaps [pair, layer].

    NaN without pairs, and where any gap is: the largest of numbers of which one is not known is not known.
    """
    pairs, layers = gaps.shape
    if not gaps.size or np.isnan(gaps).any():
        return replace(NOTHING_MEASURED, n=pairs)
    draws = np.random.default_rng(seed).integers(pairs, size=(_RESAMPLES, pairs))
    depths = (gaps[draws].mean(1).argmax(1) + 1) / layers
    tails = (1 - WIDE_LEVEL) / 2
    low, high, *wide = map(float, np.quantile(depths, [0.025, 0.975, tails, 1 - tails], method="nearest"))
    if pairs < FEWEST_FOR_TAILS:
        wide = [math.nan, math.nan]
    depth = (int(gaps.mean(0).argmax()) + 1) / layers
    return Number(estimate=depth, low=low, high=high, n=pairs, wide=(wide[0], wide[1]))


def _tables(bench: Bench, loaded: LoadedModel, found: _Far) -> list[Grid]:
    layers = found.by_layer.shape[1]
    cut, rows = [], []
    for layer in range(layers):
        depth = (layer + 1) / layers
        effect = mean_number(found.by_layer[:, layer], found.layer_units, seed=bench.seed)
        cut.append((depth, layer, effect.estimate, effect.low, effect.high))
        masses = [float(found.mass[place][:, layer].mean()) for place in PLACES]
        right = [float(np.mean(found.accuracy[place][:, layer + 1])) for place in PLACES]
        rows.append((depth, layer, *masses, *right))
    effects = ("depth", "layer", "effect_gap", "low", "high")
    reading = ("mass_same", "mass_sentence", "mass_paragraph", "right_same", "right_sentence", "right_paragraph")
    return [
        Grid(caption="far", model=loaded.name, columns=effects, rows=tuple(cut)),
        Grid(caption="far_rows", model=loaded.name, columns=("depth", "layer", *reading), rows=tuple(rows)),
    ]
