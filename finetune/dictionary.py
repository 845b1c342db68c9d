"""A user's dictionary of domain words: a plain list, words with their classes, or jieba's `word frequency tag`."""

import re
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from finetune.errors import PairError

# jieba lets the frequency out as well; `维生素 c` would then be 维生素 with the tag c, so it must be there.
_JIEBA = re.compile(r"(?P<word>\S.*?)[ \u3000]+(?P<frequency>\d+)(?:[ \u3000]+(?P<tag>[a-z]+))?")
_TAG_ALONE = re.compile(r".*[^\x00-\x7f][ \u3000]+[a-z]+")
ALLOWED = "a word a line, word<TAB>class, or jieba's `word frequency tag`"


class Entry(NamedTuple):
    """A word of a dictionary and the class that its line names."""

    word: str
    group: str | None


def read_dictionary(source: Path | Traversable, *, name: str | None = None) -> tuple[Entry, ...]:
    """The words of a dictionary in their order, each word and class once; PairError names file and line.

    Blank lines and those that begin with # are passed over. A tag of jieba's is no class: it names a part of speech.
    """
    name = name or str(source)
    try:
        text = source.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise PairError(f"{name}: cannot be read ({reason}); allowed is a file with {ALLOWED}") from error
    found = tuple(dict.fromkeys(_entries(text, name)))
    if not found:
        raise PairError(f"{name}: holds no word; allowed is {ALLOWED}")
    return found


def _entries(text: str, name: str) -> Iterator[Entry]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield _entry(line, f"{name}:{number}")


def _entry(line: str, where: str) -> Entry:
    if "\0" in line:
        raise PairError(f"{where}: has a NUL; allowed is text")
    if "\t" in line:
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 2 or not all(cells):
            raise PairError(f"{where}: has {len(cells)} cells, {cells}; allowed is word<TAB>class, neither empty")
        return Entry(cells[0], cells[1])
    line = line.strip()
    if match := _JIEBA.fullmatch(line):
        return Entry(match["word"].strip(), None)
    if _TAG_ALONE.fullmatch(line):
        raise PairError(f"{where}: {line!r} is a word, or a word and a tag; write `word 1 tag`, or word<TAB>class")
    return Entry(line, None)
