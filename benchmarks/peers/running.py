"""The cases, and one tool on one case in a process of its own interpreter."""

import json
import os
import statistics
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import HERE

ROOT = HERE.parents[1]
OURS = "ours"
MODELS = ("builtin:gemma3-270m", "builtin:e5-small")
SENTENCE = "我喜欢苹果"
TARGET = "苹果"
TOKENS = 500
_LONGEST_ERROR = 120
LIMIT = 1200  # seconds for one case


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table; `error` where the tool could not do it, or with numbers where it could not do the page."""

    model: str
    tokens: int
    tool: str
    seconds: float | None = None  # of the CPU
    increase: int | None = None  # bytes
    weights: int | None = None
    page: int | None = None  # bytes
    page_seconds: float | None = None
    error: str = ""


def measured(models: Sequence[str], pythons: Mapping[str, Path], *, runs: int) -> Iterator[Result]:
    """Every model, text and tool, each result as soon as it is known."""
    for name in models:
        for job in jobs(name):
            for tool, python in pythons.items():
                yield median([one(tool, python, job) for _ in range(runs)])


def jobs(name: str) -> Iterator[dict[str, str]]:
    """The sentence and the long text, as a peer can read them: strings, and the model as a folder."""
    from transformers import AutoTokenizer

    from probe.cases import load_cases
    from probe.embedded import checkpoint

    folder = str(checkpoint(name).folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    long = long_text([case.text for case in load_cases("apple").cases], lambda text: len(tokenizer(text)["input_ids"]))
    for text in (SENTENCE, long):
        tokens = len(tokenizer(text)["input_ids"])
        middle = text.count(TARGET) // 2 + 1
        yield {"name": name, "tokens": str(tokens), "model": folder, "text": text, **_target(text, middle)}


def long_text(sentences: Sequence[str], count: Callable[[str], int], *, tokens: int = TOKENS) -> str:
    """Whole sentences, then as much of the next one as still makes at most `tokens`."""
    text = ""
    for sentence in cycle(sentences):
        longer = f"{text}{sentence}。"
        if count(longer) <= tokens:
            text = longer
            continue
        ends = (end for end in range(len(longer), len(text), -1) if count(longer[:end]) <= tokens)
        return longer[: next(ends, len(text))]
    raise AssertionError("cycle does not end")


def _target(text: str, occurrence: int) -> dict[str, str]:
    start = -1
    for _ in range(occurrence):
        start = text.index(TARGET, start + 1)
    return {"target": TARGET, "occurrence": str(occurrence), "start": str(start), "end": str(start + len(TARGET))}


def one(tool: str, python: Path, job: Mapping[str, str]) -> Result:
    """One case in a process of the tool's own interpreter; what it cannot do is its last line of error."""
    result = Result(model=job["name"].removeprefix("builtin:"), tokens=int(job["tokens"]), tool=tool)
    done = run_script(python, f"{tool}_run", job)
    for line in done.stdout.splitlines():
        if line.startswith('{"'):
            result = replace(result, **json.loads(line))
    return replace(result, error=reason(done.stderr, done.returncode)) if done.returncode else result


def run_script(python: Path, script: str, job: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    """A module of this package in another interpreter: one thread, no hub, nothing of our environment's packages."""
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    quiet = {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "job.json"
        path.write_text(json.dumps(job, ensure_ascii=False), "utf-8")
        command = [str(python), "-m", f"benchmarks.peers.{script}", str(path)]
        try:
            return subprocess.run(
                command, env={**os.environ, **own, **quiet}, capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", f"no answer within {LIMIT} s")


def reason(stderr: str, code: int) -> str:
    """The last line of an error, shortened; a process that was killed leaves none."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if code < 0 or not lines:
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return textwrap.shorten(lines[-1], _LONGEST_ERROR, placeholder=" …")


def median(results: Sequence[Result]) -> Result:
    """One result of several runs of a case: the median of time and memory; an error stands for all."""
    for result in results:
        if result.error:
            return result

    def middle(field: str) -> Any:
        values = [getattr(result, field) for result in results]
        return None if None in values else statistics.median(values)

    return replace(results[0], **{field: middle(field) for field in ("seconds", "increase", "page_seconds")})
