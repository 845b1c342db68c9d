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
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from probe.errors import TapError

Stack = Literal["encoder", "decoder", "cross"]

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


class RowRequest:
    """Which rows one forward pass shall give, which edits it shall make, and what came of it.

    A plain opaque object on purpose: torch's casting helpers and device maps copy dataclasses, dicts and lists, and
    what is collected into the copy is lost. One request serves one forward pass, or, with `every_call`, one
    `generate`, whose calls are kept one after another.

    queries: token positions for each batch item; None takes every row of every call.
    layers, stacks, heads: what to read; None reads all. Edits have filters of their own.
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
        every_call: bool = False,
        inspect: "Callable[[AttentionCall], None] | None" = None,
    ) -> None:
        self.queries = None if queries is None else _padded(queries)  # [batch, query]
        self.layers = None if layers is None else frozenset(layers)
        self.stacks = None if stacks is None else frozenset(stacks)
        self.heads = None if heads is None else tuple(sorted(set(heads)))
        self.edits = tuple(edits)
        self.wants_value_norms = value_norms
        self.every_call = every_call
        self.inspect = inspect
        self.calls: dict[Layer, list[Tensor]] = {}
        self.value_norms: dict[Layer, Tensor] = {}  # [batch, head, key]
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

    def edits_of(self, layer: Layer) -> tuple[Edit, ...]:
        """The edits that touch this layer."""
        return tuple(
            edit
            for edit in self.edits
            if (edit.layers is None or layer.index in edit.layers)
            and (edit.stacks is None or layer.stack in edit.stacks)
        )

    def keep(self, layer: Layer, rows: Tensor) -> None:
        """Store the rows of one call; a recompute during backward replaces what the forward pass stored."""
        calls = self.calls.setdefault(layer, [])
        if calls and not self.every_call:
            if not _inside_backward():
                raise TapError(
                    f"layer {layer.module} was called twice in one forward pass (shared weights, or a request used "
                    "twice): make a new RowRequest for each pass; models that share a layer take the eager path"
                )
            calls.clear()
        calls.append(rows)


@dataclass(frozen=True, kw_only=True)
class ScoreTerms:
    """All that turns query · key into scores in one attention call, as the layer handed it over."""

    scaling: float
    mask: Tensor | None  # bool (True = attend) or additive float, [batch or 1, 1 or head, query, key]
    causal: bool  # only where mask is None
    position_bias: Tensor | None  # additive, [batch or 1, head, query, key]
    softcap: float | None
    sinks: Tensor | None  # [head], one logit that takes part in the softmax and is dropped


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """What one layer handed to attention and got back, for the self-check's independent computation."""

    layer: Layer
    module: nn.Module
    query: Tensor  # [batch, head, query, dim]
    key: Tensor  # [batch, kv head, key, dim]
    value: Tensor  # [batch, kv head, key, dim]
    terms: ScoreTerms
    rows: Tensor | None  # [batch, head, query, key], None where this layer is not read
    output: Tensor  # [batch, query, head, dim]


_request: ContextVar[RowRequest | None] = ContextVar("cijing_row_request", default=None)
_switch_lock = threading.Lock()


@contextlib.contextmanager
def tap(model: nn.Module, request: RowRequest) -> Iterator[RowRequest]:
    """Within the block, forward passes and `generate` of `model` fill `request` and obey its edits.

    Raises TapError where the model's family does not pass through transformers' attention interface.
    """
    with attached(model):
        token = _request.set(request)
        try:
            yield request
        finally:
            _request.reset(token)


@contextlib.contextmanager
def attached(model: nn.Module) -> Iterator[None]:
    """Within the block `model` computes attention through the tap, and accepts `model(**batch, rows=request)`.

    Nested and concurrent blocks on one model are counted; the last one restores the previous implementation.
    """
    root = unwrapped(model)
    reason = why_not_tappable(root)
    if reason:
        raise TapError(reason)
    with _switch_lock:
        depth = getattr(root, "_cijing_depth", 0)
        if depth == 0:
            root._cijing_previous = root.config._attn_implementation  # type: ignore[assignment]
            _label_modules(root)
            switch_implementation(root, IMPLEMENTATION)
        root._cijing_depth = depth + 1  # type: ignore[assignment]
    try:
        yield
    finally:
        with _switch_lock:
            root._cijing_depth -= 1  # type: ignore[operator,assignment]
            if root._cijing_depth == 0:
                switch_implementation(root, root._cijing_previous)


def switch_implementation(root: Any, name: str) -> None:
    """Set the attention implementation and check that it took: families that cannot switch only log a warning."""
    root.set_attn_implementation(name)
    if root.config._attn_implementation != name:
        raise TapError(
            f"{type(root).__name__} stayed with attention {root.config._attn_implementation!r} when asked for {name!r}"
        )


def why_not_tappable(root: Any) -> str | None:
    """The reason why a model cannot be tapped, or None. A reason is certain; None still needs its calls counted."""
    if not hasattr(root, "_can_set_attn_implementation"):
        return f"{type(root).__name__} is no transformers model: the tap needs a PreTrainedModel"
    if not root._can_set_attn_implementation():
        return f"{type(root).__name__} does not pass through transformers' attention interface"
    if _reentrant(root):
        return "reentrant gradient checkpointing drops the gradient of attention rows: use use_reentrant=False"
    return None


def unwrapped(model: nn.Module) -> Any:
    """The transformers model inside DDP, torch.compile and PEFT wrappers, adapters still in place."""
    inner: Any = model
    while True:
        if hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        elif hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        elif isinstance(getattr(inner, "module", None), nn.Module):
            inner = inner.module
        else:
            return inner


def layer_of(module: nn.Module) -> Layer:
    """The label that `attached` gave a module of the model."""
    label = getattr(module, "_cijing_layer", None)
    if not isinstance(label, Layer):
        raise TapError(f"{type(module).__name__} computed attention but is no part of the tapped model")
    return label


def attention_rows(
    query: Tensor, key: Tensor, terms: ScoreTerms, positions: Tensor, *, extra: Tensor | None = None
) -> Tensor:
    """Attention rows of the queries at `positions`: [batch, head, query, key], fp32.

    query [batch, head, query, dim] and key [batch, kv head, key, dim] as the layer has them, rotation and norms
    applied; query head h reads key head h // (heads / kv heads). positions [batch, query]; `extra` is added to the
    scores last (an edit's log factors), [batch, head, query, key].
    """
    scores = _scores(query, key, terms, positions)
    if extra is not None:
        scores = scores + extra
    if terms.sinks is None:
        return scores.softmax(-1)
    sink = terms.sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


def _scores(query: Tensor, key: Tensor, terms: ScoreTerms, positions: Tensor) -> Tensor:
    batch, heads, _, dim = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    index = positions[:, None, :, None].expand(batch, heads, positions.shape[1], dim)
    asked = query.gather(2, index).float()  # [batch, head, query, dim]
    # Groups of query heads share a key head: fold them into the query axis instead of repeating the keys.
    folded = asked.reshape(batch, kv_heads, -1, dim)
    scores = (folded @ key.float().transpose(2, 3)).view(batch, heads, -1, keys) * terms.scaling
    if terms.softcap is not None:
        scores = terms.softcap * torch.tanh(scores / terms.softcap)
    if terms.position_bias is not None:
        scores = scores + _rows_at(terms.position_bias, positions, keys).float()
    if terms.mask is not None and terms.mask.dtype != torch.bool:
        return scores + _rows_at(terms.mask, positions, keys).float()
    allowed = _allowed(terms, positions, queries=query.shape[2], keys=keys)
    # finfo.min rather than -inf: a row without any allowed key (a pad query) stays finite, and so does its gradient.
    return scores if allowed is None else scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)


def _allowed(terms: ScoreTerms, positions: Tensor, *, queries: int, keys: int) -> Tensor | None:
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
    items = torch.arange(positions.shape[0], device=grid.device) if grid.shape[0] > 1 else torch.zeros_like(positions[:, 0])
    return grid[items[:, None], :, positions].transpose(1, 2)


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
    request = kwargs.pop("rows", None) or _request.get()
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
    """What the model computes without us, [batch, query, head, dim]: SDPA, or the family's own eager function
    where SDPA refuses (softcap) or would silently ignore (sinks) a term."""
    if terms.softcap is None and terms.sinks is None and getattr(module, "_cijing_sdpa", True):
        out, _ = sdpa_attention_forward(
            module, query, key, value, terms.mask, dropout=dropout, scaling=terms.scaling, is_causal=is_causal, **kwargs
        )
        return out
    eager: Callable[..., tuple[Tensor, Tensor]] | None = getattr(
        sys.modules[type(module).__module__], "eager_attention_forward", None
    )
    if eager is None:
        raise TapError(f"{type(module).__name__} cannot use SDPA and has no eager function of its own")
    mask = _additive_mask(terms, query, key)
    return eager(module, query, key, value, mask, scaling=terms.scaling, dropout=dropout, **kwargs)[0]


def _additive_mask(terms: ScoreTerms, query: Tensor, key: Tensor) -> Tensor | None:
    if terms.mask is not None and terms.mask.dtype != torch.bool:
        return terms.mask
    positions = torch.arange(query.shape[2], device=query.device)[None]
    allowed = terms.mask if terms.mask is not None else _allowed(
        terms, positions, queries=query.shape[2], keys=key.shape[2]
    )
    if allowed is None:
        return None
    return torch.zeros(allowed.shape, dtype=query.dtype, device=query.device).masked_fill(
        ~allowed, torch.finfo(query.dtype).min
    )


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
    layer = layer_of(module)
    request.seen.add(layer)
    edits = request.edits_of(layer)
    if edits and dropout > 0.0:
        raise TapError("edits are for evaluation: call model.eval() first, dropout would act on unedited rows only")
    edges = [edit for edit in edits if isinstance(edit, EdgeEdit)]
    if edges:
        output = _apply_edges(edges, query, key, value, terms, output)
    for edit in edits:
        if isinstance(edit, HeadEdit):
            output = _zero_heads(edit, output)
    rows = _read(request, layer, query, key, value, terms, edges) if request.reads(layer) else None
    if request.inspect is not None:
        call = AttentionCall(
            layer=layer, module=module, query=query, key=key, value=value, terms=terms, rows=rows, output=output
        )
        request.inspect(call)
    return output


def _read(
    request: RowRequest,
    layer: Layer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    edges: Sequence[EdgeEdit],
) -> Tensor:
    positions = _positions(request, query)
    extra = _edge_bias(edges, positions, query, key) if edges else None
    rows = attention_rows(query, key, terms, positions, extra=extra)
    request.keep(layer, rows if request.heads is None else rows[:, list(request.heads)])
    if request.wants_value_norms:
        norms = value.detach().float().norm(dim=-1)  # [batch, kv head, key]
        request.value_norms[layer] = norms.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    return rows


def _positions(request: RowRequest, query: Tensor) -> Tensor:
    batch, queries = query.shape[0], query.shape[2]
    if request.queries is None:
        return torch.arange(queries, device=query.device).expand(batch, queries)
    if len(request.queries) != batch:
        raise TapError(f"the request has queries for {len(request.queries)} texts, the batch has {batch}")
    positions = request.queries.to(query.device)
    if int(request.queries.max()) >= queries:
        raise TapError(f"query position {int(request.queries.max())} asked, but the text has {queries} tokens here")
    return positions


def _apply_edges(
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
        local = _item_terms(terms, item)
        bias = _edge_bias([_moved(edit) for edit in own], positions, query[one], key[one])
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


def _item_terms(terms: ScoreTerms, item: int) -> ScoreTerms:
    def one(grid: Tensor | None) -> Tensor | None:
        return grid if grid is None or grid.shape[0] == 1 else grid[item : item + 1]

    return ScoreTerms(
        scaling=terms.scaling,
        mask=one(terms.mask),
        causal=terms.causal,
        position_bias=one(terms.position_bias),
        softcap=terms.softcap,
        sinks=terms.sinks,
    )


def _moved(edit: EdgeEdit) -> EdgeEdit:
    return EdgeEdit(query=edit.query, key=edit.key, factor=edit.factor, heads=edit.heads)


def _edge_bias(edits: Sequence[EdgeEdit], positions: Tensor, query: Tensor, key: Tensor) -> Tensor:
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
    allowed = None if terms.mask is not None and terms.mask.dtype != torch.bool else _allowed(
        terms, positions, queries=query.shape[2], keys=key.shape[2]
    )
    if allowed is not None:
        open_keys = open_keys & allowed
    if not bool(open_keys.any(-1).all()):
        raise TapError("the edits cut every key that a query may see; a row needs at least one")


def _zero_heads(edit: HeadEdit, output: Tensor) -> Tensor:
    if edit.item >= output.shape[0]:
        raise TapError(f"edit for text {edit.item}, but the batch has {output.shape[0]}")
    if max(edit.heads) >= output.shape[2]:
        raise TapError(f"edit of head {max(edit.heads)}, but this layer has heads 0 to {output.shape[2] - 1}")
    output = output.clone()
    output[edit.item, :, sorted(edit.heads)] = 0.0
    return output


def _padded(queries: Sequence[Sequence[int]]) -> Tensor:
    """[batch, query], short items filled with their own first position: a real row, never a pad row."""
    width = max((len(item) for item in queries), default=0)
    if width == 0:
        raise TapError("the request names no query position")
    if any(position < 0 for item in queries for position in item):
        raise TapError("query positions count from 0; negative ones are not allowed")
    return torch.tensor([[*item, *[item[0] if item else 0] * (width - len(item))] for item in queries])


def _label_modules(root: Any) -> None:
    """Give each module its label, as an attribute of its own: it survives wrappers, hooks and device maps."""
    prefix = getattr(root, "base_model_prefix", "")
    own = f"{prefix}." if prefix and hasattr(root, prefix) else ""
    for name, module in root.named_modules():
        canonical = name.removeprefix(own)
        module._cijing_layer = Layer(stack_of(root, module, canonical), _index(canonical), canonical)
        module._cijing_sdpa = bool(getattr(root, "_supports_sdpa", True))


def stack_of(root: Any, module: nn.Module, name: str) -> Stack:
    """Encoder, decoder or cross attention, by the module's own name and by whether it is causal."""
    if re.search(r"encoder_attn|encdecattention|cross_?att", name.lower()):
        return "cross"
    if getattr(root.config, "is_encoder_decoder", False):
        return "decoder" if name.startswith("decoder") else "encoder"
    causal = getattr(module, "is_causal", getattr(root.config, "is_decoder", False))
    return "decoder" if causal else "encoder"


def _index(name: str) -> int:
    found = re.search(r"\.(\d+)(?:\.|$)", f".{name}")
    return int(found.group(1)) if found else -1


def _inside_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _reentrant(root: Any) -> bool:
    for module in root.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if getattr(module, "gradient_checkpointing", False) and function is not None:
            return bool(getattr(function, "keywords", {}).get("use_reentrant", True))
    return False


AttentionInterface.register(IMPLEMENTATION, _tapped_attention)
# Without a mask function of the same name the mask arrives as None and padding is silently ignored.
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
