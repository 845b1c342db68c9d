"""A look before training: what the loss counts, which pairs can be met, what is odd, what it needs; no weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from finetune.arguments import arguments_of
from finetune.batches import Collator, Examples, collator_of, pad_id_of
from finetune.cautions import Known, cautions_of
from finetune.choosing import dev_expected
from finetune.config import RunConfig
from finetune.encode import IGNORED, Encoded, Encoding, encode_row
from finetune.footprint import Memory, Work, memory_of, shape_of, tokens_in, trained_numbers, work_of
from finetune.inspection import Inspection, ShownExample, ShownPair
from finetune.learner import (
    asks_base,
    head_asked,
    headed_model,
    lora_targets,
    output_names,
    refuse_unfit,
    refuse_untrainable,
    untrained_head,
)
from finetune.pairs import TokenPair, Unmet, why_unmet
from finetune.preflight_lines import lines_of
from finetune.prepare import (
    Progress,
    dev_part,
    pair_book,
    refuse_to_teach,
    refuse_too_long,
    run_encoding,
    run_notes,
    supervised_layers,
    told,
    with_shipped,
)
from finetune.quantize import quantised_weights
from finetune.reach import Depths, depths_of
from finetune.records import Corpus, load_records
from finetune.streams import stream_documents
from finetune.tally import PairTally, rule_name, tally
from finetune.tasks import head_for
from probe import CijingError, Outline, model_outline, position_rows

__all__ = ["inspect_run", "lines_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ready:
    """What prepare_run makes, without the weights."""

    config: RunConfig
    corpus: Corpus
    outline: Outline
    shell: Any
    targets: tuple[str, ...]
    depths: Depths
    layers: tuple[int, ...]  # supervised, or those that would be
    encoding: Encoding
    collator: Collator
    rows: Examples
    dev: int | None  # records of dev

    @property
    def supervised(self) -> tuple[int, ...]:
        """The layers whose rows are rewarded."""
        return self.layers if self.config.supervised else ()


def inspect_run(config: RunConfig, *, examples: int = 3, progress: Progress | None = None) -> Inspection:
    """Do all of a run's preparation that needs no weights, and say what came out.

    Raises ConfigError, DataError, PairError or probe's ModelError where training would before it meets a pair; too few
    pairs, or nothing to learn, are the inspection's `refusal`.
    """
    arguments_of(config, config.folder, has_dev=dev_expected(config.data))
    ready = _ready(config, progress or (lambda stage, done, total: None))
    documents = ready.rows.documents
    taught = [document for document in documents if document.learned]  # training takes no others
    found = tally(taught, ready.encoding.book, ready.encoding.rules)
    parameters = ready.outline.parameters
    arguments = arguments_of(config, config.folder, has_dev=ready.dev is not None)
    work = work_of(ready.rows, arguments, parameters=parameters, streamed=config.data.streaming)
    memory, trained = _memory(ready, work, arguments)
    known = Known(
        config=config, outline=ready.outline, shell=ready.shell, targets=ready.targets, supervised=ready.supervised,
        encoding=ready.encoding, documents=documents, has_dev=ready.dev is not None, work=work,
        notes=run_notes(config, depths=ready.depths),
    )  # fmt: skip
    return Inspection(
        model=ready.outline.name, task=config.task, facts=_facts(ready, trained=trained), mask=_mask(ready),
        shown=tuple(_shown(document, ready) for document in _telling(documents, examples)), examples=len(documents),
        supervised=ready.supervised, pairs=found, work=work, memory=memory, cautions=tuple(cautions_of(known)),
        refusal=_refusal(config, found, taught),
    )  # fmt: skip


def _ready(config: RunConfig, tell: Progress) -> _Ready:
    book = pair_book(config)
    tell("texts", 0, 1)
    corpus = load_records(with_shipped(config.data), config.task, seed=config.seed)
    tell("texts", 1, 1)
    outline = model_outline(
        config.model, head=head_asked(config.task), revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )  # fmt: skip
    refuse_unfit(config, kind=outline.kind, settings=outline.config)
    refuse_untrainable(config, settings=outline.config, origin=outline.origin)
    shell = _shell(config, outline, corpus.labels)
    targets = lora_targets(shell, config.lora) if config.method == "lora" else ()
    depths = depths_of(outline.config, causal=outline.kind == "decoder")
    refuse_too_long(config, held=position_rows(outline.shell))
    layers = supervised_layers(config, depths)
    encoding = run_encoding(config, corpus, depths.reach(layers, cut_at=config.data.max_length), book)
    collator = collator_of(outline.tokenizer, config.task, seed=config.seed)
    if config.data.streaming:
        documents = _first_worded(config, corpus.train, outline.tokenizer, encoding)
    else:
        documents = _worded(corpus.train, outline.tokenizer, encoding, "train", tell)
    dev = dev_part(config, corpus, outline.tokenizer, encoding, tell)  # what is wrong there must be found as well
    return _Ready(
        config=config, corpus=corpus, outline=outline, shell=shell, targets=targets, depths=depths, layers=layers,
        encoding=encoding, collator=collator, dev=None if dev is None else len(dev.documents),
        rows=Examples(documents, length=encoding.longest, packing=config.data.packing),
    )  # fmt: skip


def _shell(config: RunConfig, outline: Outline, labels: Sequence[str]) -> Any:
    """The model with its task's head on the meta device."""
    if config.task != "classification":
        return outline.shell
    with torch.device("meta"):
        return headed_model(config.task, outline.config, labels=labels, pad_id=pad_id_of(outline.tokenizer))


def _worded(part: Any, tokenizer: Any, encoding: Encoding, name: str, tell: Progress) -> list[Encoded]:
    documents = (one for row in part for one in encode_row(row, tokenizer, encoding, keep_words=True))
    return list(told(documents, part, name, tell))


def _first_worded(config: RunConfig, part: Any, tokenizer: Any, encoding: Encoding) -> list[Encoded]:
    """Of a stream what training looks at first, up to as many documents that teach something."""
    found: list[Encoded] = []
    taught = 0
    given = stream_documents(part, tokenizer, encoding, data=config.data, seed=config.seed, keep_words=True)
    for document in given:
        found.append(document)
        taught += bool(document.learned)
        if taught == config.data.look_ahead:
            break
    return found


def _refusal(config: RunConfig, found: PairTally, documents: Sequence[Encoded]) -> CijingError | None:
    """What training would stop for."""
    try:
        refuse_to_teach(config, found, documents)
    except CijingError as error:
        return error
    return None


def _memory(ready: _Ready, work: Work, arguments: Any) -> tuple[Memory, int]:
    """The estimate, and how many weights are trained."""
    config, shell, text = ready.config, ready.shell, ready.outline.config.get_text_config()
    full, trained = config.method == "full", _trained(ready)
    shape = shape_of(text, heads=ready.depths.heads, logits=config.task in ("causal-lm", "masked-lm"))
    apart = config.task == "word-in-context" and config.data.pair_encoding == "separate"
    width = min(work.batch, work.rows) * (2 if apart else 1)
    found = memory_of(
        shape, parameters=sum(weight.numel() for weight in shell.parameters()), trained=trained, full=full,
        tokens=width * work.longest, length=work.longest, half=bool(arguments.bf16 or arguments.fp16),
        checkpointing=bool(arguments.gradient_checkpointing),
        quantised=quantised_weights(shell, spared=output_names(shell)) if config.lora.quantize == "4bit" else 0,
        copies=_copies(config) if full else 0,
    )  # fmt: skip
    return found, trained


def _trained(ready: _Ready) -> int:
    """How many weights are trained, those of a head included."""
    config, shell, text = ready.config, ready.shell, ready.outline.config.get_text_config()
    head = head_for(config.task, width=int(text.hidden_size), classes=len(ready.corpus.labels))
    own = 0 if head is None else sum(weight.numel() for weight in head.parameters())
    if config.method == "full":
        return own + int(sum(weight.numel() for weight in shell.parameters()))
    modules = map(shell.get_submodule, untrained_head(ready.outline, config.task))
    whole = sum(weight.numel() for module in modules for weight in module.parameters())
    return own + int(whole) + trained_numbers(shell, ready.targets, config.lora)


def _copies(config: RunConfig) -> int:
    """Numbers a trained weight that stand beside: the base's own, and both losses' gradients where they are measured.

    Adapters are small, and none of this counts there.
    """
    measured = config.supervised and (config.attention.norms_every > 0 or config.attention.weight == "auto")
    return int(asks_base(config)) + 2 * int(measured)


def _facts(ready: _Ready, *, trained: int) -> Mapping[str, str]:
    outline, config, rows = ready.outline, ready.config, ready.rows
    windows = sorted(set(ready.depths.windows.values()))
    window = f", windows of {', '.join(map(str, windows))}" if windows else ""
    held = outline.max_positions or "any number of"
    facts = {
        "model": f"{outline.name}, {outline.kind}, {outline.parameters:,} parameters, {ready.depths.layers} layers of "
        f"{ready.depths.heads} heads, {held} positions{window}",
        "texts": f"{_to_train_on(ready)}, {ready.dev or 0} records of dev, at most {ready.encoding.longest} "
        f"tokens each; the longest has {max(map(tokens_in, rows.documents))}",
        **_method(ready, trained),
    }
    if ready.corpus.labels:
        facts["classes"] = ", ".join(ready.corpus.labels)
    if ready.supervised:
        facts["attention"] = f"loss {config.attention.loss} on layers {_ranges(ready.supervised)}"
    return facts


def _method(ready: _Ready, trained: int) -> dict[str, str]:
    """What is trained, and with method full what a checkpoint takes of the disk."""
    lora = ready.config.lora
    if ready.config.method == "lora":
        return {"adapter": f"LoRA r {lora.r} on {', '.join(ready.targets)}: {trained:,} trained parameters"}
    disk = f"{12 * trained / 2**20:,.0f} MiB"  # weights, and AdamW's two averages
    return {"method": f"full: {trained:,} trained parameters, all there are; a checkpoint takes about {disk} of disk"}


def _to_train_on(ready: _Ready) -> str:
    count = len(ready.rows.documents)
    return (
        f"a stream, of which {count} examples were read"
        if ready.config.data.streaming
        else f"{count} examples to train on"
    )


def _mask(ready: _Ready) -> str:
    """What a token sees, in words."""
    direction = "itself and the tokens before it" if ready.encoding.reach.causal else "all tokens of its text"
    windows: dict[int, list[int]] = {}
    for layer, window in ready.depths.windows.items():
        windows.setdefault(window, []).append(layer)
    narrow = "".join(f"; within {window} tokens in layers {_ranges(layers)}" for window, layers in windows.items())
    packed = "; texts of one row do not see each other" if ready.config.data.packing else ""
    return f"a token sees {direction}{narrow}{packed}; none sees padding"


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 4 -> 0-2, 4."""
    starts = [one for one in numbers if one - 1 not in numbers]
    ends = [one for one in numbers if one + 1 not in numbers]
    return ", ".join(f"{one}" if one == end else f"{one}-{end}" for one, end in zip(starts, ends, strict=True))


# ---- examples --------------------------------------------------------------------------------------------------


def _telling(documents: Sequence[Encoded], count: int) -> list[Encoded]:
    """Examples that have most to show: with pairs, then with unmet ones, then the others, in their order."""
    return sorted(documents, key=lambda one: (not one.pairs, not one.unmet))[:count]


def _shown(document: Encoded, ready: _Ready) -> ShownExample:
    tokenizer, book, labels = ready.outline.tokenizer, ready.encoding.book, ready.corpus.labels
    second = document.second
    replaced = _replaced(document, ready.collator, tokenizer) if ready.config.task == "masked-lm" else {}
    learned = tuple(replaced) if replaced else tuple(map(int, (document.labels != IGNORED).nonzero()[0]))
    targets = [_at(document, document.target), _at(document, document.second_target)]
    unmet: tuple[Unmet, ...] = document.unmet
    if second is not None:
        targets, unmet = [*targets, _at(second, second.target)], (*unmet, *second.unmet)
    both = [(document, pair) for pair in document.pairs] + [(second, pair) for pair in (second.pairs if second else ())]
    return ShownExample(
        id=document.id + (f" (piece {document.piece + 1})" if document.piece else ""), words=document.words,
        second_words=() if second is None else second.words, learned=learned, replaced=replaced,
        label=None if document.label is None else labels[document.label],
        targets=tuple(target for target in targets if target),
        pairs=tuple(_shown_pair(one, pair, ready) for one, pair in both if one is not None),
        unmet=tuple((rule_name(one.rule, book), one.reason) for one in unmet), row=_neighbours(document, ready.rows),
    )  # fmt: skip


def _shown_pair(document: Encoded, pair: TokenPair, ready: _Ready) -> ShownPair:
    seen = [layer for layer in ready.layers if why_unmet(pair, ready.depths.reach([layer], cut_at=None)) is None]
    return ShownPair(
        rule=rule_name(pair.rule, ready.encoding.book), queries=_at(document, pair.queries),
        keys=_at(document, pair.keys), negatives=_at(document, pair.negatives), weight=pair.weight, layers=tuple(seen),
    )  # fmt: skip


def _at(document: Encoded, positions: Sequence[int]) -> tuple[tuple[int, str], ...]:
    return tuple((place, document.words[place]) for place in positions)


def _replaced(document: Encoded, collator: Collator, tokenizer: Any) -> dict[int, str]:
    """What the first epoch puts in the place of the tokens that are to be guessed."""
    if not document.learned:
        return {}
    batch = collator([document])
    places = (batch["labels"][0] != IGNORED).nonzero()[:, 0].tolist()
    names = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    same = batch["input_ids"][0] == batch["labels"][0]
    return {place: document.words[place] if same[place] else str(names[place]) for place in places}


def _neighbours(document: Encoded, rows: Examples) -> tuple[str, ...]:
    packs = (row for row in rows.rows if isinstance(row, tuple))
    row = next((row for row in packs if any(one is document for one in row)), ())
    return tuple(one.id for one in row)
