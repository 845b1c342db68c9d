"""Sheets for a blind reader and the answers that come back: what is drawn, what is shown, how it is kept.

What a row shows depends on the seed, the text, the target and the senses of its word; never on the case's own label.
"""

import csv
import hashlib
import io
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from probe.cases import Case, CaseSet
from probe.errors import CasesError

NEUTRAL = "neutral"
RELATIONAL = ("relations",)
"""Sets whose sense says what the target is to its cue: without the second word there is no question to answer."""
READER = "second reader: a language model that was shown nothing but this sheet"
TASK = {
    True: "for each number give one of its senses: what the word in 【】 is to the word in 〔〕",
    False: "for each number give one of its senses: that of the word in 【】 in this text",
}
MEANINGS = {
    "relations": {
        "object of": "【】 is what the verb 〔〕 governs, wherever in the sentence it stands",
        "patient of": "【】 undergoes 〔〕 in a 把 or 被 clause (or a like one), or as the grammatical subject",
        "agent of": "【】 does 〔〕 in a clause with 被 or a word like it",
        "subject of": "【】 is the subject of the verb 〔〕, or the one who does it",
        "topic of": "【】 is what the sentence is about, and 〔〕 belongs to the comment on it",
        "modified by": "〔〕 is an attribute before the noun 【】",
        "described by": "〔〕 is predicated of 【】",
        "classified by": "〔〕 is the measure word of 【】",
        "compounded with": "【】 and 〔〕 form one compound",
        "refers to": "【】 is a pronoun that stands for 〔〕",
        "negated by": "〔〕 negates 【】",
        "instrument of": "【】 is what 〔〕 is done with",
    },
    "apple": {
        "fruit": "the fruit or its tree",
        "company": "the firm",
        "device": "a telephone, tablet or computer of the firm",
        "chip": "a processor of the firm",
        "acid": "part of the name of malic acid, 苹果酸",
        NEUTRAL: "the text does not decide",
    },
    "senses": {
        "biochip": "a plate with many biological samples",
        "circuit": "a bridge circuit",
        "culture": "growing cells or microbes",
        "electric": "the load on a power supply",
        "firm": "the leading firm of a trade",
        "gate": "a logic gate",
        "gene": "of genes and what they make",
        "internet": "a service on the internet",
        "liaison": "a place or person to turn to",
        "medium": "what carries an idea",
        "memory": "of data in a computer",
        "particles": "of particles, heat or matter",
        "platform": "a raised place to stand on",
        "solution": "of a chemical solution",
        "structure": "what one crosses",
        "vector": "what carries a gene",
    },
}
_ABOUT = re.compile(r"set: (?P<set>\S+); share: (?P<share>[\d.]+); seed: (?P<seed>-?\d+); cases: (?P<cases>\d+)")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case as the reader sees it."""

    number: int
    text: str  # the target in 【】
    senses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The rows of one draw; `about` are the lines above them."""

    about: tuple[str, ...]
    rows: tuple[Row, ...]

    def columns(self) -> list[list[str]]:
        """The sheet as a table, its head first."""
        return [["number", "text", "senses"], *([str(r.number), r.text, " | ".join(r.senses)] for r in self.rows)]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the reader chose, and the hash of the text that was shown."""

    number: int
    shown: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The answers to one sheet."""

    about: tuple[str, ...]
    set: str
    cases: int  # on the sheet
    rows: tuple[Answer, ...]

    def columns(self) -> list[list[str]]:
        """The reading as a table, its head first."""
        return [["number", "hash", "answer"], *([str(row.number), row.shown, row.answer] for row in self.rows)]


def draw_sheet(case_set: CaseSet, *, share: float, seed: int) -> Sheet:
    """Draw that share of a set, each sense of each word in proportion and at least once."""
    rows = sheet_rows(case_set.name, drawn(case_set, share=share, seed=seed), senses_of(case_set), seed=seed)
    meanings = MEANINGS.get(case_set.name, {})
    about = (
        f"set: {case_set.name}; share: {share:g}; seed: {seed}; cases: {len(rows)}",
        TASK[case_set.name in RELATIONAL],
        *(f"{sense}: {meaning}" for sense, meaning in sorted(meanings.items())),
    )
    return Sheet(about=about, rows=rows)


def sheet_rows(name: str, cases: Sequence[Case], senses: Mapping[str, Sequence[str]], *, seed: int) -> tuple[Row, ...]:
    """Give the cases as rows, in an order and with choices in orders that the seed and the texts alone decide."""
    rows = []
    for number, case in enumerate(sorted(cases, key=lambda case: _rank(case, seed, "row")), start=1):
        choices = sorted(senses[word_of(name, case)])
        random.Random(_rank(case, seed, "choices")).shuffle(choices)
        rows.append(Row(number=number, text=shown_text(name, case), senses=tuple(choices)))
    return tuple(rows)


def drawn(case_set: CaseSet, *, share: float, seed: int) -> list[Case]:
    """Give the cases to read: never two of one minimal group, and no word that leaves nothing to choose."""
    strata: dict[tuple[str, str], list[Case]] = defaultdict(list)
    senses = senses_of(case_set)
    for case in case_set.cases:
        word = word_of(case_set.name, case)
        if len(set(senses[word]) - {NEUTRAL}) > 1:
            strata[word, case.sense].append(case)
    if not strata:
        raise CasesError(f"case set {case_set.name}: no word has two senses; allowed is a set with one that has")
    total = math.ceil(share * len(case_set.cases))
    wanted = _quotas({key: len(cases) for key, cases in strata.items()}, total)
    found: list[Case] = []
    groups: set[str] = set()
    for key in sorted(strata, key=lambda key: (len(strata[key]), key)):  # a rare sense has few groups to choose from
        found += _apart(strata[key], wanted[key], groups, seed)
    if len(found) < total:
        raise CasesError(
            f"case set {case_set.name}: a share of {share:g} is {total} cases; allowed are {len(found)}, one a group"
        )
    return found


def senses_of(case_set: CaseSet) -> dict[str, tuple[str, ...]]:
    """Give the senses to choose from for each word; neutral, where the set has it, for all."""
    senses: dict[str, set[str]] = defaultdict(set)
    for case in case_set.cases:
        senses[word_of(case_set.name, case)].add(case.sense)
    neutral = {NEUTRAL} if any(NEUTRAL in of_word for of_word in senses.values()) else set()
    return {word: tuple(sorted(of_word | neutral)) for word, of_word in senses.items()}


def word_of(name: str, case: Case) -> str:
    """Give the word whose senses are the choice: one for all in a set of relations, where no word stands often."""
    return "" if name in RELATIONAL else case.meta.get("word", case.target.cut(case.text))


def shown_text(name: str, case: Case) -> str:
    """Give the text with the target in 【】; with the cue in 〔〕 only where the sense is a relation to it."""
    marks = [(case.target, "【", "】"), *((cue, "〔", "〕") for cue in case.cues if name in RELATIONAL)]
    text = case.text
    for span, opening, closing in sorted(marks, key=lambda mark: mark[0].start, reverse=True):
        text = text[: span.start] + opening + text[span.start : span.end] + closing + text[span.end :]
    return text


def text_hash(shown: str) -> str:
    """Give the name that a reading keeps of a text as it was shown."""
    return hashlib.sha256(shown.encode()).hexdigest()[:16]


def read_sheet(sheet: Sheet, answers: Mapping[int, str], *, name: str) -> Reading:
    """Join a reader's answers with the sheet; CasesError for a number without a row, or a row without an answer."""
    wrong = sorted(answers.keys() ^ {row.number for row in sheet.rows})
    if wrong:
        numbers = ", ".join(map(str, wrong))
        raise CasesError(
            f"{name}: numbers {numbers} are missing or not on the sheet; allowed are 1 to {len(sheet.rows)}"
        )
    rows = []
    for row in sheet.rows:
        if answers[row.number] not in row.senses:
            raise CasesError(
                f"{name}, number {row.number}: answer {answers[row.number]!r}; allowed are {', '.join(row.senses)}"
            )
        rows.append(Answer(number=row.number, shown=text_hash(row.text), answer=answers[row.number]))
    return _reading((sheet.about[0], READER), rows, name)


def load_sheet(path: Path) -> Sheet:
    """Read a sheet that `draw` wrote."""
    about, rows = _read(path, ("number", "text", "senses"))
    return Sheet(
        about=about,
        rows=tuple(Row(number=n, text=text, senses=tuple(senses.split(" | "))) for n, (text, senses) in rows.items()),
    )


def load_answers(path: Path) -> dict[int, str]:
    """Read what a reader handed back, the columns number and answer."""
    _, rows = _read(path, ("number", "answer"))
    return {number: answer for number, (answer,) in rows.items()}


def load_reading(path: Path) -> Reading:
    """Read answers that `save` kept."""
    about, rows = _read(path, ("number", "hash", "answer"))
    kept = [Answer(number=number, shown=shown, answer=answer) for number, (shown, answer) in rows.items()]
    return _reading(about, kept, str(path))


def save_rows(path: Path, about: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table with comment lines above it."""
    content = io.StringIO()
    content.writelines(f"# {line}\n" for line in about)
    csv.writer(content, lineterminator="\n").writerows(rows)
    path.write_text(content.getvalue(), "utf-8")


def _quotas(sizes: Mapping[tuple[str, str], int], total: int) -> dict[tuple[str, str], int]:
    """Share a total among strata: at least one each, then in proportion with the largest remainders first."""
    exact = {key: total * size / sum(sizes.values()) for key, size in sizes.items()}
    quotas = {key: max(1, math.floor(share)) for key, share in exact.items()}
    for key in sorted(exact, key=lambda key: (math.floor(exact[key]) - exact[key], key)):
        if sum(quotas.values()) < total and quotas[key] < exact[key]:
            quotas[key] += 1
    return quotas


def _apart(cases: Sequence[Case], wanted: int, groups: set[str], seed: int) -> Iterator[Case]:
    """Give so many cases whose groups have not been drawn from, and remember their groups."""
    for case in sorted(cases, key=lambda case: _rank(case, seed, "draw")):
        if wanted and case.group not in groups:
            wanted -= 1
            groups.update({case.group} - {""})
            yield case


def _rank(case: Case, seed: int, purpose: str) -> str:
    """Give a number that is as good as random and depends on no label; one changed text moves no other."""
    return hashlib.sha256(f"{purpose} {seed} {case.target.start} {case.text}".encode()).hexdigest()


def _reading(about: Sequence[str], rows: Sequence[Answer], name: str) -> Reading:
    found = _ABOUT.fullmatch(about[0]) if about else None
    if not found:
        raise CasesError(f"{name}: its first line is not `# set: …; share: …; seed: …; cases: …`, as `draw` writes it")
    return Reading(about=tuple(about), set=found["set"], cases=int(found["cases"]), rows=tuple(rows))


def _read(path: Path, columns: Sequence[str]) -> tuple[tuple[str, ...], dict[int, tuple[str, ...]]]:
    """Give the comment lines above a table and its rows by number; a text in a cell may hold lines of its own."""
    lines = path.read_text("utf-8-sig").splitlines(keepends=True)
    above = list(takewhile(lambda line: line.startswith("#") or not line.strip(), lines))
    about = tuple(line[1:].strip() for line in above if line.strip())
    head, *rows = [row for row in csv.reader(lines[len(above) :]) if row] or [[]]
    if [cell.strip() for cell in head] != list(columns):
        raise CasesError(f"{path}: columns {', '.join(head)}; allowed are {', '.join(columns)}")
    table: dict[int, tuple[str, ...]] = {}
    for row in rows:
        cells = tuple(cell.strip() for cell in row)
        if len(row) != len(columns) or not cells[0].isdecimal() or int(cells[0]) in table:
            raise CasesError(
                f"{path}: row {','.join(row)!r}; allowed is a number that stands once, and {', '.join(columns[1:])}"
            )
        table[int(cells[0])] = cells[1:]
    return about, table
