"""Batches: encoded records padded or packed into tensors, masked for a masked language model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from finetune.dataconfig import Task
from finetune.encode import IGNORED, Encoded, Encoding, Ids, encode_row
from finetune.errors import DataError
from finetune.pairs import TokenPair

QUERY, KEY, NEGATIVE = range(3)  # the second column of `spans`
OPEN_PACKS = 32  # packs that wait for a document that fits

Batch = dict[str, Tensor]
Example = Encoded | tuple[Encoded, ...]  # a tuple is a pack: documents that share a row


@dataclass(frozen=True, kw_only=True)
class Collator:
    """Makes a batch of examples: tensors alone, so that a Trainer can move them.

    Always: input_ids [row, token]; spans [n, 4] (row, QUERY | KEY | NEGATIVE, pair of the batch, position);
    pair_weights [pair] float32; pair_rules [pair] (a place in the pairs file, OWN_RULE or TARGET_RULE);
    index [example], places in the part. Integers are int64.
    Not packed: attention_mask [row, token]. Packed: position_ids [row, token] in its place, counted anew in every
    document, from which transformers makes a mask that keeps documents apart, if it is given no cache (use_cache
    False) and attends by sdpa or eager.
    Language models: labels [row, token], -100 outside. Other tasks: labels [example] classes, and target_mask,
    second_mask [row, token] bool where records have such. A separate word-in-context has two rows an example, 2i and
    2i + 1, and its target_mask is that of each row.
    Padding stands right, and is told from an end token by place, never by id.
    """

    task: Task
    pad_id: int
    mask_id: int | None = None  # masked-lm
    ordinary: tuple[int, ...] | range = ()  # masked-lm: the ids that may stand in for a masked token
    mask_share: float = 0.15
    seed: int = 0
    multiple_of: int = 1  # rows are padded to a multiple of so many tokens

    def __post_init__(self) -> None:
        """Refuse a masked language model without a mask token."""
        if self.task == "masked-lm" and (self.mask_id is None or not self.ordinary):
            raise DataError(
                "task masked-lm: this tokenizer has no mask token; allowed is a model that was made with one"
            )

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Make the batch; DataError where its loss would count nothing, with the places of its examples."""
        packed = any(isinstance(example, tuple) for example in examples)
        rows = [_row_of(example) for example in examples]
        if self.task == "word-in-context" and rows[0][0].second is not None:
            rows = [part for (first,) in rows for part in ((first,), (_second(first),))]
        batch = self._tokens(rows, packed=packed) | _spans(rows)
        documents = [document for example in examples for document in _row_of(example)]
        batch["index"] = torch.tensor([document.index for document in documents])
        if self.task not in ("causal-lm", "masked-lm"):
            batch["labels"] = torch.tensor([_known(document.label) for document in documents])
        elif not bool((batch["labels"] != IGNORED).any()):
            raise DataError(
                f"a batch without any label to learn (examples {batch['index'].tolist()}): all answers cut?"
            )
        return batch

    def _tokens(self, rows: Sequence[Sequence[Encoded]], *, packed: bool) -> Batch:
        """What stands on tokens, each [row, token]."""
        width = max(sum(len(document.input_ids) for document in row) for row in rows)
        width = -(-width // self.multiple_of) * self.multiple_of
        if self.task in ("causal-lm", "masked-lm"):
            rows = [[self._masked(document) for document in row] for row in rows]
            labels = {"labels": _padded([[one.labels for one in row] for row in rows], width, IGNORED)}
        else:
            labels = _target_masks(rows, width)
        ids = [[document.input_ids for document in row] for row in rows]
        batch = {"input_ids": _padded(ids, width, self.pad_id), **labels}
        if packed:
            return batch | {"position_ids": _positions(ids, width)}
        batch["attention_mask"] = _padded([[np.ones_like(one) for one in row] for row in ids], width, 0)
        if any(document.token_types is not None for row in rows for document in row):
            types = [[_types(document) for document in row] for row in rows]
            batch["token_type_ids"] = _padded(types, width, 0)
        return batch

    def _masked(self, document: Encoded) -> Encoded:
        """Mask as BERT does: of the tokens drawn 80 % become the mask, 10 % another token, 10 % stay.

        The share is of the text's own tokens, at least one, so that no short text teaches nothing. Seed, epoch and
        place alone decide, so neither the batch's make-up nor a resumed run changes what is masked. Words of pairs
        may be masked like any other.
        """
        if self.task != "masked-lm":
            return document
        random = np.random.default_rng([self.seed, document.draw, document.index, document.piece])
        candidates = np.flatnonzero(document.labels != IGNORED)
        count = min(len(candidates), max(1, round(self.mask_share * len(candidates))))
        drawn = np.sort(random.choice(candidates, size=count, replace=False))
        fate = random.random(count)
        others = np.array(self.ordinary, dtype=np.int64)[random.integers(len(self.ordinary), size=count)]
        ids, labels = document.input_ids.copy(), np.full_like(document.labels, IGNORED)
        labels[drawn] = ids[drawn]
        ids[drawn] = np.where(fate < 0.8, _known(self.mask_id), np.where(fate < 0.9, others, ids[drawn]))
        return replace(document, input_ids=ids, labels=labels)


def collator_of(
    tokenizer: Any, task: Task, *, seed: int = 0, mask_share: float = 0.15, multiple_of: int = 1
) -> Collator:
    """Give the collator for a tokenizer; where it has no pad token any id serves, since padding is told by place."""
    special = {
        *tokenizer.all_special_ids,
        *(id for id, token in tokenizer.added_tokens_decoder.items() if token.special),
    }
    return Collator(
        task=task,
        pad_id=pad_id_of(tokenizer),
        mask_id=tokenizer.mask_token_id,
        ordinary=tuple(id for id in range(len(tokenizer)) if id not in special) if task == "masked-lm" else (),
        mask_share=mask_share,
        seed=seed,
        multiple_of=multiple_of,
    )


def pad_id_of(tokenizer: Any) -> int:
    """The id that stands where a row has ended: the tokenizer's own, else that of its end, else 0."""
    return int(next(id for id in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if id is not None))


def _row_of(example: Example) -> tuple[Encoded, ...]:
    return example if isinstance(example, tuple) else (example,)


def _second(first: Encoded) -> Encoded:
    if first.second is None:
        raise DataError(f"{first.id}: one sequence among pairs of sequences; all are encoded in one way")
    return first.second


def _known(value: int | None) -> int:
    if value is None:
        raise DataError("an example without a class among classes; all are encoded for one task")
    return value


def _padded(rows: Sequence[Sequence[Ids]], width: int, filler: int) -> Tensor:
    """[row, token]: the documents of each row one after another, then the filler."""
    out = torch.full((len(rows), width), filler)
    for place, row in enumerate(rows):
        joined = np.concatenate(row)
        out[place, : len(joined)] = torch.from_numpy(joined)
    return out


def _positions(rows: Sequence[Sequence[Ids]], width: int) -> Tensor:
    """[row, token]: each document's own positions; the padding counts as a document of its own."""
    counted = [[np.arange(len(ids)) for ids in row] for row in rows]
    used = [sum(map(len, row)) for row in rows]
    return _padded([[*row, np.arange(width - taken)] for row, taken in zip(counted, used, strict=True)], width, 0)


def _types(document: Encoded) -> Ids:
    return np.zeros_like(document.input_ids) if document.token_types is None else document.token_types


def _target_masks(rows: Sequence[Sequence[Encoded]], width: int) -> Batch:
    """target_mask and second_mask, [row, token] bool, where any record has such a target."""
    masks: Batch = {}
    for name, targets in (
        ("target_mask", [document.target for (document,) in rows]),
        ("second_mask", [document.second_target for (document,) in rows]),
    ):
        if any(targets):
            masks[name] = torch.zeros(len(rows), width, dtype=torch.bool)
            for place, positions in enumerate(targets):
                masks[name][place, list(positions)] = True
    return masks


def _spans(rows: Sequence[Sequence[Encoded]]) -> Batch:
    """The batch's spans [n, 4], pair_weights [pair], pair_rules [pair]; positions are those of the row."""
    spans: list[tuple[int, int, int, int]] = []
    pairs: list[TokenPair] = []
    for item, row in enumerate(rows):
        start = 0
        for document in row:
            for pair in document.pairs:
                for kind, positions in ((QUERY, pair.queries), (KEY, pair.keys), (NEGATIVE, pair.negatives)):
                    spans += [(item, kind, len(pairs), start + position) for position in positions]
                pairs.append(pair)
            start += len(document.input_ids)
    return {
        "spans": torch.tensor(spans, dtype=torch.int64).reshape(-1, 4),
        "pair_weights": torch.tensor([pair.weight for pair in pairs], dtype=torch.float32),
        "pair_rules": torch.tensor([pair.rule for pair in pairs], dtype=torch.int64),
    }


# ---- packing ---------------------------------------------------------------------------------------------------


def packs(documents: Iterable[Encoded], *, length: int, waiting: int = OPEN_PACKS) -> Iterator[tuple[Encoded, ...]]:
    """Documents put together into rows of at most `length` tokens, none cut: each into the fullest row it fits.

    At most `waiting` rows are open at a time, so that a stream can be packed; the same documents in the same order
    give the same rows. DataError for a document longer than a row.
    """
    rows: list[tuple[int, list[Encoded]]] = []
    for document in documents:
        size = len(document.input_ids)
        if size > length:
            raise DataError(f"{document.id}: {size} tokens do not fit into a row of {length}; allowed is max_length")
        fits = [row for row in rows if row[0] + size <= length]
        used, row = max(fits, key=lambda row: row[0], default=(0, []))
        if row:
            rows.remove((used, row))
        rows.append((used + size, [*row, document]))
        if len(rows) > waiting:
            fullest = max(rows, key=lambda row: row[0])
            rows.remove(fullest)
            yield tuple(fullest[1])
    yield from (tuple(row) for _, row in rows)


class Examples(Dataset[Example]):
    """Encoded records as a Trainer takes them; packed, their rows. `documents` are the records in their order."""

    def __init__(self, documents: Iterable[Encoded], *, length: int, packing: bool = False) -> None:
        """Keep the records; `length` is that of a packed row, in tokens."""
        self.documents: tuple[Encoded, ...] = tuple(documents)
        rows: Iterable[Example] = packs(self.documents, length=length) if packing else self.documents
        self.rows: tuple[Example, ...] = tuple(rows)
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Example:
        return _drawn(self.rows[place], self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Let a masked language model's texts be masked anew; the Trainer's loader calls it."""
        self.epoch = epoch


class ByLength(Sampler[int]):
    """Examples of like length in one batch (`train_sampling_strategy: group_by_length`), drawn anew in each epoch.

    Transformers' sampler takes its order from the global generator, whose state after a resumed run is another, and
    finds no lengths in examples of ours.
    """

    def __init__(self, rows: Sequence[Example], *, batch: int, seed: int) -> None:
        """`batch`: examples of one step of one process; a packed row is as long as its documents together."""
        self.lengths = [sum(one.length for one in row) if isinstance(row, tuple) else row.length for row in rows]
        self.batch, self.seed, self.epoch = batch, seed, 0

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        yield from get_length_grouped_indices(self.lengths, self.batch, generator=generator)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass have another order; the Trainer's loader calls it."""
        self.epoch = epoch


def encoded(part: Iterable[Any], tokenizer: Any, encoding: Encoding) -> Iterator[Encoded]:
    """Encode every record of a part; DataError as `encode` gives it."""
    for row in part:
        yield from encode_row(row, tokenizer, encoding)


def _drawn(example: Example, epoch: int) -> Example:
    if isinstance(example, tuple):
        return tuple(replace(document, draw=epoch) for document in example)
    return replace(example, draw=epoch)
