"""Documents from folders and files of text, Markdown, HTML, PDF, DOCX, JSONL, CSV and Parquet, and from `datasets`.

Nothing in a file stops the others from being read: it becomes a document, whose text is data, or it is told as left.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from finetune.errors import DataError, RetrievalError
from finetune.rag.apart import KINDS, Apart
from finetune.rag.decoding import decoded
from finetune.rag.documents import (
    Columns,
    Content,
    Document,
    Kind,
    Left,
    Limits,
    UnreadableError,
    document_of,
    megabytes,
    one_line,
)
from finetune.rag.folders import ALLOWED, ENDINGS, Found, list_sources, open_file
from finetune.rag.rows import Row, rows_of_file

Progress = Callable[[str, int, int], None]  # stage, done, total
ROW_KINDS: tuple[Kind, ...] = ("jsonl", "csv", "dataset")
_HEADING = re.compile(r"^#{1,6}[ \t]+([^\r\n]{1,300})", re.MULTILINE)
_COLUMNS, _LIMITS = Columns(), Limits()


def read_documents(
    sources: Sequence[str | os.PathLike[str]],
    *,
    columns: Columns = _COLUMNS,
    limits: Limits = _LIMITS,
    progress: Progress | None = None,
) -> Iterator[Document | Left]:
    """Every document of the sources, always in the same order, and in between what was left out and why.

    RetrievalError, now, for a source that is not there, and while reading for a dataset id that cannot be had.
    """
    return _read(list(list_sources(sources)), columns, limits, progress or _silent)


def _silent(_stage: str, _done: int, _total: int) -> None:
    pass


def _read(
    files: Sequence[Found | Left], columns: Columns, limits: Limits, progress: Progress
) -> Iterator[Document | Left]:
    taken: set[str] = set()
    with Apart(limits) as apart:
        for place, file in enumerate(files, start=1):
            for one in _of_file(file, columns, limits, apart):
                if isinstance(one, Document) and one.id in taken:
                    yield Left(path=one.id, reason="is the name of another document as well")
                    continue
                if isinstance(one, Document):
                    taken.add(one.id)
                yield one
            progress("reading documents", place, len(files))


def _of_file(file: Found | Left, columns: Columns, limits: Limits, apart: Apart) -> Iterator[Document | Left]:
    if isinstance(file, Left):
        yield file
        return
    ending = os.path.splitext(file.name)[1].lower()
    try:
        if not file.path:
            rows = _dataset_rows(file.name, columns)
            yield from _documents_of_rows(rows, file, "dataset", columns, limits)
        elif ENDINGS.get(ending) in ROW_KINDS:
            with open_file(file.path) as opened:
                rows = rows_of_file(opened, ending=ending, columns=columns, limits=limits)
                yield from _documents_of_rows(rows, file, ENDINGS[ending], columns, limits)
        else:
            yield _document(file, ending, limits, apart)
    except UnreadableError as error:
        yield Left(path=file.name, reason=str(error))
    except OSError as error:
        yield Left(path=file.name, reason=f"cannot be read ({error.strerror or one_line(error)})")


# ---- files that are one document -------------------------------------------------------------------------------


def _document(file: Found, ending: str, limits: Limits, apart: Apart) -> Document:
    if ending not in ENDINGS:
        what = f"the ending {one_line(ending, 20)!r}" if ending else "no ending"
        raise UnreadableError(f"has {what}; allowed are {', '.join(ENDINGS)}")
    kind = ENDINGS[ending]
    with open_file(file.path) as opened:
        raw = opened.read(megabytes(limits.file_mb) + 1)
    if len(raw) > megabytes(limits.file_mb):
        raise UnreadableError(f"is larger than {limits.file_mb:g} MB")
    if not raw:
        raise UnreadableError("is empty")
    content = apart.read(kind, raw) if kind in KINDS else _plain(raw, kind)
    title = os.path.splitext(os.path.basename(file.name))[0]
    return document_of(content, id=file.name, kind=kind, title=title)


def _plain(raw: bytes, kind: Kind) -> Content:
    """The file's own characters, so that offsets are those of the file; Markdown has its first heading as title."""
    text = decoded(raw)
    heading = _HEADING.search(text) if kind == "markdown" else None
    return Content(text=text, title=heading.group(1).strip("# \t") if heading else "")


# ---- files of rows ---------------------------------------------------------------------------------------------


def _dataset_rows(name: str, columns: Columns) -> Iterator[Row]:
    """The rows of a dataset id, streamed."""
    from finetune.corpusfiles import rows_of  # it imports datasets, which takes a second
    from finetune.dataconfig import DataConfig

    config = DataConfig(train=(name,), kind="hub", split=columns.split, streaming=True)
    try:
        yield from ((number, row) for number, (_, row) in enumerate(rows_of(name, config, split=columns.split), 1))
    except DataError as error:
        raise RetrievalError(f"{name}: {_no_dataset(error)}; {ALLOWED}") from error


def _no_dataset(error: DataError) -> str:
    """Why a name that is no file gives no rows."""
    cause = error.__cause__
    if isinstance(cause, FileNotFoundError):
        return "no file and no folder here, and no dataset of the hub"
    if isinstance(cause, OSError):
        return "no file and no folder here, and the hub cannot be reached"
    return f"no file and no folder here, and no readable dataset of the hub ({one_line(cause or error, 120)})"


def _documents_of_rows(
    rows: Iterator[Row],
    file: Found,
    kind: Kind,
    columns: Columns,
    limits: Limits,
) -> Iterator[Document | Left]:
    """A document a row; after as many bad ones as the limits allow, the rest is left in one piece."""
    bad = found = 0
    for line, row in rows:
        try:
            yield _row_document(row, file, line, kind, columns)
            found += 1
        except UnreadableError as error:
            yield Left(path=f"{file.name}:{line}", reason=str(error))
            bad += 1
            if bad >= limits.bad_rows and next(islice(rows, 1), None) is not None:
                yield Left(path=file.name, reason=f"is not read past line {line}: {bad} rows before were left out")
                return
    if not found and not bad:
        raise UnreadableError("holds no rows")


def _row_document(
    row: Mapping[str, Any] | UnreadableError, file: Found, line: int, kind: Kind, columns: Columns
) -> Document:
    if isinstance(row, UnreadableError):
        raise row
    text = row.get(columns.text)
    if not isinstance(text, str):
        there = ", ".join(map(str, islice(row, 8)))
        wrong = f"column {columns.text!r} is no text" if columns.text in row else f"no column {columns.text!r}"
        raise UnreadableError(f"{wrong}; there are {one_line(there)}")
    named = row.get(columns.title)
    title = str(named) if isinstance(named, str | int | float) else ""
    return document_of(
        Content(text=text, title=title), id=f"{file.name}#{_row_id(row, line, columns)}", kind=kind, title=""
    )


def _row_id(row: Mapping[str, Any], line: int, columns: Columns) -> str:
    if columns.id is None:
        return str(line)
    given = row.get(columns.id)
    if not isinstance(given, str | int) or not str(given).isprintable() or given == "":
        raise UnreadableError(f"column {columns.id!r} gives no name; allowed is a text or a whole number")
    return str(given)
