"""What would run, and probably is not meant: each caution a function of what is known before a run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.config import RunConfig
from finetune.encode import Encoded, Encoding
from finetune.footprint import Work, adapted_maps
from finetune.inspection import Caution
from finetune.learner import head_notes, trains_keys, untrained_head, untrained_note
from finetune.tasks import READING
from probe import Outline

_NAMED = 3  # examples that a caution names


@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """All that the cautions look at."""

    config: RunConfig
    outline: Outline
    shell: Any  # the model with its task's head, on the meta device
    targets: tuple[str, ...]
    supervised: tuple[int, ...]
    encoding: Encoding
    documents: Sequence[Encoded]
    has_dev: bool
    work: Work
    notes: Sequence[str]  # what the run will say of itself


def cautions_of(known: Known) -> Iterator[Caution]:
    """All that applies, in the order of CAUTIONS."""
    for name, find in CAUTIONS.items():
        yield from (Caution(name=name, text=text) for text in find(known))


def _keys(known: Known) -> Iterator[str]:
    if known.config.method == "lora" and known.supervised and not trains_keys(known.targets):
        yield (
            f"LoRA is on {', '.join(known.targets)} and not on the key map: the attention loss then trains half of a "
            "row; add it to lora.targets"
        )


def _rate(known: Known) -> Iterator[str]:
    if known.config.method == "full" and "learning_rate" not in known.config.training:
        yield (
            "training.learning_rate is not given, and the default, 2e-4, is one for adapters: all weights together "
            "usually want a tenth of it or less"
        )


def _layers(known: Known) -> Iterator[str]:
    if known.config.method == "full":
        return
    layers = [layer for layer, _ in adapted_maps(known.shell, known.targets, known.config.lora)]
    lowest = min(-1 if layer is None else layer for layer in layers)  # a map outside all layers stands below them
    if known.supervised and lowest > max(known.supervised):
        yield (
            f"LoRA begins at layer {lowest}, above all supervised layers ({_listed(known.supervised)}): the attention "
            "loss reaches no weight"
        )


def _pad(known: Known) -> Iterator[str]:
    tokenizer = known.outline.tokenizer
    if tokenizer.pad_token_id is None:
        yield (
            "the tokenizer has no padding token: its end token stands in. Padding is told by place here, so no end "
            "token is lost; code that masks by id would lose it"
        )
    elif tokenizer.pad_token_id == tokenizer.eos_token_id:
        yield (
            f"padding and end token are one ({tokenizer.pad_token}). Padding is told by place here, so no end token is "
            "lost; code that masks by id would never learn to stop"
        )


def _start(known: Known) -> Iterator[str]:
    tokenizer = known.outline.tokenizer
    starts = {tokenizer.bos_token_id, tokenizer.cls_token_id} - {None}
    name = tokenizer.bos_token or tokenizer.cls_token
    twice = [one for one in known.documents if one.input_ids[0] in starts and one.input_ids[1:2] == one.input_ids[:1]]
    if twice:
        yield (
            f"{_share(twice, known.documents)} begin with two start tokens ({name}): {_names(twice)}; "
            "tokenizer and template each write one"
        )


def _nothing_learned(known: Known) -> Iterator[str]:
    empty = [one for one in known.documents if not one.learned]
    if empty:
        why = "; the answer was cut" if any(one.cut for one in empty) else ""
        yield f"of {_share(empty, known.documents)} the loss counts no token: {_names(empty)}{why}"


def _positions(known: Known) -> Iterator[str]:
    yield from (note for note in known.notes if note.startswith("data.max_length"))


def _cut(known: Known) -> Iterator[str]:
    cut = [one for one in known.documents if one.cut or (one.second is not None and one.second.cut)]
    longest = known.encoding.longest
    if cut:
        lost = sum(one.cut + (one.second.cut if one.second else 0) for one in cut)
        yield f"{_share(cut, known.documents)} are cut at {longest} tokens, {lost} tokens lost: {_names(cut)}"
    split = {one.index for one in known.documents if one.piece}
    if split:
        yield f"{len(split)} texts are longer than {longest} tokens and split; pairs across pieces are truncated"


def _dev(known: Known) -> Iterator[str]:
    if not known.has_dev:
        yield "there is no dev part: no checkpoint can be chosen on it, and the last one is kept"


def _head(known: Known) -> Iterator[str]:
    if known.config.task in READING:
        yield f"the head of task {known.config.task} starts untrained: its first answers mean nothing"
    elif known.shell is not known.outline.shell:
        yield untrained_note(known.shell)
    yield from head_notes(known.config.task, known.shell, untrained_head(known.outline, known.config.task))


def _unknown(known: Known) -> Iterator[str]:
    unknown = known.outline.tokenizer.unk_token_id
    if unknown is None:
        return
    found = [one for one in known.documents if (one.input_ids == unknown).any()]
    if found:
        count = sum(int((one.input_ids == unknown).sum()) for one in found)
        yield (f"{count} of {known.work.tokens} tokens are unknown to the tokenizer: {_unknown_words(found, unknown)}")


def _unknown_words(found: Sequence[Encoded], unknown: int) -> str:
    words = [
        word
        for one in found
        for word, token in zip(one.words, one.input_ids.tolist(), strict=False)
        if token == unknown
    ]
    return ", ".join(list(dict.fromkeys(words))[:5]) or _names(found)


def _batch(known: Known) -> Iterator[str]:
    work = known.work
    if known.config.data.streaming:
        return
    if work.batch > work.rows:
        yield f"a batch of {work.batch} holds all {work.rows} rows: a larger one changes nothing"
    batches = -(-work.rows // work.batch)
    if work.accumulation > batches:
        yield (
            f"gradient_accumulation_steps {work.accumulation}: an epoch has {batches} batches, so no step accumulates "
            "more than that"
        )
    if known.config.data.packing and work.rows == len(known.documents):
        yield f"data.packing: no two texts fit into a row of {known.encoding.longest} tokens"


def _folder(known: Known) -> Iterator[str]:
    folder = known.config.folder
    if folder.is_dir() and any(folder.iterdir()):
        yield f"{folder} is not empty: training will stop there, unless it is told to --resume"


def _masks(known: Known) -> Iterator[str]:
    yield from (note for note in known.notes if note.startswith("words of pairs"))


CAUTIONS: dict[str, Callable[[Known], Iterator[str]]] = {
    "rate": _rate, "keys": _keys, "layers": _layers, "pad": _pad, "start": _start, "labels": _nothing_learned,
    "positions": _positions, "cut": _cut, "dev": _dev, "head": _head, "unknown": _unknown, "batch": _batch,
    "folder": _folder, "masks": _masks,
}  # fmt: skip


def _share(some: Sequence[Encoded], every: Sequence[Encoded]) -> str:
    return f"{len(some)} of {len(every)} examples ({len(some) / len(every):.1%})"


def _names(some: Sequence[Encoded]) -> str:
    names = list(dict.fromkeys(one.id for one in some))
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
