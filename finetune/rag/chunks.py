"""Documents in pieces of whole sentences that fit a model, each a slice of its document's text."""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.errors import RetrievalError
from finetune.rag.documents import Document, is_visible
from finetune.rag.sentences import sentence_ends
from probe import CijingError, tokenize

SMALLEST = 16  # tokens; below, a single character of several tokens might not fit
_BLOCK = 20_000  # characters that a tokenizer is given at once: merges of one endless line would take minutes
_CLAUSE_END = re.compile(r"(?:[，；：、]+|[,;:](?=\s))[”’」』）)】]*")
_SPACE = re.compile(r"\s+")
_JOINERS = "\u200d\ufe0e\ufe0f"  # what holds an emoji's parts together


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a document: `text` is its text[start:end], of `tokens` tokens without special ones."""

    id: str
    document: str
    start: int
    end: int
    text: str
    title: str
    tokens: int

    @property
    def searched(self) -> str:
        """What searches read of it: its document's title, and its text."""
        return searched_text(self.title, self.text)


def searched_text(title: str, text: str) -> str:
    """Give a title and a text as one, the title once."""
    return text if not title or text.startswith(title) else f"{title}\n{text}"


def chunk_document(document: Document, tokenizer: Any, *, size: int = 256, overlap: int = 0) -> list[Chunk]:
    """Give a document in chunks of at most `size` tokens, each with the last `overlap` sentences of the one before.

    A sentence longer than `size` is cut after clauses, else at white space, else between characters. Only a single
    character that alone has more tokens than that gives a longer chunk. RetrievalError where the tokenizer cannot
    read the text.
    """
    if size < SMALLEST or overlap < 0:
        raise RetrievalError(
            f"chunk size {size}, overlap {overlap}: allowed are {SMALLEST} tokens and 0 sentences or more"
        )
    try:
        spans = _spans(document.text, tokenizer, size=size, overlap=overlap)
        return [_chunk(document, start, end, tokens) for start, end, tokens in spans]
    except CijingError as error:
        raise RetrievalError(f"{document.id}: {error}") from error


def _chunk(document: Document, start: int, end: int, tokens: int) -> Chunk:
    text = document.text[start:end]
    named = f"{document.id}\0{start}\0{end}\0{text}"
    return Chunk(
        id=hashlib.sha256(named.encode()).hexdigest()[:16], document=document.id, start=start, end=end, text=text,
        title=document.title, tokens=tokens,
    )  # fmt: skip


def _spans(text: str, tokenizer: Any, *, size: int, overlap: int) -> list[tuple[int, int, int]]:
    """Start, end and number of tokens of each chunk."""
    ends = sentence_ends(text)
    places = _TokenPlaces(tokenizer, text, ends)
    room = max(size - _put_before(tokenizer), 1)
    units = _cut_long(text, places, ends, room)
    spans = [_trimmed(text, start, end) for start, end in _packed(places, units, size=room, overlap=overlap)]
    spans = [(start, end) for start, end in spans if is_visible(text[start:end])]
    return list(_fitted(text, tokenizer, spans, size))


def _put_before(tokenizer: Any) -> int:
    """How many tokens a text has more where it stands alone, such as the ▁ that SentencePiece puts first."""
    # Letters that no vocabulary has with a ▁ in front, as it may have ▁苹果.
    before, alone, joined = token_counts(tokenizer, ["苹果。", "，鳍。", "苹果。，鳍。"])
    return max(before + alone - joined, 0)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    left = len(piece) - len(piece.lstrip())
    return start + left, start + max(left, len(piece.rstrip()))


class _TokenPlaces:
    """Where the tokens of a text begin and end, and so how many a part of it has, up to one or two at its edges."""

    def __init__(self, tokenizer: Any, text: str, ends: NDArray[np.int64]) -> None:
        self.length = len(text)
        blocks = [_offsets(tokenizer, text[start:end]) + start for start, end in _blocks(len(text), ends)]
        offsets = np.concatenate([np.zeros((0, 2), dtype=np.int64), *blocks])  # [token, 2]
        self.starts = np.maximum.accumulate(offsets[:, 0])  # [token]
        self.ends = np.maximum.accumulate(offsets[:, 1])  # [token]

    def begun(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many tokens begin before each of these places."""
        return np.searchsorted(self.starts, places, "left")

    def over(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many tokens end at each of these places or before."""
        return np.searchsorted(self.ends, places, "right")

    def furthest(self, start: int, size: int) -> int:
        """Give the furthest place that `size` tokens reach from a start."""
        first = int(np.searchsorted(self.ends, start, "right"))
        return int(self.starts[first + size]) if first + size < len(self.starts) else self.length


def _blocks(length: int, ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Parts of a text of at most _BLOCK characters, up to a sentence's end where one is near."""
    start = 0
    while start < length:
        end = start + _BLOCK
        near = int(ends[max(int(np.searchsorted(ends, end, "right")) - 1, 0)])
        end = near if start < near <= end < length else min(end, length)
        yield start, end
        start = end


def _offsets(tokenizer: Any, text: str) -> NDArray[np.int64]:
    """Characters [token, 2] of a text's tokens, a fast tokenizer's own as they are.

    `probe.tokenize` would set wrong ones right, in five times the time; here they only say where to cut, and the
    tokens of a chunk are counted again.
    """
    if not getattr(tokenizer, "is_fast", False):
        return tokenize(tokenizer, text, add_special_tokens=False).offsets
    given = tokenizer(text, return_offsets_mapping=True, **_PLAIN)["offset_mapping"]
    return np.array(given, dtype=np.int64).reshape(-1, 2)


_PLAIN = {
    "add_special_tokens": False, "truncation": False, "padding": False, "verbose": False, "split_special_tokens": True,
    "return_attention_mask": False, "return_token_type_ids": False,
}  # fmt: skip


def token_counts(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """How many tokens each text has alone, as `probe.tokenize` would cut it, without special ones."""
    names = [str(name) for name in tokenizer.all_special_tokens]
    # A special token's name in a text is letters; some fast tokenizers take it for the token all the same.
    slowly = [not getattr(tokenizer, "is_fast", False) or any(name in text for name in names) for text in texts]
    fast = [text for text, slow in zip(texts, slowly, strict=True) if not slow]
    lengths = iter([len(ids) for ids in tokenizer(fast, **_PLAIN)["input_ids"]] if fast else [])
    return [
        len(tokenize(tokenizer, text, add_special_tokens=False).ids) if slow else next(lengths)
        for text, slow in zip(texts, slowly, strict=True)
    ]


def _cut_long(text: str, places: _TokenPlaces, ends: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Add to the ends of sentences those inside sentences of more than `size` tokens."""
    starts = np.append(0, ends[:-1])
    long = np.flatnonzero(places.begun(ends) - places.over(starts) > size)
    cuts = [cut for one in long for cut in _cuts(text, places, int(starts[one]), int(ends[one]), size)]
    return np.union1d(ends, np.array(cuts, dtype=np.int64)) if cuts else ends


def _cuts(text: str, places: _TokenPlaces, start: int, end: int, size: int) -> Iterator[int]:
    """Where to cut a sentence: after the last clause that fits, else the last space, else the last character."""
    while (furthest := places.furthest(start, size)) < end:
        furthest = max(furthest, start + 1)
        found = _last_end(_CLAUSE_END, text, start, furthest) or _last_end(_SPACE, text, start, furthest)
        start = found or _between_characters(text, start, furthest)
        if start >= end:
            return
        yield start


def _last_end(pattern: re.Pattern[str], text: str, start: int, furthest: int) -> int:
    """The last end of a pattern after some text; 0 where there is none."""
    ends = [match.end() for match in pattern.finditer(text, start, furthest) if match.start() > start]
    return ends[-1] if ends else 0


def _between_characters(text: str, start: int, furthest: int) -> int:
    """The furthest place that parts no mark from its letter, or all the same the furthest."""
    place = furthest
    while start < place < len(text) and (
        unicodedata.combining(text[place]) or text[place] in _JOINERS or text[place - 1] == _JOINERS[0]
    ):
        place -= 1
    return place if place > start else furthest


def _packed(places: _TokenPlaces, ends: NDArray[np.int64], *, size: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Start and end of each run of sentences that fits, as many as fit."""
    starts = np.append(0, ends[:-1])
    begun, over = places.begun(ends), places.over(starts)  # [sentence]
    first = 0
    while first < len(ends):
        last = max(int(np.searchsorted(begun, over[first] + size, "right")) - 1, first)
        yield int(starts[first]), int(ends[last])
        following = last + 1
        first = following
        # As many shared sentences as leave room for the next one, or no chunk would go on.
        for back in range(max(following - overlap, 0), following):
            if following < len(ends) and begun[following] - over[back] <= size:
                first = back
                break


def _fitted(text: str, tokenizer: Any, spans: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, int, int]]:
    """Each chunk with its tokens counted alone; one that has more than `size` then is cut smaller."""
    counts = token_counts(tokenizer, [text[start:end] for start, end in spans])
    for (start, end), count in zip(spans, counts, strict=True):
        if count <= size or end - start == 1:
            yield start, end, count
        else:
            yield from _smaller(text, tokenizer, (start, end), count=count, size=size)


def _smaller(
    text: str, tokenizer: Any, span: tuple[int, int], *, count: int, size: int
) -> Iterator[tuple[int, int, int]]:
    """Cut what fits by its share of the tokens from the front, up to a sentence's end where there is one."""
    start, end = span
    piece = text[start:end]
    most = max((end - start) * size // count, 1)
    ends = sentence_ends(piece)
    fitting = ends[ends <= most]
    cut = int(fitting[-1]) if len(fitting) else _between_characters(piece, 0, most)
    spans = [_trimmed(text, start, start + cut), _trimmed(text, start + cut, end)]
    yield from _fitted(text, tokenizer, [(s, e) for s, e in spans if is_visible(text[s:e])], size)
