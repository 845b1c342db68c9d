"""Which words of a domain are tied: Dunning's log-likelihood ratio over windows of sentences.

Two ratios (Dunning 1993, Computational Linguistics 19:1), both G = 2 Σ O ln(O / E) of a table of 2 × 2:
the tie, windows with and without each of the two words, against independence; the contrast, windows with both words
and all others, in the domain against the reference.

Multiple testing: every two words that are frequent enough could have come out, seen together or not, so the tie's p
values (chi-squared, one degree of freedom) pass Benjamini–Hochberg at `rate` over all V (V - 1) / 2 pairs. That
bounds the share of chance among what is proposed; it is no claim about any one pair. Windows of one document, and
texts that say one fact in several ways, are not independent, so p is too small there. The contrast is a filter at an
uncorrected 0.05 and no more.
"""

import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2

from finetune.errors import DataError
from finetune.words import Segmenter, Word, windows_of

Progress = Callable[[str], None]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_BUFFER = 1_000_000  # pairs noted before they are summed up
_SAY_EVERY = 5_000  # texts


@dataclass(frozen=True, kw_only=True, eq=False)
class PairCounts:
    """In how many windows of a corpus each word stands, and each two of them; pairs in ascending order."""

    windows: int
    vocabulary: tuple[str, ...]
    words: Ints  # [word]
    first: Ints  # [pair], index of the word that comes first in the vocabulary
    second: Ints  # [pair]
    together: Ints  # [pair]
    touching: Ints  # [pair], windows where the second follows the first at once
    reversed: Ints  # [pair], windows where the first follows the second at once
    missed: int = 0  # windows that a pair may have lost when rare pairs were dropped to bound memory

    def among(self, first: Ints, second: Ints) -> Ints:
        """Windows with both words for these pairs, 0 where none was counted."""
        size = len(self.vocabulary)
        return _looked_up(first * size + second, self.first * size + self.second, self.together)


@dataclass(frozen=True, kw_only=True)
class Tie:
    """Two words that stand in the same windows more often than chance has it."""

    first: str
    second: str
    together: int
    alone: tuple[int, int]  # windows with each word
    windows: int
    by_chance: float  # windows with both, were they independent
    tie: float  # log-likelihood ratio within the domain
    p: float  # of the tie, uncorrected
    contrast: float  # log-likelihood ratio against the reference
    reference_together: int
    reference_windows: int
    touching: float  # share of the windows where the two touch, in the order that is the more frequent
    joined: str  # the two as one word, in that order


@dataclass(frozen=True, kw_only=True)
class Ties:
    """The tied pairs of a corpus, the most tied first, and what they were chosen from."""

    pairs: tuple[Tie, ...]
    tests: int  # pairs that could have come out
    bound: float  # the p value up to which the rate is kept; 0 where none is


def log_likelihood_ratio(tables: ArrayLike) -> Floats:
    """G of tables [..., 2, 2] of counts; 0 where a row or a column is empty."""
    observed = np.asarray(tables, dtype=np.float64)
    total = observed.sum((-2, -1), keepdims=True)
    expected = observed.sum(-1, keepdims=True) * observed.sum(-2, keepdims=True) / np.where(total > 0, total, 1.0)
    seen = observed > 0
    ratio = np.where(seen, observed, 1.0) / np.where(seen, expected, 1.0)
    ratios: Floats = np.maximum(2.0 * (observed * np.log(ratio)).sum((-2, -1)), 0.0)  # rounding can give -1e-16
    return ratios


def count_words(
    texts: Iterable[str], segmenter: Segmenter, *, sentences: int, progress: Progress | None = None
) -> tuple[int, Counter[str]]:
    """How many windows there are, and in how many each word stands."""
    counts: Counter[str] = Counter()
    windows = 0
    for number, text in enumerate(texts, start=1):
        for window in windows_of(text, sentences=sentences):
            counts.update({word.text for word in segmenter.words(window)})
            windows += 1
        if progress and number % _SAY_EVERY == 0:
            progress(f"words counted in {number:,} texts")
    return windows, counts


def frequent_words(counts: Mapping[str, int], *, least: int, most: int) -> tuple[str, ...]:
    """Words in at least `least` windows, the `most` most frequent of them, in the order of their characters."""
    kept = sorted((word for word, count in counts.items() if count >= least), key=lambda word: (-counts[word], word))
    return tuple(sorted(kept[:most]))


def count_pairs(
    texts: Iterable[str], segmenter: Segmenter, vocabulary: Sequence[str], *, sentences: int,
    most_pairs: int = 4_000_000, progress: Progress | None = None,
) -> PairCounts:  # fmt: skip
    """Count the windows with each word of the vocabulary, and with each two of them.

    At most `most_pairs` pairs are held, then the rarest are dropped (lossy counting, Manku and Motwani, VLDB 2002).
    """
    index = {word: place for place, word in enumerate(vocabulary)}
    words = np.zeros(len(vocabulary), dtype=np.int64)
    together, touching = _Sums(most_pairs), _Sums(most_pairs)
    windows = 0
    for number, text in enumerate(texts, start=1):
        for window in windows_of(text, sentences=sentences):
            windows += 1
            found = [word for word in segmenter.words(window) if word.text in index]
            words[sorted({index[word.text] for word in found})] += 1
            together.add(_together(found, index))
            touching.add(_touching(found, index))
        if progress and number % _SAY_EVERY == 0:
            progress(f"pairs counted in {number:,} texts")
    codes, counts = together.done()
    first, second = np.divmod(codes, max(len(vocabulary), 1))
    near = touching.done()
    return PairCounts(
        windows=windows, vocabulary=tuple(vocabulary), words=words, first=first, second=second, together=counts,
        touching=_looked_up(codes, *near), reversed=_looked_up(second * len(vocabulary) + first, *near),
        missed=together.missed,
    )  # fmt: skip


def _together(words: Sequence[Word], index: Mapping[str, int]) -> list[int]:
    """A window's different words in pairs, each as first × vocabulary + second, first < second.

    Bigrams that only overlap are no pair.
    """
    size, numbers = len(index), sorted({index[word.text] for word in words})
    two = itertools.combinations(numbers, 2)
    if not any(one.end > other.start for one, other in itertools.pairwise(words)):
        return [one * size + other for one, other in two]
    places: dict[int, list[Word]] = {}
    for word in words:
        places.setdefault(index[word.text], []).append(word)
    return [one * size + other for one, other in two if _stand_apart(places[one], places[other])]


def _stand_apart(ones: Sequence[Word], others: Sequence[Word]) -> bool:
    return any(one.end <= other.start or other.end <= one.start for one in ones for other in others)


def _touching(words: Sequence[Word], index: Mapping[str, int]) -> set[int]:
    """The different words that follow each other at once, in the text's order, as first × vocabulary + second."""
    starts: dict[int, list[str]] = {}
    for word in words:
        starts.setdefault(word.start, []).append(word.text)
    return {
        index[one.text] * len(index) + index[other]
        for one in words
        for other in starts.get(one.end, ())
        if other != one.text
    }


def _looked_up(asked: Ints, codes: Ints, counts: Ints) -> Ints:
    """The counts of these codes, 0 for one that is not there; codes ascending."""
    if not len(codes):
        return np.zeros(len(asked), dtype=np.int64)
    place = np.minimum(np.searchsorted(codes, asked), len(codes) - 1)
    return np.where(codes[place] == asked, counts[place], 0).astype(np.int64)


class _Sums:
    """How often each number came, in 16 bytes a different number."""

    def __init__(self, most: int) -> None:
        self.most, self.missed = most, 0
        self._codes, self._counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._new = array("q")

    def add(self, codes: Iterable[int]) -> None:
        self._new.extend(codes)
        if len(self._new) >= _BUFFER:
            self._sum_up()

    def done(self) -> tuple[Ints, Ints]:
        """The numbers in ascending order, and how often each came."""
        self._sum_up()
        return self._codes, self._counts

    def _sum_up(self) -> None:
        codes, counts = np.unique(np.frombuffer(self._new, dtype=np.int64), return_counts=True)
        self._new = array("q")
        both = np.concatenate([self._codes, codes])
        weights = np.concatenate([self._counts, counts])
        self._codes, inverse = np.unique(both, return_inverse=True)
        self._counts = np.bincount(inverse, weights=weights, minlength=len(self._codes)).astype(np.int64)
        if len(self._codes) > self.most:
            floor = int(np.partition(self._counts, -self.most)[-self.most])
            kept = self._counts > floor
            self._codes, self._counts = self._codes[kept], self._counts[kept]
            self.missed += floor


def find_ties(domain: PairCounts, reference: PairCounts, *, least: int = 3, rate: float = 0.05) -> Ties:
    """The pairs that stand together in at least `least` windows, more than by chance and more than in the reference.

    Both counts are over one vocabulary. DataError where either corpus has no windows.
    """
    if not domain.windows or not reference.windows:
        raise DataError(f"{'the corpus' if not domain.windows else 'the reference corpus'} holds no text with words")
    kept = domain.together >= least
    first, second, together = domain.first[kept], domain.second[kept], domain.together[kept]
    tables = _tables(together, domain.words[first], domain.words[second], domain.windows)
    tie = log_likelihood_ratio(tables)
    by_chance = domain.words[first] * domain.words[second] / domain.windows
    p = np.where(together > by_chance, chi2.sf(tie, 1), 1.0)
    elsewhere = reference.among(first, second)
    contrast = _contrast(together, domain.windows, elsewhere, reference.windows)
    tests = len(domain.vocabulary) * (len(domain.vocabulary) - 1) // 2
    bound = _bound(p, tests=tests, rate=rate)
    chosen = np.flatnonzero((p <= bound) & (contrast > chi2.isf(0.05, 1)))
    order = chosen[np.argsort(-tie[chosen], kind="stable")]
    forward, backward = domain.touching[kept], domain.reversed[kept]
    return Ties(
        tests=tests, bound=bound,
        pairs=tuple(
            Tie(
                first=domain.vocabulary[first[at]], second=domain.vocabulary[second[at]], together=int(together[at]),
                joined=_joined(domain.vocabulary, first[at], second[at], reverse=backward[at] > forward[at]),
                alone=(int(domain.words[first[at]]), int(domain.words[second[at]])), windows=domain.windows,
                by_chance=float(by_chance[at]), tie=float(tie[at]), p=float(p[at]), contrast=float(contrast[at]),
                reference_together=int(elsewhere[at]), reference_windows=reference.windows,
                touching=float(max(forward[at], backward[at]) / together[at]),
            )
            for at in order
        ),
    )  # fmt: skip


def _joined(vocabulary: Sequence[str], first: int, second: int, *, reverse: bool) -> str:
    one, other = (second, first) if reverse else (first, second)
    return vocabulary[one] + vocabulary[other]


def _tables(together: Ints, first: Ints, second: Ints, windows: int) -> Floats:
    """[pair, with or without first, with or without second]."""
    rows = [together, first - together, second - together, windows - first - second + together]
    return np.stack(rows, axis=-1).reshape(-1, 2, 2).astype(np.float64)


def _contrast(here: Ints, windows: int, there: Ints, reference: int) -> Floats:
    """Log-likelihood ratio of the two shares; 0 where the domain's is not the larger."""
    tables = np.stack([here, windows - here, there, reference - there], axis=-1).reshape(-1, 2, 2)
    return np.where(here * reference > there * windows, log_likelihood_ratio(tables), 0.0)


def _bound(p: Floats, *, tests: int, rate: float) -> float:
    """The largest p that Benjamini–Hochberg passes among so many tests, of which these are the smallest; else 0."""
    ordered = np.sort(p)
    passed = np.flatnonzero(ordered <= rate * np.arange(1, len(ordered) + 1) / max(tests, 1))
    return float(ordered[passed[-1]]) if len(passed) else 0.0
