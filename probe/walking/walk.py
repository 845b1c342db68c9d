"""Attention step by step on a real model: each step by its formula, beside the model's own number for it.

Structure is found by following tensors: which norm was given which state, which columns of which linear map, turned in
which way, are the query. A form is accepted where its formula gives the model's own numbers to 1e-5; a step for which
none does is listed as not exposed, never guessed. Our numbers are float64, computed from the model's own numbers of
the step before, so each gap is the rounding of one step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from probe.capture import Progress, prepare
from probe.cases import case_of
from probe.errors import ModelError
from probe.given import callback, is_a, whole_number
from probe.labels import Layer
from probe.models import LoadedModel
from probe.routes import Route, batch_for, route_of
from probe.spans import labels_of
from probe.walking.algebra import BOUND, Floats
from probe.walking.blocktrace import trace_block
from probe.walking.embedding import embedding_steps
from probe.walking.output import closing_steps, mixed_steps, written_step
from probe.walking.projections import projection_steps, read_step, state_step
from probe.walking.scores import weight_steps
from probe.walking.way import PositionKind, Step, Way

LONGEST = 512  # tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class Walk:
    """One word's way through one layer and one head of one model."""

    model: str
    text: str
    word: str
    occurrence: int  # which one of the word's, from 1
    tokens: tuple[str, ...]  # slices of the text, names of special tokens
    target: int  # the token that is followed: the word's last
    places: tuple[int, ...]  # all tokens of the word
    covers: str  # the text that these tokens carry, which may be more than the word
    layer: Layer
    head: int
    heads: int
    head_size: int  # how many numbers a head gives
    width: int  # how many numbers a state has
    kv_head: int  # the key head that the head reads
    depth: tuple[int, ...]  # every layer that could have been asked
    position: PositionKind
    steps: tuple[Step, ...]
    rows: Floats  # [head, key], the target's weights in every head of the layer
    writes: Floats | None  # [head, key, model], what each head writes for a key with weight 1; None if not exposed

    @property
    def equal(self) -> tuple[Step, ...]:
        """Steps whose formula gives the model's own numbers within 1e-5."""
        return tuple(step for step in self.steps if step.form != "given" and step.gap is not None and step.gap <= BOUND)

    @property
    def listed(self) -> tuple[Step, ...]:
        """Steps that the family does not expose, each with the reason."""
        return tuple(step for step in self.steps if step.missing)


def walk(
    loaded: LoadedModel,
    text: str,
    *,
    target: str,
    layer: int | None = None,
    head: int = 0,
    occurrence: int = 1,
    cut_to_fit: bool = False,
    route: Route | None = None,
    progress: Progress | None = None,
) -> Walk:
    """Follow one word through one layer and head; layer None takes the middle one.

    A word cut into several tokens is followed at its last. Of an encoder-decoder the encoder is walked through.
    progress counts three stages. Raises ModelError for a layer or head that is not there, for a model that is not
    float32 and for a family that cannot be followed, CasesError for a word that the text does not have.
    """
    head = whole_number(head, "head", error=ModelError)
    layer = None if layer is None else whole_number(layer, "layer", error=ModelError)
    callback(progress, "progress", error=ModelError)
    if route is not None:
        is_a(route, Route, "route", wanted="what route_of(loaded) gives, or None", error=ModelError)
    (item,) = prepare(loaded, [case_of(text, target=target, occurrence=occurrence)], cut=cut_to_fit)
    if loaded.dtype != torch.float32:
        raise ModelError(f"{loaded.name} is {str(loaded.dtype).removeprefix('torch.')}: the walk compares in float32")
    if len(item.tokens.ids) > LONGEST:
        raise ModelError(f"the text has {len(item.tokens.ids)} tokens; the walk takes at most {LONGEST}")
    tell = progress or (lambda done, total: None)
    tell(0, 3)
    route = route or route_of(loaded)
    tell(1, 3)
    stack = "encoder" if loaded.kind == "encoder-decoder" else loaded.kind
    layers = {found.index: found for found in route.layers if found.stack == stack}
    depth = tuple(sorted(layers))
    chosen = depth[len(depth) // 2] if layer is None else layer
    if chosen not in layers:
        raise ModelError(f"{loaded.name} has no attention layer {chosen}; it has {_ranges(depth)}")
    if not 0 <= head < route.heads:
        raise ModelError(f"{loaded.name} has no head {head}; it has 0 to {route.heads - 1}")
    trace = trace_block(loaded, route, batch_for(loaded, [item.tokens.ids]), layers[chosen])
    if trace.handed is None:
        raise ModelError(
            f"{loaded.name} cannot be walked through: its scores hold more than query · key, one bias and a mask "
            f"({route.reason})"
        )
    tell(2, 3)
    way = Way(
        loaded=loaded,
        trace=trace,
        labels=item.tokens.labels,
        ids=item.tokens.ids,
        target=item.target[-1],
        head=head,
    )
    rows, writes = _follow(way)
    tell(3, 3)
    return Walk(
        model=loaded.name, text=item.tokens.text, word=target, occurrence=occurrence, tokens=way.labels,
        target=way.target, places=item.target, covers=labels_of([np.array(item.target)], item.tokens)[0],
        layer=layers[chosen], head=head, heads=route.heads, head_size=way.handed.value.shape[2],
        width=trace.block.given[0].shape[-1], kv_head=way.kv_head, depth=depth, position=way.position,
        steps=tuple(way.steps), rows=rows, writes=writes,
    )  # fmt: skip


def _ranges(numbers: Sequence[int]) -> str:
    whole = list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))


def _follow(way: Way) -> tuple[Floats, Floats | None]:
    embedding_steps(way)
    state = state_step(way)
    source = read_step(way, state)
    projection_steps(way, source)
    rows = weight_steps(way)
    mixed_steps(way, rows)
    written, writes = written_step(way)
    closing_steps(way, state, written)
    return rows, writes
