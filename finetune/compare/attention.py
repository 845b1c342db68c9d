"""The attention of one arm against that of another, head by head: the same items, the same rows, seed against seed.

A map's value is the attention that the rows of a role give a word, of one item in one layer and head. Differences are
taken item by item before anything is averaged, so that arms which give the same numbers differ by exactly 0.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finetune.compare.asking import MAP_COLUMNS
from finetune.compare.items import BASE, UNTRAINED
from finetune.errors import DataError

Floats = NDArray[np.float64]
Step = tuple[str, str]  # an arm, and the arm that it is taken from
MAPS_OF_ARMS = ("arm", "seed", *MAP_COLUMNS)
MEAN_COLUMNS = ("role", "arm", "layer", "head", "value", "items", "seeds")
DIFFERENCE_COLUMNS = (
    *("role", "arm", "against", "layer", "head", "arm_value", "against_value", "difference"),
    *("items", "items_left_out", "seeds"),
)
# An arm whose prompt holds passages, after the arm with the same weights that reads the bare question.
_INJECTED = {"lora-attention-rag": "lora-attention", "lora-rag": "lora", "rag": BASE}
_CLAIM = ("lora-attention", "lora-random")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cube:
    """All numbers of a role; arms, items and seeds by place."""

    role: str
    arms: tuple[str, ...]
    items: int
    seeds: tuple[int, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    values: Floats  # [arm, item, seed, layer, head], NaN where nothing was measured

    def seeds_of(self, arm: str) -> list[int]:
        """The seeds that an arm was measured with."""
        there = ~np.isnan(self.values[self.arms.index(arm)]).all(axis=(0, 2, 3))
        return [seed for seed, found in zip(self.seeds, there, strict=True) if found]

    def of(self, arm: str, seeds: Sequence[int]) -> Floats:
        """An arm's numbers by seed, [item, seed, layer, head]; one without training stands beside every seed."""
        own = self.seeds_of(arm)
        places = [self.seeds.index(UNTRAINED if own == [UNTRAINED] else seed) for seed in seeds]
        found: Floats = self.values[self.arms.index(arm)][:, places]
        return found

    def cells(self, **columns: Floats) -> pd.DataFrame:
        """A row a head of what is given as [layer, head]."""
        layers, heads = np.meshgrid(self.layers, self.heads, indexing="ij")
        flat = {name: values.ravel() for name, values in columns.items()}
        return pd.DataFrame({"role": self.role, "layer": layers.ravel(), "head": heads.ravel(), **flat})


def steps_of(arms: Iterable[str]) -> tuple[Step, ...]:
    """What is set against what: base → adapted → injected on the way that goes furthest, the claim, then the others."""
    there = list(dict.fromkeys(arms))
    way = way_of(there)
    steps = [(arm, before) for before, arm in pairwise(way)]
    steps += [_CLAIM] if set(_CLAIM) <= set(there) else []
    others = [(arm, _INJECTED.get(arm, BASE)) for arm in there if arm != BASE]
    return tuple(dict.fromkeys(step for step in (*steps, *others) if step[1] in there))


def way_of(arms: Iterable[str]) -> tuple[str, ...]:
    """Base, then adapted, then with passages in the prompt as well, as far as there are arms for it."""
    there = set(arms)
    ways = ((BASE, before, arm) if before != BASE else (BASE, arm) for arm, before in _INJECTED.items())
    whole = [way for way in ways if set(way) <= there]
    whole += [(BASE, arm) for arm in ("lora-attention", "lora", "full") if {BASE, arm} <= there]
    return max(whole, key=len, default=tuple(arm for arm in (BASE,) if arm in there))


def means_of(maps: pd.DataFrame) -> pd.DataFrame:
    """Each arm's mean over its items and seeds, by MEAN_COLUMNS; of heads that were not measured NaN.

    An item counts in a head where every seed of the arm has it. DataError as `differences_of`.
    """
    found = [_mean(cube, arm) for cube in _cubes(maps) for arm in cube.arms]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(MEAN_COLUMNS))


def differences_of(maps: pd.DataFrame, steps: Sequence[Step]) -> pd.DataFrame:
    """Arm less against by head, over the items that both have in every seed they share, by DIFFERENCE_COLUMNS.

    An arm without training stands beside each seed of the other. `items` counts those of the head, `items_left_out`
    those of the role that only one of both has. Steps without a common item are left out. DataError for a table
    without the columns of a map, and for an item that a run has twice.
    """
    found = [
        _difference(cube, arm, against)
        for cube in _cubes(maps)
        for arm, against in steps
        if {arm, against} <= set(cube.arms) and _shared_seeds(cube, arm, against)
    ]
    kept = [frame for frame in found if frame["items"].any()]
    return pd.concat(kept, ignore_index=True) if kept else pd.DataFrame(columns=list(DIFFERENCE_COLUMNS))


def common_items(maps: pd.DataFrame, arms: Sequence[str]) -> pd.DataFrame:
    """The rows of these arms on the items that all of them have, so that their means are of the same rows."""
    chosen = maps[maps["arm"].isin(list(arms)) & maps["value"].notna()]
    having = chosen.groupby(["role", "item"], sort=False, observed=True)["arm"].transform("nunique")
    return chosen[having == len(set(arms))]


def grid_of(frame: pd.DataFrame, column: str, *, layers: Sequence[int], heads: Sequence[int]) -> Floats:
    """One number a head as [layer, head]; NaN where the frame has none."""
    table = frame.pivot(index="layer", columns="head", values=column)
    return table.reindex(index=list(layers), columns=list(heads)).to_numpy(dtype=np.float64)


def _mean(cube: _Cube, arm: str) -> pd.DataFrame:
    seeds = cube.seeds_of(arm)
    value, items = _over_items(cube.of(arm, seeds))
    frame = cube.cells(value=value, items=items).assign(arm=arm, seeds=_trained(seeds))
    return frame.astype({"items": int})[list(MEAN_COLUMNS)]


def _difference(cube: _Cube, arm: str, against: str) -> pd.DataFrame:
    seeds = _shared_seeds(cube, arm, against)
    one, other = cube.of(arm, seeds), cube.of(against, seeds)
    apart = one - other
    difference, items = _over_items(apart)
    both = np.isnan(apart)
    arm_value, against_value = (_over_items(np.where(both, np.nan, values))[0] for values in (one, other))
    frame = cube.cells(arm_value=arm_value, against_value=against_value, difference=difference, items=items)
    frame = frame.assign(
        arm=arm, against=against, items_left_out=_left_out(one, other), seeds=_trained(seeds)
    ).astype({"items": int})  # fmt: skip
    return frame[list(DIFFERENCE_COLUMNS)]


def _over_items(values: Floats) -> tuple[Floats, Floats]:
    """The mean of [item, seed, layer, head] over the items that every seed has, and how many, both [layer, head]."""
    known = ~np.asarray(np.isnan(values).any(axis=1))  # [item, layer, head]
    count = known.sum(0).astype(np.float64)
    total = np.where(known, np.where(known[:, None], values, 0.0).mean(1), 0.0).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = np.where(count > 0, total / count, np.nan)
    return mean, count


def _left_out(one: Floats, other: Floats) -> int:
    """Items of which some run has a number, and which are in no head's difference."""
    known = ~np.asarray(np.isnan(one - other).any(axis=1))  # [item, layer, head]
    compared = known.any(axis=(1, 2))
    seen = ~np.isnan(one).all(axis=(1, 2, 3)) | ~np.isnan(other).all(axis=(1, 2, 3))
    return int((seen & ~compared).sum())


def _shared_seeds(cube: _Cube, arm: str, against: str) -> list[int]:
    one, other = cube.seeds_of(arm), cube.seeds_of(against)
    if [UNTRAINED] in (one, other):
        return other if one == [UNTRAINED] else one
    return [seed for seed in one if seed in other]


def _trained(seeds: Sequence[int]) -> int:
    return sum(seed != UNTRAINED for seed in seeds)


def _cubes(maps: pd.DataFrame) -> Iterator[_Cube]:
    """The numbers of each role, in the order in which roles come."""
    if absent := [name for name in MAPS_OF_ARMS if name not in maps]:
        raise DataError(f"the table of attention maps lacks the columns {', '.join(absent)}")
    for role, rows in maps.groupby("role", sort=False, observed=True):
        yield _cube(str(role), rows)


def _cube(role: str, rows: pd.DataFrame) -> _Cube:
    twice = rows.duplicated(["arm", "seed", "item", "layer", "head"])
    if twice.any():
        row = rows[twice].iloc[0]
        where = f"arm {row['arm']}, seed {row['seed']}, layer {row['layer']}, head {row['head']}"
        raise DataError(f"attention maps, {role}: item {row['item']} stands twice in {where}")
    arm_places, arms = pd.factorize(rows["arm"].astype(str))
    item_places, items = pd.factorize(rows["item"].astype(str))
    places, axes = [arm_places, item_places], []
    for name in ("seed", "layer", "head"):
        found, names = pd.factorize(rows[name].to_numpy(dtype=np.int64), sort=True)
        places.append(found)
        axes.append(tuple(map(int, names)))
    values = np.full((len(arms), len(items), *map(len, axes)), np.nan)
    values[tuple(places)] = rows["value"].to_numpy(dtype=np.float64)
    return _Cube(
        role=role, arms=tuple(map(str, arms)), items=len(items), seeds=axes[0], layers=axes[1], heads=axes[2],
        values=values,
    )  # fmt: skip
