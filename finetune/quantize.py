"""QLoRA's base: linear maps in 4 bit (nf4, its scales quantised again), changed in place after loading."""

import importlib.util
from typing import Any

import torch
from torch import nn

from finetune.config import RunConfig
from finetune.errors import ConfigError

PACKAGE = "bitsandbytes"
BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # a weight: 4 bit, an 8-bit scale for 64 of them, a 32-bit one for 256 scales
NOTE = (
    "trained on a base in 4 bit (nf4, double quantisation): on the base as it is published the adapter's answers "
    "differ a little; `merge` merges into the published weights and measures by how much"
)


def refuse_without(config: RunConfig) -> None:
    """ConfigError where 4 bit is asked for and cannot be had."""
    if config.lora.quantize == "4bit" and importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(f"lora.quantize 4bit needs {PACKAGE}, which is not installed: pip install '{PACKAGE}>=0.50'")


def quantised(model: Any, config: RunConfig, *, spared: set[str]) -> Any:
    """The model with its linear maps in 4 bit, ready for LoRA; ConfigError where there is none to quantise.

    Maps below a module named in `spared` (output embeddings, task heads) keep their precision, as do embeddings and
    norms. Computed in bfloat16 or float16 where the run trains so, else in float32.
    """
    if model.device.type == "mps":
        raise ConfigError(f"lora.quantize 4bit: {PACKAGE} has no kernels for mps; allowed are cuda and cpu")
    compute = _compute_dtype(config)
    maps = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is nn.Linear and not spared & set(name.split("."))
    ]
    if not maps:
        raise ConfigError(f"lora.quantize 4bit: {config.model} has no linear map that {PACKAGE} can quantise")
    for name, module in maps:
        home, _, last = name.rpartition(".")
        setattr(model.get_submodule(home), last, _in_four_bits(module, compute))
    model.is_loaded_in_4bit = True  # PEFT and accelerate ask for it
    return _prepared(model, config)


def quantised_weights(model: nn.Module, *, spared: set[str]) -> int:
    """How many weights would be in 4 bit."""
    return sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if type(module) is nn.Linear and not spared & set(name.split("."))
    )


def _compute_dtype(config: RunConfig) -> torch.dtype:
    if config.training.get("bf16"):
        return torch.bfloat16
    return torch.float16 if config.training.get("fp16") else torch.float32


def _in_four_bits(module: nn.Linear, compute: torch.dtype) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Params4bit

    device = module.weight.device
    new = Linear4bit(
        module.in_features, module.out_features, bias=module.bias is not None, compute_dtype=compute,
        compress_statistics=True, quant_type="nf4", device="meta",
    )  # fmt: skip
    new.weight = Params4bit(
        module.weight.data.cpu(), requires_grad=False, compress_statistics=True, quant_type="nf4", module=new
    )
    new.bias = module.bias
    new.train(module.training)
    found: nn.Module = new.to(device)  # the move quantises
    return found


def _prepared(model: Any, config: RunConfig) -> Any:
    """Frozen, the rest in float32; checkpointing of the kind that keeps the gradient of attention rows."""
    from peft import prepare_model_for_kbit_training

    checkpointing = bool(config.training.get("gradient_checkpointing"))
    return prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=checkpointing, gradient_checkpointing_kwargs={"use_reentrant": False}
    )
