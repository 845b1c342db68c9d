"""What the benchmarks of an index share: a tiny encoder, and documents that change from version to version."""

import random
from pathlib import Path
from typing import Any

from finetune.rag.index import IndexSettings

WORDS = ("苹果", "芯片", "晶圆", "良率", "光刻", "功耗", "缓存", "封装", "苹果酸", "果园", "采收", "草酰乙酸")
_LETTERS = "0123456789第份记录里写在前面后来又谈到，。"


def written_encoder(folder: Path) -> Path:
    """A tiny BERT whose tokenizer knows single characters."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    known = sorted(set("".join(WORDS)) | set(_LETTERS))
    words = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *known])}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {name: f"[{name[:-6].upper()}]" for name in ("pad_token", "unk_token", "cls_token", "sep_token")}
    PreTrainedTokenizerFast(tokenizer_object=inner, mask_token="[MASK]", **special).save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(
        BertConfig(
            vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=128,
        )
    ).save_pretrained(folder)  # fmt: skip
    return folder


def tiny_settings(encoder: Path, **changes: Any) -> IndexSettings:
    """An index whose chunks are two or three sentences."""
    return IndexSettings(encoder=str(encoder), tokenizer=str(encoder), size=48, **changes)


def write_version(folder: Path, version: int, *, documents: int) -> None:
    """Write a collection; from one version to the next a third of it changes, some go and some come."""
    folder.mkdir(exist_ok=True)
    for number in range(documents):
        edition = (version + number % 3) // 3
        path = folder / f"{number:04d}.txt"
        if number % 10 == version % 10:
            path.unlink(missing_ok=True)
        else:
            path.write_text(_text(number, edition), encoding="utf-8")
    (folder / "version.txt").write_text(_text(documents, version), encoding="utf-8")


def _text(number: int, edition: int) -> str:
    draw = random.Random(number * 1000 + edition)
    return "".join(
        f"第{number}份记录里{edition}{one}写在前面，后来又谈到{other}{draw.randrange(1000)}。"
        for _ in range(12)
        for one, other in [draw.sample(WORDS, 2)]
    )
