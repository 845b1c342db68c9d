"""A written answer held against the right ones: Chinese by characters, where white space parts no words.

F1 over words between spaces equals exact match on Chinese: a whole answer is one such word.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from finetune.errors import RetrievalError

_GROUPING = re.compile(r"(?<=\d)[,'](?=\d{3}(?!\d))")  # 1,000
# What stands between digits belongs to the number: 3.5 is not 35, 1/2 not 12, 2:1 not 21.
_IN_NUMBER = re.compile(r"(?<=\d)[.:/\-](?=\d)|(?<![^\W_])(?<!-)-(?=\d)|[%‰]")
_SELECTORS = re.compile("[\ufe00-\ufe0f]")  # how an emoji is to be drawn
_RUN = re.compile(r"[a-z0-9\u00df-\u024f\u0370-\u04ff%‰.:/\-]+|\S")
_SIGNS = {0x2212: "-", 0x2044: "/"}  # minus, and what NFKC makes of ½
_DROPPED = ("P", "Z", "C")  # Unicode's punctuation, separators, controls; symbols such as + or ° are read


def normalised(text: str) -> str:
    """Give what is read of an answer: width, case, punctuation and white space do not count.

    NFKC (full-width forms, ₂ as 2; so 10⁵ reads 105), case folded, minus as -. Punctuation is kept in numbers (3.5,
    1/2, -5, 50 %), without the commas of thousands. Traditional characters are left as they are, 鐵 is not 铁, and so
    are numerals, 十六 is not 16.
    """
    return _spaced(text).replace(" ", "")


def answer_units(text: str) -> list[str]:
    """Give the units that F1 counts: each Chinese character, each whole run of Latin (Greek, Cyrillic) or digits.

    M1 is one unit, so M1 and M2 have nothing in common; a hyphen or a space ends a run.
    """
    return _RUN.findall(_spaced(text))


def exact_match(answer: str, golds: str | Sequence[str]) -> bool:
    """Tell whether an answer reads as one of the right ones; RetrievalError where there is nothing to read in one."""
    return normalised(answer) in map(normalised, _checked(golds))


def character_f1(answer: str, golds: str | Sequence[str]) -> float:
    """Give the F1 of the units that an answer shares with a right one, as often as both have them; the best one's.

    1 where they match but for spaces between words. RetrievalError as in `exact_match`.
    """
    own = Counter(answer_units(answer))
    return 1.0 if exact_match(answer, golds) else max(_f1(own, Counter(answer_units(gold))) for gold in _checked(golds))


def contains(answer: str, golds: str | Sequence[str]) -> bool:
    """Tell whether the units of a right answer stand together in an answer: M1 is not in M10, 铁 is in 钢铁."""
    own = answer_units(answer)
    return exact_match(answer, golds) or any(_stands_in(answer_units(gold), own) for gold in _checked(golds))


@lru_cache(maxsize=4096)  # a set of questions reads each passage many times
def _spaced(text: str) -> str:
    """The text folded, with a space for all that is not read."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).translate(_SIGNS)
    folded = _GROUPING.sub("", _SELECTORS.sub("", folded))
    kept = {match.start() for match in _IN_NUMBER.finditer(folded)}
    return "".join(
        sign if place in kept or not unicodedata.category(sign).startswith(_DROPPED) else " "
        for place, sign in enumerate(folded)
    )


def _checked(golds: str | Sequence[str]) -> Sequence[str]:
    """The right answers, of which a text alone is one and not its characters."""
    given = [golds] if isinstance(golds, str) else list(golds)
    if not given or not all(normalised(gold) for gold in given):
        raise RetrievalError(f"right answers {given}: allowed are one or more, each with a letter, digit or symbol")
    return given


def _f1(own: Counter[str], gold: Counter[str]) -> float:
    shared = (own & gold).total()
    return 2 * shared / (own.total() + gold.total())


def _stands_in(part: Sequence[str], whole: Sequence[str]) -> bool:
    return any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))
