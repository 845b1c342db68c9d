"""The textbook example 我喜欢苹果, number by number, and three questions that it raises; numpy only.

Vaswani et al. 2017, "Attention Is All You Need". The example's numbers come from a Chinese article for beginners.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from probe.errors import CijingError

Floats = NDArray[np.float64]

_NORMAL_95 = 1.959964


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionStep:
    """One query's way through scaled dot-product attention."""

    scores: Floats  # [key], query · key
    scaled: Floats  # [key], scores / √d
    weights: Floats  # [key], sum to one
    output: Floats  # [value dim]
    entropy: float  # of the weights, as a share of the uniform distribution's


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """The article's numbers: what is given, unrounded."""

    tokens: tuple[str, ...]
    target: int
    query: Floats  # [dim]
    keys: Floats  # [token, dim]
    values: Floats  # [token, dim]
    embedding: Floats  # [dim]
    position: Floats  # [dim], the article's illustration, no row of any real position table


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What the softmax makes of random queries and keys of one dimension: means over draws, 95 % intervals."""

    dim: int
    scaled: bool  # divided by √dim
    spread: tuple[float, float, float]  # mean, low, high: standard deviation of a query's scores
    largest: tuple[float, float, float]  # the largest weight
    entropy: tuple[float, float, float]  # share of the uniform distribution's
    gradient: tuple[float, float, float]  # ‖∂weights/∂scores‖, Frobenius


@dataclass(frozen=True, kw_only=True, eq=False)
class SingleMap:
    """How near one attention row comes to what several heads write together; residuals are shares of its length."""

    best: Floats  # [key], the best row of all: not negative, sums to one
    residual: float  # what the best row leaves
    mean: Floats  # [key], mean of the heads' rows
    mean_residual: float
    free: Floats  # [key], the best weights of any sign and sum
    free_residual: float


def worked_example() -> Example:
    """Give the article's example: 苹果 reads 我, 喜欢 and itself."""
    return Example(
        tokens=("我", "喜欢", "苹果"),
        target=2,
        query=np.array([0.1, 0.3, 0.9, 0.4]),
        keys=np.array([[0.9, 0.2, 0.1, 0.3], [0.4, 0.8, 0.5, 0.2], [0.2, 0.1, 0.8, 0.6]]),
        values=np.array([[0.7, 0.2, 0.1, 0.5], [0.3, 0.8, 0.6, 0.2], [0.1, 0.4, 0.9, 0.3]]),
        embedding=np.array([-0.1, 0.6, 0.8, -0.3]),
        position=np.array([0.0, 0.0, 1.0, 0.0]),
    )


def attention_step(query: ArrayLike, keys: ArrayLike, values: ArrayLike) -> AttentionStep:
    """Compute one query's attention; query [dim], keys [key, dim], values [key, value dim].

    Raises CijingError where the shapes do not fit.
    """
    q, k, v = (np.asarray(part, dtype=np.float64) for part in (query, keys, values))
    if q.ndim != 1 or k.ndim != 2 or v.ndim != 2 or k.shape[1] != len(q) or len(k) != len(v) or not len(k):
        raise CijingError(
            f"query {q.shape}, keys {k.shape}, values {v.shape}: allowed are [dim], [key, dim], [key, value dim]"
        )
    scores = k @ q
    scaled = scores / np.sqrt(len(q))
    weights = softmax(scaled)
    return AttentionStep(
        scores=scores, scaled=scaled, weights=weights, output=weights @ v, entropy=float(entropy_share(weights))
    )


def head_steps(example: Example, heads: int) -> tuple[AttentionStep, ...]:
    """Split the example into heads, each of dim / heads numbers, and compute each for itself.

    Heads share the model's dimensions among them. Raises CijingError where the dimensions cannot be shared evenly.
    """
    dim = len(example.query)
    if heads < 1 or dim % heads:
        raise CijingError(f"{heads} heads for {dim} dimensions: allowed are the divisors of {dim}")
    parts = np.split(np.arange(dim), heads)
    return tuple(attention_step(example.query[p], example.keys[:, p], example.values[:, p]) for p in parts)


def softmax(scores: ArrayLike) -> Floats:
    """Give the softmax over the last axis; a score of -inf gets exactly 0."""
    raw = np.asarray(scores, dtype=np.float64)
    powers = np.exp(raw - raw.max(axis=-1, keepdims=True))
    result: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return result


def entropy_share(weights: ArrayLike) -> Any:
    """Give the entropy over the last axis as a share of the uniform distribution's; 1 for a single key."""
    p = np.asarray(weights, dtype=np.float64)
    if p.shape[-1] == 1:
        return np.ones(p.shape[:-1])
    logs = np.log(np.where(p > 0, p, 1.0))
    return -(p * logs).sum(axis=-1) / np.log(p.shape[-1])


def sinusoidal_rows(positions: Sequence[int], dims: int) -> Floats:
    """Give the sinusoidal position vectors [position, dim] of Vaswani et al. 2017: sine and cosine by turns."""
    pair = np.arange(dims) // 2
    angles = np.asarray(positions, dtype=np.float64)[:, None] / 10000.0 ** (2 * pair / dims)
    rows: Floats = np.where(np.arange(dims) % 2 == 0, np.sin(angles), np.cos(angles))
    return rows


def softmax_growth(dims: Sequence[int], *, keys: int = 8, draws: int = 400, seed: int = 0) -> tuple[Growth, ...]:
    """Draw queries and keys with numbers of mean 0 and variance 1, and see what the softmax makes of their products.

    A product of d such numbers has the standard deviation √d: without the division the softmax hardens as d grows,
    and what it lets through of a gradient vanishes.
    """
    found = []
    for dim in dims:
        random = np.random.default_rng([seed, dim])
        query, key = random.standard_normal((draws, dim)), random.standard_normal((draws, keys, dim))
        scores = np.einsum("nd,nkd->nk", query, key)  # [draw, key]
        found += [_growth(scores / (np.sqrt(dim) if scaled else 1.0), dim, scaled=scaled) for scaled in (True, False)]
    return tuple(found)


def _growth(scores: Floats, dim: int, *, scaled: bool) -> Growth:
    p = softmax(scores)
    jacobian = np.einsum("nk,kl->nkl", p, np.eye(p.shape[1])) - p[:, :, None] * p[:, None, :]  # [draw, key, key]
    return Growth(
        dim=dim,
        scaled=scaled,
        spread=_mean_of(scores.std(axis=1, ddof=1)),
        largest=_mean_of(p.max(axis=1)),
        entropy=_mean_of(entropy_share(p)),
        gradient=_mean_of(np.linalg.norm(jacobian, axis=(1, 2))),
    )


def _mean_of(draws: Floats) -> tuple[float, float, float]:
    mean, half = float(draws.mean()), float(_NORMAL_95 * draws.std(ddof=1) / np.sqrt(len(draws)))
    return mean, mean - half, mean + half


def best_single_map(rows: ArrayLike, writes: ArrayLike) -> SingleMap:
    """Find the one attention row that comes nearest to what all heads write together.

    rows [head, key] are the heads' weights for one query, writes [head, key, model] what each head would write for a
    key with weight 1 (its value through its part of W_O). With one row p for all heads, the layer would write
    Σ_key p_key Σ_head writes; the heads write Σ_head Σ_key rows · writes. The best p is exact (non-negative least
    squares), so what it leaves is what several heads say and no single one can.
    """
    a, w = np.asarray(rows, dtype=np.float64), np.asarray(writes, dtype=np.float64)
    if a.ndim != 2 or w.ndim != 3 or w.shape[:2] != a.shape:
        raise CijingError(f"rows {a.shape}, writes {w.shape}: allowed are [head, key] and [head, key, model]")
    together, per_key = np.einsum("hk,hkm->m", a, w), w.sum(axis=0)  # [model], [key, model]
    length = float(np.linalg.norm(together))
    if length == 0.0:
        raise CijingError("the heads write nothing together: there is no direction to come near to")
    best, free = _nearest_in_hull(per_key, together), np.linalg.lstsq(per_key.T, together, rcond=None)[0]
    left = [float(np.linalg.norm(p @ per_key - together)) / length for p in (best, a.mean(axis=0), free)]
    return SingleMap(
        best=best, residual=left[0], mean=a.mean(axis=0), mean_residual=left[1], free=free, free_residual=left[2]
    )


def _nearest_in_hull(points: Floats, wanted: Floats) -> Floats:
    """The weights of the point nearest to `wanted` in the convex hull of points [key, model].

    min ‖Cᵀy‖² + (1 − Σy)² over y ≥ 0 has its solution at y = s · p with p the nearest point's weights: for a given p
    the best s leaves r² / (1 + r²), which grows with the distance r (Lawson and Hanson 1974, chapter 23).
    """
    towards = points - wanted
    size = float(np.abs(towards).max()) or 1.0
    y, _ = nnls(np.vstack([towards.T / size, np.ones(len(points))]), np.append(np.zeros(points.shape[1]), 1.0))
    weights: Floats = y / y.sum()
    return weights
