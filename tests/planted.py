"""A BERT in which one head, and no other, copies from the target's cue: what the page must find."""

import torch
import transformers

from probe.cases import CaseSet, case_of
from probe.models import model_from_parts
from tests.tiny import wordpiece_tokenizer

LAYER, HEAD = 2, 1
CUES = ("喜欢", "讨厌", "热爱", "公司", "手机", "砸中", "发布", "新品", "菠菜", "和平", "梨子", "牛顿")
_WIDTH, _HEADS = 64, 4


def planted_model():
    """3 layers of 4 heads; every head's queries are zero but those of the planted one, which match cue characters.

    Layers 0 and 1 add nothing to the states, so that the planted head alone can move the target's last state.
    """
    tokenizer = wordpiece_tokenizer()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=_WIDTH, num_hidden_layers=3, num_attention_heads=_HEADS,
        intermediate_size=16, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        words = model.embeddings.word_embeddings.weight
        words.normal_(0, 0.3)
        words[:, :2] = 0.0  # feature 0: I am a target character; feature 1: I am a cue character
        words[tokenizer.convert_tokens_to_ids(list("苹果")), 0] = 8.0
        words[tokenizer.convert_tokens_to_ids(sorted(set("".join(CUES)))), 1] = 8.0
        model.embeddings.position_embeddings.weight.zero_()
        model.embeddings.token_type_embeddings.weight.zero_()
        for layer in model.encoder.layer:
            attention = layer.attention
            for part in (attention.self.query, layer.attention.output.dense, layer.output.dense):
                part.weight.zero_()
                part.bias.zero_()
        _plant(model.encoder.layer[LAYER].attention)
    return model_from_parts(model, tokenizer, name="planted")


def planted_cases():
    """Twelve sentences, a cue word each, with other words of two characters around to be controls."""
    fillers = ("我们酸脱", "他们氢酶", "但他被了")  # letters the tokenizer knows and no cue has
    cases = []
    for number, cue in enumerate(CUES):
        text = f"{fillers[number % 3]}{cue}了苹果酶氢他们被"
        cases.append(case_of(text, target="苹果", cues=[cue], id=f"p{number}"))
    return CaseSet(name="planted", cases=tuple(cases))


def _plant(attention):
    size = _WIDTH // _HEADS
    first = HEAD * size
    attention.self.query.weight[first, 0] = 4.0
    attention.self.key.weight.zero_()
    attention.self.key.bias.zero_()
    attention.self.key.weight[first, 1] = 4.0
    attention.output.dense.weight[:, first : first + size].normal_(0, 0.3)
