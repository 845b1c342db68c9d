"""What may be said of each contrast and measure: better or worse only where test, interval and direction agree."""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from finetune.compare.contrasts import Why
from finetune.compare.items import MEASURES, Family
from finetune.compare.pairing import Missing
from finetune.compare.power import CLAIMED

LEVEL = 0.05  # a corrected p below it may be claimed
# higher and lower: a difference is shown in a measure that describes and of which neither is better
Kind = Literal["better", "worse", "higher", "lower", "none", "not_comparable"]
Reason = Missing | Literal["few_units"]  # why nothing can be compared


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one contrast comes to on one measure and part; numbers as in `statistics.Result`."""

    kind: Kind
    reason: Reason  # "" unless not_comparable
    arm: str
    against: str
    why: Why
    family: Family
    measure: str
    part: str
    estimate: float
    low: float
    high: float
    visible: float
    p: float  # corrected over the tests
    tests: int
    items: int
    units: int
    items_left_out: int
    seeds: int  # 0: neither arm learns
    seed_low: float
    seed_high: float
    across_seeds: bool  # else it holds for these seeds alone
    more_seeds: tuple[float, float] | None  # told where no difference is shown across seeds; bounds may be infinite

    @property
    def is_claim(self) -> bool:
        """Whether it is one of those that the package stands on: supervision against random pairs, on what counts."""
        return self.why == "claim" and self.family in CLAIMED

    @property
    def only_uncorrected(self) -> bool:
        """Whether the interval leaves out 0, and still no difference is shown: by its p over all tests."""
        return self.kind == "none" and (self.low > 0 or self.high < 0)

    @property
    def is_same(self) -> bool:
        """Whether both arms gave the same numbers, so that nothing varies that could have been seen."""
        return self.kind == "none" and self.low == self.high == self.seed_low == self.seed_high == 0

    @property
    def gain(self) -> tuple[float, float, float]:
        """The difference and its interval, so that above 0 is better: turned round where lower is better."""
        if MEASURES[self.measure].higher_is_better is False:
            return -self.estimate, -self.high, -self.low
        return self.estimate, self.low, self.high


def verdicts_of(results: pd.DataFrame) -> tuple[Verdict, ...]:
    """A verdict for each row of the results, in their order."""
    return tuple(_verdict(row) for row in results.to_dict("records"))


def claims(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Those on supervision against random pairs, of the families task and forgetting."""
    return tuple(one for one in verdicts if one.is_claim)


def _verdict(row: Mapping[Hashable, Any]) -> Verdict:
    reason: Reason = row["missing"] or ("few_units" if math.isnan(row["low"]) else "")
    kind = "not_comparable" if reason else _kind(row)
    more = (float(row["more_seeds_low"]), float(row["more_seeds_high"]))
    return Verdict(
        kind=kind, reason=reason, arm=row["arm"], against=row["against"], why=row["why"], family=row["family"],
        measure=row["measure"], part=row["part"], estimate=float(row["estimate"]), low=float(row["low"]),
        high=float(row["high"]), visible=float(row["visible"]), p=float(row["p_corrected"]), tests=int(row["tests"]),
        items=int(row["items"]), units=int(row["units"]), items_left_out=int(row["items_left_out"]),
        seeds=int(row["seeds"]), seed_low=float(row["seed_low"]), seed_high=float(row["seed_high"]),
        across_seeds=bool(row["across_seeds"]),
        more_seeds=more if kind == "none" and not math.isnan(more[0]) else None,
    )  # fmt: skip


def _kind(row: Mapping[Hashable, Any]) -> Kind:
    if not (row["p_corrected"] < LEVEL and (row["low"] > 0 or row["high"] < 0)):
        return "none"
    above, wanted = row["low"] > 0, MEASURES[row["measure"]].higher_is_better
    if wanted is None:
        return "higher" if above else "lower"
    return "better" if above == wanted else "worse"
