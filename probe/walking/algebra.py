"""The forms that families give to norms, rotations and fused projections, each as a formula to be tried; numpy only.

A form counts as found where its formula gives the model's own numbers; nothing is concluded from a name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
BOUND = 1e-5  # of the largest number, where that is above 1


def gap(ours: ArrayLike, own: ArrayLike) -> float:
    """Give the largest difference, as a share of the model's largest number where that is above 1.

    Where the model has -inf (a masked key) ours must have it too. Shapes that do not fit give inf.
    """
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(own, dtype=np.float64)
    if a.shape != b.shape or not a.size:
        return float("inf")
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)):
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.abs(a[finite] - b[finite]).max() / max(1.0, np.abs(b[finite]).max()))


def agrees(ours: ArrayLike, own: ArrayLike) -> bool:
    """Tell whether ours equals the model's own within BOUND."""
    return gap(ours, own) <= BOUND


def norm_forms(x: ArrayLike, weight: ArrayLike | None, bias: ArrayLike | None, eps: float) -> Iterator[tuple[str, Any]]:
    """Give each form of a norm over the last axis with its result: (form, numbers)."""
    given = np.asarray(x, dtype=np.float64)
    scale: Any = 1.0 if weight is None else np.asarray(weight, dtype=np.float64)
    shift: Any = 0.0 if bias is None else np.asarray(bias, dtype=np.float64)
    centred = given - given.mean(axis=-1, keepdims=True)
    layer = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    rms = given / np.sqrt((given**2).mean(axis=-1, keepdims=True) + eps)
    yield "layer_norm", layer * scale + shift
    yield "rms_norm", rms * scale + shift
    if weight is not None:
        yield "rms_norm_one", rms * (1.0 + scale) + shift  # Gemma stores the weight's difference from one


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """A rotary turn that was tried: its form, what comes out, and one angle for each pair of numbers."""

    form: str
    turned: Floats  # [head, token, dim]
    cos: Floats  # [token, pair]
    sin: Floats  # [token, pair]

    @property
    def start(self) -> int:
        """The first number that is turned."""
        return self.turned.shape[-1] - 2 * self.cos.shape[-1] if self.form.endswith("last") else 0

    @property
    def first_pair(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The places of the first pair, before and after the turn."""
        halves, neighbours = ((self.start, self.start + step) for step in (self.cos.shape[-1], 1))
        before = halves if self.form.startswith("halves") else neighbours
        return before, halves if self.form.startswith("neighbours_sorted") else before


def rotation_forms(x: ArrayLike, cos: ArrayLike, sin: ArrayLike) -> Iterator[Turn]:
    """Give each form of a rotary position turn of x [head, token, dim] by cos and sin [token, angles].

    Pairs are halves (i, i + r / 2) or neighbours (2i, 2i + 1); the turned part is the first or the last r numbers.
    Su et al. 2021, "RoFormer".
    """
    given, c, s = (np.asarray(part, dtype=np.float64) for part in (x, cos, sin))
    width, dim = c.shape[-1], given.shape[-1]
    if 2 * width <= dim:  # one angle for each pair
        yield from _turned_parts(given, c, s)
    if width <= dim and width % 2 == 0:  # each angle twice, one half after the other or side by side
        yield from _turned_parts(given, c[:, : width // 2], s[:, : width // 2])
        yield from _turned_parts(given, c[:, ::2], s[:, ::2])


def _turned_parts(x: Floats, cos: Floats, sin: Floats) -> Iterator[Turn]:
    turned, dim = 2 * cos.shape[-1], x.shape[-1]
    places = {"first": slice(0, turned), "last": slice(dim - turned, dim)} if turned < dim else {"all": slice(0, dim)}
    for place, part in places.items():
        for pairs, rotated in _turned(x[..., part], cos, sin):
            result = x.copy()
            result[..., part] = rotated
            yield Turn(form=f"{pairs}_{place}", turned=result, cos=cos, sin=sin)


def _turned(x: Floats, cos: Floats, sin: Floats) -> Iterator[tuple[str, Floats]]:
    half = x.shape[-1] // 2
    one, other = x[..., :half], x[..., half:]
    yield "halves", np.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)
    even, odd = x[..., ::2], x[..., 1::2]
    first, second = even * cos - odd * sin, odd * cos + even * sin
    yield "neighbours", np.stack([first, second], axis=-1).reshape(x.shape)
    yield "neighbours_sorted", np.concatenate([first, second], axis=-1)


def angle_tables(arrays: Iterator[Any] | tuple[Any, ...], tokens: int) -> Iterator[tuple[Floats, Floats]]:
    """Give the pairs (cos, sin) [token, angles] among arrays: two tables whose squares add up to one number."""
    tables = []
    for given in arrays:
        array = given.reshape(given.shape[-2:]) if given.ndim > 2 and given.size == np.prod(given.shape[-2:]) else given
        if array.ndim == 2 and array.shape[0] == tokens and array.dtype.kind == "f":
            tables.append(array.astype(np.float64))
        elif array.ndim == 2 and array.shape[0] == tokens and array.dtype.kind == "c":
            yield array.real.astype(np.float64), array.imag.astype(np.float64)
    halves = [np.split(table, 2, axis=1) for table in tables if table.shape[1] % 2 == 0]
    for sines, cosines in halves:  # RoFormer keeps both in one table
        if np.allclose(sines**2 + cosines**2, 1.0, atol=1e-5):
            yield cosines, sines
    for place, one in enumerate(tables):
        for other in tables[place + 1 :]:
            if one.shape == other.shape:
                squares = one**2 + other**2
                if squares.min() > 0 and np.ptp(squares) <= 1e-4 * squares.max():
                    yield one, other
                    yield other, one


def angles_by_formula(positions: int, width: int, base: float) -> Floats:
    """Give the rotary angles [token, width]: position / base^(i / width) for the i-th pair."""
    rates = base ** (-np.arange(width) / width)
    angles: Floats = np.arange(positions)[:, None] * rates
    return angles


def column_layouts(width: int, *, part: int, heads: int, kv_heads: int, dim: int, value_dim: int) -> Iterator[Any]:
    """Give the ways in which a projection's columns may hold the query (part 0), key (1) or value (2) of each head.

    Yields (form, columns [head, dim]). Forms: alone; one after the other; head by head; groups of query heads with
    their key and value; at the start or at the end of each head's share.
    """
    own = kv_heads if part else heads
    size = value_dim if part == 2 else dim
    grid = np.arange(own * size).reshape(own, size)
    if width == own * size:
        yield "alone", grid
    sizes = (heads * dim, kv_heads * dim, kv_heads * value_dim)
    if width == sum(sizes):
        yield "fused_parts", grid + sum(sizes[:part])
    if width == heads * 3 * dim and heads == kv_heads and dim == value_dim:
        yield "fused_heads", np.arange(width).reshape(heads, 3, dim)[:, part]
    if width == (heads + 2 * kv_heads) * dim and dim == value_dim:
        groups = np.arange(width).reshape(kv_heads, heads // kv_heads + 2, dim)
        yield "fused_groups", (groups[:, :-2].reshape(heads, dim), groups[:, -2], groups[:, -1])[part]
    if width % own == 0 and width // own > size:
        shares = np.arange(width).reshape(own, -1)
        yield "start_of_share", shares[:, :size]
        yield "end_of_share", shares[:, -size:]


def relative_buckets(distances: ArrayLike, *, buckets: int, furthest: int, both_ways: bool) -> NDArray[np.int64]:
    """Give T5's bucket of each distance key − query: near ones have their own, far ones share by their logarithm.

    Raffel et al. 2020.
    """
    away = np.asarray(distances, dtype=np.int64)
    start, near = np.zeros_like(away), buckets
    if both_ways:
        near //= 2
        start = np.where(away > 0, near, 0)
        away = np.abs(away)
    else:
        away = np.maximum(-away, 0)
    exact = near // 2
    with np.errstate(divide="ignore"):
        far = exact + (np.log(away / exact) / np.log(furthest / exact) * (near - exact)).clip(-1e6, 1e6)
    shared = np.minimum(far.astype(np.int64), near - 1)
    found: NDArray[np.int64] = start + np.where(away < exact, away, shared)
    return found


def alibi_slopes(heads: int) -> Floats:
    """Give ALiBi's slope of each head: 2^(−8 i / n) (Press et al. 2022).

    For other numbers than powers of two: those of the next lower one, then every other one of the next higher.
    """
    lower = 2 ** int(np.floor(np.log2(heads)))
    slopes = 2.0 ** (-8.0 * np.arange(1, lower + 1) / lower)
    more = 2.0 ** (-4.0 * np.arange(1, 2 * (heads - lower) + 1, 2) / lower)
    result: Floats = np.concatenate([slopes, more])
    return result
