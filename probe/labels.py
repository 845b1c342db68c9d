"""What an attention layer is called: by the module that it is, whatever wrappers stand around the model."""

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from probe.anatomy import Kind, kind_of
from probe.edits import Stack
from probe.errors import TapError
from probe.wrappers import unwrapped


@dataclass(frozen=True, order=True)
class Layer:
    """One attention layer, labelled by the module that it is."""

    stack: Stack
    index: int
    """0-based, the number in the module's own name: in a hybrid model, attention layers may be 3, 7, 11."""
    module: str
    """Canonical name: relative to the model without its head and without PEFT's or DDP's prefixes."""


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
    canonicals = {name: name.removeprefix(own) for name, _ in root.named_modules()}
    indices = frozenset(range(depths)) or frozenset(map(_index, canonicals.values()))
    for name, module in root.named_modules():
        canonical = canonicals[name]
        module._cijing_name = name
        module._cijing_layer = Layer(stack_of(root, module, canonical, kind=kind), _index(canonical), canonical)
        module._cijing_indices = indices
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


def layer_of(module: nn.Module) -> Layer:
    """The label that `attached` gave a module of the model."""
    label = getattr(module, "_cijing_layer", None)
    if not isinstance(label, Layer):
        raise TapError(f"{type(module).__name__} computed attention but is no part of the tapped model")
    return label


def _shared_depths(config: Any) -> int:
    """How many layers are served by fewer modules (ALBERT's groups), 0 where each layer has modules of its own."""
    depths = int(getattr(config, "num_hidden_layers", 0) or 0)
    return depths if getattr(config, "num_hidden_groups", depths) < depths else 0


def _index(name: str) -> int:
    found = re.search(r"\.(\d+)(?:\.|$)", f".{name}")
    return int(found.group(1)) if found else -1
