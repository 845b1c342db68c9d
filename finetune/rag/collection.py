"""What goes into an index: documents, their chunks without repeated ones, and what is left out with its reason."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.errors import RetrievalError
from finetune.rag.chunks import Chunk, chunk_document
from finetune.rag.documents import Columns, Document, Left, Limits
from finetune.rag.duplicates import Progress, Twin, find_duplicates
from finetune.rag.folders import shown
from finetune.rag.readers import read_documents


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """How documents become chunks."""

    tokenizer: Any
    size: int
    overlap: int
    drop: bool  # chunks that repeat an earlier one
    near: float | None  # similarity from which two chunks are told as near


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """A chunk that is the same as an earlier one, or nearly; both named as document[start:end]."""

    chunk: str
    first: str
    similarity: float


@dataclass(frozen=True, kw_only=True)
class Collection:
    """The documents and chunks of an index in their order."""

    sources: tuple[str, ...]  # their last names
    documents: tuple[Document, ...]
    chunks: tuple[Chunk, ...]
    left: tuple[Left, ...]  # files, rows and documents
    exact: tuple[Repeated, ...]
    near: tuple[Repeated, ...]

    def content(self) -> str:
        """Give the hash of everything that an index of this collection holds."""
        told = [
            *([one.id, one.title, one.kind, one.sha256] for one in self.documents),
            *([one.path, one.reason] for one in self.left),
            *([one.chunk, one.first] for one in (*self.exact, *self.near)),
            *([one.id, one.tokens] for one in self.chunks),
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def read_collection(
    sources: Sequence[str | os.PathLike[str]], cutting: Cutting, *, columns: Columns, limits: Limits, progress: Progress
) -> Collection:
    """Read and cut the whole of the sources; RetrievalError where nothing of them is left to index."""
    documents: list[Document] = []
    chunks: list[Chunk] = []
    left: list[Left] = []
    for one in read_documents(sources, columns=columns, limits=limits, progress=progress):
        cut = one if isinstance(one, Left) else _cut(one, cutting)
        if isinstance(cut, Left):
            left.append(cut)
        elif isinstance(one, Document):
            documents.append(one)
            chunks += cut
    if not chunks:
        raise RetrievalError(
            f"{', '.join(_names_of(sources))}: holds no document that can be read{_what_was_left(left)}"
        )
    _check_ids(chunks)
    twins = find_duplicates([chunk.text for chunk in chunks], threshold=cutting.near, progress=progress)
    gone = {twin.place for twin in twins.exact} if cutting.drop else set()
    return Collection(
        sources=_names_of(sources),
        documents=tuple(documents),
        chunks=tuple(chunk for place, chunk in enumerate(chunks) if place not in gone),
        left=tuple(left),
        exact=tuple(_repeated(twins.exact, chunks)),
        near=tuple(_repeated(twins.near, chunks)),
    )


def _cut(document: Document, cutting: Cutting) -> list[Chunk] | Left:
    try:
        return chunk_document(document, cutting.tokenizer, size=cutting.size, overlap=cutting.overlap)
    except RetrievalError as error:  # it names the document, and so does what is left out
        return Left(path=document.id, reason=str(error).removeprefix(f"{document.id}: "))


def _check_ids(chunks: Sequence[Chunk]) -> None:
    seen: dict[str, Chunk] = {}
    for chunk in chunks:
        if (first := seen.setdefault(chunk.id, chunk)) is not chunk:
            said = f"{named(chunk)} and {named(first)} have one id, {chunk.id}"
            raise RetrievalError(f"{said}; rename one of the documents")


def _repeated(twins: Sequence[Twin], chunks: Sequence[Chunk]) -> Iterator[Repeated]:
    for twin in twins:
        yield Repeated(chunk=named(chunks[twin.place]), first=named(chunks[twin.first]), similarity=twin.similarity)


def named(chunk: Chunk) -> str:
    """Where a chunk stands, for a reader."""
    return f"{chunk.document}[{chunk.start}:{chunk.end}]"


def _names_of(sources: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    given = [os.fspath(one) for one in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
    return tuple(shown(os.path.basename(os.path.normpath(one))) for one in given)


def _what_was_left(left: Sequence[Left]) -> str:
    if not left:
        return ""
    shown = "; ".join(f"{one.path or 'it'} {one.reason}" for one in left[:3])
    return f"; left out: {shown}" + (f"; and {len(left) - 3} more" if len(left) > 3 else "")
