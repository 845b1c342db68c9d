"""What passages do to an encoder's reading of a word: read."""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finetune.commands.configuring import Device
from finetune.commands.retrieving import ENCODER, ModeName, Weight

if TYPE_CHECKING:
    from finetune.rag.chunks import Chunk
    from finetune.rag.readings import Readings
    from finetune.rag.references import SenseReadings

SENSES, NO_SENSES = "apple", "none"
UNRELATED = "other"  # topic of the shipped passages that are of no sense of a word
_SHOWN = 24  # characters of a passage
COLUMNS = ("passage", "tokens", "moved", "controls", "empty", "share", "even")


def read(
    sentence: Annotated[str, typer.Argument(help="The sentence, for example 我喜欢苹果.")],
    target: Annotated[str, typer.Option("--target", "-t", help="The word whose reading is looked at.")],
    folder: Annotated[
        Path | None, typer.Option("--index", metavar="FOLDER", help="Take the passages that this index finds.")
    ] = None,
    passages: Annotated[
        list[str] | None, typer.Option("--passage", metavar="TEXT", help="A passage; may be given again.")
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, max=1000, help="So many of the index's passages.")] = 3,
    mode: ModeName = None,
    weight: Weight = 0.5,
    model: Annotated[str, typer.Option("--model", "-m", metavar="MODEL", help="An encoder.")] = ENCODER,
    layer: Annotated[
        int | None,
        typer.Option(min=0, help="State layer of the table; 0 is the embedding. [default: tells the senses best]"),
    ] = None,
    senses: Annotated[
        str, typer.Option(metavar="CASES", help="Labelled sentences: a shipped case set, a file, or none.")
    ] = SENSES,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write every layer's numbers, as .csv.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the prompts, for `python -m probe prompt`.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Show how passages move an encoder's reading of a word. Each passage is put before the sentence, as a pair.

    Moved is 1 − cosine between the word's states with and without the passage. Controls are unrelated passages of
    about the same length without the word (of the index, else of the shipped set), empty a first text without words.
    Share is what part of the word's attention goes to the passage, even what even attention would give. Towards is the
    sense that the reading is nearer to than alone and than behind every control, and by how much more than behind them.
    """
    if (folder is None) == (not passages):
        raise typer.BadParameter("give either --passage TEXT or --index FOLDER", param_hint="--passage")
    for file, ending, option in ((csv, ".csv", "--csv"), (prompts, ".jsonl", "--prompts")):
        if file is not None and file.suffix.lower() != ending:
            raise typer.BadParameter(f"{file}: allowed is a file ending in {ending}", param_hint=option)
    from finetune.rag.readings import check_readable, passage_readings
    from finetune.rag.references import sense_readings, shipped_senses
    from finetune.writing import write_whole
    from probe import load_model, open_console, save_prompts, say, show_progress, text_table

    cases = () if senses == NO_SENSES else shipped_senses(target, senses)
    loaded = load_model(model, device=device)
    found, pool = _found(sentence, folder, passages or [], k=k, mode=mode, weight=weight, device=device)
    check_readable(loaded, sentence, target, found, layers=None if layer is None else {layer})
    with show_progress() as progress:
        known = sense_readings(loaded, target, cases, without=sentence, progress=partial(progress, "senses"))
        readings = passage_readings(
            loaded, sentence, target, found, senses=known, pool=pool, progress=partial(progress, "passages")
        )
    shown = readings.layer_shown(layer)
    for line in _notes(readings, known, target=target, layer=shown):
        say(line)
    if csv is not None:
        write_whole(csv, readings.table().to_csv(index=False, lineterminator="\n"))
    if prompts is not None:
        save_prompts(readings.prompts, prompts)
    columns = (*COLUMNS, *(("reading", "towards") if known else ()))
    open_console(sys.stdout).print(text_table(columns, _rows(readings, shown)))


def _found(
    sentence: str, folder: Path | None, texts: Sequence[str], *, k: int, mode: Any, weight: float, device: str
) -> "tuple[list[Chunk], Sequence[Chunk]]":
    """The passages to read, and those from which controls are chosen."""
    from finetune.errors import RetrievalError
    from finetune.rag.chunks import Chunk

    if folder is not None:
        from finetune.rag.index import open_index
        from finetune.rag.retrieve import retrieve

        with open_index(folder, device=device) as opened:
            (hits,) = retrieve(opened, [sentence], k=k, mode=mode, weight=weight)
            if not hits:
                raise RetrievalError(f"{folder}: nothing was found; allowed is a sentence that shares a word with it")
            return [hit.chunk for hit in hits], list(opened.chunks)
    names = [f"passage-{number}" for number in range(1, len(texts) + 1)]
    given = [
        Chunk(id=name, document=name, start=0, end=len(text), text=text, title="", tokens=0)
        for name, text in zip(names, texts, strict=True)
    ]
    return given, _shipped()


def _shipped() -> "list[Chunk]":
    from finetune.rag.beir import load_beir
    from finetune.rag.chunks import Chunk

    shipped = load_beir()
    return [
        Chunk(id=name, document=name, start=0, end=len(one.text), text=one.text, title=one.title, tokens=0)
        for name, one in shipped.corpus.items()
        if shipped.documents[name].get("topic") == UNRELATED
    ]


def _notes(readings: "Readings", known: "SenseReadings | None", *, target: str, layer: int) -> list[str]:
    """What a reader must know of the numbers."""
    notes = []
    if known is None:
        notes.append(
            f"no labelled sentences of two senses of {target}: cosines are raw, which are high for everything "
            "(--senses takes a case set)"
        )
    else:
        counts = ", ".join(f"{name} {count}" for name, count in zip(known.names, known.counts, strict=True))
        notes.append(
            f"state layer {layer}: {100 * known.accuracy[layer]:.0f} % of {sum(known.counts)} labelled sentences "
            f"({counts}) are told by the rest, {100 * known.majority:.0f} % by the commonest sense"
        )
        notes.append(
            f"states are less the mean over these sentences, of which two of one sense are "
            f"{1 - known.within[layer]:.2f} apart, two of two senses {1 - known.across[layer]:.2f}"
        )
    if not all(readings.controls.values()):
        notes.append(
            f"no passage of another document without {target} could be a control: any passage at all may move a "
            "reading as far"
        )
    return notes


def _rows(readings: "Readings", layer: int) -> list[list[str]]:
    from finetune.rag.documents import one_line

    rows = []
    for passage, found in zip(readings.passages, readings.summary(layer).to_dict("records"), strict=True):
        control = f"{found['control']:.2f} ({found['lowest']:.2f}–{found['highest']:.2f})" if found["controls"] else "–"
        rows.append(
            [
                f"{_label(passage)} {one_line(passage.text, _SHOWN)}",
                str(found["tokens"]),
                f"{found['moved']:.2f}",
                control,
                f"{found['empty']:.2f}",
                f"{100 * found['share']:.1f} %",
                f"{100 * found['even']:.1f} %",
                *([f"{found['before']} → {found['after']}", _towards(found)] if readings.senses else []),
            ]
        )
    return rows


def _label(passage: "Chunk") -> str:
    """Where a passage of an index stands; one that was typed has its name alone."""
    if passage.id == passage.document:
        return passage.id
    return f"{passage.document} [{passage.start}–{passage.end}]"


def _towards(found: Mapping[Any, Any]) -> str:
    return f"{found['towards']} {found['gain']:+.2f}" if found["towards"] else "–"
