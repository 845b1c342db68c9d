"""One module of a model by its formula: norms and linear maps, and the tables that embeddings come from."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probe.walking import algebra
from probe.walking.algebra import Floats, agrees
from probe.walking.blocktrace import ModuleCall


def by_formula(call: ModuleCall) -> tuple[str, Any]:
    """What a module makes of its first tensor, by the formula that gives its own numbers: (form, numbers or None)."""
    given, own = call.given[0], call.result
    assert own is not None
    if same(given, own):
        return "same", given
    if is_linear(call.module):
        return "linear", through(call, np.arange(own.shape[-1]))
    weight, bias = (numbers_of(getattr(call.module, name, None)) for name in ("weight", "bias"))
    if given.shape != own.shape or (weight is not None and weight.shape != given.shape[-1:]):
        return "", None
    for eps in _epsilons(call.module):
        for form, ours in algebra.norm_forms(given, weight, bias, eps):
            if agrees(ours, own):
                return form, ours
    return "", None


def _epsilons(module: Any) -> list[float]:
    names = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps")
    found = [getattr(module, name, None) for name in names]
    return [float(eps) for eps in found if isinstance(eps, float)] or [1e-6, 1e-5]


def through(call: ModuleCall, columns: NDArray[np.int64]) -> Any:
    """Chosen columns of a linear map: [token, column], or [head, token, dim] for columns [head, dim]."""
    given = call.given[0].reshape(-1, call.given[0].shape[-1]).astype(np.float64)
    matrix, bias = matrix_of(call.module, given.shape[-1])
    if columns.ndim == 1:
        return given @ matrix[columns].T + bias[columns]
    return np.einsum("ti,hdi->htd", given, matrix[columns]) + bias[columns][:, None]


def matrix_of(module: Any, width: int) -> tuple[Floats, Floats]:
    """A linear map's matrix [out, in] and bias [out]; of adapters and the like what they make of unit vectors."""
    if type(module) is torch.nn.Linear and module.weight.is_floating_point():
        weight = numbers_of(module.weight)
    elif type(module).__name__ == "Conv1D":
        weight = numbers_of(module.weight).T
    else:
        unit = torch.eye(width, device=next(module.parameters()).device)
        with torch.inference_mode():
            bias = numbers_of(module(torch.zeros_like(unit[:1])))[0]
            return (numbers_of(module(unit)) - bias).T, bias
    bias = numbers_of(module.bias)
    return weight, np.zeros(len(weight)) if bias is None else bias


def terms_of(module: Any) -> tuple[str, ...]:
    """Which learned parts a norm (scale, shift) or a linear map (bias) has beside what its formula always holds."""
    bias = getattr(getattr(module, "base_layer", module), "bias", None)
    if is_linear(module):
        return () if bias is None else ("bias",)
    learned = (("scale", getattr(module, "weight", None)), ("shift", bias))
    return tuple(name for name, numbers in learned if numbers is not None)


def is_linear(module: Any) -> bool:
    """Whether a module is a linear map, whatever adapter stands around it."""
    base = getattr(module, "base_layer", None)
    sized = hasattr(module, "in_features") and hasattr(module, "out_features")
    return sized or type(module).__name__ == "Conv1D" or (base is not None and is_linear(base))


def is_table(call: ModuleCall) -> bool:
    """Whether a call looked rows up in a table."""
    return isinstance(call.module, torch.nn.Embedding)


def shares_weight(module: Any, table: Any) -> bool:
    """Whether two tables are one: T5 and BART look up in a module of their own with the shared weight."""
    return module is table or (
        module.weight.shape == table.weight.shape and module.weight.data_ptr() == table.weight.data_ptr()
    )


def over_tokens(array: Any, count: int) -> Any:
    """A [token, dim] array, also of one that is the same for every token; None for another shape."""
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[0] not in (1, count):
        return None
    return np.broadcast_to(array, (count, array.shape[1])).astype(np.float64)


def scale_between(raw: Floats, found: Any) -> float | None:
    """The number that the model multiplies a table's rows by: 1, or √dim (Gemma); None if another."""
    return next((s for s in (1.0, raw.shape[1] ** 0.5) if agrees(raw * s, found)), None)


def same(one: Any, other: Any) -> bool:
    """Whether two arrays hold the same numbers, whatever their shape."""
    return (
        one is not None and other is not None and one.size == other.size and np.array_equal(one.ravel(), other.ravel())
    )


def numbers_of(tensor: Any) -> Any:
    """A tensor as float64 on the CPU; None stays None."""
    return None if tensor is None else tensor.detach().float().cpu().numpy().astype(np.float64)
