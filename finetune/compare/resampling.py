"""Units drawn anew, labels exchanged, and p values corrected: numbers in, numbers out."""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from finetune.compare.pairing import Floats, Pair, Sums
from finetune.intervals import RESAMPLES

FLIPS = 20_000
_BLOCK = 2_000_000  # drawn numbers held at once, 16 MB
_ROUNDING = 1e-9  # of the largest statistic: equal sums in another order must count as equal


def drawn_values(sums: Sums, *, seed: int) -> Floats:
    """The measure of every run over units drawn with replacement, the same draws for all runs: [resample, run]."""
    random, units = np.random.default_rng(seed), len(sums.weights)
    found = []
    for size in _blocks(RESAMPLES, units):
        picks = random.integers(units, size=(size, units)) + units * np.arange(size)[:, None]
        counts = np.bincount(picks.ravel(), minlength=size * units).reshape(size, units).astype(np.float64)
        found.append(sums.measured(counts @ sums.values, counts @ sums.weights))
    return np.concatenate(found)


def drawn_seeds(differences: Floats, *, seed: int) -> Floats:
    """Means over seeds drawn with replacement, of differences by resample and seed: [resample].

    On top of units drawn anew this is the crossed ("pigeonhole") bootstrap of Owen (2007): it counts what belongs to
    neither units nor seeds alone more than once, so its intervals are rather too wide than too narrow.
    """
    resamples, seeds = differences.shape
    picks = np.random.default_rng([seed, seeds]).integers(seeds, size=(resamples, seeds))
    return np.asarray(np.take_along_axis(differences, picks, axis=1).mean(1), dtype=np.float64)


def exchange_p(sums: Sums, pairs: Sequence[Pair], *, seed: int, flips: int = FLIPS) -> list[float]:
    """Two-sided p of each pair: both arms' labels exchanged within a unit, all its items and seeds together.

    All 2**units ways where these are at most `flips`, and p their exact share; else `flips` random ways,
    p = (b + 1) / (B + 1). It holds for these seeds: what other seeds would give is no part of it.
    """
    moved = [pair.differences(sums.values) for pair in pairs]  # [unit, seed]
    level = [sums.values[:, list(pair.one)].sum(0) * 2 - rise.sum(0) for pair, rise in zip(pairs, moved, strict=True)]
    observed = [_statistic(sums, both, rise.sum(0)) for both, rise in zip(level, moved, strict=True)]
    most = [_statistic(sums, both, np.abs(rise).sum(0)) for both, rise in zip(level, moved, strict=True)]
    ends = np.cumsum([rise.shape[1] for rise in moved])[:-1]
    beside = np.concatenate(moved, axis=1)
    exact = 2 ** len(sums.weights) <= flips
    above = np.zeros(len(pairs), dtype=np.int64)
    for kept in _exchanges(len(sums.weights), flips, exact=exact, seed=seed):
        flipped = np.split(2 * (kept @ beside) - beside.sum(0), ends, axis=1)
        for place, rise in enumerate(flipped):
            least = observed[place] - _ROUNDING * most[place]
            # Not "at least": what is no number would then speak for a difference.
            above[place] += int((~(_statistic(sums, level[place], rise) < least)).sum())
    # An exact test counts the labels as they are among its ways already.
    return [float(p) for p in (above / 2 ** len(sums.weights) if exact else (above + 1) / (flips + 1))]


def student_interval(resampled: Floats, *, error: float, degrees: float) -> tuple[float, float]:
    """The middle of resampled values, so much of it as a 95 % interval of Student's t would hold.

    Hesterberg's expanded percentile interval (2015). The plain one is too narrow where units are few, because they are
    drawn from themselves and their spread is not known: of five it holds the truth in 84 % of cases, of twelve in 91 %;
    this one in 91 % and 95 %.
    """
    spread = float(resampled.std(ddof=1))
    tail = ndtr(-stdtrit(degrees, 0.975) * error / spread) if spread > 0 else 0.5
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(low), float(high)


def student_p(estimate: float, *, error: float, degrees: float) -> float:
    """Two-sided p of Student's t of an estimate and its standard error."""
    if error == 0:
        return 1.0 if estimate == 0 else 0.0
    return float(2 * stdtr(degrees, -abs(estimate) / error))


def holm(p: Sequence[float] | Floats) -> Floats:
    """Correct p values by Holm (1979) over those that are numbers; NaN stays NaN and is no test."""
    given = np.asarray(p, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(given))
    order = known[np.argsort(given[known], kind="stable")]
    corrected = np.full(given.shape, np.nan)
    stepped = given[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return corrected


def _statistic(sums: Sums, level: Floats, rise: Floats) -> Floats:
    """|difference|, mean over seeds, of what both arms' sums are together and of how far they lie apart [..., seed]."""
    weight = np.asarray(sums.weights.sum())
    apart = sums.measured((level + rise) / 2, weight) - sums.measured((level - rise) / 2, weight)
    return np.asarray(np.abs(apart.mean(-1)), dtype=np.float64)


def _exchanges(units: int, flips: int, *, exact: bool, seed: int) -> Iterator[Floats]:
    """Blocks of ways, [way, unit]: 1 where a unit keeps its labels, 0 where they are exchanged."""
    random, start = np.random.default_rng(seed), 0
    for size in _blocks(2**units if exact else flips, units):
        if exact:
            yield ((np.arange(start, start + size)[:, None] >> np.arange(units)) & 1).astype(np.float64)
        else:
            # Whole words of 32 bits a way, so that the same is drawn whatever the size of a block.
            drawn = random.integers(256, size=(size, 4 * -(-units // 32)), dtype=np.uint8)
            yield np.unpackbits(drawn, axis=1, count=units).astype(np.float64)
        start += size


def _blocks(total: int, units: int) -> Iterator[int]:
    """Sizes that add up to total, so that memory does not grow with units times draws."""
    block = max(1, min(total, _BLOCK // max(units, 1)))
    for start in range(0, total, block):
        yield min(block, total - start)
