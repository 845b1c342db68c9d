"""An index of a collection: made, and brought up to date, beside the one that answers meanwhile."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from finetune.dictionary import read_dictionary
from finetune.errors import RetrievalError
from finetune.rag import generations, tables
from finetune.rag.chunks import SMALLEST
from finetune.rag.collection import Collection, Cutting, Repeated, read_collection
from finetune.rag.dense import DenseEncoder, Floats, Pooling, dense_encoder
from finetune.rag.documents import Columns, Left, Limits
from finetune.rag.duplicates import Progress
from finetune.rag.embeddings import Embedded, embed_new
from finetune.rag.generations import index_told
from finetune.rag.lexical import LexicalIndex
from finetune.rag.manifest import Manifest, file_entries, library_versions, refuse_others
from finetune.rag.opened import LEXICAL, VECTORS, Index, open_index
from finetune.rag.searchwords import SearchWords
from finetune.rag.stores import StoreKind, drop_collection, is_url, open_store
from probe import Outline, model_outline, tokenizer_hash

__all__ = ["Index", "IndexReport", "IndexSettings", "build_index", "open_index"]

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
    terms: Path | None = None  # a dictionary of words that stay whole, as a pairs file takes it
    store: StoreKind = "lancedb"
    store_url: str | None = None  # a Qdrant server's, http://host:6333; else the vectors are in the index's folder
    duplicates: Literal["drop", "keep"] = "drop"  # chunks that read the same; the first stays
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Parts:
    """What an index is made with, loaded."""

    settings: IndexSettings
    words: SearchWords
    terms: list[str]
    outline: Outline  # of the model whose tokens the chunks are sized in
    encoder: DenseEncoder | None

    def made_from(self) -> dict[str, Any]:
        """What an update must have in common with what is there."""
        one = self.settings
        return {
            "words": self.words.identity(),
            "encoder": None if self.encoder is None else self.encoder.identity(),
            "store": None if self.encoder is None else {"kind": one.store, "url": one.store_url},
            "tokenizer": {"name": self.outline.name, "sha256": tokenizer_hash(self.outline.tokenizer)},
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
    device: str = "auto",
) -> IndexReport:
    """Make an index of the sources, or bring the one that is there up to date with them.

    The sources are the whole collection, each time: a document of the index that is not among them any more is
    removed. Vectors of chunks that are the same are taken over, all else is made anew, and replaces the old at once,
    at the end. With `rebuild` nothing of the old index is taken over. RetrievalError, and the old one stays: for an
    index of other settings or a damaged one without `rebuild`, a folder of something else, a second writer, a full
    disk, and sources that hold nothing.
    """
    folder = Path(folder)
    settings = settings or IndexSettings()
    tell = progress or _silent
    forget = partial(_forget, folder, settings)
    _refuse_folder_within(sources, folder)
    with generations.one_writer(folder):
        parts = _loaded(settings, device)
        with _previous(folder, parts, rebuild=rebuild) as previous:
            cutting = Cutting(
                tokenizer=parts.outline.tokenizer, size=settings.size, overlap=settings.overlap,
                drop=settings.duplicates == "drop", near=settings.near,
            )  # fmt: skip
            collection = read_collection(sources, cutting, columns=columns, limits=limits, progress=tell)
            if previous is not None and previous.manifest.content == collection.content():
                return _report(collection, previous, _nothing_new(previous), previous.generation)
            with suppress(RetrievalError):  # CURRENT may be damaged, or there would be no need of a rebuild
                generations.prune(folder, forget)
            with index_told(folder):
                embedded, name = _written(folder, parts, collection, previous, tell)
            report = _report(collection, previous, embedded, name)
        shutil.rmtree(folder / generations.EMBEDDED, ignore_errors=True)
        generations.prune(folder, forget)
        return report


def _silent(_stage: str, _done: int, _total: int) -> None:
    pass


def _refuse_folder_within(sources: Sequence[str | os.PathLike[str]], folder: Path) -> None:
    given = [sources] if isinstance(sources, str | os.PathLike) else sources
    place = Path(os.path.realpath(folder))
    for source in map(Path, given):
        if source.is_dir() and place.is_relative_to(os.path.realpath(source)):
            raise RetrievalError(f"{folder}: lies in {source}, and would index itself; allowed is a folder outside it")


def _loaded(settings: IndexSettings, device: str) -> _Parts:
    """Load what an index is made with: it is missing before anything is read, or not at all."""
    # The same file that a pairs file takes as its dictionary.
    terms = [entry.word for entry in read_dictionary(settings.terms)] if settings.terms is not None else []
    encoder = None
    if settings.encoder is not None:
        encoder = dense_encoder(
            settings.encoder, pooling=settings.pooling, query_prefix=settings.query_prefix,
            passage_prefix=settings.passage_prefix, device=device,
        )  # fmt: skip
    outline = model_outline(settings.tokenizer)
    return _Parts(settings=settings, words=SearchWords(terms), terms=terms, outline=outline, encoder=encoder)


@contextmanager
def _previous(folder: Path, parts: _Parts, *, rebuild: bool) -> Iterator[Index | None]:
    """The index that is there, unless there is none or nothing of it is wanted; RetrievalError where it is another."""
    if rebuild or generations.current_name(folder) is None:
        yield None
        return
    with open_index(folder, words=parts.words, store_url=parts.settings.store_url) as previous:
        refuse_others(folder, previous.manifest.made_from, parts.made_from())
        yield previous


def _written(
    folder: Path, parts: _Parts, collection: Collection, previous: Index | None, tell: Progress
) -> tuple[Embedded, str]:
    """Write the next generation and make it the one that answers."""
    number = generations.next_number(folder)
    texts = [chunk.searched for chunk in collection.chunks]
    known = previous.known_vectors() if previous is not None and previous.has_dense else {}
    with generations.draft_of(folder) as draft:
        embedded, where = _NOTHING, None
        if parts.encoder is not None:
            waiting = folder / generations.EMBEDDED
            embedded = embed_new(texts, parts.encoder, known=known, parts=waiting, progress=tell)
            where = _collection_of(folder, number, parts.settings)
            _write_vectors(where or draft / VECTORS, parts.settings, collection, embedded.vectors)
        LexicalIndex.build(texts, parts.words, progress=tell).save(draft / LEXICAL)
        _write_tables(draft, parts, collection)
        manifest = Manifest(
            made_from=parts.made_from(), content=collection.content(), sources=collection.sources,
            opened_with={"encoder": _place_of(parts.settings.encoder), "vectors": where},
            counts={"documents": len(collection.documents), "chunks": len(texts), "left": len(collection.left),
                    "exact": len(collection.exact), "near": len(collection.near), "texts_cut": embedded.cut},
            versions=library_versions(), files=file_entries(draft),
        )  # fmt: skip
        return embedded, generations.publish(folder, draft, number, manifest.to_json())


_NOTHING = Embedded(np.zeros((0, 0), dtype=np.float32), reused=0, new=0, cut=0)


def _collection_of(folder: Path, number: int, settings: IndexSettings) -> str | None:
    """A server's collection for one generation; a build that was killed left the very one that the next makes anew."""
    if settings.store_url is None:
        return None
    index = hashlib.sha256(os.path.realpath(folder).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{settings.store_url.rstrip('/')}/cijing-{index}-{number:04d}"


def _write_vectors(where: str | Path, settings: IndexSettings, collection: Collection, vectors: Floats) -> None:
    store = open_store(settings.store, where, dim=vectors.shape[1], create=True, server=settings.store_url)
    store.write([chunk.id for chunk in collection.chunks], vectors)
    store.close()


def _write_tables(draft: Path, parts: _Parts, collection: Collection) -> None:
    tables.write_chunks(collection.chunks, draft)
    tables.write_documents(collection.documents, draft)
    tables.write_lines(map(asdict, _left(collection, parts.settings)), draft / tables.LEFT)
    tables.write_lines(map(asdict, collection.near), draft / tables.NEAR)
    tables.write_terms(parts.terms, draft)


def _left(collection: Collection, settings: IndexSettings) -> list[Left]:
    """What is in no chunk: what could not be read, and repeated chunks."""
    dropped = collection.exact if settings.duplicates == "drop" else ()
    return [*collection.left, *(Left(path=one.chunk, reason=f"is the same as {one.first}") for one in dropped)]


def _place_of(encoder: str | None) -> str | None:
    """Where the encoder is found again, from wherever the index is opened."""
    return os.path.realpath(encoder) if encoder is not None and Path(encoder).is_dir() else encoder


def _forget(folder: Path, settings: IndexSettings, generation: Path) -> None:
    """Remove a generation's collection on the server that the user named, by our name for it.

    What its manifest tells is not asked: the folder may come from elsewhere. One on another server stays there.
    """
    where = _collection_of(folder, generations.number_of(generation.name), settings)
    if where is not None:
        drop_collection(where)


def _nothing_new(previous: Index) -> Embedded:
    return _NOTHING._replace(reused=len(previous.chunks) if previous.has_dense else 0)


def _report(collection: Collection, previous: Index | None, embedded: Embedded, name: str) -> IndexReport:
    was = previous.document_hashes() if previous is not None else {}
    now = {document.id: document.sha256 for document in collection.documents}
    same = sum(was.get(id) == sha256 for id, sha256 in now.items())
    new = len(now.keys() - was.keys())
    return IndexReport(
        documents=len(now), new=new, changed=len(now) - new - same, removed=len(was.keys() - now.keys()), same=same,
        chunks=len(collection.chunks), reused=embedded.reused, embedded=embedded.new, cut=embedded.cut,
        left=collection.left, exact=collection.exact, near=collection.near, generation=name,
        unchanged=previous is not None and previous.generation == name,
    )  # fmt: skip
