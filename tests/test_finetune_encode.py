"""Records on tokens: what is read, what is learned, where targets and pairs stand, and what cannot be met."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.chats import written
from finetune.cutting import cut_to, pieces_of
from finetune.dataconfig import DataConfig
from finetune.encode import IGNORED, TARGET_RULE, Encoding, encode, encode_pieces, encode_row, encoding_of
from finetune.errors import DataError
from finetune.pairs import PairBook, PairRule, Reach, SpanPair, Unmet
from finetune.reading import OWN_RULE, Record, row_of
from probe import Span, load_model, tokenize
from tests.tiny import byte_fallback_tokenizer, byte_level_tokenizer, unigram_tokenizer, wordpiece_tokenizer

ALL = Reach(causal=False, window=None, longest=None)
BEFORE = Reach(causal=True, window=None, longest=None)
BOOK = PairBook(
    pairs=[
        PairRule(query="苹果", key="手机"),
        PairRule(query="手机", key="苹果", negatives=["菠菜"]),
        PairRule(query="公司", key="苹果", direction="either"),
    ]
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_tokenizer(template=CHATML):
    tokenizer = byte_level_tokenizer(start="<|im_start|>", end="<|im_end|>", pad="<|pad|>")
    tokenizer.chat_template = template
    return tokenizer


def record(text="", **fields):
    return Record(id="r", where="f.jsonl:7", group="g", text=text, **fields)


def encoding(task="causal-lm", *, max_length=64, reach=None, **settings):
    causal = task == "causal-lm"
    return Encoding(task=task, max_length=max_length, reach=reach or (BEFORE if causal else ALL), **settings)


def talk(*contents):
    return record(messages=tuple((("user", "assistant")[n % 2], text) for n, text in enumerate(contents)))


def learned_text(encoded, tokenizer):
    return tokenizer.decode(encoded.input_ids[encoded.labels != IGNORED])


def e5_tokenizer():
    try:
        return load_model("builtin:e5-small").tokenizer
    except Exception as error:
        pytest.skip(f"builtin:e5-small is not there: {error}")


# ---- plain texts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["我喜欢苹果", "<s>我喜欢", "我<s></s>喜欢</s>", "</s>"])
def test_a_text_has_one_start_and_one_end_token_whatever_it_says(text):
    tokenizer = byte_fallback_tokenizer()
    encoded = encode(record(text), tokenizer, encoding())
    ids = encoded.input_ids.tolist()
    assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1
    assert ids[-1] == tokenizer.eos_token_id and ids.count(tokenizer.eos_token_id) == 1
    assert tokenizer.decode(ids[1:-1]) == text
    assert encoded.labels.tolist() == [IGNORED, *ids[1:]]


def test_a_tokenizer_that_ends_texts_itself_gets_no_second_end_token():
    tokenizer = byte_level_tokenizer(start="<s>", end="</s>", pad="<pad>")
    assert encode(record("苹果"), tokenizer, encoding()).input_ids.tolist() == tokenizer("苹果")["input_ids"]


def test_a_tokenizer_without_an_end_token_adds_none():
    tokenizer = byte_fallback_tokenizer()
    tokenizer.eos_token = None
    assert encode(record("苹果"), tokenizer, encoding()).input_ids.tolist() == tokenizer("苹果")["input_ids"]


def test_a_tokenizer_without_a_start_token_learns_all_but_its_first_token():
    tokenizer = byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|pad|>")
    encoded = encode(record("苹果公司"), tokenizer, encoding())
    assert encoded.labels.tolist() == [IGNORED, *encoded.input_ids[1:].tolist()] and encoded.learned == 2


def test_a_text_that_is_cut_has_no_end_token_and_says_how_much_is_gone():
    tokenizer = byte_fallback_tokenizer()
    encoded = encode(record("我喜欢" * 20), tokenizer, encoding(max_length=8))
    assert len(encoded.input_ids) == 8 and encoded.input_ids[-1] != tokenizer.eos_token_id
    assert encoded.cut == len(tokenizer("我喜欢" * 20)["input_ids"]) + 1 - 8


def test_the_model_s_own_length_cuts_as_well():
    encoded = encode(record("我喜欢" * 20), byte_fallback_tokenizer(),
                     encoding(reach=Reach(causal=True, window=None, longest=10)))  # fmt: skip
    assert len(encoded.input_ids) == 10


@given(st.integers(1, 60), st.integers(5, 20))
def test_a_long_text_is_learned_whole_in_pieces(count, longest):
    tokenizer = byte_fallback_tokenizer()
    text = "".join("我喜欢梨"[n % 4] for n in range(count))
    pieces = encode_pieces(record(text), tokenizer, encoding(max_length=longest))
    whole = encode(record(text), tokenizer, encoding(max_length=1000)).input_ids[1:].tolist()
    assert [token for piece in pieces for token in piece.input_ids[1:].tolist()] == whole
    assert all(len(piece.input_ids) <= longest and piece.input_ids[0] == tokenizer.bos_token_id for piece in pieces)
    assert sum(piece.learned for piece in pieces) == len(whole) and all(piece.learned > 0 for piece in pieces)
    assert [piece.piece for piece in pieces] == list(range(len(pieces)))
    assert len(pieces) == 1 or all(len(piece.input_ids) > 2 for piece in pieces), "an end token alone"


def test_pieces_of_a_masked_language_model_keep_both_special_tokens():
    tokenizer = wordpiece_tokenizer()
    pieces = encode_pieces(record("我喜欢苹果但讨厌梨子"), tokenizer, encoding("masked-lm", max_length=7))
    for piece in pieces:
        ids = piece.input_ids.tolist()
        assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id) and len(ids) <= 7
        assert piece.labels.tolist() == [IGNORED, *ids[1:-1], IGNORED]
    assert (
        "".join(tokenizer.decode(piece.input_ids[1:-1]) for piece in pieces).replace(" ", "") == "我喜欢苹果但讨厌梨子"
    )


def test_a_row_of_a_corpus_gives_pieces_only_where_it_is_asked():
    tokenizer, row = byte_fallback_tokenizer(), row_of(record("我喜欢" * 20), 5)
    assert [one.index for one in encode_row(row, tokenizer, encoding(max_length=30))] == [5, 5]
    assert len(encode_row(row, tokenizer, encoding(max_length=30, split_long=False))) == 1


def test_max_length_that_holds_nothing_is_refused():
    with pytest.raises(DataError, match=r"f\.jsonl:7: max_length 2 leaves no room"):
        encode_pieces(record("我喜欢"), wordpiece_tokenizer(), encoding("masked-lm", max_length=2))


def test_half_a_character_is_refused_with_its_place():
    with pytest.raises(DataError, match=r"f\.jsonl:7: character 0 "):
        encode(record("\ud800"), byte_fallback_tokenizer(), encoding())


def test_a_line_of_a_megabyte_is_cut():
    encoded = encode(record("苹果" * 170_000, label="a"), wordpiece_tokenizer(),
                     encoding("classification", labels=("a", "b")))  # fmt: skip
    assert len(encoded.input_ids) == 64 and encoded.cut == 340_002 - 64


# ---- answers ---------------------------------------------------------------------------------------------------


def test_only_answers_are_learned_with_what_ends_them():
    tokenizer = chat_tokenizer()
    encoded = encode(talk("苹果?", "公司", "like?", "手机"), tokenizer, encoding(max_length=200))
    assert learned_text(encoded, tokenizer) == "公司<|im_end|>手机<|im_end|>"
    whole = tokenizer.apply_chat_template(
        [
            {"role": ("user", "assistant")[n % 2], "content": text}
            for n, text in enumerate(("苹果?", "公司", "like?", "手机"))
        ],
        tokenize=False,
    )
    assert encoded.input_ids.tolist() == tokenizer(whole, add_special_tokens=False)["input_ids"]


def test_a_template_s_start_token_is_the_only_one():
    tokenizer = byte_fallback_tokenizer()
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    encoded = encode(talk("我喜欢", "苹果"), tokenizer, encoding())
    ids = encoded.input_ids.tolist()
    assert ids.count(tokenizer.bos_token_id) == 1 and ids.count(tokenizer.eos_token_id) == 2
    assert learned_text(encoded, tokenizer) == "苹果</s>"


@pytest.mark.parametrize("content", ["a<|im_end|>b", "<|im_end|>", "<|im_start|>assistant\n苹果<|im_end|><|pad|>"])
@pytest.mark.parametrize("answer", [False, True])
def test_a_special_token_s_name_in_a_message_stays_text(content, answer):
    tokenizer = chat_tokenizer()
    contents = ("like", content) if answer else (content, "like")
    encoded = encode(talk(*contents), tokenizer, encoding(max_length=200))
    ids = encoded.input_ids.tolist()
    plain = encode(talk("x", "y"), tokenizer, encoding(max_length=200)).input_ids.tolist()
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id):
        assert ids.count(token) == plain.count(token)
    assert tokenizer.decode(ids) == CHAT_OF.format(*contents)
    assert learned_text(encoded, tokenizer) == contents[1] + "<|im_end|>"


CHAT_OF = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"


def test_private_characters_in_a_message_are_not_taken_for_stand_ins():
    tokenizer = chat_tokenizer()
    encoded = encode(talk("\ue000<|im_end|>\ue001", "like"), tokenizer, encoding(max_length=200))
    assert tokenizer.decode(encoded.input_ids) == CHAT_OF.format("\ue000<|im_end|>\ue001", "like")


FORGETFUL = "{% for m in messages %}{% if m.role == 'user' or loop.last %}[{{ m.content }}]{% endif %}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}x{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "messages", "said"),
    [
        (None, (("user", "a"), ("assistant", "b")), "no chat template"),
        (CHATML, (("assistant", "b"),), "the first message is an answer"),
        (FORGETFUL, (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")), "does not write message 2"),
        (STRICT, (("tool", "a"), ("assistant", "b")), "refuses these messages: no tools here"),
        ("same", (("user", "a"), ("assistant", "b")), "writes no answer"),
        ("{{ nothing", (("user", "a"), ("assistant", "b")), "refuses these messages"),
    ],
)
def test_a_template_that_cannot_serve_is_refused_with_the_record_s_place(template, messages, said):
    with pytest.raises(DataError) as error:
        encode(record(messages=messages), chat_tokenizer(template), encoding())
    assert str(error.value).startswith("f.jsonl:7: ") and said in str(error.value) and "\n" not in str(error.value)


def test_a_completion_is_learned_after_its_prompt_and_cut_at_the_border():
    tokenizer = byte_fallback_tokenizer()
    encoded = encode(record(prompt="我喜", completion="欢苹果"), tokenizer, encoding())
    prompt = tokenizer("我喜")["input_ids"]
    assert encoded.input_ids[: len(prompt)].tolist() == prompt, "what a model is given later, 喜欢 not merged"
    assert learned_text(encoded, tokenizer) == "欢苹果</s>"


def test_a_prompt_s_own_end_token_does_not_stand_before_the_answer():
    tokenizer = byte_level_tokenizer(start="<s>", end="</s>", pad="<pad>")
    encoded = encode(record(prompt="苹果", completion="公司"), tokenizer, encoding())
    assert tokenizer.decode(encoded.input_ids) == "<s>苹果公司</s>" and learned_text(encoded, tokenizer) == "公司</s>"


def test_prompt_and_completion_go_through_a_template_where_there_is_one():
    tokenizer = chat_tokenizer()
    one = record(prompt="苹果", completion="公司")
    assert np.array_equal(
        encode(one, tokenizer, encoding()).input_ids, encode(talk("苹果", "公司"), tokenizer, encoding()).input_ids
    )
    assert "user" not in tokenizer.decode(encode(one, tokenizer, encoding(template=False)).input_ids)


def test_an_answer_that_is_cut_off_leaves_nothing_to_learn_and_says_so():
    encoded = encode(record(prompt="苹果" * 50, completion="公司"), byte_fallback_tokenizer(), encoding(max_length=20))
    assert encoded.learned == 0 and encoded.cut > 0 and (encoded.labels == IGNORED).all()


# ---- pairs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [byte_fallback_tokenizer, unigram_tokenizer, chat_tokenizer])
def test_pairs_of_the_book_stand_on_the_tokens_that_carry_their_words(make):
    tokenizer = make()
    encoded = encode(record("菠菜和苹果手机"), tokenizer, encoding(book=BOOK, rules=(1,)), keep_words=True)
    (pair,) = encoded.pairs
    assert {encoded.words[place] for place in pair.queries} <= {"手机", "手", "机"}
    assert {encoded.words[place] for place in pair.keys} == {"苹果"}
    assert {encoded.words[place] for place in pair.negatives} <= {"菠", "菜"} and pair.negatives
    assert len(encoded.words) == len(encoded.input_ids)


def test_a_pair_in_the_wrong_order_or_out_of_the_window_is_unmet():
    tokenizer = byte_fallback_tokenizer()
    ordered = encode(record("苹果手机"), tokenizer, encoding(book=BOOK, rules=(0, 1)))
    assert ordered.unmet == (Unmet(rule=0, reason="order"),) and [pair.rule for pair in ordered.pairs] == [1]
    narrow = encoding(book=BOOK, rules=(1,), reach=Reach(causal=True, window=4, longest=None))
    assert encode(record("苹果我喜欢手机"), tokenizer, narrow).pairs != ()
    assert encode(record("苹果我喜欢和平手机"), tokenizer, narrow).unmet == (Unmet(rule=1, reason="window"),)


@pytest.mark.parametrize(("longest", "met"), [(4, True), (3, False), (2, False)])
def test_a_pair_that_is_cut_in_its_middle_is_truncated(longest, met):
    tokenizer = byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|pad|>")  # 苹果 one token, 梨 three
    book = PairBook(pairs=[PairRule(query="梨", key="苹果")])
    one = record("苹果梨公司" + "苹" * 9, pairs=(SpanPair(rule=OWN_RULE, query=Span(2, 3), key=Span(0, 2)),))
    encoded = encode(one, tokenizer, encoding(max_length=longest, book=book, rules=(0,)))
    assert len(encoded.pairs) == (2 if met else 0)
    assert encoded.unmet == (
        () if met else (Unmet(rule=OWN_RULE, reason="truncated"), Unmet(rule=0, reason="truncated"))
    )


def test_a_pair_between_two_pieces_is_truncated_and_one_within_a_piece_is_met():
    tokenizer = byte_fallback_tokenizer()
    texts = {"苹果手机" + "我" * 20: 1, "我" * 20 + "苹果手机": 1, "苹果" + "我" * 20 + "手机": 0}
    for text, count in texts.items():
        pieces = encode_pieces(record(text), tokenizer, encoding(max_length=16, book=BOOK, rules=(1,)))
        assert len(pieces) == 2 and sum(len(piece.pairs) for piece in pieces) == count
        assert sum(len(piece.unmet) for piece in pieces) == 1 - count
        for piece in pieces:
            for pair in piece.pairs:
                assert tokenizer.decode(piece.input_ids[list(pair.keys)]) == "苹果"


def test_pairs_of_the_data_count_unless_they_are_switched_off():
    one = record("苹果手机", pairs=(SpanPair(rule=OWN_RULE, query=Span(2, 4), key=Span(0, 2), weight=2.5),))
    (pair,) = encode(one, byte_fallback_tokenizer(), encoding()).pairs
    assert pair.rule == OWN_RULE and pair.weight == 2.5
    assert encode(one, byte_fallback_tokenizer(), encoding(own_pairs=False)).pairs == ()


def test_pairs_are_found_in_what_a_template_writes():
    tokenizer = chat_tokenizer()
    encoded = encode(talk("苹果?", "手机"), tokenizer, encoding(max_length=200, book=BOOK, rules=(1,)))
    (pair,) = encoded.pairs
    assert tokenizer.decode(encoded.input_ids[list(pair.queries)]) == "手机"


def test_a_word_that_gets_no_token_is_absent():
    one = record("我喜欢\u200d苹果", pairs=(SpanPair(rule=OWN_RULE, query=Span(4, 6), key=Span(3, 4)),))
    assert encode(one, wordpiece_tokenizer(), encoding("masked-lm")).unmet == (Unmet(rule=OWN_RULE, reason="absent"),)


# ---- a marked word, word in context, classes -------------------------------------------------------------------


def test_a_target_s_tokens_are_found_and_its_class_is_its_place():
    tokenizer = wordpiece_tokenizer()
    one = record("我喜欢苹果", target=Span(3, 5), label="b")
    encoded = encode(one, tokenizer, encoding("sense", labels=("a", "b")))
    assert (encoded.target, encoded.label, encoded.labels.shape, encoded.learned) == ((4, 5), 1, (0,), 1)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(4, 30))
def test_a_text_that_is_too_long_is_cut_around_its_target(before, after, longest):
    tokenizer = wordpiece_tokenizer()
    one = record("我" * before + "苹果" + "梨" * after, target=Span(before, before + 2), label="a")
    encoded = encode(one, tokenizer, encoding("sense", labels=("a", "b"), max_length=longest))
    assert len(encoded.input_ids) == min(longest, before + after + 4)
    assert tokenizer.decode(encoded.input_ids[list(encoded.target)]) == "苹 果"
    assert (encoded.input_ids[0], encoded.input_ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)


def test_a_target_longer_than_the_text_may_be_is_refused():
    one = record("苹" * 20, target=Span(0, 20), label="a")
    with pytest.raises(DataError, match=r"f\.jsonl:7: the target has 20 tokens and 8 fit"):
        encode(one, wordpiece_tokenizer(), encoding("sense", labels=("a", "b"), max_length=10))


def test_an_unknown_label_is_refused_with_its_place():
    with pytest.raises(DataError, match=r"f\.jsonl:7: label 'c' is unknown; known are a, b"):
        encode(record("苹果", label="c"), wordpiece_tokenizer(), encoding("classification", labels=("a", "b")))


def two(label="same", first="我喜欢苹果", second="苹果手机", **fields):
    spans = {"target": Span.of(first, "苹果"), "second_target": Span.of(second, "苹果")}
    return record(first, second=second, label=label, **spans, **fields)


def context(**settings):
    return encoding("word-in-context", labels=("different", "same"), **settings)


@pytest.mark.parametrize("make", [wordpiece_tokenizer, byte_fallback_tokenizer, unigram_tokenizer, e5_tokenizer])
def test_two_sentences_stand_in_the_tokenizer_s_own_frame(make):
    tokenizer = make()
    encoded = encode(two(), tokenizer, context(), keep_words=True)
    assert encoded.input_ids.tolist() == tokenizer("我喜欢苹果", "苹果手机")["input_ids"]
    for place in (encoded.target, encoded.second_target):
        assert tokenizer.decode(encoded.input_ids[list(place)]).replace(" ", "") == "苹果"
    assert max(encoded.target) < min(encoded.second_target) and encoded.label == 1
    assert len(encoded.words) == len(encoded.input_ids)


def test_token_types_are_given_where_the_tokenizer_has_them():
    tokenizer = wordpiece_tokenizer()
    assert encode(two(), tokenizer, context()).token_types is None
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    types = encode(two(), tokenizer, context()).token_types
    assert types.tolist() == tokenizer("我喜欢苹果", "苹果手机")["token_type_ids"]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(9, 40))
def test_two_long_sentences_are_both_cut_around_their_targets(before, after, longest):
    tokenizer = wordpiece_tokenizer()
    one = two(first="我" * before + "苹果" + "梨" * after, second="欢" * after + "苹果" + "他" * before)
    encoded = encode(one, tokenizer, context(max_length=longest))
    assert len(encoded.input_ids) == min(longest, 2 * (before + after + 2) + 3)
    for place in (encoded.target, encoded.second_target):
        assert tokenizer.decode(encoded.input_ids[list(place)]) == "苹 果"
    assert encoded.cut == 2 * (before + after + 2) + 3 - len(encoded.input_ids)


def test_two_sentences_apart_are_two_sequences_of_one_class():
    tokenizer = wordpiece_tokenizer()
    encoded = encode(two("different"), tokenizer, context(pair_encoding="separate"))
    assert encoded.input_ids.tolist() == tokenizer("我喜欢苹果")["input_ids"] and encoded.target == (4, 5)
    assert encoded.second.input_ids.tolist() == tokenizer("苹果手机")["input_ids"] and encoded.second.target == (1, 2)
    assert encoded.label == encoded.second.label == 0 and encoded.length == 7


def test_targets_of_one_sense_attend_to_each_other_if_asked():
    tokenizer = wordpiece_tokenizer()
    both = encode(two(), tokenizer, context(link_targets=True))
    assert {(pair.queries, pair.keys) for pair in both.pairs} == {((7, 8), (4, 5)), ((4, 5), (7, 8))}
    assert {pair.rule for pair in both.pairs} == {TARGET_RULE}
    (back,) = encode(two(), tokenizer, context(link_targets=True, reach=BEFORE)).pairs
    assert (back.queries, back.keys) == ((7, 8), (4, 5))
    narrow = context(link_targets=True, reach=Reach(causal=True, window=2, longest=None))
    assert encode(two(), tokenizer, narrow).unmet == (Unmet(rule=TARGET_RULE, reason="window"),)
    assert encode(two("different"), tokenizer, context(link_targets=True)).pairs == ()


def test_pairs_of_either_sentence_stand_on_its_own_tokens():
    tokenizer = wordpiece_tokenizer()
    encoded = encode(two(first="苹果公司", second="我喜欢苹果手机"), tokenizer, context(book=BOOK, rules=(0, 2)))
    found = {pair.rule: tokenizer.decode(encoded.input_ids[list(pair.keys)]) for pair in encoded.pairs}
    assert found == {0: "手 机", 2: "苹 果"}
    assert min(encoded.pairs[1].queries) > 6 > max(encoded.pairs[0].queries)


def test_a_configuration_gives_its_encoding():
    config = DataConfig(train="a.txt", max_length=99, pair_encoding="separate", long_texts="cut", template=False)
    made = encoding_of(config, "causal-lm", reach=BEFORE)
    assert (made.max_length, made.pair_encoding, made.split_long, made.template) == (99, "separate", False, False)


def test_a_cut_gives_each_position_its_new_place_and_lost_ones_none():
    tokens = tokenize(wordpiece_tokenizer(), "我喜欢苹果")
    cut = cut_to(tokens, 5)
    assert cut.kept.tolist() == [0, 1, 2, 3, 6]
    assert (cut.places([1, 3]), cut.places([3, 4]), cut.places([6]), cut.places([])) == ((1, 3), None, (4,), ())
    assert [piece.kept.tolist() for piece in pieces_of(tokens, 5, keep_end=True)] == [[0, 1, 2, 6], [0, 3, 4, 5, 6]]


def test_what_is_written_of_a_text_is_its_token_map():
    one = written(record("苹果"), byte_fallback_tokenizer())
    assert one.tokens.text == "苹果" and one.learned.all() and one.tokens.labels[-1] == "</s>"
