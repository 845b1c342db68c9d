"""What a claim's experiment gives: numbers, the rule that turns each into a verdict, and the cases that watch it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probe.errors import CijingError
from probe.findings import mean_interval
from probe.stats import bootstrap, unit_means

Verdict = Literal[
    "confirmed", "qualified", "refuted", "open", "waits", "not testable here", "measure not to be trusted", "trial run"
]  # fmt: skip
Corrected = Literal["", "stands", "falls", "too few"]
Bears = Literal["for", "against", "beside"]
Unit = Literal["share", "points", "cosine", "nats", "ratio", "tokens", "depth", "deviation"]
Cell = str | float | int | None

STATEMENTS = 50
"""Bonferroni's correction is for so many statements, whatever a run judges: it must not depend on what was asked."""
WIDE_LEVEL = 1 - 0.05 / STATEMENTS
FEWEST_FOR_TAILS = 20
"""Below so many units a bootstrap has no tails to take 99.9 % from: even its ordinary interval is short."""
_WIDE_RESAMPLES = 20_000  # ten of them lie beyond each bound
_Z95, _Z_WIDE = 1.959964, 3.290527


@dataclass(frozen=True, kw_only=True)
class Number:
    """One estimate with its interval and the number of units behind it; an exact number is its own interval.

    `wide` is the interval at WIDE_LEVEL, NaN where it cannot be had. A number that is `ranged` has no chance in it:
    its bounds are the least and the most of n repetitions.
    """

    estimate: float
    low: float
    high: float
    n: int
    wide: tuple[float, float] = (math.nan, math.nan)
    ranged: bool = False

    @property
    def by_chance(self) -> bool:
        """Whether another sample would have given another number."""
        return self.n > 0 and not self.ranged and (self.low != self.high or not math.isnan(self.wide[0]))

    @property
    def known(self) -> bool:
        """Whether something was measured, estimate and interval."""
        return self.n > 0 and not any(map(math.isnan, (self.estimate, self.low, self.high)))


NOTHING_MEASURED = Number(estimate=math.nan, low=math.nan, high=math.nan, n=0)


@dataclass(frozen=True, kw_only=True)
class Range:
    """Everything strictly between two bounds; one of them may be infinite."""

    above: float = -math.inf
    below: float = math.inf

    def __post_init__(self) -> None:
        if not self.above < self.below:
            raise ValueError(f"no number lies above {self.above} and below {self.below}")

    def holds(self, number: Number) -> bool:
        """Whether the whole interval lies inside; False where there is no interval."""
        return self.above < number.low <= number.high < self.below


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How an interval becomes a verdict on one statement, laid down before anything is measured."""

    confirmed: Range
    refuted: Range
    between: Verdict = "open"  # neither: "open" where the data do not decide, "qualified" where a half-truth lies

    def __post_init__(self) -> None:
        low, high = max(self.confirmed.above, self.refuted.above), min(self.confirmed.below, self.refuted.below)
        if low < high:
            raise ValueError(f"from {low} to {high} the rule both confirms and refutes")

    def judge(self, number: Number) -> Verdict:
        """The verdict on the statement that this rule belongs to."""
        if math.isnan(number.low) or math.isnan(number.high):
            return "open"
        if self.confirmed.holds(number):
            return "confirmed"
        return "refuted" if self.refuted.holds(number) else self.between


@dataclass(frozen=True, kw_only=True)
class Part:
    """One statement with its number. Bearing "against" the claim, its confirmation refutes the claim.

    `planted` is a case in which the measure is known to succeed: the rule must confirm it. `nothing` is one in which
    it has nothing to find: the rule must not confirm it. Else, or where either is not known, the number is not to be
    trusted. `untestable` is the key of the reason why this model gives no number at all.
    """

    key: str
    model: str = ""
    bears: Bears = "for"
    rule: Rule
    unit: Unit
    number: Number
    planted: Number
    nothing: Number
    trial: bool = False  # too little was measured to say anything
    untestable: str = ""

    @property
    def trusted(self) -> bool:
        """Whether both watched cases came out as they must."""
        if not (self.planted.known and self.nothing.known):
            return False
        return self.rule.judge(self.planted) == "confirmed" and self.rule.judge(self.nothing) != "confirmed"

    @property
    def statement(self) -> Verdict:
        """The verdict on the part's own statement."""
        if self.untestable:
            return "not testable here"
        if self.trial:
            return "trial run"
        return self.rule.judge(self.number) if self.trusted else "measure not to be trusted"

    @property
    def verdict(self) -> Verdict:
        """What the part says of the claim."""
        turned: dict[Verdict, Verdict] = {"confirmed": "refuted", "refuted": "confirmed"}
        return turned.get(self.statement, self.statement) if self.bears == "against" else self.statement

    @property
    def corrected(self) -> Corrected:
        """Whether the verdict stands with the wide interval; empty where it is none or has no chance in it."""
        if not self.number.by_chance or self.statement not in ("confirmed", "refuted", "qualified"):
            return ""
        low, high = self.number.wide
        if math.isnan(low):
            return "too few"
        return "stands" if self.rule.judge(replace(self.number, low=low, high=high)) == self.statement else "falls"


def not_testable(part: Part, why: str) -> Part:
    """The part without its numbers, for a model on which nothing can be measured; `why` is the key of the reason."""
    unknown = NOTHING_MEASURED
    return replace(part, number=unknown, planted=unknown, nothing=unknown, untestable=why)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of a claim: message keys for caption and columns, then words and numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    model: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """All that was found of one claim; without parts, `why` says whether it waits or is not testable here."""

    key: str
    parts: tuple[Part, ...] = ()
    grids: tuple[Grid, ...] = ()
    why: Literal["", "waits", "not testable here"] = ""

    def __post_init__(self) -> None:
        if bool(self.deciding) == bool(self.why):
            raise ValueError(f"claim {self.key}: give parts that decide, or say why there are none")

    @property
    def deciding(self) -> tuple[Part, ...]:
        """The parts that bear on the claim."""
        return tuple(part for part in self.parts if part.bears != "beside")

    @property
    def verdict(self) -> Verdict:
        """What all parts together say of the claim."""
        return self.why or together([part.verdict for part in self.deciding])

    def as_trial(self) -> "Finding":
        """The same without verdicts on what was measured."""
        return replace(self, parts=tuple(replace(part, trial=True) for part in self.parts))


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of several: none or untrusted if any is; theirs where they agree; qualified where they do not.

    Parts that the data leave open, or that the model leaves untestable, do not weigh, unless all are.
    """
    wholes: tuple[Verdict, ...] = ("trial run", "measure not to be trusted")
    for whole in wholes:
        if whole in verdicts:
            return whole
    told = set(verdicts) - {"open", "not testable here"}
    if len(told) == 1:
        return told.pop()
    if told:
        return "qualified"
    return "open" if "open" in verdicts else "not testable here"


def exact(value: float, *, n: int = 1) -> Number:
    """A number without chance in it."""
    return Number(estimate=value, low=value, high=value, n=n)


def spread(values: Sequence[float]) -> Number:
    """Numbers that should all be alike: the largest, with the smallest and the largest as its range.

    One NaN among them makes it NaN, whatever their order; so does having none.
    """
    if not len(values) or any(map(math.isnan, values)):
        return replace(NOTHING_MEASURED, n=len(values), ranged=True)
    return Number(estimate=max(values), low=min(values), high=max(values), n=len(values), ranged=True)


def mean_number(values: NDArray[np.floating] | Sequence[float], units: Sequence[str], *, seed: int) -> Number:
    """The mean over units with a bootstrap interval; values [case], NaN = not defined. The mean of nothing is NaN."""
    cases = np.asarray(values, dtype=np.float64)
    if np.isnan(cases).all():
        return NOTHING_MEASURED
    found = mean_interval(cases, units, seed=seed)
    wide = (math.nan, math.nan)
    if found.units >= FEWEST_FOR_TAILS and found.low < found.high:
        tails = bootstrap(cases, units, seed=seed, resamples=_WIDE_RESAMPLES, level=WIDE_LEVEL)
        wide = (float(tails.low), float(tails.high))
    return Number(estimate=found.mean, low=found.low, high=found.high, n=found.units, wide=wide)


def hits_number(hits: NDArray[np.floating] | Sequence[float], units: Sequence[str], *, seed: int) -> Number:
    """The share of hits over units; hits [case], 1 or 0. Where all are or none is, a bootstrap collapses: Wilson's."""
    if not len(hits):
        return NOTHING_MEASURED
    means, _ = unit_means(np.asarray(hits, dtype=np.float64), units)
    known = means[~np.isnan(means)]
    if len(known) and (bool((known == 1).all()) or bool((known == 0).all())):
        return share_number(int(known.sum()), len(known))
    return mean_number(hits, units, seed=seed)


def share_number(hits: int, n: int) -> Number:
    """A share of n with Wilson's 95 % interval; the share of nothing is NaN. CijingError for more hits than n."""
    if not 0 <= hits <= n:
        raise CijingError(f"{hits} hits of {n}: allowed are 0 to {n}")
    if n == 0:
        return NOTHING_MEASURED
    low, high = _wilson(hits, n, _Z95)
    return Number(estimate=hits / n, low=low, high=high, n=n, wide=_wilson(hits, n, _Z_WIDE))


def _wilson(hits: int, n: int, z: float) -> tuple[float, float]:
    share = hits / n
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def more_than(bound: float, *, refuted_below: float | None = None) -> Rule:
    """Confirmed where the interval lies above the bound, refuted where it lies below it, or below another one."""
    return Rule(
        confirmed=Range(above=bound), refuted=Range(below=bound if refuted_below is None else refuted_below)
    )  # fmt: skip


def less_than(bound: float, *, refuted_above: float | None = None) -> Rule:
    """Confirmed where the interval lies below the bound, refuted where it lies above it, or above another one."""
    return Rule(
        confirmed=Range(below=bound), refuted=Range(above=bound if refuted_above is None else refuted_above)
    )  # fmt: skip
