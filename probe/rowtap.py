"""The row tap: exact attention rows beside an SDPA forward pass, read and edited.

A probe of one word needs the attention rows of that word's tokens, not layers × heads × T² numbers. The tap is
an attention function registered with transformers: it runs SDPA as usual and computes the asked rows from the
query and key that the layer already has. Because it holds the row, it can also take the softmax again without an
edge, with the edge damped or boosted, or with a head silenced, and overwrite that query's output.

This module is the only home of transformers' AttentionInterface.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from probe.edits import STACKS, EdgeEdit, HeadEdit, apply_edges, edge_bias, zero_heads
from probe.errors import TapError
from probe.given import is_a
from probe.labels import Layer, label_modules, layer_of
from probe.projection import Handed, followed
from probe.rowrequest import AttentionCall, RowRequest, inside_backward
from probe.rows import ScoreTerms, additive_mask, attention_rows
from probe.switching import computed_together
from probe.wrappers import is_reentrant, outside_of_graphs, unwrapped, virtual_tokens

# Neutral on purpose: "sdpa", "flash" or "flex" inside the name would trigger special paths in transformers.
IMPLEMENTATION = "cijing_rows"
_REQUEST = "a RowRequest, such as RowRequest([[3]])"


# The open taps of this thread: which modules each one's model has (their identities), and its request.
_taps: ContextVar[tuple[tuple[frozenset[int], RowRequest], ...]] = ContextVar("cijing_row_taps", default=())
_open: list[tuple[frozenset[int], RowRequest]] = []  # of all threads, for what an accelerator's backward computes again


@contextlib.contextmanager
def tap(model: nn.Module, request: RowRequest) -> Iterator[RowRequest]:
    """Within the block, forward passes and `generate` of `model` fill `request` and obey its edits.

    Taps of several models may be nested, each serves its own model; a second tap of one model in a thread would hide
    the first one's edits and is refused. A request given by keyword goes before the tap's.
    Raises TapError where the model's family does not pass through transformers' attention interface.
    """
    is_a(request, RowRequest, "request", wanted=_REQUEST, error=TapError)
    with attached(model), _following(unwrapped(model), request), _served(unwrapped(model), request):
        yield request
    if not request.seen:
        raise TapError(
            f"no attention of {type(unwrapped(model)).__name__} came through the tap: nothing ran, it ran in another "
            "thread or process, or its layers do not pass through transformers' attention interface"
        )
    indices = {layer.index for layer in request.seen}
    request.check_layers(indices=indices, stacks=sorted({layer.stack for layer in request.seen}))


@contextlib.contextmanager
def _served(root: nn.Module, request: RowRequest) -> Iterator[None]:
    """Within the block, attention of the model's own modules asks this request, in this thread."""
    modules = frozenset(map(id, root.modules()))
    if any(modules & others for others, _ in _taps.get()):
        raise TapError(
            f"{type(root).__name__} is tapped in this thread already: put what both ask for into one RowRequest, or "
            "leave the outer block first"
        )
    opened = (modules, request)
    token = _taps.set((*_taps.get(), opened))
    _open.append(opened)
    try:
        yield
    finally:
        _open.remove(opened)
        _taps.reset(token)


def _request_of(module: nn.Module) -> RowRequest | None:
    """The request of the tap that the module's model stands in; another model's tap is none of its business."""
    own = next((request for modules, request in _taps.get() if id(module) in modules), None)
    return own or _of_the_forward_pass(module)


def _of_the_forward_pass(module: nn.Module) -> RowRequest | None:
    """The request of the `tap` block whose checkpointed forward pass is computed again.

    CUDA's and MPS' backward run in threads of their own, where the caller's ContextVar is not seen.
    """
    if not inside_backward():
        return None
    found = [request for modules, request in _open if id(module) in modules]
    if len(found) > 1:
        raise TapError(
            f"{type(module).__name__} is computed again for one of {len(found)} open requests and cannot tell for "
            "which: pass rows=request to the model in place of tap(model, request)"
        )
    return found[0] if found else None


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
    is_a(model, nn.Module, "model", wanted="a PreTrainedModel, such as loaded.backbone", error=TapError)
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
    given = kwargs.pop("rows", None)
    if given is not None:
        is_a(given, RowRequest, "rows", wanted=_REQUEST, error=TapError)
    request = given or _request_of(module)
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
    label = layer_of(module)
    if not request.seen:  # before a long pass and not behind it
        request.check_layers(indices=module._cijing_indices, stacks=STACKS)  # type: ignore[arg-type]
    layer = request.place(label, depths=getattr(module, "_cijing_depths", 0))
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
    if request.on_layer is not None and not inside_backward():  # checkpointing computes a layer twice
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


AttentionInterface.register(IMPLEMENTATION, _tapped_attention)
# Without a mask function of the same name the mask arrives as None and padding is silently ignored.
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
