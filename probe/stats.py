"""Estimates with intervals: observations in, results out.

Intervals are percentile bootstraps over units (cue words, not sentences: sentences that share a cue word are
averaged first). They describe these sentences under this model; they are no test of a head, see the README.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Floats = NDArray[np.float64]
LEVEL = 0.05
"""A corrected p below it may be claimed."""
FEWEST_FOR_INTERVAL = 5
"""Below so many units there is a mean and no interval: resampling four numbers says nothing of a fifth."""
_BLOCK = 500_000  # drawn counts held at once, 4 MB


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """Means over units with their interval; every array has the shape of one case's values."""

    mean: Floats
    low: Floats
    high: Floats
    units: NDArray[np.int64]  # how many units had a value


def unit_means(values: NDArray[np.floating], units: Sequence[str]) -> tuple[Floats, tuple[str, ...]]:
    """Average the cases of each unit: values [case, ...] -> [unit, ...] in order of first appearance; NaN left out."""
    names = tuple(dict.fromkeys(units))
    place = {name: index for index, name in enumerate(names)}
    which = np.array([place[unit] for unit in units])
    known = ~np.isnan(values)
    shape = (len(names), *values.shape[1:])
    # [unit, case], a one where the case belongs to the unit
    members = csr_array((np.ones(len(which)), (which, np.arange(len(which)))), shape=(len(names), len(which)))
    total = members @ np.where(known, values, 0.0).reshape(len(which), -1).astype(np.float64)
    count = members @ known.reshape(len(which), -1).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (total / count).reshape(shape), names


def bootstrap(
    values: NDArray[np.floating], units: Sequence[str], *, seed: int, resamples: int = 2000, level: float = 0.95
) -> Estimate:
    """Mean over units with a percentile bootstrap interval; values [case, ...], NaN = not defined.

    The interval is NaN below FEWEST_FOR_INTERVAL units. Deterministic for a seed.
    """
    means, names = unit_means(values, units)
    flat = means.reshape(len(names), -1)
    known = ~np.isnan(flat)
    filled = np.where(known, flat, 0.0)
    n = known.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(0) / n
    resampled = _resampled_means(filled, known, resamples=resamples, seed=seed)  # [resample, cell]
    low, high = _percentiles(resampled, level)
    thin = n < FEWEST_FOR_INTERVAL
    low[thin], high[thin] = np.nan, np.nan
    shape = means.shape[1:]
    return Estimate(mean=mean.reshape(shape), low=low.reshape(shape), high=high.reshape(shape), units=n.reshape(shape))


def _resampled_means(filled: Floats, known: NDArray[np.bool_], *, resamples: int, seed: int) -> Floats:
    """Means over units drawn with replacement, in blocks so that memory does not grow with units × resamples."""
    rng, units = np.random.default_rng(seed), len(filled)
    block = max(1, min(resamples, _BLOCK // max(units, 1)))
    # A measure is mostly defined in all layers and heads or in none: then one column counts for all.
    alike = bool((known == known[:, :1]).all())
    defined = known[:, : 1 if alike else None].astype(np.float64)
    means = []
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        draws = _draws(rng, units, size=size)
        with np.errstate(invalid="ignore", divide="ignore"):
            means.append((draws @ filled) / (draws @ defined))
    return np.concatenate(means)


def _draws(rng: np.random.Generator, units: int, *, size: int) -> Floats:
    """How often each unit is drawn: [resample, unit]; counted picks are ten times as fast as multinomial numbers."""
    picks = rng.integers(units, size=(size, units)) + units * np.arange(size)[:, None]
    return np.bincount(picks.ravel(), minlength=size * units).reshape(size, units).astype(np.float64)


def _percentiles(resampled: Floats, level: float) -> tuple[Floats, Floats]:
    """Interval bounds by cell; resamples that drew no defined unit are left out."""
    tails = [(1 - level) / 2, (1 + level) / 2]
    if not np.isnan(resampled).any():
        low, high = np.quantile(resampled, tails, axis=0)
        return low, high
    bounds = np.full((2, resampled.shape[1]), np.nan)
    defined = ~np.isnan(resampled).all(0)
    bounds[:, defined] = np.nanquantile(resampled[:, defined], tails, axis=0)
    return bounds[0], bounds[1]
