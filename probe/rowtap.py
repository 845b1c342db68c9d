"""The row tap: exact attention rows beside an SDPA forward pass, read and edited.

A probe of one word needs the attention rows of that word's tokens, not layers × heads × T² numbers. The tap is
an attention function registered with transformers: it runs SDPA as usual and computes the asked rows from the
query and key that the layer already has. Because it holds the row, it can also take the softmax again without an
edge, with the edge damped or boosted, or with a head silenced, and overwrite that query's output.

This module is the only home of transformers' AttentionInterface.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from probe.anatomy import Kind, kind_of
from probe.edits import EdgeEdit, Edit, HeadEdit, Stack, apply_edges, edge_bias, zero_heads
from probe.errors import TapError
from probe.projection import Handed, followed, is_handed, written
from probe.rows import ScoreTerms, additive_mask, attention_rows
from probe.switching import computed_together
from probe.wrappers import is_reentrant, outside_of_graphs, unwrapped, virtual_tokens

# Neutral on purpose: "sdpa", "flash" or "flex" inside the name would trigger special paths in transformers.
IMPLEMENTATION = "cijing_rows"


@dataclass(frozen=True, order=True)
class Layer:
    """One attention layer, labelled by the module that it is."""

    stack: Stack
    index: int
    """0-based, the number in the module's own name: in a hybrid model, attention layers may be 3, 7, 11."""
    module: str
    """Canonical name: relative to the model without its head and without PEFT's or DDP's prefixes."""


class RowRequest:
    """Which rows one forward pass shall give, which edits it shall make, and what came of it.

    A plain opaque object on purpose: torch's casting helpers and device maps copy dataclasses, dicts and lists, and
    what is collected into the copy is lost. One request serves one forward pass, or, with `every_call`, one
    `generate`, whose calls are kept one after another.

    queries: token positions for each batch item; None takes every row of every call.
    layers, stacks, heads: what to read; None reads all. Edits have filters of their own.
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
        self.layers = None if layers is None else frozenset(layers)
        self.stacks = None if stacks is None else frozenset(stacks)
        self.heads = None if heads is None else tuple(sorted(set(heads)))
        if self.heads is not None and (not self.heads or self.heads[0] < 0):
            raise TapError(f"heads {list(self.heads)}: allowed are numbers from 0, at least one, or None for all")
        self.edits = tuple(edits)
        self.wants_value_norms = value_norms
        self.wants_transformed_norms = transformed_norms
        self.wants_head_outputs = head_outputs
        self.every_call = every_call
        self.inspect = inspect
        self.on_layer = on_layer
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
        return {layer: calls[-1] for layer, calls in self.calls.items()}

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
            raise TapError(f"query position {self.highest} asked, but the text has {queries} tokens here")
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
            if not _inside_backward():
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


# The open taps of this thread: which modules each one's model has (their identities), and its request.
_taps: ContextVar[tuple[tuple[frozenset[int], RowRequest], ...]] = ContextVar("cijing_row_taps", default=())


@contextlib.contextmanager
def tap(model: nn.Module, request: RowRequest) -> Iterator[RowRequest]:
    """Within the block, forward passes and `generate` of `model` fill `request` and obey its edits.

    Taps of several models may be nested, each serves its own model; a second tap of one model in a thread would hide
    the first one's edits and is refused. A request given by keyword goes before the tap's.
    Raises TapError where the model's family does not pass through transformers' attention interface.
    """
    with attached(model), _following(unwrapped(model), request), _served(unwrapped(model), request):
        yield request
    if not request.seen:
        raise TapError(
            f"no attention of {type(unwrapped(model)).__name__} came through the tap: nothing ran, it ran in another "
            "thread or process, or its layers do not pass through transformers' attention interface"
        )


@contextlib.contextmanager
def _served(root: nn.Module, request: RowRequest) -> Iterator[None]:
    """Within the block, attention of the model's own modules asks this request, in this thread."""
    modules = frozenset(map(id, root.modules()))
    if any(modules & others for others, _ in _taps.get()):
        raise TapError(
            f"{type(root).__name__} is tapped in this thread already: put what both ask for into one RowRequest, or "
            "leave the outer block first"
        )
    token = _taps.set((*_taps.get(), (modules, request)))
    try:
        yield
    finally:
        _taps.reset(token)


def _request_of(module: nn.Module) -> RowRequest | None:
    """The request of the tap that the module's model stands in; another model's tap is none of its business."""
    return next((request for modules, request in _taps.get() if id(module) in modules), None)


@contextlib.contextmanager
def _following(root: nn.Module, request: RowRequest) -> Iterator[None]:
    if not request.wants_projection:
        yield
        return
    request.follows = True
    try:
        with followed(root, request.project):
            yield
    finally:
        request.follows = False
    request.refuse_unfollowed()


@contextlib.contextmanager
def attached(model: nn.Module) -> Iterator[None]:
    """Within the block `model` computes attention through the tap, and accepts `model(**batch, rows=request)`.

    Nested and concurrent blocks on one model are counted; the last one restores the previous implementation.
    """
    reason = virtual_tokens(model) or why_not_tappable(unwrapped(model))
    if reason:
        raise TapError(reason)
    root = unwrapped(model)
    with computed_together(root, IMPLEMENTATION, first=label_modules), outside_of_graphs(root):
        yield


def why_not_tappable(root: Any) -> str | None:
    """The reason why a model cannot be tapped, or None. A reason is certain; None still needs its calls counted."""
    if not hasattr(root, "_can_set_attn_implementation"):
        return f"{type(root).__name__} is no transformers model: the tap needs a PreTrainedModel"
    if not root._can_set_attn_implementation():
        return f"{type(root).__name__} does not pass through transformers' attention interface"
    if is_reentrant(root):
        return "reentrant gradient checkpointing drops the gradient of attention rows: use use_reentrant=False"
    return None


def layer_of(module: nn.Module) -> Layer:
    """The label that `attached` gave a module of the model."""
    label = getattr(module, "_cijing_layer", None)
    if not isinstance(label, Layer):
        raise TapError(f"{type(module).__name__} computed attention but is no part of the tapped model")
    return label


def _tapped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The registered attention function: SDPA's output, and the request's rows and edits beside it."""
    request = kwargs.pop("rows", None) or _request_of(module)
    if kwargs.get("indices") is not None:
        raise TapError(f"{type(module).__name__} attends to chosen indices only; the tap does not compute that")
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    terms = ScoreTerms(
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        mask=attention_mask,
        causal=bool(causal),
        position_bias=kwargs.get("position_bias"),
        softcap=kwargs.get("softcap"),
        sinks=kwargs.get("s_aux"),
    )
    # dropout, not module.training: some families pass 0 in evaluation, some pass the configured value always.
    output = _plain_output(module, query, key, value, terms, dropout=dropout, is_causal=is_causal, kwargs=kwargs)
    if request is not None:
        device = query.device.type
        if torch.is_autocast_enabled(device):
            # SDPA rounds its inputs under autocast; rows are then exact for those, not rounded once more.
            query, key, value = (part.to(torch.get_autocast_dtype(device)) for part in (query, key, value))
            with torch.autocast(device, enabled=False):
                return _serve(request, module, query, key, value, terms, output, dropout=dropout), None
        output = _serve(request, module, query, key, value, terms, output, dropout=dropout)
    return output, None


def _plain_output(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    *,
    dropout: float,
    is_causal: bool | None,
    kwargs: dict[str, Any],
) -> Tensor:
    """What the model computes without us, [batch, query, head, dim].

    SDPA, or the family's own eager function where SDPA refuses (softcap) or would silently ignore (sinks) a term.
    """
    if terms.softcap is None and terms.sinks is None and getattr(module, "_cijing_sdpa", True):
        out: Tensor
        out, _ = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            terms.mask,
            dropout=dropout,
            scaling=terms.scaling,
            is_causal=is_causal,
            **kwargs,
        )
        return out
    eager: Callable[..., tuple[Tensor, Tensor]] | None = getattr(
        sys.modules[type(module).__module__], "eager_attention_forward", None
    )
    if eager is None:
        raise TapError(f"{type(module).__name__} cannot use SDPA and has no eager function of its own")
    mask = additive_mask(terms, query, key)
    return eager(module, query, key, value, mask, scaling=terms.scaling, dropout=dropout, **kwargs)[0]


def _serve(
    request: RowRequest,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    output: Tensor,
    *,
    dropout: float,
) -> Tensor:
    """Fill the request with this layer's rows; return the output, edited where the request says so."""
    layer = request.place(layer_of(module), depths=getattr(module, "_cijing_depths", 0))
    edits = request.edits_of(layer)
    if edits and dropout > 0.0:
        raise TapError("edits are for evaluation: call model.eval() first, dropout would act on unedited rows only")
    edges = [edit for edit in edits if isinstance(edit, EdgeEdit)]
    if edges:
        output = apply_edges(edges, query, key, value, terms, output)
    for edit in edits:
        if isinstance(edit, HeadEdit):
            output = zero_heads(edit, output)
    rows = _read(request, layer, query, key, value, terms, edges) if request.reads(layer) else None
    if request.inspect is not None:
        call = AttentionCall(
            layer=layer,
            module=module,
            query=query,
            key=key,
            value=value,
            terms=terms,
            rows=rows,
            output=output,
        )
        request.inspect(call)
    if request.wants_projection and request.reads(layer):
        handed = Handed(module=layer.module, output=output, value=value, positions=request.positions_in(layer, query))
        request.hand_over(layer, handed)
    if request.on_layer is not None and not _inside_backward():  # checkpointing computes a layer twice
        request.on_layer(layer)
    return output


def _read(
    request: RowRequest,
    layer: Layer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    edges: Sequence[EdgeEdit],
) -> Tensor | None:
    positions = request.positions_in(layer, query)
    if positions.shape[1] == 0:
        return None
    heads = request.heads
    if heads and heads[-1] >= query.shape[1]:
        raise TapError(f"head {heads[-1]} asked, but {layer.module} has heads 0 to {query.shape[1] - 1}")
    extra = edge_bias(edges, positions, query, key) if edges else None
    rows = attention_rows(query, key, terms, positions, extra=extra, heads=heads)
    request.keep(layer, rows)
    if request.wants_value_norms:
        norms = torch.linalg.vector_norm(value.detach(), dim=-1, dtype=torch.float32)  # [batch, kv head, key]
        group = query.shape[1] // value.shape[1]
        wanted = range(query.shape[1]) if heads is None else heads
        request.value_norms[layer] = norms[:, [head // group for head in wanted]]
    return rows


def _padded(queries: Sequence[Sequence[int]]) -> Tensor:
    """[batch, query], short items filled with their own first position: a real row, never a pad row."""
    width = max((len(item) for item in queries), default=0)
    if width == 0:
        raise TapError("the request names no query position")
    if any(position < 0 for item in queries for position in item):
        raise TapError("query positions count from 0; negative ones are not allowed")
    return torch.tensor([[*item, *[item[0] if item else 0] * (width - len(item))] for item in queries])


def label_modules(model: nn.Module) -> None:
    """Give each module its label, as an attribute of its own: it survives wrappers, hooks and device maps.

    Labels stay on a model and follow from the modules' names; they are made anew where a name or a module changed.
    """
    root = unwrapped(model)
    if all(vars(module).get("_cijing_name") == name for name, module in root.named_modules()):
        return
    kind = kind_of(root)
    prefix = getattr(root, "base_model_prefix", "")
    own = f"{prefix}." if prefix and hasattr(root, prefix) else ""
    depths = _shared_depths(root.config)
    for name, module in root.named_modules():
        canonical = name.removeprefix(own)
        module._cijing_name = name
        module._cijing_layer = Layer(stack_of(root, module, canonical, kind=kind), _index(canonical), canonical)
        module._cijing_sdpa = bool(getattr(root, "_supports_sdpa", True))
        module._cijing_depths = depths


def stack_of(root: Any, module: nn.Module, name: str, *, kind: Kind) -> Stack:
    """Encoder, decoder or cross attention, by the module's own name and by whether it is causal."""
    if re.search(r"encoder_attn|encdecattention|cross_?att", name.lower()):
        return "cross"
    if kind == "encoder-decoder":
        return "decoder" if name.startswith("decoder") else "encoder"
    causal = getattr(module, "is_causal", kind == "decoder")
    return "decoder" if causal else "encoder"


def _shared_depths(config: Any) -> int:
    """How many layers are served by fewer modules (ALBERT's groups), 0 where each layer has modules of its own."""
    depths = int(getattr(config, "num_hidden_layers", 0) or 0)
    return depths if getattr(config, "num_hidden_groups", depths) < depths else 0


def _index(name: str) -> int:
    found = re.search(r"\.(\d+)(?:\.|$)", f".{name}")
    return int(found.group(1)) if found else -1


def _inside_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


AttentionInterface.register(IMPLEMENTATION, _tapped_attention)
# Without a mask function of the same name the mask arrives as None and padding is silently ignored.
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
