"""One attention row, computed: from the query and key that a layer has to the weights of chosen queries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# In half precision keys become float32 for the product; all of a long text's at once would be a copy twice their size.
_KEYS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class ScoreTerms:
    """All that turns query · key into scores in one attention call, as the layer handed it over."""

    scaling: float
    mask: Tensor | None  # bool (True = attend) or additive float, [batch or 1, 1 or head, query, key]
    causal: bool  # only where mask is None
    position_bias: Tensor | None  # additive, [batch or 1, head, query, key]
    softcap: float | None
    sinks: Tensor | None  # [head], one logit that takes part in the softmax and is dropped


def attention_rows(
    query: Tensor,
    key: Tensor,
    terms: ScoreTerms,
    positions: Tensor,
    *,
    extra: Tensor | None = None,
    heads: Sequence[int] | None = None,
) -> Tensor:
    """Attention rows of the queries at `positions`: [batch, head, query, key], fp32; of `heads` only, where given.

    query [batch, head, query, dim] and key [batch, kv head, key, dim] as the layer has them, rotation and norms
    applied; query head h reads key head h // (heads / kv heads). positions [batch, query]; `extra` is added to the
    scores last (an edit's log factors), [batch, head, query, key].
    """
    scores = _scores(query, key, terms, positions, heads)
    if extra is not None:
        scores = scores + _of_heads(extra, heads)
    if terms.sinks is None:
        return scores.softmax(-1)
    sinks = terms.sinks if heads is None else terms.sinks[list(heads)]
    sink = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


def _scores(query: Tensor, key: Tensor, terms: ScoreTerms, positions: Tensor, heads: Sequence[int] | None) -> Tensor:
    keys = key.shape[2]
    scores = _products(query, key, positions, heads) * terms.scaling
    if terms.softcap is not None:
        scores = terms.softcap * torch.tanh(scores / terms.softcap)
    if terms.position_bias is not None:
        scores = scores + _of_heads(_rows_at(terms.position_bias, positions, keys), heads).float()
    if terms.mask is not None and terms.mask.dtype != torch.bool:
        return scores + _of_heads(_rows_at(terms.mask, positions, keys), heads).float()
    allowed = allowed_keys(terms, positions, queries=query.shape[2], keys=keys)
    if allowed is None:
        return scores
    # finfo.min rather than -inf: a row without any allowed key (a pad query) stays finite, and so does its gradient.
    return scores.masked_fill(~_of_heads(allowed, heads), torch.finfo(scores.dtype).min)


def _products(query: Tensor, key: Tensor, positions: Tensor, heads: Sequence[int] | None) -> Tensor:
    """Query · key of the asked rows, [batch, head, query, key], fp32; the keys are neither repeated nor copied."""
    batch, all_heads, _, dim = query.shape
    index = positions[:, None, :, None].expand(batch, all_heads, positions.shape[1], dim)
    asked = query.gather(2, index).float()  # [batch, head, query, dim]
    if heads is None:
        # Groups of query heads share a key head: fold them into the query axis instead of repeating the keys.
        folded = asked.reshape(batch * key.shape[1], -1, dim)
        return _times_keys(folded, key.flatten(0, 1)).view(batch, all_heads, -1, key.shape[2])
    group = all_heads // key.shape[1]
    return torch.stack([_times_keys(asked[:, head], key[:, head // group]) for head in heads], dim=1)


def _times_keys(asked: Tensor, key: Tensor) -> Tensor:
    """[item, query, dim] times [item, key, dim] along dim."""
    # Transposed last: matmul on a key that was transposed and then flattened copies it (a third of the speed).
    if key.dtype == torch.float32:
        return torch.bmm(asked, key.transpose(1, 2))
    blocks = torch.split(key, _KEYS_AT_ONCE, dim=1)
    return torch.cat([torch.bmm(asked, block.float().transpose(1, 2)) for block in blocks], dim=-1)


def _of_heads(grid: Tensor, heads: Sequence[int] | None) -> Tensor:
    """A [batch, 1 or head, query, key] grid of some heads."""
    return grid if heads is None or grid.shape[1] == 1 else grid[:, list(heads)]


def allowed_keys(terms: ScoreTerms, positions: Tensor, *, queries: int, keys: int) -> Tensor | None:
    """Which keys each asked query may see, [batch, 1 or head, query, key]; None where it may see all."""
    if terms.mask is not None:
        return _rows_at(terms.mask, positions, keys)
    if not terms.causal or queries == 1:
        return None
    # As SDPA computes it without a mask: query i sees keys 0 to i, also in front of an empty static cache.
    return (torch.arange(keys, device=positions.device) <= positions[:, :, None])[:, None]


def _rows_at(grid: Tensor, positions: Tensor, keys: int) -> Tensor:
    """Rows of a [batch or 1, 1 or head, query or 1, key] grid at positions: [batch, 1 or head, query, key]."""
    grid = grid[..., :keys]
    if grid.shape[2] == 1:
        return grid.expand(positions.shape[0], -1, positions.shape[1], -1)
    items = (
        torch.arange(positions.shape[0], device=grid.device) if grid.shape[0] > 1 else torch.zeros_like(positions[:, 0])
    )
    return grid[items[:, None], :, positions].transpose(1, 2)


def terms_of(terms: ScoreTerms, items: Tensor) -> ScoreTerms:
    """The terms of some texts of the batch; what all texts share stays as it is."""

    def chosen(grid: Tensor | None) -> Tensor | None:
        return grid if grid is None or grid.shape[0] == 1 else grid[items]

    return replace(terms, mask=chosen(terms.mask), position_bias=chosen(terms.position_bias))


def additive_mask(terms: ScoreTerms, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask as eager functions want it: 0 where allowed, the dtype's lowest number elsewhere."""
    if terms.mask is not None and terms.mask.dtype != torch.bool:
        return terms.mask
    positions = torch.arange(query.shape[2], device=query.device)[None]
    allowed = (
        terms.mask
        if terms.mask is not None
        else allowed_keys(terms, positions, queries=query.shape[2], keys=key.shape[2])
    )
    if allowed is None:
        return None
    return torch.zeros(allowed.shape, dtype=query.dtype, device=query.device).masked_fill(
        ~allowed, torch.finfo(query.dtype).min
    )
