"""Batches: shapes, padding, masks, and packed documents that know nothing of each other."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from finetune.batches import KEY, NEGATIVE, QUERY, ByLength, Collator, Examples, collator_of, encoded, packs
from finetune.dataconfig import DataConfig
from finetune.encode import IGNORED, Encoded, Encoding, encode
from finetune.errors import DataError
from finetune.pairs import PairBook, PairRule, Reach, TokenPair
from finetune.reading import Record, row_of
from finetune.records import load_records
from probe import RowRequest, Span, attached
from tests.tiny import (
    byte_fallback_tokenizer,
    byte_level_tokenizer,
    tiny_bert,
    tiny_gemma3,
    tiny_llama,
    wordpiece_tokenizer,
)

BEFORE = Reach(causal=True, window=None, longest=None)
ALL = Reach(causal=False, window=None, longest=None)
BOOK = PairBook(
    pairs=[PairRule(query="手机", key="苹果", negatives=["菠菜"], weight=2.0), PairRule(query="公司", key="苹果")]
)
TEXTS = ("苹果手机", "我喜欢", "他讨厌菠菜苹果手机和苹果公司", "like", "苹果公司发布了新品", "我们热爱和平但讨厌梨子")
WHOLE = {"input_ids", "spans", "pair_weights", "pair_rules", "index", "labels"}


def record(text, **fields):
    return Record(id=text, where="f:1", group="g", text=text, **fields)


def documents(tokenizer, texts=TEXTS, *, task="causal-lm", reach=BEFORE, max_length=64, **settings):
    encoding = Encoding(task=task, max_length=max_length, reach=reach, book=BOOK, rules=(0, 1), **settings)
    return [encode(record(text, label="a"), tokenizer, encoding, index=place) for place, text in enumerate(texts)]


def bare(*ids, index=0, labels=None, **fields):
    """An encoded record of these ids."""
    array = np.array(ids, dtype=np.int64)
    return Encoded(id=str(index), index=index, input_ids=array, labels=array if labels is None else labels, **fields)


# ---- padded ----------------------------------------------------------------------------------------------------


def test_a_batch_holds_tensors_of_the_stated_shapes_and_types():
    tokenizer = byte_fallback_tokenizer()
    batch = collator_of(tokenizer, "causal-lm")(documents(tokenizer))
    assert set(batch) == {*WHOLE, "attention_mask"} and all(isinstance(value, torch.Tensor) for value in batch.values())
    width = max(len(one.input_ids) for one in documents(tokenizer))
    for name in ("input_ids", "labels", "attention_mask"):
        assert batch[name].shape == (6, width)
    pairs = len(batch["pair_weights"])
    assert batch["spans"].shape[1] == 4 and pairs == len(batch["pair_rules"]) == batch["spans"][:, 2].max() + 1
    assert batch["pair_weights"].dtype == torch.float32 and batch["index"].tolist() == list(range(6))
    assert {value.dtype for name, value in batch.items() if name != "pair_weights"} == {torch.int64}


def test_spans_point_at_the_words_of_the_pairs():
    tokenizer = byte_fallback_tokenizer()
    batch = collator_of(tokenizer, "causal-lm")(documents(tokenizer))
    words = {}
    for item, kind, pair, position in batch["spans"].tolist():
        words.setdefault((pair, kind), []).append(int(batch["input_ids"][item, position]))
    for pair, rule in enumerate(batch["pair_rules"].tolist()):
        assert tokenizer.decode(words[pair, KEY]) == "苹果"
        assert tokenizer.decode(words[pair, QUERY]) == ("手机", "公司")[rule]
        assert float(batch["pair_weights"][pair]) == (2.0, 1.0)[rule]
    assert [tokenizer.decode(ids) for (_, kind), ids in words.items() if kind == NEGATIVE] == ["菠菜"]


def test_a_batch_without_pairs_has_empty_tensors():
    batch = collator_of(byte_fallback_tokenizer(), "causal-lm")([bare(5, 6)])
    assert batch["spans"].shape == (0, 4) and batch["pair_weights"].shape == batch["pair_rules"].shape == (0,)


def test_padding_that_is_the_end_token_hides_no_end_token():
    tokenizer = byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|endoftext|>")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    batch = collator_of(tokenizer, "causal-lm")(documents(tokenizer, ("苹果", "苹果公司like")))
    end = tokenizer.eos_token_id
    assert batch["input_ids"][0].tolist()[1:] == [end, end, end]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["labels"][0].tolist() == [IGNORED, end, IGNORED, IGNORED]


def test_without_a_pad_token_the_end_token_pads():
    tokenizer = byte_fallback_tokenizer()
    tokenizer.pad_token = None
    assert collator_of(tokenizer, "causal-lm").pad_id == tokenizer.eos_token_id


def test_rows_are_padded_to_a_multiple_if_asked():
    batch = collator_of(byte_fallback_tokenizer(), "causal-lm", multiple_of=8)([bare(*range(5, 15)), bare(5)])
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape == (2, 16)


def test_a_batch_that_would_learn_nothing_is_refused():
    nothing = np.full(3, IGNORED)
    with pytest.raises(DataError, match=r"without any label to learn \(examples \[4, 9\]\)"):
        collator_of(byte_fallback_tokenizer(), "causal-lm")(
            [bare(1, 2, 3, index=4, labels=nothing), bare(1, 2, 3, index=9, labels=nothing)]
        )


def test_classes_and_targets_are_given_for_a_marked_word():
    tokenizer = wordpiece_tokenizer()
    encoding = Encoding(task="sense", max_length=64, reach=ALL, labels=("a", "b"))
    examples = [
        encode(record(text, target=Span.of(text, "苹果"), label=label), tokenizer, encoding)
        for text, label in (("我喜欢苹果", "b"), ("苹果手机", "a"))
    ]
    batch = collator_of(tokenizer, "sense")(examples)
    assert batch["labels"].tolist() == [1, 0] and batch["labels"].dtype == torch.int64
    assert batch["target_mask"].dtype == torch.bool and "second_mask" not in batch
    assert batch["target_mask"].nonzero().tolist() == [[0, 4], [0, 5], [1, 1], [1, 2]]


def test_a_whole_text_s_class_needs_no_target():
    tokenizer = wordpiece_tokenizer()
    examples = documents(tokenizer, task="classification", reach=ALL, labels=("a", "b"))
    batch = collator_of(tokenizer, "classification")(examples)
    assert set(batch) == {*WHOLE, "attention_mask"} and batch["labels"].tolist() == [0] * 6


def in_context(tokenizer, how):
    encoding = Encoding(task="word-in-context", max_length=64, reach=ALL, labels=("different", "same"),
                        pair_encoding=how, book=BOOK, rules=(0,))  # fmt: skip
    spans = {"target": Span(0, 2), "second_target": Span(3, 5)}
    records = [record("苹果公司", second="我喜欢苹果手机", label=label, **spans) for label in ("same", "different")]
    return [encode(one, tokenizer, encoding, index=place) for place, one in enumerate(records)]


def test_joint_sentences_have_two_masks_in_one_row():
    tokenizer = wordpiece_tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    batch = collator_of(tokenizer, "word-in-context")(in_context(tokenizer, "joint"))
    assert batch["input_ids"].shape == batch["token_type_ids"].shape == batch["second_mask"].shape == (2, 14)
    assert batch["labels"].tolist() == [1, 0] and batch["spans"][:, 0].unique().tolist() == [0, 1]
    for name in ("target_mask", "second_mask"):
        assert tokenizer.decode(batch["input_ids"][0][batch[name][0]]) == "苹 果"


def test_sentences_apart_are_rows_2i_and_2i_plus_1():
    tokenizer = wordpiece_tokenizer()
    batch = collator_of(tokenizer, "word-in-context")(in_context(tokenizer, "separate"))
    assert batch["input_ids"].shape == (4, 9) and batch["labels"].tolist() == [1, 0] and "second_mask" not in batch
    for row in range(4):
        assert tokenizer.decode(batch["input_ids"][row][batch["target_mask"][row]]) == "苹 果"
    assert batch["spans"][:, 0].unique().tolist() == [1, 3] and batch["index"].tolist() == [0, 1]


def test_examples_of_two_ways_in_one_batch_are_refused():
    tokenizer = wordpiece_tokenizer()
    apart, joint = in_context(tokenizer, "separate")[0], in_context(tokenizer, "joint")[0]
    with pytest.raises(DataError, match="one sequence among pairs"):
        collator_of(tokenizer, "word-in-context")([apart, joint])
    with pytest.raises(DataError, match="without a class among classes"):
        collator_of(tokenizer, "sense")([bare(1, 2)])


# ---- masked ----------------------------------------------------------------------------------------------------


def masked(seed=0, share=0.15):
    return collator_of(wordpiece_tokenizer(), "masked-lm", seed=seed, mask_share=share)


def long_text(index=0, count=400, draw=0):
    tokenizer = wordpiece_tokenizer()
    (ordinary,) = documents(tokenizer, ("我喜欢苹果但讨厌梨子" * (count // 10),), task="masked-lm", reach=ALL,
                            max_length=10_000)  # fmt: skip
    return replace(ordinary, index=index, draw=draw)


def test_fifteen_percent_are_masked_four_fifths_of_them_by_the_mask():
    tokenizer = wordpiece_tokenizer()
    examples = [long_text(index) for index in range(50)]
    batch = masked()(examples)
    drawn = batch["labels"] != IGNORED
    given_ids = torch.tensor(np.stack([one.input_ids for one in examples]))
    assert drawn.sum(1).tolist() == [60] * 50 and torch.equal(batch["labels"][drawn], given_ids[drawn])
    assert torch.equal(batch["input_ids"][~drawn], given_ids[~drawn])
    shown = batch["input_ids"][drawn]
    by_mask = float((shown == tokenizer.mask_token_id).float().mean())
    kept = float((shown == given_ids[drawn]).float().mean())
    assert 0.77 < by_mask < 0.83 and 0.08 < kept < 0.13, "3,000 draws; another token is now and then the same one"
    assert not set(shown.tolist()) & (set(tokenizer.all_special_ids) - {tokenizer.mask_token_id})


def test_special_tokens_are_never_masked_and_one_token_always_is():
    tokenizer = wordpiece_tokenizer()
    for example in documents(tokenizer, ("我", "我喜", "苹果手机"), task="masked-lm", reach=ALL):
        for draw in range(30):
            labels = masked()([replace(example, draw=draw)])["labels"][0]
            assert int((labels != IGNORED).sum()) == 1 and labels[0] == labels[-1] == IGNORED


def test_masks_depend_on_seed_epoch_place_and_piece_and_on_nothing_else():
    alone, beside = masked()([long_text(3)]), masked()([long_text(1), long_text(3)])
    assert torch.equal(alone["input_ids"][0], beside["input_ids"][1])
    others = [masked(seed=1)([long_text(3)]), masked()([long_text(3, draw=1)]), masked()([long_text(4)]),
              masked()([replace(long_text(3), piece=1)])]  # fmt: skip
    assert all(not torch.equal(alone["labels"], other["labels"]) for other in others)


def test_a_tokenizer_without_a_mask_token_is_refused():
    with pytest.raises(DataError, match="no mask token"):
        collator_of(byte_fallback_tokenizer(), "masked-lm")


def test_a_masked_batch_trains_a_bert():
    model, tokenizer = tiny_bert(head=True)
    batch = collator_of(tokenizer, "masked-lm")(documents(tokenizer, task="masked-lm", reach=ALL))
    loss = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).loss
    loss.backward()
    assert torch.isfinite(loss)


# ---- packed ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 12), max_size=60), st.integers(12, 30), st.integers(1, 8))
def test_packing_loses_nothing_cuts_nothing_and_fills_rows(sizes, length, waiting):
    given_documents = [bare(*[7] * size, index=place) for place, size in enumerate(sizes)]
    rows = list(packs(given_documents, length=length, waiting=waiting))
    assert sorted(one.index for row in rows for one in row) == list(range(len(sizes)))
    assert all(0 < sum(len(one.input_ids) for one in row) <= length for row in rows)
    assert rows == list(packs(given_documents, length=length, waiting=waiting))


def test_few_rows_are_left_half_empty():
    sizes = np.random.default_rng(0).integers(3, 60, 500)
    rows = list(packs([bare(*[7] * size) for size in sizes], length=128))
    assert sizes.sum() / (128 * len(rows)) > 0.95


def test_a_document_longer_than_a_row_is_refused():
    with pytest.raises(DataError, match="7 tokens do not fit into a row of 6"):
        list(packs([bare(*[5] * 7)], length=6))


def test_a_packed_batch_counts_positions_anew_and_has_no_attention_mask():
    batch = collator_of(byte_fallback_tokenizer(), "causal-lm")(
        [(bare(5, 6, 7, index=2), bare(8, index=0)), (bare(9, 9, index=1),)]
    )
    assert set(batch) == {*WHOLE, "position_ids"}
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 1]]
    assert batch["labels"].tolist() == [[5, 6, 7, 8], [9, 9, IGNORED, IGNORED]]
    assert batch["index"].tolist() == [2, 0, 1]


def test_pairs_of_packed_documents_are_shifted_with_them():
    pair = TokenPair(rule=0, queries=(1,), keys=(0,), negatives=(2,))
    batch = collator_of(byte_fallback_tokenizer(), "causal-lm")(
        [(bare(5, 6, 7, pairs=(pair,)), bare(8, 9, 10, pairs=(pair,))), (bare(5, 6, 7, pairs=(pair,)),)]
    )
    assert batch["spans"].tolist() == [
        [0, QUERY, 0, 1], [0, KEY, 0, 0], [0, NEGATIVE, 0, 2],
        [0, QUERY, 1, 4], [0, KEY, 1, 3], [0, NEGATIVE, 1, 5],
        [1, QUERY, 2, 1], [1, KEY, 2, 0], [1, NEGATIVE, 2, 2],
    ]  # fmt: skip


def families():
    long = {"num_hidden_layers": 2, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
    return {"llama": tiny_llama, "gemma3": tiny_gemma3, "gemma3 narrow": lambda: tiny_gemma3(seed=1, **long)}


def rows_of(model, batch, queries):
    request = RowRequest(queries)
    with torch.no_grad(), attached(model):
        out = model(**batch, use_cache=False, rows=request)
    return request.rows, out.logits


@pytest.mark.parametrize("family", families())
def test_rows_and_logits_of_packed_documents_are_those_of_each_alone(family):
    model, tokenizer = families()[family]()
    collator = collator_of(tokenizer, "causal-lm")
    (pack,) = packs(documents(tokenizer), length=200)
    batch = collator([pack, pack[:2]])
    fields = {name: batch[name] for name in ("input_ids", "position_ids")}
    width = fields["input_ids"].shape[1]
    rows, logits = rows_of(model, fields, [list(range(width))] * 2)
    start = 0
    for document in pack:
        size = len(document.input_ids)
        stop = start + size
        alone = {"input_ids": torch.tensor(document.input_ids)[None]}
        own, own_logits = rows_of(model, alone, [list(range(size))])
        torch.testing.assert_close(logits[0, start:stop], own_logits[0], rtol=1e-4, atol=1e-5)
        for layer, mine in own.items():
            packed = rows[layer][0, :, start:stop]
            torch.testing.assert_close(packed[..., start:stop], mine[0], rtol=1e-4, atol=1e-6)
            assert packed[..., :start].abs().sum() == packed[..., stop:].abs().sum() == 0, "looks into a neighbour"
        start = stop


def test_a_pair_s_row_in_a_pack_reads_its_own_document():
    """苹果 stands in every document: the pair must read its own."""
    model, tokenizer = tiny_gemma3(sliding_window=8)
    (pack,) = packs(documents(tokenizer, ("苹果手机", "苹果我苹果手机")), length=64)
    batch = collator_of(tokenizer, "causal-lm")([pack])
    fields = {name: batch[name] for name in ("input_ids", "position_ids")}
    spans = batch["spans"]
    queries = spans[spans[:, 1] == QUERY, 3].tolist()
    rows, _ = rows_of(model, fields, [queries])
    starts = (batch["position_ids"][0] == 0).nonzero()[:, 0].tolist()
    keys = spans[spans[:, 1] == KEY, 3].tolist()
    for query, key in zip(queries, keys, strict=True):
        assert sum(start <= query for start in starts) == sum(start <= key for start in starts)
    for row in rows.values():
        assert (row[0, :, range(len(keys)), keys] > 0).all()


def test_the_loss_of_a_pack_is_that_of_its_documents():
    model, tokenizer = tiny_llama()
    collator = collator_of(tokenizer, "causal-lm")
    examples = documents(tokenizer)
    (pack,) = packs(examples, length=200)

    def loss(batch):
        fields = {name: batch[name] for name in batch if name in ("input_ids", "position_ids", "attention_mask")}
        logits = model(**fields, use_cache=False).logits[:, :-1].flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:].flatten(), ignore_index=IGNORED)

    torch.testing.assert_close(loss(collator([pack])), loss(collator(examples)), rtol=1e-5, atol=1e-6)


def test_a_cache_would_let_packed_documents_see_each_other():
    """Why a Trainer must say use_cache=False: should transformers change this, the docstring can go."""
    model, tokenizer = tiny_llama()
    (pack,) = packs(documents(tokenizer), length=200)
    batch = collator_of(tokenizer, "causal-lm")([pack])
    fields = {name: batch[name] for name in ("input_ids", "position_ids")}
    with torch.no_grad():
        apart, together = (model(**fields, use_cache=cache).logits for cache in (False, True))
    assert (apart - together).abs().max() > 0.1


# ---- parts -----------------------------------------------------------------------------------------------------


def examples(part, tokenizer, encoding, *, packing=False):
    return Examples(encoded(part, tokenizer, encoding), length=encoding.longest, packing=packing)


def corpus(folder, *, streaming, packing=True, count=40):
    path = folder / "corpus.jsonl"
    lines = [json.dumps({"text": TEXTS[n % 6] + str(n)}, ensure_ascii=False) for n in range(count)]
    path.write_text("\n".join(lines), "utf-8")
    config = DataConfig(train=str(path), streaming=streaming, packing=packing, dev_share=0)
    return load_records(config, "causal-lm").train


def test_a_part_gives_packs_or_documents_and_is_counted(tmp_path):
    tokenizer = byte_fallback_tokenizer()
    encoding = Encoding(task="causal-lm", max_length=64, reach=BEFORE)
    part = corpus(tmp_path, streaming=False)
    plain, packed = (examples(part, tokenizer, encoding, packing=packing) for packing in (False, True))
    assert len(plain) == len(plain.documents) == len(packed.documents) == 40 and len(packed) < 20
    assert sorted(one.index for place in range(len(packed)) for one in packed[place]) == list(range(40))


def test_an_epoch_masks_a_part_anew_and_a_second_look_alike():
    tokenizer = wordpiece_tokenizer()
    encoding = Encoding(task="masked-lm", max_length=64, reach=ALL)
    part = examples([row_of(record("我喜欢苹果但讨厌梨子" * 3), 0)], tokenizer, encoding)
    collator = collator_of(tokenizer, "masked-lm")
    seen = []
    for epoch in (0, 1, 0):
        part.set_epoch(epoch)
        seen.append(collator([part[0]])["input_ids"])
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[0], seen[1])


def test_a_trainer_s_loader_takes_examples_and_counts_epochs(tmp_path):
    model, tokenizer = tiny_llama()
    encoding = Encoding(task="causal-lm", max_length=64, reach=BEFORE)
    part = examples(corpus(tmp_path, streaming=False), tokenizer, encoding, packing=True)
    seen = []

    class Plain(transformers.Trainer):
        def compute_loss(self, model, inputs, **_):
            seen.append((part.epoch, inputs["index"].tolist()))
            fields = {name: inputs[name] for name in ("input_ids", "position_ids", "labels")}
            return model(**fields, use_cache=False).loss

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "run"), num_train_epochs=2, per_device_train_batch_size=2, use_cpu=True,
        remove_unused_columns=False, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Plain(model, arguments, train_dataset=part, data_collator=collator_of(tokenizer, "causal-lm")).train()
    for epoch in (0, 1):
        assert sorted(one for at, index in seen if at == epoch for one in index) == list(range(40))


def test_texts_of_like_length_come_together_each_once_and_in_each_epoch_anew():
    rows = [bare(*range(2, 3 + (number * 7) % 40), index=number) for number in range(64)]
    rows[5] = (rows[5], rows[6])  # a packed row is as long as both
    order = ByLength(rows, batch=4, seed=3)
    assert order.lengths[5] == rows[5][0].length + rows[5][1].length and len(order) == 64
    first, again = list(order), list(ByLength(rows, batch=4, seed=3))
    order.set_epoch(1)
    second = list(order)
    assert first == again != second and sorted(first) == sorted(second) == list(range(64))
    assert first != list(ByLength(rows, batch=4, seed=4))

    def padded(drawn):
        return sum(4 * max(order.lengths[place] for place in drawn[at : at + 4]) for at in range(0, 64, 4))

    assert padded(first) < 0.85 * padded(range(64))


def test_a_collator_needs_nothing_but_its_fields():
    collator = Collator(task="causal-lm", pad_id=0)
    assert collator([bare(1, 2), bare(3)])["input_ids"].tolist() == [[1, 2], [3, 0]]
