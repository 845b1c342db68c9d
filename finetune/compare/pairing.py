"""The items of all arms side by side, and of two arms those that may be compared: the same items, seed against seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finetune.compare.items import COLUMNS, MEASURES, UNTRAINED, Measure
from finetune.errors import DataError

Floats = NDArray[np.float64]
Missing = Literal["", "absent", "no_common_seeds", "no_common_items"]  # "": they can be compared
_KEY = ["measure", "part"]
_MOST_NATS = 700  # e to the 710 is infinite


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """The numbers that all runs gave for the items of one measure and part."""

    measure: Measure
    part: str
    runs: tuple[tuple[str, int], ...]  # (arm, seed) of each column
    items: tuple[str, ...]
    units: tuple[str, ...]  # of each item
    values: Floats  # [item, run], NaN where a run has no number for the item
    weights: Floats  # [item]

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Of each item its unit's place among all units."""
        return np.unique(np.asarray(self.units, dtype=str), return_inverse=True)[1].astype(np.int64)

    def columns(self, arm: str) -> dict[int, int]:
        """The column of each seed of an arm."""
        return {seed: place for place, (name, seed) in enumerate(self.runs) if name == arm}


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two arms' columns, seed against seed, and the items that all of them have; `other` is empty for one arm alone."""

    one: tuple[int, ...]
    other: tuple[int, ...]
    rows: NDArray[np.bool_]  # [item]
    seeds: int  # trained seeds; 0 where neither arm is trained
    seeds_left_out: int  # that only one of both has
    items_left_out: int  # that some of the columns have and others lack
    missing: Missing

    def differences(self, values: Floats) -> Floats:
        """Arm less against, of the runs' values [..., run], by seed [..., seed]."""
        one = values[..., list(self.one)]
        return one - values[..., list(self.other)] if self.other else one


@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """The items of each unit added up, so that units drawn anew are a sum of these."""

    values: Floats  # [unit, run], value times weight
    weights: Floats  # [unit]
    exp: bool

    def measured(self, values: Floats, weights: Floats) -> Floats:
        """The measure of sums [..., run] and weights [...]."""
        mean: Floats = values / weights[..., None]
        return np.exp(mean) if self.exp else mean


def cells_of(items: pd.DataFrame) -> Iterator[Cells]:
    """Split an items table by measure and part, in the order of MEASURES.

    An item of weight 0 says nothing and is left out; a value of NaN counts as not measured. DataError for a table that
    is not paired: an item twice in a run, with another unit or weight in another run, and for infinite values.
    """
    _check(items)
    items = items[items["weight"] > 0]
    by_key = {(str(measure), str(part)): group for (measure, part), group in items.groupby(_KEY, sort=False)}
    order = list(MEASURES)
    for measure, part in sorted(by_key, key=lambda key: order.index(key[0])):
        yield _cells(by_key[measure, part], MEASURES[measure], part)


def pair_of(cells: Cells, arm: str, against: str | None = None) -> Pair:
    """Pair two arms; an arm without training stands beside each seed of the other. Without against: one arm alone."""
    one, other = cells.columns(arm), cells.columns(against) if against is not None else None
    seeds, left_out = _seeds(one, other)
    left, right = _columns(one, seeds), () if other is None else _columns(other, seeds)
    known = ~np.isnan(cells.values[:, [*left, *right]])
    rows = np.logical_and.reduce(known, axis=1) & bool(seeds)  # of no columns all are known
    return Pair(
        one=left, other=right, rows=rows, seeds=sum(seed != UNTRAINED for seed in seeds), seeds_left_out=left_out,
        items_left_out=int((known.any(1) & ~rows).sum()), missing=_missing(one, other, seeds, rows),
    )  # fmt: skip


def sums_of(cells: Cells, rows: NDArray[np.bool_]) -> Sums:
    """Add up the chosen items of each unit, for all runs; a run that lacks one of them is NaN there."""
    order = np.flatnonzero(rows)[np.argsort(cells.places[rows], kind="stable")]
    _, starts = np.unique(cells.places[order], return_index=True)
    weights = cells.weights[order]
    values = np.add.reduceat(cells.values[order] * weights[:, None], starts, axis=0)
    return Sums(values=values, weights=np.add.reduceat(weights, starts), exp=cells.measure.transform == "exp")


def _seeds(one: dict[int, int], other: dict[int, int] | None) -> tuple[list[int], int]:
    """The seeds of a pair, and how many only one of both has."""
    if other is None or not one or not other:
        return (sorted(one) if other is None else []), 0
    if UNTRAINED in one or UNTRAINED in other:
        return sorted(other if UNTRAINED in one else one), 0
    return sorted(set(one) & set(other)), len(set(one) ^ set(other))


def _columns(columns: dict[int, int], seeds: list[int]) -> tuple[int, ...]:
    return tuple(columns[seed if seed in columns else UNTRAINED] for seed in seeds)


def _missing(one: dict[int, int], other: dict[int, int] | None, seeds: list[int], rows: NDArray[np.bool_]) -> Missing:
    if not one or other == {}:
        return "absent"
    if not seeds:
        return "no_common_seeds"
    return "" if rows.any() else "no_common_items"


def _cells(group: pd.DataFrame, measure: Measure, part: str) -> Cells:
    where = f"{measure.name}, part {part}"
    item_places, names = pd.factorize(group["item"])
    run_places, runs = _runs(group)
    cell = item_places * len(runs) + run_places
    _refuse(group, pd.Series(cell, index=group.index).duplicated(), f"{where}: an item stands twice in a run")
    first = np.unique(item_places, return_index=True)[1]
    units, weights = group["unit"].to_numpy(dtype=str), group["weight"].to_numpy(dtype=np.float64)
    _refuse(group, units != units[first][item_places], f"{where}: an item has another unit in another run")
    _refuse(group, weights != weights[first][item_places], f"{where}: an item has another weight in another run")
    beyond = group["value"].to_numpy(dtype=np.float64) > _MOST_NATS
    _refuse(group, beyond & (measure.transform == "exp"), f"{where}: its exponential is beyond numbers")
    values = np.full((len(names), len(runs)), np.nan)
    values[item_places, run_places] = group["value"].to_numpy(dtype=np.float64)
    return Cells(
        measure=measure, part=part, runs=runs, items=tuple(str(name) for name in names),
        units=tuple(units[first].tolist()), values=values, weights=weights[first],
    )  # fmt: skip


def _runs(group: pd.DataFrame) -> tuple[NDArray[np.int64], tuple[tuple[str, int], ...]]:
    """Of each row the place of its run among the runs (arm, seed)."""
    arm_places, arms = pd.factorize(group["arm"])
    seed_places, seeds = pd.factorize(group["seed"].to_numpy(dtype=np.int64))
    places, both = pd.factorize(arm_places * len(seeds) + seed_places)
    known = [divmod(int(one), len(seeds)) for one in both]
    return places, tuple((str(arms[arm]), int(seeds[seed])) for arm, seed in known)


def _check(items: pd.DataFrame) -> None:
    if absent := [name for name in COLUMNS if name not in items]:
        raise DataError(f"the items table lacks the columns {', '.join(absent)}")
    known = items["measure"].isin(list(MEASURES))
    _refuse(items, ~known, f"no such measure; there are {', '.join(MEASURES)}")
    values, weights = (items[name].to_numpy(dtype=np.float64) for name in ("value", "weight"))
    _refuse(items, np.isinf(values), "a value is infinite")
    _refuse(items, ~((weights >= 0) & np.isfinite(weights)), "a weight is below 0 or no number")
    trained = items["seed"].to_numpy() != UNTRAINED
    both = set(items["arm"][trained]) & set(items["arm"][~trained])
    _refuse(items, items["arm"].isin(sorted(both)), f"an arm has runs with a seed and a run without (seed {UNTRAINED})")


def _refuse(items: pd.DataFrame, wrong: "NDArray[np.bool_] | pd.Series[bool]", why: str) -> None:
    """Name the first row that is wrong."""
    if np.any(wrong):
        row = items[np.asarray(wrong)].iloc[0]
        raise DataError(f"{why}: arm {row['arm']}, seed {row['seed']}, {row['measure']}, item {row['item']}")
