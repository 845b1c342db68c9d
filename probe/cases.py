"""Cases: one ambiguous word in one text, where it stands, its sense, and the words that tell the sense."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from probe.casefiles import SUFFIXES, Fields, Ledger, Numbered, nearest, read_records, shown
from probe.errors import CasesError
from probe.given import is_a, whole_number
from probe.spans import Span

_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
_CLOSING = {"[": "]", "{": "}"}
_MARK = re.compile(r"(\\.?|[\[\]{}])", re.DOTALL)
_ESCAPED = frozenset({r"\[", r"\]", r"\{", r"\}", r"\\"})
_MARKS = r"allowed are one [target], any {cue}, and a backslash before [ ] { } \ taken literally"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One target word in one text, its spans checked against the text; CasesError where it cannot be used."""

    id: str
    text: str
    target: Span
    sense: str = ""
    cues: Sequence[Span] = ()
    group: str = ""
    meta: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if isinstance(self.cues, list):
            object.__setattr__(self, "cues", tuple(self.cues))
        problems = list(_wrong_kinds(vars(self))) or list(_problems_of(self))
        if problems:
            raise CasesError(f"case {shown(self.id)}: {'; '.join(problems)}")


@dataclass(frozen=True, kw_only=True)
class CaseSet:
    """Cases under one name; `digest` is the SHA-256 of the cases in their order, whatever file they came from."""

    name: str
    cases: tuple[Case, ...]
    digest: str = ""
    language: str = ""
    description: str = ""
    notes: tuple[str, ...] = ()  # what may not be meant as it stands in the file; not in the digest

    def __post_init__(self) -> None:
        if not self.cases:
            raise CasesError(f"case set {shown(self.name)}: holds no cases; allowed is one or more")
        if len({case.id for case in self.cases}) < len(self.cases):
            raise CasesError(
                f"case set {shown(self.name)}: two cases have one id; allowed is an id of its own for each"
            )
        if not self.digest:
            object.__setattr__(self, "digest", _digest(self.cases))


def load_cases(source: str | Path) -> CaseSet:
    """Give the cases of a shipped set (by name) or of a .yaml, .yml, .jsonl or .csv file.

    Every problem of the file is collected; CasesError then has one line for each, with file and line.
    """
    path, name = _locate(source)
    ledger = Ledger(name)
    about, records = read_records(path, ledger)
    header = _validated(_Header, about, 1, ledger) or _Header()
    cases = _read_cases(records, ledger)
    if not records and not ledger.problems:
        ledger.add(None, "holds no cases; allowed is one or more")
    if ledger.problems:
        raise ledger.error()
    return CaseSet(
        name=header.set or Path(path.name).stem,
        cases=tuple(cases),
        language=header.language,
        description=header.description,
        notes=tuple(ledger.notes[:1]),  # one line says it: a file is written in one way throughout
    )


def shipped_sets() -> tuple[str, ...]:
    """Give the names of the case sets that come with the package."""
    names = (Path(entry.name) for entry in (files("probe") / "data").iterdir())
    return tuple(sorted(name.stem for name in names if name.suffix == ".yaml"))


def case_of(
    text: str,
    *,
    target: str | Span,
    cues: Sequence[str | Span] = (),
    occurrence: int = 1,
    id: str = "text",
) -> Case:
    """Give the case of a text whose target and cues are named as words, as in 我喜欢苹果 with target 苹果.

    `occurrence` counts the target word from 1; a cue word that stands more than once is given as a Span.
    """
    is_a(id, str, "id", wanted="a text", error=CasesError)
    name = f"case {shown(id)}"
    is_a(text, str, f"{name}: text", wanted="a text", error=CasesError)
    if isinstance(cues, str):
        raise CasesError(f"{name}: cues is the word {shown(cues)}; allowed is a list of words")
    if not isinstance(cues, Iterable):
        raise CasesError(f"{name}: cues is {shown(cues)}; allowed is a list of words")
    occurrence = whole_number(occurrence, f"{name}: occurrence", error=CasesError)
    problems: list[str] = []
    where = _named(target, "target", text, problems, occurrence=occurrence)
    spans = [_named(cue, "cue", text, problems) for cue in cues]
    if where is None or problems:
        raise CasesError(f"case {shown(id)}: {'; '.join(problems)}")
    return Case(id=id, text=text, target=where, cues=tuple(span for span in spans if span))


# --- what a case must be -------------------------------------------------------------------------------------


def _wrong_kinds(given: Mapping[str, Any]) -> Iterator[str]:
    """The fields that are of another kind than a case's, which would only fail later, and speak of internals then."""
    for name in ("id", "text", "sense", "group"):
        if not isinstance(given[name], str):
            yield f"{name} is {shown(given[name])}; allowed is a text"
    if not isinstance(given["target"], Span):
        yield f"target is {shown(given['target'])}; allowed is a Span (case_of takes words)"
    cues, meta = given["cues"], given["meta"]
    if not isinstance(cues, tuple) or not all(isinstance(cue, Span) for cue in cues):
        yield f"cues is {shown(cues)}; allowed is a list of Spans (case_of takes words)"
    if not isinstance(meta, Mapping) or not all(isinstance(part, str) for pair in meta.items() for part in pair):
        yield f"meta is {shown(meta)}; allowed is a mapping of names to texts"


def _problems_of(case: Case) -> Iterator[str]:
    if not case.id.strip():
        yield "the id is empty; allowed is any text"
    for name, value in _strings(case):
        if found := _UNWRITABLE.search(value):
            what = "NUL" if found.group() == "\0" else f"half a character (U+{ord(found.group()):04X})"
            yield f"{name} has {what} at offset {found.start()}; allowed is text that UTF-8 can hold, without NUL"
    if not case.text.strip():
        yield "the text is empty; allowed is at least one character that is not white space"
        return
    named = [("target", case.target), *(("cue", cue) for cue in case.cues)]
    for name, span in named:
        if span.end > len(case.text):
            yield f"{name} [{span.start}, {span.end}] lies outside the text, which has {len(case.text)} characters"
        elif not span.cut(case.text).strip():
            yield f"{name} [{span.start}, {span.end}] is empty; allowed is a word"
    for (name, span), (other, later) in combinations(named, 2):
        if span.overlaps(later):
            words = f"{other} {shown(case.text[later.start : later.end])} overlaps"
            yield f"{words} {name} {shown(case.text[span.start : span.end])}; allowed are words apart from each other"


def _strings(case: Case) -> Iterator[tuple[str, str]]:
    yield from (("id", case.id), ("text", case.text), ("sense", case.sense), ("group", case.group))
    for key, value in case.meta.items():
        yield from (("meta", key), (f"meta {shown(key)}", value))


def _digest(cases: Sequence[Case]) -> str:
    total = hashlib.sha256()
    for case in cases:
        spans = [[span.start, span.end] for span in (case.target, *case.cues)]
        content = [case.id, case.text, spans, case.sense, case.group, dict(case.meta)]
        total.update(json.dumps(content, sort_keys=True).encode() + b"\n")
    return total.hexdigest()


# --- from a file to cases -------------------------------------------------------------------------------------


def _locate(source: str | Path) -> tuple[Traversable, str]:
    """Give the file of a set name or a path, and the name that it goes by in messages."""
    if isinstance(source, str) and source in shipped_sets():
        return files("probe") / "data" / f"{source}.yaml", f"{source}.yaml"
    path, name = Path(source), str(source) if str(source).isprintable() else shown(str(source))
    endings, close = ", ".join(SUFFIXES), nearest(name, shipped_sets())
    allowed = f"allowed is a file ending in {endings}"
    try:
        if not path.exists():
            raise CasesError(f"{name}: no such file or shipped set{close} or a file ending in {endings}")
        if not path.is_file():
            raise CasesError(f"{name}: is {'a folder' if path.is_dir() else 'no ordinary file'}; {allowed}")
    except OSError as error:
        raise CasesError(f"{name}: cannot be read ({error.strerror}); {allowed}") from None
    if path.suffix.lower() not in SUFFIXES:
        raise CasesError(f"{name}: unknown file ending {shown(path.suffix)}; {allowed}")
    return path, name


_Word = Annotated[str, Strict()]  # a bare number would be taken for a word, where an offset may be meant
_Offset = Annotated[int, Strict()]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class _Occurrence(_Record):
    word: _Word
    occurrence: int | None = Field(default=None, ge=1)


_Form = _Word | tuple[_Offset, _Offset] | _Occurrence


class _CaseRecord(_Record):
    id: str = ""
    text: str | None = None
    target: _Form | None = None
    cues: list[_Form] = []
    marked: str | None = None
    sense: str = ""
    group: str = ""
    meta: dict[str, str] = {}


class _Header(_Record):
    set: str = ""
    language: str = ""
    description: str = ""
    cases: None = None  # read apart; here so that a message about an unknown field lists it


_Kind = TypeVar("_Kind", bound=_Record)

_A_WORD = "a word (a number in quotes), [start, end] or {word: …, occurrence: 2}"
_ALLOWED = {"target": _A_WORD, "cues": f"a list, each {_A_WORD}", "meta": "a mapping of names to texts"}


def _read_cases(records: Numbered, ledger: Ledger) -> list[Case]:
    cases: list[Case] = []
    lines: dict[str, int] = {}
    for line, raw in records:
        case = _read_case(raw, line, ledger)
        if case is None:
            continue
        if case.id in lines:
            ledger.add(line, f"id {shown(case.id)} stands twice: here and in line {lines[case.id]}")
        lines.setdefault(case.id, line)
        cases.append(case)
    return cases


def _read_case(raw: Any, line: int, ledger: Ledger) -> Case | None:
    if not isinstance(raw, dict):
        ledger.add(line, f"{shown(raw)} is no case; allowed are the fields {', '.join(_CaseRecord.model_fields)}")
        return None
    record = _validated(_CaseRecord, raw, line, ledger)
    if record is None:
        return None
    name = record.id or f"line-{line}"
    problems: list[str] = []
    text, target, cues = _placed(record, problems)
    if ledger.about_cues and any(isinstance(cue, str) and cue not in text for cue in record.cues):
        problems.append(ledger.about_cues)
    if target is None or problems:
        ledger.add(line, f"case {shown(name)}: {'; '.join(problems)}")
        return None
    if record.marked is None and any(_in_marks(span, text) for span in (target, *cues)):
        where = raw.lines["text"] if isinstance(raw, Fields) else line
        ledger.notes.append(f"line {where}: text holds [ ] or {{ }} as characters; to mark words use `marked:`")
    about = {"sense": record.sense, "group": record.group}
    try:
        return Case(id=name, text=text, target=target, cues=cues, meta=record.meta, **about)
    except CasesError as error:
        ledger.add(line, str(error))
        return None


def _in_marks(span: Span, text: str) -> bool:
    return text[max(0, span.start - 1) : span.start] + text[span.end : span.end + 1] in ("[]", "{}")


def _validated(kind: type[_Kind], raw: Mapping[str, Any], line: int, ledger: Ledger) -> _Kind | None:
    given = {name: value for name, value in raw.items() if value is not None}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        wrong = {"".join(map(str, detail["loc"][:1])): detail["type"] for detail in error.errors(include_url=False)}
    lines = raw.lines if isinstance(raw, Fields) else {}
    whose = f"case {shown(given['id'])}: " if "id" in given else ""
    for name, reason in wrong.items():
        if reason == "extra_forbidden" and name not in kind.model_fields:
            problem = f"unknown field {shown(name)}{nearest(name, kind.model_fields)}"
        elif reason == "string_unicode":
            problem = (
                f"{name or 'a field name'} has half a character (a lone surrogate); allowed is text that UTF-8 can hold"
            )
        else:
            problem = f"{name} is {shown(given[name])}; allowed is {_ALLOWED.get(name, 'a text')}"
        ledger.add(lines.get(name, line), whose + problem)
    return None


def _placed(record: _CaseRecord, problems: list[str]) -> tuple[str, Span | None, tuple[Span, ...]]:
    """Give text, target and cues of a record in either notation."""
    if record.marked is not None:
        if record.text is not None or record.target is not None or record.cues:
            problems.append("has `marked` beside text, target or cues; allowed is one of the two notations")
        return _unmarked(record.marked, problems)
    missing = [name for name in ("text", "target") if getattr(record, name) is None]
    if record.text == "":
        problems.append("the text is empty; allowed is at least one character that is not white space")
    elif missing:
        problems.append(f"{' and '.join(missing)} missing; allowed is `marked`, or `text` and `target`")
    if not record.text or record.target is None:
        return "", None, ()
    target = _place(record.target, "target", record.text, problems)
    cues = [_place(cue, "cue", record.text, problems) for cue in record.cues]
    return record.text, target, tuple(span for span in cues if span)


def _named(word: object, name: str, text: str, problems: list[str], *, occurrence: int | None = None) -> Span | None:
    """Give where a word of `case_of` stands; which one cannot be said by a `marked` text, as in a file."""
    if not isinstance(word, str | Span):
        problems.append(f"{name} is {shown(word)}; allowed is a word of the text, or a Span")
        return None
    count = 0 if isinstance(word, Span) or occurrence is not None else len(list(_starts(word, text)))
    if count > 1:
        problems.append(f"{name} {shown(word)} stands {count} times in the text; say which: give a Span")
        return None
    return _place(word, name, text, problems, occurrence=occurrence)


def _place(
    form: Span | _Form, name: str, text: str, problems: list[str], *, occurrence: int | None = None
) -> Span | None:
    """Give where a word or span stands in a text, or None with the reason added to the problems."""
    if isinstance(form, Span):
        return form
    if isinstance(form, tuple):
        if 0 <= form[0] < form[1] <= len(text):
            return Span(*form)
        problems.append(f"{name} {list(form)} is empty or outside; allowed is 0 <= start < end <= {len(text)}")
        return None
    word, which = (form.word, form.occurrence) if isinstance(form, _Occurrence) else (form, occurrence)
    starts = list(_starts(word, text))
    if not word:
        problems.append(f"{name} is empty; allowed is a word of the text")
    elif not starts:
        problems.append(f"{name} {shown(word)} is not in the text {shown(text)}; allowed is a word of it, unchanged")
    elif which is None and len(starts) > 1:
        problems.append(
            f"{name} {shown(word)} stands {len(starts)} times in the text; say which: mark it in `marked`, or give "
            f"[start, end], or {{word: …, occurrence: n}} with n from 1 to {len(starts)}"
        )
    elif which is not None and not 1 <= which <= len(starts):
        problems.append(f"{name} {shown(word)} has no occurrence {which}; allowed is 1 to {len(starts)}")
    else:
        start = starts[(which or 1) - 1]
        return Span(start, start + len(word))
    return None


def _starts(word: str, text: str) -> Iterator[int]:
    """Give where a word begins in a text, overlapping places included, as Span.of counts them."""
    start = text.find(word) if word else -1
    while start >= 0:
        yield start
        start = text.find(word, start + 1)


def _unmarked(marked: str, problems: list[str]) -> tuple[str, Span | None, tuple[Span, ...]]:
    """Give text, target and cues of a marked text: 我{喜欢}[苹果]; a backslash takes the next mark literally."""
    text, opened, start = "", "", 0
    found: dict[str, list[Span]] = {"[": [], "{": []}
    wrong: list[str] = []
    for number, piece in enumerate(_MARK.split(marked)):
        if number % 2 == 0:
            text += piece
        elif piece[0] == "\\":
            text += piece[1:]
            if piece not in _ESCAPED:
                wrong.append(f"a backslash stands before {shown(piece[1:])}")
        elif piece in found and not opened:
            opened, start = piece, len(text)
        elif not opened or piece != _CLOSING[opened]:
            wrong.append(f"mark {piece} after {shown(text[-8:])} does not match")
        elif start == len(text):
            wrong.append(f"the mark {opened}{piece} is empty")
            opened = ""
        else:
            found[opened].append(Span(start, len(text)))
            opened = ""
    if opened:
        wrong.append(f"mark {opened} before {shown(text[start:][:8])} is not closed")
    elif len(found["["]) != 1 and not wrong:
        wrong.append(f"the target is marked {len(found['['])} times")
    problems.extend(f"{problem} in `marked`; {_MARKS}" for problem in wrong)
    return text, None if wrong else found["["][0], tuple(found["{"])
