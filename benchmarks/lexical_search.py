"""What our lexical index costs beside bm25s called directly on the same tokens.

    python -m benchmarks.lexical_search [--preset ci|full] [--pairs 10] [--json FILE] [--csv FILE]

20,000 chunks are overlapping windows of public texts (a novel, abstracts of papers, encyclopedia passages), the
queries 1,000 questions on the passages; both are read where they lie (CIJING_DATA). Every text is cut once, before
anything is timed, so both sides get the same tokens: of words and of bigrams for indexing, of words for searching.
Seconds are the CPU's. Memory is the increase in a fresh process, of one run each, tokens not counted. Leaves with exit
code 1 where a bound is missed. The table in benchmarks/results was made with

    python -m benchmarks.lexical_search --pairs 3 --csv benchmarks/results/lexical_search.csv
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import bm25s
import numpy as np

from benchmarks.measure import Comparison, Work, compare_memory, compare_time, cpu_seconds
from benchmarks.public_data import data_folder
from benchmarks.table import Line, line_of, print_table
from finetune.rag.lexical import LexicalIndex
from finetune.rag.searchwords import SearchWords

WIDTH = 320  # characters of a chunk
BEST = 10
SHIPPED, PUBLIC = "shipped", "public"
Tokens = list[list[str]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where the texts come from, how many chunks and queries, and the most that our CPU time may be of bm25s'."""

    source: str
    chunks: int
    queries: int
    bound: float = 1.2
    memory: bool = True  # whether it is measured, in two fresh processes

    def __str__(self) -> str:
        return f"{self.source} {self.chunks:,} x {WIDTH}"


# In CI the times are milliseconds, so the bound there only shows a gross slip, and memory would show the allocator's.
PRESETS = {
    "ci": (Setting(source=SHIPPED, chunks=300, queries=50, bound=3.0, memory=False),),
    "full": (Setting(source=PUBLIC, chunks=20_000, queries=1_000),),
}


class CutBefore(SearchWords):
    """Search words of texts that are cut already."""

    def __init__(self, texts: Sequence[str], words: Tokens, bigrams: Tokens) -> None:
        super().__init__()
        self._words_of = dict(zip(texts, words, strict=True))
        self._bigrams_of = dict(zip(texts, bigrams, strict=True))

    def words(self, text: str) -> list[str]:
        """The words that were cut."""
        return self._words_of[text]

    def bigrams(self, text: str) -> list[str]:
        """The bigrams that were cut."""
        return self._bigrams_of[text]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Chunks and queries with their tokens."""

    chunks: list[str]
    queries: list[str]
    words: Tokens  # of the chunks
    bigrams: Tokens
    asked: Tokens  # words of the queries
    remembered: CutBefore
    seconds: tuple[float, float]  # of the CPU, to cut the chunks into words and into bigrams


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a preset and print its table; gives the exit code."""
    about = "What the lexical index costs beside bm25s on the same tokens."
    return print_table(arguments, name="lexical_search", about=about, presets=PRESETS, lines_of=measured)


def measured(setting: Setting, pairs: int) -> Iterator[Line]:
    """The lines of one setting, each as soon as it is known; the other side is bm25s."""
    cut = cut_texts(setting)
    words, bigrams = cut.seconds
    yield Line(setting=str(setting), quantity="cutting into words, into bigrams", unit="s", other=words, rows=bigrams)
    indexed = compare_time(partial(index_directly, cut), partial(index_ours, cut), pairs=pairs)
    yield _time_line(setting, "indexing words and bigrams", indexed)
    direct, ours = index_directly(cut), index_ours(cut)
    searched = compare_time(
        partial(search_directly, direct[0], cut.asked), partial(ours.search, cut.queries, BEST), pairs=pairs
    )
    yield _time_line(setting, f"searching, {len(cut.queries):,} queries, best {BEST}", searched)
    if setting.memory:
        grown = compare_memory(prepared_index, (setting, index_directly), (setting, index_ours))
        yield line_of(setting, "memory of indexing", "MB", grown, held=grown.ratio, bound=float("nan"))
    theirs, size = (disk_size(save) for save in (partial(save_directly, direct), ours.save))
    yield Line(setting=str(setting), quantity="index on the disk", unit="MB", other=theirs / 1e6, rows=size / 1e6)


def _time_line(setting: Setting, quantity: str, seconds: Comparison) -> Line:
    return line_of(setting, quantity, "s", seconds, held=seconds.low, bound=setting.bound)


def cut_texts(setting: Setting) -> Cut:
    """The setting's chunks and queries, cut."""
    texts, questions = SOURCES[setting.source]()
    chunks, queries = windows(texts, setting.chunks), questions[: setting.queries]
    words = SearchWords()
    of_chunks: dict[str, Tokens] = {}
    seconds = tuple(
        cpu_seconds(lambda name=name, cut=cut: of_chunks.update({name: [cut(chunk) for chunk in chunks]}))
        for name, cut in (("words", words.words), ("bigrams", words.bigrams))
    )
    asked = [words.words(query) for query in queries]
    remembered = CutBefore(
        [*chunks, *queries], [*of_chunks["words"], *asked], [*of_chunks["bigrams"], *map(words.bigrams, queries)]
    )
    return Cut(chunks=chunks, queries=queries, **of_chunks, asked=asked, remembered=remembered, seconds=seconds)


def windows(texts: Sequence[str], count: int) -> list[str]:
    """So many windows of one width over the texts, evenly spread, so that they overlap; none twice."""
    whole = "\n".join(texts)
    starts = np.linspace(0, max(len(whole) - WIDTH, 0), count).astype(int)
    return list(dict.fromkeys(whole[start : start + WIDTH] for start in starts.tolist()))


def index_directly(cut: Cut) -> tuple[bm25s.BM25, bm25s.BM25]:
    """Side A of indexing: bm25s as its own pages show it, once for each field."""
    fields = bm25s.BM25(), bm25s.BM25()
    for field, tokens in zip(fields, (cut.words, cut.bigrams), strict=True):
        field.index(tokens, show_progress=False)
    return fields


def index_ours(cut: Cut) -> LexicalIndex:
    """Side B of indexing."""
    return LexicalIndex.build(cut.chunks, cut.remembered)


def search_directly(field: bm25s.BM25, asked: Tokens) -> bm25s.Results:
    """Side A of searching."""
    return field.retrieve(asked, k=BEST, show_progress=False)


def prepared_index(setting: Setting, side: Callable[[Cut], object]) -> Work:
    """One side's indexing with all texts cut: for a fresh process."""
    return partial(side, cut_texts(setting))


def save_directly(fields: Sequence[bm25s.BM25], folder: Path) -> None:
    """Side A's index on the disk."""
    for number, field in enumerate(fields):
        field.save(folder / str(number), show_progress=False)


def disk_size(save: Callable[[Path], None]) -> int:
    """Bytes of what is saved."""
    with TemporaryDirectory() as folder:
        save(Path(folder) / "index")
        return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def shipped_texts() -> tuple[list[str], list[str]]:
    """Passages and questions of our own set."""
    folder = files("finetune") / "data" / "rag"
    return _texts((folder / "corpus.jsonl").read_text("utf-8")), _texts((folder / "queries.jsonl").read_text("utf-8"))


def public_texts() -> tuple[list[str], list[str]]:
    """A novel, abstracts, passages; and questions on the passages."""
    folder = data_folder()
    novel = (folder / "novel" / "xiyouji_250k.txt").read_text("utf-8")
    tables = [(folder / "csl" / f"abstract_{what}_dev.tsv").read_text("utf-8") for what in ("discipline", "title")]
    abstracts = [line.split("\t")[1] for table in tables for line in table.splitlines() if "\t" in line]
    passages = _texts((folder / "cmrc-retrieval" / "corpus.jsonl").read_text("utf-8"))
    questions = _texts((folder / "cmrc-retrieval" / "queries_half.jsonl").read_text("utf-8"))
    return [novel, *abstracts, *passages], questions


def _texts(lines: str) -> list[str]:
    return [json.loads(line)["text"] for line in lines.splitlines()]


SOURCES = {SHIPPED: shipped_texts, PUBLIC: public_texts}


if __name__ == "__main__":
    sys.exit(main())
