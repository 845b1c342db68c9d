"""Two rankings made one by the ranks of their chunks, and the weight between them chosen on half of the queries.

Reciprocal rank fusion (Cormack, Clarke & Büttcher, SIGIR 2009) adds 1 / (60 + rank) over the rankings, so that scores
of different scales need no calibration. Here the dense ranking counts w and the lexical one 1 − w.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from finetune.errors import RetrievalError
from finetune.rag.hits import Ranked

CONSTANT = 60  # of the paper
GRID = tuple(step / 20 for step in range(21))
DEPTH = 10  # of the reciprocal rank that decides between weights of equal recall@1
Rankings = Mapping[str, Sequence[Ranked]]  # of each query


def fuse(
    lexical: Sequence[Ranked], dense: Sequence[Ranked], *, weight: float, k: int, constant: float = CONSTANT
) -> list[Ranked]:
    """Give the first k chunks by (1 − weight) / (constant + lexical rank) + weight / (constant + dense rank).

    Ranks count from 1. A chunk that one ranking lacks has nothing from it, one whose sum is 0 is left out (so weight 0
    gives the lexical ranking and 1 the dense one), and equal sums stand in the order of their places.
    """
    if not 0 <= weight <= 1:
        raise RetrievalError(f"weight {weight}: allowed are 0 (lexical alone) to 1 (dense alone)")
    if k < 1:
        raise RetrievalError(f"k {k}: allowed are whole numbers from 1")
    if not 0 <= constant < math.inf:
        raise RetrievalError(f"constant {constant}: allowed are numbers from 0")
    sums: dict[int, float] = {}
    for share, ranking in ((1 - weight, lexical), (weight, dense)):
        for rank, one in enumerate(ranking, start=1):
            sums[one.place] = sums.get(one.place, 0.0) + share / (constant + rank)
    found = [Ranked(place, score) for place, score in sums.items() if score > 0]
    return sorted(found, key=lambda one: (-one.score, one.place))[:k]


def halves(queries: Iterable[str]) -> tuple[list[str], list[str]]:
    """Part queries by a hash of their ids: the same query is in the same half whatever stands beside it."""
    parts: tuple[list[str], list[str]] = ([], [])
    for query in queries:
        parts[hashlib.sha256(query.encode()).digest()[0] % 2].append(query)
    return parts


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """How one weight did."""

    weight: float
    recall: float  # recall@1
    mrr: float  # MRR@10


@dataclass(frozen=True, kw_only=True)
class ChosenWeight:
    """The best weight of a grid, and all that were tried."""

    weight: float
    tried: tuple[Weighed, ...]
    queries: int


def choose_weight(
    lexical: Rankings,
    dense: Rankings,
    relevant: Mapping[str, Collection[int]],
    *,
    grid: Sequence[float] = GRID,
    constant: float = CONSTANT,
) -> ChosenWeight:
    """Choose by mean recall@1, then MRR@10; of equals the one nearest to 0.5, then the smaller.

    `relevant` has the places of the right chunks of each query that is to count; a query that neither ranking holds
    found nothing. Give half of the queries (`halves`): the number that is reported belongs to the other half.
    """
    if not relevant or not all(relevant.values()):
        raise RetrievalError("a weight is chosen on queries with a relevant chunk each; allowed are one or more such")
    if not grid:
        raise RetrievalError("the grid of weights is empty; allowed are weights from 0 to 1")
    tried = tuple(_weighed(weight, lexical, dense, relevant, constant=constant) for weight in grid)
    best = min(tried, key=lambda one: (-one.recall, -one.mrr, abs(one.weight - 0.5), one.weight))
    return ChosenWeight(weight=best.weight, tried=tried, queries=len(relevant))


def _weighed(
    weight: float, lexical: Rankings, dense: Rankings, relevant: Mapping[str, Collection[int]], *, constant: float
) -> Weighed:
    recalls, reciprocals = [], []
    for query, right in relevant.items():
        fused = fuse(lexical.get(query, ()), dense.get(query, ()), weight=weight, k=DEPTH, constant=constant)
        ranks = [rank for rank, one in enumerate(fused, start=1) if one.place in right]
        first = ranks[0] if ranks else math.inf
        recalls.append((first == 1) / len(set(right)))
        reciprocals.append(1 / first)
    count = len(relevant)
    # Rounded, or the order of adding would decide between equals.
    return Weighed(weight=weight, recall=round(sum(recalls) / count, 12), mrr=round(sum(reciprocals) / count, 12))
