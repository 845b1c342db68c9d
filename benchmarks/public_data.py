"""Public sets with word senses, read from a folder beside the project: nothing of them is shipped or written anywhere.

The folder is the environment's CIJING_DATA, else shared/data beside the project. Lines are read as JSON, those of
sememewsd as Python literals: nothing in them is ever run.
"""

import ast
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from probe.cases import Case
from probe.errors import CasesError
from probe.spans import Span

APPLE, SEMEMES, PAIRS = "apple-contexts", "sememewsd", "mcl-wic"
FILES = {
    APPLE: ("apple-contexts/apple_contexts_half.jsonl",),
    SEMEMES: ("sememewsd/dataset.txt",),
    PAIRS: ("mcl-wic/dev.zh-zh.data", "mcl-wic/dev.zh-zh.gold"),
}
TEXTS_A_SENSE = 4
_TARGET = "<target>"
_LONGEST_LINE = 100_000  # characters; a Python literal of any length can exhaust the parser
_REFUSED = (ValueError, SyntaxError, LookupError, TypeError, AttributeError, RecursionError, MemoryError, CasesError)
Read = TypeVar("Read")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two uses of one word, as places in a list of cases; `same` where they have one sense."""

    first: int
    second: int
    word: str
    same: bool


def data_folder() -> Path:
    """Where the public data lie, or would lie."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("CIJING_DATA") or beside)


def present(folder: Path, name: str) -> bool:
    """Whether all files of the set are there."""
    return all((folder / file).is_file() for file in FILES[name])


def apple_cases(folder: Path) -> list[Case]:
    """Every 苹果 of apple-contexts as a case; identical texts are one group, and the text is the unit."""
    path = folder / FILES[APPLE][0]
    return [case for cases in _each_line(path, apple_line) for case in cases]


def sememe_cases(folder: Path) -> list[Case]:
    """The cases of sememewsd whose sense has enough texts, of words with two such senses; the word is the unit."""
    cases = _each_line(folder / FILES[SEMEMES][0], sememe_line)
    return enough_texts([replace(case, id=f"{SEMEMES}-{number}") for number, case in enumerate(cases)])


def pairs(folder: Path) -> tuple[list[Case], list[Pair]]:
    """The uses of mcl-wic's Chinese development set, each once, and its pairs of them."""
    data, gold = (folder / file for file in FILES[PAIRS])
    tags = dict(_each_item(gold, lambda item: (str(item["id"]), _tag(item["tag"]))))
    places: dict[tuple[str, Span], int] = {}
    cases: list[Case] = []
    found = []
    for item, uses in _each_item(data, lambda item: (item, pair_uses(item))):
        for case in uses:
            if places.setdefault((case.text, case.target), len(cases)) == len(cases):
                cases.append(case)
        first, second = (places[case.text, case.target] for case in uses)
        if item["id"] not in tags:
            raise CasesError(f"{gold.name}: has no tag for {item['id']!r}; allowed is a T or F for every pair")
        found.append(Pair(first=first, second=second, word=item["lemma"], same=tags[item["id"]]))
    return cases, found


def apple_line(line: str) -> list[Case]:
    """The cases of one line of apple-contexts, one for each start character in `spans`."""
    row = json.loads(line)
    text, name = row["text"], f"{APPLE}-{row['id']}"
    for start in row["spans"]:
        if text[start : start + 2] != "苹果":
            raise ValueError(f"no 苹果 at character {start}")
    meta = {"word": "苹果", "unit": text}
    return [
        Case(id=f"{name}-{start}", text=text, target=Span(start, start + 2), sense=row["sense"], group=text, meta=meta)
        for start in row["spans"]
    ]


def sememe_line(line: str) -> Case:
    """The case of one line of sememewsd: words with <target> for the word, whose sense is a set of sememes."""
    if len(line) > _LONGEST_LINE:
        raise ValueError(f"{len(line)} characters; allowed are {_LONGEST_LINE}")
    row = ast.literal_eval(line)
    words, word, position = row["context"], row["target_word"], row["target_position"]
    if words.count(_TARGET) != 1 or words[position] != _TARGET:
        raise ValueError(f"{_TARGET} does not stand once, at target_position")
    if not isinstance(row["sense"], set):
        raise ValueError("sense is no set of sememes")
    before = "".join(words[:position])
    text = before + word + "".join(words[position + 1 :])
    target = Span(len(before), len(before) + len(word))
    sense = "+".join(sorted(row["sense"]))
    return Case(id=SEMEMES, text=text, target=target, sense=sense, group=text, meta={"word": word, "unit": word})


def pair_uses(item: Mapping[str, Any]) -> tuple[Case, Case]:
    """The two uses of one item of mcl-wic's .data, whose character offsets are strings."""
    first, second = (
        Case(
            id=f"{item['id']}-{side}",
            text=item[f"sentence{side}"],
            target=Span(int(item[f"start{side}"]), int(item[f"end{side}"])),
            group=item["lemma"],
        )
        for side in (1, 2)
    )
    return first, second


def enough_texts(cases: Sequence[Case], *, texts: int = TEXTS_A_SENSE) -> list[Case]:
    """Leave out senses with fewer different texts, then words that are left with one sense."""
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    for case in cases:
        seen[case.meta["word"], case.sense].add(case.text)
    kept = {key for key, different in seen.items() if len(different) >= texts}
    words = [word for word, _ in kept]
    return [c for c in cases if (c.meta["word"], c.sense) in kept and words.count(c.meta["word"]) > 1]


def spread(cases: Sequence[Case], limit: int | None) -> list[Case]:
    """At most `limit` cases, taken evenly from first to last: the files are sorted by sense."""
    if limit is None or limit >= len(cases):
        return list(cases)
    return [cases[place] for place in np.linspace(0, len(cases) - 1, limit).round().astype(int)]


def whole_words(cases: Sequence[Case], limit: int | None) -> list[Case]:
    """The words, whole, whose cases together are at most `limit`, those with fewest first; always one word."""
    words = [case.meta["word"] for case in cases]
    room, kept = (len(cases) if limit is None else limit), set[str]()
    for word in sorted(dict.fromkeys(words), key=words.count):
        if kept and words.count(word) > room:
            break
        kept.add(word)
        room -= words.count(word)
    return [case for case in cases if case.meta["word"] in kept]


def _tag(tag: str) -> bool:
    if tag not in ("T", "F"):
        raise ValueError(f"tag {tag!r}; allowed are T and F")
    return tag == "T"


def _each_line(path: Path, read: Callable[[str], Read]) -> Iterator[Read]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield _read(f"{path.name}, line {number}", read, line)


def _each_item(path: Path, read: Callable[[Any], Read]) -> Iterator[Read]:
    for number, item in enumerate(_read(path.name, _items, _text(path)), start=1):
        yield _read(f"{path.name}, item {number}", read, item)


def _items(text: str) -> list[Any]:
    items = json.loads(text)
    if not isinstance(items, list):
        raise ValueError("no list of items")
    return items


def _text(path: Path) -> str:
    return _read(path.name, lambda file: str(file.read_text("utf-8")), path)


def _read(where: str, read: Callable[[Any], Read], given: Any) -> Read:
    """Read one thing; what is wrong with it is named without its text, which may not be ours to print."""
    try:
        return read(given)
    except _REFUSED as error:
        what = str(error).splitlines()[0][:80] if isinstance(error, ValueError) else type(error).__name__
        raise CasesError(f"{where}: not of this set's format ({what})") from error
