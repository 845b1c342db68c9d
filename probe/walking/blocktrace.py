"""What one block of a model computed for one text: every module's tensors, and attention's own products on the way.

Two passes: one as captures have it (through the tap where the family allows it), and one with eager attention, in
which every function called inside the block is seen, so that scores and weights are the model's own, not ours.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from probe.errors import TapError
from probe.labels import Layer
from probe.models import LoadedModel
from probe.routes import Route
from probe.rowrequest import AttentionCall, RowRequest
from probe.rows import ScoreTerms
from probe.rowtap import tap
from probe.switching import eagerly
from probe.walking.algebra import agrees

Array = NDArray[Any]
PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum", "__matmul__", "__rmatmul__")


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleCall:
    """One call of one module, of the single text: arrays without the batch axis."""

    name: str  # relative to the model without its head
    module: nn.Module
    given: tuple[Array, ...]  # every tensor among its arguments
    result: Array | None  # the first tensor it gave


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionCall:
    """One function that eager attention called: a product, a softmax, or one with a number for each pair of tokens."""

    name: str
    given: tuple[Array, ...]  # tensors among its arguments
    result: Array  # [head, query, key], one more column where a sink takes part; of a product any shape


@dataclass(frozen=True, kw_only=True, eq=False)
class HandedOver:
    """What one layer handed to attention and got back, of the single text."""

    query: Array  # [head, token, dim]
    key: Array  # [kv head, token, dim]
    value: Array  # [kv head, token, value dim]
    output: Array  # [token, head, value dim]
    terms: ScoreTerms


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockTrace:
    """One block's computation."""

    before: tuple[ModuleCall, ...]  # what ran before the first block: embeddings and positions
    entry: Array | None  # what the first block was given, [token, dim]
    calls: tuple[ModuleCall, ...]  # inside the block, in the order in which they ended
    attention: ModuleCall
    block: ModuleCall
    handed: HandedOver | None  # None where it cannot be told from what eager attention computed
    grids: tuple[FunctionCall, ...]  # from the pass with eager attention


@dataclass(kw_only=True, eq=False)
class _Recorder:
    """What the hooks of one pass fill."""

    block: nn.Module
    attention: nn.Module
    tokens: int
    wanted: int | None  # which of the block's calls; None: the one during which `found` is set
    entered: int = 0
    inside: bool = False
    found: bool = False
    entry: Array | None = None
    before: list[ModuleCall] = field(default_factory=list)
    calls: list[ModuleCall] = field(default_factory=list)
    grids: list[FunctionCall] = field(default_factory=list)
    kept: tuple[int, list[ModuleCall], list[FunctionCall]] | None = None


def trace_block(loaded: LoadedModel, route: Route, batch: dict[str, Tensor], layer: Layer) -> BlockTrace:
    """Run the model on one text and give what the block of `layer` computed; TapError where it cannot be followed."""
    name = _block_name(loaded.backbone, layer)
    block, attention = loaded.backbone.get_submodule(name), loaded.backbone.get_submodule(layer.module)
    handed: list[AttentionCall] = []
    first = _Recorder(block=block, attention=attention, tokens=batch["input_ids"].shape[1], wanted=None)

    def inspect(call: AttentionCall) -> None:
        if call.layer == layer:
            handed.append(call)
            first.found = True

    if route.path == "tap":
        with _recording(loaded.backbone, first), tap(loaded.backbone, RowRequest([[0]], inspect=inspect)):
            _run(loaded, batch)
        if first.kept is None:
            raise TapError(f"{layer.module} did not compute inside {name}, so its block cannot be followed")
    number = first.kept[0] if first.kept else 0
    eager = _Recorder(block=block, attention=attention, tokens=first.tokens, wanted=number)
    with eagerly(loaded.backbone), _recording(loaded.backbone, eager), _Functions(eager):
        _run(loaded, batch)
    kept = first.kept or eager.kept
    if kept is None or eager.kept is None:
        raise TapError(f"{name} did not run, so it cannot be followed")
    calls = kept[1]
    attention_call = next(call for call in calls if call.module is attention)
    return BlockTrace(
        before=tuple(first.before or eager.before),
        entry=eager.entry,
        calls=tuple(calls[:-1]),
        attention=attention_call,
        block=calls[-1],
        handed=_handed(handed[0]) if handed else handed_eagerly(attention_call, eager.kept[2], eager.tokens),
        grids=tuple(eager.kept[2]),
    )


def _run(loaded: LoadedModel, batch: dict[str, Tensor]) -> None:
    with torch.inference_mode():
        loaded.backbone(**batch, **({} if loaded.kind == "encoder" else {"use_cache": False}))


def _block_name(backbone: nn.Module, layer: Layer) -> str:
    """The outermost module of a list that the attention stands in."""
    parts = layer.module.split(".")
    for length in range(1, len(parts)):
        if isinstance(backbone.get_submodule(".".join(parts[:length])), nn.ModuleList):
            return ".".join(parts[: length + 1])
    raise TapError(f"{layer.module} stands in no list of blocks, so its block cannot be followed")


def _handed(call: AttentionCall) -> HandedOver:
    query, key, value, output = (_array(part[0]) for part in (call.query, call.key, call.value, call.output))
    return HandedOver(query=query, key=key, value=value, output=output, terms=call.terms)


def handed_eagerly(attention: ModuleCall, grids: Sequence[FunctionCall], tokens: int) -> HandedOver | None:
    """What eager attention itself multiplied, for a family that does not pass through the tap.

    None where its scores hold more than query · key, a bias that the module was given, and a mask.
    """
    softmaxes = [call for call in grids if call.name == "softmax" and call.given and call.result.ndim == 3]
    products = [call for call in grids if call.name in PRODUCTS and len(call.given) >= 2 and call.result.ndim == 3]
    if len(softmaxes) != 1 or len(products) != 2 or products[0].result.shape != softmaxes[0].result.shape:
        return None
    query, key = products[0].given[-2], products[0].given[-1]
    value, output = products[1].given[-1], products[1].result
    query, key, value = (part[None] if part.ndim == 2 else part for part in (query, key, value))
    if query.shape[:2] != output.shape[:2] or key.shape[1] != query.shape[2]:
        return None
    key = key.transpose(0, 2, 1)
    terms = _terms_of_scores(query, key, softmaxes[0].given[0], attention.given)
    if terms is None:
        return None
    return HandedOver(query=query, key=key, value=value, output=output.transpose(1, 0, 2), terms=terms)


def _terms_of_scores(query: Array, key: Array, scores: Array, given: Sequence[Array]) -> ScoreTerms | None:
    """The scaling, bias and mask whose sum with query · key gives the scores that went into the softmax."""
    products = query.astype(np.float64) @ np.broadcast_to(key, (len(query), *key.shape[1:])).transpose(0, 2, 1)
    allowed = scores > np.finfo(np.float32).min / 2
    tokens = scores.shape[-1]  # a bias may be made for the longest text: its last columns count (MPT)
    shorter = [array[..., -tokens:] for array in given if array.ndim and array.shape[-1] > tokens]
    grids = [array for array in (*given, *shorter) if _fits(array, scores.shape)]
    added = [np.broadcast_to(array, scores.shape) for array in grids]
    biases = [array for array in added if np.abs(array[allowed]).max() > 0]
    for scaling in (query.shape[-1] ** -0.5, 1.0):
        for bias in (np.zeros(scores.shape), *biases):
            if agrees((products * scaling + bias)[allowed], scores[allowed]):
                return ScoreTerms(
                    scaling=scaling,
                    mask=torch.from_numpy(allowed)[None],
                    causal=False,
                    position_bias=torch.from_numpy(bias.astype(np.float32))[None] if bias.any() else None,
                    softcap=None,
                    sinks=None,
                )
    return None


def _fits(array: Array, shape: tuple[int, ...]) -> bool:
    """Whether an array is a grid over keys that can be added to scores [head, query, key]."""
    if array.dtype.kind != "f" or array.ndim not in (2, 3) or array.shape[-1] != shape[-1]:
        return False
    return all(size in (1, full) for size, full in zip(array.shape[::-1], shape[::-1], strict=False))


@contextlib.contextmanager
def _recording(backbone: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Within the block every module of the model tells the recorder what it was given and what it gave."""
    blocks = recorder.block

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        recorder.inside, recorder.calls, recorder.grids = True, [], []

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        wanted = recorder.found if recorder.wanted is None else recorder.entered == recorder.wanted
        if wanted and recorder.kept is None:
            recorder.kept = (recorder.entered, recorder.calls, recorder.grids)
        recorder.entered += 1
        recorder.inside = False

    def tell(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if recorder.inside or recorder.entry is None:
            call = ModuleCall(name=name, module=module, given=_arrays((args, kwargs)), result=_first(output))
            (recorder.calls if recorder.inside else recorder.before).append(call)

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        if recorder.entry is None:
            recorder.entry = next(iter(_arrays((args, kwargs))), None)

    hooks = [blocks.register_forward_pre_hook(enter, with_kwargs=True)]
    for name, module in backbone.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) and _holds(module, recorder.attention):
            hooks.append(module[0].register_forward_pre_hook(begin, with_kwargs=True))
        hooks.append(module.register_forward_hook(_named(tell, name), with_kwargs=True))
    hooks.append(blocks.register_forward_hook(leave, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _named(tell: Callable[..., None], name: str) -> Callable[..., None]:
    return lambda module, args, kwargs, output: tell(name, module, args, kwargs, output)


def _holds(module: nn.Module, inner: nn.Module) -> bool:
    return any(part is inner for part in module.modules())


class _Functions(TorchFunctionMode):
    """Tells the recorder of every function inside the block that gives a number for each pair of tokens."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(getattr(func, "__name__", func))
        watched = self.recorder.inside and name in (*PRODUCTS, "softmax")
        given = _arrays((args, kwargs)) if watched else ()
        output = func(*args, **(kwargs or {}))
        if self.recorder.inside and isinstance(output, Tensor) and output.is_floating_point() and output.dim() >= 3:
            tokens = self.recorder.tokens
            if watched or (output.shape[-2] == tokens and output.shape[-1] in (tokens, tokens + 1)):
                call = FunctionCall(name=name, given=given, result=_without_batch(_array(output)))
                self.recorder.grids.append(call)
        return output


def _arrays(value: Any) -> tuple[Array, ...]:
    return tuple(_without_batch(_array(tensor)) for tensor in _tensors(value))


def _without_batch(array: Array) -> Array:
    """Without the leading axis that holds the one text."""
    return array[0] if array.ndim > 1 and array.shape[0] == 1 else array


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from _tensors(part)


def _first(output: Any) -> Array | None:
    return next(iter(_arrays(output)), None)


def _array(tensor: Tensor) -> Array:
    """A copy on the CPU; what is computed in place later does not reach it."""
    kept = tensor.detach()
    if kept.dtype in (torch.bfloat16, torch.float16):
        kept = kept.float()
    array: Array = kept.cpu().numpy().copy()
    return array
