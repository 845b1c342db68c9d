"""The command line of the second half: `python -m finetune train | compare | check | evaluate | merge | …`."""

from typing import NoReturn

import typer

from finetune.commands.asking import ask, passages
from finetune.commands.comparing import compare
from finetune.commands.mining import mine
from finetune.commands.reading_passages import read
from finetune.commands.results import evaluate, merge, push
from finetune.commands.retrieving import index, search
from finetune.commands.sweeping import sweep
from finetune.commands.teaching import check, schema, train
from probe import OnceEach, as_program, exit_code

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Teach a model a domain's sense of a word.",
)
for command in (train, sweep, compare, check, mine, evaluate, merge, push, schema, index, search, ask, passages, read):
    app.command(cls=OnceEach)(command)


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code: 0, 1 for a bug, 2 for what the user can mend."""
    return exit_code(app, arguments, name="python -m finetune")


def main() -> NoReturn:
    """Run the command line as a program."""
    as_program(run)


if __name__ == "__main__":
    main()
