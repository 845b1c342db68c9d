"""Direction, backbone, longest text and fingerprint are read off the live model."""

import pytest
import torch
import transformers

from probe.anatomy import backbone_of, check_attention, check_tokenizer, fingerprint, kind_of, max_positions_of
from probe.errors import ModelError
from tests.tiny import FAMILIES, tiny_bart, tiny_bert, tiny_gpt2, tiny_llama, tiny_t5

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
KINDS = {"bert": "encoder", "t5": "encoder-decoder", "bart": "encoder-decoder"}


def inputs(model, tokenizer, text="我喜欢苹果"):
    batch = {"input_ids": torch.tensor([tokenizer(text)["input_ids"]])}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = batch["input_ids"]
    return batch


@pytest.mark.parametrize("family", FAMILIES)
def test_the_backbone_gives_the_hidden_states_of_the_whole_model(family):
    model, tokenizer = FAMILIES[family](head=True)
    backbone = backbone_of(model)
    assert backbone.get_output_embeddings() is None
    batch = inputs(model, tokenizer)
    with torch.no_grad():
        whole = model(**batch, output_hidden_states=True)
        inner = backbone(**batch, output_hidden_states=True)
    name = "decoder_hidden_states" if model.config.is_encoder_decoder else "hidden_states"
    for expected, found in zip(whole[name], inner[name], strict=True):
        assert torch.equal(expected, found)
    assert not hasattr(inner, "logits")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kind_says_which_way_the_model_can_look(family):
    assert kind_of(backbone_of(FAMILIES[family]()[0])) == KINDS.get(family, "decoder")


def test_a_bert_that_decodes_is_a_decoder():
    assert kind_of(tiny_bert(is_decoder=True)[0]) == "decoder"


def test_the_backbone_of_a_headless_model_is_the_model():
    model, _ = tiny_t5(head=False)
    assert backbone_of(model) is model


def test_the_backbone_shares_the_weights_and_the_mode_of_the_whole():
    model, _ = tiny_t5()
    backbone = backbone_of(model)
    assert backbone.encoder is model.encoder and not backbone.training
    assert backbone_of(model.train()).training


@pytest.mark.parametrize(
    ("family", "expected"), [("bert", 64), ("gpt2", 64), ("llama", 256), ("t5", None), ("bart", 64)]
)
def test_the_longest_text_runs_and_one_token_more_does_not(family, expected):
    model, _ = FAMILIES[family]()
    backbone = backbone_of(model)
    assert max_positions_of(backbone) == expected
    if family in ("bert", "gpt2", "bart"):  # learned tables: beyond them there is nothing to look up
        backbone(torch.full((1, expected), 5))
        with pytest.raises((IndexError, RuntimeError)):
            backbone(torch.full((1, expected + 1), 5))


def test_rows_up_to_the_padding_row_of_roberta_are_not_usable():
    config = transformers.XLMRobertaConfig(**SMALL, max_position_embeddings=34, pad_token_id=1)
    model = transformers.XLMRobertaModel(config).eval()
    assert max_positions_of(model) == 32
    model(torch.full((1, 32), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, 33), 5))


def test_models_that_read_no_text_or_do_not_attend_are_refused_with_the_reason():
    mamba = transformers.MambaModel(transformers.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=99))
    with pytest.raises(ModelError, match=r"toy \(MambaModel\) has no attention to look at: none of its layers"):
        check_attention(mamba, "toy")
    resnet = transformers.ResNetModel(transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1]))
    with pytest.raises(ModelError, match="reads pixel_values, not text"):
        check_attention(resnet, "toy")
    rwkv = transformers.RwkvModel(
        transformers.RwkvConfig(hidden_size=16, attention_hidden_size=16, num_hidden_layers=2, vocab_size=99)
    )
    with pytest.raises(ModelError, match="replaces attention by a recurrence"):
        check_attention(rwkv, "toy")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: transformers.LongformerModel(transformers.LongformerConfig(**SMALL, attention_window=8)), "window"),
        (lambda: transformers.BigBirdModel(transformers.BigBirdConfig(**SMALL)), "original_full before"),
    ],
    ids=["window", "block-sparse"],
)
def test_models_whose_maps_are_no_whole_maps_are_refused_with_the_reason(model, says):
    with pytest.raises(ModelError, match=says):
        check_attention(model(), "mine")


def test_a_model_that_left_block_sparse_attention_is_taken():
    model = transformers.BigBirdModel(transformers.BigBirdConfig(**SMALL))
    model.set_attention_type("original_full")
    check_attention(model.eval(), "mine")


def test_a_tokenizer_that_makes_no_tokens_is_refused():
    from tokenizers import Tokenizer, models

    empty = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({}, [])))
    with pytest.raises(ModelError, match="into no tokens at all"):
        check_tokenizer(empty, tiny_bert()[0], "toy")


def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_refused():
    _, tokenizer = tiny_llama()
    model, _ = tiny_bert()
    with pytest.raises(ModelError, match=r"ids up to 396, its embedding matrix only 231 rows"):
        check_tokenizer(tokenizer, model, "toy")


def test_added_tokens_without_a_row_are_a_note_as_gemma_has_one():
    model, tokenizer = tiny_gpt2()
    assert check_tokenizer(tokenizer, model.base_model, "toy") == ()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    (note,) = check_tokenizer(tokenizer, model.base_model, "toy")
    assert "<image>" in note and "no embedding" in note


def test_a_tokenizer_that_knows_no_chinese_is_a_note():
    from tokenizers import Tokenizer, models, pre_tokenizers

    core = Tokenizer(models.WordLevel({"[UNK]": 0, "apple": 1}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("", "isolated"), pre_tokenizers.Whitespace()])
    english = transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]")
    (note,) = check_tokenizer(english, tiny_bert()[0], "toy")
    assert "most tokens become unknown" in note


def test_equal_models_have_equal_fingerprints_and_any_change_shows():
    model, tokenizer = tiny_bert()
    first = fingerprint(model, tokenizer)
    assert len(first) == 64 and fingerprint(*tiny_bert()) == first
    assert fingerprint(tiny_bert(seed=1)[0], tokenizer) != first
    assert fingerprint(model.to(torch.bfloat16), tokenizer) != first
    other = tiny_bert(layer_norm_eps=1e-5)
    assert fingerprint(*other) != first
    model, tokenizer = tiny_bert()
    tokenizer.add_tokens(["苹果"])
    assert fingerprint(model, tokenizer) != first


def test_using_a_tokenizer_does_not_change_the_fingerprint_nor_the_tokenizer():
    model, tokenizer = tiny_bart()
    first = fingerprint(model, tokenizer)
    tokenizer(["苹果", "我喜欢苹果"], padding=True, truncation=True, max_length=8)
    core = tokenizer.backend_tokenizer
    before = (core.padding, core.truncation)
    assert before != (None, None)
    assert fingerprint(model, tokenizer) == first and (core.padding, core.truncation) == before
