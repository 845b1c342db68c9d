"""How a command line starts and ends: what it says, its exit code, and what happens when it is stopped."""

import errno
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from probe.errors import CijingError

# Typer brings its own click and names only this one of its classes; its ancestors are all other usage errors.
USAGE_ERRORS = tuple(kind for kind in typer.BadParameter.__mro__ if issubclass(kind, Exception))[:-1]
STOPPED = 130
PIPE_CLOSED = 141  # as a shell reports a program that SIGPIPE ended


def say(text: str) -> None:
    """Put notes and mistakes on standard error, with what draws nothing spelled out."""
    from probe.terminal import visible

    for line in text.splitlines():
        print(visible(line), file=sys.stderr)


def exit_code(app: typer.Typer, arguments: list[str], *, name: str) -> int:
    """Run one command of `app`, called `name` in its help: 0, 1 for a failed check or a bug, 2 for a user's mistake."""
    try:
        code = app(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        if code == STOPPED:  # Typer turns Ctrl-C into an exit code without a word
            say("stopped")
        return code if isinstance(code, int) else 0
    except CijingError as error:
        say(str(error))
        return 2
    except USAGE_ERRORS as caught:
        usage: Any = caught
        say(usage.format_message())
        return 2
    except (KeyboardInterrupt, typer.Abort):
        say("stopped")
        return STOPPED
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except SystemExit as left:
        # Rich and Typer catch a broken pipe themselves and leave with 1, which would read as a failed check.
        if not isinstance(left.__context__, BrokenPipeError):
            raise
        _drop_output()
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _internal(error)
        _drop_output()
        say(f"cannot write {error.filename or 'the output'}: {error.strerror}; make room on that disk")
        return 2
    except Exception as error:
        return _internal(error)


def _internal(error: Exception) -> int:
    if os.environ.get("CIJING_DEBUG"):
        raise error
    say(f"internal error: {type(error).__name__}: {' '.join(str(error).split())} (CIJING_DEBUG=1 shows where)")
    return 1


def _drop_output() -> None:
    """Send what is still to be printed nowhere, or the interpreter complains about it when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def as_program(run: Callable[[list[str]], int]) -> NoReturn:
    """Run a command line as a program: quiet libraries, no crash on a terminal that cannot show a character."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not os.environ.get("CIJING_DEBUG"):
        warnings.simplefilter("ignore")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        getattr(sys, name).reconfigure(errors="backslashreplace")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where it keeps its cache is no news
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a half-written run folder is removed
    sys.exit(run(sys.argv[1:]))
