"""A look before training as lines: for a terminal, wrapped by its width; for a file, a row a line."""

import io
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from finetune.footprint import Work
from finetune.inspection import Inspection, ShownExample, ShownPair
from finetune.pairs import REASONS, Reason
from finetune.tally import PairTally
from probe import open_console, text_table, visible

_MARGIN = 12  # cells before what is said of an example
_RULES = 5  # rules that are named for a reason
WHY: dict[Reason, str] = {
    "order": "the key stands after its query, and this model reads backwards only",
    "window": "the key is further back than any supervised layer looks",
    "truncated": "the text was cut between or before them",
    "overlapping": "query and key share a token, or one word lies inside the other",
    "absent": "rules that no text holds",
}


def lines_of(inspection: Inspection, *, width: int | None = None) -> Iterator[str]:
    """Tell an inspection; `width` cells a line (a Chinese character has two), None for no wrapping.

    Characters that draw nothing or move their neighbours are spelled out, so that a text cannot steer a terminal.
    """
    for name, text in inspection.facts.items():
        yield from _entry(name, text.split(" "), width)
    yield from _entry("mask", inspection.mask.split(" "), width)
    for number, example in enumerate(inspection.shown, 1):
        yield ""
        yield from _example(example, inspection, number=number, width=width)
    if inspection.pairs.names:
        yield ""
        yield from _pairs(inspection.pairs, width)
    yield ""
    yield from _needs(inspection, width)
    for caution in inspection.cautions:
        yield from _entry("warning", f"{caution.name}: {caution.text}".split(" "), width)


# ---- examples --------------------------------------------------------------------------------------------------


def _example(example: ShownExample, inspection: Inspection, *, number: int, width: int | None) -> Iterator[str]:
    sizes = " + ".join(str(len(words)) for words in (example.words, example.second_words) if words)
    yield f"example {number} of {inspection.examples}: {visible(example.id)}, {sizes} tokens"
    yield from _entry("reads", map(_word, example.words), width)
    if example.second_words:
        yield from _entry("and", map(_word, example.second_words), width)
    for target in example.targets:
        yield from _entry("target", _placed(target), width)
    yield from _entry("learns", _learned(example), width)
    for pair in example.pairs:
        yield from _entry("pair", _pair(pair, inspection.supervised), width)
    for rule, reason in example.unmet:
        yield from _entry("unmet", [visible(rule) + ":", reason], width)
    if example.row:
        yield from _entry("row", ["shared", "by", *map(visible, example.row)], width)


def _learned(example: ShownExample) -> Iterator[str]:
    """The class, or the tokens that the loss counts; … where it leaves some out."""
    if example.label is not None:
        yield from ("the", "class", visible(example.label))
        return
    if not example.learned:
        yield "nothing"
        return
    yield from (str(len(example.learned)), "of", f"{len(example.words)}:")
    if example.learned == tuple(range(1, len(example.words))):
        yield from ("all", "but", "the", "first,", "which", "nothing", "precedes")
        return
    before = -1
    for place in example.learned:
        if place != before + 1:
            yield "…"
        into = example.replaced.get(place)
        yield _word(example.words[place]) + (f"←{_word(into)}" if into is not None else "")
        before = place
    if before + 1 < len(example.words):
        yield "…"


def _pair(pair: ShownPair, supervised: Sequence[int]) -> Iterator[str]:
    yield f"{visible(pair.rule)}:"
    yield from _placed(pair.queries)
    yield "→"
    yield from _placed(pair.keys)
    if pair.negatives:
        yield from ("not", *_placed(pair.negatives))
    if pair.weight != 1.0:
        yield f"weight {pair.weight:g}"
    if supervised and set(pair.layers) < set(supervised):
        yield f"(in layers {', '.join(map(str, pair.layers))} only)"


def _placed(tokens: Sequence[tuple[int, str]]) -> list[str]:
    return [f"{_word(word)}@{place}" for place, word in tokens]


def _word(word: str) -> str:
    """A token's text; an empty or blank one as a sign."""
    return visible(word) if word.strip(" ") else "␣" * max(len(word), 1)


# ---- pairs, needs ----------------------------------------------------------------------------------------------


def _pairs(found: PairTally, width: int | None) -> Iterator[str]:
    counts = found.by_reason()
    yield (
        f"pairs: {len(found.names)} rules to train on, {found.found} pairs stand in the texts, {found.met_in_all} can "
        f"be met, {found.found - found.met_in_all} cannot"
    )
    reasons = [reason for reason in REASONS if reason != "absent" and counts[reason]]
    rows = [
        [name, str(found.met.get(name, 0)), *(str(found.unmet.get(name, {}).get(reason, 0)) for reason in reasons)]
        for name in found.names
    ]
    yield from (f"  {line}" for line in _table(("pair", "met", *reasons), rows))
    for reason in REASONS:
        if counts[reason]:
            rules = _rules(found, reason)
            more = f", and {len(rules) - _RULES} more" if len(rules) > _RULES else ""
            said = f"{counts[reason]} ({WHY[reason]}): {', '.join(map(visible, rules[:_RULES]))}{more}"
            yield from _entry(reason, said.split(" "), width, margin=14)


def _rules(found: PairTally, reason: Reason) -> list[str]:
    """The rules that a reason concerns, those that it hits most first."""
    if reason == "absent":
        return list(found.absent)
    hit = {name: reasons.get(reason, 0) for name, reasons in found.unmet.items()}
    return [f"{name} ({count})" for name, count in sorted(hit.items(), key=lambda one: -one[1]) if count]


def _needs(inspection: Inspection, width: int | None) -> Iterator[str]:
    memory, work = inspection.memory, inspection.work
    full = memory.gradients > 0
    trained = f"gradients {_bytes(memory.gradients)}" if full else f"adapter and its gradients {_bytes(memory.lora)}"
    kept = f"the base and gradients measured apart {_bytes(memory.kept)}, " if memory.kept else ""
    parts = (
        f"about {_bytes(memory.total)} in the largest step, within a factor of two: weights {_bytes(memory.weights)}, "
        f"{trained}, AdamW {_bytes(memory.optimizer)}, {kept}activations "
        f"{_bytes(memory.activations)} ({min(work.batch, work.rows)} rows of {work.longest} tokens)"
    )
    less = "" if full else "; LoRA needs about two thirds"
    steps = (
        f"{_steps(work)}; at most {work.flops:.2g} operations (6 × parameters × tokens{less}). "
        "Without weights no second is measured: seconds are operations over what the device does a second"
    )
    yield from _entry("memory", parts.split(" "), width)
    yield from _entry("time", steps.split(" "), width)


def _steps(work: Work) -> str:
    batches = f"batches of {work.batch}{f' × {work.accumulation}' if work.accumulation > 1 else ''}"
    if work.streamed:
        return f"{work.steps} steps ({batches}) of a stream, whose first {work.rows} rows have {work.tokens} tokens"
    return (
        f"{work.steps} steps, {work.steps_an_epoch} an epoch ({work.rows} rows, {batches}), {work.epochs:.3g} epochs "
        f"of {work.tokens} tokens"
    )


def _bytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


# ---- lines -----------------------------------------------------------------------------------------------------


def _entry(name: str, words: Iterable[str], width: int | None, *, margin: int = _MARGIN) -> Iterator[str]:
    """A name and words behind it, wrapped under one another."""
    line, free = f"  {name}".ljust(margin), None if width is None else max(width - margin, 20)
    used = 0
    for word in words:
        size = _cells(word)
        if free is not None and used and used + 1 + size > free:
            yield line.rstrip()
            line, used = " " * margin, 0
        line += f" {word}" if used else word
        used += size + (1 if used else 0)
    yield line.rstrip()


def _cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    stream = io.StringIO()
    open_console(stream).print(text_table(columns, rows))
    return [line.rstrip() for line in stream.getvalue().splitlines()]
