"""Paired estimates of every contrast and measure, with intervals and p values: an items table in, tables out.

Arms are paired over items and, where both learn, over seeds. Below eight seeds intervals are over units given these
seeds, and the spread over seeds is told as its lowest and highest; from eight on units and seeds are drawn anew both.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import pandas as pd

from finetune.compare.contrasts import Contrast, Why, contrasts_of
from finetune.compare.items import Family
from finetune.compare.pairing import Cells, Floats, Missing, Pair, Sums, cells_of, pair_of, sums_of
from finetune.compare.power import CLAIMED, ERRORS, SEEDS_TO_CLAIM, more_seeds
from finetune.compare.resampling import drawn_seeds, drawn_values, exchange_p, holm, student_interval, student_p
from finetune.intervals import FEWEST

NAN = math.nan
CHANGED_COLUMNS = ("part", "item", "unit", "to_right", "to_wrong", "seeds")


@dataclass(frozen=True, kw_only=True)
class ArmValue:
    """A row of `values_of`: what one arm reaches, over all of its items."""

    arm: str
    family: Family
    measure: str
    part: str
    estimate: float  # mean over seeds
    low: float  # 95 %; NaN below five units
    high: float
    items: int
    units: int
    items_left_out: int  # that not all of the arm's seeds have
    seeds: int  # 0: the arm learns nothing
    seed_low: float  # the lowest and the highest seed
    seed_high: float
    across_seeds: bool  # the interval is over units and seeds; else over units given these seeds


@dataclass(frozen=True, kw_only=True)
class Result:
    """A row of `results_of`: arm less against, over the items and seeds that both have."""

    arm: str
    against: str
    why: Why
    family: Family
    measure: str
    part: str
    arm_value: float
    against_value: float
    estimate: float
    low: float
    high: float
    error: float  # standard error of the difference, over what the interval is over
    visible: float  # 2.8 errors: what would have been seen with 80 % power at 5 %, before any correction
    p_units: float  # labels exchanged within units, given these seeds; NaN below five units
    p: float  # the same; across seeds the larger of it and Student's p of estimate / error
    items: int
    units: int
    items_left_out: int  # that only one of both has
    units_left_out: int
    seeds: int
    seeds_left_out: int
    seed_low: float
    seed_high: float
    across_seeds: bool
    more_seeds_low: float  # NaN below eight seeds
    more_seeds_high: float  # may be infinite
    missing: Missing


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """An estimate and what resampling tells of it."""

    estimate: float
    low: float
    high: float
    error: float
    degrees: float  # of freedom, of the error
    unit_error: float  # given the seeds
    by_seed: Floats
    across_seeds: bool


def results_of(items: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Every contrast whose arms are there, on every measure and part that either arm has; deterministic.

    The columns of `Result`, and p_corrected with tests, the number of p values that it is corrected over by Holm: those
    of the families task and forgetting together, those of attention and causes together. All rows are to be printed,
    or all p values corrected anew. DataError as `cells_of`.
    """
    contrasts = contrasts_of(str(arm) for arm in items["arm"])
    rows = [asdict(row) for cells in cells_of(items) for row in _results(cells, contrasts, seed=seed)]
    frame = pd.DataFrame(rows, columns=[field.name for field in fields(Result)])
    claimed = frame["family"].isin(CLAIMED)
    frame["p_corrected"], frame["tests"] = NAN, 0
    for group in (np.flatnonzero(claimed), np.flatnonzero(~claimed)):
        p = frame["p"].to_numpy(dtype=np.float64)[group]
        frame.loc[group, "p_corrected"] = holm(p)
        frame.loc[group, "tests"] = int((~np.isnan(p)).sum())
    return frame


def values_of(items: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """What each arm reaches on each measure and part, by the columns of `ArmValue`."""
    rows = [asdict(row) for cells in cells_of(items) for row in _values(cells, seed=seed)]
    return pd.DataFrame(rows, columns=[field.name for field in fields(ArmValue)])


def changed(items: pd.DataFrame, arm: str, against: str) -> pd.DataFrame:
    """Items answered right by one of both arms and wrong by the other, those of the most seeds first.

    to_right: in how many seeds an item is wrong in `against` and right in `arm`; to_wrong: the other way round; seeds:
    how many pairs there are. By measure accuracy.
    """
    rows: list[tuple[str, str, str, int, int, int]] = []
    for cells in cells_of(items[items["measure"] == "accuracy"]):
        pair = pair_of(cells, arm, against)
        moved = pair.differences(cells.values)  # [item, seed]
        to_right, to_wrong = (moved > 0).sum(1), (moved < 0).sum(1)
        for place in np.flatnonzero(pair.rows & ((to_right > 0) | (to_wrong > 0))):
            counts = (int(to_right[place]), int(to_wrong[place]), len(pair.one))
            rows.append((cells.part, cells.items[place], cells.units[place], *counts))
    rows.sort(key=lambda row: (-abs(row[3] - row[4]), -row[3]))
    return pd.DataFrame(rows, columns=list(CHANGED_COLUMNS))


def _results(cells: Cells, contrasts: Sequence[Contrast], *, seed: int) -> Iterator[Result]:
    pairs = [pair_of(cells, one.arm, one.against) for one in contrasts]
    found: dict[int, Result] = {}
    for places, sums in _alike(cells, pairs):
        chosen = [pairs[place] for place in places]
        drawn = drawn_values(sums, seed=seed)
        tested = len(sums.weights) >= FEWEST
        p_units = exchange_p(sums, chosen, seed=seed) if tested else [NAN] * len(chosen)
        for place, p in zip(places, p_units, strict=True):
            found[place] = _result(cells, contrasts[place], pairs[place], sums, drawn, p_units=p, seed=seed)
    for place, (contrast, pair) in enumerate(zip(contrasts, pairs, strict=True)):
        if pair.missing and {contrast.arm, contrast.against} & {arm for arm, _ in cells.runs}:
            yield _nothing(cells, contrast, pair)
        elif not pair.missing:
            yield found[place]


def _alike(cells: Cells, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], Sums]]:
    """Pairs over the same items, which share what is drawn."""
    groups: dict[bytes, list[int]] = {}
    for place, pair in enumerate(pairs):
        if not pair.missing:
            groups.setdefault(pair.rows.tobytes(), []).append(place)
    for places in groups.values():
        yield places, sums_of(cells, pairs[places[0]].rows)


def _result(
    cells: Cells, contrast: Contrast, pair: Pair, sums: Sums, values: Floats, *, p_units: float, seed: int
) -> Result:
    drawn = _drawn(pair, sums, values, seed=seed)
    whole = sums.measured(sums.values.sum(0), sums.weights.sum())
    units, p = len(sums.weights), p_units
    if drawn.across_seeds:
        p = max(p, student_p(drawn.estimate, error=drawn.error, degrees=drawn.degrees))
    more = more_seeds(drawn.by_seed, unit_error=drawn.unit_error, seed=seed) if drawn.across_seeds else None
    return Result(
        arm=contrast.arm, against=contrast.against, why=contrast.why, family=cells.measure.family,
        measure=cells.measure.name, part=cells.part, arm_value=float(whole[list(pair.one)].mean()),
        against_value=float(whole[list(pair.other)].mean()), estimate=drawn.estimate, low=drawn.low, high=drawn.high,
        error=drawn.error, visible=ERRORS * drawn.error, p_units=p_units, p=p, items=int(pair.rows.sum()), units=units,
        items_left_out=pair.items_left_out, units_left_out=_units_left_out(cells, pair), seeds=pair.seeds,
        seeds_left_out=pair.seeds_left_out, seed_low=float(drawn.by_seed.min()), seed_high=float(drawn.by_seed.max()),
        across_seeds=drawn.across_seeds, more_seeds_low=more[0] if more else NAN,
        more_seeds_high=more[1] if more else NAN, missing="",
    )  # fmt: skip


def _nothing(cells: Cells, contrast: Contrast, pair: Pair) -> Result:
    """The row of two arms that have nothing to be compared by."""
    return Result(
        arm=contrast.arm, against=contrast.against, why=contrast.why, family=cells.measure.family,
        measure=cells.measure.name, part=cells.part, arm_value=NAN, against_value=NAN, estimate=NAN, low=NAN, high=NAN,
        error=NAN, visible=NAN, p_units=NAN, p=NAN, items=0, units=0, items_left_out=pair.items_left_out,
        units_left_out=_units_left_out(cells, pair), seeds=pair.seeds, seeds_left_out=pair.seeds_left_out,
        seed_low=NAN, seed_high=NAN, across_seeds=False, more_seeds_low=NAN, more_seeds_high=NAN, missing=pair.missing,
    )  # fmt: skip


def _values(cells: Cells, *, seed: int) -> Iterator[ArmValue]:
    arms = list(dict.fromkeys(arm for arm, _ in cells.runs))
    pairs = [pair_of(cells, arm) for arm in arms]
    found: dict[int, ArmValue] = {}
    for places, sums in _alike(cells, pairs):
        values = drawn_values(sums, seed=seed)
        for place in places:
            pair, drawn = pairs[place], _drawn(pairs[place], sums, values, seed=seed)
            found[place] = ArmValue(
                arm=arms[place], family=cells.measure.family, measure=cells.measure.name, part=cells.part,
                estimate=drawn.estimate, low=drawn.low, high=drawn.high, items=int(pair.rows.sum()),
                units=len(sums.weights), items_left_out=pair.items_left_out, seeds=pair.seeds,
                seed_low=float(drawn.by_seed.min()), seed_high=float(drawn.by_seed.max()),
                across_seeds=drawn.across_seeds,
            )  # fmt: skip
    for place in sorted(found):
        yield found[place]


def _drawn(pair: Pair, sums: Sums, values: Floats, *, seed: int) -> _Drawn:
    """Estimate, interval and standard error of a pair, of all runs' measures over units drawn anew."""
    units, seeds = len(sums.weights), pair.seeds
    by_seed = pair.differences(sums.measured(sums.values.sum(0), sums.weights.sum()))
    estimate, across = float(by_seed.mean()), seeds >= SEEDS_TO_CLAIM
    if units < FEWEST:
        return _Drawn(
            estimate=estimate, low=NAN, high=NAN, error=NAN, degrees=NAN, unit_error=NAN, by_seed=by_seed,
            across_seeds=across,
        )  # fmt: skip
    differences = pair.differences(values)  # [resample, seed]
    given = differences.mean(1)
    # Units drawn from themselves spread too little, by (units - 1) / units.
    unit_error = float(given.std(ddof=1)) * math.sqrt(units / (units - 1))
    seed_error = float(by_seed.std(ddof=1)) / math.sqrt(seeds) if across else 0.0
    error = math.hypot(unit_error, seed_error)
    known = unit_error**4 / (units - 1) + (seed_error**4 / (seeds - 1) if across else 0.0)
    degrees = error**4 / known if known > 0 else float(units - 1)  # Satterthwaite 1946
    resampled = drawn_seeds(differences, seed=seed) if across else given
    low, high = student_interval(resampled, error=error, degrees=degrees)
    return _Drawn(
        estimate=estimate, low=low, high=high, error=error, degrees=degrees, unit_error=unit_error, by_seed=by_seed,
        across_seeds=across,
    )  # fmt: skip


def _units_left_out(cells: Cells, pair: Pair) -> int:
    """Units with numbers in some of the pair's columns, and no item that all of them have."""
    known = ~np.isnan(cells.values[:, [*pair.one, *pair.other]]).all(1)
    return len(set(cells.places[known].tolist()) - set(cells.places[pair.rows].tolist()))
