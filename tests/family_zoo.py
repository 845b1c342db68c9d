"""The families of the matrix: one tiny random model of each, and the verdict that the matrix must find.

`python -m tests.family_zoo` writes the table of the README from what probe says of these models;
tests/test_families.py holds verdicts, reasons and numbers.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from probe.errors import ModelError
from probe.models import LoadedModel, model_from_parts
from probe.routes import Route, route_of
from tests.tiny import SPREAD, byte_level_tokenizer

Verdict = Literal["tap", "eager", "refused"]
PINNED = (5, 24)  # of requirements.txt, whose matrix the README shows
VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- families: written by python -m tests.family_zoo -->", "<!-- families: end -->"


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """One family: how a tiny model of it is built, and what must come of it."""

    name: str
    stem: str  # of the class names in transformers: Bert for BertConfig and BertModel
    sizes: Mapping[str, Any]
    lora: tuple[str, ...] = ()  # the linear layers that make query and value
    verdict: Verdict = "tap"
    reason: str = ""  # part of what probe says where the verdict is not "tap"
    note: str = ""  # what this family adds to plain attention


_WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_LONG = {"max_position_embeddings": 96, "initializer_range": SPREAD}
_ENCODER = {**_WIDTH, **_LONG, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_DECODER = {**_WIDTH, **_LONG, "num_key_value_heads": 2}
_WIDE_HEADS = {**_DECODER, "head_dim": 16}
_GPT = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 96, "initializer_range": SPREAD}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **_LONG}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
_STACKS = {
    f"{stack}_{name}": size
    for stack in ("encoder", "decoder")
    for name, size in {"layers": 2, "ffn_dim": 64, "attention_heads": 4}.items()
}
_BART = {**_STACKS, "d_model": 32, "max_position_embeddings": 96, "init_std": SPREAD, "dropout": 0.0}
_SCALED = {**_BART, "scale_embedding": True}
_MLA_HEADS = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 10}
_MLA_EXPERTS = {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
_MLA = {**_WIDTH, **_LONG, "num_key_value_heads": 4, **_MLA_HEADS, **_MLA_EXPERTS, **_EXPERTS}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_LINEAR = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 32,
}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "share_att_key": True}
_NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
_LED = {"max_encoder_position_embeddings": 96, "max_decoder_position_embeddings": 96, "attention_window": 8}
_OWN_CODE = "does not pass through transformers' attention interface"

_BERT = ("query", "value")
_QV = ("q_proj", "v_proj")
_FUSED = ("query_key_value",)
_MLA_QV = ("q_b_proj", "kv_b_proj")


def _own(name: str, stem: str, lora: tuple[str, ...], sizes: Mapping[str, Any], note: str) -> Family:
    """A family with attention code of its own."""
    return Family(name=name, stem=stem, lora=lora, sizes=sizes, note=note, verdict="eager", reason=_OWN_CODE)


def _tapped(name: str, stem: str, lora: tuple[str, ...], sizes: Mapping[str, Any], note: str = "") -> Family:
    return Family(name=name, stem=stem, lora=lora, sizes=sizes, note=note)


def _refused(name: str, stem: str, sizes: Mapping[str, Any], reason: str) -> Family:
    return Family(name=name, stem=stem, sizes=sizes, verdict="refused", reason=reason)


FAMILIES: tuple[Family, ...] = (
    _tapped("BERT", "Bert", _BERT, _ENCODER),
    _tapped("RoBERTa", "Roberta", _BERT, _ENCODER),
    _tapped("XLM-R", "XLMRoberta", _BERT, _ENCODER),
    _tapped(
        "DistilBERT",
        "DistilBert",
        ("q_lin", "v_lin"),
        {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, **_LONG, "dropout": 0.0, "attention_dropout": 0.0},
    ),
    _tapped(
        "ALBERT",
        "Albert",
        _BERT,
        {**_ENCODER, "embedding_size": 16, "num_hidden_layers": 3, "num_hidden_groups": 2},
        "layers share modules: their calls are counted",
    ),
    _tapped("ELECTRA", "Electra", _BERT, {**_ENCODER, "embedding_size": 16}),
    _tapped("ERNIE", "Ernie", _BERT, _ENCODER),
    _tapped(
        "ModernBERT",
        "ModernBert",
        ("Wqkv",),
        {
            **_WIDTH,
            **_LONG,
            "initializer_cutoff_factor": 3.0,
            "layer_types": ["full_attention", "sliding_attention"],
            "local_attention": 8,
        },
        "window in some layers",
    ),
    _tapped("NomicBERT", "NomicBert", _QV, _ENCODER),
    _own("MPNet", "MPNet", ("q", "v"), _ENCODER, "position bias"),
    _own(
        "DeBERTa-v2",
        "DebertaV2",
        ("query_proj", "value_proj"),
        {**_ENCODER, **_DEBERTA, "position_biased_input": False},
        "disentangled positions",
    ),
    _own("RoFormer", "RoFormer", _BERT, _ENCODER, "rotated queries and keys"),
    _own("BigBird, full", "BigBird", _BERT, {**_ENCODER, "attention_type": "original_full"}, "original_full"),
    _refused(
        "BigBird, sparse", "BigBird", {**_ENCODER, "attention_type": "block_sparse", "block_size": 4}, "block-sparse"
    ),
    _refused("Longformer", "Longformer", {**_ENCODER, "attention_window": 8}, "a window around each query"),
    _tapped(
        "GPT-2",
        "GPT2",
        ("c_attn",),
        {**_GPT, **_NO_DROPOUT, "scale_attn_by_inverse_layer_idx": True},
        "scaled by the layer's number where configured",
    ),
    _tapped("GPT-NeoX", "GPTNeoX", _FUSED, {**_WIDTH, **_LONG}, "a part of each head rotated"),
    # transformers 5.24 brought GPT-J to the interface
    (_tapped if VERSION >= (5, 24) else _own)(
        "GPT-J", "GPTJ", _QV, {**_GPT, "rotary_dim": 4}, "a part of each head rotated"
    ),
    _tapped(
        "OPT",
        "OPT",
        _QV,
        {
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "max_position_embeddings": 96,
            "init_std": SPREAD,
            "dropout": 0.0,
        },
    ),
    _own(
        "BLOOM", "Bloom", _FUSED, {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": SPREAD}, "ALiBi"
    ),
    _own(
        "MPT",
        "Mpt",
        ("Wqkv",),
        {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 96, "initializer_range": SPREAD},
        "ALiBi",
    ),
    _own("Falcon", "Falcon", _FUSED, _FALCON, "one key head for all"),
    _refused(
        "Falcon, ALiBi",
        "Falcon",
        {**_FALCON, "alibi": True, "multi_query": False, "parallel_attn": False},
        "computes another function than the model does by itself",
    ),
    _tapped("Llama", "Llama", _QV, _DECODER, "grouped keys"),
    _tapped("Mistral", "Mistral", _QV, {**_DECODER, "sliding_window": 4}, "window"),
    _tapped("Mixtral", "Mixtral", _QV, {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}, "experts"),
    _tapped("Qwen2", "Qwen2", _QV, _DECODER),
    _tapped("Qwen3", "Qwen3", _QV, _WIDE_HEADS, "head size is not hidden / heads"),
    _tapped("Qwen3-MoE", "Qwen3Moe", _QV, {**_WIDE_HEADS, "num_experts": 4, **_EXPERTS}, "experts"),
    _tapped(
        "Qwen3-Next",
        "Qwen3Next",
        _QV,
        {
            **_WIDE_HEADS,
            **_LINEAR,
            **_EXPERTS,
            "num_hidden_layers": 4,
            "num_experts": 4,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
        "hybrid: the softmax layers; linear ones have no rows",
    ),
    _tapped("Phi-3", "Phi3", ("qkv_proj",), {**_DECODER, "original_max_position_embeddings": 96}),
    _tapped("Gemma", "Gemma", _QV, _WIDE_HEADS),
    _tapped(
        "Gemma2",
        "Gemma2",
        _QV,
        {**_WIDE_HEADS, "sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
        "softcap, window",
    ),
    _tapped(
        "Gemma3",
        "Gemma3Text",
        _QV,
        {
            **_WIDE_HEADS,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 16,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "window in some layers",
    ),
    _tapped("Cohere", "Cohere", _QV, _DECODER),
    _tapped("StableLM", "StableLm", _QV, _DECODER),
    _tapped("OLMo2", "Olmo2", _QV, _DECODER),
    _tapped("GLM", "Glm", _QV, _WIDE_HEADS),
    _tapped("DeepSeek-V2", "DeepseekV2", _MLA_QV, _MLA, "MLA: values are smaller than keys"),
    _tapped(
        "DeepSeek-V3", "DeepseekV3", _MLA_QV, {**_MLA, "rope_parameters": _YARN}, "MLA: values are smaller than keys"
    ),
    _tapped(
        "gpt-oss",
        "GptOss",
        _QV,
        {**_WIDE_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
        "sinks, window",
    ),
    _tapped("T5", "T5", ("q", "v"), _T5, "position bias, no scaling"),
    _tapped("mT5", "MT5", ("q", "v"), _T5, "position bias, no scaling"),
    _tapped("BART", "Bart", _QV, _BART),
    _tapped("mBART", "MBart", _QV, _SCALED),
    _tapped("Marian", "Marian", _QV, _SCALED),
    _tapped("Pegasus", "Pegasus", _QV, _SCALED),
    _refused("LED", "LED", {**_STACKS, **_LED, "d_model": 32, "init_std": SPREAD}, "a window around each query"),
    _refused("Mamba", "Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, "none of its layers"),
)


@functools.cache
def tokenizer_of() -> Any:
    """One tokenizer for all: byte-level BPE, <s> text </s>."""
    return byte_level_tokenizer(start="<s>", end="</s>", pad="<pad>")


def exists(family: Family) -> bool:
    """Whether the installed transformers has the family."""
    return hasattr(transformers, f"{family.stem}Model")


def build(family: Family) -> Any:
    """A tiny random model of the family, in eval mode, its attention far from uniform."""
    return _drawn(family, getattr(transformers, f"{family.stem}Model"), _config_of(family))


def build_with_head(family: Family) -> Any:
    """As `build`, with the family's language-model head: masked, causal, or sequence to sequence."""
    config = _config_of(family)
    kinds = ("SEQ_TO_SEQ_CAUSAL_LM",) if config.is_encoder_decoder else ("MASKED_LM", "CAUSAL_LM")
    mappings = [getattr(transformers, f"MODEL_FOR_{kind}_MAPPING") for kind in kinds]
    return _drawn(family, next(mapping[type(config)] for mapping in mappings if type(config) in mapping), config)


def _config_of(family: Family) -> Any:
    tokenizer = tokenizer_of()
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return getattr(transformers, f"{family.stem}Config")(**{"vocab_size": len(tokenizer), **ids, **family.sizes})


def _drawn(family: Family, kind: Any, config: Any) -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = kind(config).eval()
        for name, weight in model.named_parameters():
            # T5 draws its queries narrow; families with sinks draw them near zero
            if family.sizes is _T5 and name.endswith((".q.weight", ".k.weight", "relative_attention_bias.weight")):
                weight.normal_(0.0, SPREAD)
            elif name.endswith(".sinks"):
                weight.normal_(0.0, 2.0)
    return model


def with_lora(family: Family, model: Any) -> Any:
    """The model under a random adapter on queries and values, so strong that rows move."""
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        settings = LoraConfig(r=4, lora_alpha=4, target_modules=list(family.lora), init_lora_weights=False)
        return get_peft_model(model, settings).eval()


@functools.cache
def load(family: Family, *, dtype: torch.dtype = torch.float32, lora: bool = False) -> LoadedModel:
    """The tiny model as probe loads it; one object for all tests, which must leave it as it is."""
    model = build(family)
    model = with_lora(family, model) if lora else model
    return model_from_parts(model.to(dtype), tokenizer_of(), name=f"tiny {family.name}")


@functools.cache
def route(family: Family, *, dtype: torch.dtype = torch.float32, lora: bool = False) -> Route:
    """The path that probe takes for the tiny model."""
    return route_of(load(family, dtype=dtype, lora=lora))


def found_of(family: Family) -> tuple[Verdict, str]:
    """What probe says of the family: the path and its reason, without the tiny model's name."""
    try:
        found = route(family)
    except ModelError as error:
        said = str(error).removeprefix(f"tiny {family.name}").removeprefix(f" ({family.stem}Model)").lstrip(": ")
        return "refused", said
    return found.path, found.reason


def table() -> str:
    """The README's table, from what probe finds on each tiny model."""
    lines = [
        "| family | path | local error, fp32 | end to end, fp32 | edits | why |",
        "|---|---|---|---|---|---|",
    ]
    cells = {
        "tap": "tap | ≤ 1e-6 | ≤ 2e-5 | exact",
        "eager": "eager | eager's own | the same run | refused",
        "refused": "refused | – | – | –",
    }
    for family in FAMILIES:
        path, reason = found_of(family)
        why = "; ".join(part for part in (family.note, reason) if part)
        lines.append(f"| {family.name} | {cells[path]} | {why} |")
    return "\n".join(lines)


def written_table() -> str:
    """What stands between the two markers in the README."""
    return README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def write_table() -> None:
    """Replace what stands between the markers."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    write_table()
