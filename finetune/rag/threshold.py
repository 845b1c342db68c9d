"""When a search found too little to answer from: a threshold of its scores, chosen on questions without an answer.

BM25 adds up over a question's words, so its score may grow with the question: where one kind's are longer, a
threshold tells lengths apart and not what was found. `tried` holds the one against the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

from finetune.errors import RetrievalError
from finetune.intervals import RESAMPLES, Floats, interval
from finetune.rag.hits import Hit

Field = Literal["score", "lexical", "dense", "reranked"]
Measure = Literal["top", "second", "rest"]

NOTHING = float("-inf")  # what a search is worth that found nothing


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """From which worth of a search on its passages are put before the model; how often that is wrong where chosen.

    field: which score of a hit; `score` is that of the search's mode, and in a hybrid search a sum of ranks, which
    says little. measure: the top hit's, less the second's, or less the mean of all others'; what was not found has 0.
    """

    score: float
    false_refusals: float  # share of the answerable questions below it
    false_answers: float  # share of the unanswerable questions from it on
    field: Field = "score"
    measure: Measure = "top"

    @property
    def balanced_accuracy(self) -> float:
        """The mean of both kinds' shares that are told right; 0.5 is what no threshold at all gives."""
        return 1 - (self.false_refusals + self.false_answers) / 2


def worth(hits: Sequence[Hit], *, field: Field = "score", measure: Measure = "top") -> float:
    """Give one number for what a search found; RetrievalError for an unknown field or measure."""
    if field not in get_args(Field) or measure not in get_args(Measure):
        allowed = f"{', '.join(get_args(Field))} and {', '.join(get_args(Measure))}"
        raise RetrievalError(f"field {field!r}, measure {measure!r} of a threshold: allowed are {allowed}")
    scores = [score for hit in hits if (score := getattr(hit, field)) is not None]
    if not scores:
        return NOTHING
    # Of the hits, since one field's best need not be the fused ranking's first.
    top, *others = sorted(scores, reverse=True)
    if measure == "top" or not others:
        return float(top)
    return float(top - (others[0] if measure == "second" else np.mean(others)))


def says_nothing(hits: Sequence[Hit], threshold: Threshold | None = None) -> bool:
    """Tell whether a search found nothing, or too little to answer from."""
    if not hits or threshold is None:
        return not hits
    return worth(hits, field=threshold.field, measure=threshold.measure) < threshold.score


def choose_threshold(
    answerable: Sequence[float],
    unanswerable: Sequence[float],
    *,
    field: Field = "score",
    measure: Measure = "top",
    most_refused: float = 1.0,
) -> Threshold:
    """Choose the threshold of the highest balanced accuracy on searches of both kinds, by their worth.

    most_refused: only thresholds that refuse at most this share of the answerable questions, where there is one.
    Thresholds lie between two neighbouring worths; of equally good ones the lowest is taken, which refuses least, so
    that scores that tell nothing give one that refuses nothing but what found nothing. RetrievalError where a kind has
    no questions, or a worth is no number.
    """
    right, wrong = _checked(answerable, "answerable"), _checked(unanswerable, "unanswerable")
    cuts = _cuts(np.concatenate([right, wrong]))
    refused = np.searchsorted(np.sort(right), cuts, "left") / len(right)  # [cut]
    answered = (len(wrong) - np.searchsorted(np.sort(wrong), cuts, "left")) / len(wrong)  # [cut]
    # To nine places, or of two equal ones rounding would take either.
    allowed = max(int((refused <= most_refused).sum()), 1)  # refusals rise with the cut
    best = int(np.argmin(np.round(refused + answered, 9)[:allowed]))
    return Threshold(
        score=float(cuts[best]), false_refusals=float(refused[best]), false_answers=float(answered[best]),
        field=field, measure=measure,
    )  # fmt: skip


def _cuts(worths: Floats) -> Floats:
    """Thresholds that tell the worths apart in every way, ascending: none refused first, all refused last."""
    values = np.unique(worths[np.isfinite(worths)])
    if not len(values):
        return np.array([0.0])
    step = max(float(values[-1] - values[0]), abs(float(values[-1])), 1.0) / 100
    # The lowest one is the lowest worth itself and not below: a search that found nothing lies below that.
    return np.concatenate([values[:1], (values[:-1] + values[1:]) / 2, [values[-1] + step]])


def _checked(worths: Sequence[float], kind: str) -> Floats:
    found = np.asarray(worths, dtype=np.float64)
    if not found.size or np.isnan(found).any() or np.isposinf(found).any():
        raise RetrievalError(f"{found.size} worths of {kind} questions: allowed are one or more, each a number or -inf")
    return found


def auroc(answerable: Sequence[float], unanswerable: Sequence[float]) -> float:
    """Give the share of pairs in which the answerable question's search is worth more, equal ones as a half."""
    return float(_wins(_checked(answerable, "answerable"), _checked(unanswerable, "unanswerable")).mean())


def _wins(answerable: Floats, unanswerable: Floats) -> Floats:
    """Of each pair 1, ½ or 0: [answerable, unanswerable]."""
    over, under = answerable[:, None], unanswerable[None]
    found: Floats = (over > under) + 0.5 * (over == under)
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """A threshold chosen on one half of the questions, and what it does on the other."""

    threshold: Threshold
    table: pd.DataFrame  # measure, estimate, low, high, questions


def tried(
    answerable: Sequence[float],
    unanswerable: Sequence[float],
    *,
    field: Field = "score",
    measure: Measure = "top",
    most_refused: float = 1.0,
    lengths: tuple[Sequence[int], Sequence[int]] | None = None,
    seed: int = 0,
) -> Trial:
    """Choose a threshold on one half of both kinds' searches, drawn by the seed, and hold it against the other.

    Rows: balanced accuracy, false refusals and false answers on the other half, and the AUROC of all questions, for
    which nothing is chosen; 95 % intervals over questions drawn anew within their kind, none below five of a kind.
    lengths: of the questions of both kinds, in words or characters, for the AUROC that they have alone.
    """
    kinds = (_checked(answerable, "answerable"), _checked(unanswerable, "unanswerable"))
    if min(map(len, kinds)) < 2:
        raise RetrievalError(f"{len(kinds[0])} and {len(kinds[1])} questions: allowed are two of each kind or more")
    random = np.random.default_rng(seed)
    mixed = [random.permutation(worths) for worths in kinds]
    halves = [(worths[: len(worths) // 2].tolist(), worths[len(worths) // 2 :]) for worths in mixed]
    chosen = choose_threshold(halves[0][0], halves[1][0], field=field, measure=measure, most_refused=most_refused)
    refused, answered = halves[0][1] < chosen.score, halves[1][1] >= chosen.score
    drawn = [_drawn(len(kind), random) @ kind for kind in (refused, answered)]  # [kind][resample]
    few = min(len(refused), len(answered))
    rows = [
        ("balanced accuracy", 1 - (refused.mean() + answered.mean()) / 2, 1 - (drawn[0] + drawn[1]) / 2, few),
        ("false refusals", refused.mean(), drawn[0], len(refused)),
        ("false answers", answered.mean(), drawn[1], len(answered)),
        ("AUROC", *_auroc_drawn(*kinds, random), min(map(len, kinds))),
    ]
    if lengths is not None:
        longer = (_checked(lengths[0], "answerable"), _checked(lengths[1], "unanswerable"))
        rows.append(("AUROC of length", *_auroc_drawn(*longer, random), min(map(len, longer))))
    table = [(name, float(value), *interval(each, units=units), units) for name, value, each, units in rows]
    columns = ["measure", "estimate", "low", "high", "questions"]
    return Trial(threshold=chosen, table=pd.DataFrame(table, columns=columns))


def _auroc_drawn(answerable: Floats, unanswerable: Floats, random: np.random.Generator) -> tuple[float, Floats]:
    """The AUROC, and that of questions drawn anew within their kind, [resample]."""
    wins = _wins(answerable, unanswerable)
    drawn = (_drawn(len(answerable), random) @ wins) * _drawn(len(unanswerable), random)
    return float(wins.mean()), drawn.sum(1)


def _drawn(units: int, random: np.random.Generator) -> Floats:
    """Shares of each unit among as many drawn with replacement, [resample, unit]."""
    picks = random.integers(units, size=(RESAMPLES, units)) + units * np.arange(RESAMPLES)[:, None]
    return np.bincount(picks.ravel(), minlength=RESAMPLES * units).reshape(RESAMPLES, units) / units
