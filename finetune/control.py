"""The random-pair control: the same texts, heads, weight, number, distance, direction and base mass; other words.

Supervising random tokens often helps as much as supervising the right ones (Herrewijnen et al., EACL 2026; Stacey et
al., AAAI 2022), so what a pair is worth is what it gains over this.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finetune.bases import base_weights, knows_base
from finetune.heads import Heads, rows_only
from finetune.pairs import Reach, TokenPair, why_unmet
from probe import RowRequest, attached

NEAR = 0.2  # of the true pair's base mass


@dataclass(frozen=True, kw_only=True)
class Swap:
    """One true pair and what stands for it in the control; `random` is None where the text has no other place."""

    true: TokenPair
    random: TokenPair | None
    true_mass: float  # base attention, mean over the supervised heads
    random_mass: float

    @property
    def near(self) -> bool:
        """Whether the base model attends to it as much, within 20 %."""
        return self.random is not None and abs(self.random_mass - self.true_mass) <= NEAR * self.true_mass

    @property
    def same_distance(self) -> bool:
        """Whether query and key are as many tokens apart."""
        return self.random is not None and _distance(self.random) == _distance(self.true)


@dataclass(frozen=True, kw_only=True)
class ControlFacts:
    """How well the control matches, for the report."""

    pairs: int
    without: int  # true pairs that have no place for another: the control has none in their stead
    near: float  # share within 20 % of the base mass
    same_distance: float
    true_mass: float
    random_mass: float


def control_facts(swaps: Sequence[Swap]) -> ControlFacts:
    """Count what matches."""
    placed = [swap for swap in swaps if swap.random is not None]
    count = max(len(placed), 1)
    return ControlFacts(
        pairs=len(placed),
        without=len(swaps) - len(placed),
        near=sum(swap.near for swap in placed) / count,
        same_distance=sum(swap.same_distance for swap in placed) / count,
        true_mass=sum(swap.true_mass for swap in placed) / count,
        random_mass=sum(swap.random_mass for swap in placed) / count,
    )


def mean_attention(
    model: Any, ids: Sequence[int], *, heads: Heads, token_types: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """The base model's attention [query, key] in one text, the mean over these heads; the model is not trained."""
    device = next(model.parameters()).device
    given = torch.tensor([list(ids)], device=device)
    types = {} if token_types is None else {"token_type_ids": torch.tensor([token_types.tolist()], device=device)}
    request = RowRequest(None, layers=tuple(heads))
    was_training = model.training
    model.eval()
    try:
        with _as_base(model), torch.inference_mode(), attached(model):
            model(input_ids=given, attention_mask=torch.ones_like(given), rows=request, **types, **rows_only(model))
    finally:
        model.train(was_training)
    chosen = [rows[0, list(heads[layer.index])] for layer, rows in request.rows.items()]
    mean: NDArray[np.float64] = torch.cat(chosen).mean(0).double().cpu().numpy()
    return mean


def _as_base(model: Any) -> Any:
    """The base: a stream is swapped while the model is trained; before training a model is its base."""
    return base_weights(model) if knows_base(model) else nullcontext()


def random_pairs(
    pairs: Sequence[TokenPair],
    attention: NDArray[np.float64],
    *,
    special: Sequence[bool],
    reach: Reach,
    random: np.random.Generator,
) -> list[Swap]:
    """For each true pair other spans of the same text: as long, as far apart, in the same order, as much attended to.

    attention [query, key] is the base model's. Of all places with the smallest difference in distance, one within 20 %
    of the true pair's base mass is drawn; where there is none, the nearest is taken, and counted as not near.
    """
    taken = {position for pair in pairs for position in (*pair.queries, *pair.keys)}
    free = [not is_special and place not in taken for place, is_special in enumerate(special)]
    swaps = []
    for pair in pairs:
        wanted = _mass(attention, pair.queries, pair.keys)
        found = [one for one in _places(pair, free) if why_unmet(one, reach) is None]
        least = min((abs(_distance(one) - _distance(pair)) for one in found), default=0)
        found = [one for one in found if abs(_distance(one) - _distance(pair)) == least]
        masses = np.array([_mass(attention, one.queries, one.keys) for one in found])
        near = np.flatnonzero(np.abs(masses - wanted) <= NEAR * wanted)
        if not len(found):
            swaps.append(Swap(true=pair, random=None, true_mass=wanted, random_mass=float("nan")))
            continue
        place = int(random.choice(near)) if len(near) else int(np.argmin(np.abs(masses - wanted)))
        swaps.append(Swap(true=pair, random=found[place], true_mass=wanted, random_mass=float(masses[place])))
    return swaps


def _places(pair: TokenPair, free: Sequence[bool]) -> list[TokenPair]:
    """All other spans of the pair's lengths and order on free tokens."""
    first = pair.queries[0] < pair.keys[0]
    lengths = len(pair.queries), len(pair.keys)
    starts = [[n for n in range(len(free) - length + 1) if all(free[n : n + length])] for length in lengths]
    return [
        TokenPair(
            rule=pair.rule, weight=pair.weight,
            queries=tuple(range(query, query + lengths[0])), keys=tuple(range(key, key + lengths[1])),
        )
        for query in starts[0]
        for key in starts[1]
        if (query + lengths[0] <= key if first else key + lengths[1] <= query)
    ]  # fmt: skip


def _distance(pair: TokenPair) -> int:
    """Tokens between the spans, signed: positive where the key stands behind."""
    if pair.queries[0] < pair.keys[0]:
        return pair.keys[0] - pair.queries[-1]
    return -(pair.queries[0] - pair.keys[-1])


def _mass(attention: NDArray[np.float64], queries: Sequence[int], keys: Sequence[int]) -> float:
    return float(attention[np.ix_(list(queries), list(keys))].sum(1).mean())
