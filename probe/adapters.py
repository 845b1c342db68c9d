"""PEFT adapter folders: what they are for, which model class they fit, and whether every tensor was loaded."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import ModelError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
WITH_VIRTUAL_TOKENS = {
    "PROMPT_TUNING",
    "MULTITASK_PROMPT_TUNING",
    "P_TUNING",
    "PREFIX_TUNING",
    "ADAPTION_PROMPT",
    "CPT",
    "CARTRIDGE",
}
TASK_CLASSES = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "FEATURE_EXTRACTION": "AutoModel",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapter:
    """An adapter folder: its base model's name, its method, and the shapes of its tensors."""

    folder: Path
    method: str  # e.g. "LORA"
    base: str
    base_revision: str | None
    task: str | None
    shapes: Mapping[str, tuple[int, ...]]


def read_adapter(folder: Path, name: str) -> Adapter:
    """The adapter's facts, without loading torch; refuses what cannot be read or would move the tokens."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{name}: {CONFIG} is not valid JSON: {error}") from error
    method, base = str(config.get("peft_type")), config.get("base_model_name_or_path")
    check_method(method, name)
    if not base:
        raise ModelError(f"{name}: {CONFIG} names no base model (base_model_name_or_path)")
    if not (folder / WEIGHTS).is_file():
        pickled = " (adapter_model.bin is pickled, which can run code when read)"
        found = pickled if (folder / "adapter_model.bin").exists() else ""
        raise ModelError(f"{name} has no {WEIGHTS}{found}; save the adapter with safe_serialization=True")
    return Adapter(
        folder=folder,
        method=method,
        base=str(base),
        base_revision=config.get("revision"),
        task=config.get("task_type"),
        shapes=_shapes(folder / WEIGHTS, name),
    )


def check_method(method: str, name: str) -> None:
    """Refuses adapters that put virtual tokens in front of the text."""
    method = method.rpartition(".")[2]
    if method in WITH_VIRTUAL_TOKENS:
        raise ModelError(
            f"{name} is a {method} adapter: its virtual tokens shift the keys, so that attention rows no longer "
            "stand for the text's tokens; LoRA and the like can be read"
        )


def _shapes(path: Path, name: str) -> dict[str, tuple[int, ...]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{name}: {path.name} is damaged or incomplete ({error})") from error


def label_count(adapter: Adapter) -> int | None:
    """How many labels a classifier has that was saved with the adapter."""
    heads = ("score.weight", "classifier.weight", "classifier.out_proj.weight", "qa_outputs.weight")
    counts = [shape[0] for name, shape in adapter.shapes.items() if name.endswith(heads)]
    return counts[0] if counts else None


def fits(adapter: Adapter, model: Any) -> bool:
    """Whether every tensor of the adapter belongs to a leaf module of the model (which may lie on "meta")."""
    modules = dict(model.named_modules())
    return all(_has_place(name.removeprefix(PREFIX).split("."), modules) for name in adapter.shapes)


def _has_place(parts: list[str], modules: Mapping[str, Any]) -> bool:
    """Walks down as far as the model has modules; what is left must hang on a module without children."""
    path = ""
    for part in parts:
        longer = f"{path}.{part}" if path else part
        if longer not in modules:
            break
        path = longer
    return bool(path) and not list(modules[path].children())


def attach(model: Any, adapter: Adapter, name: str) -> Any:
    """A PeftModel around the model, which is changed in place; refuses if a tensor stayed unused or was made up."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ModelError(f"{name}: adapters are read with the package peft: pip install peft") from error
    try:
        adapted = PeftModel.from_pretrained(model, str(adapter.folder), torch_device="cpu")
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{name}: the adapter does not fit its base {adapter.base}: {reason}") from error
    _check_loaded(adapted, adapter, name)
    return adapted


def _check_loaded(adapted: Any, adapter: Adapter, name: str) -> None:
    """Compares what PEFT would save again with what the file holds: same names, same values."""
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    saved = load_file(str(adapter.folder / WEIGHTS))
    loaded = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    missing, made_up = sorted(set(saved) - set(loaded)), sorted(set(loaded) - set(saved))
    if missing or made_up:
        what = f"{missing[0]} was not loaded" if missing else f"{made_up[0]} is not in the file"
        count = len(missing) + len(made_up)
        raise ModelError(f"{name}: {count} adapter tensors do not match the base {adapter.base}: {what}")
    for key, tensor in saved.items():
        if not torch.equal(tensor.to(loaded[key].dtype), loaded[key].cpu()):
            raise ModelError(f"{name}: {key} differs from the file after loading")
