"""Two models' states: how often each tells the sense right on the same cases, layer by layer, and what differs.

States of two models lie in two spaces, so states are never subtracted; right and wrong decisions are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.captures import Prepared
from probe.comparison import corrected_tests, paired_intervals
from probe.findings import Interval, Observed
from probe.measures.states import sense_accuracy
from probe.polysemy import SenseStates, sense_states
from probe.stats import unit_means
from probe.wordsenses import group_of, senses_to_tell, word_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class StateReading:
    """What one model's states tell of the sense, decision by decision."""

    states: SenseStates
    correct: Floats  # [case, state layer]: 1 right, 0 wrong, NaN undecided or not visible
    groups: tuple[str, ...]  # of each case
    best: int | None
    """The best state layer on the cases that are not `scored`; None where none of these could be decided."""
    scored: NDArray[np.bool_]  # [case]: those of the half of the groups that `best` was not chosen on


@dataclass(frozen=True, kw_only=True)
class StateGap:
    """Both models' accuracy on the same cases at a declared layer of each, and their difference by group."""

    at: Literal["last", "best"]
    layer_a: int
    layer_b: int
    a: Interval
    b: Interval
    gap: Interval
    p: float  # over both declared layers; NaN where there are too few groups for a test


def read_states(observed: Observed, compared: NDArray[np.bool_]) -> StateReading | None:
    """Decide the sense of the compared cases from one model's states; None without states or without two senses.

    Groups are halved by their names and the seed alone, so that two models are halved alike.
    """
    if observed.states is None or observed.context is None or not compared.any():
        return None
    items = [item for item, ok in zip(observed.items, compared, strict=True) if ok]
    states = observed.states[compared]
    found = sense_states(items, states, observed.context[compared], readout=observed.readout, seed=observed.seed)
    if found is None:
        return None
    kept, _ = senses_to_tell(items)
    places = [place for place, item in enumerate(items) if item.case.sense in kept.get(word_of(item), ())]
    items, states = [items[place] for place in places], states[places]
    groups = tuple(group_of(item) for item in items)
    scored = _second_half(groups, seed=observed.seed)
    first = np.flatnonzero(~scored)
    return StateReading(
        states=found,
        correct=_correct(items, states),
        groups=groups,
        # Centroids for the choice come from the first half as well: the other half must not speak in it.
        best=_best_layer(_correct([items[place] for place in first], states[first])),
        scored=scored,
    )


def state_gaps(a: StateReading, b: StateReading, *, seed: int) -> tuple[StateGap, ...]:
    """B − A of the accuracy at the last state layer, and at each model's best on one half, scored on the other."""
    everything, last = np.ones(len(a.groups), dtype=bool), (a.correct.shape[1] - 1, b.correct.shape[1] - 1)
    declared: list[tuple[Literal["last", "best"], int, int, NDArray[np.bool_]]] = [("last", *last, everything)]
    if a.best is not None and b.best is not None:
        declared.append(("best", a.best, b.best, a.scored))
    sides = [
        (np.where(scored, a.correct[:, layer_a], np.nan), np.where(scored, b.correct[:, layer_b], np.nan))
        for _, layer_a, layer_b, scored in declared
    ]
    # Both declared layers in one table: a group's sign is flipped in both at once.
    table, _ = unit_means(np.stack([other - one for one, other in sides], axis=1), a.groups)
    p = corrected_tests([table], seed=seed)[1][0]
    gaps = []
    for place, ((at, layer_a, layer_b, _), (one, other)) in enumerate(zip(declared, sides, strict=True)):
        if not np.isnan(other - one).all():
            a_mean, b_mean, gap = paired_intervals(one, other, a.groups, seed=seed)
            gaps.append(
                StateGap(at=at, layer_a=layer_a, layer_b=layer_b, a=a_mean, b=b_mean, gap=gap, p=float(p[place]))
            )
    return tuple(gaps)


def same_readings(a: StateReading | None, b: StateReading | None) -> bool:
    """Whether the states of both tell exactly the same."""
    if a is None or b is None:
        return a is b
    pairs = [(a.correct, b.correct)]
    pairs += [(getattr(a.states, name), getattr(b.states, name)) for name in ("silhouette", "within", "across")]
    return all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)


def state_gap_frame(gaps: Sequence[StateGap]) -> pd.DataFrame:
    """The paired tests on states: a table of its own in the run folder."""
    return pd.DataFrame(
        {
            "at": [one.at for one in gaps],
            "state layer A": [one.layer_a for one in gaps],
            "state layer B": [one.layer_b for one in gaps],
            "groups": [one.gap.units for one in gaps],
            "accuracy A": [one.a.mean for one in gaps],
            "accuracy B": [one.b.mean for one in gaps],
            "estimate": [one.gap.mean for one in gaps],
            "low": [one.gap.low for one in gaps],
            "high": [one.gap.high for one in gaps],
            "p_max": [one.p for one in gaps],
        }
    )


def _correct(items: Sequence[Prepared], states: NDArray[np.floating]) -> Floats:
    """Nearest centroid among the senses of each word with one group left out: [case, state layer]."""
    correct = np.full(states.shape[:2], np.nan)
    words = [word_of(item) for item in items]
    for word in dict.fromkeys(words):
        places = [place for place, other in enumerate(words) if other == word]
        senses = [items[place].case.sense for place in places]
        decided = sense_accuracy(states[places], senses, [group_of(items[place]) for place in places])
        correct[places] = np.where(decided.visible, decided.correct, np.nan)
    return correct


def _second_half(groups: Sequence[str], *, seed: int) -> NDArray[np.bool_]:
    names = sorted(set(groups))
    shuffled = np.random.default_rng(seed).permutation(len(names))
    choosing = {names[index] for index in shuffled[: len(names) // 2]}
    return np.array([group not in choosing for group in groups], dtype=bool)


def _best_layer(correct: Floats) -> int | None:
    """The state layer that is right most often; the first of equals."""
    if np.isnan(correct).all():
        return None
    known = ~np.isnan(correct).all(0)
    means = np.full(correct.shape[1], -1.0)
    means[known] = np.nanmean(correct[:, known], axis=0)
    return int(means.argmax())
