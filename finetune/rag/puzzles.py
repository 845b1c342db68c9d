"""Questions with passages that help and passages that do not: the gold one, another, none, one that contradicts."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune.errors import RetrievalError
from finetune.rag.answers import contains, normalised
from finetune.rag.beir import BeirSet
from finetune.rag.chunks import Chunk, token_counts

CONTRADICTIONS = "contradictions.jsonl"


@dataclass(frozen=True, kw_only=True)
class Puzzle:
    """One question with its right and a wrong answer, and what may be put before it.

    `others` are passages without the answer, of the same topic first, in an order drawn by the seed. `unit` is what is
    drawn anew for intervals: the gold passage's document, since questions on one document are not independent.
    """

    id: str
    question: str
    answer: str
    wrong: str
    unit: str
    gold: Chunk
    contradicting: Chunk | None
    others: tuple[Chunk, ...]


def load_puzzles(given: BeirSet, tokenizer: Any, *, folder: Path | None = None, seed: int = 0) -> list[Puzzle]:
    """Give the answerable questions of a set, those with `answer` and `wrong` in their line and a gold passage.

    Contradicting passages are read from the folder's contradictions.jsonl (query, text), where it is there.
    RetrievalError where the set has no such question.
    """
    contradicting = _contradicting(folder / CONTRADICTIONS, given) if folder is not None else {}
    passages = _chunks(given, contradicting, tokenizer)
    topics = {name: str(about.get("topic", "")) for name, about in given.documents.items()}
    found = [
        _puzzle(query, given, passages, topics, seed=seed)
        for query in given.queries
        if _is_answerable(given.about[query]) and _gold(given, query) is not None
    ]
    if not found:
        raise RetrievalError("no question of the set has an answer, a wrong answer and a gold passage")
    return found


def _is_answerable(about: Mapping[str, Any]) -> bool:
    return all(isinstance(about.get(name), str) and normalised(about[name]) for name in ("answer", "wrong"))


def _gold(given: BeirSet, query: str) -> str | None:
    """The document of the highest grade; of several the first in the table."""
    grades = given.qrels.get(query, {})
    best = max(grades, key=lambda name: grades[name], default=None)
    return best if best is not None and grades[best] > 0 else None


def _puzzle(
    query: str, given: BeirSet, passages: Mapping[str, Chunk], topics: Mapping[str, str], *, seed: int
) -> Puzzle:
    about, gold = given.about[query], _gold(given, query)
    assert gold is not None
    return Puzzle(
        id=query, question=given.queries[query], answer=about["answer"], wrong=about["wrong"],
        unit=str(given.documents[gold].get("doc", gold)), gold=passages[gold],
        contradicting=passages.get(f"{CONTRADICTIONS}#{query}"),
        others=tuple(_others(query, given, passages, topics, seed=seed)),
    )  # fmt: skip


def _others(
    query: str, given: BeirSet, passages: Mapping[str, Chunk], topics: Mapping[str, str], *, seed: int
) -> Iterator[Chunk]:
    """Passages that neither are judged to help nor hold the answer: the gold one's topic first, then the rest."""
    gold, answer = _gold(given, query), given.about[query]["answer"]
    topic = topics.get(gold or "", "")
    names = [name for name, grade in ((name, given.qrels[query].get(name, 0)) for name in given.corpus) if grade <= 0]
    drawn = _random(seed, query).permutation(len(names))
    for same in (True, False):
        for place in drawn:
            name = names[place]
            if (topics.get(name, "") == topic) is same and not contains(passages[name].text, answer):
                yield passages[name]


def _random(seed: int, name: str) -> np.random.Generator:
    """A generator of its own for each question, so that leaving out others changes nothing."""
    return np.random.default_rng([seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")])


def _chunks(given: BeirSet, contradicting: Mapping[str, str], tokenizer: Any) -> dict[str, Chunk]:
    """Each passage of the corpus whole, as one chunk that is its own document."""
    texts = {name: (passage.title, passage.text) for name, passage in given.corpus.items()}
    for query, text in contradicting.items():
        gold = _gold(given, query)
        title = given.corpus[gold].title if gold is not None else ""
        texts[f"{CONTRADICTIONS}#{query}"] = (title, text)
    counts = token_counts(tokenizer, [text for _, text in texts.values()])
    return {
        name: Chunk(id=name, document=name, start=0, end=len(text), text=text, title=title, tokens=count)
        for (name, (title, text)), count in zip(texts.items(), counts, strict=True)
    }


def _contradicting(file: Path, given: BeirSet) -> dict[str, str]:
    """By query the passage that says the wrong answer; RetrievalError names file and line."""
    if not file.is_file():
        return {}
    found: dict[str, str] = {}
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            query, text = row["query"], row["text"]
        except (ValueError, KeyError, TypeError) as error:
            raise RetrievalError(f"{file}:{number}: allowed is an object with query and text") from error
        if query not in given.queries or not isinstance(text, str) or not text.strip():
            raise RetrievalError(f"{file}:{number}: query {query!r}: allowed are a query of the set and a text")
        found[query] = text
    return found


def conditions(puzzle: Puzzle, retrieved: Sequence[Chunk] | None = None) -> dict[str, tuple[Chunk, ...]]:
    """What is put before the question in each condition; `retrieved` as a search gave it, best first."""
    found = {"none": (), "wrong": puzzle.others[:1], "gold": (puzzle.gold,)}
    if puzzle.contradicting is not None:
        found["contradicting"] = (puzzle.contradicting,)
    if retrieved is not None:
        found["retrieved"] = tuple(retrieved)
    return found


def places(puzzle: Puzzle, count: int) -> dict[int, tuple[Chunk, ...]]:
    """The gold passage first, in the middle and last of `count`, by its place from 1; the others stay in order."""
    others = puzzle.others[: count - 1]
    chosen = sorted({1, (len(others) + 2) // 2, len(others) + 1})
    return {place: (*others[: place - 1], puzzle.gold, *others[place - 1 :]) for place in chosen}
