"""How well words, vectors and both find the right passage, and whether both together ever lose to one.

    python -m benchmarks.retrieval --preset full --cache FOLDER     # all of three sets; minutes for the vectors
    python -m benchmarks.retrieval --preset small                   # a few passages, shows that everything runs

Passages are searched whole, by their text alone; what an encoder cannot read of a long one is cut and told. Questions
are halved by a hash of their ids. The weight of the fusion is chosen on the first half, and the second is what is
reported; "both" of the table is that weight, "both, 0.5" the weight that stands when none was chosen. Intervals are
bootstraps over right passages. Leaves with exit code 1 where a bound of the full preset is missed: R@1 of words on
all of cmrc at least 0.93, and R@1 of both on cmrc's second half at most 0.01 below the better of the two there.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.public_data import data_folder
from benchmarks.retrieval_sets import Searched, sets
from finetune.rag.dense import DenseEncoder, Floats, Kind, dense_encoder
from finetune.rag.fusion import choose_weight, fuse, halves
from finetune.rag.hits import Ranked
from finetune.rag.irmeasures import differences, means, retrieval_measures
from finetune.rag.lexical import LexicalIndex
from finetune.rag.retrieve import POOL
from finetune.rag.searchwords import SearchWords
from probe.errors import CijingError
from probe.terminal import open_console, text_table

RESULTS = Path(__file__).parent / "results" / "retrieval.csv"
KS = (1, 5, 10)
PIECE = 64  # texts embedded before their vectors are kept
SHOWN = ("recall@1", "recall@5", "mrr@10", "ndcg@10")
WORDS, VECTORS, BOTH, EVEN = "words", "vectors", "both", "both, 0.5"
LEAST_RECALL, MOST_LOST = 0.93, 0.01
PRESETS: Mapping[str, int | None] = {"full": None, "small": 24}  # passages of a set
Rankings = dict[str, list[Ranked]]
Embed = Callable[[Sequence[str], Kind], Floats]
COLUMNS = ["set", "part", "field", "weight", "measure", "estimate", "low", "high", "queries", "units"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Search every set that is there, print and write the table; gives the exit code."""
    options = _parser().parse_args(arguments)
    try:
        embed = cached(dense_encoder(options.encoder), options.cache)
        table = measured(list(sets(data_folder(), most=PRESETS[options.preset])), embed)
    except CijingError as error:
        print(error, file=sys.stderr)
        return 2
    file = options.table or (RESULTS if options.preset == "full" else None)
    if file is not None:
        table.to_csv(file, index=False, float_format="%.4f", lineterminator="\n")
    print_measures(table)
    if options.preset != "full":
        return 0
    missed = [line for line, kept in bounds(table) if not kept]
    for line, kept in bounds(table):
        print(f"{'kept  ' if kept else 'MISSED'} {line}")
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", choices=sorted(PRESETS), default="full")
    parser.add_argument("--encoder", default="builtin:e5-small", help="any model's name or folder")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep vectors here, and take those that are there")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table to this file")
    return parser


# ---- vectors ---------------------------------------------------------------------------------------------------


def cached(encoder: DenseEncoder, folder: Path | None) -> Embed:
    """The encoder's vectors, each text's made once, and not at all where it is in the folder, by the same encoder."""
    made: dict[tuple[Kind, str], Floats] = {}
    within = folder / _hash(json.dumps(encoder.identity(), sort_keys=True)) if folder is not None else None

    def embed(texts: Sequence[str], kind: Kind) -> Floats:
        start, before = time.process_time(), encoder.texts_cut
        lacking = [text for text in dict.fromkeys(texts) if (kind, text) not in made]
        made.update({(kind, text): kept for text in lacking if (kept := _kept(within, kind, text)) is not None})
        lacking = sorted((text for text in lacking if (kind, text) not in made), key=len)
        for place in range(0, len(lacking), PIECE):
            piece = lacking[place : place + PIECE]
            for text, vector in zip(piece, encoder.embed(piece, kind), strict=True):
                made[kind, text] = vector
                _keep(within, kind, text, vector)
        if lacking:
            told = f"{time.process_time() - start:.0f} CPU s, {encoder.texts_cut - before} of them cut"
            print(f"{len(lacking)} {kind} texts embedded in {told}", file=sys.stderr, flush=True)
        return np.stack([made[kind, text] for text in texts])

    return embed


def _kept(folder: Path | None, kind: Kind, text: str) -> Floats | None:
    file = folder / kind / f"{_hash(text)}.npy" if folder is not None else None
    if file is None or not file.is_file():
        return None
    kept: Floats = np.load(file, allow_pickle=False)
    return kept


def _keep(folder: Path | None, kind: Kind, text: str, vector: Floats) -> None:
    """Write a vector beside its place and move it there, so that a killed run leaves none that is half written."""
    if folder is None:
        return
    file = folder / kind / f"{_hash(text)}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part.npy")
    np.save(part, vector, allow_pickle=False)
    os.replace(part, file)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


# ---- searches --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Fields:
    """What words and vectors found for each question of a set."""

    of: Searched
    words: Rankings
    vectors: Rankings

    def fused(self, weight: float) -> Rankings:
        """Both, by this weight."""
        return {
            query: fuse(self.words[query], self.vectors[query], weight=weight, k=max(KS)) for query in self.of.queries
        }

    def measures(self, rankings: Rankings, queries: Sequence[str]) -> pd.DataFrame:
        """The measures of each of these questions."""
        ids = list(self.of.passages)
        ranked = {query: [ids[one.place] for one in rankings[query]] for query in queries}
        found = retrieval_measures(ranked, {query: self.of.qrels[query] for query in queries}, KS)
        return found[["query", "relevant", *SHOWN]]

    def weight(self, queries: Sequence[str]) -> float:
        """The weight that does best on these questions."""
        places = {name: place for place, name in enumerate(self.of.passages)}
        relevant = {q: {places[one] for one, grade in self.of.qrels[q].items() if grade > 0} for q in queries}
        return choose_weight(self.words, self.vectors, relevant).weight


def fields_of(given: Searched, embed: Embed) -> Fields:
    """Search a set by both."""
    texts, queries = list(given.passages.values()), list(given.queries.values())
    lexical = LexicalIndex.build(texts, SearchWords(given.terms)).search(queries, POOL)
    cosines = embed(queries, "query") @ embed(texts, "passage").T  # [query, passage]
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :POOL]
    dense = [
        [Ranked(place, float(row[place])) for place in best.tolist()] for row, best in zip(cosines, order, strict=True)
    ]
    names = list(given.queries)
    return Fields(of=given, words=dict(zip(names, lexical, strict=True)), vectors=dict(zip(names, dense, strict=True)))


def measured(given: Sequence[Searched], embed: Embed) -> pd.DataFrame:
    """The table of all sets; a weight is chosen on the first half of its own questions, or is that of another set."""
    tables, weights = [], dict[str, float]()
    for one in given:
        fields = fields_of(one, embed)
        parts = {"all": list(one.queries)}
        if one.weight_of is None:
            parts["first half"], parts["second half"] = halves(one.queries)
            weights[one.name] = fields.weight(parts["first half"])
        weight = weights[one.weight_of or one.name]
        tables += [rows for name, queries in parts.items() for rows in _part_rows(fields, name, queries, weight)]
    return pd.concat(tables, ignore_index=True)[COLUMNS]


def _part_rows(fields: Fields, part: str, queries: Sequence[str], weight: float) -> Iterator[pd.DataFrame]:
    """The means of each field on a part, and the difference of both to the better field there."""
    rankings = {WORDS: fields.words, VECTORS: fields.vectors, BOTH: fields.fused(weight), EVEN: fields.fused(0.5)}
    weights = {WORDS: 0.0, VECTORS: 1.0, BOTH: weight, EVEN: 0.5}
    found = {name: fields.measures(ranking, queries) for name, ranking in rankings.items()}
    at = {"set": fields.of.name, "part": part}
    for name, frame in found.items():
        rows = means(frame, units=fields.of.units)
        yield rows.assign(**at, field=name, weight=weights[name])
    better = max((WORDS, VECTORS), key=lambda name: found[name]["recall@1"].mean())
    for name in (BOTH, EVEN):
        rows = differences(found[better], found[name], units=fields.of.units)
        yield rows[rows["arm"] == "difference"].assign(**at, field=f"{name} - {better}", weight=weights[name])


# ---- what is printed -------------------------------------------------------------------------------------------


def bounds(table: pd.DataFrame) -> Iterator[tuple[str, bool]]:
    """Each bound in words and whether it is kept; without cmrc there are none."""
    cmrc = table[(table["set"] == "cmrc") & (table["measure"] == "recall@1")].set_index(["part", "field"])["estimate"]
    if cmrc.empty:
        return
    words = cmrc["all", WORDS]
    yield f"cmrc, all: R@1 of words {words:.4f}, at least {LEAST_RECALL}", words >= LEAST_RECALL
    better = max(cmrc["second half", WORDS], cmrc["second half", VECTORS])
    both = cmrc["second half", BOTH]
    told = f"cmrc, second half: R@1 of both {both:.4f}, of the better one {better:.4f}, at most {MOST_LOST} below"
    yield told, both >= better - MOST_LOST


def print_measures(table: pd.DataFrame) -> None:
    """One line a set, part and field."""
    names = ["set", "part", "field", "weight"]
    lines = []
    for key, rows in table.groupby(names, sort=False):
        by_measure = rows.set_index("measure")
        cells = ["{estimate:.3f} [{low:.3f}, {high:.3f}]".format(**by_measure.loc[name]) for name in SHOWN]
        lines.append((*map(str, key), *cells, str(rows["queries"].iloc[0])))
    open_console(sys.stdout).print(text_table([*names, *SHOWN, "questions"], lines))


if __name__ == "__main__":
    sys.exit(main())
