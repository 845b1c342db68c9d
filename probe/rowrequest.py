"""Which rows one forward pass shall give, which edits it shall make, and what came of it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from probe.edits import EdgeEdit, Edit, HeadEdit, Stack, numbers_or_all, stacks_or_all
from probe.errors import TapError
from probe.given import callback, shown, whole_numbers
from probe.labels import Layer
from probe.projection import Handed, is_handed, written
from probe.rows import ScoreTerms

_LONGEST = 2**40  # tokens
_FROM_0: Any = {"least": 0, "error": TapError}


class RowRequest:
    """Which rows one forward pass shall give, which edits it shall make, and what came of it.

    A plain opaque object on purpose: torch's casting helpers and device maps copy dataclasses, dicts and lists, and
    what is collected into the copy is lost. One request serves one forward pass, or, with `every_call`, one
    `generate`, whose calls are kept one after another.

    queries: token positions for each batch item, the padding of the batch counted; None takes every row of every call.
    layers, stacks, heads: what to read; None reads all, no layers nothing (for edits alone), and heads come in
    ascending order. Edits have filters of their own. Raises TapError for what is not of these kinds and, when the pass
    runs, for layers, stacks and heads that the model does not have.
    value_norms, transformed_norms, head_outputs: norms of value vectors, the same through W_O, and what each head
    writes; the last two follow attention's output to W_O, so they need `tap`, and refuse families that put a gate or
    a norm between. They carry no gradient.
    on_layer: called with each layer's label as soon as it is done, so that a long pass can say how far it is.
    """

    def __init__(
        self,
        queries: Sequence[Sequence[int]] | None = None,
        *,
        layers: Iterable[int] | None = None,
        stacks: Iterable[Stack] | None = None,
        heads: Iterable[int] | None = None,
        edits: Sequence[Edit] = (),
        value_norms: bool = False,
        transformed_norms: bool = False,
        head_outputs: bool = False,
        every_call: bool = False,
        inspect: "Callable[[AttentionCall], None] | None" = None,
        on_layer: Callable[[Layer], None] | None = None,
    ) -> None:
        self.queries = None if queries is None else _padded(queries)  # [batch, query]
        # Taken here, on the CPU: in every layer it would wait for the device.
        self.highest = -1 if self.queries is None else int(self.queries.max())
        self.layers = None if layers is None else frozenset(whole_numbers(layers, "layers", **_FROM_0))
        self.stacks = stacks_or_all(stacks)
        asked = numbers_or_all(heads, "heads")
        self.heads = None if asked is None else tuple(sorted(asked))
        self.edits = _checked_edits(edits)
        self.wants_value_norms = value_norms
        self.wants_transformed_norms = transformed_norms
        self.wants_head_outputs = head_outputs
        self.every_call = every_call
        self.inspect = callback(inspect, "inspect", error=TapError)
        self.on_layer = callback(on_layer, "on_layer", error=TapError)
        self.calls: dict[Layer, list[Tensor]] = {}
        self.value_norms: dict[Layer, Tensor] = {}  # [batch, asked head, key]
        self.transformed_norms: dict[Layer, Tensor] = {}  # of value vectors through W_O, [batch, asked head, key]
        self.head_outputs: dict[Layer, Tensor] = {}  # of the latest call through W_O, [batch, asked head, query, model]
        self.follows = False
        self.handed: tuple[Layer, Handed] | None = None
        self.seen: set[Layer] = set()

    @property
    def rows(self) -> Mapping[Layer, Tensor]:
        """Rows of the latest call by layer, fp32, taken before dropout and after edits: [batch, head, query, key].

        A query axis shorter than the longest of the batch is filled with repeats of its first position.
        """
        if not self.seen:
            raise TapError(
                "no attention came through this request yet: run the model within tap(model, request), or with "
                "rows=request within attached(model)"
            )
        return {layer: calls[-1] for layer, calls in self.calls.items()}

    def check_layers(self, *, indices: Collection[int], stacks: Collection[Stack]) -> None:
        """TapError where layers or stacks are read or edited that are not among these."""
        for what in (self, *self.edits):
            of_what = "" if what is self else "edit of "
            wrong = sorted((what.layers or frozenset()) - set(indices))
            if wrong:
                known = ", ".join(map(str, sorted(index for index in indices if index >= 0)))
                raise TapError(f"{of_what}layer {wrong[0]}: this model has attention layers {known}")
            if what.stacks is not None and not what.stacks & set(stacks):
                raise TapError(f"{of_what}stacks {', '.join(sorted(what.stacks))}: this model has {', '.join(stacks)}")

    def reads(self, layer: Layer) -> bool:
        """Whether rows of this layer are asked for."""
        return (self.layers is None or layer.index in self.layers) and (
            self.stacks is None or layer.stack in self.stacks
        )

    def positions_in(self, layer: Layer, query: Tensor) -> Tensor:
        """Positions in this call of the layer whose rows are asked, [batch, query]; query [batch, head, query, dim]."""
        batch, queries = query.shape[0], query.shape[2]
        if self.queries is None:
            return torch.arange(queries, device=query.device).expand(batch, queries)
        if len(self.queries) != batch:
            raise TapError(f"the request has queries for {len(self.queries)} texts, the batch has {batch}")
        if self.highest >= queries:
            raise TapError(f"query position {self.highest} asked, but the text has tokens 0 to {queries - 1} here")
        self.queries = self.queries.to(query.device)  # moved once, not for every layer
        return self.queries

    def edits_of(self, layer: Layer) -> tuple[Edit, ...]:
        """The edits that touch this layer."""
        return tuple(
            edit
            for edit in self.edits
            if (edit.layers is None or layer.index in edit.layers)
            and (edit.stacks is None or layer.stack in edit.stacks)
        )

    def place(self, layer: Layer, *, depths: int) -> Layer:
        """The layer that a call belongs to: where one module serves several depths (ALBERT), calls are counted."""
        if depths:
            layer = Layer(layer.stack, len(self.seen), layer.module)
            if layer.index >= depths:
                raise TapError(
                    f"{layer.module} was called more than {depths} times: make a new RowRequest for each pass"
                )
        self.seen.add(layer)
        return layer

    def keep(self, layer: Layer, rows: Tensor) -> None:
        """Store the rows of one call; a recompute during backward replaces what the forward pass stored."""
        calls = self.calls.setdefault(layer, [])
        if calls and not self.every_call:
            if not inside_backward():
                raise TapError(
                    f"layer {layer.module} was called twice in one forward pass (shared weights, or a request used "
                    "twice): make a new RowRequest for each pass"
                )
            calls.clear()
        calls.append(rows)

    @property
    def wants_projection(self) -> bool:
        """Whether anything through W_O is asked for."""
        return self.wants_transformed_norms or self.wants_head_outputs

    def hand_over(self, layer: Layer, handed: Handed) -> None:
        """Remember what attention returned until its output projection is seen."""
        if not self.follows:
            raise TapError("head outputs and transformed norms come with tap(model, request), not with rows=request")
        self.refuse_unfollowed()
        self.handed = layer, handed

    def project(self, module: nn.Module, given: Tensor, result: Tensor) -> None:
        """Take what the heads wrote, if this linear map was given what attention returned last."""
        if self.handed is None or not is_handed(self.handed[1], given):
            return
        layer, handed = self.handed
        self.handed = None
        outputs, norms = self.wants_head_outputs, self.wants_transformed_norms
        found = written(handed, module, given, result, outputs=outputs, norms=norms)
        kept = slice(None) if self.heads is None else list(self.heads)
        if found.head_outputs is not None:
            self.head_outputs[layer] = found.head_outputs[:, kept]
        if found.transformed_norms is not None:
            self.transformed_norms[layer] = found.transformed_norms[:, kept]

    def refuse_unfollowed(self) -> None:
        """TapError where attention's output was not handed to a linear map as it is."""
        if self.handed is not None:
            raise TapError(
                f"{self.handed[0].module}: attention's output does not go into a linear map as it is (a gate or a norm "
                "between, or a fused projection), so what each head writes is not defined; rows can be had without"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """What one layer handed to attention and got back, for the self-check's independent computation."""

    layer: Layer
    module: nn.Module
    query: Tensor  # [batch, head, query, dim]
    key: Tensor  # [batch, kv head, key, dim]
    value: Tensor  # [batch, kv head, key, dim]
    terms: ScoreTerms
    rows: Tensor | None  # [batch, asked head, query, key], None where this layer is not read
    output: Tensor  # [batch, query, head, dim]


def inside_backward() -> bool:
    """Whether this runs within a backward pass: checkpointing computes a layer again there."""
    return bool(torch._C._current_graph_task_id() != -1)


def _padded(queries: object) -> Tensor:
    """[batch, query], short items filled with their own first position: a real row, never a pad row."""
    lists = list(queries) if isinstance(queries, Iterable) and _is_list(queries) else [None]
    if not all(map(_is_list, lists)):
        raise TapError(
            f"queries {shown(queries)}: allowed is one list of token positions for each text, such as [[3, 4], [2]]"
        )
    found = [whole_numbers(item, "queries", **_FROM_0) for item in lists]
    width = max(map(len, found), default=0)
    if width == 0:
        raise TapError("the request names no query position")
    highest = max(max(item, default=0) for item in found)
    if highest > _LONGEST:
        raise TapError(f"query position {highest} asked, but no text is that long")
    return torch.tensor([[*item, *[item[0] if item else 0] * (width - len(item))] for item in found])


def _is_list(item: object) -> bool:
    """Whether positions can be read from it in an order; an array or tensor of no axis only says so."""
    return isinstance(item, Iterable) and not isinstance(item, str | Set) and getattr(item, "ndim", 1) > 0


def _checked_edits(edits: object) -> tuple[Edit, ...]:
    found = tuple(edits) if isinstance(edits, Iterable) else (None,)
    if not all(isinstance(edit, EdgeEdit | HeadEdit) for edit in found):
        raise TapError(f"edits {shown(edits)}: allowed is a list of EdgeEdit and HeadEdit")
    return found
