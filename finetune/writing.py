"""Files that are whole or not there, and a disk that is full or locked told in one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from finetune.errors import TrainingError

PART = ".part"
_TORCH_WRITER = ("inline_container", "iostream error")  # what torch.save's RuntimeError names when its writer failed


def write_whole(path: Path, text: str) -> None:
    """Write a text file beside its place and put it there when it is whole; TrainingError where that cannot be."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{PART}")  # several processes may write the same at a time
    with disk_told(path):
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def disk_told(where: str | Path, *, then: str = "") -> Iterator[None]:
    """What goes wrong with a disk within the block, as a TrainingError that says where, why, and what to do then."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise TrainingError(_line(where, getattr(error, "strerror", None) or str(error), then)) from error
    except RuntimeError as error:
        if not any(word in str(error) for word in _TORCH_WRITER):
            raise
        raise TrainingError(_line(where, "the disk took only a part of a file: is it full?", then)) from error


def _line(where: str | Path, reason: str, then: str) -> str:
    return f"{where}: cannot be written ({' '.join(reason.split())})" + (f"; {then}" if then else "")
