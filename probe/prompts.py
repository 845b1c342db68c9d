"""A prompt with a map of its parts: which tokens are the question, which each passage, which the template."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from probe.errors import SpanError
from probe.spans import Span, TokenMap

PartKind = Literal["template", "instruction", "passage", "question"]


@dataclass(frozen=True, kw_only=True)
class PromptPart:
    """A run of tokens of one kind; half-open characters of the prompt's text, half-open token positions."""

    kind: PartKind
    name: str = ""  # of a passage its id, else empty
    start: int
    end: int
    first: int
    stop: int
    source: Mapping[str, str | int | float] = field(
        default_factory=dict
    )  # of a passage: document, start, end, title, …


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedPrompt:
    """What a model is to read, and what each token of it is: every token belongs to exactly one part, in order."""

    id: str
    tokens: TokenMap
    parts: tuple[PromptPart, ...]
    form: Literal["plain", "chat", "pair"]
    target: Span | None = None  # the word to look from, in characters of the prompt's text
    token_types: tuple[int, ...] | None = None  # where an encoder's tokenizer tells the two texts of a pair apart

    def __post_init__(self) -> None:
        """Refuse parts that leave out tokens, overlap or lie outside the text."""
        at = 0
        for part in self.parts:
            if part.first != at or part.stop < part.first:
                raise SpanError(
                    f"prompt {self.id}: a part begins at token {part.first}; allowed is {at}, where one ended"
                )
            if not 0 <= part.start <= part.end <= len(self.tokens.text):
                raise SpanError(f"prompt {self.id}: characters {part.start} to {part.end} lie outside its text")
            at = part.stop
        if at != len(self.tokens.ids):
            raise SpanError(f"prompt {self.id}: the parts cover {at} of {len(self.tokens.ids)} tokens; allowed are all")
        if self.token_types is not None and len(self.token_types) != at:
            raise SpanError(f"prompt {self.id}: {len(self.token_types)} token types for {at} tokens")

    def parts_of(self, kind: PartKind) -> tuple[PromptPart, ...]:
        """Give the parts of one kind, in the prompt's order."""
        return tuple(part for part in self.parts if part.kind == kind)
