"""The command line: `python -m probe report | compare | …`. Each command loads what it needs itself."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from probe.errors import CijingError
from probe.launch import as_program, exit_code, say
from probe.options import (
    LARGEST,
    SOURCES,
    BatchTokens,
    Budget,
    Cache,
    Claims,
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
    MarkdownFile,
    Model,
    Models,
    OnceEach,
    PageLanguage,
    Quick,
    ReadingCases,
    ReferenceCases,
    RemoteCode,
    Revision,
    Seed,
    Sentences,
    folder_named,
    page_file,
    picture_file,
)

if TYPE_CHECKING:
    from probe.cases import CaseSet
    from probe.models import LoadedModel

DEFAULT_MODEL = "builtin:e5-small"
DEFAULT_DECODER = "builtin:gemma3-270m"
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look at how a pretrained language model reads an ambiguous word.",
)


@app.command(cls=OnceEach)
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

    case_set = _cases(cases)
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

        def load(name: str) -> "LoadedModel":
            with folder.stage("load"):
                return _load(name, device=device, dtype=dtype, revision=revision, code=trust_remote_code)

        if len(model) > 1:
            _check_models(model, revision=revision, code=trust_remote_code)
        with show_progress() as progress:  # map holds no model, so that one can be let go before the next is loaded
            checks = run_report(map(load, model), case_set, settings=settings, folder=folder, progress=progress)
    for name, check in zip(model, checks, strict=True):
        if not check.passed:
            say(f"self-check of {name} failed: do not trust its numbers before you have read the page's self-check")
    print(target / "report.html")


@app.command(cls=OnceEach)
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

    case_set = _cases(cases)
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
                _load(name, device=device, dtype=dtype, revision=revision, code=trust_remote_code)
                for name, revision in ((a, revision_a), (b, revision_b))
            )
        with show_progress() as progress:
            checks = run_comparison(one, other, case_set, settings=settings, folder=folder, progress=progress)
    for side, check in zip("AB", checks, strict=True):
        if not check.passed:
            say(f"self-check of {side} failed: do not trust its numbers before you have read the page's self-check")
    print(target / "report.html")


@app.command(cls=OnceEach)
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


@contextmanager
def _one_text() -> Iterator[None]:
    """Leave out of an error the name of the case, which a text that comes alone was given by us."""
    try:
        yield
    except CijingError as error:
        message = re.sub(r"^case '(?:text|chat)'(: )?", lambda found: "" if found[1] else "the text", str(error))
        raise type(error)(message) from error


@app.command(cls=OnceEach)
@_one_text()
def attend(
    target: Annotated[str, typer.Option("--target", "-t", help="The word to look from.")],
    text: Annotated[str | None, typer.Argument(help="The text, for example 我喜欢苹果.")] = None,
    cue: Annotated[list[str] | None, typer.Option("--cue", "-c", help="A word to mark; may be given again.")] = None,
    occurrence: Annotated[int, typer.Option(min=1, help="Which one, where the target stands more than once.")] = 1,
    chat: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Messages as JSON, put through the model's template.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    layers: Layers = None,
    heads: Heads = None,
    png: Annotated[Any, typer.Option(parser=picture_file, metavar="FILE", help="Also draw the heat map.")] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: RemoteCode = False,
    memory_budget: Budget = None,
    cut_to_fit: CutToFit = False,
) -> None:
    """Show one word's attention in the terminal. A row a layer says where it goes in one text, in percent."""
    if (text is None) == (chat is None):
        raise typer.BadParameter("give either a text or --chat FILE", param_hint="TEXT")
    from probe.cases import case_of
    from probe.chat import load_messages, prepare_chat

    messages = load_messages(chat) if chat else ()
    case = None if text is None else case_of(text, target=target, cues=cue or (), occurrence=occurrence)
    from probe.capture import prepare
    from probe.captures import CaptureOptions
    from probe.glance import glance
    from probe.terminal import open_console, print_heat_map, show_progress

    loaded = _load(model, device=device, dtype=dtype, revision=revision, code=trust_remote_code)
    if case:
        (item,) = prepare(loaded, [case], cut=cut_to_fit)
    else:
        item = prepare_chat(loaded, messages, target=target, cues=cue or (), occurrence=occurrence)
    options = CaptureOptions(layers=layers, heads=heads, states=False, memory_budget=memory_budget)
    with show_progress(patient=True) as progress:
        seen = glance(loaded, item, options=options, on_layer=partial(progress, "layers"))
    if png:
        from probe.figures import save_png, sentence_map

        title = f"{target} · {loaded.name}"
        map_of = sentence_map(
            seen.labels, seen.weights, rows=seen.rows, target=seen.target, cues=seen.cues, title=title
        )
        save_png(map_of, png)
    print_heat_map(
        open_console(sys.stdout),
        seen.labels,
        seen.weights,
        rows=seen.rows,
        target=seen.target,
        cues=seen.cues,
        special=seen.special,
    )


@app.command(cls=OnceEach)
@_one_text()
def walk(
    text: Annotated[str | None, typer.Argument(help="The text. [default: 我喜欢苹果]")] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", help="The word to follow. [default: 苹果]")] = None,
    occurrence: Annotated[int, typer.Option(min=1, help="Which one, where the target stands more than once.")] = 1,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL", help=SOURCES)] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Attention layer from 0. [default: the middle one]")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Attention head from 0. [default: 0]")] = None,
    out: Annotated[
        Any, typer.Option(parser=page_file, metavar="FILE", help="Also write the page, example and model, as .html.")
    ] = None,
    language: PageLanguage = "en",
    device: Device = "auto",
    revision: Revision = None,
    trust_remote_code: RemoteCode = False,
    cut_to_fit: CutToFit = False,
) -> None:
    """Follow attention step by step. Without options the textbook example; with a text or a model, a real layer."""
    from probe.terminal import open_console, print_steps, show_progress

    asked = (text, target, model, layer, head, revision, out)
    if all(option is None for option in asked) and occurrence == 1:
        from probe.walk_lines import lines_of
        from probe.walk_story import example_heads, example_steps

        print_steps(open_console(sys.stdout), lines_of((*example_steps(language), example_heads(language))))
        return
    from probe.cases import case_of
    from probe.walk_story import example_text

    words, word = text or example_text(), target or "苹果"
    case_of(words, target=word, occurrence=occurrence)  # refused before a model is loaded
    loaded = _load(model or DEFAULT_MODEL, device=device, dtype="float32", revision=revision, code=trust_remote_code)
    from probe.walk import walk as follow
    from probe.walk_lines import lines_of
    from probe.walk_story import page_of_walk, real_heads, real_summary, walk_steps

    with show_progress(patient=True) as progress:
        found = follow(
            loaded, words, target=word, layer=layer, head=head or 0, occurrence=occurrence,
            cut_to_fit=cut_to_fit, progress=partial(progress, "stages"),
        )  # fmt: skip
    if out:
        from probe.captures import write_whole

        write_whole(out, page_of_walk(found, language).encode(), what="the page")
    print_steps(open_console(sys.stdout), lines_of((*walk_steps(found, language), real_heads(found, language))))
    print(real_summary(found, language))
    if out:
        print(out)


@app.command(cls=OnceEach)
def check(
    model: Annotated[str, typer.Argument(help=SOURCES)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    trust_remote_code: RemoteCode = False,
) -> None:
    """Check the extraction on this model. Exit code 1 where a check fails."""
    import json
    import math
    from dataclasses import asdict

    from probe.selfcheck import check_model
    from probe.terminal import check_table, open_console

    found = check_model(_load(model, device=device, dtype=dtype, revision=revision, code=trust_remote_code))
    if as_json:
        content = {**asdict(found), "passed": found.passed}
        for item in content["items"]:  # JSON has no NaN
            item.update((key, None) for key in ("value", "bound") if not math.isfinite(item[key] or 0))
        print(json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False))
    else:
        items = [(item.name, item.status, item.value, item.bound, item.why) for item in found.items]
        open_console(sys.stdout).print(check_table(items))
    raise typer.Exit(0 if found.passed else 1)


@app.command(cls=OnceEach)
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
    from probe.terminal import open_console, show_progress, text_table

    target, keys = out or Path("runs/claims"), [key for key in CLAIM_KEYS if not only or key in only]
    with open_run(target, force=force) as folder, show_progress() as progress:
        from probe.claims.bench import QUICK, Bench, Sizes
        from probe.claims_story import claim_line
        from probe.claims_study import study_claims

        data = os.environ.get("CIJING_DATA")
        bench = Bench(
            load_encoder=lambda: _load(model, device=device, dtype=dtype, revision=None, code=False),
            load_decoder=lambda: _load(decoder, device=device, dtype=dtype, revision=None, code=False, head="lm"),
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
    rows = [claim_line(finding, language) for finding in findings]
    open_console(sys.stdout).print(text_table(("claim", "verdict", "number"), rows))
    print(target / "report.html")


@app.command(cls=OnceEach)
def models() -> None:
    """List the builtin models. They come as packages; the list says which are built already."""
    from probe.models import known_models
    from probe.terminal import open_console, text_table

    rows = [
        (known.name, f"{known.size / 1e6:.0f} MB", "yes" if known.built else "at first use", known.licence, known.what)
        for known in known_models()
    ]
    open_console(sys.stdout).print(text_table(("name", "size", "built", "licence", "what"), rows))


def _cases(source: str) -> "CaseSet":
    from probe.cases import load_cases

    case_set = load_cases(source)
    for note in case_set.notes:
        say(f"note: {note}")
    return case_set


def _load(
    model: str, *, device: str, dtype: str, revision: str | None, code: bool, head: Literal["none", "lm"] = "none"
) -> "LoadedModel":
    from probe.models import load_model

    loaded = load_model(
        model, device=device, dtype=dtype, head=head, revision=revision, trust_remote_code=code, progress=say
    )
    for note in loaded.notes:
        say(f"note: {note}")
    return loaded


def _check_models(models: list[str], *, revision: str | None, code: bool) -> None:
    """Find every model before the first is looked at: a wrong name must not cost minutes."""
    from probe.models import check_source

    if revision is not None:
        raise CijingError("--revision belongs to one model; give one --model with it")
    for name in models:
        check_source(name, trust_remote_code=code, progress=say)


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code: 0, 1 for a failed check or a bug, 2 for what the user can mend."""
    return exit_code(app, arguments, name="python -m probe")


def main() -> NoReturn:
    """Run the command line as a program."""
    as_program(run)


if __name__ == "__main__":
    main()
