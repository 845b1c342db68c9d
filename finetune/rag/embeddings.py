"""Vectors by the text that they stand for: an unchanged chunk's is taken over, and a killed build's are not lost."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from finetune.rag.dense import DenseEncoder, Floats
from finetune.rag.duplicates import Progress

_BLOCK = 256  # texts between two savings
_STAGE = "embedding"


class Embedded(NamedTuple):
    """Vectors [text, dim] of all texts, how many came from before, how many are new, and how many of those were cut."""

    vectors: Floats
    reused: int
    new: int
    cut: int


def keys_of(texts: Sequence[str], identity: Mapping[str, Any]) -> list[bytes]:
    """What a vector is known by: the text that was embedded, and by which encoder."""
    by = json.dumps({key: value for key, value in identity.items() if key != "name"}, sort_keys=True)
    return [hashlib.sha256(f"{by}\0{text}".encode()).digest() for text in texts]


def embed_new(
    texts: Sequence[str], encoder: DenseEncoder, *, known: Mapping[bytes, Floats], parts: Path, progress: Progress
) -> Embedded:
    """Embed the texts whose vectors are neither known nor among the parts of a build that was killed.

    The new ones are saved to `parts` as they come.
    """
    keys = keys_of(texts, encoder.identity())
    found = {**_saved(parts, encoder.dim), **known}
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
    order = sorted(missing, key=lambda key: len(missing[key]))  # like lengths together, as batches want them
    cut = encoder.texts_cut
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        vectors = encoder.embed([missing[key] for key in block], "passage")
        _save(parts, block, vectors)
        found.update(zip(block, vectors, strict=True))
        progress(_STAGE, min(start + _BLOCK, len(order)), len(order))
    new = sum(key in missing for key in keys)
    vectors = np.stack([found[key] for key in keys]).astype(np.float32)
    return Embedded(vectors, reused=len(keys) - new, new=new, cut=encoder.texts_cut - cut)


def _save(parts: Path, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
    """Write a part under the name of its content's hash, so that what is half there is known as such."""
    parts.mkdir(exist_ok=True)
    flat = pa.array(np.ascontiguousarray(vectors).ravel())
    table = pa.table({"key": list(keys), "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content = sink.getvalue().to_pybytes()
    waiting = parts / ".part"
    waiting.write_bytes(content)
    waiting.replace(parts / f"{hashlib.sha256(content).hexdigest()}.parquet")


def _saved(parts: Path, dim: int) -> dict[bytes, Floats]:
    found: dict[bytes, Floats] = {}
    for path in sorted(parts.glob("*.parquet")):
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != path.stem:
            path.unlink()
            continue
        table = pq.read_table(pa.BufferReader(content))
        column = table.column("vector").combine_chunks()
        if column.type.list_size == dim:
            rows = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
            found.update(zip(table.column("key").to_pylist(), rows, strict=True))
    return found
