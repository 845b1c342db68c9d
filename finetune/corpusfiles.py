"""Rows of a corpus from text, JSONL, CSV, Parquet, case sets, MCL-WiC and the hub, each with the place it came from."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from finetune.dataconfig import DataConfig, Kind
from finetune.errors import DataError
from probe import CijingError, load_cases, shipped_sets

Row = tuple[str, Mapping[str, Any]]  # where it stands, as file:line, and its columns
SUFFIXES: Mapping[str, Kind] = {
    ".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
    ".yaml": "cases", ".yml": "cases", ".data": "mcl-wic",
}  # fmt: skip
OWN_COLUMNS: tuple[Kind, ...] = ("text", "cases", "mcl-wic")  # their columns have our names, whatever a config says
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_LONGEST_FIELD = 2**31 - 1  # csv refuses a field above 131,072 characters unless told


def kind_of(source: str, kind: Kind = "auto") -> Kind:
    """What a source is; DataError where it is neither a file that is there, a shipped case set nor a hub id."""
    if kind == "hub" or (kind in ("auto", "cases") and source in shipped_sets()):
        return "hub" if kind == "hub" else "cases"
    path = Path(source)
    suffix = path.suffix.lower()
    if kind == "auto" and suffix not in SUFFIXES and not path.exists() and _HUB_ID.fullmatch(source):
        return "hub"
    try:
        with path.open("rb"):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{source}: cannot be read ({reason}); allowed is {_allowed()}") from None
    if kind != "auto":
        return kind
    if suffix not in SUFFIXES:
        raise DataError(f"{source}: the ending {suffix!r} tells no kind; allowed is {_allowed()}, or set data.kind")
    return SUFFIXES[suffix]


def _allowed() -> str:
    return f"a file ending in {', '.join(SUFFIXES)}, a case set ({', '.join(shipped_sets())}) or a hub id"


def rows_of(source: str, config: DataConfig, *, split: str) -> Iterator[Row]:
    """The rows of one source, read as they are asked for; DataError names file and line of what cannot be read."""
    kind = kind_of(source, config.kind)
    if kind == "hub":
        return _hub(source, config, split)
    readers = {
        "text": _text, "jsonl": _jsonl, "csv": _csv, "parquet": _parquet, "cases": _cases, "mcl-wic": mcl_wic,
    }  # fmt: skip
    return readers[kind](source)


def _lines(source: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line, its end kept; a byte order mark is dropped, a NUL or a byte not UTF-8 refused."""
    with Path(source).open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{source}:{number}: byte {error.start} is not UTF-8; allowed is UTF-8") from None
            if "\0" in line:
                raise DataError(f"{source}:{number}: has a NUL at offset {line.index(chr(0))}; allowed is text")
            yield number, line.removeprefix("\ufeff") if number == 1 else line


def _text(source: str) -> Iterator[Row]:
    """A document a line; blank lines stand between."""
    for number, line in _lines(source):
        if text := line.strip():
            yield f"{source}:{number}", {"text": text}


def _jsonl(source: str) -> Iterator[Row]:
    for number, line in _lines(source):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        row = _json(line, where)
        if not isinstance(row, dict):
            raise DataError(f"{where}: is {_kind_in_json(row)}; allowed is one JSON object a line")
        yield where, row


def _json(content: str, where: str) -> Any:
    """What JSON says; an error in a content of several lines names its own line."""
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        line = f"{where.rpartition(':')[0]}:{error.lineno}" if content.count("\n") > 1 else where
        raise DataError(f"{line}: is no JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets nested too deeply
        raise DataError(f"{where}: is no usable JSON ({' '.join(str(error).split())})") from None


def _kind_in_json(value: object) -> str:
    return "a list" if isinstance(value, list) else "a text" if isinstance(value, str) else repr(value)


def _csv(source: str) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_FIELD)
    delimiter = "\t" if source.lower().endswith(".tsv") else ","
    reader = csv.reader((line for _, line in _lines(source)), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for fields in reader:
            where, line = f"{source}:{line}", reader.line_num + 1
            if not fields or (header is None and not "".join(fields).strip()):
                continue
            if header is None:
                header = _header(fields, where)
                continue
            if len(fields) != len(header):
                raise DataError(f"{where}: has {len(fields)} fields; the header names {len(header)}")
            yield where, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise DataError(f"{source}:{line}: is no CSV ({error})") from None


def _header(fields: Sequence[str], where: str) -> list[str]:
    names = [name.strip() for name in fields]
    if len(set(names)) < len(names) or "" in names:
        raise DataError(f"{where}: the header has {', '.join(map(repr, names))}; allowed are names, each once")
    return names


def _parquet(source: str) -> Iterator[Row]:
    try:  # streamed, or a copy of the file would be written to the cache
        rows = datasets.load_dataset("parquet", data_files={"train": source}, split="train", streaming=True)
        for number, row in enumerate(rows, start=1):
            yield f"{source}: row {number}", row
    except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:  # ArrowInvalid is a ValueError
        raise DataError(f"{source}: is no readable Parquet ({_one_line(error)})") from error


def _hub(source: str, config: DataConfig, split: str) -> Iterator[Row]:
    place = f"{source}[{split}]"
    try:
        rows = datasets.load_dataset(
            source, config.subset, split=split, revision=config.revision, streaming=config.streaming
        )
    except Exception as error:  # what a hub that is out of reach raises is of many kinds, and of several libraries
        raise DataError(f"{place}: cannot be had from the hub ({_one_line(error)}); allowed is {_allowed()}") from error
    named = (rows.features or {}).get(config.label)
    names = named.names if isinstance(named, datasets.ClassLabel) else None
    for number, row in enumerate(rows, start=1):
        label = row.get(config.label)
        if names is not None and isinstance(label, int) and 0 <= label < len(names):
            row = {**row, config.label: names[label]}
        yield f"{place}: row {number}", row


def _one_line(error: Exception) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 200 else words[:199] + "…"


def _cases(source: str) -> Iterator[Row]:
    """Our own case sets: the sense is the label, and the target is to read each of its cues."""
    try:
        cases = load_cases(source).cases
    except CijingError as error:
        raise DataError("; ".join(str(error).splitlines())) from error
    for case in cases:
        target = [case.target.start, case.target.end]
        pairs = [{"query": target, "key": [cue.start, cue.end]} for cue in case.cues]
        row = {"id": case.id, "text": case.text, "target": target, "group": case.group, "pairs": pairs}
        yield f"{source}: case {case.id}", {**row, "label": case.sense or None}


def mcl_wic(source: str) -> Iterator[Row]:
    """Rows of SemEval-2021 Task 2 (MCL-WiC): NAME.data, and beside it NAME.gold with the answers.

    `.data` is a JSON list of {id, lemma, pos, sentence1, sentence2, start1, end1, start2, end2}, its half-open
    character offsets written as strings; `.gold` a JSON list of {id, tag}, T for one sense and F for two. The lemma
    is the group, so that no word stands in two parts. DataError names the entry.
    """
    gold_file = str(Path(source).with_suffix(".gold"))
    tags: dict[str, str] = {}
    for where, entry in _entries(gold_file, ("id", "tag")):
        if entry["id"] in tags:
            raise DataError(f"{where}: id {entry['id']!r} stands twice")
        tags[entry["id"]] = entry["tag"]
    names = ("id", "lemma", "sentence1", "sentence2", "start1", "end1", "start2", "end2")
    for where, entry in _entries(source, names):
        if entry["id"] not in tags:
            raise DataError(f"{where}: {gold_file} has no tag for {entry['id']!r}")
        row = {"id": entry["id"], "group": entry["lemma"], "text": entry["sentence1"], "second": entry["sentence2"]}
        target, second = (_offsets(entry, number, where) for number in (1, 2))
        yield where, {**row, "target": target, "second_target": second, "label": tags[entry["id"]]}


def _entries(source: str, names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The entries of a JSON list, each an object that has these names as strings."""
    try:
        content = "".join(line for _, line in _lines(source))
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror})") from None
    entries = _json(content, f"{source}:1")
    if not isinstance(entries, list):
        raise DataError(f"{source}:1: is no JSON list of entries")
    for number, entry in enumerate(entries, start=1):
        where = f"{source}: entry {number}"
        wrong = [name for name in names if not isinstance(entry, dict) or not isinstance(entry.get(name), str)]
        if wrong:
            raise DataError(f"{where}: lacks {', '.join(wrong)}; allowed are {', '.join(names)}, each a string")
        yield where, entry


def _offsets(entry: Mapping[str, str], number: int, where: str) -> list[int]:
    given = [entry[f"{name}{number}"] for name in ("start", "end")]
    if not all(offset.isascii() and offset.isdigit() for offset in given):
        raise DataError(f"{where}: start{number}, end{number} are {', '.join(given)}; allowed are whole numbers")
    return [int(offset) for offset in given]
