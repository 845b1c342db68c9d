"""The walk through the softmax: scores, scaling, softcap, bias, mask, weights, sink."""

from typing import Any

import numpy as np
import torch

from probe.rows import ScoreTerms, allowed_keys
from probe.walking import algebra
from probe.walking.algebra import BOUND, Floats, agrees, gap
from probe.walking.blocktrace import PRODUCTS
from probe.walking.modulemath import numbers_of
from probe.walking.way import Way
from probe.worked import softmax


def weight_steps(way: Way) -> Floats:
    """Scores, scaling, softcap, bias, mask, softmax, sink; gives the weights of every head [head, key]."""
    h, terms, t = way.handed, way.handed.terms, way.target
    group = h.query.shape[0] // h.key.shape[0]
    keys = np.repeat(h.key, group, axis=0).astype(np.float64)  # [head, key, dim]
    scores = np.einsum("hd,hkd->hk", h.query[:, t].astype(np.float64), keys)
    facts: dict[str, str | int] = {"d": h.query.shape[2], "c": f"{terms.scaling:.6g}"}
    _grid_step(way, "scores", scores, tuple(name for name in PRODUCTS if name != "baddbmm"), facts=facts)
    current = scores * terms.scaling
    _grid_step(way, "scaled", current, (), form=_scaling_form(terms.scaling, h.query.shape[2]), facts=facts)
    if terms.softcap is not None:
        current = terms.softcap * np.tanh(current / terms.softcap)
        _grid_step(way, "softcap", current, (), form="capped", facts={"c": f"{terms.softcap:g}"})
    if terms.position_bias is not None:
        bias = _over_heads(terms.position_bias, t, scores.shape)
        _bias_row(way, bias[way.head])
        current = current + bias
        _grid_step(way, "biased", current, ())
    allowed, added = _mask_row(terms, t, way.count, scores.shape)
    current = np.where(allowed, current + added, -np.inf)
    _mask_step(way, allowed[way.head])
    _masked_step(way, current)
    weights, sink = _softmax(current, terms)
    own = _grid(way, weights, ("softmax",))
    kept = None if own is None else own[way.head]
    more = () if sink is None else ("sink",)
    way.add("weights", weights[way.head], kept, columns=way.labels, terms=more, **_held(kept))
    if sink is not None:
        way.add("sink", sink[way.head], None if own is None else 1.0 - own[way.head].sum(), **_held(own))
    return weights


def _scaling_form(scaling: float, dim: int) -> str:
    if abs(scaling * dim**0.5 - 1.0) < 1e-6:
        return "by_root"
    return "by_one" if scaling == 1.0 else "by_number"


def _bias_row(way: Way, own: Floats) -> None:
    """A bias by T5's buckets or by ALiBi's slopes; where neither gives the model's row, it is taken as given."""
    distances, config = np.arange(way.count) - way.target, way.loaded.backbone.config
    heads = way.handed.query.shape[0]
    buckets = getattr(config, "relative_attention_num_buckets", 0)
    for table in way.loaded.backbone.modules():
        if isinstance(table, torch.nn.Embedding) and tuple(table.weight.shape) == (buckets, heads):
            furthest = int(getattr(config, "relative_attention_max_distance", 128))
            for both_ways in (True, False):
                places = algebra.relative_buckets(distances, buckets=buckets, furthest=furthest, both_ways=both_ways)
                ours = numbers_of(table.weight)[places, way.head]
                if agrees(ours, own):
                    way.position = "relative_bias"
                    way.add("bias_row", ours, own, columns=way.labels, form="buckets")
                    return
    slope = algebra.alibi_slopes(heads)[way.head]
    shifted = own - own[way.target]  # a softmax does not notice a number that is added to all, so the word is at 0
    if agrees(slope * distances, shifted):
        way.position = "alibi"
        way.add("bias_row", slope * distances, shifted, columns=way.labels, form="alibi")
        return
    way.position = "relative_bias"
    way.add("bias_row", None, own, columns=way.labels, missing="other_bias")


def _mask_step(way: Way, own: Any) -> None:
    """The keys that the word may see: all, those up to itself, or those within a window."""
    away = np.arange(way.count) - way.target
    window = getattr(way.loaded.backbone.config, "sliding_window", None)
    local = getattr(way.loaded.backbone.config, "local_attention", None)
    forms = {"causal": away <= 0, "all": away == away}
    if not way.causal:
        forms = {"all": away == away, **forms}
    if isinstance(window, int):
        forms["causal_window"] = (away <= 0) & (away > -window)
    if isinstance(local, int):
        forms["window"] = np.abs(away) <= local // 2
    form = next((name for name, allowed in forms.items() if np.array_equal(allowed, own)), None)
    ours = None if form is None else forms[form]
    way.add("mask", ours, own, columns=way.labels, form=form or "", missing="" if form else "other_mask")


def _masked_step(way: Way, ours: Floats) -> None:
    """The scores that go into the softmax: −inf where a key is hidden, which families write as a huge negative."""
    calls = way.trace.grids
    end = next((place for place, call in enumerate(calls) if call.name == "softmax"), len(calls))
    held = [call.result for call in calls[:end]] + [array for call in calls[end : end + 1] for array in call.given]
    rows = [row for array in held if (row := _of_target(array, way, ours.shape)) is not None]
    hidden = [np.where(row > np.finfo(np.float32).min / 2, row, -np.inf) for row in rows]
    own = min(hidden, key=lambda row: gap(ours, row), default=None)
    found = own is not None and gap(ours, own) <= BOUND
    count = int(np.isneginf(ours[way.head]).sum())
    way.add(
        "masked", ours[way.head], own[way.head] if own is not None and found else None, columns=way.labels,
        form="hidden" if count else "none_hidden", facts={"count": count}, missing="" if found else "not_held",
    )  # fmt: skip


def _softmax(scores: Floats, terms: ScoreTerms) -> tuple[Floats, Floats | None]:
    if terms.sinks is None:
        return softmax(scores), None
    logits = terms.sinks.detach().float().cpu().numpy().astype(np.float64)[:, None]
    both = softmax(np.concatenate([scores, logits], axis=1))
    return both[:, :-1], both[:, -1]


def _mask_row(terms: ScoreTerms, target: int, count: int, shape: tuple[int, ...]) -> tuple[Any, Floats]:
    """Which keys the target may see [head, key], and what a float mask adds."""
    nothing = np.zeros(shape)
    if terms.mask is not None and terms.mask.dtype != torch.bool:
        row = _over_heads(terms.mask, target, shape)
        seen = row > torch.finfo(torch.float32).min / 2
        return seen, np.where(seen, row, 0.0)
    place = torch.tensor([[target]], device=None if terms.mask is None else terms.mask.device)
    allowed = allowed_keys(terms, place, queries=count, keys=count)
    if allowed is None:
        return np.ones(shape, dtype=bool), nothing
    return np.broadcast_to(allowed[0, :, 0].cpu().numpy(), shape), nothing


def _over_heads(grid: torch.Tensor, target: int, shape: tuple[int, ...]) -> Floats:
    """One query's row of a [1, 1 or head, query or 1, key] grid, for every head."""
    rows = grid.detach().float().cpu().numpy()[0].astype(np.float64)  # [1 or head, query or 1, key]
    return np.broadcast_to(rows[:, min(target, rows.shape[1] - 1), : shape[1]], shape)


def _grid_step(way: Way, name: str, ours: Floats, functions: tuple[str, ...], **more: Any) -> None:
    own = _grid(way, ours, functions)
    kept = None if own is None else own[way.head]
    way.add(name, ours[way.head], kept, columns=way.labels, **more, **_held(kept))


def _held(own: Any) -> dict[str, str]:
    return {"missing": "fused_product"} if own is None else {}


def _grid(way: Way, ours: Floats, functions: tuple[str, ...]) -> Any:
    """The target's rows [head, key] of the model's own eager grid that comes nearest to ours.

    Named functions give the one meant; in between, the family writes its operations as it likes, and where none of its
    grids comes within the bound it does not hold this step by itself.
    """
    calls = way.trace.grids
    if "softmax" not in functions:
        end = next((place for place, call in enumerate(calls) if call.name == "softmax"), len(calls))
        calls = calls[:end]
    grids = [_of_target(call.result, way, ours.shape) for call in calls if not functions or call.name in functions]
    found = sorted((gap(ours, grid), place) for place, grid in enumerate(grids) if grid is not None)
    if not found or (not functions and found[0][0] > BOUND):
        return None
    return grids[found[0][1]]


def _of_target(array: Any, way: Way, shape: tuple[int, ...]) -> Any:
    if array.ndim != 3 or array.shape[0] != shape[0] or array.shape[1] != way.count:
        return None
    return array[:, way.target, : shape[1]].astype(np.float64)
