"""From one model's observations to results: estimates with intervals, and what stands out, chosen and scored apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, permutations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.captures import Capture, Prepared
from probe.contrasts import is_neutral
from probe.experiments.causes import EVERYWHERE, CutEffects
from probe.labels import Layer
from probe.measures.focus import FOCUS, Measure, Weighting, visible
from probe.measures.states import Readout
from probe.stats import Estimate, bootstrap

Floats = NDArray[np.float32]

MASS_ON_CUE = Measure("target", "cue", "attention mass")
MASS_ON_CONTROL = Measure("target", "control", "attention mass")
MASS_BACK = Measure("cue", "target", "attention mass")
CONTROL_BACK = Measure("cue", "control", "attention mass")
MASS_ON_SPECIAL = Measure("target", "special", "attention mass")
MASS_ON_FIRST = Measure("target", "first", "attention mass")
ENTROPY = Measure("target", "", "entropy")
RANK = Measure("target", "cue", "cue rank")

CONTRAST = "cue − control"


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """All values of one model on one case set."""

    model: str
    items: tuple[Prepared, ...]
    layers: tuple[Layer, ...]
    heads: tuple[int, ...]
    focus: Floats  # [case, measure, layer, head]
    cuts: CutEffects | None
    cut_cases: tuple[int, ...]  # which cases the rows of `cuts` are
    target_rows: Mapping[int, Floats]  # merged rows of the targets that are kept for the page: [layer, head, key]
    seed: int
    states: Floats | None = None  # at the readout: [case, state layer, dim]
    context: Floats | None = None  # mean input embedding of the other words: [case, dim]
    readout: Readout = "target"
    cue_rows: Mapping[int, Floats] = field(default_factory=dict)
    """Merged rows of the cues, for the cases of `target_rows` in which the cue is the word that reads."""

    def values(self, measure: Measure) -> Floats:
        """Values of one measure: [case, layer, head]; NaN for a neutral case, whose marked word is no cue."""
        grid: Floats = self.focus[:, FOCUS.index(measure)]
        if {measure.query, measure.key} & {"cue", "control"}:
            return np.where(self.neutral[:, None, None], np.nan, grid)
        return grid

    @property
    def causal(self) -> bool:
        """Whether no layer lets a word see what comes after it."""
        return all(layer.stack == "decoder" for layer in self.layers)

    @cached_property
    def neutral(self) -> NDArray[np.bool_]:
        """Which cases are the neutral ones of a minimal group."""
        return np.array([is_neutral(item) for item in self.items])

    @cached_property
    def cue_cuts(self) -> CutEffects | None:
        """The cut effects without the neutral cases, whose marked word is no cue."""
        if self.cuts is None:
            return None
        hidden = self.neutral[list(self.cut_cases)][:, None]
        return replace(
            self.cuts,
            cue=np.where(hidden, np.nan, self.cuts.cue),
            control=np.where(hidden, np.nan, self.cuts.control),
        )

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The unit of each case: its cue words, since a head's taste for one word must count once."""
        return tuple(unit_of(item) for item in self.items)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """One number with its interval and the number of units behind it."""

    mean: float
    low: float
    high: float
    units: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero; False where there is none."""
        return self.low > 0 or self.high < 0


def unit_of(item: Prepared | Capture) -> str:
    """The cue words of a case as one name; a case without cues is a unit of its own."""
    return " + ".join(cue.cut(item.case.text) for cue in item.case.cues) or f"case {item.case.id}"


def results_of(observed: Observed) -> pd.DataFrame:
    """The results table: one row a measure, layer, head and contrast, with estimate and 95 % interval."""
    frames = [_focus_frame(observed, measure) for measure in FOCUS]
    for cue, control in ((MASS_ON_CUE, MASS_ON_CONTROL), (MASS_BACK, CONTROL_BACK)):
        frames.append(_difference_frame(observed, cue, control))
    if observed.cue_cuts is not None:
        frames.extend(_cut_frames(observed, observed.cue_cuts))
    return pd.concat(frames, ignore_index=True)


def mean_interval(values: NDArray[np.floating], units: Sequence[str], *, seed: int) -> Interval:
    """Mean over units of one number a case: [case] -> Interval."""
    found = bootstrap(values, units, seed=seed)
    return Interval(mean=float(found.mean), low=float(found.low), high=float(found.high), units=int(found.units))


def crossed_pairs(items: Sequence[Prepared], *, most: int) -> list[tuple[int, int]]:
    """Pairs (case, other) that share one text in one group, so that the other's cue is a control for the case's own.

    It is the hardest control that a sentence can offer: a word of the same kind, which matters to another word. At
    most `most` of them: a group of n cases has n² - n.
    """
    places: dict[tuple[str, str], list[int]] = {}
    for place, item in enumerate(items):
        if item.case.group and item.cues:
            places.setdefault((item.case.group, item.case.text), []).append(place)
    return list(islice((pair for group in places.values() for pair in permutations(group, 2)), most))


def crossed_frame(observed: Observed, pairs: Sequence[tuple[int, int]], effects: CutEffects | None) -> pd.DataFrame:
    """One row a crossed pair: mass and cut effect of the own cue beside those of the other's.

    Mass is the mean over all heads, from the word that reads: where that is the own cue, what it gives to its target
    stands beside what it gives to the other's cue. NaN where the mask hides the word. `effects` has one row a pair,
    its control column the other's cue, and may be None where edges cannot be cut.
    """
    rows = []
    for number, (place, other) in enumerate(pairs):
        own, theirs = observed.items[place], observed.items[other]
        own_mass, other_mass = _crossed_mass(observed, place, other)
        rows.append(
            {
                "case": own.case.id,
                "text": own.case.text,
                "target": own.case.target.cut(own.case.text),
                "own cue": unit_of(own),
                "other cue": unit_of(theirs),
                "mass on own": own_mass,
                "mass on other": other_mass,
                "effect of own": float(effects.cue[number, 0]) if effects is not None else np.nan,
                "effect of other": float(effects.control[number, 0]) if effects is not None else np.nan,
            }
        )
    return pd.DataFrame(rows)


def _crossed_mass(observed: Observed, place: int, other: int) -> tuple[float, float]:
    """Mass of the reading word's row on its partner, and on the other's cue."""
    own, theirs = (tuple(i for words in observed.items[at].cues for i in words) for at in (place, other))
    item = observed.items[place]
    turned = place in observed.cue_rows
    query, partner = (own, item.target) if turned else (item.target, own)
    row = (observed.cue_rows if turned else observed.target_rows).get(place)
    masses = [
        float(row[..., list(key)].sum(-1).mean())
        if row is not None and visible(item, query=query, key=key, causal=observed.causal)
        else np.nan
        for key in (partner, theirs)
    ]
    return masses[0], masses[1]


def observation_frame(
    observed_values: Floats,
    *,
    model: str,
    cases: Sequence[str],
    layers: Sequence[Layer],
    heads: Sequence[int],
    seed: int,
    weighting: Weighting = "none",
) -> pd.DataFrame:
    """A chunk of the observations table from values [case, measure, layer, head]; undefined values leave no row."""
    case, measure, layer, head = np.nonzero(~np.isnan(observed_values))
    columns = {
        "model": _category([model], np.zeros(len(case), dtype=np.int32)),
        "arm": _category(["base"], np.zeros(len(case), dtype=np.int32)),
        "seed": np.full(len(case), seed, dtype=np.int32),
        "case": _category(list(cases), case),
        "stack": pd.Categorical([layers[i].stack for i in range(len(layers))]).take(layer),
        "layer": np.array([item.index for item in layers], dtype=np.int32)[layer],
        "head": np.array(heads, dtype=np.int32)[head],
        "query": pd.Categorical([m.query for m in FOCUS]).take(measure),
        "key": pd.Categorical([m.key for m in FOCUS]).take(measure),
        "weighting": _category([weighting], np.zeros(len(case), dtype=np.int32)),
        "measure": pd.Categorical([m.name for m in FOCUS]).take(measure),
        "value": observed_values[case, measure, layer, head],
    }
    return pd.DataFrame(columns)


def cut_observation_frame(observed: Observed, cuts: CutEffects) -> pd.DataFrame:
    """The cut effects as observations; layer -1 means cut in every layer, head -1 all heads."""
    frames = []
    for key, table in (("cue", cuts.cue), ("control", cuts.control)):
        row, column = np.nonzero(~np.isnan(table))
        turned = np.array([cuts.directions[i] == "cue → target" for i in row], dtype=bool)
        frames.append(
            pd.DataFrame(
                {
                    "model": observed.model,
                    "arm": "base",
                    "seed": observed.seed,
                    "case": [observed.items[observed.cut_cases[i]].case.id for i in row],
                    "stack": cuts.stack,
                    "layer": np.array(cut_layers(cuts), dtype=np.int32)[column],
                    "head": -1,
                    "query": np.where(turned, "cue", "target"),
                    "key": np.where(turned & (key == "cue"), "target", key),
                    "weighting": "none",
                    "measure": "cut effect",
                    "value": table[row, column],
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def cut_layers(cuts: CutEffects) -> tuple[int, ...]:
    """The layer of each column of the cut effects; EVERYWHERE first."""
    return (EVERYWHERE, *cuts.layers)


def cut_units(observed: Observed) -> list[str]:
    """The unit of each row of the cut effects."""
    return [observed.units[place] for place in observed.cut_cases]


def _category(names: Sequence[str], codes: NDArray[np.integer]) -> Any:
    return pd.Categorical(list(names)).take(codes)


def _focus_frame(observed: Observed, measure: Measure) -> pd.DataFrame:
    found = bootstrap(observed.values(measure), observed.units, seed=observed.seed)
    return _head_frame(observed, measure, found, contrast="mean", control=None)


def _difference_frame(observed: Observed, cue: Measure, control: Measure) -> pd.DataFrame:
    matched = observed.values(control)
    found = bootstrap(observed.values(cue) - matched, observed.units, seed=observed.seed)
    control_mean = bootstrap(matched, observed.units, seed=observed.seed, resamples=1).mean
    return _head_frame(observed, cue, found, contrast=CONTRAST, control=control_mean)


def _head_frame(
    observed: Observed, measure: Measure, found: Estimate, *, contrast: str, control: NDArray[np.float64] | None
) -> pd.DataFrame:
    layers, heads = len(observed.layers), len(observed.heads)
    return _result_frame(
        observed,
        stack=np.repeat([layer.stack for layer in observed.layers], heads),
        layer=np.repeat([layer.index for layer in observed.layers], heads),
        head=np.tile(observed.heads, layers),
        query=measure.query,
        key=measure.key,
        measure=measure.name,
        contrast=contrast,
        found=found,
        control=None if control is None else control.ravel(),
    )


def _cut_frames(observed: Observed, cuts: CutEffects) -> list[pd.DataFrame]:
    frames = []
    tables = (("cue", "mean", cuts.cue), ("control", "mean", cuts.control), ("cue", CONTRAST, cuts.cue - cuts.control))
    control = bootstrap(cuts.control, cut_units(observed), seed=observed.seed, resamples=1).mean
    for key, contrast, table in tables:
        frames.append(
            _result_frame(
                observed,
                stack=cuts.stack,
                layer=np.array(cut_layers(cuts)),
                head=-1,
                query=" or ".join(sorted({direction.split(" → ")[0] for direction in cuts.directions if direction})),
                key=key,
                measure="cut effect",
                contrast=contrast,
                found=bootstrap(table, cut_units(observed), seed=observed.seed),
                control=control if contrast == CONTRAST else None,
            )
        )
    return frames


def _result_frame(
    observed: Observed, *, found: Estimate, control: NDArray[np.float64] | None, contrast: str, **columns: object
) -> pd.DataFrame:
    head = {"model": observed.model, **columns, "weighting": "none", "contrast": contrast, "unit": "cue word"}
    cells = found.mean.size
    frame = pd.DataFrame({name: value if np.ndim(value) else [value] * cells for name, value in head.items()})  # type: ignore[arg-type]
    frame["n"] = found.units.ravel()
    frame["estimate"] = found.mean.ravel()
    frame["low"], frame["high"] = found.low.ravel(), found.high.ravel()
    frame["control"] = np.nan if control is None else control
    frame["p"], frame["p_max"] = np.nan, np.nan  # means are described; minimal groups are tested (polysemy)
    order = ["model", "stack", "layer", "head", "query", "key", "weighting", "measure", "contrast", "unit"]
    return frame[[*order, "n", "estimate", "low", "high", "control", "p", "p_max"]]
