"""The lexical half of an index: BM25 over the texts' words, and over their bigrams where the words find nothing.

BM25 (Robertson & Zaragoza 2009, doi:10.1561/1500000019) in Lucene's form without its rounding (Kamphuis et al. 2020,
doi:10.1007/978-3-030-45442-5_4), computed by bm25s (Lù 2024, arXiv:2407.03618).
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from numpy.typing import NDArray

from finetune.errors import RetrievalError
from finetune.rag.duplicates import Progress
from finetune.rag.hits import Ranked
from finetune.rag.searchwords import SearchWords

K1, B = 1.5, 0.75
FORMAT = 1
_HEAD = "lexical.json"
_FIELDS = ("words", "bigrams")  # each in a folder of its name


class LexicalIndex:
    """Texts by their places, found by the words of a query.

    A score is a sum over the query's words, each as often as it stands there, of
    ln(1 + (N - n + 1/2) / (n + 1/2)) · f / (f + k1 · (1 - b + b · length / mean length)): n of N texts hold the word,
    this one f times. Scores of bigrams are such sums too, but not to be compared with those of words.
    """

    def __init__(self, words: SearchWords, *, size: int, of_words: "_Field", of_bigrams: "_Field") -> None:
        self._cut = words
        self._size = size
        self._of_words, self._of_bigrams = of_words, of_bigrams

    @classmethod
    def build(cls, texts: Sequence[str], words: SearchWords, *, progress: Progress | None = None) -> "LexicalIndex":
        """Index the texts; the stages of `progress` are "words" and "bigrams"."""
        fields = [
            _Field.of(_told(map(cut, texts), stage, len(texts), progress))
            for stage, cut in zip(_FIELDS, (words.words, words.bigrams), strict=True)
        ]
        return cls(words, size=len(texts), of_words=fields[0], of_bigrams=fields[1])

    def __len__(self) -> int:
        """How many texts it holds."""
        return self._size

    def search(self, queries: Sequence[str], k: int) -> list[list[Ranked]]:
        """The at most k best texts of each query, the best first, of equal ones the earlier; none has a score of 0."""
        if k < 1:
            raise RetrievalError(f"search for the best {k}: allowed is 1 or more")
        return [self._found(query, k) for query in queries]

    def _found(self, query: str, k: int) -> list[Ranked]:
        found = self._of_words.best(self._cut.words(query), k)
        return found or self._of_bigrams.best(self._cut.bigrams(query), k)

    def save(self, folder: Path) -> None:
        """Write it into an empty folder, or a new one: arrays, JSON, and the SHA-256 of each file."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise RetrievalError(f"{folder}: is not empty; allowed is a new folder, or an empty one")
            for name, field in zip(_FIELDS, (self._of_words, self._of_bigrams), strict=True):
                field.save(folder / name)
            files = {file.relative_to(folder).as_posix(): _sha256(file) for file in sorted(folder.glob("*/*"))}
            head = {"format": FORMAT, "texts": self._size, "words": self._cut.identity(), "files": files}
            (folder / _HEAD).write_text(json.dumps(head, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise RetrievalError(f"{folder}: cannot be written ({error.strerror or error})") from error

    @classmethod
    def load(cls, folder: Path, words: SearchWords) -> "LexicalIndex":
        """Read what `save` wrote, the arrays mapped from the disk; nothing in it is run.

        RetrievalError where a file is missing or damaged, or other search words made it.
        """
        head = _read_head(folder)
        _refuse_other_words(folder, head["words"], words.identity())
        for name, wanted in head["files"].items():
            _refuse_damaged(folder / name, wanted)
        of_words, of_bigrams = (
            _Field.load(folder / name, size=head["texts"])
            if any(file.startswith(f"{name}/") for file in head["files"])
            else _Field(None)
            for name in _FIELDS
        )
        return cls(words, size=head["texts"], of_words=of_words, of_bigrams=of_bigrams)


class _Field:
    """One BM25 index; None where no text has a token, which bm25s cannot hold."""

    def __init__(self, bm25: Any | None) -> None:
        self._bm25 = bm25

    @classmethod
    def of(cls, texts: Iterable[list[str]]) -> "_Field":
        """Index texts that are cut; tokens are numbered as they come, so that the same texts give the same files."""
        vocabulary: dict[str, int] = {}
        ids = [[vocabulary.setdefault(token, len(vocabulary)) for token in tokens] for tokens in texts]
        if not vocabulary:
            return cls(None)
        bm25 = bm25s.BM25(k1=K1, b=B, method="lucene")
        bm25.index((ids, vocabulary), create_empty_token=False, show_progress=False)
        return cls(bm25)

    def best(self, tokens: list[str], k: int) -> list[Ranked]:
        """The k best texts of those with any of the tokens."""
        if self._bm25 is None:
            return []
        return _best(self._bm25.get_scores_from_ids(self._bm25.get_tokens_ids(tokens)), k)

    def save(self, folder: Path) -> None:
        """Write the files of bm25s, or none for an empty one."""
        if self._bm25 is not None:
            self._bm25.save(folder, allow_pickle=False, show_progress=False)

    @classmethod
    def load(cls, folder: Path, *, size: int) -> "_Field":
        """Read one that holds so many texts."""
        try:
            bm25 = bm25s.BM25.load(folder, mmap=True, allow_pickle=False, show_progress=False)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RetrievalError(
                f"{folder}: is no field of a lexical index ({error}); index again with --rebuild"
            ) from error
        if bm25.scores["num_docs"] != size:
            raise RetrievalError(
                f"{folder}: holds {bm25.scores['num_docs']} texts, the index {size}; index again with --rebuild"
            )
        return cls(bm25)


def _best(scores: NDArray[np.float32], k: int) -> list[Ranked]:
    """bm25s' own choice takes texts of score 0, and of equal ones any."""
    least = np.partition(scores, len(scores) - k)[len(scores) - k] if k < len(scores) else 0
    found = np.flatnonzero(scores >= least) if least > 0 else np.flatnonzero(scores)
    order = found[np.argsort(-scores[found], kind="stable")][:k]
    return [Ranked(place, score) for place, score in zip(order.tolist(), scores[order].tolist(), strict=True)]


def _told(cut: Iterable[list[str]], stage: str, total: int, progress: Progress | None) -> Iterable[list[str]]:
    for done, tokens in enumerate(cut, 1):
        yield tokens
        if progress is not None:
            progress(stage, done, total)


def _read_head(folder: Path) -> dict[str, Any]:
    file = folder / _HEAD
    try:
        head = json.loads(file.read_bytes())
    except OSError as error:
        raise RetrievalError(f"{file}: cannot be read ({error.strerror}); index again with --rebuild") from error
    except ValueError as error:
        raise RetrievalError(f"{file}: is damaged; index again with --rebuild") from error
    kinds = {"format": int, "texts": int, "words": dict, "files": dict}
    if not isinstance(head, dict) or not all(isinstance(head.get(name), kind) for name, kind in kinds.items()):
        raise RetrievalError(f"{file}: is damaged; index again with --rebuild")
    if head["format"] != FORMAT:
        raise RetrievalError(f"{file}: has format {head['format']}, allowed is {FORMAT}; index again with --rebuild")
    return head


def _refuse_other_words(folder: Path, saved: dict[str, str], now: dict[str, str]) -> None:
    for name, value in now.items():
        if saved.get(name) != value:
            raise RetrievalError(
                f"{folder}: indexed with other search words ({name} {saved.get(name)}, now {value}); "
                "take the same, or index again with --rebuild"
            )


def _refuse_damaged(file: Path, wanted: str) -> None:
    try:
        found = _sha256(file)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise RetrievalError(
            f"{file}: cannot be read ({getattr(error, 'strerror', error)}); index again with --rebuild"
        ) from error
    if found != wanted:
        raise RetrievalError(f"{file}: is damaged (its SHA-256 is not the index's); index again with --rebuild")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
