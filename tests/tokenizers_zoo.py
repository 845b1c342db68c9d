"""Tokenizers of every kind that models use, built here without a download, and one whose offsets lie."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, CanineTokenizer, PreTrainedTokenizerFast
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy
from transformers.models.myt5.tokenization_myt5 import MyT5Tokenizer
from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

CORPUS = [
    "我喜欢苹果，他讨厌菠菜。",
    "苹果公司发布了新品，苹果手机很贵。",
    "苹果酸脱氢酶是一种酶。牛顿被苹果砸中。",
    "我們熱愛和平，臺灣的蘋果很好吃。",
    "I like apples; the Apple phone is new. An apple a day keeps the doctor away.",
]
SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
BERT_SPECIAL = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def bert_vocabulary() -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    han = sorted({c for line in CORPUS for c in line if c > "\u2e80"})
    words = ["like", "apple", "##s", "cafe", "phone", "sep", "##fi"]
    return [*BERT_SPECIAL.values(), *letters, *(f"##{c}" for c in letters), *han, *words, *"[].,!<>#(){}"]


@cache
def wordpiece() -> PreTrainedTokenizerFast:
    """BERT: one token a Chinese character, lower case, accents stripped."""
    vocabulary = {piece: k for k, piece in enumerate(dict.fromkeys(bert_vocabulary()))}
    core = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, **BERT_SPECIAL)


def _trained_bytes(core: Tokenizer, size: int) -> Tokenizer:
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    return core


@cache
def qwen_bytes() -> PreTrainedTokenizerFast:
    """Byte-level BPE as in Qwen: NFC, its own split, so small a vocabulary that characters fall apart."""
    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC()
    split = Regex(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(split, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core = _trained_bytes(core, 290)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>", pad_token="<|endoftext|>")


@cache
def gpt2_bytes() -> PreTrainedTokenizerFast:
    """Byte-level BPE as in GPT-2, with a space added in front, and merges that join a space to part of a character."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    core = _trained_bytes(core, 300)
    parts = json.loads(core.to_str())["model"]
    vocabulary = parts["vocab"] | {"Ġè": len(parts["vocab"])}
    merges = [("Ġ", "è"), *(tuple(pair) for pair in parts["merges"])]
    core.model = models.BPE(vocab=vocabulary, merges=merges)
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<|endoftext|>", eos_token="<|endoftext|>")


@cache
def metaspace_unigram() -> PreTrainedTokenizerFast:
    """SentencePiece as in XLM-R: NFKC, spaces joined, ▁ put first, the template's pieces inside the vocabulary."""
    pieces = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces += [("▁", -3.0), ("喜欢", -4.0), ("苹果", -4.0), ("▁苹果", -5.0), ("▁apple", -5.0), ("pp", -6.0)]
    letters = {c for line in CORPUS for c in line if c != " "} | set("<>/su")
    pieces += [(c, -7.0) for c in sorted(letters)]
    core = Tokenizer(models.Unigram(pieces, unk_id=3))
    core.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=core, **SPECIAL)


def _byte_fallback(normalizer: Any) -> PreTrainedTokenizerFast:
    names = ["<pad>", "</s>", "<s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁"]
    names += [*"我喜欢aeilp<s>", "苹", "苹果", "果", "pp"]
    vocabulary = {name: k for k, name in enumerate(dict.fromkeys(names))}
    merges = [("▁", "▁"), ("苹", "果"), ("p", "p")]
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    core.normalizer = normalizer
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])])
    return PreTrainedTokenizerFast(tokenizer_object=core, **SPECIAL)


@cache
def gemma_bytes() -> PreTrainedTokenizerFast:
    """BPE with byte fallback as in Gemma: spaces become ▁, none is added."""
    return _byte_fallback(normalizers.Replace(" ", "▁"))


@cache
def llama_bytes() -> PreTrainedTokenizerFast:
    """BPE with byte fallback as in Llama 2: a ▁ is put first."""
    return _byte_fallback(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))


@cache
def slow_bert() -> BertTokenizerLegacy:
    """WordPiece in Python, without offsets."""
    file = Path(mkdtemp()) / "vocab.txt"
    file.write_text("\n".join(dict.fromkeys(bert_vocabulary())), encoding="utf-8")
    return BertTokenizerLegacy(str(file))


@cache
def slow_sentencepiece() -> SentencePieceBackend:
    """SentencePiece's own library, with its NFKC rules and byte fallback, without offsets."""
    stem = Path(mkdtemp()) / "pieces"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 20),
        model_prefix=str(stem),
        vocab_size=400,
        hard_vocab_limit=False,
        model_type="unigram",
        byte_fallback=True,
        minloglevel=2,
    )
    return SentencePieceBackend(
        vocab_file=f"{stem}.model", unk_token="<unk>", bos_token="<s>", eos_token="</s>", special_tokens_pattern="bos"
    )


@cache
def slow_bytes() -> ByT5Tokenizer:
    """One token a byte, without offsets."""
    return ByT5Tokenizer()


@cache
def slow_characters() -> CanineTokenizer:
    """One token a character, without offsets."""
    return CanineTokenizer()


@cache
def unreadable() -> MyT5Tokenizer:
    """Bytes rewritten by a table of the model's own: nothing that the pieces spell is in the text."""
    file = Path(mkdtemp()) / "byte_maps.json"
    file.write_text(json.dumps({"decompose_map": {}, "merge_map": {}}))
    return MyT5Tokenizer(str(file))


FAST: dict[str, Callable[[], Any]] = {
    "wordpiece": wordpiece,
    "qwen bytes": qwen_bytes,
    "gpt2 bytes": gpt2_bytes,
    "metaspace unigram": metaspace_unigram,
    "gemma bytes": gemma_bytes,
    "llama bytes": llama_bytes,
}
SLOW: dict[str, Callable[[], Any]] = {
    "slow bert": slow_bert,
    "slow sentencepiece": slow_sentencepiece,
    "slow bytes": slow_bytes,
    "slow characters": slow_characters,
}
ALL = FAST | SLOW


class LyingTokenizer:
    """A real tokenizer whose offsets pass through a fault on the way out, as some releases have had them."""

    def __init__(self, tokenizer: Any, fault: Callable[[list[tuple[int, int]]], Any]):
        self.tokenizer = tokenizer
        self.fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        given = dict(self.tokenizer(text, **options))
        offsets = self.fault(given.pop("offset_mapping"))
        return given if offsets is None else given | {"offset_mapping": offsets}
