"""Many settings of a run: sweep."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from finetune.commands.configuring import ConfigFile, Data, Device, Model, Pairs, Settings, TaskName, configured
from finetune.errors import ConfigError


def sweep(
    out: Annotated[str, typer.Option("--out", metavar="FOLDER", help="The sweep's folder; each trial is a run in it.")],
    config: ConfigFile = None,
    lambdas: Annotated[
        list[str] | None,
        typer.Option(
            "--lambda", metavar="WEIGHT", help="Weight of the attention loss: a number, plain, auto or auto:SHARE."
        ),
    ] = None,
    ranks: Annotated[list[int] | None, typer.Option("--rank", min=1, help="LoRA's rank; may be given again.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", metavar="KEY=V1,V2", help="Any key of the file, as in training.learning_rate=1e-4,5e-4."
        ),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(help="At most so many trials. [default: 8 where no grid is given, else all]")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="No trial begins after so many minutes of trials.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="METRIC", help="eval_loss or eval_accuracy. [default: the file's, or eval_loss]"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in that folder.")] = False,
    model: Model = None,
    task: TaskName = None,
    data: Data = None,
    pairs: Pairs = None,
    settings: Settings = None,
    device: Device = "auto",
) -> None:
    """Train the settings of a grid under a budget, and choose on dev. Without a grid: λ plain to 0.3, rank 4 to 16."""
    if not out.strip():
        raise ConfigError("--out: allowed is a folder")
    base = configured(config, model=model, task=task, data=data, pairs=pairs, out=out, settings=settings)
    from finetune.grid import axes_of
    from finetune.sweep import sweep as search
    from finetune.trials import Budget, lines_of, rows_of
    from probe import open_console, show_progress, text_table

    named = axes_of(lambdas or [], ranks or [], grid or []) or None
    budget = None if runs is None and minutes is None else Budget(runs=runs, minutes=minutes)
    with show_progress() as progress:
        found = search(
            base, folder=Path(out), axes=named, budget=budget, metric=metric, resume=resume, device=device,
            progress=progress,
        )  # fmt: skip
    open_console(sys.stdout).print(text_table(*rows_of(found)))
    for line in lines_of(found):
        print(line)
    print(found.folder)
