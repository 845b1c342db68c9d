"""Formats whose files can hang, crash or exhaust their reader are read in a process of their own, with limits."""

import json
import os
import subprocess
import sys
import threading
from importlib import import_module
from typing import IO, Any

from finetune.rag.documents import Content, Kind, Limits, UnreadableError, megabytes, one_line

_HOMES = {"html": "markup", "pdf": "pdfpages", "docx": "worddocuments"}
KINDS: tuple[Kind, ...] = ("html", "pdf", "docx")
_START = "from finetune.rag.apart import serve; serve()"


class Apart:
    """A reading process, started when first needed and again after one that had to be ended."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Apart":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def read(self, kind: Kind, raw: bytes) -> Content:
        """Give what the process makes of a file; UnreadableError where it cannot, takes too long or dies of it."""
        process = self._process = self._process or _started(self.limits)
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.limits.seconds, end)
        timer.start()
        try:
            answer = _asked(process, kind, raw)
        except BaseException:  # interrupted half-way, it would answer the next question with this one's answer
            self.close()
            raise
        finally:
            timer.cancel()
        if answer is None or late.is_set():
            self.close()
            slow = f"took its reader more than {self.limits.seconds:g} seconds"
            raise UnreadableError(slow if late.is_set() else "ended its reader's process")
        if "reason" in answer:
            raise UnreadableError(answer["reason"])
        return Content(text=answer["text"], title=answer["title"])


def _started(limits: Limits) -> subprocess.Popen[bytes]:
    # -P and the paths of this process: the folder that we stand in may hold a docx.py that is none of ours.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
    )
    settings = {"memory_mb": limits.memory_mb, "unpacked_mb": limits.unpacked_mb}
    _pipe(process.stdin).write(json.dumps(settings).encode() + b"\n")
    return process


def _asked(process: subprocess.Popen[bytes], kind: Kind, raw: bytes) -> dict[str, str] | None:
    """One question and its answer; None where the process ended over it."""
    try:
        sent = _pipe(process.stdin)
        sent.write(json.dumps([kind, len(raw)]).encode() + b"\n")
        sent.write(raw)
        sent.flush()
        line = _pipe(process.stdout).readline()
    except OSError:
        return None
    answer: dict[str, str] | None = json.loads(line) if line.endswith(b"\n") else None
    return answer


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("a process started with pipes has none")
    return pipe


# ---- in that process -------------------------------------------------------------------------------------------


def serve() -> None:
    """Answer questions from the standard input until it ends: a line of JSON and a file, a line of JSON back."""
    asked = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    limits = Limits(**json.loads(asked.readline()))
    _limit_memory(megabytes(limits.memory_mb))
    while line := asked.readline():
        kind, length = json.loads(line)
        answers.write(json.dumps(_answer(kind, asked.read(length), limits)).encode() + b"\n")
        answers.flush()


def _limit_memory(most: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _answer(kind: Kind, raw: bytes, limits: Limits) -> dict[str, str]:
    try:
        reader: Any = import_module(f"finetune.rag.{_HOMES[kind]}")
        content: Content = reader.read_docx(raw, limits) if kind == "docx" else getattr(reader, f"read_{kind}")(raw)
        return {"text": content.text, "title": content.title}
    except UnreadableError as error:
        return {"reason": str(error)}
    except ImportError as error:
        return {"reason": f"needs {error.name or error}, which is not installed: `pip install cijing[rag]`"}
    except MemoryError:
        return {"reason": f"needs more than {limits.memory_mb:g} MB to be read"}
    except Exception as error:  # what readers raise on damaged files is of any kind
        return {"reason": f"is no readable {kind.upper()} ({one_line(error) or type(error).__name__})"}
