"""Rows of JSONL, CSV and Parquet files, one at a time, each with its line; what is broken is told and passed over."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any, Literal

import pyarrow
import pyarrow.parquet

from finetune.rag.decoding import encoding_of
from finetune.rag.documents import Columns, Limits, UnreadableError, megabytes, one_line

Row = tuple[int, Mapping[str, Any] | UnreadableError]  # the line that it begins on, and its columns
_SAMPLE = 2**20
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_LONGEST_FIELD = 2**31 - 1  # csv refuses a field above 131,072 characters unless told


def rows_of_file(file: IO[bytes], *, ending: str, columns: Columns, limits: Limits) -> Iterator[Row]:
    """The rows of an open file, an UnreadableError in a bad one's place; raised, one is about the whole file."""
    if ending == ".parquet":
        return _parquet_rows(file, columns)
    lines = _lines(file, longest=megabytes(limits.row_mb))
    if ending in (".jsonl", ".ndjson"):
        return _json_rows(lines)
    return _csv_rows(lines, "\t" if ending == ".tsv" else ",", columns=columns, limits=limits)


def _lines(file: IO[bytes], *, longest: int) -> Iterator[tuple[int, str | UnreadableError]]:
    """Number and text of each line with its end; of one that is too long nothing is kept."""
    text = io.TextIOWrapper(file, encoding=_encoding(file), errors="surrogateescape", newline="")
    number = 0
    while True:
        number += 1
        try:
            line = text.readline(longest + 1)
            if len(line) > longest and not line.endswith(("\n", "\r")):
                _skip_line(text)
                yield number, UnreadableError(f"is longer than {longest >> 20} MB")
                continue
        except UnicodeDecodeError as error:
            yield number, UnreadableError(f"and what follows is not {error.encoding.upper()}")
            return
        if not line:
            return
        found = _NO_TEXT.search(line)
        yield number, line if not found else UnreadableError(_wrong(found.group(), found.start(), text.encoding))


def _encoding(file: IO[bytes]) -> str:
    """The encoding that the file's beginning is in; UTF-8 where it is in none, so that its bad lines are told."""
    sample = file.read(_SAMPLE)
    file.seek(0)
    try:
        return encoding_of(sample, whole=len(sample) < _SAMPLE)
    except UnreadableError:
        return "utf-8"


def _skip_line(text: io.TextIOWrapper) -> None:
    while (piece := text.readline(_SAMPLE)) and not piece.endswith(("\n", "\r")):
        pass


def _wrong(character: str, place: int, encoding: str) -> str:
    if character == "\0":
        return f"has a NUL at character {place}; allowed is text"
    return f"has at character {place} a byte that is not {encoding.upper()}"


def _json_rows(lines: Iterator[tuple[int, str | UnreadableError]]) -> Iterator[Row]:
    for number, line in lines:
        if isinstance(line, UnreadableError):
            yield number, line
        elif line.strip():
            yield number, _json_row(line)


def _json_row(line: str) -> Mapping[str, Any] | UnreadableError:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # no JSON; a number of thousands of digits; nested too deeply
        return UnreadableError(f"is no usable JSON ({one_line(error)})")
    return row if isinstance(row, dict) else UnreadableError("is no JSON object; allowed is one object a line")


class _Feed:
    """The lines that csv asks for; too long a row and a bad line are raised, and reading goes on after them."""

    def __init__(self, lines: Iterator[tuple[int, str | UnreadableError]], longest: int) -> None:
        self.lines = lines
        self.longest = longest
        self.number = 0
        self.size = 0  # characters of the row so far

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.number, line = next(self.lines)
        if isinstance(line, UnreadableError):
            raise line
        self.size += len(line)
        if self.size > self.longest:
            raise UnreadableError(f"begins a row longer than {self.longest >> 20} MB; is a quote never closed?")
        return line


def _csv_rows(
    lines: Iterator[tuple[int, str | UnreadableError]], delimiter: str, *, columns: Columns, limits: Limits
) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    feed = _Feed(lines, megabytes(limits.row_mb))
    # Quotes in .tsv are letters, as text/tab-separated-values has it.
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(feed, delimiter=delimiter, quoting=quoting, strict=True)
    names: list[str] | None = None
    while True:
        start, feed.size = feed.number + 1, 0
        try:
            fields = next(reader)
        except StopIteration:
            return
        except (csv.Error, UnreadableError) as error:
            yield (
                start,
                error if isinstance(error, UnreadableError) else UnreadableError(f"is no CSV ({one_line(error)})"),
            )
            continue
        if not any(field.strip() for field in fields):
            continue
        if names is None:
            names = _names(fields) if columns.header else [str(n + 1) for n in range(len(fields))]
            if columns.header:
                continue
        yield start, _fields(names, fields)


def _names(header: list[str]) -> list[str]:
    """The columns' names; UnreadableError where one stands twice, since a row could keep only one of its fields."""
    names = [name.strip() for name in header]
    for place, name in enumerate(names):
        if name and name in names[:place]:  # columns without a name may be several: nobody can ask for them
            raise UnreadableError(f"has two columns named {one_line(name, 80)!r}; allowed is each name once")
    return names


def _fields(names: list[str], fields: list[str]) -> Mapping[str, Any] | UnreadableError:
    if len(fields) != len(names):
        return UnreadableError(f"has {len(fields)} fields, and the first row has {len(names)}")
    return dict(zip(names, fields, strict=True))


def _parquet_rows(file: IO[bytes], columns: Columns) -> Iterator[Row]:
    try:
        table = pyarrow.parquet.ParquetFile(file)
        there = table.schema_arrow.names
        wanted = [name for name in (columns.text, columns.title, columns.id) if name in there]
        if columns.text not in wanted:
            raise UnreadableError(f"has no column {columns.text!r}; there are {one_line(', '.join(there))}")
        number = 0
        for batch in table.iter_batches(batch_size=1000, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UnreadableError(f"is no readable Parquet ({one_line(error)})") from error
