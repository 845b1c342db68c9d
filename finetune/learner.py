"""A model that can be taught: loaded for its task, with LoRA at its queries and keys or whole, and a head if needed."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from finetune.adapters import adapter_on
from finetune.bases import keep_base
from finetune.batches import pad_id_of
from finetune.checkpoints import load_head
from finetune.config import LoraConfig, RunConfig
from finetune.dataconfig import Task
from finetune.errors import ConfigError
from finetune.quantize import NOTE, quantised, refuse_without
from finetune.tasks import MODEL_CLASSES, PEFT_TASKS, READING, head_for
from finetune.whole import load_weights
from probe import LoadedModel, Outline, load_model

_WITH_HEAD = ("MaskedLM", "LMHead", "BertForPreTraining", "ForConditionalGeneration")
# How families call the linear maps of attention: query and key (or one map for all three), value, output.
QUERIES_AND_KEYS = (
    ("q_proj", "k_proj"), ("query", "key"), ("q_lin", "k_lin"), ("q", "k"), ("query_proj", "key_proj"),
    ("linear_q", "linear_k"), ("wq", "wk"), ("to_q", "to_k"), ("q_b_proj", "kv_b_proj"), ("q_proj", "kv_b_proj"),
)  # fmt: skip
FUSED = ("query_key_value", "Wqkv", "c_attn", "qkv_proj", "qkv", "query_key_value_proj", "W_pack")
OTHERS = (
    "v_proj", "o_proj", "out_proj", "value", "v_lin", "out_lin", "v", "o", "value_proj", "dense", "c_proj", "Wo",
    "linear_v", "linear_out", "wv", "wo", "to_v", "to_out",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Learner:
    """A model for a task, and what was found on the way."""

    model: Any  # PeftModel, or the base's own class with method full; a reading task's head is its `reading_head`
    loaded: LoadedModel  # the base: tokenizer, kind, licence facts
    targets: tuple[str, ...]  # names of the linear maps that carry LoRA; empty with method full
    notes: tuple[str, ...]
    new: frozenset[str] = frozenset()  # method full: weights that the base has not, those of a new head


def make_learner(config: RunConfig, *, labels: Sequence[str], device: str = "auto") -> Learner:
    """Load the base model for the task and put LoRA on it, or free all its weights.

    ConfigError for a model without query and key maps.
    """
    loaded, base, notes, trained = _base_for(config, labels=labels, device=device)
    if config.method == "full":
        new = _new_weights(base, loaded, trained, task=config.task)
        if asks_base(config):
            keep_base(base, but=new, copied=True)
        _put_head(base.requires_grad_(True), base, config, labels=labels)
        return Learner(model=base, loaded=loaded, targets=(), notes=notes, new=new)
    targets = lora_targets(base, config.lora)
    targets = tuple(target for target in targets if target not in trained)
    model = _adapted(base, config, targets, trained)
    _put_head(model, base, config, labels=labels)
    return Learner(model=model, loaded=loaded, targets=targets, notes=notes)


def reopened_learner(config: RunConfig, folder: Path, *, labels: Sequence[str], device: str = "auto") -> Learner:
    """The model as a run left it: the folder's adapter and head on the base; TrainingError where they do not fit it.

    With method full the folder's weights are in the base's place, which are kept: 8 bytes a weight in all.
    """
    loaded, base, notes, trained = _base_for(config, labels=labels, device=device)
    if config.method == "full":
        new = _new_weights(base, loaded, trained, task=config.task)
        keep_base(base, but=new, copied=False)
        load_weights(base, folder)
        _put_head(base, base, config, labels=labels)
        load_head(base, folder)
        return Learner(model=base.requires_grad_(False).eval(), loaded=loaded, targets=(), notes=notes, new=new)
    model = adapter_on(base, folder, device=loaded.device)
    _put_head(model, base, config, labels=labels)
    load_head(model, folder)
    targets = tuple(sorted(model.peft_config[model.active_adapter].target_modules))
    return Learner(model=model.eval(), loaded=loaded, targets=targets, notes=notes)


def _base_for(
    config: RunConfig, *, labels: Sequence[str], device: str
) -> tuple[LoadedModel, Any, tuple[str, ...], tuple[str, ...]]:
    """The base as it was loaded, the same with the task's head, notes, and modules to be trained whole.

    What the files lack of a head is drawn by the run's seed.
    """
    loaded = load_model(
        config.model, device=device, dtype="float32", head=head_asked(config.task),
        revision=config.revision, trust_remote_code=config.trust_remote_code,
    )  # fmt: skip
    refuse_unfit(config, kind=loaded.kind, settings=loaded.backbone.config)
    refuse_untrainable(config, settings=loaded.backbone.config, origin=loaded.origin)
    torch.manual_seed(config.seed)
    base, notes, trained = loaded.model, tuple[str, ...](), tuple[str, ...]()
    if config.task == "masked-lm":
        trained = head_modules(base, loaded.untrained)
        notes = head_notes(config.task, base, trained)
    elif config.task == "classification":
        base, trained = _classifier(config, loaded, labels)
        notes = (untrained_note(base),)
    if config.lora.quantize == "4bit":
        heads = {name.split(".")[0] for name in trained}
        base, notes = quantised(base, config, spared=output_names(base) | heads), (*notes, NOTE)
    align_tokens(base, loaded.tokenizer)
    return loaded, base, notes, trained


def asks_base(config: RunConfig) -> bool:
    """Whether the base's attention is asked for while the model is trained: by a loss, or by the pairs of a stream."""
    drawn = config.attention.mode == "random" and config.data.streaming
    return config.supervised and (config.attention.loss == "anchor" or drawn)


def _new_weights(base: Any, loaded: LoadedModel, trained: Collection[str], *, task: Task) -> frozenset[str]:
    """The weights of a head that starts untrained, which the base as it is published has not."""
    names = [name for name, _ in base.named_parameters()]
    if task == "classification":
        place, new = f"{base.base_model_prefix}.", tuple(f"{module}." for module in trained)
        return frozenset(name for name in names if not name.startswith(place) or name.startswith(new))
    return frozenset(names) & frozenset(loaded.untrained) if task == "masked-lm" else frozenset()


def align_tokens(model: Any, tokenizer: Any) -> None:
    """Give the configuration the tokenizer's special ids, as Trainer would, and without its warning.

    Most checkpoints leave one out, or a generation configuration that ends at more tokens than the tokenizer's one: no
    news. Padding is told by place here, and no id takes part in the loss.
    """
    from transformers.trainer_utils import align_special_tokens

    speaker = logging.getLogger("transformers.trainer_utils")
    level = speaker.level
    speaker.setLevel(logging.ERROR)
    try:
        align_special_tokens(model, tokenizer)
    finally:
        speaker.setLevel(level)


def _put_head(model: Any, base: Any, config: RunConfig, *, labels: Sequence[str]) -> None:
    if config.task in READING:
        head = head_for(config.task, width=_width(base), classes=len(labels))
        model.reading_head = head.to(next(base.parameters()).device) if head is not None else None


def head_asked(task: Task) -> Literal["lm", "none"]:
    """Which head is loaded with the base: a language model's own."""
    return "lm" if task in ("causal-lm", "masked-lm") else "none"


def head_modules(model: Any, untrained: Collection[str]) -> tuple[str, ...]:
    """The modules outside the backbone that hold weights of these names, to be trained whole and saved.

    Left out is a matrix shared with the embeddings. A bias that no module holds by itself stays at zero.
    """
    shared = {id(weight) for weight in getattr(model, model.base_model_prefix).parameters()}
    found = []
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        lacks = any(f"{name}.{weight}" in untrained for weight in own)
        if lacks and "weight" in own and not any(id(weight) in shared for weight in own.values()):
            found.append(name)
    return tuple(found)


def refuse_unfit(config: RunConfig, *, kind: str, settings: Any) -> None:
    """ConfigError for a task that this kind of model has not, and for weights that cannot be quantised here.

    `settings` is the model's own configuration.
    """
    import transformers

    if config.task == "masked-lm" and type(settings) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        raise _no_head(config.task, settings)
    if kind != "decoder" and config.task == "causal-lm":
        raise ConfigError(f"task causal-lm: {config.model} does not read from left to right; allowed is a causal model")
    if kind == "encoder-decoder":
        _refuse_two_stacks(config)
    refuse_without(config)


def refuse_untrainable(config: RunConfig, *, settings: Any, origin: Mapping[str, str]) -> None:
    """ConfigError, with method full, for weights that cannot all be trained and saved as an ordinary model's.

    `origin` is where the model came from.
    """
    if config.method == "lora":
        return
    allowed = "allowed is a whole model in safetensors"
    if "adapter" in origin:
        raise ConfigError(
            f"method full: {config.model} is an adapter; {allowed}, such as `finetune merge` makes of a run"
        )
    if origin.get("source") == "gguf" or getattr(settings, "quantization_config", None) is not None:
        raise ConfigError(f"method full: {config.model} holds quantised weights; {allowed}")


def _refuse_two_stacks(config: RunConfig) -> None:
    """ConfigError for what needs one stack: a decoder is fed the text one place later, away from its words."""
    allowed = "allowed is a model of one stack, an encoder or a decoder"
    if config.task in READING:
        raise ConfigError(
            f"task {config.task}: {config.model} is an encoder-decoder, whose words stand in two stacks; {allowed}"
        )
    if config.supervised:
        raise ConfigError(
            f"pairs: {config.model} is an encoder-decoder, and the attention loss acts on one stack; {allowed}, or "
            "`attention: {mode: none}`"
        )


def lora_targets(model: nn.Module, settings: LoraConfig) -> tuple[str, ...]:
    """Which linear maps get LoRA, as the ends of their names; ConfigError where no query and key map is found or named.

    The ends reach back to the layer's number: `dense` alone would be the feed-forward network's maps as well.
    """
    maps = [name for name, module in model.named_modules() if _is_map(module)]
    last = {name.rsplit(".", 1)[-1] for name in maps}
    if isinstance(settings.targets, tuple):
        if not settings.targets:
            raise ConfigError(
                f"lora.targets is empty: allowed are attention, all-linear, or of {', '.join(sorted(last))}"
            )
        missing = [one for one in settings.targets if not any(f".{name}".endswith(f".{one}") for name in maps)]
        if missing:
            raise ConfigError(f"lora.targets {missing[0]!r}: this model has {', '.join(sorted(last))}")
        _refuse_layers(settings, [name for name in maps if any(f".{name}".endswith(f".{x}") for x in settings.targets)])
        return settings.targets
    both = query_and_key(last)
    if both is None:
        raise ConfigError(f"no query and key map was found among {', '.join(sorted(last))}; name them in lora.targets")
    if settings.targets == "all-linear":
        left_out = output_names(model)
        chosen = [name for name in maps if not left_out & set(name.split("."))]
    else:
        beside = _beside(model, both)
        chosen = [name for name in maps if name.rsplit(".", 1)[-1] in both or name in beside]
    _refuse_layers(settings, chosen)
    return tuple(dict.fromkeys(map(_within_layer, chosen)))


def _refuse_layers(settings: LoraConfig, chosen: Sequence[str]) -> None:
    """ConfigError for a layer in which no chosen map stands: nothing would be trained there."""
    there = {int(part) for name in chosen for part in name.split(".") if part.isdigit()}
    if settings.layers is not None and (not settings.layers or not set(settings.layers) <= there):
        has = f"layers {min(there)} to {max(there)}" if there else "no numbered layers"
        raise ConfigError(f"lora.layers {list(settings.layers)}: this model has {has}")


def _within_layer(name: str) -> str:
    """What stands behind the layer's number: encoder.layer.3.attention.self.query -> attention.self.query."""
    parts = name.split(".")
    numbered = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbered[-1] + 1 :]) if numbered and numbered[-1] + 1 < len(parts) else name


def query_and_key(names: set[str]) -> tuple[str, ...] | None:
    """The maps that make queries and keys among these names: two, or one that makes all; None where there are none."""
    fused = next((name for name in FUSED if name in names), None)
    return next((pair for pair in QUERIES_AND_KEYS if set(pair) <= names), None) or ((fused,) if fused else None)


def trains_keys(targets: Sequence[str]) -> bool:
    """Whether LoRA at these maps trains keys as well as queries: without, the attention loss trains half of a row."""
    return query_and_key({name.rsplit(".", 1)[-1] for name in targets}) is not None


def _is_map(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _beside(model: nn.Module, both: Sequence[str]) -> set[str]:
    """The value and output maps of attention: those in the query map's module, or in its neighbour `output`."""
    homes = {name.rpartition(".")[0] for name, _ in model.named_modules() if name.rsplit(".", 1)[-1] == both[0]}
    around = {f"{home.rpartition('.')[0]}.output" for home in homes if home.endswith(".self")}
    found = set()
    for name, module in model.named_modules():
        home, _, last = name.rpartition(".")
        if _is_map(module) and last in OTHERS and (home in homes or home in around):
            found.add(name)
    return found


def output_names(model: nn.Module) -> set[str]:
    """The last parts of the names of output embeddings and task heads."""
    found: Any = getattr(model, "get_output_embeddings", lambda: None)()
    return {name.rsplit(".", 1)[-1] for name, module in model.named_modules() if module is found} | {
        "score", "classifier", "pre_classifier", "pooler",
    }  # fmt: skip


def _classifier(config: RunConfig, loaded: LoadedModel, labels: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    """The backbone under a new head; a pooler that the head reads and the files lack is new as well, and trained."""
    model = headed_model(config.task, loaded.backbone.config, labels=labels, pad_id=pad_id_of(loaded.tokenizer))
    place = model.base_model_prefix
    if not hasattr(model, place):
        raise ConfigError(f"task {config.task}: {type(model).__name__} has no part {place!r} to take the weights of")
    pooler = getattr(getattr(model, place), "pooler", None)
    lacks = pooler is not None and getattr(loaded.backbone, "pooler", None) is None
    if lacks:
        loaded.backbone.pooler = pooler
    setattr(model, place, loaded.backbone)
    model.tie_weights()  # to the embeddings that came in
    return model.to(loaded.device).eval(), (f"{place}.pooler",) if lacks else ()


def headed_model(task: Task, settings: Any, *, labels: Sequence[str], pad_id: int | None) -> Any:
    """A model with the task's head, new from its head to its feet; `settings` learns of the classes.

    ConfigError for a family that has no such head.
    """
    import transformers

    if task == "classification":
        settings.num_labels = len(labels)
        settings.id2label = dict(enumerate(labels))
        settings.label2id = {label: place for place, label in enumerate(labels)}
        settings.pad_token_id = pad_id
    try:
        return getattr(transformers, MODEL_CLASSES[task]).from_config(settings)
    except ValueError as error:  # names all the families that have one
        raise _no_head(task, settings) from error


def _no_head(task: Task, settings: Any) -> ConfigError:
    return ConfigError(f"task {task}: the family {settings.model_type} has no head for it")


def untrained_head(outline: Outline, task: Task) -> tuple[str, ...]:
    """The modules of a masked language model's head that the files seem to lack, as far as config.json tells.

    A checkpoint that was saved without its head names the class without it.
    """
    named = " ".join(outline.config.architectures or ())
    if task != "masked-lm" or any(word in named for word in _WITH_HEAD):
        return ()
    return head_modules(outline.shell, [name for name, _ in outline.shell.named_parameters()])


def head_notes(task: Task, model: Any, trained: Sequence[str]) -> tuple[str, ...]:
    """What a reader must know of a language model's head, of which these modules start untrained."""
    if task != "masked-lm" or not trained:
        return ()
    return (f"{untrained_note(model)}; it is trained too ({', '.join(trained)})",)


def untrained_note(head: Any) -> str:
    """What a reader must know of a head that was never trained."""
    return f"the head of {type(head).__name__} starts untrained: its first answers mean nothing"


def _adapted(base: Any, config: RunConfig, targets: tuple[str, ...], trained: tuple[str, ...]) -> Any:
    import peft

    settings = config.lora
    return peft.get_peft_model(
        base,
        peft.LoraConfig(
            r=settings.r, lora_alpha=settings.alpha if settings.alpha is not None else 2 * settings.r,
            lora_dropout=settings.dropout, target_modules=list(targets), use_rslora=settings.rslora,
            layers_to_transform=None if settings.layers is None else list(settings.layers),
            task_type=PEFT_TASKS[config.task], modules_to_save=list(trained) or None,
        ),
    )  # fmt: skip


def _width(model: Any) -> int:
    return int(model.config.get_text_config().hidden_size)
