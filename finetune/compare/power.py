"""What the data could show: before anything is trained, by the base model's answers, and afterwards by more seeds."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from finetune.compare.items import BASE, MEASURES
from finetune.compare.pairing import Cells, Floats, cells_of, pair_of, sums_of
from finetune.errors import DataError
from finetune.intervals import FEWEST, RESAMPLES

CLAIMED = ("task", "forgetting")  # the families that verdicts are given on
ERRORS = 2.8  # standard errors: seen with 80 % power at 5 %, two-sided (1.96 + 0.84)
SEEDS_TO_CLAIM = 8  # below, nothing is said of other seeds
SHARES_CHANGED = (0.05, 0.1, 0.2)  # of the items whose answer is right in one arm and wrong in the other
CORRELATIONS = (0.5, 0.8)  # of an item's value in both arms
VISIBLE_COLUMNS = ("measure", "part", "assuming", "assumed", "visible", "units", "items", "design")


def visible_difference(
    items: pd.DataFrame,
    *,
    shares: Sequence[float] = SHARES_CHANGED,
    correlations: Sequence[float] = CORRELATIONS,
) -> pd.DataFrame:
    """The smallest difference that these items can show with 80 % power at 5 %, of the base arm's items alone.

    A row for each task and forgetting measure, part and assumption. Where items are right or wrong (all values 0 or 1):
    assuming "changed", a share of items whose answer differs between the arms; visible is infinite where so few
    changes could not be shown though all went one way. Else: assuming "correlation" of both arms' values, equally
    spread. design: how many times the variance of the mean is that of independent items (at least 1), because items of
    a unit go together. NaN below five units. For one test without correction, given the seeds. DataError without items
    of the base arm.
    """
    base = items[items["arm"] == BASE]
    if not len(base):
        raise DataError(f"no items of the arm {BASE}: what can be seen is read off them")
    rows = [row for cells in cells_of(base) for row in _visible(cells, shares, correlations)]
    return pd.DataFrame(rows, columns=list(VISIBLE_COLUMNS))


def more_seeds(differences: Floats, *, unit_error: float, seed: int) -> tuple[float, float] | None:
    """How many more seeds would show the mean difference found, were it the true one: lowest and highest (95 %).

    differences: of each seed; unit_error: the mean's standard error over units given the seeds, which no number of
    seeds takes away, so that a bound may be infinite. The range is that of the spread over seeds, drawn anew. None
    below eight seeds, where the spread is not known well enough.
    """
    seeds = len(differences)
    if seeds < SEEDS_TO_CLAIM or math.isnan(unit_error):
        return None
    picks = np.random.default_rng([seed, seeds]).integers(seeds, size=(RESAMPLES, seeds))
    spread = differences[picks].var(1, ddof=1)
    room = (differences.mean() / ERRORS) ** 2 - unit_error**2
    needed = np.ceil(spread / room) if room > 0 else np.full(RESAMPLES, np.inf)
    low, high = np.quantile(needed, [0.025, 0.975], method="inverted_cdf")  # no mean of a number and infinity
    return max(float(low) - seeds, 0.0), max(float(high) - seeds, 0.0)


def _visible(
    cells: Cells, shares: Sequence[float], correlations: Sequence[float]
) -> Iterator[tuple[str, str, str, float, float, int, int, float]]:
    if MEASURES[cells.measure.name].family not in CLAIMED:
        return
    pair = pair_of(cells, BASE)
    values = cells.values[pair.rows, pair.one[0]]
    weights, units = cells.weights[pair.rows], len(np.unique(cells.places[pair.rows]))
    error, alone = _errors(cells, values)
    design = max(1.0, (error / alone) ** 2) if alone > 0 else 1.0
    told = (units, len(values), design if units >= FEWEST else math.nan)
    right_or_wrong = bool(np.isin(values, (0.0, 1.0)).all())
    for assumed in shares if right_or_wrong else correlations:
        if right_or_wrong:
            visible = _by_changes(assumed, weights.sum() ** 2 / (weights**2).sum() / design)
        else:
            visible = ERRORS * error * math.sqrt(2 * (1 - assumed)) if error > 0 else math.nan
        assuming = "changed" if right_or_wrong else "correlation"
        yield (cells.measure.name, cells.part, assuming, assumed, visible if units >= FEWEST else math.nan, *told)


def _by_changes(changed: float, items: float) -> float:
    """The difference d with d = ERRORS · √((changed − d²) / items): a change is −1 or 1, and d their mean."""
    visible = ERRORS * math.sqrt(changed / (items + ERRORS**2))
    return visible if visible <= changed else math.inf


def _errors(cells: Cells, values: Floats) -> tuple[float, float]:
    """Standard errors of the base's measure: with units as they are, and as if all items were independent."""
    pair = pair_of(cells, BASE)
    sums, weights = sums_of(cells, pair.rows), cells.weights[pair.rows]
    total = weights.sum()
    mean = float(weights @ values / total)
    by_unit = sums.values[:, pair.one[0]] - sums.weights * mean
    slope = math.exp(mean) if sums.exp else 1.0
    together, alone = (
        math.sqrt(float((off**2).sum()) * len(off) / (len(off) - 1)) / total if len(off) > 1 else math.nan
        for off in (by_unit, weights * (values - mean))
    )
    return slope * together, slope * alone
