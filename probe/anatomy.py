"""What kind of model a live model is: direction, headless inside, longest text, whether its tokenizer fits it."""

import hashlib
import json
from typing import Any, Literal

from probe.errors import ModelError

Kind = Literal["encoder", "decoder", "encoder-decoder"]
PROBE_TEXT = "我喜欢苹果 apple"
_SAMPLED = 32  # numbers of each tensor that a stamp looks at
# Named attention, but without a softmax over the tokens: there are no rows to read.
WITHOUT_SOFTMAX = {"rwkv": "RWKV replaces attention by a recurrence"}
POSITION_TABLES = ("position_embeddings", "position_embedding", "wpe", "embed_positions", "embed_position")


def base_of(model: Any) -> Any:
    """The Hugging Face model inside a PeftModel (adapters stay injected), or the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model


def inside_wrappers(model: Any) -> Any:
    """The model inside DDP and torch.compile, which compute what it computes, with its own weights; others stay on.

    FSDP and DataParallel are not taken off: the one holds parts of the weights only, the other runs copies.
    """
    from torch.nn.parallel import DistributedDataParallel

    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def backbone_of(model: Any) -> Any:
    """The headless PreTrainedModel inside: what gives hidden states from input_ids."""
    whole = base_of(model)
    inner = whole.base_model
    if inner is not whole or whole.get_output_embeddings() is None:
        return inner
    return _without_head(whole)


def _without_head(whole: Any) -> Any:
    """A headless model around the same modules, for families like T5 whose head sits beside the stacks."""
    import torch
    from transformers import MODEL_MAPPING

    if type(whole.config) not in MODEL_MAPPING:
        return whole
    headless = MODEL_MAPPING[type(whole.config)]
    with torch.device("meta"):
        shell = headless(whole.config)
    children = dict(whole.named_children())
    if not set(dict(shell.named_children())) <= set(children):
        return whole
    for name, _ in list(shell.named_children()):
        setattr(shell, name, children[name])
    return shell.train(whole.training)


def kind_of(backbone: Any) -> Kind:
    """Which way the model can look: encoder (both ways), decoder (back only), or one of each."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    config = backbone.config
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder"
    causal = [module.is_causal for module in attention_modules(backbone) if hasattr(module, "is_causal")]
    if causal:
        return "decoder" if any(causal) else "encoder"
    only_causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_MASKED_LM_MAPPING
    return "decoder" if only_causal and config.model_type != "xlnet" else "encoder"


def attention_modules(model: Any) -> list[Any]:
    """All modules whose class says that they attend."""
    return [
        module
        for module in model.modules()
        if "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()
    ]


def check_attention(backbone: Any, name: str) -> None:
    """Raises ModelError if the model takes no text or has no attention weights at all."""
    model_type = backbone.config.model_type
    if backbone.main_input_name != "input_ids":
        raise ModelError(f"{name} ({type(backbone).__name__}) reads {backbone.main_input_name}, not text")
    why = WITHOUT_SOFTMAX.get(model_type)
    if why or not attention_modules(backbone):
        reason = why or "none of its layers attends"
        raise ModelError(
            f"{name} ({type(backbone).__name__}) has no attention to look at: {reason}; choose a transformer"
        )
    sparse = _without_token_columns(backbone)
    if sparse:
        raise ModelError(f"{name} ({type(backbone).__name__}) {sparse}")


def _without_token_columns(backbone: Any) -> str | None:
    """Why a family's maps are no query × key maps of the text at every length, or None."""
    if getattr(backbone.config, "attention_window", None) is not None:  # at length window + 1 the shapes would agree
        return "has maps of a window around each query, not query × key: its columns are no tokens of the text"
    if any(getattr(module, "attention_type", None) == "block_sparse" for module in backbone.modules()):
        return (
            "computes block-sparse attention and turns itself into another model (full attention) at the first short "
            "text: set attention_type to original_full before"
        )
    return None


def max_positions_of(backbone: Any) -> int | None:
    """The longest text in tokens, special tokens included; None if nothing bounds it (relative positions)."""
    config = backbone.config.get_text_config() if hasattr(backbone.config, "get_text_config") else backbone.config
    held = position_rows(backbone)
    if held is not None:
        return held
    if hasattr(config, "relative_attention_num_buckets"):
        return None
    for field in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = getattr(config, field, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def position_rows(model: Any) -> int | None:
    """Tokens for which the model has learned positions, beyond which it fails; None where positions are computed."""
    tables = (_rows(module) for name, module in model.named_modules() if _is_position_table(name, module))
    return min(tables, default=None)


def _is_position_table(name: str, module: Any) -> bool:
    import torch

    return name.rpartition(".")[2] in POSITION_TABLES and isinstance(module, torch.nn.Embedding)


def _rows(table: Any) -> int:
    """Usable rows: BART-like tables keep `offset` rows free, RoBERTa-like ones those up to the padding row."""
    offset = getattr(table, "offset", None)
    if offset is None:
        offset = 0 if table.padding_idx is None else table.padding_idx + 1
    return int(table.num_embeddings) - int(offset)


def check_tokenizer(tokenizer: Any, backbone: Any, name: str) -> tuple[str, ...]:
    """What a reader must know of the pair; raises ModelError if they cannot belong together."""
    ids = list(tokenizer(PROBE_TEXT, add_special_tokens=False)["input_ids"])
    if not ids:
        raise ModelError(
            f"{name}: its tokenizer ({type(tokenizer).__name__}) turns {PROBE_TEXT!r} into no tokens at all; "
            "tokenizer files and config.json do not belong together"
        )
    rows = _embedding_rows(backbone, name)
    vocabulary = tokenizer.get_vocab()
    added = set(tokenizer.get_added_vocab())
    beyond = {token: number for token, number in vocabulary.items() if number >= rows}
    if any(token not in added for token in beyond):
        raise ModelError(
            f"{name}: its tokenizer has ids up to {max(beyond.values())}, its embedding matrix only {rows} rows; "
            "the tokenizer belongs to another model"
        )
    notes = []
    if beyond:
        notes.append(f"the added tokens {', '.join(sorted(beyond)[:5])} have no embedding: do not use them in a text")
    if tokenizer.unk_token_id is not None and ids.count(tokenizer.unk_token_id) * 2 > len(ids):
        notes.append(f"the tokenizer knows less than half of {PROBE_TEXT!r}: most tokens become unknown")
    return tuple(notes)


def _embedding_rows(backbone: Any, name: str) -> int:
    try:
        return int(backbone.get_input_embeddings().weight.shape[0])
    except (NotImplementedError, AttributeError) as error:
        raise ModelError(
            f"{name} ({type(backbone).__name__}) has no single table of token embeddings, so it is not one text "
            "model; allowed are text encoders, decoders and encoder-decoders"
        ) from error


def fingerprint(model: Any, tokenizer: Any) -> str:
    """SHA-256 over weights, configuration and tokenizer: equal if and only if the numbers must be equal.

    Hashes what is in memory (1.2 GB a second), so a live model, its folder and its hub copy agree.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(_bytes(tensor))
    digest.update(adapters_in_use(model).encode())
    digest.update(settings_of(base_of(model).config))
    digest.update(_tokenizer_text(tokenizer))
    return digest.hexdigest()


def weights_stamp(model: Any) -> str:
    """What changes with weights and configuration, in milliseconds where a fingerprint takes seconds.

    Places in memory and torch's version counters, which every write in place raises but one through `.data`, numpy or
    on inference tensors; for those, some numbers of each tensor. Unseen stays only such a write to other numbers.
    """
    digest = hashlib.sha256(settings_of(base_of(model).config))
    for name, tensor in model.state_dict().items():
        known = 0 if tensor.is_inference() else tensor._version
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|{tensor.data_ptr()}|{known}".encode())
        flat = tensor.detach().reshape(-1)
        digest.update(_bytes(flat[:: max(1, -(-len(flat) // _SAMPLED))]))
    return digest.hexdigest()


def adapters_in_use(model: Any) -> str:
    """Which injected adapters act now, and a hash of their weights; "" for a model without any.

    Loading holds every adapter, whichever is active, disabled or merged, so weights alone do not tell them apart.
    """
    digest, found = hashlib.sha256(), False
    for name, module in model.named_modules():
        if not hasattr(module, "active_adapters") or not hasattr(module, "adapter_layer_names"):
            continue
        found = True
        state = [module.active_adapters, module.disable_adapters, getattr(module, "merged_adapters", [])]
        digest.update(json.dumps([name, *state, getattr(module, "scaling", {})], default=str).encode())
        for part in module.adapter_layer_names:
            kept: Any = getattr(module, part, {})
            tensors = kept.state_dict() if hasattr(kept, "state_dict") else kept
            for key in sorted(tensors):
                digest.update(f"{part}.{key}".encode())
                digest.update(_bytes(tensors[key]))
    return digest.hexdigest() if found else ""


def check_weights(model: Any, name: str) -> None:
    """Raises ModelError where the weights are not in memory as they compute, or compute otherwise in a batch."""
    import torch

    tensors = model.state_dict()
    packed = [key for key, tensor in tensors.items() if not isinstance(tensor, torch.Tensor)]
    if packed:
        raise ModelError(
            f"{name}: {len(packed)} weights are packed by torch.ao quantization, first {packed[0]}, and cannot be "
            "told apart; load the model unquantised, or in 4 bit with bitsandbytes"
        )
    away = [key for key, tensor in tensors.items() if tensor.device.type == "meta"]
    if away:
        raise ModelError(
            f"{name}: {len(away)} weights are offloaded, first {away[0]}; load it whole into memory, in bfloat16 or "
            "4 bit if it is large (rowtap.tap reads rows of an offloaded model too)"
        )
    if getattr(base_of(model), "is_loaded_in_8bit", False):
        raise ModelError(
            f"{name} is loaded in 8 bit: LLM.int8 rounds a text by its neighbours in the batch, so its rows are not "
            "the text's own; load it in 4 bit or bfloat16"
        )


def _bytes(tensor: Any) -> Any:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def settings_of(config: Any) -> bytes:
    """The configuration without where it was read from and which version wrote it."""
    passing = {"_name_or_path", "transformers_version", "architectures", "dtype", "quantization_config"}
    kept = {key: value for key, value in config.to_dict().items() if key.lstrip("_") != "attn_implementation"}
    kept = {key: value for key, value in kept.items() if key not in passing}
    return json.dumps(kept, sort_keys=True, default=str).encode()


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer: equal where it cuts every text alike."""
    return hashlib.sha256(_tokenizer_text(tokenizer)).hexdigest()


def _tokenizer_text(tokenizer: Any) -> bytes:
    """The tokenizer as text; padding and truncation, which change with every use, are left out."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return json.dumps(tokenizer.get_vocab(), sort_keys=True).encode()
    padding, truncation = core.padding, core.truncation
    core.no_padding()
    core.no_truncation()
    text: str = core.to_str()
    if padding:
        core.enable_padding(**padding)
    if truncation:
        core.enable_truncation(**truncation)
    return text.encode()
