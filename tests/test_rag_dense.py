"""Texts as vectors: pooling, prefixes, lengths, and what tells one encoder from another."""

import numpy as np
import pytest
import torch

from finetune.errors import RetrievalError
from finetune.rag import dense
from finetune.rag.dense import DenseEncoder, dense_encoder
from probe import CijingError, model_from_parts
from tests.tiny import FAMILIES, tiny_bert

TEXTS = ["苹果公司发布手机", "吃苹果", "苹果", "我喜欢吃苹果，也喜欢苹果公司"]


def encoder_of(family="bert", *, pooling="mean", query="", passage="", **changes):
    model, tokenizer = FAMILIES[family](**changes)
    loaded = model_from_parts(model, tokenizer, name=f"tiny {family}")
    return DenseEncoder(loaded, pooling=pooling, query_prefix=query, passage_prefix=passage)


def states_of(encoder, text):
    """The last states [token, dim] of one text alone, by the model itself."""
    ids = torch.tensor([encoder.loaded.tokenizer(text)["input_ids"]])
    backbone = encoder.loaded.backbone
    reader = backbone.get_encoder() if hasattr(backbone, "encoder") and encoder.loaded.kind != "encoder" else backbone
    with torch.no_grad():
        return reader(input_ids=ids).last_hidden_state[0].numpy()


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_are_the_pooled_last_states_of_each_text_alone(family, pooling):
    encoder = encoder_of(family, pooling=pooling)
    pool = {"mean": lambda one: one.mean(0), "cls": lambda one: one[0], "last": lambda one: one[-1]}[pooling]
    wanted = np.stack([pool(states_of(encoder, text)) for text in TEXTS])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    found = encoder.embed(TEXTS, "passage")
    assert found.dtype == np.float32 and found.shape == (len(TEXTS), encoder.dim)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_query_and_a_passage_have_their_own_prefix():
    encoder = encoder_of(query="苹果：", passage="公司：")
    plain = encoder_of()
    np.testing.assert_allclose(encoder.embed(["好"], "query"), plain.embed(["苹果：好"], "query"), atol=1e-6)
    np.testing.assert_allclose(encoder.embed(["好"], "passage"), plain.embed(["公司：好"], "query"), atol=1e-6)


def test_batches_hold_texts_of_like_length_and_each_text_once(monkeypatch):
    monkeypatch.setattr(dense, "_TOKENS", 24)
    lengths = [3, 12, 4, 11, 24, 5, 30]
    batches = dense._batches(lengths)
    assert sorted(place for batch in batches for place in batch) == list(range(7))
    assert batches == [[0, 2, 5], [3, 1], [4], [6]]
    told = []
    encoder = encoder_of()
    encoder.embed(TEXTS, "passage", progress=lambda *one: told.append(one))
    assert told[-1] == ("embedding", len(TEXTS), len(TEXTS)) and len(told) > 1


def test_a_text_longer_than_the_model_is_cut_within_its_special_tokens_and_counted():
    encoder = encoder_of(max_position_embeddings=16)
    assert encoder.longest == 16
    short, cut = encoder.embed(["果" * 14, "果" * 14 + "苹" * 50], "passage")
    np.testing.assert_allclose(short, cut, atol=1e-6)
    assert encoder.texts_cut == 1


def test_a_special_tokens_name_in_a_text_is_text():
    encoder = encoder_of(pooling="cls")
    assert encoder.loaded.tokenizer.sep_token_id not in encoder._ids("苹果[SEP]苹果")[1:-1]


def test_a_text_without_tokens_and_a_vector_that_is_no_direction_are_told_in_one_line():
    encoder = encoder_of("gpt2")
    with pytest.raises(RetrievalError, match="empty text gives no tokens") as told:
        encoder.embed([""], "query")
    assert "\n" not in str(told.value)
    broken = encoder_of()
    with torch.no_grad():
        broken.loaded.backbone.embeddings.LayerNorm.weight.fill_(float("nan"))
    with pytest.raises(RetrievalError, match="the vector of text 1 is zero or no number"):
        broken.embed(["苹果"], "query")


def test_the_identity_changes_with_whatever_changes_a_vector(tmp_path):
    plain = encoder_of().identity()
    assert encoder_of().identity() == plain
    for other in (encoder_of(seed=1), encoder_of(pooling="cls"), encoder_of(query="q: "), encoder_of(passage="p: ")):
        assert other.identity() != plain
    assert plain["dim"] == 32 and plain["longest"] > 0


@pytest.mark.parametrize(
    ("folder", "prefix"),
    [("multilingual-e5-base", "query: "), ("e5", "query: "), ("bge-small", ""), ("base512", ""), ("me5x", "")],
)
def test_prefixes_are_e5s_for_an_e5_and_none_for_others(tmp_path, folder, prefix):
    model, tokenizer = tiny_bert()
    model.save_pretrained(tmp_path / folder)
    tokenizer.save_pretrained(tmp_path / folder)
    assert dense_encoder(tmp_path / folder).prefixes["query"] == prefix
    assert dense_encoder(tmp_path / folder, query_prefix="x").prefixes["query"] == "x"


def test_pooling_is_the_mean_and_of_a_decoder_the_last_token(tmp_path):
    for family, pooling in (("bert", "mean"), ("llama", "last")):
        FAMILIES[family](tmp_path)
        assert dense_encoder(tmp_path / family).pooling == pooling
    with pytest.raises(RetrievalError, match="pooling 'max' is unknown; allowed are mean, cls, last"):
        dense_encoder(tmp_path / "bert", pooling="max")
    with pytest.raises(CijingError):
        dense_encoder(tmp_path / "nothing")


@pytest.mark.real
def test_the_embedded_encoder_finds_the_passage_that_answers():
    encoder = dense_encoder()
    passages = ["苹果酸脱氢酶催化苹果酸氧化成草酰乙酸。", "苹果公司的M1芯片由台积电制造。", "红富士苹果在十月采收。"]
    questions = ["哪家公司生产M1芯片？", "苹果酸由什么酶氧化？", "苹果什么时候收获？"]
    scores = encoder.embed(questions, "query") @ encoder.embed(passages, "passage").T
    assert scores.argmax(1).tolist() == [1, 0, 2]
    assert encoder.prefixes == {"query": "query: ", "passage": "passage: "}
