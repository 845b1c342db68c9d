"""Token pieces against the text they came from: which characters does each piece carry? Strings in, offsets out."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]  # [token, 2], half-open character offsets

# Stands for an unknown token among folded letters; folding removes it from every text, so it can mean nothing else.
_UNKNOWN = "\0"
# How much known text after an unknown token is enough to recognise the place where the text goes on.
_ANCHOR = 48


@dataclass(frozen=True, kw_only=True, eq=False)
class Letters:
    """A string reduced to what every normaliser keeps: no case, accents, widths, ligatures, spaces, format marks."""

    source: str
    letters: str
    origin: Offsets  # [letter]: the source character it came from
    rank: Offsets  # [character + 1]: letters before that character


@dataclass(frozen=True, kw_only=True, eq=False)
class Spelling:
    """What tokens spell together under one reading of their pieces; worked out when it is asked for."""

    parts: Sequence[bytes]  # [token]
    unknown: NDArray[np.bool_]  # [token]
    source: str

    @cached_property
    def bounds(self) -> Offsets:
        """Which characters of the source belong to each token: [token, 2]."""
        lengths = np.array([len(part) for part in self.parts], dtype=np.int64)
        return _characters_of_bytes(b"".join(self.parts), lengths)

    @cached_property
    def folded(self) -> Letters:
        """The letters of the source."""
        return fold(self.source, frozenset(self.bounds[self.unknown, 0].tolist()))


def fold(text: str, unknown: frozenset[int] = frozenset()) -> Letters:
    """Give the letters of a text; characters at the positions in `unknown` become the placeholder."""
    parts = [_folded(character) for character in text]
    for position in unknown:
        parts[position] = _UNKNOWN
    counts = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    rank = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Letters(source=text, letters="".join(parts), origin=np.repeat(np.arange(len(parts)), counts), rank=rank)


@lru_cache(maxsize=1 << 16)
def _folded(character: str) -> str:
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return "".join(c for c in plain if not _is_faint(c))


def _is_faint(character: str) -> bool:
    """Tell whether normalisers may drop, add or merge this character: space, control, format mark, accent, ▁."""
    return character in "▁\ufffd" or unicodedata.category(character) in _FAINT


_MARKS = {"Mn", "Me"}
_FAINT = _MARKS | {"Cc", "Cf", "Zs", "Zl", "Zp"}


# ---- what the tokens spell -------------------------------------------------------------------------------------


def spellings(pieces: Sequence[str], unknown: NDArray[np.bool_], text: str) -> list[Spelling]:
    """Give each different spelling of the pieces under the known conventions, the likeliest for the text first.

    Folding is too coarse to choose: À in two bytes reads as "Ã" and a control mark too, and both fold to "a".
    """
    found: dict[str, Spelling] = {}
    for reading in _READINGS:
        spelling = _spelled(pieces, unknown, reading)
        if spelling is not None:
            found.setdefault(spelling.source, spelling)
    wanted = _compact(text)
    return sorted(found.values(), key=lambda spelling: _compact(spelling.source) != wanted)


def _compact(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


def _spelled(pieces: Sequence[str], unknown: NDArray[np.bool_], reading: Callable[[str], bytes]) -> Spelling | None:
    read = {piece: reading(piece) for piece in set(pieces)}
    parts = [b"?" if hidden else read[piece] for piece, hidden in zip(pieces, unknown.tolist(), strict=True)]
    try:
        return Spelling(parts=parts, unknown=unknown, source=b"".join(parts).decode())
    except UnicodeDecodeError:
        return None


def _characters_of_bytes(data: bytes, lengths: Offsets) -> Offsets:
    """Widen consecutive byte runs to whole characters: three tokens on the three bytes of 苹 all get 苹."""
    leads = (np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80
    character = np.concatenate([np.cumsum(leads) - 1, [leads.sum()]])  # [byte + 1]
    ends = np.cumsum(lengths)
    first = character[ends - lengths]
    last = np.where(lengths > 0, character[np.maximum(ends - 1, 0)] + 1, first)
    return np.stack([first, last], axis=1).astype(np.int64)


def _byte_alphabet() -> dict[str, int]:
    """Give the byte of each character of byte-level BPE: printable Latin-1 stands for itself, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + k): b for k, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _read_byte_level(piece: str) -> bytes:
    if all(character in _BYTE_OF for character in piece):
        return bytes(_BYTE_OF[character] for character in piece)
    return _read_plain(piece)


def _read_plain(piece: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode("utf-8", "replace")


def _read_wordpiece(piece: str) -> bytes:
    return _read_plain(piece[2:] if piece.startswith("##") and len(piece) > 2 else piece)


def _read_word_end(piece: str) -> bytes:
    return _read_plain(piece.removesuffix("</w>").removesuffix("@@"))


def _read_latin(piece: str) -> bytes:
    return bytes([ord(piece)]) if len(piece) == 1 and ord(piece) < 256 else _read_plain(piece)


# GPT-2 and Qwen; SentencePiece and characters; BERT; CLIP and BERTweet; ByT5. Only one of them spells the text.
_READINGS = (_read_byte_level, _read_plain, _read_wordpiece, _read_word_end, _read_latin)


# ---- offsets that a tokenizer gave -----------------------------------------------------------------------------


def trim(text: str, offsets: Offsets) -> Offsets:
    """Take the surrounding whitespace out of each interval, unless the interval holds nothing else."""
    blank = np.fromiter(map(str.isspace, text), dtype=np.bool_, count=len(text))
    index = np.arange(len(text) + 1)
    first_ink = np.minimum.accumulate(np.where(np.append(blank, False), len(text), index)[::-1])[::-1]
    last_ink = np.maximum.accumulate(np.where(np.append(False, blank), 0, index))
    start, end = first_ink[offsets[:, 0]], last_ink[offsets[:, 1]]
    return np.where((start < end)[:, None], np.stack([start, end], axis=1), offsets).astype(np.int64)


def close_gaps(text: str, offsets: Offsets) -> Offsets:
    """Widen each interval to the left over characters that no token has: of `` rewritten to ", only one is given."""
    before = np.concatenate([[0], np.maximum.accumulate(offsets[:, 1])[:-1]])
    starts = np.where(offsets[:, 0] < offsets[:, 1], np.minimum(offsets[:, 0], before), offsets[:, 0])
    return trim(text, np.stack([starts, offsets[:, 1]], axis=1))


def are_valid(text: str, offsets: Offsets) -> bool:
    """Tell whether offsets lie inside the text, are not reversed, and never step back."""
    start, end = offsets[:, 0], offsets[:, 1]
    return bool(((start >= 0) & (start <= end) & (end <= len(text))).all() and (np.diff(start) >= 0).all())


def agree(spelling: Spelling, text: Letters, offsets: Offsets, *, rewrite: Callable[[str], str] | None = None) -> bool:
    """Tell whether each token spells the slice that its offsets cut, and no letter of the text is left without one.

    Unknown tokens spell nothing, so of them only a non-empty slice is asked. `rewrite` is what the tokenizer does to
    a slice before it cuts, where folding does not already undo it.
    """
    if not are_valid(text.source, offsets) or not _covers(text, offsets):
        return False
    if not _faint_agree(spelling, text.source, offsets):
        return False
    if spelling.folded.letters == text.letters:  # letter by letter, so that even 哈哈哈 cannot be a letter off
        return bool((spelling.folded.rank[spelling.bounds] == text.rank[offsets]).all())
    if rewrite is not None:
        cut = [fold(rewrite(text.source[a:b])).letters for a, b in offsets.tolist()]
    elif spelling.unknown.any() and _apart(spelling.bounds, text.rank[offsets]):
        cut = [text.letters[a:b] for a, b in text.rank[offsets].tolist()]
    else:
        return False
    spelt = [spelling.folded.letters[a:b] for a, b in spelling.folded.rank[spelling.bounds].tolist()]
    return all(map(lambda a, b, hidden: hidden or a == b, cut, spelt, spelling.unknown.tolist()))


def _apart(bounds: Offsets, ranks: Offsets) -> bool:
    """Tell whether neighbours that spell different characters have different letters."""
    return bool((ranks[1:, 0] >= ranks[:-1, 1])[bounds[1:, 0] >= bounds[:-1, 1]].all())


def _faint_agree(spelling: Spelling, text: str, offsets: Offsets) -> bool:
    """Tell whether unknown tokens have some slice and tokens of only spaces and marks have just those."""
    if (offsets[spelling.unknown, 0] == offsets[spelling.unknown, 1]).any():
        return False
    faint = np.flatnonzero(np.diff(spelling.folded.rank[spelling.bounds], axis=1)[:, 0] == 0)
    spelt = spelling.folded.source
    pairs = zip(offsets[faint].tolist(), spelling.bounds[faint].tolist(), strict=True)
    return all(text[a:b].replace("▁", " ") == spelt[c:d] for (a, b), (c, d) in pairs)


def _covers(text: Letters, offsets: Offsets) -> bool:
    change = np.zeros(len(text.letters) + 1, dtype=np.int64)
    np.add.at(change, text.rank[offsets[:, 0]], 1)
    np.add.at(change, text.rank[offsets[:, 1]], -1)
    return bool((np.cumsum(change)[:-1] > 0).all())


def same_letters(text: Letters, left: Offsets, right: Offsets) -> bool:
    """Tell whether two sets of valid offsets cut the same letters, and where there are none, the same characters."""
    ranks = text.rank[left]
    faint = ranks[:, 0] == ranks[:, 1]
    return bool((ranks == text.rank[right]).all() and (left[faint] == right[faint]).all())


# ---- offsets by search -----------------------------------------------------------------------------------------


def search(spellings: Sequence[Spelling], text: Letters, offsets: Offsets | None) -> Offsets | None:
    """Find each token's characters in order, under the first spelling that uses up all letters of the text.

    If none does, letters are passed over, as some tokenizers drop them; None if the text does not contain what the
    tokens spell. An unknown token stands for the shortest piece after which the known text goes on, unless offsets,
    where given, say how wide it is.
    """
    best: tuple[Spelling, Offsets] | None = None
    for spelling in spellings:
        for guess in _guesses(spelling, text, offsets):
            matched = _match(spelling.folded.letters, text, guess)
            if matched is not None and matched[1]:
                return _token_intervals(spelling, _character_intervals(spelling.folded, text, matched[0]))
            best = (spelling, matched[0]) if best is None and matched is not None else best
    if best is None:
        return None
    return _token_intervals(best[0], _character_intervals(best[0].folded, text, best[1]))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Guess:
    """How far unknown tokens are taken to reach."""

    widths: Mapping[int, int]  # spelt letter of the unknown token -> letters that its offsets cut
    least: int  # letters of the text that each must have
    starts: NDArray[np.bool_] | None  # [letter]: where the known text may go on, if not anywhere


def _guesses(spelling: Spelling, text: Letters, offsets: Offsets | None) -> Iterator[_Guess]:
    """Give the guesses in order: as wide as offsets say, any piece, whole words, nothing at all (a lone mark)."""
    if offsets is not None and spelling.unknown.any():
        widths = np.diff(text.rank[offsets[spelling.unknown]], axis=1)[:, 0]
        letters = spelling.folded.rank[spelling.bounds[spelling.unknown, 0]]
        yield _Guess(widths=dict(zip(letters.tolist(), widths.tolist(), strict=True)), least=1, starts=None)
    yield _Guess(widths={}, least=1, starts=None)
    if spelling.unknown.any():
        starts = np.zeros(len(text.letters) + 1, dtype=np.bool_)
        starts[text.rank[[start for start, _ in _words(text.source)]]] = True
        yield _Guess(widths={}, least=1, starts=starts)
        yield _Guess(widths={}, least=0, starts=None)


def _match(spelt: str, text: Letters, guess: _Guess) -> tuple[Offsets, bool] | None:
    """Give for each spelt letter its range of text letters [letter, 2], and whether all text letters were used."""
    letters = text.letters
    if spelt == letters:  # by far the most common, and no unknown token in it
        index = np.arange(len(letters), dtype=np.int64)
        return np.stack([index, index + 1], axis=1), True
    ranges: list[tuple[int, int]] = []
    at, skipped = 0, False
    while len(ranges) < len(spelt):
        here = len(ranges)
        if spelt[here] == _UNKNOWN:
            run = _run_length(spelt, here)
            known = spelt[here + run : here + run + _ANCHOR].partition(_UNKNOWN)[0]
            stop = at + sum(guess.widths.get(here + k, 0) for k in range(run))
            if not guess.widths or not letters.startswith(known, stop):
                stop = _resume(known, letters, at + guess.least * run, starts=guess.starts)
            if stop < 0:
                return None
            ranges.extend(_share(text, at, stop, run))
            at = stop
        else:
            found = letters.find(spelt[here], at)
            if found < 0:
                return None
            skipped |= found > at
            ranges.append((found, found + 1))
            at = found + 1
    return np.array(ranges, dtype=np.int64).reshape(-1, 2), not skipped and at == len(letters)


def _run_length(spelt: str, start: int) -> int:
    end = start
    while end < len(spelt) and spelt[end] == _UNKNOWN:
        end += 1
    return end - start


def _resume(known: str, letters: str, least: int, *, starts: NDArray[np.bool_] | None) -> int:
    """Give the letter where the known text goes on after unknown tokens, at or after `least`; -1 if it does not."""
    if not known:
        return len(letters) if least <= len(letters) else -1
    # Where the text has letters in between that the tokenizer dropped, only the first known one can be found.
    for part, stop in ((known, least + 16 * _ANCHOR), (known, len(letters)), (known[:1], len(letters))):
        place = letters.find(part, least, stop)
        for _ in range(_ANCHOR):
            if place < 0 or starts is None or starts[place]:
                break
            place = letters.find(part, place + 1, stop)
        if place >= 0:
            return place
    return -1


def _share(text: Letters, start: int, stop: int, run: int) -> list[tuple[int, int]]:
    """Divide letters between consecutive unknown tokens: a letter each, or a word each, else all of them to each."""
    if stop - start == run:
        return [(k, k + 1) for k in range(start, stop)]
    if run > 1 and stop > start:
        low, high = int(text.origin[start]), int(text.origin[stop - 1]) + 1
        words = _words(text.source, low, high)
        if len(words) == run:
            return [(int(text.rank[a]), int(text.rank[b])) for a, b in words]
    return [(start, stop)] * run


def _words(text: str, low: int = 0, high: int | None = None) -> list[tuple[int, int]]:
    """Give the words of a slice as BERT's basic tokenizer cuts them: punctuation and Han characters stand alone."""
    kinds = "".join(map(_kind, text[low:high]))
    return [(low + found.start(), low + found.end()) for found in re.finditer("w+|p", kinds)]


@lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    if character.isspace():
        return " "
    sign = character.isascii() and not character.isalnum()
    return "p" if sign or _HAN.match(character) or unicodedata.category(character)[0] == "P" else "w"


_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")


def _character_intervals(spelt: Letters, text: Letters, ranges: Offsets) -> Offsets:
    """Give for each character that the tokens spell its interval of the text [character, 2]; empty where none."""
    count = len(spelt.source)
    intervals = np.zeros((count, 2), dtype=np.int64)
    inked = np.flatnonzero(np.diff(spelt.rank))
    first, last = ranges[spelt.rank[inked], 0], ranges[spelt.rank[inked + 1] - 1, 1]
    origin = np.append(text.origin, len(text.source))
    intervals[inked, 0] = origin[first]
    wide = last > first  # an unknown token may have no letter at all
    intervals[inked, 1] = np.where(wide, origin[np.maximum(last - 1, 0)] + 1, origin[first])
    _take_marks(intervals, inked[wide], spelt.source, text.source)
    _fill_faint(intervals, inked, spelt.source, text.source)
    return intervals


def _take_marks(intervals: Offsets, inked: Offsets, spelt: str, text: str) -> None:
    """Give a letter the accents that follow it in the text, where the tokens do not spell them on their own."""
    index = np.arange(len(text) + 1)
    no_mark = np.append([unicodedata.category(c) not in _MARKS for c in text], True)
    next_plain = np.minimum.accumulate(np.where(no_mark, index, len(text))[::-1])[::-1]
    follows = np.array([unicodedata.category(c) in _MARKS for c in spelt[1:] + " "], dtype=np.bool_)
    alone = inked[~follows[inked]]
    intervals[alone, 1] = next_plain[intervals[alone, 1]]


def _fill_faint(intervals: Offsets, inked: Offsets, spelt: str, text: str) -> None:
    """Place spaces and marks between the letters around them, from the right, so that an added first space is left."""
    key, blanks = _blanked(spelt), _blanked(text)
    fence = np.concatenate([[-1], inked, [len(spelt)]])
    gaps = np.flatnonzero(np.diff(fence) > 1)
    for left, right in zip(fence[gaps].tolist(), fence[gaps + 1].tolist(), strict=True):
        low = int(intervals[left, 1]) if left >= 0 else 0
        high = int(intervals[right, 0]) if right < len(spelt) else len(text)
        for position in range(right - 1, left, -1):
            found = blanks.rfind(key[position], low, high)
            intervals[position] = (found, found + 1) if found >= 0 else (high, high)
            high = found if found >= 0 else high


def _blanked(text: str) -> str:
    return "".join(" " if c.isspace() or c == "▁" else c for c in text)


def _token_intervals(spelling: Spelling, characters: Offsets) -> Offsets:
    """Join the intervals of each token's characters, leaving out the empty ones."""
    full = np.flatnonzero(characters[:, 0] < characters[:, 1])
    first = np.searchsorted(full, spelling.bounds[:, 0])
    last = np.searchsorted(full, spelling.bounds[:, 1]) - 1
    held = first <= last
    result = np.zeros((len(first), 2), dtype=np.int64)
    result[held, 0] = characters[full[first[held]], 0]
    result[held, 1] = characters[full[last[held]], 1]
    # A token with no text stands where the next one with text begins, the last ones where the text of all ends.
    starts = np.append(result[held, 0], result[held, 1].max(initial=0))
    result[~held] = starts[np.searchsorted(np.flatnonzero(held), np.flatnonzero(~held))][:, None]
    return result
