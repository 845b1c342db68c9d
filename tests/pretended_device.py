"""A device that there is not: numbers stand on the CPU, but their tensors say mps and refuse what an accelerator would.

What works on the CPU by luck alone fails here: tensors of two devices in one operation, .numpy() without .cpu(),
float64, which MPS does not have.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

KIND = "mps"


class DeviceFault(RuntimeError):
    """What an accelerator would refuse; as on a real one, a RuntimeError."""


class Held(Tensor):
    """A tensor of the pretended device around one of the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Held":
        shape = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        return Tensor._make_wrapper_subclass(cls, held.shape, device=f"{KIND}:0", **shape)

    def __init__(self, held: Tensor) -> None:
        if held.dtype == torch.float64:
            raise DeviceFault("float64 on a device that has none")
        self.held = held

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.tolist:  # torch refuses it to every subclass
            return args[0].held.tolist()
        if func is Tensor.data_ptr:
            return args[0].held.data_ptr()
        try:
            if func is not nn.functional.scaled_dot_product_attention:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if not str(error).startswith(("PyTorch is not linked", "Could not run")):
                raise
        # Some functions ask for the device itself before they come to an operation.
        check_one_device(func, [args, kwargs])
        return up(func(*down(args), **down(kwargs or {})))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        copies = "copy" in str(func)
        if not copies:
            check_one_device(func, [args, given])
        to = given.get("device")
        if to is not None:
            given["device"] = torch.device("cpu")
        out = func(*down(args), **down(given))
        if func._schema.name.endswith("_") and args and isinstance(args[0], Tensor):  # in place
            return args[0]
        return out if copies and _is_cpu(to) else up(out)


class Pretending(TorchFunctionMode):
    """Within it, tensors made on the pretended device, or moved there, are made."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        wanted = [value for value in (given.get("device"), *args[1:]) if _is_ours(value)]
        if not wanted:
            return func(*args, **given)
        plain = torch.device("cpu")
        if func is Tensor.to and isinstance(args[0], Held):
            moved = [None if _is_ours(value) else value for value in args[1:]]
            dtype = next((value for value in (given.get("dtype"), *moved) if isinstance(value, torch.dtype)), None)
            return args[0] if dtype is None else args[0].to(dtype)
        args = [plain if place and _is_ours(value) else value for place, value in enumerate(args)]
        if "device" in given:
            given["device"] = plain
        return up(func(*args, **given))


@contextlib.contextmanager
def pretended(model: nn.Module) -> Iterator[torch.device]:
    """Within the block the model stands on the pretended device."""
    before = {module: (dict(module._parameters), dict(module._buffers)) for module in model.modules()}
    moved: dict[int, Any] = {}  # tied weights stay tied

    def held(tensor: Tensor | None, *, weight: bool) -> Tensor | None:
        if tensor is None:
            return None
        if id(tensor) not in moved:
            one = Held(tensor.detach())
            moved[id(tensor)] = nn.Parameter(one, requires_grad=False) if weight else one
        return moved[id(tensor)]

    for module in model.modules():
        module._parameters.update({name: held(one, weight=True) for name, one in module._parameters.items()})
        module._buffers.update({name: held(one, weight=False) for name, one in module._buffers.items()})
    generator = torch.Generator()
    stand_ins = [
        mock.patch.object(torch, "inference_mode", torch.no_grad),  # which no tensor subclass survives
        mock.patch.object(torch, "Event", mock.Mock),
        mock.patch.object(torch.mps, "get_rng_state", generator.get_state),
        mock.patch.object(torch.mps, "set_rng_state", generator.set_state),
        mock.patch.object(torch.mps, "manual_seed", generator.manual_seed),
    ]
    try:
        with contextlib.ExitStack() as stack:
            for stand_in in stand_ins:
                stack.enter_context(stand_in)
            stack.enter_context(Pretending())
            yield torch.device(KIND, 0)
    finally:
        for module, (parameters, buffers) in before.items():
            module._parameters.update(parameters)
            module._buffers.update(buffers)


def check_one_device(func: Any, values: Any) -> None:
    """DeviceFault where an operation is given tensors of the CPU, single numbers apart, beside ours."""
    plain = [one for one in tree_leaves(values) if isinstance(one, Tensor) and not isinstance(one, Held)]
    if any(one.dim() for one in plain):
        raise DeviceFault(f"{func} mixes tensors of {KIND} and of the CPU")


def down(values: Any) -> Any:
    return tree_map(lambda one: one.held if isinstance(one, Held) else one, values)


def up(values: Any) -> Any:
    return tree_map(lambda one: Held(one) if isinstance(one, Tensor) and not isinstance(one, Held) else one, values)


def _is_cpu(value: Any) -> bool:
    return value is not None and torch.device(value).type == "cpu"


def _is_ours(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == KIND
    return isinstance(value, str) and value.split(":")[0] == KIND
