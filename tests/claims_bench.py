"""Two tiny random models whose tokenizer knows the shipped sentences, for tests of the claims' machinery."""

from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, processors

from probe.cases import load_cases
from probe.claims.bench import QUICK, Bench
from probe.claims.embedding import FRUIT, PRODUCT
from probe.models import LoadedModel, model_from_parts

SETS = ("apple", "relations", "senses", "far")
WORDS = (*FRUIT, *PRODUCT, "苹果", "喜欢", "公司", "铁路")


@cache
def tokenizer() -> Any:
    """Unigram over the words above and every character of the shipped Chinese sets: [CLS] text [SEP]."""
    characters = sorted({char for name in SETS for case in load_cases(name).cases for char in case.text} | set("铁路"))
    words = [word for word in dict.fromkeys(WORDS) if len(word) > 1]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    pieces = [(name, 0.0) for name in specials] + [(w, -3.0) for w in words] + [(c, -6.0) for c in characters]
    core = Tokenizer(models.Unigram(pieces, unk_id=1))
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        bos_token="[CLS]", eos_token="[SEP]",
    )  # fmt: skip


def tiny(config_class: str, model_class: str, **changes: Any) -> LoadedModel:
    """A random model of 3 layers and 4 heads under the tokenizer above."""
    sizes = {
        "vocab_size": len(tokenizer()), "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 160, "initializer_range": 0.3, "pad_token_id": 0,
        "bos_token_id": 2, "eos_token_id": 3,
    }  # fmt: skip
    config = getattr(transformers, config_class)(**{**sizes, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, model_class)(config)
    return model_from_parts(model, tokenizer(), name=f"tiny {config.model_type}")


def encoder() -> LoadedModel:
    return tiny("BertConfig", "BertModel")


def decoder() -> LoadedModel:
    return tiny("LlamaConfig", "LlamaForCausalLM")


def bench(**changes: Any) -> Bench:
    return Bench(**{"load_encoder": encoder, "load_decoder": decoder, "sizes": QUICK, **changes})
