"""Texts that stand twice, word for word or nearly: they read the same, or share most of their five-letter pieces.

Near ones are found exactly, by Jaccard similarity of character 5-grams and prefix filtering (Bayardo, Ma & Srikant
2007, doi:10.1145/1242572.1242591), and not by chance as MinHash finds them.
"""

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.errors import RetrievalError

Progress = Callable[[str, int, int], None]  # stage, done, total
GRAM = 5  # characters
_WIDE_OR_NARROW = re.compile("[\uff01-\uffee\u3000]+")  # Unicode's forms of another width
_SHARED = 4  # pieces of a text's rarest that two near ones must share; 1 would do, 4 leave fewer to compare


class Twin(NamedTuple):
    """A text, by its place, that is the same as an earlier one, or nearly."""

    place: int
    first: int  # the earlier text that stays
    similarity: float  # Jaccard of their letters, 1 for exact ones


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """The texts that an earlier one makes superfluous, each once, in their order."""

    exact: tuple[Twin, ...]
    near: tuple[Twin, ...]


def as_read(text: str) -> str:
    """Give what two texts share that read the same: width made one, white space one space, every other sign kept.

    Case is kept, and so are raised digits, which NFKC would put on the line: 10² is not 102, nor -5 the same as 5.
    """
    level = _WIDE_OR_NARROW.sub(lambda run: unicodedata.normalize("NFKC", run.group()), text)
    return " ".join(unicodedata.normalize("NFC", level).split())


def letters_of(text: str) -> str:
    """Give what is likened of a text: letters and digits, width and case made one; all visible signs if none.

    Texts of the same letters may differ in a sign that matters, as 1.5 and 15 do: `as_read` tells them apart.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    letters = "".join(filter(str.isalnum, folded))
    return letters or "".join(character for character in folded if unicodedata.category(character)[0] not in "ZC")


def find_duplicates(
    texts: Sequence[str], *, threshold: float | None = 0.8, progress: Progress | None = None
) -> Duplicates:
    """Give the texts that read as an earlier one, and those whose 5-grams have a similarity of `threshold` with one.

    Near ones may have all letters in common and differ in signs alone. An earlier one is always one that stays, so
    that no chain of small changes joins texts that differ. Without a threshold near ones are not looked for. Memory:
    about 80 bytes a character.
    """
    if threshold is not None and not 0.5 <= threshold < 1:
        raise RetrievalError(f"near duplicates from a similarity of {threshold}: allowed is 0.5 to below 1, or none")
    exact: list[Twin] = []
    kept: dict[bytes, int] = {}
    letters: list[str] = []
    for place, text in enumerate(texts):
        first = kept.setdefault(hashlib.sha256(as_read(text).encode("utf-8", "surrogatepass")).digest(), place)
        if first != place:
            exact.append(Twin(place, first, 1.0))
        elif threshold is not None:
            letters.append(letters_of(text))
    places = sorted(kept.values())
    near = [] if threshold is None else _near(letters, threshold, progress or _silent)
    return Duplicates(
        exact=tuple(exact),
        near=tuple(Twin(places[twin.place], places[twin.first], twin.similarity) for twin in near),
    )


def _silent(_stage: str, _done: int, _total: int) -> None:
    pass


def _near(letters: Sequence[str], threshold: float, progress: Progress) -> Iterator[Twin]:
    """Each text against the earlier ones that stay; only those that share some of their rarest 5-grams are compared."""
    grams, starts, common = _ranked_grams(letters)
    holders: dict[int, list[int]] = {}  # 5-gram -> texts that stay and have it among their rarest
    for place in range(len(letters)):
        own = grams[starts[place] : starts[place + 1]]
        rarest = own[: len(own) - _needed(own, threshold) + _SHARED]
        rarest = rarest[common[rarest]].tolist()
        met = Counter(chain.from_iterable(holders.get(gram, ()) for gram in rarest))
        best = Twin(place, place, 0.0)
        for other, shared in met.items():
            their = grams[starts[other] : starts[other + 1]]
            if shared >= min(_SHARED, _needed(own, threshold), _needed(their, threshold)):
                best = max(best, Twin(place, other, _jaccard(own, their)), key=lambda twin: twin.similarity)
        if best.similarity >= threshold:
            yield best
        else:
            for gram in rarest:
                holders.setdefault(gram, []).append(place)
        progress("near duplicates", place + 1, len(letters))


def _needed(grams: NDArray[np.int64], threshold: float) -> int:
    """How many of its 5-grams a text shares with any that is similar enough."""
    return math.ceil(threshold * len(grams) - 1e-9)


def _jaccard(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)


def _ranked_grams(letters: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """The 5-grams of all texts as numbers, the rarest lowest.

    Gives the numbers of each text one after another, rising and each once; where each text's begin; and by number
    whether it stands in more than one place.
    """
    padded = [text.ljust(GRAM, "\0") for text in letters]
    lengths = np.array([len(text) for text in padded], dtype=np.int64)
    hashes = _hashes("".join(padded))
    ends = np.cumsum(lengths)
    whole = np.ones(len(hashes), dtype=np.bool_)  # [gram]: lies in one text
    over = (ends[:-1, None] - np.arange(1, GRAM)).ravel()
    whole[over] = False
    _, number, count = np.unique(hashes[whole], return_inverse=True, return_counts=True)
    order = np.argsort(count, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    owner = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths - (GRAM - 1))
    keys = np.unique((owner << 40) | rank[number])
    starts = np.searchsorted(keys >> 40, np.arange(len(lengths) + 1))
    return keys & ((1 << 40) - 1), starts, count[order] > 1


def _hashes(text: str) -> NDArray[np.uint64]:
    """A number of 64 bits for each five neighbouring characters."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    hashes = np.zeros(max(len(codes) - (GRAM - 1), 0), dtype=np.uint64)
    for shift in range(GRAM):
        hashes = (hashes ^ codes[shift : shift + len(hashes)]) * np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    return hashes
