"""The command line of the second half: `python -m finetune`. It holds no command in this version."""

import sys
from importlib.metadata import PackageNotFoundError, version

HELP = """Usage: python -m finetune [--help | --version]

Teaching a model a domain's sense of a word, passages in prompts, and comparisons of what that changed
are not part of this version: there is no command to run yet. `python -m probe` looks at models today."""


def main() -> None:
    """Run the command line as a program."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Answer --help and --version; refuse all else with exit code 2."""
    if arguments in (["--version"], ["-V"]):
        print(f"cijing {_version()}")
        return 0
    if arguments in ([], ["--help"], ["-h"]):
        print(HELP)
        return 0
    print(f"no command {arguments[0]!r}: this version has none; allowed are --help and --version", file=sys.stderr)
    return 2


def _version() -> str:
    try:
        return version("cijing")
    except PackageNotFoundError:
        return "from a checkout that is not installed"


if __name__ == "__main__":
    main()
