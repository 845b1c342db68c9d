"""A folder that is built once into the user's cache and then only read: never half-built, never silently damaged."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import ModelError

Progress = Callable[[str], None]
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one folder comes about.

    `identity` says what the folder is made from (source hash, builder version): if it changes, the folder is built
    again. `write` fills an empty folder; what it raises as OSError is reported as one line.
    """

    name: str
    identity: Mapping[str, str]
    bytes_needed: int
    write: Callable[[Path, Progress], None]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A complete folder and the hash over its files (their names and SHA-256)."""

    folder: Path
    result: str
    identity: Mapping[str, str]


def cache_folder() -> Path:
    """Where this program keeps what it builds: $XDG_CACHE_HOME/cijing, else ~/.cache/cijing."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cijing"


def build_once(recipe: Recipe, folder: Path, *, progress: Progress | None = None) -> Built:
    """The folder, built if it is missing, half-built, damaged, or made from something else."""
    built = intact(folder, recipe.identity)
    if built is not None:
        return built
    say = progress or (lambda _message: None)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_builder(folder, say):
            return _mended(folder, recipe.identity) or _build(recipe, folder, say)
    except OSError as error:
        raise ModelError(f"{recipe.name} cannot be built in {folder.parent}: {_reason(error)}") from error


def intact(folder: Path, identity: Mapping[str, str] | None = None) -> Built | None:
    """The folder if its files are those of the manifest, judged by size and time of change; otherwise None.

    Hashing a gigabyte takes about a second, so it is done once, when the folder is built, and again only if a
    file's time of change is not the recorded one (see `_mended`). A byte that flips on the disk without any write
    is not noticed.
    """
    manifest = _read_manifest(folder)
    if manifest is None or not _made_from(manifest, identity):
        return None
    for name, entry in manifest["files"].items():
        try:
            status = (folder / name).stat()
        except OSError:
            return None
        if (status.st_size, status.st_mtime_ns) != (entry["size"], entry["changed"]):
            return None
    return _built(folder, manifest)


def _mended(folder: Path, identity: Mapping[str, str]) -> Built | None:
    """A folder whose files were copied or touched but hash as recorded; their new times are written down."""
    manifest = _read_manifest(folder)
    if manifest is None or not _made_from(manifest, identity):
        return None
    try:
        files = {name: _file_entry(folder / name) for name in manifest["files"]}
    except OSError:
        return None
    if any(files[name]["sha256"] != entry["sha256"] for name, entry in manifest["files"].items()):
        return None
    _write_manifest(folder, files, manifest["identity"])
    return _built(folder, {"files": files, "identity": manifest["identity"]})


def _build(recipe: Recipe, folder: Path, say: Progress) -> Built:
    """Writes into a temporary neighbour and renames it; whatever goes wrong, the neighbour is removed."""
    for left_over in folder.parent.glob(f".{folder.name}.*"):
        if left_over.is_dir():  # by a process that was killed: we hold the lock, so nobody works there
            shutil.rmtree(left_over, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < recipe.bytes_needed:
        raise ModelError(
            f"{recipe.name} needs {_megabytes(recipe.bytes_needed)} in {folder.parent}, where "
            f"{_megabytes(free)} are free; make room or set XDG_CACHE_HOME to another disk"
        )
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".building", dir=folder.parent))
    try:
        recipe.write(draft, say)
        for path in draft.iterdir():
            path.chmod(0o644)  # some writers make their files private to the user
        files = {path.name: _file_entry(path) for path in sorted(draft.iterdir())}
        _write_manifest(draft, files, recipe.identity)
        draft.chmod(0o755)
        _put_in_place(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    built = intact(folder, recipe.identity)
    if built is None:
        raise ModelError(f"{recipe.name} was built in {folder.parent}, but something else changed it there")
    return built


def _put_in_place(draft: Path, folder: Path) -> None:
    """Renames the draft; if another process without our lock was faster, its folder stays."""
    if folder.exists():
        discarded = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".discarded", dir=folder.parent))
        folder.rename(discarded / folder.name)
        shutil.rmtree(discarded, ignore_errors=True)
    try:
        draft.rename(folder)
    except OSError:
        if intact(folder) is None:
            raise


@contextmanager
def _one_builder(folder: Path, say: Progress) -> Iterator[None]:
    """Only one process builds a folder at a time; on file systems without locks the rename alone has to do."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.parent / f".{folder.name}.lock")
    with suppress(NotImplementedError):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"waiting for another process that builds {folder.name}")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["result"] == _result(manifest["files"]) and manifest["files"]:
            return dict(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _write_manifest(folder: Path, files: Mapping[str, Any], identity: Mapping[str, str]) -> None:
    content = {"identity": dict(identity), "result": _result(files), "files": dict(files)}
    draft = folder / f"{MANIFEST}.new"
    draft.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(folder / MANIFEST)


def _made_from(manifest: Mapping[str, Any], identity: Mapping[str, str] | None) -> bool:
    return identity is None or manifest.get("identity") == dict(identity)


def _built(folder: Path, manifest: Mapping[str, Any]) -> Built:
    return Built(folder=folder, result=_result(manifest["files"]), identity=manifest["identity"])


def _result(files: Mapping[str, Any]) -> str:
    lines = "".join(f"{files[name]['sha256']}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def _file_entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    status = path.stat()
    return {"sha256": digest, "size": status.st_size, "changed": status.st_mtime_ns}


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _reason(error: OSError) -> str:
    return error.strerror or str(error).splitlines()[0]
