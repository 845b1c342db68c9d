"""An index's chunks and documents as Parquet, what was left out and what is alike as JSON lines; no row runs code."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, overload

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from finetune.errors import RetrievalError
from finetune.rag.chunks import Chunk, searched_text
from finetune.rag.documents import Document

CHUNKS, DOCUMENTS, LEFT, NEAR = "chunks.parquet", "documents.parquet", "left.jsonl", "near.jsonl"
TERMS = "terms.json"
_CHUNK = pa.schema(
    [(name, pa.string()) for name in ("id", "document")]
    + [(name, pa.int64()) for name in ("start", "end")]
    + [(name, pa.string()) for name in ("text", "title")]
    + [("tokens", pa.int64())]
)
_DOCUMENT = pa.schema([(one.name, pa.string()) for one in fields(Document)])


class ChunkRows(Sequence[Chunk]):
    """The chunks of an index in their places, each made when it is asked for: a million take no million objects."""

    def __init__(self, table: pa.Table) -> None:
        self._columns = {name: table.column(name).combine_chunks() for name in _CHUNK.names}
        self._count = int(table.num_rows)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Chunk: ...
    @overload
    def __getitem__(self, place: slice) -> list[Chunk]: ...
    def __getitem__(self, place: int | slice) -> Chunk | list[Chunk]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(self._count))]
        if not -self._count <= place < self._count:
            raise IndexError(f"chunk {place} of {self._count}")
        return Chunk(**{name: column[place % self._count].as_py() for name, column in self._columns.items()})

    def ids(self) -> list[str]:
        """Every chunk's id."""
        found: list[str] = self._columns["id"].to_pylist()
        return found

    def searched(self) -> list[str]:
        """What searches read of every chunk."""
        columns = (self._columns[name].to_pylist() for name in ("title", "text"))
        return [searched_text(title, text) for title, text in zip(*columns, strict=True)]


def write_chunks(chunks: Iterable[Chunk], folder: Path) -> None:
    """Write chunks in their order."""
    _write(chunks, folder / CHUNKS, _CHUNK)


def read_chunks(folder: Path) -> ChunkRows:
    """Read them back; RetrievalError for a file that is none of an index, as one from elsewhere may be."""
    with _told(folder, CHUNKS):
        table = pq.read_table(folder / CHUNKS, schema=_CHUNK)
        if any(column.null_count for column in table.columns):
            raise ValueError("a chunk without one of its fields")
        return ChunkRows(table)


def write_documents(documents: Iterable[Document], folder: Path) -> None:
    """Write documents with their texts, into which the chunks' offsets point."""
    _write(documents, folder / DOCUMENTS, _DOCUMENT)


def document_hashes(folder: Path) -> dict[str, str]:
    """Each document's id with the hash of its text."""
    with _told(folder, DOCUMENTS):
        table = pq.read_table(folder / DOCUMENTS, schema=_DOCUMENT, columns=["id", "sha256"])
    return dict(zip(table.column("id").to_pylist(), table.column("sha256").to_pylist(), strict=True))


def read_document(folder: Path, id: str) -> Document:
    """Read one document; RetrievalError where there is none of that id."""
    with _told(folder, DOCUMENTS):
        rows = pq.read_table(folder / DOCUMENTS, schema=_DOCUMENT, filters=pc.field("id") == id).to_pylist()
    if not rows:
        raise RetrievalError(f"{folder.parent.parent}: no document {id!r}; allowed are those of {DOCUMENTS}")
    return Document(**rows[0])


def read_left(folder: Path) -> list[dict[str, Any]]:
    """Read what was left out, as path and reason."""
    with _told(folder, LEFT), (folder / LEFT).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_terms(terms: Sequence[str], folder: Path) -> None:
    """Write the words that stay whole."""
    (folder / TERMS).write_text(json.dumps(terms, ensure_ascii=False) + "\n", encoding="utf-8")


def read_terms(folder: Path) -> list[str]:
    """Read them back."""
    with _told(folder, TERMS):
        return TypeAdapter(list[str]).validate_json((folder / TERMS).read_bytes(), strict=True)


def write_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write rows as lines of JSON."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8", errors="backslashreplace")


@contextmanager
def _told(folder: Path, name: str) -> Iterator[None]:
    """What goes wrong in reading a generation's file, in one line."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        said = f"{folder.name}/{name} cannot be read as an index's; index again with --rebuild"
        raise RetrievalError(f"{folder.parent.parent}: {said}") from error


def _write(rows: Iterable[Any], path: Path, schema: pa.Schema) -> None:
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=schema)
    pq.write_table(table, path, compression="zstd")
