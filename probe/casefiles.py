"""Case files: YAML, JSONL and CSV read into plain records with their lines, every problem noted where it stands."""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Any

import yaml

from probe.errors import CasesError

_MOST_PROBLEMS = 20
_DEEPEST = 5  # document, list of cases, case, list of cues, one cue

_TAGS = (None, "tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_YAML_BREAKS = re.compile("[\x85\u2028\u2029]")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_COLUMNS = ("id", "text", "target", "cues", "marked", "sense", "group")

Numbered = Sequence[tuple[int, Any]]  # the line where a record begins, and the record


@dataclass
class Ledger:
    """The problems of one file, each a line that says where."""

    name: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what is no mistake, but may not be what was meant
    about_cues: str = ""  # how this kind of file tells several cues apart, where that can go wrong
    holds: str = "cases"  # what the file is to hold

    def add(self, line: int | None, problem: str) -> None:
        """Note a problem; a line of None means the whole file."""
        self.problems.append(f"{self.name}{f':{line}' if line else ''}: {problem}")

    def stop(self, line: int | None, problem: str) -> CasesError:
        """Give the error for a file that cannot be read on."""
        self.add(line, problem)
        return self.error()

    def error(self) -> CasesError:
        """Give one error for all problems: the one line, or a line that counts them and then a line for each."""
        count, lines = len(self.problems), self.problems[:_MOST_PROBLEMS]
        if count > 1:
            first = f", the first {len(lines)}" if len(lines) < count else ""
            lines = [f"{self.name}: {count} problems{first}:", *lines]
        return CasesError("\n".join(lines))


class Fields(dict[str, Any]):
    """A YAML mapping that knows the line of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def read_records(path: Traversable, ledger: Ledger) -> tuple[Mapping[str, Any], Numbered]:
    """Give what a cases file says of itself (only YAML can) and its records; CasesError if it cannot be read on."""
    return _READERS[PurePath(path.name).suffix.lower()](_read_text(path, ledger), ledger)


def shown(value: object) -> str:
    """Give a value short enough, and escaped enough, for a message of one line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…{text[-1]}"


def nearest(name: str, valid: Iterable[str]) -> str:
    """Give the end of a message about an unknown name: the nearest valid one, and all of them."""
    close = difflib.get_close_matches(name, tuple(valid), n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]}?" if close else ";"
    return f"{meant} allowed are {', '.join(valid)}"


def _read_text(path: Traversable, ledger: Ledger) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ledger.stop(None, f"cannot be read ({error.strerror}); allowed is a file that you may read") from None
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise ledger.stop(None, f"is UTF-16 (it begins with {data[:2].hex(' ').upper()}); allowed is UTF-8: save it so")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        what = f"byte {error.start} (0x{data[error.start]:02X}) is not UTF-8"
        line = data.count(b"\n", 0, error.start) + 1
        raise ledger.stop(line, f"{what}; allowed is UTF-8: save it so (GBK and others are not guessed)") from None
    if (nul := text.find("\0")) >= 0:
        line = text.count("\n", 0, nul) + 1
        raise ledger.stop(line, "has a NUL character; allowed is text in UTF-8")
    if not text.removeprefix("\ufeff").strip():
        raise ledger.stop(None, f"is empty; allowed is a file with one or more {ledger.holds}")
    return text.removeprefix("\ufeff")


def _read_jsonl(text: str, ledger: Ledger) -> tuple[Mapping[str, Any], Numbered]:
    records: list[tuple[int, Any]] = []
    # Not splitlines: U+2028 and its kin may stand inside a JSON string.
    for line, content in enumerate(text.split("\n"), start=1):
        try:
            if content.strip():
                records.append((line, json.loads(content, object_pairs_hook=_once)))
        except _TwiceError as error:
            ledger.add(line, str(error))
        except json.JSONDecodeError as error:
            ledger.add(line, f"broken JSON ({error.msg}, column {error.colno}); allowed is one object a line")
        except (ValueError, RecursionError) as error:
            ledger.add(line, f"JSON that cannot be read ({error}); allowed is one object a line")
    return {}, records


class _TwiceError(Exception):
    """A key stands twice in one mapping."""

    def __init__(self, key: str) -> None:
        super().__init__(f"field {shown(key)} stands twice in one mapping; allowed is once")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise _TwiceError(key)
        content[key] = value
    return content


def _read_csv(text: str, ledger: Ledger) -> tuple[Mapping[str, Any], Numbered]:
    ledger.about_cues = "several cues are divided by |"
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    records: list[tuple[int, Any]] = []
    try:
        header = [cell.strip() for cell in next(reader)]
        _check_columns(header, ledger)
        line = reader.line_num + 1
        for row in reader:
            if any(row) and len(row) != len(header):
                ledger.add(line, f"the row has {len(row)} cells; allowed are {len(header)}, as in the header")
            elif any(row):
                cells = {name: cell for name, cell in zip(header, row, strict=True) if cell}
                cues = {"cues": cells["cues"].split("|")} if "cues" in cells else {}
                records.append((line, cells | cues))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ledger.stop(reader.line_num, f"broken CSV ({error}); allowed are cells between commas") from None
    return {}, records


def _check_columns(header: Sequence[str], ledger: Ledger) -> None:
    for number, name in enumerate(header):
        if name not in _COLUMNS:
            ledger.add(1, f"unknown column {shown(name)}{nearest(name, _COLUMNS)}")
        elif name in header[:number]:
            ledger.add(1, f"column {name} stands twice; allowed is once")
    if ledger.problems:
        raise ledger.error()


def _read_yaml(text: str, ledger: Ledger) -> tuple[Mapping[str, Any], Numbered]:
    if odd := _YAML_BREAKS.search(text):
        what = f"U+{ord(odd.group()):04X} is a line break in YAML, and would not come back as it is"
        raise ledger.stop(
            text.count("\n", 0, odd.start()) + 1, f"{what}; allowed is \\u{ord(odd.group()):04x} in quotes"
        )
    # Events, not objects: tags, aliases and deep nesting are refused before anything is built.
    events = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        content = _document(events, ledger)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ledger.stop(mark.line + 1 if mark else 1, f"broken YAML ({error.problem})") from None
    except yaml.reader.ReaderError as error:
        raise ledger.stop(_line_of(error, text), f"broken YAML ({error.reason})") from None
    header = content if isinstance(content, Fields) else Fields()
    line, cases = header.lines.get("cases", 1), header.pop("cases", content if header is not content else None)
    if isinstance(cases, _Items):
        return header, list(zip(cases.lines, cases, strict=True))
    if cases is not None:
        ledger.add(line, f"{shown(cases)} is no list of cases; allowed is a list, alone or as `cases:` of a mapping")
    return header, ()


class _Items(list[Any]):
    """A YAML list that knows the line of each item."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []


def _document(events: Iterator[Any], ledger: Ledger) -> Any:
    """Give the content of the one document of a YAML stream, None where there is none."""
    next(events)
    if isinstance(next(events), yaml.StreamEndEvent):
        return None
    content = _content(next(events), events, ledger, depth=1)
    next(events)
    after = next(events)
    if not isinstance(after, yaml.StreamEndEvent):
        raise ledger.stop(after.start_mark.line + 1, "a second YAML document begins; allowed is one")
    return content


def _content(event: Any, events: Iterator[Any], ledger: Ledger, *, depth: int) -> Any:
    """Give the Fields, _Items, text, number or None that an event begins."""
    line = event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent):
        raise ledger.stop(line, f"alias *{event.anchor} is refused; allowed is the text written out")
    if event.tag not in _TAGS:
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        raise ledger.stop(line, f"tag {shown(tag)} is refused, nothing is built from it; allowed is plain text")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if depth > _DEEPEST:
        raise ledger.stop(line, f"lists and mappings are nested more than {_DEEPEST} deep; allowed is less")
    build = _mapping if isinstance(event, yaml.MappingStartEvent) else _sequence
    return build(events, ledger, depth=depth)


def _sequence(events: Iterator[Any], ledger: Ledger, *, depth: int) -> _Items:
    items = _Items()
    while not isinstance(event := next(events), yaml.SequenceEndEvent):
        items.lines.append(event.start_mark.line + 1)
        items.append(_content(event, events, ledger, depth=depth + 1))
    return items


def _mapping(events: Iterator[Any], ledger: Ledger, *, depth: int) -> Fields:
    fields = Fields()
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        line = event.start_mark.line + 1
        if not isinstance(event, yaml.ScalarEvent):
            raise ledger.stop(line, "a list or mapping stands as a key; allowed is a text")
        if event.value in fields:
            first = fields.lines[event.value]
            ledger.add(line, f"field {shown(event.value)} stands twice: here and in line {first}; allowed is once")
        fields.lines[event.value] = line
        fields[event.value] = _content(next(events), events, ledger, depth=depth + 1)
    return fields


def _scalar(event: Any) -> str | int | None:
    """Give a scalar as it was written: only numbers that read back the same become int, only empty ones None."""
    value: str = event.value
    if not event.implicit[0]:  # quoted, a block, or tagged !!str
        return value
    if value in _NULLS:
        return None
    return int(value) if len(value) < 10 and value.isascii() and value.isdigit() and str(int(value)) == value else value


def _line_of(error: Any, text: str) -> int:
    """Give the line of an unprintable character: libyaml counts bytes, PyYAML's own reader characters."""
    data = text.encode()[: error.position] if error.encoding == "?" else text[: error.position].encode()
    return data.count(b"\n") + 1


_Reader = Callable[[str, Ledger], tuple[Mapping[str, Any], Numbered]]
_READERS: dict[str, _Reader] = {".yaml": _read_yaml, ".yml": _read_yaml, ".jsonl": _read_jsonl, ".csv": _read_csv}
SUFFIXES = tuple(_READERS)
