"""A record on a model's tokens: what is read, what is learned, and which token is to attend to which."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from finetune.chats import Written, written
from finetune.dataconfig import Task
from finetune.errors import DataError
from finetune.pairs import PairBook, Reach, SpanPair, TokenPair, Unmet, on_tokens, pairs_in, why_unmet
from finetune.reading import Record, record_of
from probe import CijingError, Span, TokenMap, tokenize, tokens_of

IGNORED = -100  # a label that no loss counts
TARGET_RULE = -2  # the rule of a pair between the two targets of a word-in-context record
Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoding:
    """How records become tokens. `reach` also cuts: the shorter of `max_length` and what the model can hold."""

    task: Task
    max_length: int
    reach: Reach
    book: PairBook | None = None
    rules: tuple[int, ...] = ()  # the book's pairs that are looked for
    labels: tuple[str, ...] = ()
    pair_encoding: Literal["joint", "separate"] = "joint"
    template: bool = True
    own_pairs: bool = True  # pairs that stand in the data
    link_targets: bool = False  # word-in-context, joint: the targets of a pair of one sense attend to each other

    @property
    def longest(self) -> int:
        """Tokens after which a text is cut, special ones included."""
        return min(self.max_length, self.reach.longest or self.max_length)


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """A record on tokens, cut to length; all positions are those of `input_ids`.

    `labels` are ids where a language model's loss counts and -100 elsewhere: for causal-lm the first token never
    counts, and a model shifts them itself; for masked-lm they are the tokens that may be masked. Other tasks have
    `label`, the class, and no `labels`. In a separate word-in-context, `second` holds the second sentence.
    """

    id: str
    index: int  # the record's place in its part
    input_ids: Ids  # [token]
    labels: Ids  # [token], or [0]
    label: int | None = None
    target: tuple[int, ...] = ()
    second_target: tuple[int, ...] = ()
    pairs: tuple[TokenPair, ...] = ()
    unmet: tuple[Unmet, ...] = ()
    token_types: Ids | None = None  # [token], where a joint pair's tokenizer tells its two sentences apart
    second: "Encoded | None" = None
    tokens: TokenMap | None = field(default=None, repr=False)  # the uncut text, where it was asked for
    draw: int = 0  # the epoch, so that a masked text is masked anew in each

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(len(self.input_ids), self.second.length if self.second else 0)

    @property
    def learned(self) -> int:
        """How many tokens (or classes) the task loss counts; 0 tells an example that teaches nothing."""
        return int((self.labels != IGNORED).sum()) if self.label is None else 1


def encode_row(row: Mapping[str, Any], tokenizer: Any, encoding: Encoding) -> Encoded:
    """Encode a row of a corpus's part, with its `index`."""
    return encode(record_of(row), tokenizer, encoding, index=int(row["index"]))


def encode(record: Record, tokenizer: Any, encoding: Encoding, *, index: int = 0, keep_tokens: bool = False) -> Encoded:
    """Put a record on tokens; what cannot be met of its pairs is given with the reason.

    DataError, with the record's place, where the tokenizer cannot read it, its template refuses the messages or does
    not write them one after another, its target does not fit, or its label is unknown.
    """
    try:
        if encoding.task == "word-in-context":
            return _word_in_context(record, tokenizer, encoding, index=index)
        text = _written(record, tokenizer, encoding)
        return _single(record, text, encoding, index=index, keep_tokens=keep_tokens)
    except CijingError as error:
        raise DataError(f"{record.where}: {error}") from error


def _written(record: Record, tokenizer: Any, encoding: Encoding) -> Written:
    if encoding.task == "causal-lm":
        return written(record, tokenizer, template=encoding.template)
    tokens = tokenize(tokenizer, record.text)
    return Written(tokens=tokens, learned=~tokens.special)


def _single(record: Record, text: Written, encoding: Encoding, *, index: int, keep_tokens: bool) -> Encoded:
    """One sequence: language models, a marked word, a whole text."""
    tokens, causal = text.tokens, encoding.task == "causal-lm"
    target = _target(record.target, tokens)
    cut = _cut(tokens, encoding.longest, around=target, keep_end=not causal)
    met, unmet = _pairs(record, tokens, cut, encoding)
    labels = np.where(text.learned, np.array(tokens.ids, dtype=np.int64), IGNORED)[cut.kept]
    if causal:
        labels[:1] = IGNORED  # nothing precedes it; packed, it would be asked of the document before
    return Encoded(
        id=record.id, index=index, input_ids=np.array(tokens.ids, dtype=np.int64)[cut.kept],
        labels=labels if encoding.task in ("causal-lm", "masked-lm") else _NONE, label=_class(record, encoding),
        target=cut.places(target) or (), pairs=met, unmet=unmet, tokens=tokens if keep_tokens else None,
    )  # fmt: skip


_NONE: Ids = np.zeros(0, dtype=np.int64)


def _class(record: Record, encoding: Encoding) -> int | None:
    if encoding.task in ("causal-lm", "masked-lm"):
        return None
    if record.label not in encoding.labels:
        raise DataError(f"label {record.label!r} is unknown; known are {', '.join(encoding.labels)}")
    return encoding.labels.index(record.label)


def _target(span: Span | None, tokens: TokenMap) -> tuple[int, ...]:
    return () if span is None else tuple(map(int, tokens_of(span, tokens)))


# ---- cutting ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Cut:
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


def _cut(tokens: TokenMap, longest: int, *, around: Sequence[int] = (), keep_end: bool = True) -> _Cut:
    """The first tokens of a text, or a stretch around a target; special tokens at both ends stay (`keep_end`)."""
    count = len(tokens.ids)
    if count <= longest:
        return _Cut(np.arange(count))
    inner = np.flatnonzero(~tokens.special)
    first, end = (int(inner[0]), int(inner[-1]) + 1) if len(inner) else (0, count)
    tail = count - end if keep_end else 0
    start, stop = _stretch(end - first, longest - first - tail, around=[place - first for place in around])
    return _Cut(np.r_[0:first, first + start : first + stop, count - tail : count])


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


# ---- pairs -----------------------------------------------------------------------------------------------------


def _pairs(
    record: Record, tokens: TokenMap, cut: _Cut, encoding: Encoding, *, own: bool = True
) -> tuple[tuple[TokenPair, ...], tuple[Unmet, ...]]:
    """Pairs of the book and of the data on the kept tokens, and those that cannot be met."""
    found: list[SpanPair] = list(record.pairs) if own and encoding.own_pairs else []
    unmet: list[Unmet] = []
    if encoding.book is not None and encoding.rules:
        of_book, unmet = pairs_in(tokens.text, encoding.book, rules=encoding.rules)
        found += of_book
    met: list[TokenPair] = []
    for pair in found:
        placed = _placed(pair, tokens, cut, replace(encoding.reach, longest=None))
        if isinstance(placed, TokenPair):
            met.append(placed)
        else:
            unmet.append(placed)
    return tuple(met), tuple(unmet)


def _placed(pair: SpanPair, tokens: TokenMap, cut: _Cut, reach: Reach) -> TokenPair | Unmet:
    try:
        met, unmet = on_tokens([pair], tokens, reach)
    except CijingError:  # the tokenizer gives one of the words no token
        return Unmet(rule=pair.rule, reason="absent")
    if unmet:
        return unmet[0]
    queries, keys = cut.places(met[0].queries), cut.places(met[0].keys)
    if queries is None or keys is None:
        return Unmet(rule=pair.rule, reason="truncated")
    negatives = tuple(place for one in met[0].negatives for place in cut.places([one]) or ())
    return replace(met[0], queries=queries, keys=keys, negatives=negatives)


# ---- word in context -------------------------------------------------------------------------------------------


def _word_in_context(record: Record, tokenizer: Any, encoding: Encoding, *, index: int) -> Encoded:
    if encoding.pair_encoding == "separate":
        first, second = (
            _single(one, Written(tokens=tokens, learned=~tokens.special), encoding, index=index, keep_tokens=False)
            for one in _sides(record)
            for tokens in (tokenize(tokenizer, one.text),)
        )
        return replace(first, second=second)
    return _joint(record, tokenizer, encoding, index=index)


def _sides(record: Record) -> tuple[Record, Record]:
    """The two sentences as records; the pairs of the data belong to the first."""
    other = replace(record, text=record.second, target=record.second_target, second="", pairs=())
    return replace(record, second=""), other


def _joint(record: Record, tokenizer: Any, encoding: Encoding, *, index: int) -> Encoded:
    """Both sentences in the tokenizer's own frame for a pair, each cut around its target where they are too long."""
    sides = _sides(record)
    maps = [tokenize(tokenizer, side.text, add_special_tokens=False) for side in sides]
    frame = _frame(tokenizer)
    targets = [_target(side.target, tokens) for side, tokens in zip(sides, maps, strict=True)]
    rooms = _rooms([len(tokens.ids) for tokens in maps], encoding.longest - frame.size)
    first, second = (_cut(tokens, room, around=at) for tokens, room, at in zip(maps, rooms, targets, strict=True))
    first = replace(first, shift=len(frame.before))
    second = replace(second, shift=first.shift + len(first.kept) + len(frame.between))
    cuts = (first, second)
    found = [_pairs(side, tokens, cut, encoding) for side, tokens, cut in zip(sides, maps, cuts, strict=True)]
    places = [cut.places(at) or () for cut, at in zip(cuts, targets, strict=True)]
    linked = list(_linked(places[0], places[1], record, encoding))
    ids = [[tokens.ids[place] for place in cut.kept] for tokens, cut in zip(maps, cuts, strict=True)]
    return Encoded(
        id=record.id, index=index, input_ids=frame.around(ids[0], ids[1]), labels=_NONE,
        label=_class(record, encoding), target=places[0], second_target=places[1],
        pairs=(*found[0][0], *found[1][0], *(pair for pair in linked if isinstance(pair, TokenPair))),
        unmet=(*found[0][1], *found[1][1], *(pair for pair in linked if isinstance(pair, Unmet))),
        token_types=frame.types(len(ids[0]), len(ids[1])),
    )  # fmt: skip


def _rooms(counts: Sequence[int], room: int) -> tuple[int, int]:
    """How many tokens each of two sentences may have: what one does not need, the other gets."""
    if room < 2:
        raise DataError(f"{room} tokens are left for two sentences; allowed is a longer max_length")
    shorter = min(min(counts), room // 2)
    return (shorter, room - shorter) if counts[0] <= counts[1] else (room - shorter, shorter)


def _linked(
    first: tuple[int, ...], second: tuple[int, ...], record: Record, encoding: Encoding
) -> Iterator[TokenPair | Unmet]:
    """The two targets of one sense: each attends to the other, in a causal model the second to the first."""
    if not encoding.link_targets or record.label != "same":
        return
    for queries, keys in ((second, first),) if encoding.reach.causal else ((second, first), (first, second)):
        pair = TokenPair(rule=TARGET_RULE, queries=queries, keys=keys)
        reason = why_unmet(pair, encoding.reach)
        yield pair if reason is None else Unmet(rule=TARGET_RULE, reason=reason)


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """What a tokenizer writes before, between and after two texts, and how it tells them apart."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    typed: tuple[int, ...] | None  # token types of: before, first text, between, second text, after

    @property
    def size(self) -> int:
        """Tokens of the frame alone."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, first: Sequence[int], second: Sequence[int]) -> Ids:
        """The ids of both texts within the frame, [token]."""
        return np.array([*self.before, *first, *self.between, *second, *self.after], dtype=np.int64)

    def types(self, first: int, second: int) -> Ids | None:
        """Token types for texts of these lengths, [token]; None where the tokenizer has none."""
        if self.typed is None:
            return None
        lengths = (len(self.before), first, len(self.between), second, len(self.after))
        return np.repeat(np.array(self.typed, dtype=np.int64), lengths)


def _frame(tokenizer: Any) -> _Frame:
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
    return _Frame(
        before=tuple(ids[:start]),
        between=tuple(ids[end:middle]),
        after=tuple(ids[rest:]),
        typed=typed if "token_type_ids" in tokenizer.model_input_names else None,
    )


_SAMPLE = ("1", "2")


def _find(ids: Sequence[int], part: Sequence[int], *, start: int = 0) -> int:
    """Where a run of ids stands; -1 where nowhere."""
    places = (at for at in range(start, len(ids) - len(part) + 1) if list(ids[at : at + len(part)]) == list(part))
    return next(places, -1)
