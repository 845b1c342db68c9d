"""How well a ranking answers judged queries: recall, reciprocal rank and nDCG, by query and as means with intervals.

A query's judgments are grades: a document of grade 1 or more is relevant, one of 0 or less, or without a judgment, is
not. For the first k documents of a ranking

    recall@k = relevant documents among them / relevant documents
    MRR@k    = 1 / rank of the first relevant one among them, 0 where there is none
    nDCG@k   = DCG@k / DCG@k of the judged documents by falling grade,  DCG@k = sum of grade(r) / log2(1 + r), r = 1 … k

with the grade itself as gain and log2 of 1 + rank as discount (Järvelin & Kekäläinen, ACM TOIS 2002, with the
discount from rank 2 on as trec_eval has it): trec_eval's recall, recip_rank of a cut ranking, and ndcg_cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from finetune.errors import RetrievalError
from finetune.intervals import Floats, Paired, compared

KS = (1, 5, 10)
MEASURES = ("recall", "mrr", "ndcg")
Qrels = Mapping[str, Mapping[str, int]]  # query -> document -> grade


def retrieval_measures(ranked: Mapping[str, Sequence[str]], qrels: Qrels, ks: Sequence[int] = KS) -> pd.DataFrame:
    """Columns query, relevant (how many documents are), and recall@k, mrr@k, ndcg@k; a row for every query of either.

    The order given is the ranking; scores that tie are ordered by whoever ranked. A judged query without a ranking
    found nothing and has 0; a query without a relevant document has NaN, so that means leave it out. RetrievalError
    for a document that stands in a ranking twice, and for k below 1.
    """
    if not ks or min(ks) < 1:
        raise RetrievalError(f"k {', '.join(map(str, ks)) or 'none'}: allowed are whole numbers from 1")
    queries = dict.fromkeys((*qrels, *ranked))
    rows = [_of_query(query, ranked.get(query, ()), qrels.get(query, {}), ks) for query in queries]
    return pd.DataFrame(rows, columns=["query", "relevant", *(f"{name}@{k}" for k in ks for name in MEASURES)])


def _of_query(query: str, ranking: Sequence[str], grades: Mapping[str, int], ks: Sequence[int]) -> list[object]:
    _check_once(query, ranking)
    gains = np.array([max(grades.get(document, 0), 0) for document in ranking], dtype=np.float64)  # [rank]
    ideal = np.sort([float(grade) for grade in grades.values() if grade > 0])[::-1]
    values = [value for k in ks for value in _at(gains, ideal, k)] if len(ideal) else [np.nan] * len(MEASURES) * len(ks)
    return [query, len(ideal), *values]


def _check_once(query: str, ranking: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for rank, document in enumerate(ranking, start=1):
        if first.setdefault(document, rank) != rank:
            raise RetrievalError(
                f"query {query}: document {document} at ranks {first[document]} and {rank}; allowed is each once"
            )


def _at(gains: Floats, ideal: Floats, k: int) -> tuple[float, float, float]:
    """Recall, reciprocal rank and nDCG of the first k."""
    places = np.flatnonzero(gains[:k])
    first = 1 / (1 + places[0]) if len(places) else 0.0
    return len(places) / len(ideal), float(first), _discounted(gains[:k]) / _discounted(ideal[:k])


def _discounted(gains: Floats) -> float:
    return float((gains / np.log2(2 + np.arange(len(gains)))).sum())


def first_of_each(documents: Iterable[str]) -> list[str]:
    """Give a ranking of documents from one of their chunks: each where its best chunk stands."""
    return list(dict.fromkeys(documents))


def means(measured: pd.DataFrame, *, units: Mapping[str, str] | None = None, seed: int = 0) -> pd.DataFrame:
    """Columns measure, estimate, low, high (95 %, bootstrap over units), queries, units, unjudged (queries left out).

    `units` gives what is drawn anew for each query, such as its gold passage where queries share one; else a query.
    """
    rows = _compared(measured, measured, units=units, seed=seed)
    rows = rows[rows["arm"] == "base"].rename(columns={"items": "queries"})
    rows["unjudged"] = int((measured["relevant"] == 0).sum())
    return rows[["measure", "estimate", "low", "high", "queries", "units", "unjudged"]].reset_index(drop=True)


def differences(
    one: pd.DataFrame, other: pd.DataFrame, *, units: Mapping[str, str] | None = None, seed: int = 0
) -> pd.DataFrame:
    """Give means of two systems and of other minus one, as column arm, over the same queries in the same draws.

    ValueError where the two were not measured on the same queries.
    """
    rows = _compared(one, other, units=units, seed=seed).rename(columns={"items": "queries"})
    rows["arm"] = rows["arm"].map({"base": "one", "tuned": "other", "difference": "difference"})
    return rows[["measure", "arm", "estimate", "low", "high", "queries", "units"]].reset_index(drop=True)


def _compared(one: pd.DataFrame, other: pd.DataFrame, *, units: Mapping[str, str] | None, seed: int) -> pd.DataFrame:
    one, other = (frame[frame["relevant"] > 0].set_index("query") for frame in (one, other))
    if set(one.index) != set(other.index):
        raise ValueError(f"{len(one)} and {len(other)} judged queries, not the same ones")
    if one.empty:
        raise RetrievalError("no query has a relevant document; allowed are qrels with a score of 1 or more")
    names = [name for name in one.columns if name != "relevant"]
    counted = [np.column_stack([frame.loc[one.index, names], np.ones(len(one))]) for frame in (one, other)]
    drawn = [units[query] if units else query for query in one.index]
    paired = Paired(base=counted[0], tuned=counted[1], units=drawn, unit="query", part="queries")
    return compared(paired, {name: partial(_mean, place) for place, name in enumerate(names)}, seed=seed)


def _mean(place: int, sums: Floats) -> Floats:
    """One measure's sum over the queries counted last."""
    found: Floats = sums[..., place] / sums[..., -1]
    return found
