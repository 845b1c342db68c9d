"""What a search gives: chunks by rank, and where each field of the index had them."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from finetune.rag.chunks import Chunk

Mode = Literal["lexical", "dense", "hybrid"]


class Ranked(NamedTuple):
    """One chunk by its place among the index's chunks, and its score in one field."""

    place: int
    score: float


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A chunk that was found. `score` is that of the mode asked for; a field that did not find it has None."""

    chunk: Chunk
    rank: int  # from 1
    score: float
    lexical: float | None = None  # BM25
    dense: float | None = None  # cosine
    reranked: float | None = None
