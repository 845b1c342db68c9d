"""Claims in, run folder out: the experiments run, and their page, table and Markdown are written."""

from collections.abc import Sequence
from pathlib import Path

from probe.captures import write_whole
from probe.claims.bench import QUICK, Bench
from probe.claims.records import Finding
from probe.claims.registry import run_claims
from probe.claims_story import claims_frame, markdown, say, sections_of
from probe.messages import Language
from probe.report import render_report
from probe.runs import RunFolder


def study_claims(
    bench: Bench,
    keys: Sequence[str],
    *,
    language: Language,
    names: tuple[str, str],
    folder: RunFolder,
    markdown_file: Path | None = None,
    command: str,
    settings: Sequence[str] = (),
) -> list[Finding]:
    """Run the experiments and write the run folder; `names` are encoder and decoder, as asked for.

    `command` is what was asked of the command line, `settings` those words of it that any one claim needs as well.
    The Markdown file is written where one is named, besides the run folder.
    """
    models = dict(zip(("encoder", "decoder"), names, strict=True))
    quick = bench.sizes == QUICK
    findings: list[Finding] = []
    running = run_claims(bench, keys)
    for key in keys:
        with folder.stage(key):
            found = next(running)
            findings.append(found.as_trial() if quick else found)
    page = render_report(
        sections_of(findings, language, models=models, quick=quick, command=command, settings=settings),
        title=say("title", language),
        subtitle=say("subtitle", language, **models, seed=bench.seed),
        language=language,
    )
    folder.record("seeds", {"seed": bench.seed})
    folder.record("model", models)
    folder.write_config({"claims": list(keys), **models, "seed": bench.seed, "quick": quick})
    folder.write_table("claims", claims_frame(findings), formats=("csv",))
    folder.write_text("report.html", page)
    text = markdown(findings, language, command=command, settings=settings, models=models, seed=bench.seed, quick=quick)
    folder.write_text("claims.md", text)
    if markdown_file is not None:
        write_whole(markdown_file, text.encode(), what="the table of claims")
    return findings
