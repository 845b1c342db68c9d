"""Which tokens of a long text are kept: the first, a stretch around a target, or all of them in pieces."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from finetune.errors import DataError
from probe import TokenMap


@dataclass(frozen=True, eq=False)
class Cut:
    """Which tokens of a text are kept, and where they come to stand."""

    kept: NDArray[np.int64]  # [kept token], positions in the text
    shift: int = 0  # tokens before it in the sequence that it is part of

    def places(self, positions: Iterable[int]) -> tuple[int, ...] | None:
        """Where these tokens come to stand; None where one of them was cut off."""
        given = np.array(tuple(positions), dtype=np.int64)
        places = np.searchsorted(self.kept, given)
        if not bool((self.kept[np.minimum(places, len(self.kept) - 1)] == given).all()):
            return None
        return tuple((places + self.shift).tolist())


def cut_to(tokens: TokenMap, longest: int, *, around: Sequence[int] = (), keep_end: bool = True) -> Cut:
    """The first tokens of a text, or a stretch around a target; special tokens at both ends stay (`keep_end`)."""
    count = len(tokens.ids)
    if count <= longest:
        return Cut(np.arange(count))
    first, end = _inner(tokens)
    tail = count - end if keep_end else 0
    start, stop = _stretch(end - first, longest - first - tail, around=[place - first for place in around])
    return Cut(np.r_[0:first, first + start : first + stop, count - tail : count])


def pieces_of(tokens: TokenMap, longest: int, *, keep_end: bool) -> list[Cut]:
    """A text in pieces, each with the special tokens at its front and, with `keep_end`, at its end."""
    count = len(tokens.ids)
    if count <= longest:
        return [Cut(np.arange(count))]
    first, end = _inner(tokens)
    tail = count - end if keep_end else 0
    stop, room = (end if keep_end else count), longest - first - tail
    if room < 1:
        raise DataError(f"max_length {longest} leaves no room beside special tokens; allowed is a longer max_length")
    # As long as one another, or a text one token too long would end in a piece that holds its end token alone.
    bounds = np.linspace(first, stop, -(-(stop - first) // room) + 1).astype(np.int64)
    return [Cut(np.r_[0:first, start:end, count - tail : count]) for start, end in pairwise(bounds.tolist())]


def _inner(tokens: TokenMap) -> tuple[int, int]:
    """Half-open bounds of what stands between the special tokens at both ends."""
    inner = np.flatnonzero(~tokens.special)
    return (int(inner[0]), int(inner[-1]) + 1) if len(inner) else (0, len(tokens.ids))


def _stretch(count: int, room: int, *, around: Sequence[int]) -> tuple[int, int]:
    """Half-open bounds of `room` of `count` tokens: the first ones, moved on only as far as a target needs them."""
    if count <= room:
        return 0, count
    width = around[-1] + 1 - around[0] if around else 0
    if room < max(width, 1):
        raise DataError(f"the target has {width} tokens and {room} fit into max_length; allowed is a longer max_length")
    if not around or around[-1] < room:
        return 0, room
    middle = (around[0] + around[-1] + 1) // 2
    start = min(max(middle - room // 2, around[-1] + 1 - room), around[0], count - room)
    return start, start + room
