"""Proposing pairs: mine."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from finetune.errors import DataError
from probe import say


def _yaml_file(text: str) -> Path:
    if Path(text).suffix.lower() not in (".yaml", ".yml") or "\0" in text:
        raise typer.BadParameter(f"{text!r}: allowed is a file ending in .yaml")
    return Path(text)


def mine(
    corpus: Annotated[list[str], typer.Argument(help="Texts of the domain: files, or chips/train and the like.")],
    out: Annotated[Any, typer.Option(parser=_yaml_file, metavar="FILE", help="The pairs file to write.")],
    model: Annotated[str, typer.Option("--model", "-m", metavar="MODEL", help="Whose attention.")] = "builtin:e5-small",
    reference: Annotated[
        list[str] | None, typer.Option("--reference", metavar="SOURCE", help="General texts. [default: our case sets]")
    ] = None,
    terms: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A dictionary: words of the domain, as a pairs file takes it.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many pairs.")] = 50,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier file.")] = False,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
) -> None:
    """Propose pairs: words tied in a domain that the base model hardly attends to. Writes a file to edit by hand."""
    if out.exists() and not force:
        raise DataError(f"{out} exists: give --force to replace it, or another --out")
    if not os.access(out.parent, os.W_OK):  # said before the minutes that it takes, not after
        raise DataError(f"{out}: cannot be written; allowed is a file in a folder that is there and can be written to")
    from finetune.dictionary import read_dictionary
    from finetune.mine import MineSettings, write_pairs
    from finetune.mine import mine as propose
    from probe import load_model

    texts = _texts(corpus)
    known = _texts(reference) if reference else None
    words = [entry.word for entry in read_dictionary(terms)] if terms else []
    loaded = load_model(model, device=device)
    for note in loaded.notes:
        say(f"note: {note}")
    found = propose(
        loaded, texts, reference=known, terms=words, settings=MineSettings(proposals=most),
        progress=say,
    )  # fmt: skip
    write_pairs(found, out)
    print(out)


def _texts(sources: list[str]) -> list[str]:
    from finetune.dataconfig import DataConfig
    from finetune.prepare import with_shipped
    from finetune.records import load_records

    found = load_records(with_shipped(DataConfig(train=tuple(sources), dev_share=0)), "causal-lm")
    return list(found.train["text"])
