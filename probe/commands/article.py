"""The article's claims: claims."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from probe.commands.loading import DEFAULT_DECODER, DEFAULT_MODEL, load
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

    from probe.claims_messages import CLAIM_KEYS
    from probe.runs import open_run
    from probe.terminal import open_console, print_groups, show_progress

    target, keys = out or Path("runs/claims"), [key for key in CLAIM_KEYS if not only or key in only]
    with open_run(target, force=force) as folder, show_progress() as progress:
        from probe.claims.bench import QUICK, Bench, Sizes
        from probe.claims_story import claim_lines, line_columns, say
        from probe.claims_study import study_claims

        data = os.environ.get("CIJING_DATA")
        bench = Bench(
            load_encoder=lambda: load(model, device=device, dtype=dtype, revision=None, code=False),
            load_decoder=lambda: load(decoder, device=device, dtype=dtype, revision=None, code=False, head="lm"),
            sizes=QUICK if quick else Sizes(),
            seed=seed,
            data=Path(data) if data else None,
            progress=progress,
        )
        findings = study_claims(
            bench,
            keys,
            language=language,
            names=(model, decoder),
            folder=folder,
            markdown_file=markdown,
            command=f"python -m probe claims --markdown {markdown or 'docs/claims.md'}",
        )
    groups = [claim_lines(finding, language) for finding in findings]
    print_groups(open_console(sys.stdout), line_columns(language), [(one.claim, one.statements) for one in groups])
    if quick:
        print(say("quick_note", language), file=sys.stderr)
    print(target / "report.html")
