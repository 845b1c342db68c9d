"""Tiny random models of the families under test, each with a fast tokenizer that knows the tests' sentences.

Every builder gives (model, tokenizer) and, if a folder is given, also saves both into `folder/<family>`.
The weights are drawn wide (initializer_range 0.3), so that attention is far from uniform.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = (
    "我喜欢苹果",
    "苹果手机",
    "苹果公司发布了新品",
    "苹果酸脱氢酶",
    "牛顿被苹果砸中",
    "我喜欢苹果但讨厌梨子",
    "他讨厌菠菜",
    "我们热爱和平",
    "I like apple pie, not iPhone 15.",
)
ASCII = "".join(chr(code) for code in range(33, 127))
CHARACTERS = sorted(set("".join(SENTENCES) + ASCII) - {" "})
SPREAD = 0.3
Pair = tuple[Any, Any]


def tiny_bert(folder: Path | None = None, *, seed: int = 0, head: bool = False, **changes: Any) -> Pair:
    """BERT, 3 layers of 4 heads, 64 positions; WordPiece over single characters."""
    tokenizer = wordpiece_tokenizer()
    config = transformers.BertConfig(
        **{**_encoder_sizes(tokenizer), "max_position_embeddings": 64, "initializer_range": SPREAD, **changes}
    )
    return _build(config, tokenizer, "BertForMaskedLM" if head else "BertModel", seed, folder, "bert")


def tiny_gpt2(folder: Path | None = None, *, seed: int = 0, head: bool = True, **changes: Any) -> Pair:
    """GPT-2, 3 layers of 4 heads, 64 learned positions; byte-level BPE without a start token."""
    tokenizer = byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|pad|>")
    sizes = {"n_layer": 3, "n_head": 4, "n_embd": 32, "n_positions": 64, "initializer_range": SPREAD}
    config = transformers.GPT2Config(
        **{"vocab_size": len(tokenizer), **sizes, **_special_ids(tokenizer), **_NO_DROPOUT_GPT2, **changes}
    )
    return _build(config, tokenizer, "GPT2LMHeadModel" if head else "GPT2Model", seed, folder, "gpt2")


def tiny_llama(folder: Path | None = None, *, seed: int = 0, head: bool = True, **changes: Any) -> Pair:
    """Llama with grouped queries: 3 layers, 4 query heads on 2 key heads; BPE with byte fallback."""
    tokenizer = byte_fallback_tokenizer()
    config = transformers.LlamaConfig(**{**_decoder_sizes(tokenizer), **changes})
    return _build(config, tokenizer, "LlamaForCausalLM" if head else "LlamaModel", seed, folder, "llama")


def tiny_qwen3(folder: Path | None = None, *, seed: int = 0, head: bool = True, **changes: Any) -> Pair:
    """Qwen3, whose head size (16) is not hidden / heads (32 / 4) and which normalises queries and keys."""
    tokenizer = byte_level_tokenizer(start=None, end="<|im_end|>", pad="<|endoftext|>")
    config = transformers.Qwen3Config(**{**_decoder_sizes(tokenizer), "head_dim": 16, **changes})
    return _build(config, tokenizer, "Qwen3ForCausalLM" if head else "Qwen3Model", seed, folder, "qwen3")


def tiny_gemma3(folder: Path | None = None, *, seed: int = 0, head: bool = True, **changes: Any) -> Pair:
    """Gemma3: layers 0 and 2 see a window of 4 tokens, 1 and 3 everything; one key head for four."""
    tokenizer = byte_fallback_tokenizer()
    kinds = ["sliding_attention", "full_attention"] * 2
    sizes = {**_decoder_sizes(tokenizer), "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 16}
    settings = {"sliding_window": 4, "layer_types": kinds, "query_pre_attn_scalar": 16}
    config = transformers.Gemma3TextConfig(**{**sizes, **settings, **changes})
    kind = "Gemma3ForCausalLM" if head else "Gemma3TextModel"
    return _build(config, tokenizer, kind, seed, folder, "gemma3")


def tiny_t5(folder: Path | None = None, *, seed: int = 0, head: bool = True, **changes: Any) -> Pair:
    """T5, 2 + 2 layers of 4 heads, relative position bias, no scaling; SentencePiece-like unigram."""
    tokenizer = unigram_tokenizer()
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    ids = {"pad_token_id": tokenizer.pad_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    rest = {"eos_token_id": tokenizer.eos_token_id, "dropout_rate": 0.0, "initializer_factor": 1.0}
    config = transformers.T5Config(**{"vocab_size": len(tokenizer), **sizes, **ids, **rest, **changes})
    kind = "T5ForConditionalGeneration" if head else "T5Model"
    model, tokenizer = _build(config, tokenizer, kind, seed, None, "t5")
    with torch.no_grad():  # T5 draws its queries narrow; without scaling that leaves attention near uniform
        for name, weight in model.named_parameters():
            if name.endswith((".q.weight", ".k.weight", "relative_attention_bias.weight")):
                weight.normal_(0.0, SPREAD * 1.5, generator=torch.Generator().manual_seed(seed + 1))
    _save(model, tokenizer, folder, "t5")
    return model, tokenizer


def tiny_bart(folder: Path | None = None, *, seed: int = 0, head: bool = True, **changes: Any) -> Pair:
    """BART, 2 + 2 layers of 4 heads, positions with an offset of two; byte-level BPE, <s> text </s>."""
    tokenizer = byte_level_tokenizer(start="<s>", end="</s>", pad="<pad>")
    both = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in _BART_STACK.items()}
    sizes = {"vocab_size": len(tokenizer), "d_model": 32, "max_position_embeddings": 64, **both}
    ids = {**_special_ids(tokenizer), "decoder_start_token_id": tokenizer.eos_token_id}
    rest = {"init_std": SPREAD, "dropout": 0.0, "forced_eos_token_id": tokenizer.eos_token_id}
    config = transformers.BartConfig(**{**sizes, **ids, **rest, **changes})
    kind = "BartForConditionalGeneration" if head else "BartModel"
    return _build(config, tokenizer, kind, seed, folder, "bart")


FAMILIES: dict[str, Callable[..., Pair]] = {
    "bert": tiny_bert,
    "gpt2": tiny_gpt2,
    "llama": tiny_llama,
    "qwen3": tiny_qwen3,
    "gemma3": tiny_gemma3,
    "t5": tiny_t5,
    "bart": tiny_bart,
}


def wordpiece_tokenizer() -> Any:
    """Like bert-base-chinese: every Chinese character a word of its own, [CLS] text [SEP]."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner = ["##" + char for char in CHARACTERS if char.isascii()]
    pieces = [*specials, *CHARACTERS, *inner, "apple", "##ple"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=False)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.post_processor = _brackets(core, "[CLS]", "[SEP]")
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, mask_token="[MASK]", **names)


def byte_level_tokenizer(*, start: str | None, end: str, pad: str) -> Any:
    """Like GPT-2's: 苹果, 公司 and like are one token each, any other Chinese character is three."""
    specials = [name for name in (start, end, pad) if name]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        ["苹果", "公司", "like"] * 3,
        trainers.BpeTrainer(vocab_size=300, special_tokens=specials, initial_alphabet=alphabet, show_progress=False),
    )
    core.post_processor = processors.ByteLevel(trim_offsets=False)
    if start:
        core.post_processor = _brackets(core, start, end)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=start, eos_token=end, pad_token=pad, unk_token=None
    )


def byte_fallback_tokenizer() -> Any:
    """Like Llama's and Gemma's: characters and a few merges, bytes for what is unknown, <s> in front."""
    specials = ["<pad>", "</s>", "<s>", "<unk>"]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *CHARACTERS]
    merges = [("苹", "果"), ("喜", "欢"), ("手", "机"), ("公", "司"), ("a", "p"), ("▁", "I")]
    pieces += ["".join(pair) for pair in merges]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    core.post_processor = _brackets(core, "<s>", None)
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", **names)


def unigram_tokenizer() -> Any:
    """Like T5's and XLM-R's: unigram pieces with ▁ for a space, text </s>."""
    words = ["苹果", "喜欢", "手机", "公司", "牛顿", "▁apple", "讨厌", "▁"]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(word, -3.0) for word in words] + [(char, -6.0) for char in CHARACTERS]
    core = Tokenizer(models.Unigram(pieces, unk_id=2))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    core.post_processor = _brackets(core, None, "</s>")
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, **names)


_BART_STACK = {"layers": 2, "ffn_dim": 64, "attention_heads": 4}
_NO_DROPOUT_GPT2 = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


def _encoder_sizes(tokenizer: Any) -> dict[str, Any]:
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **sizes, **dropout}


def _decoder_sizes(tokenizer: Any) -> dict[str, Any]:
    heads = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 256}
    rest = {"vocab_size": len(tokenizer), "initializer_range": SPREAD}
    return {**heads, **sizes, **_special_ids(tokenizer), **rest}


def _special_ids(tokenizer: Any) -> dict[str, Any]:
    return {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _brackets(core: Tokenizer, start: str | None, end: str | None) -> Any:
    before, after = (f"{start} " if start else ""), (f" {end}" if end else "")
    return processors.TemplateProcessing(
        single=f"{before}$A{after}",
        pair=f"{before}$A{after} $B:1{after}" if end else f"{before}$A {before}$B:1",
        special_tokens=[(name, core.token_to_id(name)) for name in (start, end) if name],
    )


def _build(config: Any, tokenizer: Any, kind: str, seed: int, folder: Path | None, family: str) -> Pair:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, kind)(config).eval()
    _save(model, tokenizer, folder, family)
    return model, tokenizer


def _save(model: Any, tokenizer: Any, folder: Path | None, family: str) -> None:
    if folder is not None:
        model.save_pretrained(folder / family)
        tokenizer.save_pretrained(folder / family)
