"""Questions with passages that help and passages that do not: the gold one, another, none, one that contradicts."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune.errors import RetrievalError
from finetune.rag.answers import contains, normalised
from finetune.rag.beir import BeirSet, read_rows
from finetune.rag.chunks import Chunk, token_counts
from finetune.rag.duplicates import letters_of

CONTRADICTIONS = "contradictions.jsonl"


@dataclass(frozen=True, kw_only=True)
class Puzzle:
    """One question with its right and a wrong answer, and what may be put before it.

    `relevant` are the ids of all passages that are judged to help, of which `gold` is the best. `contradicting` goes by
    the gold passage's title and document, so that a prompt with it differs in the passage's text alone. `others` are
    passages with neither answer, of the same topic first, in an order drawn by the seed. `unit` is what is drawn anew
    for intervals: the gold passage's document, since questions on one document are not independent.
    """

    id: str
    question: str
    answer: str
    wrong: str
    unit: str
    gold: Chunk
    relevant: frozenset[str]
    contradicting: Chunk | None
    others: tuple[Chunk, ...]


def load_puzzles(given: BeirSet, tokenizer: Any, *, folder: Path | None = None, seed: int = 0) -> list[Puzzle]:
    """Give the answerable questions of a set, those with `answer` and `wrong` in their line and a gold passage.

    Contradicting passages are read from the folder's contradictions.jsonl (query, text), where it is there. What a
    question gets depends on the set and the seed alone. RetrievalError where the set has no such question.
    """
    contradicting = _contradicting(folder / CONTRADICTIONS, given) if folder is not None else {}
    passages = _chunks(given, contradicting, tokenizer)
    topics = {name: str(about.get("topic", "")) for name, about in given.documents.items()}
    found = [
        _puzzle(query, given, passages, topics, seed=seed)
        for query in given.queries
        if _is_answerable(given.about[query]) and gold_of(given, query) is not None
    ]
    if not found:
        raise RetrievalError(
            "no question of the set has an answer, a wrong answer and a gold passage; allowed are one or more such, or "
            "retrieval alone (--model none)"
        )
    return found


def _is_answerable(about: Mapping[str, Any]) -> bool:
    return all(isinstance(about.get(name), str) and normalised(about[name]) for name in ("answer", "wrong"))


def gold_of(given: BeirSet, query: str) -> str | None:
    """Give the passage of the highest grade, of several the first in the table; None where none is above 0."""
    grades = given.qrels.get(query, {})
    best = max(grades, key=lambda name: grades[name], default=None)
    return best if best is not None and grades[best] > 0 else None


def unit_of(given: BeirSet, query: str) -> str:
    """Give what is drawn anew with a question for intervals: its gold passage's `doc`, else that passage's own id."""
    gold = gold_of(given, query)
    return query if gold is None else str(given.documents[gold].get("doc", gold))


def _puzzle(
    query: str, given: BeirSet, passages: Mapping[str, Chunk], topics: Mapping[str, str], *, seed: int
) -> Puzzle:
    about, gold = given.about[query], gold_of(given, query)
    assert gold is not None
    return Puzzle(
        id=query, question=given.queries[query], answer=about["answer"], wrong=about["wrong"],
        unit=unit_of(given, query), gold=passages[gold],
        relevant=frozenset(name for name, grade in given.qrels[query].items() if grade > 0),
        contradicting=passages.get(_contradicts(query)),
        others=tuple(_others(query, given, passages, topics, seed=seed)),
    )  # fmt: skip


def _others(
    query: str, given: BeirSet, passages: Mapping[str, Chunk], topics: Mapping[str, str], *, seed: int
) -> Iterator[Chunk]:
    """Passages not judged to help and without either answer, the gold one's topic first; no two of the same letters."""
    about, gold, grades = given.about[query], gold_of(given, query) or "", given.qrels[query]
    names = [name for name in given.corpus if grades.get(name, 0) <= 0]
    drawn = [names[place] for place in _random(seed, query).permutation(len(names))]
    seen = {letters_of(passages[gold].text)}
    for name in sorted(drawn, key=lambda name: topics.get(name, "") != topics.get(gold, "")):
        letters = letters_of(passages[name].text)
        if letters not in seen and not _holds(passages[name], (about["answer"], about["wrong"])):
            seen.add(letters)
            yield passages[name]


def _holds(passage: Chunk, answers: Sequence[str]) -> bool:
    """Whether what a prompt shows of a passage, its title too, has one of the answers."""
    return any(contains(text, answers) for text in (passage.text, passage.title))


def _random(seed: int, name: str) -> np.random.Generator:
    """A generator of its own for each question, so that leaving out others changes nothing."""
    return np.random.default_rng([seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")])


def _chunks(given: BeirSet, contradicting: Mapping[str, str], tokenizer: Any) -> dict[str, Chunk]:
    """Each passage of the corpus whole, as one chunk that is its own document, and those that contradict."""
    shown = {name: (name, passage.title, passage.text) for name, passage in given.corpus.items()}
    for query, text in contradicting.items():
        if (gold := gold_of(given, query)) is not None:
            shown[_contradicts(query)] = (gold, given.corpus[gold].title, text)
    counts = token_counts(tokenizer, [text for *_, text in shown.values()])
    return {
        name: Chunk(id=name, document=document, start=0, end=len(text), text=text, title=title, tokens=count)
        for (name, (document, title, text)), count in zip(shown.items(), counts, strict=True)
    }


def _contradicts(query: str) -> str:
    """The id of the passage that contradicts a question's gold one."""
    return f"{CONTRADICTIONS}#{query}"


def _contradicting(file: Path, given: BeirSet) -> dict[str, str]:
    """By query the passage that says the wrong answer; RetrievalError names file and line."""
    found: dict[str, str] = {}
    for where, row in read_rows(file, ".jsonl") if file.is_file() else ():
        query, text = row.get("query"), row.get("text")
        if not isinstance(query, str) or query not in given.queries or not isinstance(text, str) or not text.strip():
            raise RetrievalError(f"{where}: query {query!r}: allowed are a query of the set and a text")
        if query in found:
            raise RetrievalError(f"{where}: query {query} has a contradicting passage already; allowed is one")
        found[query] = text
    return found


def conditions(puzzle: Puzzle, retrieved: Sequence[Chunk] | None = None) -> dict[str, tuple[Chunk, ...]]:
    """Give what is put before the question in each condition that the question has; `retrieved` as a search gave it."""
    found: dict[str, tuple[Chunk, ...]] = {"none": ()}
    if puzzle.others:
        found["wrong"] = puzzle.others[:1]
    found["gold"] = (puzzle.gold,)
    if puzzle.contradicting is not None:
        found["contradicting"] = (puzzle.contradicting,)
    if retrieved is not None:
        found["retrieved"] = tuple(retrieved)
    return found


def places(puzzle: Puzzle, count: int) -> dict[int, tuple[Chunk, ...]]:
    """Give the gold passage first, in the middle and last of `count`, by its place from 1; the others stay in order.

    Of fewer where the set has fewer others. RetrievalError for a count below 1.
    """
    if count < 1:
        raise RetrievalError(f"{count} passages for the gold one's place: allowed are whole numbers from 1")
    others = puzzle.others[: count - 1]
    chosen = sorted({1, (len(others) + 2) // 2, len(others) + 1})
    return {place: (*others[: place - 1], puzzle.gold, *others[place - 1 :]) for place in chosen}
