"""Texts that are data: whatever a tokenizer would take for a mark of its own stands in them as its letters."""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.errors import DataError
from probe import CijingError, TokenMap, tokenize

# Characters that mean nothing: they stand for something else while a template writes its text.
_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


def unused_signs(texts: Sequence[str]) -> Iterator[str]:
    """Private characters that none of the texts holds; DataError once there are no more."""
    taken = set().union(*texts)
    yield from (chr(code) for codes in _PRIVATE for code in codes if chr(code) not in taken)
    raise DataError("the text holds every private character of Unicode, so that none can stand for a special token")


def joined(parts: Sequence[TokenMap]) -> TokenMap:
    """Token maps one after another, as the map of their texts one after another."""
    starts = np.cumsum([0, *(len(part.text) for part in parts[:-1])])
    return TokenMap(
        text="".join(part.text for part in parts),
        ids=tuple(token for part in parts for token in part.ids),
        offsets=np.concatenate([part.offsets + start for part, start in zip(parts, starts, strict=True)]),
        special=np.concatenate([part.special for part in parts]),
        labels=tuple(label for part in parts for label in part.labels),
        unknown=np.concatenate([part.unknown for part in parts]),
        aligned=max((part.aligned for part in parts), key=("offsets", "repaired", "search").index),
    )


def special_tokens(ids: Sequence[int], tokenizer: Any, *, text: str = "") -> TokenMap:
    """Special tokens that stand before a text which none of them carries."""
    count = len(ids)
    return TokenMap(
        text=text, ids=tuple(ids), offsets=np.zeros((count, 2), dtype=np.int64), special=np.ones(count, dtype=np.bool_),
        labels=tuple(str(name) for name in tokenizer.convert_ids_to_tokens(list(ids))),
        unknown=np.zeros(count, dtype=np.bool_), aligned="offsets",
    )  # fmt: skip


class Speller:
    """Cuts texts in which nothing is a special token, whoever wrote them; each text once."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.marks = mark_ids(tokenizer)
        self._cut: dict[tuple[str, str], TokenMap] = {}

    def spelled(self, text: str, *, before: str = "") -> TokenMap:
        """The tokens of a text, none of them a mark; `before` is the character it follows, "" at the very start.

        DataError where a single character is a mark, or the text has no tokens.
        """
        if (text, before) not in self._cut:
            self._cut[text, before] = self._after(text, before)
        return self._cut[text, before]

    def gap(self, space: str, text: str) -> TokenMap:
        """The tokens of white space before a text that are not the text's own, as ▁ before a word may be."""
        both = self._together(space, text)
        return special_tokens((), self.tokenizer, text=space) if both is None else _slice(both[0], 0, both[1], space)

    def _after(self, text: str, before: str) -> TokenMap:
        """The tokens of a text as they follow a character, where no token holds both; else those of the text alone.

        SentencePiece puts a space before a text, but not before its middle.
        """
        try:
            alone = self._tokens(text)
        except CijingError as error:
            raise DataError(str(error)) from error
        both = self._together(before, text) if before else None
        return alone if both is None else _slice(both[0], both[1], None, text)

    def _together(self, before: str, text: str) -> tuple[TokenMap, int] | None:
        """Tokens of both and how many are the first's; None where a token holds both or they cannot be cut."""
        try:
            both = self._tokens(before + text)
        except CijingError:
            return None
        first = int(np.searchsorted(both.offsets[:, 0], len(before), "left"))
        parted = first < len(both.ids) and not (both.offsets[:first, 1] > len(before)).any()
        return (both, first) if parted else None

    def _tokens(self, text: str) -> TokenMap:
        return tokenize(self.tokenizer, text, add_special_tokens=False, as_letters=self.marks)


def _slice(tokens: TokenMap, first: int, stop: int | None, text: str) -> TokenMap:
    """Some of the tokens, which carry that part of their text."""
    within = slice(first, stop)
    start = len(tokens.text) - len(text) if stop is None else 0
    offsets: NDArray[np.int64] = np.clip(tokens.offsets[within] - start, 0, len(text))
    return TokenMap(
        text=text, ids=tokens.ids[within], offsets=offsets, special=tokens.special[within],
        labels=tokens.labels[within], unknown=tokens.unknown[within], aligned=tokens.aligned,
    )  # fmt: skip


def mark_ids(tokenizer: Any) -> frozenset[int]:
    """The ids that no text of a user may become: special tokens and added ones in brackets, but not the unknown one."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marks = {token for token, what in added.items() if what.special or _is_bracketed(what.content)}
    marks |= set(tokenizer.all_special_ids)
    if tokenizer.unk_token_id != tokenizer.eos_token_id:  # GPT-2 has one token for both
        marks.discard(tokenizer.unk_token_id)
    return frozenset(map(int, marks))


def _is_bracketed(name: str) -> bool:
    """Whether a name looks like a mark, as <think> does and a domain's word does not."""
    return len(name) > 2 and all(unicodedata.category(name[end])[0] in "PS" for end in (0, -1)) and name[0] != "▁"
