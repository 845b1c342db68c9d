"""What came of a run: evaluate, merge, push."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from finetune.commands.configuring import Device
from probe import say

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder that `finetune train` left.")]

RemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that the base brings along.")]


def evaluate(
    run: Run,
    test: Annotated[
        list[str] | None,
        typer.Option("--test", metavar="SOURCE", help="Test texts in place of data.test; may be given again."),
    ] = None,
    general: Annotated[
        Path | None,
        typer.Option("--general", metavar="FILE", help="General text, for what was forgotten. [default: CIJING_DATA]"),
    ] = None,
    questions: Annotated[
        str | None, typer.Option("--questions", metavar="FILE", help="Questions (JSONL), or biochem or chips.")
    ] = None,
    general_limit: Annotated[int, typer.Option(min=5, max=100_000, help="So many general texts are read.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of resamples and of drawn texts.")] = 0,
    trust_remote_code: RemoteCode = False,
    device: Device = "auto",
) -> None:
    """Measure a run on what it never saw: base, tuned and difference with intervals. Writes RUN/evaluation."""
    from finetune.evaluate import evaluate as measure
    from finetune.evaluation import lines_of, rows_of, save_evaluation
    from finetune.runfolder import open_run_folder
    from probe import open_console, show_progress, text_table

    opened = open_run_folder(run, device=device, trust_remote_code=trust_remote_code)
    with show_progress() as progress:
        found = measure(
            opened, general=general, test=test or None, questions=questions, general_limit=general_limit, seed=seed,
            progress=progress,
        )  # fmt: skip
    folder = save_evaluation(found, opened)
    columns = ("measure", "part", "base", "tuned", "difference", "units")
    open_console(sys.stdout).print(text_table(columns, rows_of(found)))
    for line in lines_of(found):
        print(line)
    print(folder)


def merge(
    run: Run,
    out: Annotated[str, typer.Option("--out", metavar="FOLDER", help="A new folder for the merged model.")],
    trust_remote_code: RemoteCode = False,
    device: Device = "auto",
) -> None:
    """Merge the adapter into its base, if both give the same logits. Leaves an ordinary model folder."""
    from finetune.merge import merge_run

    check = merge_run(run, out, device=device, trust_remote_code=trust_remote_code)
    say(
        f"merged against unmerged logits, {check.texts} texts: largest difference {check.largest:.3g}, "
        f"largest logit {check.scale:.3g}"
    )
    if check.quantised is not None:
        say(f"trained in 4 bit, merged into the published weights: logits differ by at most {check.quantised:.3g}")
    print(out)


def push(
    run: Run,
    repository: Annotated[str, typer.Argument(metavar="REPO_ID", help="Where to: organisation/name.")],
    private: Annotated[bool | None, typer.Option("--private/--public", help="[default: as the account has it]")] = None,
    revision: Annotated[str | None, typer.Option(metavar="BRANCH", help="A branch. [default: main]")] = None,
    base: Annotated[
        str | None, typer.Option("--base", metavar="HUB_ID", help="The base on the hub, where it was a local folder.")
    ] = None,
) -> None:
    """Upload adapter, head, tokenizer, card, hashes and terms to a hub: no data, no checkpoint, no path."""
    from finetune.push import HubSettings, lines_of, push_run

    done = push_run(run, HubSettings(repository=repository, private=private, revision=revision), base=base)
    for line in lines_of(done):
        say(line)
    print(done.repository)
