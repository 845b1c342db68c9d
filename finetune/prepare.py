"""From a configuration to what a trainer takes: texts and pairs on tokens, layers and heads, the control's pairs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finetune.batches import Collator, Examples, collator_of, encoded
from finetune.config import RunConfig
from finetune.control import Swap, mean_attention, random_pairs
from finetune.dataconfig import DataConfig
from finetune.domains import DOMAINS, domain_pairs, shipped_texts
from finetune.encode import Encoded, Encoding, encoding_of
from finetune.errors import ConfigError, PairError
from finetune.heads import Heads, chosen_layers, every_head, mass_by_head, named_heads, strongest_quarter
from finetune.learner import Learner, make_learner
from finetune.pairs import PairBook, Reach, load_pairs
from finetune.reach import Depths, depths_of
from finetune.records import Corpus, load_records
from finetune.streams import ExampleStream, notes_of, nothing_taught
from finetune.supervise import Supervision
from finetune.tally import PairTally, refuse_too_few, tally
from finetune.tasks import READING, centre_head
from probe import position_rows

Progress = Callable[[str, int, int], None]
_LOOKED_AT = 64  # batches from which heads are chosen
_MOST_CENTRED, _AT_ONCE = 2048, 32  # documents that set a reading head's centre


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """All that a run needs, before its first step."""

    corpus: Corpus
    learner: Learner
    encoding: Encoding
    collator: Collator
    train: Examples | ExampleStream
    dev: Examples | None
    supervision: Supervision | None
    pairs: PairTally
    true: tuple[Encoded, ...]  # documents with the true pairs, also in the control: all, or the first of a stream
    swaps: tuple[Swap, ...]  # of the random control, of these documents, else empty
    notes: tuple[str, ...]  # what a reader of the run must know


def prepare_run(config: RunConfig, *, device: str = "auto", progress: Progress | None = None) -> Prepared:
    """Read, load, encode and choose; the model is the base's, since LoRA starts at zero.

    Raises ConfigError, DataError, PairError or probe's ModelError, each one line.
    """
    tell = progress or (lambda stage, done, total: None)
    book = pair_book(config)
    tell("texts", 0, 1)
    corpus = load_records(with_shipped(config.data), config.task, seed=config.seed)
    tell("texts", 1, 1)
    learner = make_learner(config, labels=corpus.labels, device=device)
    depths = depths_of(learner.loaded.backbone.config, causal=learner.loaded.kind == "decoder")
    refuse_too_long(config, held=position_rows(learner.loaded.backbone))
    layers = supervised_layers(config, depths)
    encoding = run_encoding(config, corpus, depths.reach(layers, cut_at=config.data.max_length), book)
    tokenizer = learner.loaded.tokenizer
    collator = collator_of(tokenizer, config.task, seed=config.seed)
    train = _train_part(config, corpus, tokenizer, encoding, tell)
    documents = train.documents
    dev = dev_part(config, corpus, tokenizer, encoding, tell)
    found = tally(documents, book, encoding.rules)
    refuse_to_teach(config, found, documents)
    if config.task in READING:
        centre_head(learner.model, in_batches(documents, collator, device=learner.loaded.device))
    supervision, swaps = None, tuple[Swap, ...]()
    if config.supervised:
        heads = supervised_heads(config, learner, depths, layers, documents=documents, collator=collator, tell=tell)
        supervision = Supervision(settings=config.attention.settings(), heads=heads)
        if config.attention.mode == "random":
            train, swaps = with_control(train, learner, config, heads=heads, encoding=encoding, tell=tell)
    notes = (*learner.notes, *run_notes(config, depths=depths))
    if isinstance(train, ExampleStream):
        notes = (*notes, *notes_of(train, has_pairs=book is not None))
    return Prepared(
        corpus=corpus, learner=learner, encoding=encoding, collator=collator, train=train, dev=dev,
        supervision=supervision, pairs=found, true=documents, swaps=swaps, notes=notes,
    )  # fmt: skip


def _train_part(
    config: RunConfig, corpus: Corpus, tokenizer: Any, encoding: Encoding, tell: Progress
) -> Examples | ExampleStream:
    """What is trained on, on tokens; of a stream its first documents, the rest as it is drawn."""
    if config.data.streaming:
        return ExampleStream(corpus.train, tokenizer, encoding, data=config.data, seed=config.seed)
    given = told(encoded(corpus.train, tokenizer, encoding), corpus.train, "train", tell)
    return Examples(teaching(given), length=encoding.longest, packing=config.data.packing)


def dev_part(config: RunConfig, corpus: Corpus, tokenizer: Any, encoding: Encoding, tell: Progress) -> Examples | None:
    """What checkpoints are chosen on; of a dev part cut off from a stream the first documents."""
    if corpus.dev is None:
        return None
    kept = teaching(told(encoded(corpus.dev, tokenizer, encoding), corpus.dev, "dev", tell))
    if not hasattr(corpus.dev, "__len__"):
        kept = islice(kept, config.data.look_ahead)
    return Examples(kept, length=encoding.longest, packing=config.data.packing)


def refuse_too_long(config: RunConfig, *, held: int | None) -> None:
    """ConfigError for texts longer than the model's table of positions, where there is one."""
    if held is not None and config.data.max_length > held:
        raise ConfigError(
            f"data.max_length {config.data.max_length}: {config.model} has positions for {held} tokens, special ones "
            f"included; allowed is at most {held}"
        )


def refuse_to_teach(config: RunConfig, found: PairTally, documents: Sequence[Encoded]) -> None:
    """DataError where the loss counts nothing, PairError where too few pairs can be met."""
    if not any(one.learned for one in documents):
        raise nothing_taught("examples")
    if not config.supervised or config.pairs is None:
        return
    try:
        refuse_too_few(found, unmet_limit=config.pairs.unmet_limit, absent_limit=config.pairs.absent_limit)
    except PairError as error:
        if not config.data.streaming:
            raise
        seen = f"counted in the first {len(documents)} documents of the stream, data.look_ahead"
        raise PairError(f"{error} ({seen})") from error
    parts = (part for one in documents for part in (one, one.second) if part is not None)
    if config.attention.loss == "margin" and not any(pair.negatives for part in parts for pair in part.pairs):
        raise PairError(
            "attention.loss margin: no pair in the texts has negatives to compare with; give `negatives` in the pairs, "
            "or another loss"
        )


def run_notes(config: RunConfig, *, depths: Depths) -> tuple[str, ...]:
    """What a reader of the run must know that needs no weights."""
    notes = []
    if depths.longest is not None and config.data.max_length > depths.longest:
        notes.append(
            f"data.max_length {config.data.max_length} is beyond the {depths.longest} positions that {config.model} "
            f"was made for: texts end, or are split, at {depths.longest}"
        )
    if config.task == "masked-lm" and config.supervised:
        notes.append("words of pairs are masked like any other: a query may be asked to read a key that it cannot see")
    return tuple(notes)


def with_shipped(data: DataConfig) -> DataConfig:
    """The data with `chips/train` and the like, the parts of shipped domains, as the files that they are."""

    def found(sources: Sequence[str]) -> tuple[str, ...]:
        parts = {name: str(file) for name, file in shipped_texts().items()}
        return tuple(parts.get(source, source) for source in sources)

    return data.model_copy(update={name: found(getattr(data, name)) for name in ("train", "dev", "test")})


def pair_book(config: RunConfig) -> PairBook | None:
    """The pairs of the run, or none."""
    name = config.pairs.file if config.pairs is not None else None
    if config.pairs is None or name is None:
        return None
    book = domain_pairs(name) if name in DOMAINS else load_pairs(Path(name))
    return book.in_either_direction() if config.pairs.direction == "either" else book


def links_targets(config: RunConfig) -> bool:
    """Whether two targets of one sense are a pair."""
    return config.pairs is not None and config.pairs.targets


def supervised_layers(config: RunConfig, depths: Depths) -> tuple[int, ...]:
    """The layers whose rows are rewarded."""
    heads = config.attention.heads
    if isinstance(heads, tuple):
        return tuple(named_heads(heads, layers=depths.layers, heads=depths.heads))
    return chosen_layers(config.attention.layers, depths.layers)


def rules_of(book: PairBook | None) -> tuple[int, ...]:
    """The pairs to train on; PairError where all are held out."""
    rules = book.of_part("train") if book is not None else ()
    if book is not None and not rules:
        raise PairError(f"{book.name}: no pair has part: train")
    return rules


def run_encoding(config: RunConfig, corpus: Corpus, reach: Reach, book: PairBook | None) -> Encoding:
    """How the run's records become tokens; only pairs of the train part are looked for."""
    return encoding_of(
        config.data, config.task, reach=reach, labels=corpus.labels, book=book, rules=rules_of(book),
        link_targets=links_targets(config),
    )  # fmt: skip


def teaching(documents: Iterable[Encoded]) -> Iterator[Encoded]:
    """Those that teach something: a batch of others alone would be refused."""
    return (document for document in documents if document.learned)


def supervised_heads(
    config: RunConfig,
    learner: Learner,
    depths: Depths,
    layers: Sequence[int],
    *,
    documents: Sequence[Encoded],
    collator: Collator,
    tell: Progress,
) -> Heads:
    """The heads that are rewarded: named, all of the layers, or the quarter that looks at the true pairs most.

    The random control chooses by the true pairs as well: it differs from the true arm in the pairs alone.
    """
    asked = config.attention.heads
    if isinstance(asked, tuple):
        return named_heads(asked, layers=depths.layers, heads=depths.heads)
    if asked == "all":
        return every_head(layers, depths.heads)
    batches = batches_with_pairs(documents, collator, size=8, most=_LOOKED_AT, device=learner.loaded.device)
    most = min(_LOOKED_AT, -(-sum(bool(document.pairs) for document in documents) // 8))

    def counted() -> Iterator[dict[str, Any]]:
        for place, batch in enumerate(batches):
            yield batch
            tell("heads compared", place + 1, max(most, place + 1))

    return strongest_quarter(mass_by_head(learner.model, counted(), layers=layers), layers)


def in_batches(documents: Sequence[Encoded], collator: Collator, *, device: Any) -> Iterator[dict[str, Any]]:
    """The first documents, those of like length together, on the device."""
    first = sorted(documents[:_MOST_CENTRED], key=lambda document: document.length)
    for start in range(0, len(first), _AT_ONCE):
        yield _moved(collator(first[start : start + _AT_ONCE]), device)


def batches_with_pairs(
    documents: Iterable[Encoded], collator: Collator, *, size: int, most: int, device: Any
) -> Iterator[dict[str, Any]]:
    """Batches of documents that hold a pair, in their order, on the device."""
    waiting: list[Encoded] = []
    given = 0
    for document in documents:
        waiting += [document] * bool(document.pairs or (document.second is not None and document.second.pairs))
        if len(waiting) == size and given < most:
            yield _moved(collator(waiting), device)
            waiting, given = [], given + 1
    if waiting and given < most:
        yield _moved(collator(waiting), device)


def _moved(batch: dict[str, torch.Tensor], device: Any) -> dict[str, Any]:
    return {name: value.to(device) for name, value in batch.items()}


def with_control(
    train: Examples | ExampleStream,
    learner: Learner,
    config: RunConfig,
    *,
    heads: Heads,
    encoding: Encoding,
    tell: Progress,
) -> tuple[Examples | ExampleStream, tuple[Swap, ...]]:
    """The texts with other spans in the pairs' place, a stream's when they are drawn; and how well they match.

    Seeds and a text's place in its part alone decide which spans, so that each pass, each process and a resumed run
    have the same.
    """
    special = set(learner.loaded.tokenizer.all_special_ids)

    def swapped(document: Encoded) -> list[Swap]:
        if not document.pairs:
            return []
        seeds = [config.seed, config.attention.random_seed, document.index, document.piece]
        attention = mean_attention(
            learner.model, document.input_ids.tolist(), heads=heads, token_types=document.token_types
        )
        flags = [token in special for token in document.input_ids.tolist()]
        return random_pairs(
            document.pairs, attention, special=flags, reach=encoding.reach, random=np.random.default_rng(seeds)
        )

    found = []
    for place, document in enumerate(train.documents):
        tell("random pairs", place + 1, len(train.documents))
        found.append(swapped(document))
    swaps = tuple(swap for one in found for swap in one)
    if isinstance(train, ExampleStream):
        train.change = lambda document: _control_of(document, swapped(document))
        return train, swaps
    documents = [_control_of(document, one) for document, one in zip(train.documents, found, strict=True)]
    return Examples(documents, length=encoding.longest, packing=config.data.packing), swaps


def _control_of(document: Encoded, swaps: Sequence[Swap]) -> Encoded:
    return replace(document, pairs=tuple(swap.random for swap in swaps if swap.random is not None))


def told(given: Iterator[Encoded], part: Any, stage: str, tell: Progress) -> Iterator[Encoded]:
    """Pass records on and say how far they are."""
    total = len(part) if hasattr(part, "__len__") else 0
    for place, document in enumerate(given):
        yield document
        tell(f"{stage} on tokens", min(document.index + 1, total) if total else place + 1, total or place + 1)
