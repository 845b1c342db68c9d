"""Where an index's vectors lie and are searched: LanceDB in a folder, or Qdrant, in a folder or as a server.

Search is exact: every vector is compared, no approximate index is built or used. A store's vectors have length 1.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from finetune.errors import RetrievalError
from finetune.rag.documents import one_line

StoreKind = Literal["lancedb", "qdrant"]
Floats = NDArray[np.float32]
Found = list[tuple[str, float]]  # ids with their cosines, the highest first
_TABLE = "vectors"
_KEY = "QDRANT_API_KEY"  # the environment's variable with a server's key: it stands in no file
_URL = "QDRANT_URL"  # the one with the server that the key is for
_QUERIES = 256  # asked at once
_POINTS = 1024  # sent at once


class VectorStore(Protocol):
    """Vectors by the ids of their chunks."""

    def write(self, ids: Sequence[str], vectors: Floats) -> None:
        """Put vectors [id, dim] into a store that was just created, in one call."""

    def search(self, vectors: Floats, k: int) -> list[Found]:
        """Give for each of the vectors [query, dim] the k ids of the highest cosine, equal ones by id."""

    def read(self) -> tuple[list[str], Floats]:
        """Give all ids and their vectors [id, dim], in the order they were written."""

    def count(self) -> int:
        """Give the number of vectors."""

    def close(self) -> None:
        """Let go of files and connections."""


def open_store(kind: StoreKind, where: str | Path, *, dim: int, create: bool, server: str | None = None) -> VectorStore:
    """Open a store, or with `create` make an empty one in place of what is there.

    where: a folder; for Qdrant a server's collection as well, http://host:6333/collection. The environment's
    QDRANT_API_KEY goes to no server but the one that the user named, as `server` or in QDRANT_URL, for `where` may
    come out of another's file. RetrievalError where that cannot be, or the library is not installed.
    """
    if kind not in get_args(StoreKind):
        raise RetrievalError(f"store {kind!r} is unknown; allowed are {', '.join(get_args(StoreKind))}")
    if kind == "lancedb" and is_url(where):
        raise RetrievalError(f"{where}: LanceDB lies in a folder; allowed with an address is the store qdrant")
    with _told(where, "opened"):
        if kind == "lancedb":
            return _Lance(Path(where), dim=dim, create=create)
        if is_url(where):
            address, _, collection = str(where).rpartition("/")
            return _Qdrant(
                _server(address, _key_for(address, server)), collection, where=str(where), dim=dim, create=create
            )
        return _QdrantFolder(Path(where), dim=dim, create=create)


def drop_collection(where: str) -> None:
    """Remove a collection of a server that the user named; one that is not there is no error."""
    address, _, collection = where.rpartition("/")
    with _told(where, "removed"):
        _server(address, os.environ.get(_KEY)).delete_collection(collection)


def is_url(where: str | Path) -> bool:
    """Whether that is a server's address and no folder."""
    return str(where).startswith(("http://", "https://"))


@contextmanager
def _told(where: str | Path, what: str) -> Iterator[None]:
    """What goes wrong in a store's library, in one line."""
    try:
        yield
    except RetrievalError:
        raise
    except ImportError as error:
        named = f"{error.name or error} is not installed: `pip install cijing[rag]`"
        raise RetrievalError(f"{where}: {named}") from error
    except Exception as error:  # these libraries raise what their Rust or HTTP half gives them
        said = one_line(error) or type(error).__name__
        raise RetrievalError(f"{where}: the vectors cannot be {what} ({said})") from error


def _check(vectors: Floats, dim: int, where: str | Path) -> None:
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise RetrievalError(f"{where}: holds vectors of {dim} numbers, given were {vectors.shape}")


def _in_order(found: Found) -> Found:
    return sorted(found, key=lambda one: (-one[1], one[0]))


def _table_of(ids: Sequence[str], vectors: Floats) -> pa.Table:
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).ravel())
    return pa.table({"id": list(ids), "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})


def _columns_of(table: pa.Table, dim: int) -> tuple[list[str], Floats]:
    flat: Floats = table.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return table.column("id").to_pylist(), flat.reshape(-1, dim)


# ---- LanceDB ---------------------------------------------------------------------------------------------------


def _lancedb() -> Any:
    os.environ.setdefault("LANCEDB_LOG", "error")  # read once, on import; its warnings tell of our way to call it
    import lancedb

    return lancedb


class _Lance:
    """A table of LanceDB in a folder; opening and searching write nothing there."""

    def __init__(self, folder: Path, *, dim: int, create: bool) -> None:
        self.folder, self.dim = folder, dim
        if not create and not folder.is_dir():
            raise RetrievalError(f"{folder}: there is no store")
        self._database = _lancedb().connect(str(folder))
        schema = pa.schema({"id": pa.string(), "vector": pa.list_(pa.float32(), dim)})
        self._table = (
            self._database.create_table(_TABLE, schema=schema, mode="overwrite")
            if create
            else self._database.open_table(_TABLE)
        )

    def write(self, ids: Sequence[str], vectors: Floats) -> None:
        _check(vectors, self.dim, self.folder)
        with _told(self.folder, "written"):
            self._table.add(_table_of(ids, vectors))

    def search(self, vectors: Floats, k: int) -> list[Found]:
        _check(vectors, self.dim, self.folder)
        with _told(self.folder, "searched"):
            return [
                found
                for start in range(0, len(vectors), _QUERIES)
                for found in self._searched(vectors[start : start + _QUERIES], k)
            ]

    def _searched(self, vectors: Floats, k: int) -> list[Found]:
        found: list[Found] = [[] for _ in vectors]
        query = self._table.search(list(vectors)).distance_type("cosine").bypass_vector_index().limit(k)
        table = query.select(["id", "_distance"]).to_arrow()
        several = "query_index" in table.column_names
        numbers = table.column("query_index").to_pylist() if several else [0] * table.num_rows
        ids, distances = table.column("id").to_pylist(), table.column("_distance").to_pylist()
        for number, id, distance in zip(numbers, ids, distances, strict=True):
            found[number].append((id, 1.0 - distance))
        return [_in_order(one) for one in found]

    def read(self) -> tuple[list[str], Floats]:
        with _told(self.folder, "read"):
            return _columns_of(self._table.to_arrow(), self.dim)

    def count(self) -> int:
        with _told(self.folder, "read"):
            return int(self._table.count_rows())

    def close(self) -> None:
        self._table = self._database = None


# ---- Qdrant ----------------------------------------------------------------------------------------------------


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the client's advice to take a server, past 20,000 vectors in a folder, and on settings only one has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _key_for(address: str, server: str | None) -> str | None:
    """The key, where the address is letter for letter a server that the user named; else there may be none to give."""
    key, named = os.environ.get(_KEY), {one.rstrip("/") for one in (server, os.environ.get(_URL)) if one}
    if key and address not in named:
        said = f"is not known to be the server that {_KEY} is for; allowed is the one in {_URL}, or to unset the key"
        raise RetrievalError(f"{one_line(address)}: {said}")
    return key


def _server(address: str, key: str | None) -> Any:
    from qdrant_client import QdrantClient

    if address.count("/") < 2:
        raise RetrievalError(f"{address}: names no collection; allowed is http://host:6333/collection")
    with _quiet():
        return QdrantClient(url=address, api_key=key, timeout=60)


class _Qdrant:
    """A collection of Qdrant; points are numbered as they are written, for a point's id is no free text."""

    def __init__(self, client: Any, collection: str, *, where: str, dim: int, create: bool) -> None:
        from qdrant_client import models

        self.where, self.dim, self.collection = where, dim, collection
        self._client, self._models = client, models
        if create:
            with _quiet():
                client.delete_collection(collection)
                client.create_collection(
                    collection,
                    # As a cosine it would normalise them once more, and give back other numbers than were written.
                    vectors_config=models.VectorParams(size=dim, distance=models.Distance.DOT),
                    hnsw_config=models.HnswConfigDiff(m=0),  # no approximate index
                )
        elif not client.collection_exists(collection):
            raise RetrievalError(f"{where}: there is no such collection")

    def write(self, ids: Sequence[str], vectors: Floats) -> None:
        _check(vectors, self.dim, self.where)
        with _told(self.where, "written"), _quiet():
            for start in range(0, len(ids), _POINTS):
                end = min(start + _POINTS, len(ids))
                points = self._models.Batch(
                    ids=list(range(start, end)),
                    vectors=vectors[start:end].tolist(),
                    payloads=[{"id": id} for id in ids[start:end]],
                )
                self._client.upsert(self.collection, points=points, wait=True)

    def search(self, vectors: Floats, k: int) -> list[Found]:
        _check(vectors, self.dim, self.where)
        with _told(self.where, "searched"), _quiet():
            return [
                _in_order([(point.payload["id"], float(point.score)) for point in answer.points])
                for start in range(0, len(vectors), _QUERIES)
                for answer in self._asked(vectors[start : start + _QUERIES], k)
            ]

    def _asked(self, vectors: Floats, k: int) -> Any:
        exact = self._models.SearchParams(exact=True)
        requests = [
            self._models.QueryRequest(query=vector, limit=k, with_payload=True, params=exact)
            for vector in vectors.tolist()
        ]
        return self._client.query_batch_points(self.collection, requests=requests)

    def read(self) -> tuple[list[str], Floats]:
        ids: list[str] = []
        rows: list[Floats] = []
        following: Any = None
        with _told(self.where, "read"):
            while True:
                points, following = self._client.scroll(
                    self.collection, limit=_POINTS, offset=following, with_vectors=True
                )
                ids += [point.payload["id"] for point in points]
                rows += [np.array(point.vector, dtype=np.float32) for point in points]
                if following is None:
                    return ids, np.array(rows, dtype=np.float32).reshape(-1, self.dim)

    def count(self) -> int:
        with _told(self.where, "counted"):
            return int(self._client.count(self.collection, exact=True).count)

    def close(self) -> None:
        self._client.close()


class _QdrantFolder(_Qdrant):
    """Qdrant without a server: its vectors in a Parquet file of ours, in its memory from opening on.

    The client's own folder would not do: it is a file of pickles, which run whatever code stands in them when they
    are opened, and one process at a time may open it.
    """

    def __init__(self, folder: Path, *, dim: int, create: bool) -> None:
        from qdrant_client import QdrantClient

        self._file = folder / "vectors.parquet"
        if not create and not self._file.is_file():
            raise RetrievalError(f"{folder}: there is no store")
        super().__init__(QdrantClient(":memory:"), _TABLE, where=str(folder), dim=dim, create=True)
        if not create:
            super().write(*_columns_of(pq.read_table(self._file), dim))

    def write(self, ids: Sequence[str], vectors: Floats) -> None:
        super().write(ids, vectors)
        with _told(self.where, "written"):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(_table_of(ids, vectors), self._file)

    def read(self) -> tuple[list[str], Floats]:
        with _told(self.where, "read"):
            return _columns_of(pq.read_table(self._file), self.dim)
