"""Teaching a model: train, check, schema."""

import json
import shutil
import sys
from typing import Annotated

import typer

from finetune.commands.configuring import ConfigFile, Data, Device, Model, Out, Pairs, Settings, TaskName, configured
from probe import say


def train(
    config: ConfigFile = None,
    model: Model = None,
    task: TaskName = None,
    data: Data = None,
    pairs: Pairs = None,
    out: Out = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    device: Device = "auto",
) -> None:
    """Teach a model, with LoRA or whole; where pairs are given, with a loss on its attention. Leaves a run folder."""
    run = configured(config, model=model, task=task, data=data, pairs=pairs, out=out, settings=settings)
    from finetune.processes import speaks
    from finetune.train import train as teach
    from probe import open_console, show_progress, text_table

    if not speaks():  # one of several processes
        teach(run, resume=resume, device=device)
        return
    try:
        with show_progress() as progress:
            done = teach(run, resume=resume, device=device, progress=progress)
    except (KeyboardInterrupt, SystemExit):
        if (run.folder / "config.yaml").is_file():
            say(f"{run.folder}: stopped; the same command with --resume goes on from the last checkpoint")
        raise
    for note in done.notes:
        say(f"note: {note}")
    rows = [[name, f"{value:.6g}"] for name, value in sorted(done.metrics.items())]
    open_console(sys.stdout).print(text_table(("metric", "value"), rows))
    print(done.folder)


def check(
    config: ConfigFile = None,
    model: Model = None,
    task: TaskName = None,
    data: Data = None,
    pairs: Pairs = None,
    out: Out = None,
    settings: Settings = None,
    examples: Annotated[int, typer.Option(min=0, max=1000, help="So many examples are shown.")] = 3,
) -> None:
    """Look before training: examples with labels and pairs, pairs that cannot be met, memory. Loads no weights."""
    run = configured(config, model=model, task=task, data=data, pairs=pairs, out=out, settings=settings)
    from finetune.preflight import inspect_run, lines_of
    from probe import show_progress

    with show_progress() as progress:
        found = inspect_run(run, examples=examples, progress=progress)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines_of(found, width=width):
        print(line)
    if found.refusal is not None:
        raise found.refusal


def schema() -> None:
    """Print the JSON schema of a run's file."""
    from finetune.config import schema as schema_of

    print(json.dumps(schema_of(), indent=1, ensure_ascii=False))
