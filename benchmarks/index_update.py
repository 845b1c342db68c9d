"""What adding 100 documents to an index costs, against making the index anew.

    python -m benchmarks.index_update [--preset small|full] [--documents 2000] [--csv FILE]

The documents are abstracts (CSL), encyclopaedia passages (CMRC) and windows of a novel from CIJING_DATA, one a row,
with repeated chunks kept; the encoder is the embedded e5-small and the index is dense and lexical. Compared is the CPU
time, of one torch thread, of the update and of a rebuild of all documents, both in a process that has loaded its
libraries; loading the models is part of both. The small preset takes a tiny encoder and made-up documents, and can only
show a gross slip. Leaves with exit code 1 where the update takes more than a tenth.
"""

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.index_material import tiny_settings, write_version, written_encoder
from finetune.rag import manifest
from finetune.rag.index import IndexReport, IndexSettings, build_index, open_index

ADDED = 100  # documents
BOUND = 0.10
COLUMNS = ("quantity", "chunks", "value", "unit", "embedded", "taken over")
Row = tuple[str, int, float, str, int, int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index_update", description="What an update costs.")
    parser.add_argument("--preset", choices=("small", "full"), default="full")
    parser.add_argument(
        "--documents", type=int, default=2000, help=f"of the full preset, before {ADDED} more are added"
    )
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        small = options.preset == "small"
        rows = list(_small(Path(made)) if small else _full(Path(made), options.documents))
    for quantity, chunks, value, unit, new, reused in rows:
        print(f"{quantity:<28} {value:10.3f} {unit:<7} ({chunks:,} chunks, {new:,} embedded, {reused:,} taken over)")
    if options.csv is not None:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    (ratio,) = [row[2] for row in rows if row[0] == "update over rebuild"]
    return 1 if ratio > BOUND and not small else 0


def _small(root: Path) -> Iterator[Row]:
    settings = tiny_settings(written_encoder(root / "encoder"), duplicates="keep")
    write_version(root / "docs", 0, documents=60)
    (root / "more").mkdir()
    for path in sorted((root / "docs").iterdir())[:6]:
        path.rename(root / "more" / path.name)
    return compared(root, settings)


def _full(root: Path, documents: int) -> Iterator[Row]:
    texts = list(_texts(Path(os.environ["CIJING_DATA"])))[: documents + ADDED]
    for name, part in (("docs", texts[ADDED:]), ("more", texts[:ADDED])):
        (root / name).mkdir()
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in part]
        (root / name / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return compared(root, IndexSettings(duplicates="keep"))


def _texts(data: Path) -> Iterator[str]:
    """Abstracts, passages, and windows of 400 characters, half of each the next one's, until the novel ends."""
    lines = (data / "csl" / "abstract_title_dev.tsv").read_text("utf-8").splitlines()
    yield from dict.fromkeys(line.split("\t")[1] for line in lines if line.count("\t") >= 2)
    for line in (data / "cmrc-retrieval" / "corpus.jsonl").read_text("utf-8").splitlines():
        yield json.loads(line)["text"]
    novel = next((data / "novel").glob("*.txt")).read_text("utf-8")
    yield from (novel[start : start + 400] for start in range(0, len(novel) - 400, 200))


def compared(root: Path, settings: IndexSettings) -> Iterator[Row]:
    """An index of docs/ and then of docs/ with more/, the same made anew, and what opening it costs."""
    build_index([root / "more"], root / "warm", settings, device="cpu")  # libraries are loaded, threads started
    # Both runs have the two sources: a name begins with its source's where there are several.
    (root / "more").rename(root / "later")
    (root / "more").mkdir()
    timed(root, "index", settings)
    (root / "more").rmdir()
    (root / "later").rename(root / "more")
    update, updated = timed(root, "index", settings)
    rebuild, rebuilt = timed(root, "anew", settings)
    yield "rebuild", rebuilt.chunks, rebuild, "s CPU", rebuilt.embedded, rebuilt.reused
    yield "update", updated.chunks, update, "s CPU", updated.embedded, updated.reused
    yield "update over rebuild", updated.chunks, update / rebuild, "", updated.embedded, updated.reused
    for quantity, seconds in (("opening", _opening(root / "index")), ("of it, hashes", _hashing(root / "index"))):
        yield quantity, updated.chunks, seconds, "s CPU", 0, 0


def _opening(folder: Path) -> float:
    began = time.process_time()
    open_index(folder, device="cpu").close()
    return time.process_time() - began


def _hashing(folder: Path) -> float:
    with open_index(folder, device="cpu") as index:
        began = time.process_time()
        manifest.check_files(folder / "generations" / index.generation, index.manifest.files)
        return time.process_time() - began


def timed(root: Path, folder: str, settings: IndexSettings) -> tuple[float, IndexReport]:
    """CPU seconds and report of a run on docs/ and more/."""
    began = time.process_time()
    report = build_index([root / "docs", root / "more"], root / folder, settings, device="cpu")
    return time.process_time() - began, report


if __name__ == "__main__":
    sys.exit(main())
