"""Which pairs of sentences each arm tells rightly, by a threshold that other words chose; accuracies and differences.

Accuracies are means over seeds with an interval over words, which share sentences; the seeds are named one by one, for
of three no interval can be told.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.few_shot_table import LEVEL, RESAMPLES, Versus, counts, holm
from benchmarks.public_senses import Flags, Floats, best_cut, crossed, first_half

CHOSEN_ON, OTHER_HALF, CROSSED, TEST_SET = "half chosen on", "other half", "both halves, crossed", "test set"
HUNDREDTHS = 100


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """The pairs of one file in its order."""

    words: tuple[str, ...]
    same: Flags


@dataclass(frozen=True, kw_only=True, eq=False)
class Decided:
    """Right or wrong, by arm and seed, for the pairs of one part of the data."""

    part: str
    arms: tuple[str, ...]
    words: tuple[str, ...]
    correct: Floats  # [arm, seed, pair], 1 and 0; an arm that learns nothing is the same in all seeds


@dataclass(frozen=True, kw_only=True)
class Difference(Versus):
    """One arm's accuracy minus another's."""

    part: str


def margins_of(text: str) -> Floats:
    """What a line of the table says, [pair]: log p(same) − log p(different)."""
    return np.array(text.split(), dtype=np.float64) / HUNDREDTHS


def of_dev(margins: Mapping[str, Sequence[Floats]], asked: Asked, *, choosing: bool) -> tuple[Decided, ...]:
    """The development set: with `choosing` its first half alone, by its own threshold; else what was not chosen on.

    margins: by arm, of each seed, [pair]. The half that is told of is decided by the threshold of the half chosen on.
    """
    half = first_half(asked.words)
    if choosing:
        cut = {arm: [best_cut(one[half], asked.same[half])[0] for one in own] for arm, own in margins.items()}
        right = _stacked(margins, lambda arm, n, one: (one >= cut[arm][n]) == asked.same)
        return (_part(CHOSEN_ON, margins, asked, right, half),)
    right = _stacked(margins, lambda arm, n, one: crossed([one[:, None]] * 2, asked.same, half)[:, 0])
    return (
        _part(OTHER_HALF, margins, asked, right, ~half),
        _part(CROSSED, margins, asked, right, np.ones_like(half)),
    )


def of_test(
    margins: Mapping[str, Sequence[Floats]], asked: Asked, *, dev: Mapping[str, Sequence[Floats]], chosen_on: Asked
) -> Decided:
    """A test set, decided by the thresholds of the whole development set."""
    cut = {arm: [best_cut(one, chosen_on.same)[0] for one in own] for arm, own in dev.items()}
    right = _stacked(margins, lambda arm, n, one: (one >= cut[arm][n]) == asked.same)
    return _part(TEST_SET, margins, asked, right, np.ones(len(asked.same), dtype=bool))


def accuracy(found: Decided, arm: str) -> tuple[list[float], float, float, float]:
    """Of each seed; their mean with its 95 % interval over words."""
    own = found.correct[found.arms.index(arm)]
    drawn = _drawn(own.mean(0), found.words)
    low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2])
    return [float(one) for one in own.mean(1)], float(own.mean()), float(low), float(high)


def differences(found: Decided, compared: Sequence[tuple[str, str]]) -> list[Difference]:
    """The differences of one part, p corrected by Holm over them."""
    made = []
    for one, other in compared:
        if not {one, other} <= set(found.arms):
            continue
        each = (found.correct[found.arms.index(one)] - found.correct[found.arms.index(other)]).mean(0)
        drawn = _drawn(each, found.words)
        low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2])
        tail = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
        made.append(
            Difference(
                part=found.part, one=one, other=other, value=float(each.mean()), low=float(low), high=float(high),
                p=min(1.0, 2 * (tail + 1) / (len(drawn) + 1)),
            )
        )  # fmt: skip
    return [replace(one, p_holm=p) for one, p in zip(made, holm([one.p for one in made]), strict=True)]


def _stacked(margins: Mapping[str, Sequence[Floats]], decide: Callable[[str, int, Floats], Floats | Flags]) -> Floats:
    """[arm, seed, pair] of what `decide` says of each arm and seed."""
    seeds = max(len(own) for own in margins.values())
    made = {arm: [decide(arm, number, one) for number, one in enumerate(own)] for arm, own in margins.items()}
    return np.array([own * seeds if len(own) == 1 else own for own in made.values()], dtype=np.float64)


def _part(part: str, margins: Mapping[str, object], asked: Asked, right: Floats, kept: Flags) -> Decided:
    words = tuple(word for word, keep in zip(asked.words, kept, strict=True) if keep)
    return Decided(part=part, arms=tuple(margins), words=words, correct=right[:, :, kept])


def _drawn(values: Floats, words: Sequence[str]) -> Floats:
    """Means of [pair] with words drawn anew, [resample]."""
    _, where = np.unique(words, return_inverse=True)
    sums, sizes = np.bincount(where, weights=values), np.bincount(where)
    picks = counts(np.random.default_rng(0), RESAMPLES, len(sizes), draws=len(sizes))
    means: Floats = (picks @ sums) / (picks @ sizes)
    return means
