"""What an index is made of, with the hash of every file: whether it is whole, and whether it fits what is asked."""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from finetune.errors import RetrievalError
from finetune.rag.dense import Pooling
from finetune.rag.generations import MANIFEST
from finetune.rag.stores import StoreKind

FORMAT = 1  # of the folder; another one is not read
_LIBRARIES = ("cijing", "bm25s", "rjieba", "lancedb", "qdrant-client", "transformers", "pyarrow", "numpy")
_WAY_OUT = "index again with --rebuild"


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file as it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What one generation of an index is made of."""

    made_from: Mapping[str, Any]  # what must be the same for an update or a search: words, encoder, tokenizer, …
    opened_with: Mapping[str, Any]  # where encoder and vectors are
    sources: tuple[str, ...]
    content: str  # SHA-256 of the documents, what was left out, and the settings
    counts: Mapping[str, int]
    versions: Mapping[str, str]  # of libraries, as information
    files: Mapping[str, FileEntry]
    format: int = FORMAT

    def to_json(self) -> bytes:
        """Give the file's content, the same for the same manifest."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1, sort_keys=True).encode() + b"\n"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Words(_Strict):
    rjieba: str
    terms: str
    rules: str


class _Encoder(_Strict):
    name: str
    weights: str
    pooling: Pooling
    query_prefix: str
    passage_prefix: str
    dim: PositiveInt
    longest: PositiveInt


class _Store(_Strict):
    kind: StoreKind
    url: str | None


class _Tokenizer(_Strict):
    name: str
    sha256: str


class _Chunks(_Strict):
    size: PositiveInt
    overlap: NonNegativeInt
    duplicates: Literal["drop", "keep"]


class _MadeFrom(_Strict):
    words: _Words
    encoder: _Encoder | None
    store: _Store | None
    tokenizer: _Tokenizer
    chunks: _Chunks


class _OpenedWith(_Strict):
    encoder: str | None
    vectors: str | None


class _File(_Strict):
    bytes: NonNegativeInt
    sha256: str


class _Shape(_Strict):
    """What a manifest must look like: its hash tells that it is as written, not that an index wrote it."""

    made_from: _MadeFrom
    opened_with: _OpenedWith
    sources: list[str]
    content: str
    counts: dict[str, int]
    versions: dict[str, str]
    files: dict[str, _File]
    format: int


def manifest_of(content: bytes, folder: Path) -> Manifest:
    """Read a manifest; RetrievalError for one of another format, and where it is none."""
    try:
        told = json.loads(content)
        if told["format"] != FORMAT:
            said = f"is an index of format {told['format']}, this version reads {FORMAT}"
            raise RetrievalError(f"{folder}: {said}; {_WAY_OUT}")
        _Shape.model_validate_json(content)
        files = {name: FileEntry(**entry) for name, entry in told.pop("files").items()}
        return Manifest(**{**told, "sources": tuple(told["sources"]), "files": files})
    except (ValueError, KeyError, TypeError) as error:
        raise RetrievalError(f"{folder}: {MANIFEST} is not one of an index; {_WAY_OUT}") from error


def library_versions() -> dict[str, str]:
    """The versions of what an index is made by, where it is installed."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def file_entries(folder: Path) -> dict[str, FileEntry]:
    """Size and hash of every file of a generation but its manifest."""
    return {name: FileEntry(bytes=path.stat().st_size, sha256=_hash(path)) for name, path in _listed(folder).items()}


def check_files(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Compare a generation's files with its manifest, sizes first; RetrievalError names one that is not as written."""
    listed = _listed(folder)
    for name, entry in files.items():
        if name not in listed:
            raise _damaged(folder, name, "is missing")
        if (size := listed[name].stat().st_size) != entry.bytes:
            raise _damaged(folder, name, f"has {size:,} bytes and not {entry.bytes:,}")
    if more := sorted(set(listed) - set(files)):
        raise _damaged(folder, more[0], "is not the index's")
    for name, entry in files.items():
        try:
            same = _hash(listed[name]) == entry.sha256
        except OSError as error:
            raise _damaged(folder, name, f"cannot be read ({error.strerror})") from error
        if not same:
            raise _damaged(folder, name, "is damaged: its hash is not the manifest's")


def _damaged(folder: Path, name: str, how: str) -> RetrievalError:
    return RetrievalError(f"{folder.parent.parent}: {folder.name}/{name} {how}; {_WAY_OUT}")


def _listed(folder: Path) -> dict[str, Path]:
    """Every file by its name in the folder; hidden ones, as file managers leave them, are nobody's."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if not path.is_dir()}
    return {
        name: path
        for name, path in paths.items()
        if name != MANIFEST and not any(part.startswith(".") for part in name.split("/"))
    }


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_others(folder: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare what an index is made of with what is asked for; RetrievalError names each difference."""
    if found := list(_differences(was, now)):
        raise RetrievalError(f"{folder}: the index has {'; '.join(found)}; give what it has, or {_WAY_OUT}")


def _differences(was: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Each value that is another; of two models of other weights the name alone says nothing."""
    for key in dict.fromkeys([*was, *now]):
        one, other = was.get(key), now.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{above}{key} ")
        elif one != other and key != "name":
            yield f"{above}{key} {_shown(one)}, asked is {_shown(other)}"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name", "another"))
    text = "none" if value is None else str(value)
    is_hash = len(text) == 64 and set(text) <= set("0123456789abcdef")
    return f"{text[:12]}…" if is_hash else repr(text) if isinstance(value, str) else text
