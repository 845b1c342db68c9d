"""An index of a collection: made, brought up to date and opened; searched by words and, with an encoder, by vectors."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from finetune.errors import RetrievalError
from finetune.rag import generations, tables
from finetune.rag.chunks import SMALLEST
from finetune.rag.collection import Collection, Cutting, Repeated, read_collection
from finetune.rag.dense import DenseEncoder, Floats, Pooling, dense_encoder
from finetune.rag.documents import Columns, Document, Left, Limits
from finetune.rag.duplicates import Progress
from finetune.rag.embeddings import Embedded, embed_new, keys_of
from finetune.rag.generations import Held, index_told
from finetune.rag.hits import Ranked
from finetune.rag.lexical import LexicalIndex
from finetune.rag.manifest import (
    Manifest,
    check_files,
    file_entries,
    library_versions,
    manifest_of,
    refuse_others,
)
from finetune.rag.searchwords import SearchWords
from finetune.rag.stores import StoreKind, VectorStore, drop_collection, is_url, open_store
from probe import CijingError, model_outline

LEXICAL, VECTORS, TERMS = "lexical", "vectors", "terms.json"
_COLUMNS, _LIMITS = Columns(), Limits()


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """How an index is made; without an encoder it is searched by words alone."""

    encoder: str | None = "builtin:e5-small"  # any model by name or folder
    pooling: Pooling | None = None  # this and the prefixes: as dense_encoder takes them
    query_prefix: str | None = None
    passage_prefix: str | None = None
    tokenizer: str = "builtin:gemma3-270m"  # of the model that will read the chunks: their size is in its tokens
    size: int = 256
    overlap: int = 0  # sentences
    terms: Path | None = None  # a file of words that stay whole, one a line
    store: StoreKind = "lancedb"
    store_url: str | None = None  # a Qdrant server's, http://host:6333; else the vectors are in the index's folder
    duplicates: Literal["drop", "keep"] = "drop"  # chunks of the same letters; the first stays
    near: float | None = 0.8  # from this similarity on two chunks are told as near duplicates; none is dropped

    def __post_init__(self) -> None:
        """Refuse what could not make an index before anything is read."""
        if self.size < SMALLEST or self.overlap < 0:
            said = f"allowed are {SMALLEST} tokens and 0 sentences or more"
            raise RetrievalError(f"chunk size {self.size}, overlap {self.overlap}: {said}")
        if self.store not in get_args(StoreKind):
            raise RetrievalError(f"store {self.store!r} is unknown; allowed are {', '.join(get_args(StoreKind))}")
        if self.duplicates not in ("drop", "keep"):
            raise RetrievalError(f"duplicates {self.duplicates!r} is unknown; allowed are drop, keep")
        if self.near is not None and not 0.5 <= self.near < 1:
            raise RetrievalError(f"near duplicates from {self.near}: allowed is 0.5 to below 1, or none")
        url = self.store_url
        if url is not None and (self.store != "qdrant" or not is_url(url) or "@" in url):
            allowed = "http://host:6333 with the store qdrant, its key in the environment's QDRANT_API_KEY"
            raise RetrievalError(f"store url {url.rpartition('@')[2]}: allowed is {allowed}")


@dataclass(frozen=True, kw_only=True)
class IndexReport:
    """What making an index, or bringing it up to date, came to."""

    documents: int
    new: int
    changed: int
    removed: int
    same: int
    chunks: int
    reused: int  # vectors taken over
    embedded: int  # vectors made
    cut: int  # texts that were longer than the encoder reads
    left: tuple[Left, ...]  # what is in no chunk, repeated chunks among it
    exact: tuple[Repeated, ...]
    near: tuple[Repeated, ...]
    generation: str
    unchanged: bool  # there was nothing to do


# ---- an open index ---------------------------------------------------------------------------------------------


class Index:
    """One generation of an index, which stays as it is while it is open, whatever is built beside it."""

    def __init__(self, folder: Path, held: Held, *, device: str) -> None:
        self.folder = folder
        self._held, self._device = held, device
        self.manifest: Manifest = manifest_of(held.manifest, folder)
        check_files(held.folder, self.manifest.files)
        self.terms: list[str] = json.loads((held.folder / TERMS).read_text(encoding="utf-8"))
        words = SearchWords(self.terms)
        refuse_others(folder, {"words": self.manifest.made_from["words"]}, {"words": words.identity()})
        self.chunks = tables.read_chunks(held.folder)
        self.lexical = LexicalIndex.load(held.folder / LEXICAL, words)

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the generation and of its vectors."""
        if "store" in self.__dict__:
            self.store.close()
        self._held.close()

    @property
    def generation(self) -> str:
        """Its name."""
        return self._held.folder.name

    @property
    def has_dense(self) -> bool:
        """Whether it can be searched by vectors."""
        return self.manifest.made_from["encoder"] is not None

    @cached_property
    def encoder(self) -> DenseEncoder:
        """The encoder of its vectors, loaded when first needed; RetrievalError where it is another by now."""
        was = self._encoder_identity()
        encoder = dense_encoder(
            self.manifest.opened_with["encoder"], pooling=was["pooling"], query_prefix=was["query_prefix"],
            passage_prefix=was["passage_prefix"], device=self._device,
        )  # fmt: skip
        refuse_others(self.folder, {"encoder": was}, {"encoder": encoder.identity()})
        return encoder

    @cached_property
    def store(self) -> VectorStore:
        """Its vectors, opened when first needed; RetrievalError where some are gone."""
        was = self._encoder_identity()
        where = self.manifest.opened_with["vectors"] or self._held.folder / VECTORS
        store = open_store(self.manifest.made_from["store"]["kind"], where, dim=was["dim"], create=False)
        if (count := store.count()) != len(self.chunks):
            store.close()
            said = f"holds {count:,} vectors for {len(self.chunks):,} chunks"
            raise RetrievalError(f"{self.folder}: its store {said}; index again with --rebuild")
        return store

    def dense_search(self, queries: Sequence[str], k: int) -> list[list[Ranked]]:
        """Give for each query the k chunks of the highest cosine, equal ones in their places; exact."""
        if k < 1:
            raise RetrievalError(f"search for the best {k}: allowed is 1 or more")
        if not queries:
            return []
        found = self.store.search(self.encoder.embed(queries, "query"), min(k, len(self.chunks)))
        ranked = [[Ranked(self._places[id], score) for id, score in one] for one in found]
        return [sorted(one, key=lambda hit: (-hit.score, hit.place)) for one in ranked]

    def document(self, id: str) -> Document:
        """Give the document that chunks are slices of."""
        return tables.read_document(self._held.folder, id)

    def document_hashes(self) -> dict[str, str]:
        """Each document's id with the hash of its text."""
        return tables.document_hashes(self._held.folder)

    def left(self) -> list[dict[str, Any]]:
        """What was left out of it, as path and reason."""
        return list(tables.read_lines(self._held.folder / tables.LEFT))

    def known_vectors(self) -> dict[bytes, Floats]:
        """Its vectors by what they were made from."""
        ids, vectors = self.store.read()
        by_id = dict(zip(ids, vectors, strict=True))
        keys = keys_of(self.chunks.texts(), self._encoder_identity())
        return {key: by_id[id] for key, id in zip(keys, self.chunks.ids(), strict=True)}

    @cached_property
    def _places(self) -> dict[str, int]:
        return {id: place for place, id in enumerate(self.chunks.ids())}

    def _encoder_identity(self) -> Mapping[str, Any]:
        identity: Mapping[str, Any] | None = self.manifest.made_from["encoder"]
        if identity is None:
            raise RetrievalError(f"{self.folder}: was made without an encoder; index again with one and --rebuild")
        return identity


def open_index(folder: str | Path, *, device: str = "auto") -> Index:
    """Open the generation that answers now; RetrievalError for a damaged file, and for other words than it has.

    Every file's hash is compared. The encoder is loaded, and held against the index's, when vectors are first asked
    for.
    """
    folder = Path(folder)
    held = generations.hold_current(folder)
    try:
        return Index(folder, held, device=device)
    except BaseException:
        held.close()
        raise


# ---- making one ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Parts:
    """What an index is made with, loaded."""

    settings: IndexSettings
    words: SearchWords
    terms: list[str]
    tokenizer: Any
    encoder: DenseEncoder | None

    def made_from(self) -> dict[str, Any]:
        """What an update must have in common with what is there."""
        one = self.settings
        return {
            "words": self.words.identity(),
            "encoder": None if self.encoder is None else self.encoder.identity(),
            "store": None if self.encoder is None else {"kind": one.store, "url": one.store_url},
            "tokenizer": {"name": one.tokenizer, "sha256": _tokenizer_hash(self.tokenizer)},
            "chunks": {"size": one.size, "overlap": one.overlap, "duplicates": one.duplicates},
        }


def build_index(
    sources: Sequence[str | os.PathLike[str]],
    folder: str | Path,
    settings: IndexSettings | None = None,
    *,
    columns: Columns = _COLUMNS,
    limits: Limits = _LIMITS,
    rebuild: bool = False,
    progress: Progress | None = None,
) -> IndexReport:
    """Make an index of the sources, or bring the one that is there up to date with them.

    The sources are the whole collection, each time: a document of the index that is not among them any more is
    removed. Vectors of chunks that are the same are taken over, all else is made anew, and replaces the old at once,
    at the end. With `rebuild` nothing is taken over. RetrievalError, and the old one stays: for an index of other
    settings or a damaged one without `rebuild`, a folder of something else, a second writer, a full disk, and sources
    that hold nothing.
    """
    folder = Path(folder)
    tell = progress or _silent
    _refuse_folder_within(sources, folder)
    with generations.one_writer(folder), index_told(folder):
        parts = _loaded(settings or IndexSettings())
        made_from = parts.made_from()
        with _Previous(folder, made_from, rebuild=rebuild) as previous:
            collection = read_collection(sources, _cutting(parts), columns=columns, limits=limits, progress=tell)
            draft = Manifest(
                made_from=made_from, opened_with={}, content=collection.content(), counts={}, versions={}, files={},
                sources=_source_names(sources),
            )  # fmt: skip
            if previous is not None and previous.manifest.content == draft.content:
                return _report(collection, previous, Embedded(_NONE, len(previous.chunks), 0, 0), previous.generation)
            if not rebuild:
                generations.prune(folder, _forget)
            known = previous.known_vectors() if previous is not None and previous.has_dense else {}
            if rebuild:
                _drop_parts(folder)
            embedded, name = _written(folder, parts, collection, draft, known=known, progress=tell)
            report = _report(collection, previous, embedded, name)
        _drop_parts(folder)
        generations.prune(folder, _forget)
        return report
