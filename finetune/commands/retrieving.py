"""Passages: index, search."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from finetune.commands.configuring import Device
from finetune.commands.printing import json_line
from probe import say

if TYPE_CHECKING:
    from finetune.rag.hits import Hit
    from finetune.rag.index import IndexReport

INDEX_FOLDER = Path("runs/index")
ENCODER, TOKENIZER = "builtin:e5-small", "builtin:gemma3-270m"

IndexFolder = Annotated[Path, typer.Option("--index", metavar="FOLDER", help="The index.")]
ModeName = Annotated[
    Literal["lexical", "dense", "hybrid"] | None, typer.Option("--mode", help="[default: hybrid, where both are there]")
]
HowMany = Annotated[int, typer.Option("--k", "-k", min=1, max=1000, help="So many passages.")]
Weight = Annotated[float, typer.Option(min=0, max=1, help="Of the dense ranks in the hybrid; the rest is BM25's.")]
RerankerName = Annotated[
    str | None,
    typer.Option("--reranker", metavar="MODEL", help="A cross-encoder (folder or hub id) for the last word."),
]


def index(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="DOCS...", help="Folders, files (txt, md, html, pdf, docx, jsonl, csv), hub ids."),
    ],
    folder: Annotated[
        Path, typer.Option("--index", metavar="FOLDER", help="Where the index is or will be.")
    ] = INDEX_FOLDER,
    encoder: Annotated[str, typer.Option(metavar="MODEL", help="Whose vectors; none for words alone.")] = ENCODER,
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer", metavar="MODEL", help="Of the model that will read: chunks are so many of its tokens."
        ),
    ] = TOKENIZER,
    size: Annotated[int, typer.Option(min=16, max=100_000, help="Tokens of a chunk, at most.")] = 256,
    overlap: Annotated[
        int, typer.Option(min=0, max=100, help="Sentences of the chunk before that a chunk repeats.")
    ] = 0,
    terms: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A dictionary: words of the domain, not to be cut apart.")
    ] = None,
    store: Annotated[Literal["lancedb", "qdrant"], typer.Option(help="Where vectors lie.")] = "lancedb",
    store_url: Annotated[str | None, typer.Option(metavar="URL", help="A Qdrant server, in place of a folder.")] = None,
    text_column: Annotated[str, typer.Option(help="Of JSONL, CSV, Parquet and datasets.")] = "text",
    title_column: Annotated[str, typer.Option(help="The same, of titles.")] = "title",
    id_column: Annotated[str | None, typer.Option(help="The same, of ids. [default: the line]")] = None,
    split: Annotated[str, typer.Option(help="Of a dataset.")] = "train",
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Index a text as often as it comes.")
    ] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make all anew, whatever the folder holds.")] = False,
    device: Device = "auto",
) -> None:
    """Index documents, or bring an index up to date with them. DOCS are the whole collection each time."""
    from finetune.rag.documents import Columns
    from finetune.rag.index import IndexSettings, build_index
    from probe import show_progress

    settings = IndexSettings(
        encoder=None if encoder == "none" else encoder, tokenizer=tokenizer, size=size, overlap=overlap, terms=terms,
        store=store, store_url=store_url, duplicates="keep" if keep_duplicates else "drop",
    )  # fmt: skip
    columns = Columns(text=text_column, title=title_column, id=id_column, split=split)
    with show_progress() as progress:
        report = build_index(
            sources, folder, settings, columns=columns, rebuild=rebuild, progress=progress, device=device
        )
    for line in _lines(report):
        say(line)
    print(folder)


def search(
    query: Annotated[str, typer.Argument(help="The question, in words.")],
    folder: IndexFolder = INDEX_FOLDER,
    k: HowMany = 5,
    mode: ModeName = None,
    weight: Weight = 0.5,
    reranker: RerankerName = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines, one a passage.")] = False,
    device: Device = "auto",
) -> None:
    """Find the passages for a question: rank, scores, document with characters, text."""
    from finetune.rag.index import open_index
    from finetune.rag.rerank import Reranker
    from finetune.rag.retrieve import retrieve
    from probe import open_console, text_table

    with open_index(folder, device=device) as opened:
        last = Reranker(reranker, device=device) if reranker else None
        (hits,) = retrieve(opened, [query], k=k, mode=mode, weight=weight, reranker=last)
    if not hits:
        say("nothing was found: no passage shares a word with the question")
        return
    if as_json:
        for hit in hits:
            print(json_line(asdict(hit)))
        return
    columns = ("rank", "score", "BM25", "cosine", "where", "passage")
    open_console(sys.stdout).print(text_table(columns, [_row(hit) for hit in hits]))


MOST_TOLD = 20  # lines of what was left out; all are in the index's folder


def _lines(report: "IndexReport") -> list[str]:
    """What came of it, and what was left out."""
    lines = [
        f"documents {report.documents:,}: {report.new} new, {report.changed} changed, {report.removed} removed, "
        f"{report.same} as before; chunks {report.chunks:,}: {report.embedded:,} embedded, {report.reused:,} taken over"
    ]
    if report.unchanged:
        lines = [f"documents {report.documents:,}, chunks {report.chunks:,}: all as before, nothing to do"]
    if report.removed:
        are = "document that is" if report.removed == 1 else "documents that are"
        lines.append(
            f"removed: {report.removed:,} {are} not among the sources any more (DOCS are the whole collection)"
        )
    lines += [f"left out: {one.path}: {one.reason}" for one in report.left[:MOST_TOLD]]
    if len(report.left) > MOST_TOLD:
        lines.append(f"left out: {len(report.left) - MOST_TOLD:,} more, in left.jsonl of the index's folder")
    if report.exact or report.near:
        lines.append(f"duplicates: {len(report.exact):,} exact, {len(report.near):,} near ones (kept)")
    if report.cut:
        lines.append(f"{report.cut:,} chunks are longer than the encoder reads; their ends have no part in vectors")
    return lines


def _row(hit: "Hit") -> list[str]:
    where = f"{hit.chunk.document} [{hit.chunk.start}–{hit.chunk.end}]"
    return [str(hit.rank), f"{hit.score:.4g}", _number(hit.lexical), _number(hit.dense), where, hit.chunk.text]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
