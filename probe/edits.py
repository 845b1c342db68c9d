"""Edits of attention: an edge cut, damped or boosted, a head silenced; applied to one layer's output."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from probe.errors import TapError
from probe.rows import ScoreTerms, allowed_keys, attention_rows, item_terms

Stack = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True, kw_only=True)
class EdgeEdit:
    """Multiply the attention weight of the edges query → key by `factor` before the row is normalised again.

    factor 0 cuts the edge, below 1 damps it, above 1 boosts it. Positions are token positions of batch item `item`.
    """

    query: tuple[int, ...]
    key: tuple[int, ...]
    factor: float = 0.0
    item: int = 0
    layers: frozenset[int] | None = None
    heads: frozenset[int] | None = None
    stacks: frozenset[Stack] | None = None

    def __post_init__(self) -> None:
        if not self.query or not self.key:
            raise TapError("an edge edit needs at least one query and one key position")
        if not 0.0 <= self.factor < float("inf"):
            raise TapError(f"edge factor {self.factor} is not allowed: 0 cuts, below 1 damps, above 1 boosts")


@dataclass(frozen=True, kw_only=True)
class HeadEdit:
    """Zero the output of heads, before they are mixed by W_O, for all queries of batch item `item`."""

    heads: frozenset[int]
    item: int = 0
    layers: frozenset[int] | None = None
    stacks: frozenset[Stack] | None = None


Edit = EdgeEdit | HeadEdit


def apply_edges(
    edits: Sequence[EdgeEdit], query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, output: Tensor
) -> Tensor:
    """Overwrite the output of the edited (item, query, head) triples; every other number stays bit for bit."""
    output = output.clone()
    for item in sorted({edit.item for edit in edits}):
        own = [edit for edit in edits if edit.item == item]
        touched = sorted({position for edit in own for position in edit.query})
        _check_edges(own, query, key)
        positions = torch.tensor([touched], device=query.device)
        one = slice(item, item + 1)
        local = item_terms(terms, item)
        bias = edge_bias([replace(edit, item=0) for edit in own], positions, query[one], key[one])
        _refuse_empty_rows(local, bias, positions, query[one], key[one])
        rows = attention_rows(query[one], key[one], local, positions, extra=bias).to(value.dtype)
        values = value[one]
        mixed = rows.view(1, values.shape[1], -1, rows.shape[-1]) @ values
        mixed = mixed.view(1, rows.shape[1], len(touched), -1)[0]  # [head, query, dim]
        changed = (bias != 0).any(-1)[0]  # [head, query]
        for head, slot in changed.nonzero().tolist():
            output[item, touched[slot], head] = mixed[head, slot]
    return output


def _check_edges(edits: Sequence[EdgeEdit], query: Tensor, key: Tensor) -> None:
    for edit in edits:
        if edit.item >= query.shape[0]:
            raise TapError(f"edit for text {edit.item}, but the batch has {query.shape[0]}")
        if min(edit.query) < 0 or max(edit.query) >= query.shape[2]:
            raise TapError(f"edit at query position {max(edit.query)}, but the text has {query.shape[2]} tokens here")
        if min(edit.key) < 0 or max(edit.key) >= key.shape[2]:
            raise TapError(f"edit at key position {max(edit.key)}, but the text has {key.shape[2]} tokens here")
        if edit.heads is not None and max(edit.heads) >= query.shape[1]:
            raise TapError(f"edit of head {max(edit.heads)}, but this layer has heads 0 to {query.shape[1] - 1}")


def edge_bias(edits: Sequence[EdgeEdit], positions: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Log factors of the edits at the asked rows: [batch, head, query, key]; a cut is the lowest finite number."""
    batch, heads, keys = query.shape[0], query.shape[1], key.shape[2]
    bias = torch.zeros(batch, heads, positions.shape[1], keys, device=query.device)
    lowest = torch.finfo(bias.dtype).min
    for edit in edits:
        log_factor = lowest if edit.factor == 0 else float(torch.tensor(edit.factor).log())
        chosen = torch.zeros(heads, dtype=torch.bool, device=query.device)
        chosen[list(edit.heads) if edit.heads is not None else slice(None)] = True
        rows = torch.isin(positions[edit.item], torch.tensor(edit.query, device=query.device))
        columns = torch.zeros(keys, dtype=torch.bool, device=query.device)
        columns[list(edit.key)] = True
        where = chosen[:, None, None] & rows[None, :, None] & columns[None, None, :]
        bias[edit.item] += where * log_factor
    return bias.clamp_min(lowest)


def _refuse_empty_rows(terms: ScoreTerms, bias: Tensor, positions: Tensor, query: Tensor, key: Tensor) -> None:
    """A row whose every allowed key is cut has no softmax: refuse instead of computing a uniform row."""
    if terms.sinks is not None:
        return
    lowest = torch.finfo(bias.dtype).min
    open_keys = bias > lowest
    allowed = (
        None
        if terms.mask is not None and terms.mask.dtype != torch.bool
        else allowed_keys(terms, positions, queries=query.shape[2], keys=key.shape[2])
    )
    if allowed is not None:
        open_keys = open_keys & allowed
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
