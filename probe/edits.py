"""Edits of attention: an edge cut, damped or boosted, a head silenced; applied to one layer's output."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from probe.errors import TapError
from probe.given import number_set, shown, whole_number, whole_numbers
from probe.rows import ScoreTerms, allowed_keys, attention_rows, terms_of

Stack = Literal["encoder", "decoder", "cross"]


STACKS = ("encoder", "decoder", "cross")


@dataclass(frozen=True, kw_only=True)
class EdgeEdit:
    """Multiply the attention weight of the edges query → key by `factor` before the row is normalised again.

    factor 0 cuts the edge, below 1 damps it, above 1 boosts it. Positions are token positions of batch item `item`,
    padding counted; an edge that a layer does not let the query see (later, outside its window, padding) stays 0 there.
    Sets may be given as any collection of numbers. Raises TapError for anything else.
    """

    query: tuple[int, ...]
    key: tuple[int, ...]
    factor: float = 0.0
    item: int = 0
    layers: frozenset[int] | None = None
    heads: frozenset[int] | None = None
    stacks: frozenset[Stack] | None = None

    def __post_init__(self) -> None:
        for name in ("query", "key"):
            object.__setattr__(self, name, whole_numbers(getattr(self, name), f"{name} of an edge edit", **_FROM_0))
        if not self.query or not self.key:
            raise TapError("an edge edit needs at least one query and one key position")
        number = isinstance(self.factor, int | float) and not isinstance(self.factor, bool)
        if not number or not 0.0 <= self.factor < float("inf"):
            raise TapError(f"edge factor {self.factor!r} is not allowed: 0 cuts, below 1 damps, above 1 boosts")
        _check_filters(self)


@dataclass(frozen=True, kw_only=True)
class HeadEdit:
    """Zero the output of heads, before they are mixed by W_O, for all queries of batch item `item`.

    Sets may be given as any collection of numbers. Raises TapError for anything else.
    """

    heads: frozenset[int]
    item: int = 0
    layers: frozenset[int] | None = None
    stacks: frozenset[Stack] | None = None

    def __post_init__(self) -> None:
        if self.heads is None:
            raise TapError("heads of an edit: a head edit names its heads")
        _check_filters(self)


_FROM_0: Any = {"least": 0, "error": TapError}


def _check_filters(edit: "Edit") -> None:
    object.__setattr__(edit, "item", whole_number(edit.item, "item of an edit", **_FROM_0))
    for name in ("layers", "heads"):
        object.__setattr__(edit, name, numbers_or_all(getattr(edit, name), f"{name} of an edit"))
    object.__setattr__(edit, "stacks", stacks_or_all(edit.stacks))


def numbers_or_all(given: object, name: str) -> frozenset[int] | None:
    """Layers or heads as a set, None for all; TapError for none at all and for what is no number from 0."""
    return None if given is None else number_set(given, name, error=TapError)


def stacks_or_all(given: object) -> frozenset[Stack] | None:
    """Stacks as a set, None for all; TapError for none at all and for unknown ones."""
    if given is None:
        return None
    asked = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not asked or any(stack not in STACKS for stack in asked):
        raise TapError(f"stacks {shown(given)}: allowed are some of {', '.join(STACKS)}, or None for all")
    return frozenset(cast("list[Stack]", asked))


Edit = EdgeEdit | HeadEdit


def apply_edges(
    edits: Sequence[EdgeEdit], query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, output: Tensor
) -> Tensor:
    """Overwrite the output of the edited (text, query, head) triples; every other number stays bit for bit.

    query [batch, head, query, dim], key and value [batch, kv head, key, dim], output [batch, query, head, dim].
    """
    _check_edges(edits, query, key)
    items = sorted({edit.item for edit in edits})
    touched = [sorted({place for edit in edits if edit.item == item for place in edit.query}) for item in items]
    width = max(len(places) for places in touched)
    places = [[*own, *[own[0]] * (width - len(own))] for own in touched]  # a repeat writes the same row again
    positions = torch.tensor(places, device=query.device)  # [item, query]
    index = torch.tensor(items, device=query.device)
    query, key, value, terms = query[index], key[index], value[index], terms_of(terms, index)
    own = [replace(edit, item=items.index(edit.item)) for edit in edits]
    bias = edge_bias(own, positions, query, key)
    _refuse_empty_rows(terms, bias, positions, query, key)
    rows = attention_rows(query, key, terms, positions, extra=bias)
    # Query heads that share a value head are folded into the query axis, as in the scores. In half precision too the
    # mixture is computed in fp32 and rounded once, as the output that it becomes.
    mixed = rows.view(len(items), value.shape[1], -1, rows.shape[-1]) @ value.float()
    mixed = mixed.view(*rows.shape[:3], -1).transpose(1, 2).to(output.dtype)  # [item, query, head, dim]
    changed = (bias != 0).any(-1).transpose(1, 2)[..., None]  # [item, query, head, 1]
    output = output.clone()
    output[index[:, None], positions] = torch.where(changed, mixed, output[index[:, None], positions])
    return output


def _check_edges(edits: Sequence[EdgeEdit], query: Tensor, key: Tensor) -> None:
    for edit in edits:
        if edit.item >= query.shape[0]:
            raise TapError(f"edit for text {edit.item}, but the batch has {query.shape[0]}")
        for name, places, length in (("query", edit.query, query.shape[2]), ("key", edit.key, key.shape[2])):
            if max(places) >= length:
                raise TapError(f"edit at {name} position {max(places)}, but the text has tokens 0 to {length - 1} here")
        if edit.heads is not None and max(edit.heads) >= query.shape[1]:
            raise TapError(f"edit of head {max(edit.heads)}, but this layer has heads 0 to {query.shape[1] - 1}")


def edge_bias(edits: Sequence[EdgeEdit], positions: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Log factors of the edits at the asked rows: [batch, head, query, key]; a cut is the lowest finite number."""
    heads, keys = query.shape[1], key.shape[2]
    bias = np.zeros((*positions.shape, heads, keys), dtype=np.float32)  # [batch, query, head, key]
    asked = positions.tolist()
    for edit in edits:
        log_factor = -np.inf if edit.factor == 0 else math.log(edit.factor)
        slots = [slot for slot, place in enumerate(asked[edit.item]) if place in edit.query]
        chosen = sorted(edit.heads) if edit.heads is not None else range(heads)
        bias[np.ix_([edit.item], slots, chosen, edit.key)] += log_factor
    lowest = np.finfo(np.float32).min
    return torch.from_numpy(np.maximum(bias, lowest)).to(query.device).transpose(1, 2)


def _refuse_empty_rows(terms: ScoreTerms, bias: Tensor, positions: Tensor, query: Tensor, key: Tensor) -> None:
    """Refuse rows whose every allowed key is cut: they have no softmax, and a uniform row would be invented."""
    if terms.sinks is not None:
        return
    open_keys = bias > torch.finfo(bias.dtype).min
    allowed = allowed_keys(terms, positions, queries=query.shape[2], keys=key.shape[2])
    if allowed is not None and allowed.dtype != torch.bool:  # additive: what closes a key is the lowest number, or -inf
        allowed = allowed > torch.finfo(allowed.dtype).min / 2
    open_keys = open_keys if allowed is None else open_keys & allowed
    if not bool(open_keys.any(-1).all()):
        raise TapError("the edits cut every key that a query may see; a row needs at least one")


def zero_heads(edit: HeadEdit, output: Tensor) -> Tensor:
    """The output [batch, query, head, dim] with the edit's heads zeroed for its text."""
    if edit.item >= output.shape[0]:
        raise TapError(f"edit for text {edit.item}, but the batch has {output.shape[0]}")
    if max(edit.heads) >= output.shape[2]:
        raise TapError(f"edit of head {max(edit.heads)}, but this layer has heads 0 to {output.shape[2] - 1}")
    output = output.clone()
    output[edit.item, :, sorted(edit.heads)] = 0.0
    return output
