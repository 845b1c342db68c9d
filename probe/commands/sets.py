"""Pages about a set of cases, on one model or two: report, compare, diff."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.commands.loading import DEFAULT_MODEL, cases_from, check_models, load
from probe.launch import say
from probe.options import (
    LARGEST,
    SOURCES,
    BatchTokens,
    Budget,
    Cache,
    Cut,
    CutCases,
    CutToFit,
    Device,
    Dtype,
    Force,
    HeadCutCases,
    Heads,
    LayerCutCases,
    Layers,
    Models,
    PageLanguage,
    ReadingCases,
    ReferenceCases,
    RemoteCode,
    Revision,
    Seed,
    Sentences,
    folder_named,
)

if TYPE_CHECKING:
    from probe.models import LoadedModel


def report(
    cases: Annotated[
        str,
        typer.Argument(help="A shipped set (relations, apple, senses, far, english) or a .yaml, .jsonl, .csv file."),
    ] = ("relations"),
    model: Models = [DEFAULT_MODEL],  # noqa: B006 (Typer reads it, nobody changes it)
    out: Annotated[
        Any, typer.Option(parser=folder_named, metavar="FOLDER", help="Run folder. [default: runs/NAME]")
    ] = None,
    force: Force = False,
    language: PageLanguage = "en",
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: RemoteCode = False,
    layers: Layers = None,
    heads: Heads = None,
    cut: Cut = True,
    cut_cases: CutCases = 500,
    layer_cut_cases: LayerCutCases = 48,
    head_cut_cases: HeadCutCases = 24,
    reading_cases: ReadingCases = 48,
    reference_cases: ReferenceCases = 96,
    sentences: Sentences = 500,
    seed: Seed = 0,
    batch_tokens: BatchTokens = None,
    memory_budget: Budget = None,
    cut_to_fit: CutToFit = False,
    cache: Cache = None,
) -> None:
    """Write a page about a set of cases. The run folder also holds figures, tables and a manifest."""
    from probe.runs import folder_name, open_run
    from probe.terminal import show_progress

    case_set = cases_from(cases)
    target = out or Path("runs") / folder_name(case_set.name)
    with open_run(target, force=force) as folder:
        from probe.observing import StudySettings
        from probe.study import run_report

        settings = StudySettings(
            language=language,
            layers=layers,
            heads=heads,
            cut=cut,
            cut_cases=cut_cases,
            layer_cut_cases=layer_cut_cases,
            head_cut_cases=head_cut_cases,
            reading_cases=reading_cases,
            reference_cases=reference_cases,
            sentences=sentences,
            seed=seed,
            batch_tokens=batch_tokens,
            memory_budget=memory_budget,
            cut_to_fit=cut_to_fit,
            cache=cache,
        )

        def load_timed(name: str) -> "LoadedModel":
            with folder.stage("load"):
                return load(name, device=device, dtype=dtype, revision=revision, code=trust_remote_code)

        if len(model) > 1:
            check_models(model, revision=revision, code=trust_remote_code)
        with show_progress() as progress:  # map holds no model, so that one can be let go before the next is loaded
            checks = run_report(map(load_timed, model), case_set, settings=settings, folder=folder, progress=progress)
    for name, check in zip(model, checks, strict=True):
        if not check.passed:
            say(f"self-check of {name} failed: do not trust its numbers before you have read the page's self-check")
    print(target / "report.html")


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=SOURCES)],
    b: Annotated[str, typer.Argument(metavar="B", help="The model or adapter to hold against A.")],
    cases: Annotated[str, typer.Argument(help="A shipped set or a .yaml, .jsonl or .csv file.")] = "relations",
    out: Annotated[
        Any, typer.Option(parser=folder_named, metavar="FOLDER", help="Run folder. [default: runs/NAME-compare]")
    ] = None,
    force: Force = False,
    language: PageLanguage = "en",
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision_a: Annotated[
        str | None, typer.Option(metavar="REVISION", help="Branch, tag or commit of A, a hub model.")
    ] = None,
    revision_b: Annotated[
        str | None, typer.Option(metavar="REVISION", help="Branch, tag or commit of B, a hub model.")
    ] = None,
    trust_remote_code: RemoteCode = False,
    layers: Layers = None,
    heads: Heads = None,
    cut: Cut = True,
    cut_cases: CutCases = 500,
    layer_cut_cases: LayerCutCases = 48,
    sentences: Sentences = 200,
    seed: Seed = 0,
    batch_tokens: BatchTokens = None,
    memory_budget: Budget = None,
    cut_to_fit: CutToFit = False,
    cache: Cache = None,
) -> None:
    """Write a page about two models on the same cases. Models or adapters: what B does that A does not."""
    from probe.runs import folder_name, open_run
    from probe.terminal import show_progress

    case_set = cases_from(cases)
    target = out or Path("runs") / f"{folder_name(case_set.name)}-compare"
    with open_run(target, force=force) as folder:
        from probe.comparison_study import run_comparison
        from probe.observing import StudySettings

        settings = StudySettings(
            language=language,
            layers=layers,
            heads=heads,
            cut=cut,
            cut_cases=cut_cases,
            layer_cut_cases=layer_cut_cases,
            sentences=sentences,
            seed=seed,
            batch_tokens=batch_tokens,
            memory_budget=memory_budget,
            cut_to_fit=cut_to_fit,
            cache=cache,
        )
        with folder.stage("load"):
            one, other = (
                load(name, device=device, dtype=dtype, revision=revision, code=trust_remote_code)
                for name, revision in ((a, revision_a), (b, revision_b))
            )
        with show_progress() as progress:
            checks = run_comparison(one, other, case_set, settings=settings, folder=folder, progress=progress)
    for side, check in zip("AB", checks, strict=True):
        if not check.passed:
            say(f"self-check of {side} failed: do not trust its numbers before you have read the page's self-check")
    print(target / "report.html")


def diff(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run folder.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another, held against it.")],
    most: Annotated[int, typer.Option(min=0, max=LARGEST, help="At most so many changes are printed.")] = 20,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write every changed result here.")] = None,
) -> None:
    """Say what changed between two run folders. Model, cases, settings, packages, and results are compared."""
    from probe.changes import changes_between, fact_rows, load_run, result_rows, summary_of, write_changes
    from probe.terminal import open_console, print_changes

    found = changes_between(load_run(run_a), load_run(run_b))
    if csv:
        write_changes(found, csv)
    print_changes(open_console(sys.stdout), summary_of(found), fact_rows(found), result_rows(found, most=most))
