"""Items tables for the tests of the comparison."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

SIMULATIONS = 200
BOUND = stats.binom.ppf(0.99, SIMULATIONS, 0.05) / SIMULATIONS  # what 5 % may come to by chance


def table(
    runs: Mapping[tuple[str, int], Sequence[float]],
    *,
    measure: str = "margin",
    part: str = "test",
    units: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> pd.DataFrame:
    """A row for each run, (arm, seed) -> values, and item; without units each item is its own."""
    count = len(next(iter(runs.values())))
    names = [f"item {place}" for place in range(count)]
    keys = np.repeat(np.arange(len(runs)), count)
    return pd.DataFrame(
        {
            "arm": np.array([arm for arm, _ in runs], dtype=object)[keys],
            "seed": np.array([seed for _, seed in runs])[keys], "measure": measure, "part": part,
            "item": np.tile(np.array(names, dtype=object), len(runs)),
            "unit": np.tile(np.array(units or names, dtype=object), len(runs)),
            "value": np.concatenate([np.asarray(values, dtype=float) for values in runs.values()]),
            "weight": np.tile(np.array(weights or [1.0] * count), len(runs)),
        }
    )  # fmt: skip


def row_of(results: pd.DataFrame, arm: str, against: str) -> pd.Series:
    """The only row of a contrast."""
    (place,) = np.flatnonzero((results["arm"] == arm) & (results["against"] == against))
    return results.iloc[place]


def simulated(*, seeds, units, effect=0.0, seed_noise=0.0, measure="margin", by_unit=3):
    """Many parts, each a fresh draw: items of a unit go together, and a seed may shift an arm as a whole."""
    random = np.random.default_rng(7)
    names = np.repeat([f"u{place}" for place in range(units)], by_unit).tolist()
    frames = []
    for part in range(SIMULATIONS):
        hard = random.normal(size=units)  # of the unit, in both arms
        runs = {}
        for arm, gain in (("lora-attention", effect), ("lora-random", 0.0)):
            shared = random.normal(size=units)  # of the unit and arm, in all seeds
            for seed in range(seeds):
                own = random.normal(scale=0.5, size=units * by_unit) + random.normal(scale=seed_noise or 1e-9)
                runs[arm, seed] = np.repeat(hard + shared, by_unit) + own + gain
        frames.append(table(runs, units=names, part=str(part), measure=measure))
    return pd.concat(frames, ignore_index=True)
