"""The chunks of an index that answer a query: by words, by vectors, or by both."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from finetune.errors import RetrievalError
from finetune.rag.chunks import Chunk
from finetune.rag.documents import is_visible, one_line
from finetune.rag.fusion import fuse
from finetune.rag.hits import Hit, Mode, Ranked
from finetune.rag.rerank import Reranker

POOL = 50
MODES: tuple[Mode, ...] = ("lexical", "dense", "hybrid")


class Searches(Protocol):
    """One field of an index."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Ranked]]:
        """Give the best k chunks of each query, best first."""


class Searched(Protocol):
    """What a search needs of an index."""

    @property
    def chunks(self) -> Sequence[Chunk]:
        """All chunks, by place."""

    @property
    def lexical(self) -> Searches:
        """The field of words."""

    @property
    def has_dense(self) -> bool:
        """Whether there are vectors."""

    def dense_search(self, queries: Sequence[str], k: int) -> list[list[Ranked]]:
        """Give the k nearest chunks of each query, nearest first."""


def retrieve(
    index: Searched,
    queries: Sequence[str],
    *,
    k: int = 5,
    mode: Mode | None = None,
    weight: float = 0.5,
    pool: int = POOL,
    reranker: Reranker | None = None,
) -> list[list[Hit]]:
    """Give the best k chunks of each query, fewer where fewer are found.

    mode: "lexical" scores by BM25, "dense" by cosine, "hybrid" by the fused ranks of the best `pool` (k where that is
    more) of both, `weight` of them dense; None is hybrid where the index has vectors, else lexical. A reranker scores
    the best `pool` of that anew and puts them in its order, equals in the order that they had; `Hit.score` stays the
    mode's. RetrievalError for an empty query, numbers out of range, and vectors that the index lacks.
    """
    if isinstance(queries, str):
        raise RetrievalError(f"queries {one_line(queries, 80)!r}: allowed is a list of texts")
    for number, query in enumerate(queries, start=1):
        if not is_visible(query):
            raise RetrievalError(f"query {number} of {len(queries)} is empty; allowed is a text")
    for name, value in (("k", k), ("pool", pool)):
        if value < 1:
            raise RetrievalError(f"{name} {value}: allowed are whole numbers from 1")
    chosen = _mode(index, mode)
    depth = max(k, pool) if chosen == "hybrid" or reranker is not None else k
    found = _found(index, list(queries), chosen, weight=weight, depth=depth) if queries else ()
    return [
        _ranked(hits, query, reranker)[:k] if reranker is not None else hits[:k]
        for query, hits in zip(queries, found, strict=True)
    ]


def _mode(index: Searched, mode: Mode | None) -> Mode:
    if mode is None:
        return "hybrid" if index.has_dense else "lexical"
    if mode not in MODES:
        raise RetrievalError(f"mode {mode!r}: allowed are {', '.join(MODES)}")
    if mode != "lexical" and not index.has_dense:
        raise RetrievalError(
            f"mode {mode}: the index has no vectors; build it with --encoder NAME, or search with mode lexical"
        )
    return mode


def _found(index: Searched, queries: Sequence[str], mode: Mode, *, weight: float, depth: int) -> Iterator[list[Hit]]:
    """The hits of each query as its mode ranks them, with the scores of the fields that were searched."""
    nothing: list[list[Ranked]] = [[] for _ in queries]
    lexical = index.lexical.search(queries, depth) if mode != "dense" else nothing
    dense = index.dense_search(queries, depth) if mode != "lexical" else nothing
    for words, vectors in zip(lexical, dense, strict=True):
        fused = fuse(words, vectors, weight=weight, k=depth) if mode == "hybrid" else [*words, *vectors]
        of_words, of_vectors = dict(words), dict(vectors)
        yield [
            Hit(
                chunk=index.chunks[one.place], rank=rank, score=one.score,
                lexical=of_words.get(one.place), dense=of_vectors.get(one.place),
            )
            for rank, one in enumerate(fused, start=1)
        ]  # fmt: skip


def _ranked(hits: Sequence[Hit], query: str, reranker: Reranker) -> list[Hit]:
    """The hits in the reranker's order."""
    scores = reranker.scores(query, [hit.chunk.searched for hit in hits]).tolist()
    order = sorted(range(len(hits)), key=lambda place: -scores[place])
    return [replace(hits[place], rank=rank, reranked=scores[place]) for rank, place in enumerate(order, start=1)]
