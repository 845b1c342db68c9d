"""Whether an index that is killed while it is written goes on answering, and comes out as one that was left alone.

    python -m benchmarks.index_kills [--preset small|full] [--seed 0] [--csv FILE]

A collection of some hundred chunks changes again and again, and each time a process of its own, with a tiny encoder,
begins to bring its index up to date and is ended by SIGKILL at a random moment: while it loads, reads and embeds, or
while it writes the new generation and puts it in place. The first two strike before there is any index. After each
kill another process opens the index, compares every hash, and asks it by words and by vectors: it must be, whole,
that of the collection before or that of the new one. At last a run is left alone, and its index compared with one of
the same documents in a folder that nobody killed: the same documents, chunks and words, vectors within 1e-5, no file
left over. Processes are forked from one that has its libraries loaded. Leaves with exit code 1 where anything is
lost.
"""

import argparse
import csv
import importlib
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.index_material import WORDS, tiny_settings, write_version, written_encoder
from finetune.errors import RetrievalError
from finetune.rag import generations
from finetune.rag.index import Index, IndexSettings, build_index, open_index
from finetune.rag.searchwords import SearchWords

PRESETS = {"small": (3, 12), "full": (20, 60)}  # kills, documents
Aim = Literal["any moment", "writing"]
TOLERANCE = 1e-5
_FIRST = 2  # kills, the first, of runs that have no index yet
_PATIENCE = 300.0  # seconds for a process that nobody kills
_LATE = (
    "lance_namespace",
    "pandas",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "transformers.models.auto.tokenization_auto",
)
COLUMNS = ("kill", "aim", "after seconds", "draft written", "answers as", "seconds of a whole run")


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill as often as the preset says; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index_kills", description="Is anything lost by kills?")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    _load()
    kills, documents = PRESETS[options.preset]
    with tempfile.TemporaryDirectory() as made:
        rows, problems = _killed(Path(made), kills=kills, documents=documents, draw=random.Random(options.seed))
    for problem in problems or [f"{len(rows)} kills, nothing is lost"]:
        print(problem)
    if options.csv is not None:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    return 1 if problems else 0


def _load() -> None:
    """Load what a run loads late, so that no process has to; LanceDB itself starts threads and is left to each."""
    for name in _LATE:
        importlib.import_module(name)
    SearchWords()


def _killed(root: Path, *, kills: int, documents: int, draw: random.Random) -> tuple[list[list[Any]], list[str]]:
    settings = tiny_settings(written_encoder(root / "encoder"))
    docs, folder = root / "docs", root / "index"
    write_version(docs, 0, documents=documents)
    span, writing = left_alone(docs, root / "first", settings)
    rows: list[list[Any]] = []
    problems: list[str] = []
    known: tuple[int | None, ...] = (None,)  # what the index may be: none, or a version
    version, attempt, share = 0, 0, 1.0
    while len(rows) < kills:
        if len(rows) < _FIRST and known[0] is not None:  # the run before had put its index in place all the same
            shutil.rmtree(folder)
            known = (None,)
        if attempt % 4 != 3 or known[0] is None:  # now and then the same again, as one who starts anew after a kill
            version = attempt
            write_version(docs, version, documents=documents)
        aim: Aim = "any moment" if len(rows) % 2 == 0 else "writing"
        after, drafted, killed = kill_once(
            docs, folder, settings, within=share * (writing if aim == "writing" else span), aim=aim, draw=draw
        )
        answer, said = _asked(folder, root, documents)
        if said or answer not in (*known, version) or (answer is None and known[0] is not None):
            problems.append(f"attempt {attempt + 1}: {said or f'the index is of version {answer}, allowed {known}'}")
        known = (answer,)
        attempt += 1
        if not killed:  # it had come to its end before: the machine is less busy, or little was new
            share = max(0.7 * share, 0.1)
            continue
        if len(rows) == _FIRST - 1 and answer is None:  # from here on there is an old index that must go on
            left_alone(docs, folder, settings)
            known = (version,)
        rows.append([len(rows) + 1, aim, f"{after:.3f}", drafted, _named(answer, version), f"{span:.3f}"])
        print(f"kill {len(rows):>2}, {aim:<10} after {after:6.3f} s, answers as {rows[-1][4]}", flush=True)
    left_alone(docs, folder, settings)
    left_alone(docs, root / "whole", settings)
    problems += apart(_differences, folder, root / "whole")
    return rows, problems


def _named(answer: int | None, version: int) -> str:
    return "no index yet" if answer is None else "the new one" if answer == version else "the one before"


def started(docs: Path, folder: Path, settings: IndexSettings) -> Any:
    """A process that brings the index up to date."""
    process = multiprocessing.get_context("fork").Process(target=_build, args=(docs, folder, settings))
    process.start()
    return process


def _build(docs: Path, folder: Path, settings: IndexSettings) -> None:
    build_index([docs], folder, settings, device="cpu")


def left_alone(docs: Path, folder: Path, settings: IndexSettings) -> tuple[float, float]:
    """Let a run come to its end; gives its seconds, all and from when it writes; RuntimeError where it fails."""
    began = time.monotonic()
    process = started(docs, folder, settings)
    _until_it_writes(process, folder)
    writes = time.monotonic()
    process.join(_PATIENCE)
    if process.exitcode != 0:
        raise RuntimeError(f"the run left with {process.exitcode}")
    return time.monotonic() - began, time.monotonic() - writes


def _until_it_writes(process: Any, folder: Path) -> None:
    while process.is_alive() and not _draft(folder).exists():
        time.sleep(0.0005)


def _draft(folder: Path) -> Path:
    return folder / generations.GENERATIONS / ".building"


def kill_once(
    docs: Path, folder: Path, settings: IndexSettings, *, aim: Aim, within: float, draw: random.Random
) -> tuple[float, bool, bool]:
    """Start and kill; gives the seconds till then, whether a draft was there, and whether the run was not over yet.

    RuntimeError where the run fails by itself.
    """
    began = time.monotonic()
    process = started(docs, folder, settings)
    if aim == "writing":
        _until_it_writes(process, folder)
    process.join(draw.uniform(0.0, within))
    process.kill()
    after = time.monotonic() - began
    process.join()
    if process.exitcode not in (0, -9):
        raise RuntimeError(f"the run left with {process.exitcode} by itself")
    return after, _draft(folder).exists(), process.exitcode == -9


def apart(work: Callable[..., Any], *given: Any) -> Any:
    """What a function gives in a process of its own: LanceDB's threads must not be there when one is forked."""
    receiving, sending = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        sending.send(work(*given))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    found = receiving.recv() if receiving.poll(_PATIENCE) else None
    process.join(_PATIENCE)
    if process.exitcode != 0:
        raise RuntimeError(f"the process that looks at the index left with {process.exitcode}")
    return found


def _asked(folder: Path, root: Path, documents: int) -> tuple[int | None, str]:
    found: tuple[int | None, str] = apart(answer_of, folder, root, documents)
    return found


def answer_of(folder: Path, root: Path, documents: int) -> tuple[int | None, str]:
    """Which version an index is, and what is wrong with it; None where no run came to its end before."""
    try:
        if generations.current_name(folder) is None:
            return None, ""
        with open_index(folder, device="cpu") as index:
            text = index.document("version.txt").text
            version = int(text.partition("里")[2].split(next(word for word in WORDS if word in text[:20]))[0])
            write_version(root / f"v{version}", version, documents=documents)
            return version, _wrong_with(index, root / f"v{version}")
    except RetrievalError as error:
        return None, str(error)


def _wrong_with(index: Index, docs: Path) -> str:
    """What an index of that collection does not answer as it should, "" for none."""
    there = {path.name: path.read_text("utf-8") for path in docs.iterdir()}
    if {id: index.document(id).text for id in index.document_hashes()} != there:
        return "its documents are of no version"
    for place in range(0, len(index.chunks), max(len(index.chunks) // 5, 1)):
        text = index.chunks[place].searched
        if index.dense_search([text], 1)[0][0].score < 0.999 or not index.lexical.search([text], 1)[0]:
            return f"chunk {place} is not found"
    return ""


def _differences(folder: Path, whole: Path) -> list[str]:
    """What an index is not as the one left alone is."""
    found = []
    with open_index(folder, device="cpu") as one, open_index(whole, device="cpu") as other:
        if list(one.chunks) != list(other.chunks):
            found.append("the chunks differ")
        if one.document_hashes() != other.document_hashes() or one.left() != other.left():
            found.append("the documents differ")
        mine, theirs = one.known_vectors(), other.known_vectors()
        gap = max((float(np.abs(mine[key] - theirs[key]).max()) for key in theirs if key in mine), default=1.0)
        print(f"largest difference of a vector's number: {gap:.2g}")
        if mine.keys() != theirs.keys() or gap > TOLERANCE:
            found.append(f"vectors differ by {gap:.2g}")
        if one.lexical.search(WORDS, 50) != other.lexical.search(WORDS, 50):
            found.append("a search by words differs")
    places = sorted(os.listdir(folder / generations.GENERATIONS))
    if len(places) > generations.KEPT or any(name.startswith(".") for name in places):
        found.append(f"left over: {', '.join(places)}")
    if (folder / generations.EMBEDDED).exists():
        found.append("left over: vectors of a killed run")
    return found


if __name__ == "__main__":
    sys.exit(main())
