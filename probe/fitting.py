"""Cut a text that is longer than a model's positions to the part around its target."""

from typing import Any

from probe.cases import Case
from probe.errors import SpanError
from probe.spans import Span, TokenMap, tokenize, tokens_of


def cut_to_fit(tokenizer: Any, case: Case, limit: int) -> tuple[Case, TokenMap]:
    """The case with its text cut to at most `limit` tokens around the target, spans moved; cues outside are dropped.

    Raises SpanError where not even the target itself fits.
    """
    whole = tokenize(tokenizer, case.text)
    room = limit - int(whole.special.sum())
    while room > 0:
        cut = _window(case, whole, room)
        tokens = tokenize(tokenizer, cut.text)
        if len(tokens.ids) <= limit:
            return cut, tokens
        room -= len(tokens.ids) - limit  # a cut text can tokenise a little longer than its part of the whole
    raise SpanError(f"the target alone is longer than {limit} tokens")


def _window(case: Case, whole: TokenMap, room: int) -> Case:
    """The case on `room` tokens of the whole text, the target as near to their middle as the text allows."""
    target = tokens_of(case.target, whole)
    words = [index for index in range(len(whole.ids)) if not whole.special[index]]
    first, last = words.index(int(target[0])), words.index(int(target[-1]))
    if last - first + 1 > room:
        raise SpanError(f"the target alone has {last - first + 1} tokens, {room} are left for text")
    start = max(0, min((first + last + 1 - room) // 2, len(words) - room))
    inside = words[start : start + room]
    left = min(int(whole.offsets[inside[0]][0]), case.target.start)
    right = max(int(whole.offsets[inside[-1]][1]), case.target.end)

    def moved(span: Span) -> Span:
        return Span(span.start - left, span.end - left)

    return Case(
        id=case.id,
        text=case.text[left:right],
        target=moved(case.target),
        sense=case.sense,
        cues=tuple(moved(cue) for cue in case.cues if left <= cue.start and cue.end <= right),
        group=case.group,
        meta={**case.meta, "cut": f"characters {left} to {right} of {len(case.text)}"},
    )
