"""Where a model lies: a name or a path -> checked files on this machine, built or downloaded if need be."""

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from probe import adapters, embedded
from probe.advice import collected_advice
from probe.buildonce import Progress
from probe.errors import ModelError
from probe.hub import hub_copy

ALLOWED = "allowed are builtin:NAME, a hub id (organisation/model), a checkpoint or adapter folder, or a .gguf file"
HUB_ID = r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model", "*.tiktoken")


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """Files that make up a model, and what is known of where they come from."""

    name: str
    folder: Path
    origin: Mapping[str, str]
    notes: tuple[str, ...] = ()
    gguf: str | None = None  # the file's name in the folder
    adapter: adapters.Adapter | None = None  # then `folder` is the base model's
    tokenizer: Path | None = None  # a folder, where it is not the model's


@dataclass(frozen=True, kw_only=True)
class Access:
    """How a source may be fetched."""

    revision: str | None = None
    code: bool = False  # Python files of a repository too
    progress: Progress | None = None
    weights: bool = True  # False: configuration and tokenizer alone, the weights need not be there


def find_source(source: str | Path, access: Access) -> Source:
    """The files behind `builtin:NAME`, a folder, a .gguf file or a hub id; raises ModelError if there are none."""
    text = str(source)
    if text.startswith("builtin:"):
        return _builtin(text, access)
    path, kind = _on_disk(text)
    if kind == "file":
        return _gguf(path, display_name(path))
    if kind == "folder":
        return _folder(path, display_name(path), access, origin={"source": "folder"})
    if isinstance(source, Path) or _looks_like_path(text) or not re.fullmatch(HUB_ID, text):
        raise ModelError(f"no such model: {text!r}; {ALLOWED}")
    near = get_close_matches(text, embedded.names(), n=1, cutoff=0.8)
    if near:
        raise ModelError(f"no such model: {text!r}; did you mean builtin:{near[0]}?")
    with collected_advice():  # a failed download says what failed in its error
        copy = hub_copy(
            text, revision=access.revision, code=access.code, progress=access.progress, weights=access.weights
        )
    return _folder(copy.folder, text, access, origin=copy.origin)


def display_name(path: Path) -> str:
    """A path's name for reports: a relative one as given, of an absolute one only the last part."""
    is_outside = path.is_absolute() or ".." in path.parts
    return (path.name if is_outside else "") or path.as_posix()


def has_tokenizer(folder: Path) -> bool:
    """Whether any tokenizer file stands in the folder."""
    return any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES)


def _on_disk(text: str) -> tuple[Path, Literal["file", "folder", "nothing"]]:
    try:
        path = Path(text).expanduser()
        return path, "file" if path.is_file() else "folder" if text and path.is_dir() else "nothing"
    except (OSError, RuntimeError):  # a name that no file can have, or ~ of a user that is not there
        return Path(text), "nothing"


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or "\\" in text or text.endswith(".gguf")


def _builtin(name: str, access: Access) -> Source:
    builtin = embedded.find(name)
    if access.revision:
        raise ModelError(f"{name} has no revisions; leave revision {access.revision!r} out")
    built = embedded.checkpoint(name, progress=access.progress)
    origin = {
        "source": "builtin",
        "package": builtin.package,
        "source_sha256": builtin.source_sha256,
        "result_sha256": built.result,
        "original": builtin.hub_id,
        "licence": builtin.licence,
    }
    return Source(name=f"builtin:{builtin.name}", folder=built.folder, origin=origin, notes=(builtin.note,))


def _folder(folder: Path, name: str, access: Access, *, origin: Mapping[str, str]) -> Source:
    if (folder / adapters.CONFIG).is_file():
        return _adapter(folder, name, access, origin=origin)
    if not (folder / "config.json").is_file():
        files = sorted(folder.glob("*.gguf"))
        if len(files) == 1:
            return _gguf(files[0], name)
        several = f" but {len(files)} .gguf files: name one of them" if files else ""
        raise ModelError(f"{name} has no config.json and no {adapters.CONFIG}{several}; {ALLOWED}")
    _check_config(folder, name)
    if access.weights:
        _check_weights(folder, name)
    return Source(name=name, folder=folder, origin=origin)


def _adapter(folder: Path, name: str, access: Access, *, origin: Mapping[str, str]) -> Source:
    adapter = adapters.read_adapter(folder, name)
    beside = folder / adapter.base  # a relative base may be meant from the adapter or from where we stand
    is_beside = not adapter.base.startswith("builtin:") and beside.is_dir()
    base_access = replace(access, revision=adapter.base_revision)
    try:
        base = find_source(beside if is_beside else adapter.base, base_access)
    except ModelError as error:
        raise ModelError(f"{name}: its base model cannot be had: {error}") from error
    if base.adapter is not None:
        raise ModelError(f"{name}: its base {adapter.base} is itself an adapter; merge that one into its base first")
    return Source(
        name=name,
        folder=base.folder,
        gguf=base.gguf,
        adapter=adapter,
        origin={
            **origin,
            "adapter": adapter.method,
            "base": base.name,
            **{f"base_{key}": value for key, value in base.origin.items()},
        },
        notes=base.notes,
        tokenizer=folder if has_tokenizer(folder) else None,
    )


def _gguf(path: Path, name: str) -> Source:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelError(f"{name} is no GGUF file (it starts with {magic!r}); {ALLOWED}")
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{name}: GGUF files are read with the package gguf: pip install gguf")
    note = f"{name}: weights read back from a GGUF file, which may hold them quantised"
    return Source(name=name, folder=path.parent, gguf=path.name, origin={"source": "gguf"}, notes=(note,))


def _check_config(folder: Path, name: str) -> None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{name}: config.json is not valid JSON: {error}") from error
    if not isinstance(config, dict) or not (config.get("model_type") or config.get("auto_map")):
        raise ModelError(f"{name}: config.json names no model_type, so it is no transformers checkpoint")


def _check_weights(folder: Path, name: str) -> None:
    """Refuses pickled, missing and damaged weights before anything is loaded."""
    files = list(_weight_files(folder, name))
    if not files:
        pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
        why = f"only pickled ones ({pickled[0]}), which can run code when read" if pickled else "no weights at all"
        raise ModelError(f"{name} has no safetensors weights, {why}; save it with model.save_pretrained(folder)")
    for path in files:
        _check_safetensors(path, name)


def _weight_files(folder: Path, name: str) -> Iterator[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        yield from sorted(folder.glob("*.safetensors"))
        return
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{name}: {index.name} is not valid: {error}") from error
    missing = sorted(shard for shard in shards if not (folder / shard).is_file())
    if missing:
        raise ModelError(f"{name}: {len(missing)} of {len(shards)} weight files are missing, first {missing[0]}")
    yield from (folder / shard for shard in sorted(shards))


def _check_safetensors(path: Path, name: str) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np"):  # reads the header and compares it with the file's length
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{name}: {path.name} is damaged or incomplete ({error}); fetch it anew") from error
