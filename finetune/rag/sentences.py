"""Where the sentences of a text end, Chinese and others, lines and list items without a full stop as well."""

import re

import numpy as np
from numpy.typing import NDArray

_CLOSING = r"(?:[”’」』）)】》〉\]]|[\"'](?=\s|$|[，。；、,.;)]))*"
# No pattern may look back over white space: a line of a million spaces would be read a million times.
_END = re.compile(
    rf"(?:[。！？｡]+[。！？!?｡]*|[!?]+(?![A-Za-z0-9=&/_.%+-])|．(?![0-9０-９])|\.(?=[\s”’\"'）)]|$)){_CLOSING}"
    r"|(?P<line>\r\n?|[\n\v\f\x1c-\x1e\x85\u2028\u2029])\s*"
)
_SHORT_WORDS = """
mr mrs ms dr prof st vs etc cf fig figs no nos vol al eds ed pp p approx ca inc ltd co jr sr e.g i.e ph.d
"""
_SHORT = frozenset(_SHORT_WORDS.split())
_WORD_BEFORE = re.compile(r"[A-Za-z][A-Za-z.]*$")
_ITEM_NUMBER = re.compile(r"(?:^|[\r\n])[ \t]*\d{1,3}$")


def sentence_ends(text: str) -> NDArray[np.int64]:
    """Give where each sentence ends, rising, the last at the text's end; closing quotes belong to what they close.

    A sentence begins where the one before it ended. A line break ends one too, unless small letters stand on both
    sides of it, as where an English text is broken into lines.
    """
    ends = np.fromiter((match.end() for match in _END.finditer(text) if _is_end(text, match)), dtype=np.int64)
    if not len(ends) or ends[-1] < len(text):
        ends = np.append(ends, len(text))
    return ends


def _is_end(text: str, match: re.Match[str]) -> bool:
    start, end = match.span()
    if match.group("line") is not None:
        return not _is_wrapped(text, match)
    if text[start] != ".":
        return True
    if text[end : end + 2].strip()[:1].islower():
        return False
    word = _WORD_BEFORE.search(text[max(0, start - 12) : start])
    if word is None:
        return _ITEM_NUMBER.search(text[max(0, start - 12) : start]) is None
    one_capital = len(word.group()) == 1 and word.group().isupper()  # J. Smith
    return not one_capital and word.group().lower() not in _SHORT


def _is_wrapped(text: str, match: re.Match[str]) -> bool:
    """Whether a line break, no blank line, stands between small letters."""
    before, after = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
    if not (after.isascii() and after.islower() and before.isascii() and (before.islower() or before in (",", ";"))):
        return False
    return not any(mark in match.group()[len(match.group("line")) :] for mark in "\n\r")
