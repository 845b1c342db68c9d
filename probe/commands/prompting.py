"""Prompts with their parts: prompt."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from probe.commands.loading import DEFAULT_DECODER, load
from probe.errors import CijingError, PromptError
from probe.launch import say
from probe.options import (
    LARGEST,
    Budget,
    Device,
    Dtype,
    Heads,
    Layers,
    Model,
    RemoteCode,
    Revision,
    picture_file,
    table_file,
)

if TYPE_CHECKING:
    from probe.prompts import MappedPrompt
    from probe.shares import PartShares

COLUMNS = ("part", "tokens", "share", "even", "per token", "strongest heads")


def prompt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Prompts with their parts, as .jsonl.")],
    model: Model = DEFAULT_DECODER,
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Only this prompt of the file.")] = None,
    answer: Annotated[str | None, typer.Option(metavar="TEXT", help="The answer, whoever wrote it.")] = None,
    generate: Annotated[
        int, typer.Option(min=0, max=LARGEST, metavar="N", help="Let the model answer with at most N tokens.")
    ] = 0,
    rows: Annotated[
        Literal["answer", "target", "last"] | None,
        typer.Option(help="Whose rows: the answer's, the target's, the last token's. [default: the first there is]"),
    ] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="The word to look from.")] = None,
    occurrence: Annotated[int, typer.Option(min=1, help="Which one, where the target stands more than once.")] = 1,
    part: Annotated[
        str | None, typer.Option(metavar="PART", help="Part of the picture. [default: the first passage]")
    ] = None,
    csv: Annotated[Any, typer.Option(parser=table_file, metavar="FILE", help="Also write all shares, as .csv.")] = None,
    png: Annotated[
        Any, typer.Option(parser=picture_file, metavar="FILE", help="Also draw one part's share in every head.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the shares as JSON.")] = False,
    layers: Layers = None,
    heads: Heads = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: RemoteCode = False,
    memory_budget: Budget = None,
) -> None:
    """Show how much attention goes to each part of a prompt. A part is a passage, the question, the template.

    A share is the mean over layers, heads and rows, and makes 100 % over all parts. Even is what attention would give
    that is even over all tokens a row may see; per token is the share over the part's share of the tokens.
    """
    from probe.prompts import load_prompts

    asked = _asked(load_prompts(file), file, id=id, target=target, occurrence=occurrence)
    drawn = _part_drawn(asked, part, file) if png else None
    if answer is not None and generate:
        raise CijingError("--answer and --generate are given; allowed is one of both")
    if part is not None and png is None:
        raise CijingError("--part is the part of the picture; give --png FILE with it")
    from probe.captures import refuse_unwritable, write_whole

    for place, what in ((csv, "the table"), (png, "the picture")):
        if place:
            refuse_unwritable(place, what=what)
    loaded = load(
        model, device=device, dtype=dtype, revision=revision, code=trust_remote_code, head="lm" if generate else "none"
    )
    from probe.shares import part_shares
    from probe.terminal import show_progress

    found = []
    with show_progress(patient=True) as progress:
        for one in asked:
            shares = part_shares(
                loaded, one, answer=answer, generate=generate, rows=rows, layers=layers, heads=heads,
                memory_budget=memory_budget, on_layer=partial(progress, "layers"), on_token=partial(progress, "tokens"),
            )  # fmt: skip
            found.append(shares)
    if found[0].path == "eager":
        say(f"note: {loaded.name} attends by code of its own: even takes no account of windows")
    if drawn is not None:
        _draw(found[0], drawn, png, model=loaded.name)
    if csv:
        write_whole(csv, _table_of(found), what="the table")
    if as_json:
        print(json.dumps(_content(found, model=loaded.name), ensure_ascii=False, indent=2, allow_nan=False))
        return
    _print(found, [_places(one) for one in asked])


def _asked(
    prompts: "Sequence[MappedPrompt]", file: Path, *, id: str | None, target: str | None, occurrence: int
) -> "list[MappedPrompt]":
    """The prompts of the file that are asked for, with the target that is asked for."""
    from probe.casefiles import nearest
    from probe.spans import Span

    asked = [one for one in prompts if id is None or one.id == id]
    if not asked:
        raise PromptError(f"{file}: no prompt {id!r}{nearest(id or '', [one.id for one in prompts])}")
    if target is None:
        return asked
    try:
        spans = [Span.of(one.tokens.text, target, occurrence=occurrence) for one in asked]
    except CijingError as error:
        raise PromptError(f"--target: {error}") from error
    return [replace(one, target=span) for one, span in zip(asked, spans, strict=True)]


def _part_drawn(asked: "Sequence[MappedPrompt]", part: str | None, file: Path) -> str:
    """The part whose share in every head is drawn: the one asked for, else the first passage, else the question."""
    from probe.casefiles import nearest

    if len(asked) > 1:
        raise CijingError(f"--png draws one prompt, and {file} has {len(asked)}; name one with --id")
    passages = [one.name for one in asked[0].parts_of("passage")]
    known = list(dict.fromkeys(["sink", *(one.name or one.kind for one in asked[0].parts), "answer"]))
    chosen = part if part is not None else (passages or ["question"])[0]
    chosen = {place: name for name, place in _places(asked[0]).items()}.get(chosen, chosen)
    if chosen not in known:
        raise PromptError(f"--part {chosen!r}: prompt {asked[0].id} has no such part{nearest(chosen, known)}")
    return chosen


def _places(prompt: "MappedPrompt") -> dict[str, str]:
    """Of passages that have a document, by their names: where they stand in it, as a reader can find them."""
    found = {}
    for part in prompt.parts_of("passage"):
        if all(name in part.source for name in ("document", "start", "end")):
            found[part.name] = "{document} [{start}–{end}]".format(**part.source)
    return found


def _print(found: "Sequence[PartShares]", places: Sequence[dict[str, str]]) -> None:
    from probe.terminal import open_console, text_table, visible

    console = open_console(sys.stdout)
    for number, (shares, known) in enumerate(zip(found, places, strict=True)):
        if number:
            print()
        print(visible(f"{shares.prompt}: {_rows_said(shares)}"))
        rows = [
            [
                known.get(one["part"], one["part"]) if one["kind"] == "passage" else one["part"],
                str(one["tokens"]),
                _percent(one["share"]),
                _percent(one["uniform"]),
                "–" if math.isnan(one["per_token"]) else f"× {one['per_token']:.2f}",
                _heads_said(shares, one["part"]) if one["kind"] == "passage" else "",
            ]
            for one in shares.summary().to_dict("records")
        ]
        console.print(text_table(COLUMNS, rows))


def _rows_said(shares: "PartShares") -> str:
    count = len(shares.queries)
    rows = f"{count} row{'' if count == 1 else 's'}"
    if shares.rows_of == "answer":
        return f"{rows} that gave the answer {shares.answer}"
    if shares.rows_of == "last":
        return "the last row"
    first, last = shares.queries[0], shares.queries[-1]
    start, end = shares.tokens.offsets[first, 0], shares.tokens.offsets[last, 1]
    return f"{rows} of {shares.tokens.text[start:end]}"


def _heads_said(shares: "PartShares", part: str) -> str:
    heads = shares.strongest(part)
    return ", ".join(f"layer {layer.index} head {head} {_percent(share)}" for layer, head, share in heads)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _draw(shares: "PartShares", part: str, path: Path, *, model: str) -> None:
    from probe.canvas import save_png
    from probe.figures import head_map

    figure = head_map(
        shares.head_shares(part),
        title=f"{part} · {shares.prompt} · {model}",
        layers=[str(layer.index) for layer in shares.layers],
        label="share",
        heads=[str(head) for head in shares.heads],
    )
    save_png(figure, path)


def _table_of(found: "Sequence[PartShares]") -> bytes:
    import pandas as pd

    table = pd.concat([shares.table() for shares in found], ignore_index=True)
    return table.to_csv(index=False, lineterminator="\n").encode()


def _content(found: "Sequence[PartShares]", *, model: str) -> dict[str, Any]:
    return {"model": model, "prompts": [_one_content(shares) for shares in found]}


def _one_content(shares: "PartShares") -> dict[str, Any]:
    heads = shares.shares.mean(2, dtype=float)  # [layer, head, part]
    parts: list[dict[str, Any]] = []
    for place, row in enumerate(shares.summary().to_dict("records")):
        parts.append({str(name): value for name, value in row.items()} | {"heads": heads[..., place].tolist()})
    for one in parts:  # JSON has no NaN
        one["per_token"] = None if math.isnan(one["per_token"]) else one["per_token"]
    return {
        "id": shares.prompt,
        "path": shares.path,
        "rows_of": shares.rows_of,
        "answer": shares.answer,
        "rows": list(shares.queries),
        "layers": [layer.index for layer in shares.layers],
        "heads": list(shares.heads),
        "parts": parts,
    }
