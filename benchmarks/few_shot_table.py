"""What came of all draws: macro accuracy and its differences with intervals over seeds and sentences, in words as well.

A table on disk has one line a (shots, seed, arm), appended as soon as it is known, so that a killed run goes on. It
holds the senses chosen, as digits, and no text.
"""

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.few_shot_data import unit_of
from probe.cases import Case
from probe.errors import CijingError

Floats = NDArray[np.float64]
COLUMNS = ("key", "shots", "seed", "arm", "own", "public", "mass", "weight", "near", "seconds")
RESAMPLES, LEVEL = 10_000, 0.05
_BLOCK = 1_000  # resamples at once


# ---- the table on disk -----------------------------------------------------------------------------------------


def read_lines(file: Path, key: str) -> list[dict[str, str]]:
    """The lines that are whole; one that a killed run left half written is cut off.

    CijingError where the table is of another model, other settings or other sentences.
    """
    if not file.is_file():
        return []
    content = file.read_text(encoding="utf-8")
    whole = content[: content.rfind("\n") + 1]
    if whole != content:
        file.write_text(whole, encoding="utf-8")
    lines = list(csv.DictReader(whole.splitlines()))
    if lines and "key" not in lines[0]:
        raise CijingError(f"{file} is no table of this benchmark; give another --table")
    if other := next((line for line in lines if line["key"] != key), None):
        raise CijingError(
            f"{file} holds runs of other settings or sentences ({other['key']}, these are {key}); give another --table"
        )
    return lines


def append_line(file: Path, line: Mapping[str, object], columns: Sequence[str] = COLUMNS) -> None:
    """Write one line to its end, on the disk before anything else is begun."""
    new = not file.is_file() or not file.stat().st_size
    with file.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({name: line.get(name, "") for name in columns})
        stream.flush()
        os.fsync(stream.fileno())


def digits(chosen: Sequence[str], senses: Sequence[str]) -> str:
    """The senses chosen as digits, one a sentence."""
    return "".join(str(senses.index(sense)) for sense in chosen)


def permille(mass: Floats | None) -> str:
    """Masses in thousandths, one a sentence; empty where there are none."""
    if mass is None:
        return ""
    return " ".join("-" if np.isnan(one) else str(round(1000 * one)) for one in mass)


# ---- correct answers and their resamples -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Answered:
    """What every arm made of one test set after the same draws."""

    arms: tuple[str, ...]
    correct: Floats  # [arm, seed, case], 1 and 0
    cases: tuple[Case, ...]


def complete(lines: Sequence[Mapping[str, str]], arms: Sequence[str]) -> list[Mapping[str, str]]:
    """The lines of those draws that every arm has, by shots, seed and arm: what is compared is paired."""
    found = {(line["shots"], line["seed"], line["arm"]): line for line in lines}
    draws = sorted({(int(line["shots"]), int(line["seed"])) for line in lines})
    places = [[(str(shots), str(seed), arm) for arm in arms] for shots, seed in draws]
    return [found[place] for draw in places if all(place in found for place in draw) for place in draw]


def answered(lines: Sequence[Mapping[str, str]], name: str, cases: Sequence[Case], senses: Sequence[str]) -> Answered:
    """The lines of one number of shots, of complete draws, as correct answers."""
    arms, seeds = (tuple(dict.fromkeys(line[column] for line in lines)) for column in ("arm", "seed"))
    given = {(line["arm"], line["seed"]): line[name] for line in lines}
    truth = np.array([senses.index(case.sense) for case in cases])
    said = np.array([[list(map(int, given[arm, seed])) for seed in seeds] for arm in arms])
    return Answered(arms=arms, correct=(said == truth).astype(np.float64), cases=tuple(cases))


def by_sense(found: Answered) -> Iterator[tuple[str, Floats, Floats]]:
    """Each sense with its units: right answers [arm, seed, unit] and sentences [unit]."""
    for sense in sorted({case.sense for case in found.cases}):
        own = np.array([case.sense == sense for case in found.cases])
        units, where = np.unique([unit_of(case) for case, is_own in zip(found.cases, own, strict=True) if is_own],
                                 return_inverse=True)  # fmt: skip
        member = np.eye(len(units))[where]  # [case, unit]
        yield sense, found.correct[:, :, own] @ member, member.sum(0)


def accuracies(found: Answered) -> dict[str, Floats]:
    """Accuracy by sense, [arm], mean over seeds."""
    return {sense: right.sum(2).mean(1) / sizes.sum() for sense, right, sizes in by_sense(found)}


def macro(found: Answered) -> Floats:
    """Mean accuracy of the senses, [arm]."""
    means: Floats = np.mean(list(accuracies(found).values()), axis=0)
    return means


def resampled(found: Answered, *, seed: int = 0, resamples: int = RESAMPLES) -> Floats:
    """Macro accuracy over seeds and units drawn anew, the same draws for all arms, [resample, arm].

    Seeds and sentences are crossed: every seed's model reads every sentence, so both are drawn, independently. Of n
    seeds n − 1 are drawn, which makes the variance of a mean of so few unbiased (Rao and Wu, JASA 1988). Units are
    drawn within their sense.
    """
    chance = np.random.default_rng(seed)
    arms, seeds, _ = found.correct.shape
    blocks = []
    for start in range(0, resamples, _BLOCK):
        size = min(_BLOCK, resamples - start)
        of_seeds = counts(chance, size, seeds, draws=max(seeds - 1, 1)) / max(seeds - 1, 1)
        total = np.zeros((size, arms))
        for _, right, sizes in by_sense(found):
            of_units = counts(chance, size, len(sizes), draws=len(sizes))
            for arm in range(arms):
                total[:, arm] += ((of_seeds @ right[arm]) * of_units).sum(1) / (of_units @ sizes)
        blocks.append(total / len({case.sense for case in found.cases}))
    return np.concatenate(blocks)


def counts(chance: np.random.Generator, size: int, units: int, *, draws: int) -> Floats:
    """How often each unit is drawn, [resample, unit]."""
    picks = chance.integers(units, size=(size, draws)) + units * np.arange(size)[:, None]
    return np.bincount(picks.ravel(), minlength=size * units).reshape(size, units).astype(np.float64)


# ---- differences -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Versus:
    """What one arm reaches minus what another does, with its interval and p."""

    one: str
    other: str
    value: float
    low: float
    high: float
    p: float
    p_holm: float = float("nan")

    @property
    def verdict(self) -> str:
        """In words."""
        return verdict_of(self.one, self.other, value=self.value, low=self.low, high=self.high, p=self.p_holm)


@dataclass(frozen=True, kw_only=True)
class Difference(Versus):
    """Macro accuracy of one arm minus that of another."""

    shots: int
    test: str


def verdict_of(one: str, other: str, *, value: float, low: float, high: float, p: float) -> str:
    """Say a difference in words; better or worse only where the interval and the corrected p say so."""
    if p < LEVEL and (low > 0 or high < 0):
        return f"{one} is {'better' if value > 0 else 'worse'} than {other}"
    return f"no difference between {one} and {other} is shown"


def difference_of(found: Answered, drawn: Floats, *, one: str, other: str, shots: int, test: str) -> Difference:
    """The difference with its 95 % interval and a two-sided p from the same resamples."""
    first, second = found.arms.index(one), found.arms.index(other)
    each = drawn[:, first] - drawn[:, second]
    low, high = np.quantile(each, [LEVEL / 2, 1 - LEVEL / 2])
    tail = min(int((each <= 0).sum()), int((each >= 0).sum()))
    value = macro(found)
    return Difference(
        shots=shots, test=test, one=one, other=other, value=float(value[first] - value[second]), low=float(low),
        high=float(high), p=min(1.0, 2 * (tail + 1) / (len(each) + 1)),
    )  # fmt: skip


def holm(p: Sequence[float]) -> list[float]:
    """Holm's corrected p of one family, in the order given."""
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate([(len(p) - rank) * p[place] for rank, place in enumerate(order)])
    found = np.empty(len(p))
    found[order] = np.minimum(steps, 1.0)
    return [float(one) for one in found]


def seed_interval(values: Floats, *, seed: int = 0) -> tuple[float, float, float]:
    """Mean over seeds and sentences of [seed, sentence] with its 95 % interval over both; NaN sentences left out."""
    values = values[:, ~np.isnan(values).any(0)]
    chance = np.random.default_rng(seed)
    seeds, items = values.shape
    of_seeds = counts(chance, RESAMPLES, seeds, draws=max(seeds - 1, 1)) / max(seeds - 1, 1)
    of_items = counts(chance, RESAMPLES, items, draws=items) / items
    low, high = np.quantile(((of_seeds @ values) * of_items).sum(1), [LEVEL / 2, 1 - LEVEL / 2])
    return float(values.mean()), float(low), float(high)
