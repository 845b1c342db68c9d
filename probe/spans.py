"""Characters and tokens: spans of a text, the tokens that carry them, and attention rows merged accordingly."""

from __future__ import annotations

from dataclasses import dataclass

from probe.errors import SpanError


@dataclass(frozen=True, order=True)
class Span:
    """A piece of a text as half-open character offsets: Span(3, 5).cut("我喜欢苹果") is "苹果"."""

    start: int
    end: int

    def __post_init__(self) -> None:
        """Refuse a span that is empty, reversed or begins before the text."""
        if not 0 <= self.start < self.end:
            raise SpanError(f"span [{self.start}, {self.end}): allowed are offsets with 0 <= start < end")

    @classmethod
    def of(cls, text: str, word: str, *, occurrence: int = 1) -> Span:
        """Give the span of a word's n-th occurrence in a text (counted from 1, overlapping ones included)."""
        if not word:
            raise SpanError("an empty word has no span; allowed is a word of at least one character")
        if occurrence < 1:
            raise SpanError(f"occurrence {occurrence} of {word!r}: occurrences are counted from 1")
        start, found = -1, 0
        while found < occurrence:
            start = text.find(word, start + 1)
            if start < 0:
                raise SpanError(f"{word!r} (occurrence {occurrence}) is not in the text {_shown(text)}, found {found}")
            found += 1
        return cls(start, start + len(word))

    def cut(self, text: str) -> str:
        """Give the slice of the text that the span covers; SpanError where it ends past the text."""
        if self.end > len(text):
            raise SpanError(f"span [{self.start}, {self.end}) ends past the text of {len(text)} characters {_shown(text)}")
        return text[self.start : self.end]

    def overlaps(self, other: Span) -> bool:
        """Tell whether the two spans share a character."""
        return self.start < other.end and other.start < self.end


def _shown(text: str) -> str:
    """Give a text short enough for a message of one line."""
    return repr(text if len(text) <= 40 else text[:39] + "…")
