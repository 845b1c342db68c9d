"""What came of all lessons: accuracy against the easy way, the worst group, consistency, with intervals and in words.

Seeds and sentences are drawn anew, crossed and the same for all arms; a sentence asked in two ways, or with two cues,
is drawn as one. Words are drawn each by themselves and averaged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.few_shot_data import unit_of
from benchmarks.few_shot_table import LEVEL, Versus, counts
from benchmarks.shortcut_data import AGAINST, WITH, Question, Task
from probe import layer_curve

Floats = NDArray[np.float64]
COLUMNS = (
    "key", "part", "tried", "setting", "kind", "word", "strength", "seed", "arm", "said", "mass", "weight", "near",
    "seconds",
)  # fmt: skip
ACCURACY, FOLLOWED, WORST, CONSISTENT = "accuracy against", "accuracy with", "worst group", "consistency"
MEASURES = (ACCURACY, FOLLOWED, WORST, CONSISTENT)
RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Marked:
    """Right answers of every arm to one lesson's questions, over seeds."""

    task: Task
    arms: tuple[str, ...]
    right: Floats  # [arm, seed, question], 1 and 0
    questions: tuple[Question, ...]  # of one seed; others ask the same sentences in another wording
    mass: tuple[float, ...]  # mean attention on the cues, by arm


@dataclass(frozen=True, kw_only=True)
class Gain(Versus):
    """One arm's measure minus another's, mean over words."""

    kind: str
    strength: float
    measure: str


def measured(found: Marked, *, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Floats]:
    """Each measure, [resample, arm]; the first row is what was seen, the others are drawn anew.

    Accuracy is the mean over senses, of what is asked against the easy way, and of what is asked with it. A group is a
    sense on one side. Consistency is the share of carriers, each in one wording, whose two cues are both answered
    right; NaN where there are none.
    """
    weights, seeds = _drawn(found, resamples=resamples, seed=seed)
    keys = [(question.case.sense, question.side) for question in found.questions]
    groups = {key: _share(found.right[:, :, _where(keys, key)], weights[:, _where(keys, key)], seeds)
              for key in sorted(set(keys))}  # fmt: skip
    by_side = {wanted: [one for (_, side), one in groups.items() if side == wanted] for wanted in (AGAINST, WITH)}
    return {
        ACCURACY: np.mean(by_side[AGAINST], axis=0),
        FOLLOWED: np.mean(by_side[WITH], axis=0) if by_side[WITH] else np.full((len(weights), len(found.arms)), np.nan),
        WORST: np.min(list(groups.values()), axis=0),
        CONSISTENT: _consistency(found, weights, seeds),
    }


def _drawn(found: Marked, *, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """How often each question [resample, question] and each seed [resample, seed] counts; all once in the first row.

    Units are drawn within their kind of sense (one sense, or both of a minimal group). Of n seeds n − 1 are drawn,
    which makes the variance of so few unbiased (Rao and Wu, JASA 1988).
    """
    chance = np.random.default_rng(seed)
    units = [unit_of(question.case) for question in found.questions]
    kinds: dict[str, set[str]] = {}
    for unit, question in zip(units, found.questions, strict=True):
        kinds.setdefault(unit, set()).add(question.case.sense)
    weights = np.ones((resamples + 1, len(units)))
    for kind in sorted({tuple(sorted(senses)) for senses in kinds.values()}):
        own = sorted(unit for unit, senses in kinds.items() if tuple(sorted(senses)) == kind)
        drawn = counts(chance, resamples, len(own), draws=len(own))
        for place, unit in enumerate(own):
            weights[1:, [name == unit for name in units]] = drawn[:, place : place + 1]
    number = found.right.shape[1]
    seeds = np.full((resamples + 1, number), 1 / number)
    if number > 1:
        seeds[1:] = counts(chance, resamples, number, draws=number - 1) / (number - 1)
    return weights, seeds


def _where(keys: Sequence[tuple[str, str]], key: tuple[str, str]) -> NDArray[np.bool_]:
    return np.array([one == key for one in keys])


def _share(right: Floats, weights: Floats, seeds: Floats) -> Floats:
    """Weighted mean over seeds and items, [resample, arm]; right [arm, seed, item]. NaN where no item was drawn."""
    with np.errstate(invalid="ignore"):
        return np.stack([((seeds @ one) * weights).sum(1) / weights.sum(1) for one in right], axis=1)


def _consistency(found: Marked, weights: Floats, seeds: Floats) -> Floats:
    # A carrier in one wording: with the easy way for one cue's sense it is against that of the other cue.
    slots: dict[tuple[str, str], list[int]] = {}
    for place, question in enumerate(found.questions):
        if question.case.group:
            slots.setdefault((question.case.group, _wording_of(question)), []).append(place)
    pairs = [places for places in slots.values() if len(places) == 2]
    if not pairs:
        return np.full((len(weights), len(found.arms)), np.nan)
    both = np.stack([found.right[:, :, places].min(2) for places in pairs], axis=2)
    return _share(both, weights[:, [places[0] for places in pairs]], seeds)


def _wording_of(question: Question) -> str:
    """The text about the cue: equal in the two cases of a carrier that have the same wording."""
    text, cue = question.case.text, question.case.cues[0]
    return text[: cue.start] + "|" + text[cue.end :]


# ---- differences -------------------------------------------------------------------------------------------------


def means(lessons: Sequence[Marked], **settings: int) -> dict[str, Floats]:
    """Each measure as the mean over these lessons' words, [resample, arm]; every lesson draws for itself."""
    found = [measured(one, seed=place, **settings) for place, one in enumerate(lessons)]
    return {name: np.mean([one[name] for one in found], axis=0) for name in MEASURES}


def gain_of(rows: Floats, arms: Sequence[str], task: Task, *, measure: str, one: str, other: str) -> Gain:
    """The difference seen, its 95 % interval, and a two-sided p from the same resamples."""
    each = rows[:, arms.index(one)] - rows[:, arms.index(other)]
    seen, drawn = each[0], each[1:][np.isfinite(each[1:])]
    low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2])
    tail = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    p = min(1.0, 2 * (tail + 1) / (len(drawn) + 1))
    return Gain(
        kind=task.kind, strength=task.strength, measure=measure, one=one, other=other, value=float(seen),
        low=float(low), high=float(high), p=p,
    )  # fmt: skip


def right_answers(
    lines: Sequence[Mapping[str, str]], arms: Sequence[str], truth: Mapping[str, str]
) -> tuple[Floats, list[str]]:
    """[arm, seed, question] of the seeds that every arm has, and those seeds; `truth` has the digits by seed."""
    said = {(line["arm"], line["seed"]): line["said"] for line in lines}
    seeds = sorted({seed for _, seed in said if all((arm, seed) in said for arm in arms)}, key=int)
    right = [[[a == b for a, b in zip(said[arm, seed], truth[seed], strict=True)] for seed in seeds] for arm in arms]
    return np.array(right, dtype=np.float64), seeds


def figure_of(gains: Sequence[Gain], *, measure: str, one: str, other: str) -> Figure:
    """The gain in points against the strength, one line for each kind of easy way."""
    frame = pd.DataFrame([
        {"strength": 100 * gain.strength, "gain": 100 * gain.value, "low": 100 * gain.low, "high": 100 * gain.high,
         "kind": gain.kind}
        for gain in gains
        if (gain.measure, gain.one, gain.other) == (measure, one, other)
    ])  # fmt: skip
    return layer_curve(
        frame, x="strength", y="gain", low="low", high="high", series="kind", title=f"{one} minus {other}",
        label=f"{measure}, points", across="examples in which the easy way works, %",
    )  # fmt: skip
