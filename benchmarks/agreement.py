"""How far a blind reading agrees with the labels of a set."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binomtest

from benchmarks.sheets import Reading, senses_of, shown_text, text_hash, word_of
from probe.cases import Case, CaseSet
from probe.errors import CasesError


@dataclass(frozen=True, kw_only=True)
class Part:
    """The cases of one sense of one word."""

    word: str
    sense: str
    read: int
    agreed: int


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """One case that the reader read otherwise."""

    number: int
    case: str
    text: str
    label: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Score:
    """Agreement from 0 to 1 with its 95 % Clopper-Pearson interval; kappa is None where chance alone agrees always."""

    set: str
    cases: int  # in the set
    read: int
    agreed: int
    agreement: float
    low: float
    high: float
    kappa: float | None
    parts: tuple[Part, ...]
    disagreements: tuple[Disagreement, ...]


def score_reading(case_set: CaseSet, reading: Reading) -> Score:
    """Compare a reading with the set; CasesError where it is of another set, of texts changed since, or not whole."""
    read = _joined(case_set, reading)
    words = [word_of(case_set.name, case) for case, _ in read]
    labels, answers = [case.sense for case, _ in read], [answer for _, answer in read]
    agreed = sum(label == answer for label, answer in zip(labels, answers, strict=True))
    interval = binomtest(agreed, len(read)).proportion_ci(method="exact")
    return Score(
        set=case_set.name,
        cases=len(case_set.cases),
        read=len(read),
        agreed=agreed,
        agreement=agreed / len(read),
        low=float(interval.low),
        high=float(interval.high),
        kappa=kappa(labels, answers, words),
        parts=_parts(labels, answers, words),
        disagreements=tuple(
            Disagreement(
                number=row.number,
                case=case.id,
                text=shown_text(case_set.name, case),
                label=case.sense,
                answer=answer,
            )
            for row, (case, answer) in zip(reading.rows, read, strict=True)
            if case.sense != answer
        ),
    )


def kappa(labels: Sequence[str], answers: Sequence[str], words: Sequence[str]) -> float | None:
    """Give Cohen's kappa (1960), with the agreement by chance taken among the cases of each word.

    A reader chooses among the senses of one word, so that chance over all words' senses would flatter the kappa.
    """
    cases: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for word, label, answer in zip(words, labels, answers, strict=True):
        cases[word].append((label, answer))
    agreed = sum(label == answer for label, answer in zip(labels, answers, strict=True)) / len(labels)
    chance = 0.0
    for pairs in cases.values():
        given, chosen = Counter(label for label, _ in pairs), Counter(answer for _, answer in pairs)
        chance += sum(given[sense] * chosen[sense] for sense in given) / len(pairs) / len(labels)
    return None if chance == 1 else (agreed - chance) / (1 - chance)


def _joined(case_set: CaseSet, reading: Reading) -> list[tuple[Case, str]]:
    """Give the cases that were read, each with its answer."""
    if reading.set != case_set.name:
        raise CasesError(f"reading of {reading.set}: allowed is one of {case_set.name}")
    if [row.number for row in reading.rows] != list(range(1, reading.cases + 1)):
        raise CasesError(f"reading of {reading.set}: rows are missing; allowed are 1 to {reading.cases}, in order")
    by_hash = {text_hash(shown_text(case_set.name, case)): case for case in case_set.cases}
    changed = [str(row.number) for row in reading.rows if row.shown not in by_hash]
    if changed:
        raise CasesError(
            f"reading of {reading.set}: the texts of {', '.join(changed)} have changed since; allowed is a new reading"
        )
    senses = senses_of(case_set)
    read = [(by_hash[row.shown], row.answer) for row in reading.rows]
    for row, (case, answer) in zip(reading.rows, read, strict=True):
        allowed = senses[word_of(case_set.name, case)]
        if answer not in allowed:
            raise CasesError(
                f"reading of {reading.set}, number {row.number}: answer {answer!r}; allowed are {', '.join(allowed)}"
            )
    return read


def _parts(labels: Sequence[str], answers: Sequence[str], words: Sequence[str]) -> tuple[Part, ...]:
    read = Counter(zip(words, labels, strict=True))
    agreed = Counter((w, label) for w, label, answer in zip(words, labels, answers, strict=True) if label == answer)
    return tuple(
        Part(word=word, sense=sense, read=number, agreed=agreed[word, sense])
        for (word, sense), number in sorted(read.items())
    )
