"""Which files a collection has: folders walked in one order, links and special files told and not followed."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from finetune.errors import RetrievalError
from finetune.rag.documents import Kind, Left, UnreadableError, one_line

ENDINGS: Mapping[str, Kind] = {
    ".txt": "txt", ".text": "txt", ".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html",
    ".xhtml": "html", ".pdf": "pdf", ".docx": "docx", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv",
    ".tsv": "csv", ".parquet": "dataset",
}  # fmt: skip
ALLOWED = f"allowed are folders, files ending in {', '.join(ENDINGS)}, and datasets of the hub as org/name"
_DATASET_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
# Without these a FIFO would wait for its writer, and a link put there after the look would be followed.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_HIDDEN = (".", "~$")  # .git and the like; what Word puts beside an open document
_SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class Found(NamedTuple):
    """A file to read, or a dataset id where the path is empty; its name is unique in the collection."""

    path: str
    name: str


def list_sources(sources: Sequence[str | os.PathLike[str]]) -> Iterator[Found | Left]:
    """Every file of every source in its order; RetrievalError, now, for a source that is not there.

    A name is the path in the source. Of several sources each name begins with its source's, with as many of that
    one's folders as tell it from the others.
    """
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    given = [os.fspath(source) for source in sources]
    if not given:
        raise RetrievalError("no documents: allowed are folders, files and dataset ids, at least one")
    for source in given:
        if not _exists(source) and not _may_be_dataset(source):
            raise RetrievalError(f"{one_line(shown(source))}: no file and no folder here, and no hub id; {ALLOWED}")
    return _listed(given, _prefixes(given))


def shown(path: str) -> str:
    r"""Give a path as text, a byte that is not UTF-8 as \xff."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def open_file(path: str) -> IO[bytes]:
    """Open a plain file and nothing else; UnreadableError for what is none."""
    _check_plain(os.lstat(path).st_mode)  # before it is opened, for opening a device can do something
    handle = os.open(path, _FLAGS)
    try:
        _check_plain(os.fstat(handle).st_mode)
    except UnreadableError:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def _check_plain(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise UnreadableError(f"is {_SPECIAL.get(stat.S_IFMT(mode), 'no file')}; allowed is a file")


def _exists(source: str) -> bool:
    try:
        return os.path.exists(source)
    except ValueError:  # a NUL in it
        return False


def _may_be_dataset(source: str) -> bool:
    """Whether a name can be a hub id; one with the ending of a document is a file that is not there."""
    return bool(_DATASET_ID.fullmatch(source)) and os.path.splitext(source)[1].lower() not in ENDINGS


def _prefixes(sources: Sequence[str]) -> list[str]:
    """What the names of each source begin with: nothing for a single one."""
    if len(sources) == 1:
        return [""]
    parts = [Path(os.path.realpath(source)).parts if _exists(source) else (source,) for source in sources]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return [shown(name) for name in names]
    twice = next(source for place, source in enumerate(sources) if parts[place] in parts[:place])
    raise RetrievalError(f"{shown(twice)}: is named twice; allowed is each source once")


def _listed(sources: Sequence[str], prefixes: Sequence[str]) -> Iterator[Found | Left]:
    seen: dict[tuple[int, int], str] = {}
    for source, prefix in zip(sources, prefixes, strict=True):
        if not _exists(source):
            yield Found(path="", name=source)
            continue
        top = os.path.realpath(source)
        if not os.path.isdir(top):
            yield _once(Found(path=top, name=prefix or shown(os.path.basename(top))), seen)
            continue
        for found in _walked(top, prefix):
            yield found if isinstance(found, Left) else _once(found, seen)


def _once(found: Found, seen: dict[tuple[int, int], str]) -> Found | Left:
    """The file, unless it was met under another name, as with a folder and one inside it."""
    try:
        status = os.lstat(found.path)
    except OSError as error:
        return Left(path=found.name, reason=f"cannot be read ({error.strerror})")
    first = seen.setdefault((status.st_dev, status.st_ino), found.name)
    return found if first == found.name else Left(path=found.name, reason=f"is the same file as {first}")


def _walked(top: str, prefix: str) -> Iterator[Found | Left]:
    """Files below a folder, sorted by name and depth first, without recursion: no tree is too deep."""
    waiting: list[tuple[str, str]] = [(top, prefix)]
    while waiting:
        path, name = waiting.pop()
        if path != top and os.path.basename(path).startswith(_HIDDEN):
            yield Left(path=name, reason="is hidden or a lock file; name it as a source to have it read")
            continue
        try:
            mode = os.lstat(path).st_mode
            entries = sorted(os.listdir(path)) if stat.S_ISDIR(mode) else []
        except OSError as error:
            yield Left(path=name, reason=f"cannot be read ({error.strerror})")
            continue
        if stat.S_ISLNK(mode):
            yield Left(path=name, reason=_why_not_followed(path, top))
        elif not stat.S_ISDIR(mode):
            yield Found(path=path, name=name)
        for entry in reversed(entries):
            inner = f"{name}/{shown(entry)}" if name else shown(entry)
            waiting.append((os.path.join(path, entry), inner))


def _why_not_followed(path: str, top: str) -> str:
    target = os.path.realpath(path)
    inside = os.path.commonpath([top, target]) == top
    if inside:
        return "is a link within the folder; what it names is read under its own name"
    return "is a link out of the folder; name its target as a source to have it read"
