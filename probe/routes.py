"""Which way a model's rows can be had: through the tap, or, visibly, through eager attention."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from probe.anatomy import settings_of
from probe.errors import ModelError, TapError
from probe.labels import Layer, label_modules, layer_of
from probe.models import LoadedModel
from probe.rowrequest import RowRequest
from probe.rowtap import tap, why_not_tappable
from probe.switching import eagerly, untouched
from probe.wrappers import is_reentrant

Path = Literal["tap", "eager"]
_LONGER = 48  # tokens


@dataclass(frozen=True, kw_only=True)
class Route:
    """How rows come out of one model, found by running it on a few tokens."""

    path: Path
    layers: tuple[Layer, ...]  # every softmax attention layer, in the order encoder, decoder, cross
    heads: int
    reason: str  # why the eager path, or "" for the tap
    final_norms: frozenset[str]  # stacks whose last state is no block's own output: a norm, or more, stands behind it


@dataclass(frozen=True, kw_only=True, eq=False)
class Forward:
    """What one forward pass gave, in the same shape on both paths."""

    rows: dict[Layer, Tensor]  # [batch, head, query, key]
    value_norms: dict[Layer, Tensor]  # [batch, head, key]; empty on the eager path
    transformed_norms: dict[Layer, Tensor]  # [batch, head, key]; empty unless asked for
    head_outputs: dict[Layer, Tensor]  # [batch, head, query, model]; empty unless asked for
    states: dict[str, tuple[Tensor, ...]]  # stack -> embedding, then one a layer: [batch, token, dim]


# Found once a model: on one short sentence finding it would cost several times what reading it does.
_known: "WeakKeyDictionary[nn.Module, tuple[str, Route]]" = WeakKeyDictionary()


def route_of(loaded: LoadedModel) -> Route:
    """The model's route, found at the first call and anew when its configuration, modules or adapters have changed.

    Raises ModelError as `find_route` does.
    """
    structure = _structure(loaded.backbone)
    known = _known.get(loaded.backbone)
    if known is None or known[0] != structure:
        known = structure, find_route(loaded)
        _known[loaded.backbone] = known
    return known[1]


def _structure(root: Any) -> str:
    """What a route depends on: configuration, modules by name and class, how gradients are checkpointed."""
    modules = [(name, type(module).__module__, type(module).__qualname__) for name, module in root.named_modules()]
    return repr((settings_of(root.config), modules, is_reentrant(root)))


def find_route(loaded: LoadedModel) -> Route:
    """Find the path and the layers by a run on four tokens, counted against eager attention's own maps.

    Raises ModelError where the model has no softmax attention over tokens, or none that can be tied to modules.
    """
    batch = batch_for(loaded, [_some_ids(loaded)])
    eager, refusal = _eager_layers(loaded, batch)
    tapped, reason = _tapped_layers(loaded, batch)
    if tapped and (not eager or set(tapped) == set(eager)):
        return _route(loaded, batch, "tap", tapped, "")
    if eager:
        _check_same_function(loaded, _ordered(eager)[0])
        why = reason or f"the tap saw {len(tapped)} of {len(eager)} softmax layers of {_kind(loaded)}"
        return _route(loaded, batch, "eager", eager, why)
    raise ModelError(f"{loaded.name}: no attention rows can be had from {_kind(loaded)}: {refusal or reason}")


def forward_rows(
    loaded: LoadedModel, route: Route, batch: dict[str, Tensor], request: RowRequest, *, states: bool
) -> Forward:
    """Run the model without its head once and give the asked rows; edits need the tap (TapError)."""
    if route.path == "tap":
        with torch.inference_mode(), tap(loaded.backbone, request):
            output = loaded.backbone(**batch, output_hidden_states=states, **_no_cache(loaded))
        missing = [layer.module for layer in route.layers if request.reads(layer) and layer not in request.rows]
        if missing:
            raise TapError(f"{loaded.name}: no rows came from {', '.join(missing)}")
        rows, norms = dict(request.rows), dict(request.value_norms)
    else:
        if request.wants_projection:
            raise TapError(f"{loaded.name}: what heads write through W_O needs the tap ({route.reason})")
        if request.edits:
            raise TapError(f"{loaded.name}: attention cannot be edited on the eager path ({route.reason})")
        with _telling(loaded, route, request.on_layer):
            maps, output = eager_maps(loaded, batch, states=states)
        rows, norms = _asked_rows(maps, request), {}
    return Forward(
        rows=rows,
        value_norms=norms,
        transformed_norms=dict(request.transformed_norms),
        head_outputs=dict(request.head_outputs),
        states=_states(loaded, output) if states else {},
    )


@contextlib.contextmanager
def _telling(loaded: LoadedModel, route: Route, on_layer: Callable[[Layer], None] | None) -> Iterator[None]:
    """Within the block `on_layer` is told of each layer of the route as soon as its attention module has run."""
    due: dict[str, list[Layer]] = {}
    for layer in route.layers if on_layer else ():
        due.setdefault(layer.module, []).append(layer)  # more than one where a module serves several depths

    def tell(module: nn.Module, args: Any, output: Any) -> None:
        left = due[layer_of(module).module]
        if on_layer and left:
            on_layer(left.pop(0))

    attending = [module for module in loaded.backbone.modules() if layer_of(module).module in due]
    hooks = [module.register_forward_hook(tell) for module in attending]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def batch_for(
    loaded: LoadedModel, ids: Sequence[Sequence[int]], *, token_types: Sequence[Sequence[int]] | None = None
) -> dict[str, Tensor]:
    """A batch padded on the right: input_ids and attention_mask [text, token], and token_type_ids where given.

    An encoder-decoder gets the same text on both sides, so that one position means one word in every stack.
    """
    width = max(len(item) for item in ids)
    pad = loaded.tokenizer.pad_token_id
    pad = 0 if pad is None else int(pad)
    tokens = torch.tensor([[*item, *[pad] * (width - len(item))] for item in ids], device=loaded.device)
    mask = torch.tensor([[1] * len(item) + [0] * (width - len(item)) for item in ids], device=loaded.device)
    batch = {"input_ids": tokens, "attention_mask": mask}
    if token_types is not None:
        padded = [[*item, *[0] * (width - len(item))] for item in token_types]
        batch["token_type_ids"] = torch.tensor(padded, device=loaded.device)
    if loaded.kind == "encoder-decoder":
        batch |= {"decoder_input_ids": tokens, "decoder_attention_mask": mask}
    return batch


def eager_maps(
    loaded: LoadedModel, batch: dict[str, Tensor], *, states: bool = False
) -> tuple[dict[Layer, Tensor], Any]:
    """Whole maps [batch, head, query, key] by layer from eager attention, and the model's output.

    A layer is labelled by the module that returned the very tensor the model reports, never by its place in a tuple.
    """
    seen: list[tuple[nn.Module, Tensor]] = []

    def remember(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, tuple):
            seen.extend((module, part) for part in output if isinstance(part, Tensor) and part.dim() == 4)

    label_modules(loaded.backbone)
    with torch.inference_mode(), eagerly(loaded.backbone):
        hooks = [module.register_forward_hook(remember) for module in loaded.backbone.modules()]
        try:
            output = loaded.backbone(**batch, output_attentions=True, output_hidden_states=states, **_no_cache(loaded))
        finally:
            for hook in hooks:
                hook.remove()
        reported = [maps for maps in _reported(output) if maps is not None]
        _check_shapes(loaded, reported, batch["input_ids"].shape[1])
        return _label_maps(loaded, reported, seen), output


def _check_same_function(loaded: LoadedModel, first: Layer) -> None:
    """Refuse a model whose eager attention, whence the maps come, is not what the model computes by itself.

    transformers' eager Falcon adds ALiBi twice, its SDPA once. Compared on what the first layer's attention puts out,
    where both runs still have the same input, and on many different tokens far apart, which makes such terms large.
    """
    length = min(loaded.max_positions or _LONGER, _LONGER)
    step = loaded.backbone.get_input_embeddings().weight.shape[0] // length
    batch = batch_for(loaded, [[place * step for place in range(length)]])
    with untouched(loaded.backbone):
        if loaded.backbone.config._attn_implementation == "eager":
            return
        own = _output_of(loaded, first, batch)
    with eagerly(loaded.backbone):
        eager = _output_of(loaded, first, batch, output_attentions=True)
    # A padding token's embedding, and all that the layer makes of it alone, may be exactly zero in both.
    size = own.norm(dim=-1).clamp_min(torch.finfo(own.dtype).tiny)
    differ = float(((own - eager).norm(dim=-1) / size).max())
    if not differ <= (1e-3 if loaded.dtype == torch.float32 else 5e-2):  # a NaN is no agreement
        raise ModelError(
            f"{loaded.name}: eager {_kind(loaded)} computes another function than the model does by itself, in "
            f"{first.module} already: its maps are not the model's"
        )


def _output_of(loaded: LoadedModel, layer: Layer, batch: dict[str, Tensor], **settings: bool) -> Tensor:
    """What one attention module puts out, [batch, token, dim]."""
    found: list[Tensor] = []
    (module,) = (m for m in loaded.backbone.modules() if getattr(m, "_cijing_layer", None) == layer)
    hook = module.register_forward_hook(lambda module, args, output: found.append(output[0].float()))
    try:
        with torch.inference_mode():
            loaded.backbone(**batch, **settings, **_no_cache(loaded))
    finally:
        hook.remove()
    return found[0]


def _check_shapes(loaded: LoadedModel, reported: Sequence[Tensor], length: int) -> None:
    """Refuse maps of another kind, such as a window around each query (Longformer): their columns are no tokens."""
    odd = [tuple(maps.shape) for maps in reported if tuple(maps.shape[-2:]) != (length, length)]
    if odd:
        raise ModelError(
            f"{loaded.name}: the maps of {_kind(loaded)} are not query × key: {odd[0]} for {length} tokens"
        )


def _label_maps(
    loaded: LoadedModel, reported: Sequence[Tensor], seen: list[tuple[nn.Module, Tensor]]
) -> dict[Layer, Tensor]:
    owners: dict[int, nn.Module] = {}
    for module, tensor in seen:  # innermost modules fire first
        owners.setdefault(id(tensor), module)
    owned = [owners.get(id(maps)) for maps in reported]
    shared = len(set(map(id, owned))) < len(owned)
    labels: dict[Layer, Tensor] = {}
    for maps, owner in zip(reported, owned, strict=True):
        if owner is None:
            raise ModelError(f"{loaded.name}: the attention maps of {_kind(loaded)} cannot be tied to its modules")
        layer: Layer = owner._cijing_layer  # type: ignore[assignment]
        if shared:  # a module that serves several layers (ALBERT) has no number of its own: its calls are counted
            layer = Layer(layer.stack, sum(other.stack == layer.stack for other in labels), layer.module)
        labels[layer] = maps
    return labels


def _reported(output: Any) -> list[Tensor | None]:
    found: list[Tensor | None] = []
    for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"):
        found.extend(getattr(output, name, None) or ())
    return found


def _eager_layers(loaded: LoadedModel, batch: dict[str, Tensor]) -> tuple[dict[Layer, int], str]:
    try:
        maps, _ = eager_maps(loaded, batch)
    except (ModelError, TypeError, ValueError, NotImplementedError) as error:
        return {}, str(error).splitlines()[0]
    return {layer: m.shape[1] for layer, m in maps.items()}, "" if maps else "it returns no attention"


def _tapped_layers(loaded: LoadedModel, batch: dict[str, Tensor]) -> tuple[dict[Layer, int], str]:
    reason = why_not_tappable(loaded.backbone)
    if reason:
        return {}, reason
    request = RowRequest([[0]])
    try:
        with torch.inference_mode(), tap(loaded.backbone, request):
            loaded.backbone(**batch, **_no_cache(loaded))
    except TapError as error:
        return {}, str(error)
    return {layer: rows.shape[1] for layer, rows in request.rows.items()}, ""


def _route(loaded: LoadedModel, batch: dict[str, Tensor], path: Path, layers: dict[Layer, int], reason: str) -> Route:
    ordered, norms = _ordered(layers), _final_norms(loaded, batch, layers)
    return Route(path=path, layers=ordered, heads=_one_head_count(loaded, layers), reason=reason, final_norms=norms)


def _final_norms(loaded: LoadedModel, batch: dict[str, Tensor], layers: Iterable[Layer]) -> frozenset[str]:
    """Stacks whose last state differs from what their last block gives; also those whose blocks are not found."""
    modules = {module._cijing_layer.module: module for module in loaded.backbone.modules()}
    lists = {layer.stack: modules.get(re.split(r"\.\d+(?:\.|$)", layer.module)[0]) for layer in layers}
    given: dict[str, Any] = {}

    def keep(stack: str, module: nn.Module, args: Any, output: Any) -> None:
        given[stack] = output[0] if isinstance(output, tuple) else output

    hooks = [
        blocks[-1].register_forward_hook(partial(keep, stack))
        for stack, blocks in lists.items()
        if stack != "cross" and isinstance(blocks, nn.ModuleList)
    ]
    try:
        with torch.inference_mode():
            states = _states(loaded, loaded.backbone(**batch, output_hidden_states=True, **_no_cache(loaded)))
    finally:
        for hook in hooks:
            hook.remove()
    own = {name for name, found in states.items() if name in given and torch.equal(found[-1], given[name])}
    return frozenset(states) - own


def _asked_rows(maps: dict[Layer, Tensor], request: RowRequest) -> dict[Layer, Tensor]:
    rows = {}
    for layer, full in maps.items():
        if not request.reads(layer):
            continue
        heads = slice(None) if request.heads is None else list(request.heads)
        kept = full[:, heads].float()
        if request.queries is not None:
            index = request.queries.to(full.device)[:, None, :, None]
            kept = kept.gather(2, index.expand(-1, kept.shape[1], -1, kept.shape[3]))
        rows[layer] = kept
    return rows


def _states(loaded: LoadedModel, output: Any) -> dict[str, tuple[Tensor, ...]]:
    if loaded.kind == "encoder-decoder":
        return {"encoder": output.encoder_hidden_states, "decoder": output.decoder_hidden_states}
    return {loaded.kind: output.hidden_states}


def _no_cache(loaded: LoadedModel) -> dict[str, bool]:
    return {} if loaded.kind == "encoder" else {"use_cache": False}


def _some_ids(loaded: LoadedModel) -> list[int]:
    ids = list(loaded.tokenizer("苹果 a 1")["input_ids"])[:8]
    if not ids:
        raise ModelError(f"{loaded.name}: its tokenizer turns text into no tokens; model and tokenizer do not fit")
    return ids


def _one_head_count(loaded: LoadedModel, layers: dict[Layer, int]) -> int:
    counts = set(layers.values())
    if len(counts) > 1:
        raise ModelError(f"{loaded.name}: layers with different numbers of heads ({sorted(counts)}) are not supported")
    return counts.pop()


def _ordered(layers: dict[Layer, int]) -> tuple[Layer, ...]:
    order = {"encoder": 0, "decoder": 1, "cross": 2}
    return tuple(sorted(layers, key=lambda layer: (order[layer.stack], layer.index, layer.module)))


def _kind(loaded: LoadedModel) -> str:
    return type(loaded.backbone).__name__
