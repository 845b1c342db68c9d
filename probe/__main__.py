"""The command line: `python -m probe report | compare | …`."""

from typing import NoReturn

import typer

from probe.commands.article import claims
from probe.commands.checks import check, models
from probe.commands.prompting import prompt
from probe.commands.sets import compare, diff, report
from probe.commands.words import attend, walk
from probe.launch import as_program, exit_code
from probe.options import OnceEach

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look at how a pretrained language model reads an ambiguous word.",
)
for command in (report, compare, diff, attend, walk, prompt, check, claims, models):
    app.command(cls=OnceEach)(command)


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code: 0, 1 for a failed check or a bug, 2 for what the user can mend."""
    return exit_code(app, arguments, name="python -m probe")


def main() -> NoReturn:
    """Run the command line as a program."""
    as_program(run)


if __name__ == "__main__":
    main()
