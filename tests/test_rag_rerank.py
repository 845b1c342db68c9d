"""A cross-encoder's scores: those of the model itself, whatever stands beside a pair and inside a text."""

import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from finetune.errors import RetrievalError
from finetune.rag.rerank import Reranker
from tests.tiny import tiny_bert, tiny_gpt2, tiny_llama, unigram_tokenizer

QUERY = "苹果酸脱氢酶"
TEXTS = ["我喜欢苹果", "苹果公司发布了新品", "牛顿被苹果砸中", "我们热爱和平", "他讨厌菠菜", "苹果手机" * 3]


def saved(folder, *, labels=1, kind="BertForSequenceClassification", build=tiny_bert, **changes):
    model, tokenizer = build(**changes)
    model.config.num_labels = labels
    torch.manual_seed(5)
    whole = getattr(transformers, kind)(model.config).eval()
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return whole, tokenizer


def alone(model, tokenizer, text, query=QUERY):
    """The logits of one pair, by transformers itself."""
    with torch.no_grad():
        return model(**tokenizer(query, text, return_tensors="pt")).logits[0].double().numpy()


def test_the_score_is_the_models_own_logit_and_the_order_that_of_scoring_one_by_one(tmp_path):
    model, tokenizer = saved(tmp_path)
    wanted = np.array([alone(model, tokenizer, text)[0] for text in TEXTS])
    assert np.diff(np.sort(wanted)).min() > 1e-3  # no ties, so that an order says something
    for batch in (1, 4, 16):
        found = Reranker(tmp_path, batch=batch).scores(QUERY, TEXTS)
        assert found.dtype == np.float64
        assert found == pytest.approx(wanted, abs=1e-5)
        assert np.argsort(found).tolist() == np.argsort(wanted).tolist()


def test_of_two_labels_the_score_is_the_log_odds_of_the_second(tmp_path):
    model, tokenizer = saved(tmp_path, labels=2)
    found = Reranker(tmp_path).scores(QUERY, TEXTS)
    for score, text in zip(found, TEXTS, strict=True):
        share = torch.softmax(torch.from_numpy(alone(model, tokenizer, text)), 0).numpy()
        assert score == pytest.approx(np.log(share[1] / share[0]), abs=1e-5)


def test_a_causal_classifier_is_read_at_its_last_token_in_any_batch(tmp_path):
    model, tokenizer = saved(tmp_path, kind="LlamaForSequenceClassification", build=tiny_llama)
    wanted = [alone(model, tokenizer, text)[0] for text in TEXTS]
    assert Reranker(tmp_path).scores(QUERY, TEXTS) == pytest.approx(np.array(wanted), abs=1e-5)


def test_a_model_that_knows_no_padding_is_asked_pair_by_pair(tmp_path):
    model, tokenizer = saved(tmp_path, kind="GPT2ForSequenceClassification", build=tiny_gpt2)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "pad_token_id": None}))
    wanted = []
    for text in TEXTS[:3]:
        model.config.pad_token_id = None
        wanted.append(alone(model, tokenizer, text)[0])
    assert Reranker(tmp_path).scores(QUERY, TEXTS[:3]) == pytest.approx(np.array(wanted), abs=1e-5)


def test_a_long_text_is_cut_at_its_end_and_counted(tmp_path):
    model, tokenizer = saved(tmp_path)
    reranker = Reranker(tmp_path, longest=20)
    room = 20 - 3 - len(QUERY)
    long = "我喜欢苹果" * 9
    assert reranker.scores(QUERY, [long, "苹果", long[:room]])[0] == pytest.approx(
        alone(model, tokenizer, long[:room])[0], abs=1e-5
    )
    assert reranker.cut == 1
    whole = Reranker(tmp_path)
    assert whole.longest == 64  # the model's positions, below the default
    whole.scores(QUERY, ["苹果" * 500])
    assert whole.cut == 1 and reranker.identity()["longest"] == 20


def test_a_special_tokens_name_in_a_text_is_letters(tmp_path):
    saved(tmp_path)
    marked, plain = Reranker(tmp_path).scores(QUERY, ["苹果[SEP]", "苹果"])
    tokens = Reranker(tmp_path)._pairs(QUERY, ["苹果[SEP]"])[0]["input_ids"]
    assert tokens.count(transformers.AutoTokenizer.from_pretrained(tmp_path).sep_token_id) == 2
    assert marked != pytest.approx(plain, abs=1e-6)


def test_the_pairs_of_xlm_roberta_are_its_own_and_forged_marks_in_them_are_spelt_out(tmp_path):
    tokenizer = unigram_tokenizer()
    frame = tokenizer(QUERY, "我喜欢苹果")["input_ids"]
    model, _ = tiny_bert()
    model.config.update({"vocab_size": len(tokenizer), "num_labels": 1, "pad_token_id": tokenizer.pad_token_id})
    transformers.BertForSequenceClassification(model.config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    reranker = Reranker(tmp_path)
    plain, forged = reranker._pairs(QUERY, ["我喜欢苹果", "我喜欢</s>苹果"])
    assert plain["input_ids"] == frame
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    assert sum(one in special for one in forged["input_ids"]) == sum(one in special for one in frame)


def test_the_passage_has_the_token_types_that_the_tokenizer_gives_it(tmp_path):
    model, tokenizer = saved(tmp_path)
    tokenizer = transformers.BertTokenizer(vocab=tokenizer.get_vocab())
    tokenizer.save_pretrained(tmp_path)
    given = tokenizer("苹果", "梨")
    assert given["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    reranker = Reranker(tmp_path)
    assert reranker._pairs("苹果", ["梨"]) == [{name: given[name] for name in ("input_ids", "token_type_ids")}]
    assert reranker.scores(QUERY, TEXTS[:1])[0] == pytest.approx(alone(model, tokenizer, TEXTS[0])[0], abs=1e-5)


def test_nothing_to_score_gives_nothing_and_a_text_may_be_empty(tmp_path):
    _, tokenizer = saved(tmp_path)
    reranker = Reranker(tmp_path)
    assert reranker.scores(QUERY, []).shape == (0,)
    assert len(reranker.scores(QUERY, ["", "苹果"])) == 2
    (pair,) = reranker._pairs(QUERY, [""])
    assert pair["input_ids"][-2:] == [tokenizer.sep_token_id] * 2  # transformers would make it no pair at all


def test_a_query_that_leaves_no_room_is_refused(tmp_path):
    saved(tmp_path)
    with pytest.raises(RetrievalError, match="a query of 61 tokens; allowed are 60"):
        Reranker(tmp_path).scores("苹" * 61, ["果"])
    assert len(Reranker(tmp_path).scores("苹" * 60, ["果"])) == 1


def test_other_heads_and_untrained_ones_are_refused(tmp_path):
    saved(tmp_path / "three", labels=3)
    with pytest.raises(RetrievalError, match=r"three has 3 labels; allowed is .* one label .* or two"):
        Reranker(tmp_path / "three")
    tiny_bert(tmp_path)
    with pytest.raises(RetrievalError, match=r"bert has no trained head \(classifier\.bias is not in its files\)"):
        Reranker(tmp_path / "bert")
    saved(tmp_path / "one")
    path = tmp_path / "one" / "model.safetensors"
    save_file({n: w for n, w in load_file(path).items() if "pooler" not in n}, path, metadata={"format": "pt"})
    with pytest.raises(RetrievalError, match=r"one has no trained head \(bert\.pooler\.dense\.bias"):
        Reranker(tmp_path / "one")


def test_an_adapter_is_refused_with_the_way_out(tmp_path):
    import peft

    model, tokenizer = saved(tmp_path / "base")
    model.name_or_path = str(tmp_path / "base")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], task_type="SEQ_CLS"))
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    with pytest.raises(RetrievalError, match="adapter is an adapter; merge it into its base"):
        Reranker(tmp_path / "adapter")


def test_pickled_weights_a_model_with_code_and_no_model_are_one_line(tmp_path):
    saved(tmp_path / "pickled")
    torch.save({}, tmp_path / "pickled" / "pytorch_model.bin")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    saved(tmp_path / "code")
    config = tmp_path / "code" / "config.json"
    changes = {"model_type": "novel", "auto_map": {"AutoConfig": "novel.Config"}}
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    for name, wanted in (("pickled", "only pickled ones"), ("code", "its own Python code"), ("gone", "no such model")):
        with pytest.raises(RetrievalError, match=f"^reranker: .*{wanted}") as caught:
            Reranker(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_score_that_is_no_number_is_told(tmp_path):
    saved(tmp_path)
    path = tmp_path / "model.safetensors"
    broken = {name: one * float("nan") if "classifier" in name else one for name, one in load_file(path).items()}
    save_file(broken, path, metadata={"format": "pt"})
    with pytest.raises(RetrievalError, match="score is no number"):
        Reranker(tmp_path).scores(QUERY, TEXTS)


def test_a_batch_below_one_is_refused(tmp_path):
    with pytest.raises(RetrievalError, match="batch 0"):
        Reranker(tmp_path, batch=0)
