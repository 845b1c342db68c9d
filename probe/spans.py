"""Characters and tokens: spans of a text, the tokens that carry them, attention rows merged to match."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probe import alignment
from probe.errors import SpanError
from probe.given import is_a, whole_number


@dataclass(frozen=True, order=True)
class Span:
    """A piece of a text as half-open character offsets: Span(3, 5).cut("我喜欢苹果") is "苹果"."""

    start: int
    end: int

    def __post_init__(self) -> None:
        """Refuse a span that is empty, reversed or begins before the text."""
        for name in ("start", "end"):
            object.__setattr__(self, name, whole_number(getattr(self, name), f"a span's {name}", error=SpanError))
        if not 0 <= self.start < self.end:
            raise SpanError(f"{self._shown()}: allowed are offsets with 0 <= start < end")

    @classmethod
    def of(cls, text: str, word: str, *, occurrence: int = 1) -> Span:
        """Give the span of a word's n-th occurrence in a text (counted from 1, overlapping ones included)."""
        is_a(text, str, "the text", wanted="a text", error=SpanError)
        occurrence = whole_number(occurrence, "occurrence", error=SpanError)
        if not is_a(word, str, "the word", wanted="a word of the text", error=SpanError):
            raise SpanError("an empty word has no span; allowed is a word of at least one character")
        if occurrence < 1:
            raise SpanError(f"occurrence {occurrence} of {word!r}: occurrences are counted from 1")
        start, found = -1, 0
        while found < occurrence:
            start = text.find(word, start + 1)
            if start < 0:
                raise SpanError(f"{word!r}, occurrence {occurrence}: the text {_shown(text)} has it {found} times")
            found += 1
        return cls(start, start + len(word))

    def cut(self, text: str) -> str:
        """Give the slice of the text that the span covers; SpanError where it ends past the text."""
        if self.end > len(text):
            raise SpanError(f"{self._shown()} ends past the text of {len(text)} characters {_shown(text)}")
        return text[self.start : self.end]

    def overlaps(self, other: Span) -> bool:
        """Tell whether the two spans share a character."""
        return self.start < other.end and other.start < self.end

    def _shown(self) -> str:
        return f"span [{self.start}, {self.end})"


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenMap:
    """A text as a tokenizer cut it, each token with the characters it carries.

    Offsets are half-open character intervals that never step back; a token without text, like [CLS] or the ▁ that
    SentencePiece puts first, has an empty one. Several tokens may carry one character. `aligned` tells how the offsets
    were come by: the tokenizer's own, its own with errors put right, or found by search because it gives none.
    """

    text: str
    ids: tuple[int, ...]
    offsets: NDArray[np.int64]  # [token, 2]
    special: NDArray[np.bool_]  # [token]
    labels: tuple[str, ...]  # slices of the text, for special tokens their name
    unknown: NDArray[np.bool_]  # [token]
    aligned: Literal["offsets", "repaired", "search"]

    def __post_init__(self) -> None:
        """Refuse arrays of different lengths and offsets outside the text."""
        count = len(self.ids)
        if self.offsets.shape != (count, 2) or {len(self.special), len(self.labels), len(self.unknown)} != {count}:
            raise SpanError(f"a token map of {count} tokens needs an offset, flag and label for each of them")
        if not alignment.are_valid(self.text, self.offsets):
            raise SpanError(f"token offsets must rise within the text {_shown(self.text)}")


def tokenize(
    tokenizer: Any,
    text: str,
    *,
    add_special_tokens: bool = True,
    parse_special_tokens: bool = False,
    as_letters: Collection[int] = (),
) -> TokenMap:
    """Give a text's tokens with their characters, from a fast or slow tokenizer; nothing is cut off.

    A special token's name inside the text is text, as a user typed it, and so is what its normaliser makes that name
    (＜/s＞); only `parse_special_tokens`, meant for what a chat template wrote, makes it the token. Added tokens that
    their tokenizer does not call special, like Gemma's <table>, are read as the model learnt them, but for the ids in
    `as_letters`. Offsets are checked against what the tokens spell and put right where they disagree. SpanError if the
    text gives no tokens, they cannot be found in it, or a special token has no letters (CANINE's).
    """
    if parse_special_tokens and as_letters:
        raise SpanError("as_letters with parse_special_tokens: allowed is one of them, the names are text or tokens")
    _check_encodable(text)
    cut = _encode(tokenizer, text, add_special_tokens=add_special_tokens, parse=parse_special_tokens)
    if not parse_special_tokens:
        cut = _spell_out(tokenizer, cut, frozenset(as_letters))
    if text and cut.added.all():
        raise SpanError(f"the tokenizer makes no tokens of the text {_shown(text)}; does it belong to this model?")
    ids = np.array(cut.ids, dtype=np.int64)
    special = cut.added | np.isin(ids, special_ids(tokenizer) if parse_special_tokens else [])
    unknown = ~special & (ids == unknown_id(tokenizer))
    offsets, aligned = _align(tokenizer, text, cut, unknown=unknown)
    names = iter(_pieces(tokenizer, ids[special].tolist()))
    labels = tuple(
        next(names) if is_special else text[start:end]
        for is_special, (start, end) in zip(special.tolist(), offsets.tolist(), strict=True)
    )
    return TokenMap(
        text=text, ids=cut.ids, offsets=offsets, special=special, labels=labels, unknown=unknown, aligned=aligned
    )


def tokens_of(span: Span, tokens: TokenMap) -> NDArray[np.int64]:
    """Give the indices of all tokens that carry a character of the span; SpanError if there are none."""
    word = span.cut(tokens.text)
    start, end = tokens.offsets[:, 0], tokens.offsets[:, 1]
    found = np.flatnonzero(~tokens.special & (start < end) & (start < span.end) & (span.start < end))
    if not len(found):
        raise SpanError(f"no token carries {word!r} at [{span.start}, {span.end}) of {_shown(tokens.text)}")
    return found.astype(np.int64)


def spells(tokenizer: Any, tokens: TokenMap) -> bool:
    """Tell whether a tokenizer's own names of a map's ids spell its text, each token the letters it carries there.

    Another tokenizer's ids do not, but for one whose vocabulary has the same pieces at these ids.
    """
    special, ids = tokens.special, np.array(tokens.ids, dtype=np.int64)
    try:
        names = _pieces(tokenizer, tokens.ids)
    except (IndexError, OverflowError, ValueError, TypeError):  # slow tokenizers look into lists
        return False
    if any(hidden and name != label for hidden, name, label in zip(special, names, tokens.labels, strict=True)):
        return False
    if (tokens.unknown != (~special & (ids == unknown_id(tokenizer)))).any():
        return False
    inner = ~special | (tokens.offsets[:, 0] < tokens.offsets[:, 1])  # what stands in the text as characters
    kept, given = [tokens.ids[place] for place in np.flatnonzero(inner)], tokens.offsets[inner]
    try:
        found, _ = _align_text(tokenizer, tokens.text, kept, given=given, unknown=tokens.unknown[inner])
    except SpanError:
        return False
    rank = alignment.fold(tokens.text).rank
    # Where a space or a ▁ stands is a matter of taste: two right answers may differ in it.
    faint = (rank[given][:, 0] == rank[given][:, 1]) & (rank[found][:, 0] == rank[found][:, 1])
    return bool((faint[:, None] | (rank[given] == rank[found])).all())


def words_of(tokens: TokenMap) -> tuple[NDArray[np.int64], ...]:
    """Give all tokens in groups, where tokens that share a character stand together and all others alone.

    These are the smallest pieces that are slices of the text: 苹 cut into three byte tokens is one group.
    """
    start, end = tokens.offsets[:, 0], tokens.offsets[:, 1]
    reach = np.maximum.accumulate(np.where(tokens.special, 0, end))  # [token]: furthest character so far
    joins = ~tokens.special & (start < end)
    joins[1:] &= start[1:] < reach[:-1]
    joins[:1] = False
    # A token joins the last one that carries text; a token without text in between keeps a group of its own.
    index = np.arange(len(start))
    carrier = np.maximum.accumulate(np.where(joins | tokens.special | (start == end), -1, index))
    leader = np.where(joins, carrier, index)
    order = np.argsort(leader, kind="stable")
    return tuple(np.split(order, np.flatnonzero(np.diff(leader[order])) + 1)) if len(order) else ()


def labels_of(groups: Sequence[NDArray[np.int64]], tokens: TokenMap) -> tuple[str, ...]:
    """Give the label of each group of tokens: the slice of the text from its first to its last character."""
    labels = []
    for group in groups:
        if tokens.special[group].any():
            labels.append("".join(tokens.labels[token] for token in group))
        else:
            labels.append(tokens.text[tokens.offsets[group, 0].min() : tokens.offsets[group, 1].max()])
    return tuple(labels)


def merge_rows(
    rows: NDArray[np.floating[Any]], queries: Sequence[ArrayLike], keys: Sequence[ArrayLike]
) -> NDArray[np.floating[Any]]:
    """Give attention between groups of tokens: the mean over a group's queries of the sum over a group's keys.

    Rows [..., query, key] become [..., query group, key group], in their own dtype. Where the key groups hold every
    key once, rows that summed to one still do (Clark et al. 2019, arXiv:1906.04341).
    """
    query_index, query_starts = _joined(queries, rows.shape[-2], axis="query")
    key_index, key_starts = _joined(keys, rows.shape[-1], axis="key")
    picked = rows[..., query_index[:, None], key_index]  # [..., query of a group, key of a group]
    sums = np.add.reduceat(picked, key_starts, axis=-1, dtype=np.float64)
    sizes = np.diff(np.append(query_starts, len(query_index)))
    means = np.add.reduceat(sums, query_starts, axis=-2) / sizes[:, None]
    merged: NDArray[np.floating[Any]] = means.astype(rows.dtype)  # [..., query group, key group]
    return merged


def _joined(groups: Sequence[ArrayLike], size: int, *, axis: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give all indices one after another and where each group starts; SpanError for an empty group or index."""
    arrays = [np.atleast_1d(np.asarray(group)) for group in groups]
    if not arrays or any(array.size == 0 for array in arrays):
        raise SpanError(f"merging rows needs at least one {axis} group, each of at least one token")
    index = np.concatenate(arrays)
    if index.dtype.kind not in "iu" or index.min() < 0 or index.max() >= size:
        raise SpanError(f"{axis} groups must hold token positions from 0 to {size - 1}, got {index.tolist()[:8]}")
    starts = np.cumsum([0, *(array.size for array in arrays[:-1])])
    return index.astype(np.int64), starts.astype(np.int64)


# ---- asking the tokenizer --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cut:
    """What a tokenizer made of a text."""

    ids: tuple[int, ...]
    added: NDArray[np.bool_]  # [token]: stands around the text, like [CLS], and carries none of it
    offsets: NDArray[np.int64] | None  # [token, 2], as given


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpanError(
            f"character {error.start} of {_shown(text)} is half of a surrogate pair, which no tokenizer can read"
        ) from None


def _encode(tokenizer: Any, text: str, *, add_special_tokens: bool, parse: bool) -> _Cut:
    # verbose=False: how long a text may be is the model's business and said there, in our own words.
    asked = {"truncation": False, "padding": False, "verbose": False, "split_special_tokens": not parse}
    if getattr(tokenizer, "is_fast", False):
        given = tokenizer(
            text,
            add_special_tokens=add_special_tokens,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            **asked,
        )
        ids = tuple(given["input_ids"])
        pairs = given.get("offset_mapping")  # gone without an error where there is no Rust core
        offsets = None if pairs is None else np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return _Cut(ids=ids, added=np.array(given["special_tokens_mask"], dtype=np.bool_), offsets=offsets)
    inner = tuple(tokenizer(text, add_special_tokens=False, **asked)["input_ids"])
    ids = tuple(tokenizer.build_inputs_with_special_tokens(list(inner))) if add_special_tokens else inner
    return _Cut(ids=ids, added=_around(ids, inner), offsets=None)


def _around(ids: tuple[int, ...], inner: tuple[int, ...]) -> NDArray[np.bool_]:
    """Mark the ids that were put around the inner ones; a slow tokenizer's own mask is not always of their length."""
    added = np.ones(len(ids), dtype=np.bool_)
    for start in range(len(ids) - len(inner) + 1):
        if ids[start : start + len(inner)] == inner:
            added[start : start + len(inner)] = False
            return added
    raise SpanError("this tokenizer changes a text's tokens when it adds special ones; allowed is only to add around")


def _spell_out(tokenizer: Any, cut: _Cut, letters: Set[int], within: frozenset[int] = frozenset()) -> _Cut:
    """Replace special tokens that the text's own characters became, and those of `letters`, by their names' tokens.

    Needed although special tokens were to be split: Unigram vocabularies hold <s> as a piece like any other, which
    NFKC makes of ＜s＞ too, and the slow BERT tokenizer keeps [SEP] whole. `within` are those being replaced.
    """
    inner = {token for token, added in zip(cut.ids, cut.added.tolist(), strict=True) if not added}
    marks = _marks_among(tokenizer, inner, letters)
    if not marks:
        return cut
    spelt = {token: _name_as_ids(tokenizer, token, letters, within) for token in sorted(marks)}
    ids: list[int] = []
    flags: list[bool] = []
    for token, added in zip(cut.ids, cut.added.tolist(), strict=True):
        new = spelt.get(token, [token]) if not added else [token]
        ids.extend(new)
        flags.extend([added] * len(new))
    # The offsets given belong to other tokens now; what stands in their place is found by search.
    return _Cut(ids=tuple(ids), added=np.array(flags, dtype=np.bool_), offsets=None)


def _marks_among(tokenizer: Any, ids: Set[int], letters: Set[int]) -> set[int]:
    """Give those of the ids that are special or of `letters`; the unknown token is special only as one of these."""
    known = ids - {unknown_id(tokenizer)}
    marks = {*(known & set(tokenizer.all_special_ids)), *(ids & letters)}
    rest = sorted(known - marks)
    core = getattr(tokenizer, "backend_tokenizer", None)
    # Is any other special? The Rust core can tell at once, whereas a list of Gemma's 6,384 added tokens takes 40 ms.
    if core is None or core.decode(rest, skip_special_tokens=True) != core.decode(rest, skip_special_tokens=False):
        marks |= known & set(special_ids(tokenizer))
    return marks


def _name_as_ids(tokenizer: Any, token: int, letters: Set[int], within: frozenset[int]) -> list[int]:
    """Give the tokens of a token's name, cut after its first character so that it is not recognised."""
    name = _pieces(tokenizer, [token])[0]
    if token in within:
        raise SpanError(f"the text holds {name!r}, which this tokenizer can read only as its special token")
    ids: list[int] = []
    for part in filter(None, (name[:1], name[1:])):
        cut = _encode(tokenizer, part, add_special_tokens=False, parse=False)
        inner = list(_spell_out(tokenizer, cut, letters, within | {token}).ids)
        if inner and _pieces(tokenizer, inner[:1]) == ["▁"] and not part[0].isspace():
            inner = inner[1:]  # the first space that SentencePiece adds belongs to a text, not to its middle
        ids.extend(inner)
    return ids


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Give the vocabulary's name of each id, asking for each different id once."""
    distinct = sorted(set(ids))
    pieces = tokenizer.convert_ids_to_tokens(distinct)
    named = {token: piece or "" for token, piece in zip(distinct, pieces, strict=True)}
    return [named[token] for token in ids]


def special_ids(tokenizer: Any) -> list[int]:
    """Give the ids of all special tokens but the unknown one, unless that one is also the end of text (GPT-2)."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    ids = {*tokenizer.all_special_ids, *(token for token, what in added.items() if getattr(what, "special", False))}
    return sorted(ids - ({unknown_id(tokenizer)} - {tokenizer.eos_token_id}))


def unknown_id(tokenizer: Any) -> int:
    """Give the id of the unknown token, -1 where there is none."""
    unknown = tokenizer.unk_token_id
    return -1 if unknown is None else int(unknown)


# ---- whose offsets to believe ----------------------------------------------------------------------------------

_How = Literal["offsets", "repaired", "search"]


def _align(tokenizer: Any, text: str, cut: _Cut, *, unknown: NDArray[np.bool_]) -> tuple[NDArray[np.int64], _How]:
    """Give the offsets [token, 2] of all tokens; those put around the text stand empty at its ends."""
    inner = ~cut.added
    first = np.argmax(inner) if inner.any() else len(inner)
    offsets = np.where(np.arange(len(inner)) < first, 0, len(text))[:, None].repeat(2, axis=1).astype(np.int64)
    ids = [token for token, added in zip(cut.ids, cut.added.tolist(), strict=True) if not added]
    given = None if cut.offsets is None else cut.offsets[inner]
    offsets[inner], how = _align_text(tokenizer, text, ids, given=given, unknown=unknown[inner])
    return offsets, how


def _align_text(
    tokenizer: Any, text: str, ids: Sequence[int], *, given: NDArray[np.int64] | None, unknown: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], _How]:
    letters = alignment.fold(text)
    spellings = alignment.spellings(_pieces(tokenizer, ids), unknown, text)
    offsets = _usable(text, given)
    if offsets is not None and any(alignment.agree(spelling, letters, offsets) for spelling in spellings):
        return offsets, "offsets"
    found = alignment.search(spellings, letters, offsets)
    if found is not None:
        found = alignment.trim(text, found)
        if offsets is not None and alignment.same_letters(letters, offsets, found):
            return offsets, "offsets"
        return found, "search" if given is None else "repaired"
    offsets = None if offsets is None else alignment.close_gaps(text, offsets)
    if offsets is not None and _agree_rewritten(tokenizer, letters, offsets, spellings):
        return offsets, "repaired"
    raise SpanError(f"the tokens of {_shown(text)} do not spell it; {type(tokenizer).__name__} cannot be mapped")


def _usable(text: str, given: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """Give offsets without surrounding whitespace; None if there are none or they are no rising intervals."""
    if given is None or not bool(((given >= 0) & (given <= len(text))).all()):
        return None
    offsets = alignment.trim(text, given)
    return offsets if alignment.are_valid(text, offsets) else None


def _agree_rewritten(
    tokenizer: Any, letters: alignment.Letters, offsets: NDArray[np.int64], spellings: list[alignment.Spelling]
) -> bool:
    """Tell whether offsets agree once each slice went through the tokenizer's own rewriting, such as `` to "."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normalizer is None:
        return False
    return any(alignment.agree(spelling, letters, offsets, rewrite=normalizer.normalize_str) for spelling in spellings)


def _shown(text: str) -> str:
    """Give a text short enough for a message of one line."""
    return repr(text if len(text) <= 40 else text[:39] + "…")
