"""One text as two models cut it: the slices that are whole tokens in both, and attention rows added up over them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.comparison import Side
from probe.findings import Floats
from probe.spans import Span, TokenMap


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The smallest slice of the text that is whole tokens in both models; `span` None: special tokens."""

    span: Span | None
    a: tuple[int, ...]  # token positions in A
    b: tuple[int, ...]

    def tokens(self, side: Side) -> tuple[int, ...]:
        """Token positions in one of the two."""
        return self.a if side == "A" else self.b


def pieces_of(one: TokenMap, other: TokenMap) -> tuple[Piece, ...]:
    """The text in slices that are whole tokens in both, special tokens and those without text together in front.

    Cut as 苹|果手|机 and as 苹果|手机, a text has one piece: 苹果手机.
    """
    spans = _joined([span for tokens in (one, other) for span in _text_spans(tokens)])
    rest = tuple(_tokens_without_text(tokens) for tokens in (one, other))
    front = [Piece(span=None, a=rest[0], b=rest[1])] if any(rest) else []
    return (*front, *(Piece(span=span, a=_inside(span, one), b=_inside(span, other)) for span in spans))


def piece_row(row: Floats, pieces: Sequence[Piece], side: Side) -> Floats:
    """A merged row over the pieces: [layer, head, token] -> [layer, head, piece]; it still sums to one."""
    return np.stack([row[..., list(piece.tokens(side))].sum(-1) for piece in pieces], axis=-1)


def _text_spans(tokens: TokenMap) -> list[Span]:
    """Where the tokens with text stand."""
    return [
        Span(int(start), int(end))
        for (start, end), special in zip(tokens.offsets, tokens.special, strict=True)
        if end > start and not special
    ]


def _tokens_without_text(tokens: TokenMap) -> tuple[int, ...]:
    empty = tokens.offsets[:, 0] == tokens.offsets[:, 1]
    return tuple(int(token) for token in np.flatnonzero(empty | tokens.special))


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Overlapping spans made one, in order; those that only touch stay apart."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.start < joined[-1].end:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def _inside(span: Span, tokens: TokenMap) -> tuple[int, ...]:
    found = []
    for token, (start, end) in enumerate(tokens.offsets):
        if end > start and not tokens.special[token] and span.start <= start and end <= span.end:
            found.append(token)
    return tuple(found)
