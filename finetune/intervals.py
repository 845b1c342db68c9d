"""A measure of the base, of the tuned model and of their difference, each with its interval, over the same units.

Every measure is a function of sums over items (correct answers and items, nats and tokens, cells of a confusion
table), so that a resample of units is a sum of the units drawn, with both models in the same draw.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]  # sums [..., quantity] -> the measure [...], NaN where it is not defined

RESAMPLES = 2000
FEWEST = 5  # units; below there is an estimate and no interval: resampling four numbers says nothing of a fifth
_BLOCK = 2_000_000  # drawn counts held at once
COLUMNS = ("measure", "part", "arm", "estimate", "low", "high", "units", "unit", "items")


@dataclass(frozen=True, kw_only=True, eq=False)
class Paired:
    """What both models gave for the same items, as quantities that may be added up."""

    base: Floats  # [item, quantity]
    tuned: Floats
    units: Sequence[str]  # of each item: what is drawn anew
    unit: str  # what a unit is, in a word
    part: str  # which items these are

    def __post_init__(self) -> None:
        """Refuse arms that are not of the same items."""
        if self.base.shape != self.tuned.shape or len(self.base) != len(self.units) or not len(self.base):
            raise ValueError(f"items of {self.part}: {self.base.shape}, {self.tuned.shape}, {len(self.units)} units")


def compared(given: Paired, measures: Mapping[str, Statistic], *, seed: int) -> pd.DataFrame:
    """Three rows a measure, base, tuned and difference (tuned minus base), with 95 % percentile intervals."""
    names, where = np.unique(np.asarray(given.units, dtype=str), return_inverse=True)
    sums = np.zeros((2, len(names), given.base.shape[1]))  # [arm, unit, quantity]
    for place, values in enumerate((given.base, given.tuned)):
        np.add.at(sums[place], where, values)
    rows = []
    for measure, statistic in measures.items():
        drawn = _resampled(sums, statistic, seed=seed)  # [arm, resample]
        whole = statistic(sums.sum(1))  # [arm]
        for arm, value, resampled in (
            ("base", whole[0], drawn[0]),
            ("tuned", whole[1], drawn[1]),
            ("difference", whole[1] - whole[0], drawn[1] - drawn[0]),
        ):
            low, high = interval(resampled, units=len(names))
            rows.append((measure, given.part, arm, float(value), low, high, len(names), given.unit, len(given.base)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def interval(resampled: Floats, *, units: int) -> tuple[float, float]:
    """The middle 95 % of resampled values; NaN for fewer than five units."""
    known = resampled[~np.isnan(resampled)]
    if units < FEWEST or not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def _resampled(sums: Floats, statistic: Statistic, *, seed: int) -> Floats:
    """The statistic of both arms over units drawn with replacement, the same draws for both, [arm, resample]."""
    random, units = np.random.default_rng(seed), sums.shape[1]
    found = []
    block = max(1, min(RESAMPLES, _BLOCK // units))
    for start in range(0, RESAMPLES, block):
        size = min(block, RESAMPLES - start)
        picks = random.integers(units, size=(size, units)) + units * np.arange(size)[:, None]
        counts = np.bincount(picks.ravel(), minlength=size * units).reshape(size, units)
        found.append(statistic(np.stack([counts @ arm for arm in sums])))
    return np.concatenate(found, axis=1)


def mean(sums: Floats) -> Floats:
    """The first quantity over the second, as of a sum and a count."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = sums[..., 0] / sums[..., 1]
    return found


def perplexity(sums: Floats) -> Floats:
    """Give e to the mean nats a token, of (nats, tokens, …)."""
    with np.errstate(over="ignore"):
        found: Floats = np.exp(mean(sums))
    return found


def bits_per_character(sums: Floats) -> Floats:
    """Bits over characters, of (nats, tokens, characters): the same for every tokenizer that reads the text."""
    found: Floats = mean(sums[..., [0, 2]]) / np.log(2)
    return found


def accuracy(sums: Floats) -> Floats:
    """The diagonal's share of a confusion table, of its cells [true × predicted]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.trace(_square(sums), axis1=-2, axis2=-1) / sums.sum(-1)
    return found


def macro_f1(sums: Floats) -> Floats:
    """The mean F1 of the classes that occur, as a truth or as an answer, of a confusion table's cells."""
    table = _square(sums)
    right = np.diagonal(table, axis1=-2, axis2=-1)
    both = table.sum(-1) + table.sum(-2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return _mean_known(2 * right / both)


def _mean_known(values: Floats) -> Floats:
    """The mean over the last axis without NaN; NaN where all are."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.where(known, values, 0.0).sum(-1) / known.sum(-1)
    return found


def _square(sums: Floats) -> Floats:
    classes = round(sums.shape[-1] ** 0.5)
    return sums.reshape(*sums.shape[:-1], classes, classes)
