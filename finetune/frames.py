"""What a tokenizer writes around two texts that it reads as a pair, and how much room each of them has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.errors import DataError

_SAMPLE = ("1", "2")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a tokenizer writes before, between and after two texts, and how it tells them apart."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    typed: tuple[int, ...] | None  # token types of: before, first text, between, second text, after

    @property
    def size(self) -> int:
        """Tokens of the frame alone."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, first: Sequence[int], second: Sequence[int]) -> NDArray[np.int64]:
        """The ids of both texts within the frame, [token]."""
        return np.array([*self.before, *first, *self.between, *second, *self.after], dtype=np.int64)

    def types(self, first: int, second: int) -> NDArray[np.int64] | None:
        """Token types for texts of these lengths, [token]; None where the tokenizer has none."""
        if self.typed is None:
            return None
        lengths = (len(self.before), first, len(self.between), second, len(self.after))
        return np.repeat(np.array(self.typed, dtype=np.int64), lengths)


def frame_of(tokenizer: Any) -> Frame:
    """Read a tokenizer's frame off two short texts."""
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in _SAMPLE)
    given = tokenizer(*_SAMPLE, return_token_type_ids=True)
    ids, types = list(given["input_ids"]), list(given["token_type_ids"])
    start = _find(ids, first)
    middle = _find(ids, second, start=start + len(first))
    if min(start, middle) < 0:
        raise DataError("this tokenizer changes texts that it writes as a pair; allowed is pair_encoding: separate")
    end, rest = start + len(first), middle + len(second)
    typed = tuple(types[min(place, len(ids) - 1)] for place in (0, start, end, middle, rest))
    return Frame(
        before=tuple(ids[:start]),
        between=tuple(ids[end:middle]),
        after=tuple(ids[rest:]),
        typed=typed if "token_type_ids" in tokenizer.model_input_names else None,
    )


def _find(ids: Sequence[int], part: Sequence[int], *, start: int = 0) -> int:
    """Where a run of ids stands; -1 where nowhere."""
    places = (at for at in range(start, len(ids) - len(part) + 1) if list(ids[at : at + len(part)]) == list(part))
    return next(places, -1)


def rooms_of(counts: Sequence[int], room: int) -> tuple[int, int]:
    """How many tokens each of two texts may have: what one does not need, the other gets."""
    if room < 2:
        raise DataError(f"{room} tokens are left for two sentences; allowed is a longer max_length")
    shorter = min(min(counts), room // 2)
    return (shorter, room - shorter) if counts[0] <= counts[1] else (room - shorter, shorter)
