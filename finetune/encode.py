"""A record on a model's tokens: what is read, what is learned, and which token is to attend to which."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from finetune.chats import Written, written
from finetune.cutting import Cut, cut_to, pieces_of
from finetune.dataconfig import DataConfig, Task
from finetune.errors import DataError
from finetune.frames import Frame, frame_of, rooms_of
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
    split_long: bool = True  # language models: a long text gives several examples
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
    words: tuple[str, ...] = ()  # what each token carries, [token], where it was asked for
    cut: int = 0  # tokens that did not fit
    piece: int = 0  # which part of a long text, from 0
    draw: int = 0  # the epoch, so that a masked text is masked anew in each

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(len(self.input_ids), self.second.length if self.second else 0)

    @property
    def learned(self) -> int:
        """How many tokens (or classes) the task loss counts; 0 tells an example that teaches nothing."""
        return int((self.labels != IGNORED).sum()) if self.label is None else 1


def encoding_of(
    config: DataConfig, task: Task, *, reach: Reach, labels: tuple[str, ...] = (), book: PairBook | None = None,
    rules: tuple[int, ...] = (), own_pairs: bool = True, link_targets: bool = False,
) -> Encoding:  # fmt: skip
    """Give the encoding that a data configuration asks for."""
    return Encoding(
        task=task, max_length=config.max_length, reach=reach, book=book, rules=rules, labels=labels,
        pair_encoding=config.pair_encoding, template=config.template, split_long=config.long_texts == "split",
        own_pairs=own_pairs, link_targets=link_targets,
    )  # fmt: skip


def encode_row(
    row: Mapping[str, Any], tokenizer: Any, encoding: Encoding, *, keep_words: bool = False
) -> tuple[Encoded, ...]:
    """Encode a row of a corpus's part, with its `index`: one example, or the pieces of a long text."""
    record, index = record_of(row), int(row["index"])
    if encoding.split_long and encoding.task in ("causal-lm", "masked-lm") and record.text:
        return encode_pieces(record, tokenizer, encoding, index=index, keep_words=keep_words)
    return (encode(record, tokenizer, encoding, index=index, keep_words=keep_words),)


def encode(record: Record, tokenizer: Any, encoding: Encoding, *, index: int = 0, keep_words: bool = False) -> Encoded:
    """Put a record on tokens, cut to length; what cannot be met of its pairs is given with the reason.

    DataError, with the record's place, where the tokenizer cannot read it, its template refuses the messages or does
    not write them one after another, its target does not fit, or its label is unknown.
    """
    with _placed_errors(record):
        if encoding.task == "word-in-context":
            return _word_in_context(record, tokenizer, encoding, index=index, keep_words=keep_words)
        text = _written(record, tokenizer, encoding)
        return _single(record, text, encoding, index=index, keep_words=keep_words)


def encode_pieces(
    record: Record, tokenizer: Any, encoding: Encoding, *, index: int = 0, keep_words: bool = False
) -> tuple[Encoded, ...]:
    """Put a text of a language model on tokens, in as many pieces as its length needs, nothing lost.

    Each piece begins with the start token; a pair that no piece holds whole is truncated, and told with the first.
    """
    with _placed_errors(record):
        text = _written(record, tokenizer, encoding)
        cuts = pieces_of(text.tokens, encoding.longest, keep_end=encoding.task != "causal-lm")
        found, unmet = _pairs(record, text.tokens, encoding)
        pieces = [_placed_in(cut, found) for cut in cuts]
        held = {place for met in pieces for place in met}
        lost = tuple(_truncated(pair) for place, pair in enumerate(found) if place not in held)
        return tuple(
            replace(
                _example(record, text, cut, encoding, index=index), pairs=tuple(met.values()), piece=number, cut=0,
                unmet=(*unmet, *lost) if number == 0 else (),
                words=tuple(text.tokens.labels[place] for place in cut.kept) if keep_words else (),
            )
            for number, (cut, met) in enumerate(zip(cuts, pieces, strict=True))
        )  # fmt: skip


@contextmanager
def _placed_errors(record: Record) -> Iterator[None]:
    """Name the record's place in whatever is wrong with it."""
    try:
        yield
    except CijingError as error:
        raise DataError(f"{record.where}: {error}") from error


def _written(record: Record, tokenizer: Any, encoding: Encoding) -> Written:
    if encoding.task == "causal-lm":
        return written(record, tokenizer, template=encoding.template)
    return _plain(record.text, tokenizer)


def _plain(text: str, tokenizer: Any) -> Written:
    """A text as an encoder reads it: any of its own tokens may be masked."""
    tokens = tokenize(tokenizer, text)
    return Written(tokens=tokens, learned=~tokens.special)


def _single(record: Record, text: Written, encoding: Encoding, *, index: int, keep_words: bool) -> Encoded:
    """One sequence, cut where it is too long: language models, a marked word, a whole text."""
    around = _target(record.target, text.tokens)
    cut = cut_to(text.tokens, encoding.longest, around=around, keep_end=encoding.task != "causal-lm")
    found, unmet = _pairs(record, text.tokens, encoding)
    met = _placed_in(cut, found)
    lost = tuple(_truncated(pair) for place, pair in enumerate(found) if place not in met)
    example = _example(record, text, cut, encoding, index=index)
    words = tuple(text.tokens.labels[place] for place in cut.kept) if keep_words else ()
    return replace(
        example, target=cut.places(around) or (), pairs=tuple(met.values()), unmet=(*unmet, *lost), words=words
    )


def _example(record: Record, text: Written, cut: Cut, encoding: Encoding, *, index: int) -> Encoded:
    """The kept tokens of a text with what is learned of them, no pairs yet."""
    ids = np.array(text.tokens.ids, dtype=np.int64)
    labels = np.where(text.learned, ids, IGNORED)[cut.kept]
    if encoding.task == "causal-lm":
        labels[:1] = IGNORED  # nothing precedes it; packed, it would be asked of the document before
    return Encoded(
        id=record.id, index=index, input_ids=ids[cut.kept], cut=len(ids) - len(cut.kept),
        labels=labels if encoding.task in ("causal-lm", "masked-lm") else _NONE, label=_class(record, encoding),
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


# ---- pairs -----------------------------------------------------------------------------------------------------


def _pairs(record: Record, tokens: TokenMap, encoding: Encoding) -> tuple[list[TokenPair], list[Unmet]]:
    """Pairs of the data and of the book on the uncut text's tokens, and those that cannot be met there."""
    found: list[SpanPair] = list(record.pairs) if encoding.own_pairs else []
    met: list[TokenPair] = []
    unmet: list[Unmet] = []
    if encoding.book is not None and encoding.rules:
        of_book, unmet = pairs_in(tokens.text, encoding.book, rules=encoding.rules)
        found += of_book
    for pair in found:
        try:
            on, refused = on_tokens([pair], tokens, replace(encoding.reach, longest=None))
        except CijingError:  # the tokenizer gives one of the words no token
            on, refused = [], [Unmet(rule=pair.rule, reason="absent")]
        met += on
        unmet += refused
    return met, unmet


def _placed_in(cut: Cut, pairs: Sequence[TokenPair]) -> dict[int, TokenPair]:
    """The pairs that stand whole in what is kept, by their place in the list, on the positions that they get."""
    met: dict[int, TokenPair] = {}
    for place, pair in enumerate(pairs):
        queries, keys = cut.places(pair.queries), cut.places(pair.keys)
        if queries is not None and keys is not None:
            negatives = tuple(at for one in pair.negatives for at in cut.places([one]) or ())
            met[place] = replace(pair, queries=queries, keys=keys, negatives=negatives)
    return met


def _truncated(pair: TokenPair) -> Unmet:
    return Unmet(rule=pair.rule, reason="truncated")


# ---- word in context -------------------------------------------------------------------------------------------


def _word_in_context(record: Record, tokenizer: Any, encoding: Encoding, *, index: int, keep_words: bool) -> Encoded:
    if encoding.pair_encoding == "joint":
        return _joint(record, tokenizer, encoding, index=index, keep_words=keep_words)
    first, second = (
        _single(side, _plain(side.text, tokenizer), encoding, index=index, keep_words=keep_words)
        for side in _sides(record)
    )
    return replace(first, second=second)


def _sides(record: Record) -> tuple[Record, Record]:
    """The two sentences as records; the pairs of the data belong to the first."""
    other = replace(record, text=record.second, target=record.second_target, second="", pairs=())
    return replace(record, second=""), other


@dataclass(frozen=True, kw_only=True, eq=False)
class _Half:
    """One of two sentences, cut around its target, at its place in the common sequence."""

    record: Record
    tokens: TokenMap
    cut: Cut

    @property
    def ids(self) -> list[int]:
        """The kept tokens."""
        return [self.tokens.ids[place] for place in self.cut.kept]

    @property
    def target(self) -> tuple[int, ...]:
        """The target's positions in the common sequence."""
        return self.cut.places(_target(self.record.target, self.tokens)) or ()

    def pairs(self, encoding: Encoding) -> tuple[list[TokenPair], list[Unmet]]:
        """Pairs within this sentence, on positions of the common sequence."""
        found, unmet = _pairs(self.record, self.tokens, encoding)
        met = _placed_in(self.cut, found)
        return list(met.values()), [
            *unmet,
            *(_truncated(found[place]) for place in range(len(found)) if place not in met),
        ]


def _joint(record: Record, tokenizer: Any, encoding: Encoding, *, index: int, keep_words: bool) -> Encoded:
    """Both sentences in the tokenizer's own frame for a pair."""
    frame = frame_of(tokenizer)
    first, second = halves = _halves(record, tokenizer, frame, encoding)
    met, unmet = _linked(first.target, second.target, record, encoding)
    for half in halves:
        in_half, refused = half.pairs(encoding)
        met, unmet = met + in_half, unmet + refused
    ids = frame.around(first.ids, second.ids)
    return Encoded(
        id=record.id, index=index, input_ids=ids, labels=_NONE, label=_class(record, encoding),
        target=first.target, second_target=second.target, pairs=tuple(met), unmet=tuple(unmet),
        token_types=frame.types(len(first.ids), len(second.ids)),
        cut=sum(len(half.tokens.ids) - len(half.cut.kept) for half in halves),
        words=tuple(tokenizer.convert_ids_to_tokens(ids.tolist())) if keep_words else (),
    )  # fmt: skip


def _halves(record: Record, tokenizer: Any, frame: Frame, encoding: Encoding) -> tuple[_Half, _Half]:
    sides = _sides(record)
    maps = [tokenize(tokenizer, side.text, add_special_tokens=False) for side in sides]
    rooms = rooms_of([len(tokens.ids) for tokens in maps], encoding.longest - frame.size)
    cuts = [
        cut_to(tokens, room, around=_target(side.target, tokens))
        for side, tokens, room in zip(sides, maps, rooms, strict=True)
    ]
    start = len(frame.before)
    shifts = (start, start + len(cuts[0].kept) + len(frame.between))
    first, second = (
        _Half(record=side, tokens=tokens, cut=replace(cut, shift=shift))
        for side, tokens, cut, shift in zip(sides, maps, cuts, shifts, strict=True)
    )
    return first, second


def _linked(
    first: tuple[int, ...], second: tuple[int, ...], record: Record, encoding: Encoding
) -> tuple[list[TokenPair], list[Unmet]]:
    """The two targets of one sense: each attends to the other, in a causal model the second to the first."""
    met: list[TokenPair] = []
    unmet: list[Unmet] = []
    if not encoding.link_targets or record.label != "same":
        return met, unmet
    for queries, keys in ((second, first),) if encoding.reach.causal else ((second, first), (first, second)):
        pair = TokenPair(rule=TARGET_RULE, queries=queries, keys=keys)
        reason = why_unmet(pair, encoding.reach)
        if reason is None:
            met.append(pair)
        else:
            unmet.append(Unmet(rule=TARGET_RULE, reason=reason))
    return met, unmet
