"""What may stand around a model: DDP, torch.compile, PEFT, gradient checkpointing; found, or named as the reason."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from probe.adapters import WITH_VIRTUAL_TOKENS
from probe.errors import TapError


def unwrapped(model: nn.Module) -> Any:
    """The transformers model inside DDP, torch.compile and PEFT wrappers, adapters still in place."""
    return list(_unwrapping(model))[-1]


def _unwrapping(model: nn.Module) -> Iterator[Any]:
    """The model, then what each wrapper holds, from the outside in."""
    inner: Any = model
    while inner is not None:
        yield inner
        if hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        elif hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        else:
            inner = inner.module if isinstance(getattr(inner, "module", None), nn.Module) else None


def virtual_tokens(model: nn.Module) -> str | None:
    """Why a PEFT wrapper that puts virtual tokens in front of the text gives no rows of the text's tokens."""
    for wrapper in _unwrapping(model):
        configs = getattr(wrapper, "peft_config", {}) if hasattr(wrapper, "get_base_model") else {}
        methods = {str(config.peft_type).rpartition(".")[2] for config in configs.values()} & WITH_VIRTUAL_TOKENS
        if methods:
            return (
                f"{min(methods)} puts virtual tokens in front of the text, so that a key's place is not its token's: "
                "LoRA and the like can be tapped, or the base model without its adapter"
            )
    return None


@contextlib.contextmanager
def outside_of_graphs(root: Any) -> Iterator[None]:
    """torch.compile may break its graph at the tap; where it was told not to, say so in place of its own pages."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith("torch._dynamo"):
            raise
        raise TapError(
            f"{type(root).__name__} is compiled with fullgraph=True, but rows are kept outside the graph: "
            "compile without it, or tap the model before it is compiled"
        ) from error


def is_reentrant(root: Any) -> bool:
    """Whether gradient checkpointing is on and of the reentrant kind, which drops the gradient of attention rows."""
    for module in root.modules():
        # vars, for a miss in a Module's own lookup is slow; what switches checkpointing on sets both on the instance.
        own = vars(module)
        if own.get("gradient_checkpointing", False) and own.get("_gradient_checkpointing_func") is not None:
            return bool(getattr(own["_gradient_checkpointing_func"], "keywords", {}).get("use_reentrant", True))
    return False
