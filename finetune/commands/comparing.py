"""What helped: compare."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from finetune.commands.configuring import (
    Data,
    Device,
    Model,
    Pairs,
    Settings,
    TaskName,
    overrides_of,
    shipped_config,
)
from finetune.errors import TrainingError
from probe import say

if TYPE_CHECKING:
    from finetune.compare.run import Compared


def compare(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="YAML file, biochem or chips, or a comparison's plan.json.")
    ],
    out: Annotated[
        str | None, typer.Option("--out", metavar="FOLDER", help="The comparison's folder. [default: runs/CONFIG]")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ARM[:SEED]", help="These jobs alone, and the runs they need; no tables."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the jobs, done or left, and do none.")] = False,
    anew: Annotated[
        bool, typer.Option("--anew", help="Do jobs anew that were done with other settings, files or versions.")
    ] = False,
    language: Annotated[Literal["zh", "en"], typer.Option(help="Of the page.")] = "zh",
    model: Model = None,
    task: TaskName = None,
    data: Data = None,
    pairs: Pairs = None,
    settings: Settings = None,
    device: Device = "auto",
) -> None:
    """Compare arms over seeds on the same data: train, measure, one page. The same command goes on with what is left.

    Several processes or machines may share the folder, each with its own --only; a last call without it gathers.
    """
    overrides = overrides_of(model=model, task=task, data=data, pairs=pairs, out=out, settings=settings)
    from finetune.compare.plan import plan_of, rows_of, selected, states_of
    from finetune.compare.run import compare as run_comparison
    from finetune.compare.run import write_plan
    from finetune.compare.settings import load_compare
    from probe import open_console, show_progress, text_table

    given = load_compare(shipped_config(config, kind="compare"), name=str(config), overrides=overrides)
    folder = Path(given.out or f"runs/{config.stem}")
    if plan:
        jobs = plan_of(given)
        write_plan(jobs, folder)
        names = {job.name for job in selected(jobs, only or ())}
        states = [one for one in states_of(jobs, folder) if one.job.name in names]
        open_console(sys.stdout).print(text_table(*rows_of(states)))
        print(folder / "plan.json")
        return
    from finetune.compare.materials import measurer

    try:
        with show_progress() as progress:
            measure = measurer(given, folder, device)
            found = run_comparison(
                given, folder=folder, measure=measure, asked=measure, only=only or (), anew=anew,
                device=device, language=language, progress=progress,
            )  # fmt: skip
    except (KeyboardInterrupt, SystemExit):
        say(f"{folder}: stopped; the same command goes on with what is left")
        raise
    open_console(sys.stdout).print(text_table(*rows_of(found.jobs)))
    if found.report is not None:
        for verdict in found.report.verdicts:
            print(verdict)
    print(folder if found.report is None else found.report.folder / "report.html")
    _tell_missing(found)


def _tell_missing(found: "Compared") -> None:
    """What is not there and why; TrainingError where a job of this call failed: all that could be done is done."""
    for name, reason in found.missing.items():
        say(f"missing: {name}: {reason}")
    if found.failed:
        names, again = ", ".join(sorted(found.failed)), "it" if len(found.failed) == 1 else "them"
        jobs = "1 job" if len(found.failed) == 1 else f"{len(found.failed)} jobs"
        raise TrainingError(f"{found.folder}: {jobs} failed ({names}); the same command tries {again} again")
