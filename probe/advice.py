"""What the Hugging Face libraries say while they work: kept off the terminal, and handed over as lines to read."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO

LIBRARIES = ("transformers", "huggingface_hub", "peft", "accelerate")
LONGEST = 240  # characters of one line
# The table of missing and unused weights; models.py reads the same facts from the loader and says them in words.
REPORTED_ELSEWHERE = "LOAD REPORT"


@contextmanager
def collected_advice() -> Iterator[list[str]]:
    """Inside, progress bars are off and warnings go to the list: one line each, none twice."""
    lines: list[str] = []
    collector = _Collector(lines)
    import transformers  # sets up its logger, which must exist before its handlers are replaced
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    bars = transformers.utils.logging.is_progress_bar_enabled()
    hub_bars_off = are_progress_bars_disabled()
    transformers.utils.logging.disable_progress_bar()
    disable_progress_bars()
    try:
        with warnings.catch_warnings(record=True) as heard, _handled_by(collector):
            warnings.simplefilter("default")
            yield lines
        _add_warnings(lines, heard)
    finally:
        if bars:
            transformers.utils.logging.enable_progress_bar()
        if not hub_bars_off:
            enable_progress_bars()


def without_bars(*, stubborn: bool = True) -> redirect_stderr[StringIO] | nullcontext[None]:
    """For code that draws its progress bar itself, whatever is set: its standard error goes nowhere."""
    return redirect_stderr(StringIO()) if stubborn else nullcontext()


class _Collector(logging.Handler):
    """Writes warnings and errors into a list."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(level=logging.WARNING)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        _add(self.lines, record.getMessage())


@contextmanager
def _handled_by(collector: logging.Handler) -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    before = [(logger.handlers[:], logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [collector], False
    try:
        yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate


def _add_warnings(lines: list[str], heard: list[warnings.WarningMessage]) -> None:
    for warning in heard:
        if issubclass(warning.category, UserWarning | RuntimeWarning):  # not deprecations: those are for developers
            _add(lines, str(warning.message))


def _add(lines: list[str], message: str) -> None:
    line = " ".join(message.split())
    line = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    if line and REPORTED_ELSEWHERE not in line and line not in lines:
        lines.append(line)
