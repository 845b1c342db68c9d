"""What each head writes into its layer's output: values and head outputs through W_O, adapters included.

W_O is found by following the very tensor that attention returned to the linear map that is handed it, not by a name.
Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms".
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from probe.errors import TapError

# Largest difference between the sum over heads and the module's own output, as a share of its largest number above 1.
_BOUND = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@dataclass(frozen=True, kw_only=True, eq=False)
class Handed:
    """What one attention call returned, until the linear map that it goes into is seen."""

    module: str
    output: Tensor  # [batch, query, head, dim]
    value: Tensor  # [batch, kv head, key, dim]
    positions: Tensor  # [batch, query], the asked ones


@dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """What the heads of one call wrote, fp32."""

    head_outputs: Tensor | None  # [batch, head, query, model]
    transformed_norms: Tensor | None  # [batch, head, key]


Seen = Callable[[nn.Module, Tensor, Tensor], None]  # linear map, its input, its output


@contextlib.contextmanager
def followed(root: nn.Module, seen: Seen) -> Iterator[None]:
    """Within the block `seen` is told of every call of a linear map of the model."""

    def tell(module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            seen(module, args[0], output)

    hooks = [module.register_forward_hook(tell) for module in linear_maps(root)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def linear_maps(root: nn.Module) -> list[nn.Module]:
    """Every linear map of the model, the outermost where an adapter wraps one."""
    found: dict[str, nn.Module] = {}
    for name, module in root.named_modules():
        inside = any(name[:place] in found for place, letter in enumerate(name) if letter == ".")
        if not inside and _is_linear_map(module):
            found[name] = module
    return list(found.values())


def is_handed(handed: Handed, given: Tensor) -> bool:
    """Whether a linear map was given the very numbers that attention returned, heads side by side."""
    out = handed.output
    same = given.data_ptr() == out.data_ptr() and given.numel() == out.numel() and given.is_contiguous()
    return same and given.shape[-1] == out.shape[2] * out.shape[3]


def written(handed: Handed, module: nn.Module, given: Tensor, result: Tensor, *, outputs: bool, norms: bool) -> Written:
    """What each head wrote, checked: heads and bias must add up to the linear map's own output (TapError)."""
    with torch.no_grad():
        matrix, bias = _matrix_of(handed, module, given)
    with torch.no_grad(), torch.autocast(given.device.type, enabled=False):
        heads, dim = handed.output.shape[2:]
        matrix = matrix.view(heads, dim, -1)  # [head, dim, model]
        per_head = _through(handed, matrix)
        _check_sum(handed, per_head.sum(1) + bias, result.view(*handed.output.shape[:2], -1))
        return Written(
            head_outputs=per_head if outputs else None,
            transformed_norms=_norms(handed.value.float(), matrix) if norms else None,
        )


def _is_linear_map(module: nn.Module) -> bool:
    base = getattr(module, "base_layer", None)
    if isinstance(base, nn.Module):  # inside an adapter of PEFT
        return _is_linear_map(base)
    sized = hasattr(module, "in_features") and hasattr(module, "out_features")
    return sized or type(module).__name__ == "Conv1D"


def _matrix_of(handed: Handed, module: nn.Module, given: Tensor) -> tuple[Tensor, Tensor]:
    """W_O [head · dim, model] and its bias [model], fp32."""
    if type(module) is nn.Linear:
        weight, bias = module.weight.detach(), module.bias
        if weight.device == given.device and weight.is_floating_point():
            return weight.T.float(), weight.new_zeros(len(weight)).float() if bias is None else bias.float()
    # Adapters, quantised and transposed weights: what the map makes of unit vectors, whatever it is made of.
    unit = torch.eye(given.shape[-1], dtype=given.dtype, device=given.device)
    try:
        bias = module(unit.new_zeros(1, len(unit))).float()
        return module(unit).float() - bias, bias[0]
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TapError(f"{handed.module}: its output projection cannot be computed by itself ({reason})") from error


def _through(handed: Handed, matrix: Tensor) -> Tensor:
    """Each head's output at the asked queries through its part of W_O: [batch, head, query, model]."""
    items = torch.arange(len(handed.positions), device=handed.positions.device)[:, None]
    asked = handed.output.detach()[items, handed.positions].float()  # [batch, query, head, dim]
    return torch.einsum("bqhd,hdm->bhqm", asked, matrix)


def _norms(value: Tensor, matrix: Tensor) -> Tensor:
    """Norm of each value vector through its head's part of W_O: [batch, head, key]; head by head, to stay small."""
    group = len(matrix) // value.shape[1]  # query heads that share a value head
    norms = [(value[:, head // group] @ part).norm(dim=-1) for head, part in enumerate(matrix)]
    return torch.stack(norms, dim=1)


def _check_sum(handed: Handed, found: Tensor, result: Tensor) -> None:
    items = torch.arange(len(handed.positions), device=handed.positions.device)[:, None]
    expected = result.detach()[items, handed.positions].float()
    bound = _BOUND[result.dtype] * max(1.0, float(expected.abs().max()))
    gap = float((found - expected).abs().max())
    if not gap <= bound:  # also a NaN
        raise TapError(
            f"{handed.module}: its heads add up to another output than its own (off by {gap:.1e}, {bound:.1e} allowed):"
            " the output projection is not linear in the heads (dropout, 8-bit activations, a hook?)"
        )
