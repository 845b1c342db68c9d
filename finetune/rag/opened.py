"""An index as it is searched: one generation, checked against its manifest, that stays while it is open."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from finetune.errors import RetrievalError
from finetune.rag import tables
from finetune.rag.dense import DenseEncoder, Floats, dense_encoder
from finetune.rag.documents import Document, one_line
from finetune.rag.embeddings import keys_of
from finetune.rag.generations import Held, hold_current
from finetune.rag.hits import Ranked
from finetune.rag.lexical import LexicalIndex
from finetune.rag.manifest import Manifest, check_files, manifest_of, refuse_others
from finetune.rag.searchwords import SearchWords
from finetune.rag.stores import VectorStore, open_store

LEXICAL, VECTORS = "lexical", "vectors"  # in a generation's folder


class Index:
    """One generation of an index, which stays as it is while it is open, whatever is built beside it."""

    def __init__(
        self, folder: Path, held: Held, *, device: str, words: SearchWords | None, store_url: str | None
    ) -> None:
        self.folder = folder
        self._held, self._device, self._store_url = held, device, store_url
        self.manifest: Manifest = manifest_of(held.manifest, folder)
        check_files(held.folder, self.manifest.files)
        self.terms = tables.read_terms(held.folder)
        if words is None or words.identity() != self.manifest.made_from["words"]:
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
        kind = self.manifest.made_from["store"]["kind"]
        store = open_store(kind, where, dim=was["dim"], create=False, server=self._store_url)
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
        if strangers := {id for one in found for id, _ in one} - self._places.keys():
            raise self._strange(min(strangers))
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
        return tables.read_left(self._held.folder)

    def known_vectors(self) -> dict[bytes, Floats]:
        """Its vectors by what they were made from."""
        ids, vectors = self.store.read()
        by_id = dict(zip(ids, vectors, strict=True))
        if strangers := by_id.keys() ^ self._places.keys():
            raise self._strange(min(strangers))
        keys = keys_of(self.chunks.searched(), self._encoder_identity())
        return {key: by_id[id] for key, id in zip(keys, self.chunks.ids(), strict=True)}

    def _strange(self, id: str) -> RetrievalError:
        said = f"its store and its chunks do not go together (chunk {one_line(id, 80)!r})"
        return RetrievalError(f"{self.folder}: {said}; index again with --rebuild")

    @cached_property
    def _places(self) -> dict[str, int]:
        return {id: place for place, id in enumerate(self.chunks.ids())}

    def _encoder_identity(self) -> Mapping[str, Any]:
        identity: Mapping[str, Any] | None = self.manifest.made_from["encoder"]
        if identity is None:
            raise RetrievalError(f"{self.folder}: was made without an encoder; index again with one and --rebuild")
        return identity


def open_index(
    folder: str | Path, *, device: str = "auto", words: SearchWords | None = None, store_url: str | None = None
) -> Index:
    """Open the generation that answers now; RetrievalError for a damaged file, and for other words than it has.

    Every file's hash is compared. The encoder is loaded, and held against the index's, when vectors are first asked
    for. `words`, where they are the index's, are taken and not made again. Vectors on a Qdrant server are asked for
    with the environment's QDRANT_API_KEY only where `store_url`, or QDRANT_URL, is that server.
    """
    folder = Path(folder)
    held = hold_current(folder)
    try:
        return Index(folder, held, device=device, words=words, store_url=store_url)
    except BaseException:
        held.close()
        raise
