"""Sign-flip tests of paired differences, with the correction that claims about heads need.

The unit is the cue word: each has one difference, cue minus its own neutral word in the same slot, averaged over the
sentences that share it. Under the null hypothesis a difference is as likely to be its negative, so signs are flipped:
all 2**n ways where these are at most `flips`, else `flips` random ways, p = (b + 1) / (B + 1). Claims use max-T
(Westfall and Young 1993): the largest |t| over every head, direction and contrast under each flip is the reference of
all. Benjamini and Hochberg (1995) only colours maps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BLOCK = 500  # flips computed at once


@dataclass(frozen=True, kw_only=True, eq=False)
class FlipTest:
    """The test of one family of differences; every array has the shape of one unit's values."""

    t: Floats  # mean / standard error; 0 where all differences are 0
    p: Floats  # two-sided, uncorrected; NaN below two units
    units: NDArray[np.int64]
    flips: int
    exact: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """Several contrasts tested together, with p values that hold for all of them at once."""

    tests: tuple[FlipTest, ...]
    p_max: tuple[Floats, ...]  # max-T over all cells of all contrasts


def flip_tests(contrasts: Sequence[NDArray[np.floating]], *, seed: int, flips: int = 20_000) -> Family:
    """Test the mean of each contrast's differences against zero; contrasts are arrays [unit, ...], NaN = not defined.

    Units of different contrasts are flipped independently. A cell that fewer than two units define has p NaN and
    takes no part in max-T.
    """
    tables = [np.asarray(values, dtype=np.float64).reshape(len(values), -1) for values in contrasts]
    observed = [np.abs(_t(table.sum(0, where=~np.isnan(table)), table)) for table in tables]
    exact = all(2 ** len(table) <= flips for table in tables) and len(tables) == 1
    total = 2 ** len(tables[0]) if exact else flips
    above = [np.zeros(t.shape, dtype=np.int64) for t in observed]
    above_max = [np.zeros(t.shape, dtype=np.int64) for t in observed]
    for signs in _sign_blocks([len(table) for table in tables], total, exact=exact, seed=seed):
        flipped = [np.abs(_t(block @ np.nan_to_num(table), table)) for block, table in zip(signs, tables, strict=True)]
        largest = np.max([np.nanmax(np.where(np.isnan(t), 0.0, t), axis=1) for t in flipped], axis=0)  # [flip]
        for place, t in enumerate(observed):
            # A hair's tolerance: equal sums in another order must count as equal.
            above[place] += (flipped[place] >= t - 1e-12).sum(0)
            above_max[place] += (largest[:, None] >= t - 1e-12).sum(0)
    tests, corrected = [], []
    for values, table, t, b, b_max in zip(contrasts, tables, observed, above, above_max, strict=True):
        shape = np.shape(values)[1:]
        units = (~np.isnan(table)).sum(0)
        thin = units < 2
        # An exact test counts the identity among its flips already.
        p = b / total if exact else (b + 1) / (total + 1)
        p_max = b_max / total if exact else (b_max + 1) / (total + 1)
        signed = _t(table.sum(0, where=~np.isnan(table)), table)
        tests.append(
            FlipTest(
                t=signed.reshape(shape),
                p=np.where(thin, np.nan, p).reshape(shape),
                units=units.reshape(shape),
                flips=total,
                exact=exact,
            )
        )
        corrected.append(np.where(thin, np.nan, p_max).reshape(shape))
        del t
    return Family(tests=tuple(tests), p_max=tuple(corrected))


def benjamini_hochberg(p: NDArray[np.floating], *, rate: float = 0.05) -> NDArray[np.bool_]:
    """Which cells to colour at a false discovery rate; NaN cells take no part. For pictures, not for claims."""
    flat = np.asarray(p, dtype=np.float64).ravel()
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    bounds = rate * np.arange(1, len(order) + 1) / max(len(order), 1)
    passed = np.flatnonzero(flat[order] <= bounds)
    marked = np.zeros(flat.shape, dtype=bool)
    if len(passed):
        marked[order[: passed[-1] + 1]] = True
    return marked.reshape(np.shape(p))


def fewest_units(tests: int, *, level: float = 0.05) -> int:
    """How many units a contrast needs so that its smallest possible p value lies below level / tests."""
    units = 1
    while 2 / 2**units >= level / tests:
        units += 1
    return units


def _t(sums: Floats, table: Floats) -> Floats:
    """T of means from sums [..., cell]: flipping signs leaves the sum of squares as it is. 0 where all are 0."""
    n = (~np.isnan(table)).sum(0)
    squares = np.nansum(table**2, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.maximum(squares - sums**2 / n, 0.0) / (n - 1)
        t = (sums / n) / np.sqrt(variance / n)
    # No spread: without any difference there is no evidence, with equal differences there is as much as can be.
    t = np.where(np.isnan(t), 0.0, t)
    capped: Floats = np.clip(np.where(n < 2, np.nan, t), -1e12, 1e12)
    return capped


def _sign_blocks(units: Sequence[int], total: int, *, exact: bool, seed: int) -> Iterator[list[Floats]]:
    """Blocks of flips, for each contrast [flip, unit] of -1 and 1."""
    rng = np.random.default_rng(seed)
    for start in range(0, total, _BLOCK):
        size = min(_BLOCK, total - start)
        if exact:
            numbers = np.arange(start, start + size)[:, None]
            yield [(1 - 2 * ((numbers >> np.arange(units[0])) & 1)).astype(np.float64)]
        else:
            yield [1.0 - 2.0 * rng.integers(0, 2, size=(size, count)).astype(np.float64) for count in units]
