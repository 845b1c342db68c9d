"""A streamed part as a trainer takes it: encoded as it is drawn, shuffled in a buffer, pass after pass."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import IterableDataset

from finetune.batches import Example, packs
from finetune.dataconfig import DataConfig
from finetune.encode import Encoded, Encoding, encode_row
from finetune.errors import DataError

Item = TypeVar("Item")


class ExampleStream(IterableDataset[Example]):
    """A part without an end: after its last record comes another pass in another order.

    A trainer therefore sees one epoch of as many batches as it asks for, and resuming means skipping those that were
    seen. Seed and pass decide the order, never the number of processes: accelerate lets every process read all and
    keep its share of each batch. What is held is the buffer, the rows that are being packed, and `documents`.
    """

    def __init__(self, part: Any, tokenizer: Any, encoding: Encoding, *, data: DataConfig, seed: int) -> None:
        """Read the first `data.look_ahead` documents; DataError where none teaches anything."""
        self.part, self.tokenizer, self.encoding, self.data, self.seed = part, tokenizer, encoding, data, seed
        self.change: Callable[[Encoded], Encoded] = lambda document: document  # the control's pairs for the true ones
        self.drawn = 0  # documents that were encoded for training
        self.documents = tuple(islice(self._taught(0), data.look_ahead))
        if not self.documents:
            raise nothing_taught("the stream's records")

    def __iter__(self) -> Iterator[Example]:
        documents = self._drawn()
        yield from packs(documents, length=self.encoding.longest) if self.data.packing else documents

    def _drawn(self) -> Iterator[Encoded]:
        for number in count():
            before = self.drawn
            for document in self._taught(number):
                self.drawn += 1
                yield self.change(document)
            if self.drawn == before:  # a file that was emptied since: an endless loop otherwise
                raise nothing_taught("the stream's records")

    def _taught(self, number: int) -> Iterator[Encoded]:
        found = stream_documents(
            self.part, self.tokenizer, self.encoding, data=self.data, seed=self.seed, number=number
        )
        return (document for document in found if document.learned)


def stream_documents(
    part: Iterable[Any],
    tokenizer: Any,
    encoding: Encoding,
    *,
    data: DataConfig,
    seed: int,
    number: int = 0,
    keep_words: bool = False,
) -> Iterator[Encoded]:
    """The documents of one pass in the order in which they are drawn."""
    random = np.random.default_rng([seed, number])
    for row in shuffled(part, size=data.shuffle_buffer, random=random):
        for document in encode_row(row, tokenizer, encoding, keep_words=keep_words):
            yield replace(document, draw=number)


def shuffled(items: Iterable[Item], *, size: int, random: np.random.Generator) -> Iterator[Item]:
    """Each item once, drawn from a buffer of `size`, which the next one refills; in their order with a size of 0."""
    held: list[Item] = []
    for item in items:
        if len(held) < size:
            held.append(item)
            continue
        if not size:
            yield item
            continue
        place = int(random.integers(size))
        yield held[place]
        held[place] = item
    for place in random.permutation(len(held)):
        yield held[place]


def nothing_taught(what: str) -> DataError:
    """The refusal of texts of which no token is learned."""
    return DataError(f"of all {what} the loss counts no token: nothing can be learned")


def notes_of(stream: ExampleStream, *, has_pairs: bool) -> tuple[str, ...]:
    """What a reader of the run must know of its stream."""
    seen = len(stream.documents)
    counted = ", and pairs are counted in them" if has_pairs else ""
    return (
        f"streamed: the first {seen} documents as drawn set `auto` heads, an `auto` weight and a reading head's centre"
        f"{counted}; the order is that of a shuffle buffer of {stream.data.shuffle_buffer} records",
    )
