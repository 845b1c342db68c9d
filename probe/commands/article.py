"""The article's claims: claims."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from probe.commands.loading import (
    DEFAULT_DECODER,
    DEFAULT_MODEL,
    check_models,
    command_line,
    load_decoder,
    load_encoder,
    option_words,
    refuse_overlap,
)
from probe.launch import say
from probe.options import Claims, Device, Dtype, Force, MarkdownFile, Model, PageLanguage, Quick, Seed, folder_named


def claims(
    only: Claims = None,
    model: Model = DEFAULT_MODEL,
    decoder: Annotated[
        str, typer.Option("--decoder", metavar="MODEL", help="The model that reads from left to right, with its head.")
    ] = DEFAULT_DECODER,
    out: Annotated[
        Any, typer.Option(parser=folder_named, metavar="FOLDER", help="Run folder. [default: runs/claims]")
    ] = None,
    force: Force = False,
    markdown: MarkdownFile = None,
    language: PageLanguage = "en",
    quick: Quick = False,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Measure the article's claims. Each gets a verdict by a rule laid down before, and two cases that watch it."""
    import os

    from probe.captures import refuse_unwritable
    from probe.claims_messages import CLAIM_KEYS
    from probe.claims_story import say as told
    from probe.runs import open_run
    from probe.terminal import open_console, print_groups, show_progress

    target, keys = out or Path("runs/claims"), [key for key in CLAIM_KEYS if not only or key in only]
    if markdown is None and not only and not quick:
        markdown = _kept_table(told("title", language))
    if markdown:
        refuse_overlap(target, markdown)
        refuse_unwritable(markdown, what="the table of claims")
    with open_run(target, force=force) as folder, show_progress() as progress:
        from probe.claims.bench import QUICK, Bench, Sizes
        from probe.claims_story import claim_lines, line_columns
        from probe.claims_study import study_claims

        check_models([model, decoder], revision=None, code=False)
        bench = Bench(
            load_encoder=lambda: load_encoder(model, device=device, dtype=dtype),
            load_decoder=lambda: load_decoder(decoder, device=device, dtype=dtype),
            sizes=QUICK if quick else Sizes(),
            seed=seed,
            data=_corpora(os.environ.get("CIJING_DATA")),
            progress=progress,
        )
        set_ = {
            "model": model if model != DEFAULT_MODEL else None,
            "decoder": decoder if decoder != DEFAULT_DECODER else None,
            "quick": quick,
            "seed": seed or None,
            "language": language if language != "en" else None,
            "device": device if device != "auto" else None,
            "dtype": dtype if dtype != "auto" else None,
        }
        named = [key for key in CLAIM_KEYS if only and key in only]
        findings = study_claims(
            bench,
            keys,
            language=language,
            names=(model, decoder),
            folder=folder,
            markdown_file=markdown,
            command=command_line("claims", {"only": named, **set_, "markdown": markdown}),
            settings=option_words(set_),
        )
    groups = [claim_lines(finding, language) for finding in findings]
    print_groups(open_console(sys.stdout), line_columns(language), [(one.claim, one.statements) for one in groups])
    if quick:
        print(told("quick_note", language), file=sys.stderr)
    if markdown:
        print(markdown)
    print(target / "report.html")


def _kept_table(title: str) -> Path | None:
    """docs/claims.md where the working folder keeps that table already, in this language; nothing else is touched."""
    file = Path("docs/claims.md")
    try:
        with file.open(encoding="utf-8") as lines:
            return file if lines.readline().strip() == f"# {title}" else None
    except (OSError, UnicodeDecodeError):
        return None


def _corpora(data: str | None) -> Path | None:
    """The folder that CIJING_DATA names; one that is not there is said, or its counts would be missing unsaid."""
    if not data:
        return None
    if not Path(data).is_dir():
        say(f"note: CIJING_DATA names {data}, which is no folder: words are not counted in corpora")
        return None
    return Path(data)
