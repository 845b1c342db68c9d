"""Rows of the many calls of one `generate`, put at their true positions in one (row, key) matrix a head."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.edits import Stack
from probe.errors import TapError
from probe.labels import Layer
from probe.rowrequest import RowRequest


@dataclass(frozen=True, kw_only=True, eq=False)
class RowPlan:
    """Which rows are to be had, and how much room they take."""

    name: str  # of the model
    own: tuple[Layer, ...]  # self-attention layers
    cross: tuple[Layer, ...]
    heads: tuple[int, ...]
    queries: tuple[int, ...]  # ascending
    keys: int
    source_keys: int

    @property
    def stacks(self) -> frozenset[Stack]:
        """Which stacks the layers belong to."""
        return frozenset(layer.stack for layer in (*self.own, *self.cross))

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        cells = len(self.own) * self.keys + len(self.cross) * self.source_keys
        return 4 * cells * len(self.heads) * len(self.queries)


class Stitching(RowRequest):
    """Puts the rows of each call of one `generate` at their true positions; keeps no copy of the calls."""

    def __init__(self, plan: RowPlan, *, windows: frozenset[int]) -> None:
        indices = {layer.index for layer in (*plan.own, *plan.cross)}
        super().__init__(layers=indices, stacks=plan.stacks, heads=plan.heads, every_call=True)
        self.plan = plan
        self.windows = windows
        self.wanted = np.array(plan.queries)
        self.read: dict[Layer, int] = {}  # tokens that have passed through a layer
        self.length = 0  # tokens of the current call
        self.here = slice(0)  # the current call's rows in the matrix
        self.own, self.across = room_for(plan)

    def positions_in(self, layer: Layer, query: Tensor) -> Tensor:
        """Positions in this call of the rows that are wanted, counted on from the calls before."""
        if query.shape[0] != 1:
            raise TapError(f"{self.plan.name} generates {query.shape[0]} texts at once; rows can be stitched of one")
        self.length = query.shape[2]
        start = self.read.get(layer, 0)
        self.read[layer] = stop = start + self.length
        low, high = np.searchsorted(self.wanted, [start, stop]).tolist()
        self.here = slice(low, high)
        return torch.from_numpy(self.wanted[low:high] - start).to(query.device)[None]

    def keep(self, layer: Layer, rows: Tensor) -> None:
        """Place the rows of one call, [batch, head, query, key], under the keys' true positions."""
        if layer in self.plan.cross:
            self.across[self.plan.cross.index(layer), :, self.here] = self._on_source(layer, rows)
            return
        if layer not in self.plan.own:
            raise TapError(f"{layer.module} attends while {self.plan.name} generates, but not in a plain pass")
        stop, width = self.read[layer], rows.shape[3]
        first = max(stop - width, 0)  # the oldest key that a window has not dropped
        if first and width - self.length + 1 not in self.windows:
            raise TapError(
                f"{layer.module} sees {width} of {stop} tokens, which is none of the model's windows "
                f"({', '.join(map(str, sorted(self.windows))) or 'it has none'}): where they stand cannot be told"
            )
        given = rows[0].cpu().numpy()  # [head, query, key]
        if given[..., stop - first :].any():
            raise TapError(f"{layer.module} gives weight to places of its cache that hold no token yet")
        self.own[self.plan.own.index(layer), :, self.here, first:stop] = given[..., : stop - first]

    def _on_source(self, layer: Layer, rows: Tensor) -> NDArray[np.float32]:
        if rows.shape[3] != self.plan.source_keys:
            raise TapError(f"{layer.module} sees {rows.shape[3]} places, but the source has {self.plan.source_keys}")
        given: NDArray[np.float32] = rows[0].cpu().numpy()
        return given


def room_for(plan: RowPlan) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Room for the rows of self and cross attention, [layer, head, row, key]; the system gives it as it is filled."""
    shape = (len(plan.heads), len(plan.queries))
    own = np.zeros((len(plan.own), *shape, plan.keys), dtype=np.float32)
    return own, np.zeros((len(plan.cross), *shape, plan.source_keys), dtype=np.float32)


def check_calls(stitching: Stitching, length: int, *, device: torch.device) -> None:
    """TapError unless every layer saw each of `length` tokens once: other ways to generate leave other traces.

    On accelerators transformers looks one step late whether the answer has ended, and throws the last pass away.
    """
    ended_early = length + 1 < stitching.plan.keys
    allowed = {length, length + 1} if ended_early and device.type != "cpu" else {length}
    for layer in (*stitching.plan.own, *stitching.plan.cross):
        seen = stitching.read.get(layer, 0)
        if seen not in allowed:
            raise TapError(
                f"{layer.module} saw {seen} tokens, but the answer comes from {length}: not one row of tokens"
            )


def refuse_future(name: str, rows: NDArray[np.float32], queries: Sequence[int]) -> None:
    """Refuse rows that see tokens after their own: such a model's prompt is read anew with every answer."""
    for place, position in enumerate(queries):
        if rows[:, :, place, position + 1 :].any():
            raise TapError(f"{name}: the row of token {position} sees later tokens, so rows cannot be stitched")
