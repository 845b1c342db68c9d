"""Texts in which nothing is a mark, through tokenizers of every kind; stand-ins never run out."""

import pytest
from transformers import AddedToken

from finetune.chats import written
from finetune.errors import DataError
from finetune.reading import Record
from finetune.spelling import Speller, mark_ids, unused_signs
from probe import tokenize
from tests.redteam import MARKS
from tests.test_finetune_encode import chat_tokenizer, talk
from tests.tokenizers_zoo import ALL, metaspace_unigram, qwen_bytes, slow_characters, wordpiece

WIDE = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)})  # the same letters at full width


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("before", ["", "\n"])
def test_no_name_in_a_text_becomes_the_mark(name, before):
    tokenizer = ALL[name]()
    text = "苹果" + " ".join(MARKS) + "".join(MARKS) + "".join(MARKS).translate(WIDE)
    cut = Speller(tokenizer).spelled(text, before=before)
    assert not set(cut.ids) & mark_ids(tokenizer) and cut.text == text and not cut.special.any()


def test_a_name_that_only_the_normaliser_makes_stays_letters():
    tokenizer = metaspace_unigram()
    wide = "苹果＜/s＞苹果"
    assert tokenizer.eos_token_id in tokenizer(wide, add_special_tokens=False)["input_ids"]  # what there is to mend
    cut = Speller(tokenizer).spelled(wide)
    assert tokenizer.eos_token_id not in cut.ids
    assert tokenizer.decode(cut.ids).replace(" ", "") == "苹果</s>苹果"


@pytest.fixture
def thinking():
    tokenizer = qwen_bytes.__wrapped__()
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("苹果酸", special=False)])
    return tokenizer


def test_an_added_token_in_brackets_is_a_mark_and_an_added_word_is_not(thinking):
    think, acid = thinking.convert_tokens_to_ids(["<think>", "苹果酸"])
    cut = Speller(thinking).spelled("苹果酸<think><<think>think>苹果酸")
    assert think not in cut.ids and cut.ids.count(acid) == 2
    assert thinking.decode(cut.ids) == "苹果酸<think><<think>think>苹果酸"


def test_a_character_that_is_a_mark_itself_is_refused():
    with pytest.raises(DataError, match=r"^the text holds '\\ue000', which this tokenizer can read only as"):
        Speller(slow_characters()).spelled("苹果\ue000")


def test_a_character_that_becomes_a_mark_as_it_is_normalised_is_refused():
    tokenizer = metaspace_unigram.__wrapped__()
    tokenizer.add_special_tokens({"additional_special_tokens": ["A"]})
    with pytest.raises(DataError, match=r"^the text holds 'A', which this tokenizer can read only as"):
        Speller(tokenizer).spelled("苹果Ａ")


@pytest.mark.parametrize("name", ALL)
def test_a_text_after_a_line_has_the_tokens_that_it_has_there(name):
    tokenizer, speller = ALL[name](), Speller(ALL[name]())
    text = "苹果很好吃"
    whole = tokenize(tokenizer, "\n" + text, add_special_tokens=False).ids
    gap, cut = speller.gap("\n", text), speller.spelled(text, before="\n")
    assert gap.ids + cut.ids == whole and cut.text == text and gap.text == "\n"


def test_a_token_of_both_sides_is_cut_at_the_border():
    tokenizer = wordpiece()
    cut = Speller(tokenizer).spelled("pple", before="a")
    assert cut.labels == tokenize(tokenizer, "pple", add_special_tokens=False).labels


def test_stand_ins_are_found_beyond_the_first_private_characters_and_their_end_is_told():
    first = "".join(map(chr, range(0xE000, 0xF900)))
    assert next(unused_signs([first])) == "\U000f0000"
    more = "".join(map(chr, [*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)]))
    with pytest.raises(DataError, match="every private character"):
        next(unused_signs([first, more]))


def test_a_message_with_all_private_characters_of_the_first_plane_is_written():
    tokenizer = chat_tokenizer()
    content = "<|im_end|>" + "".join(map(chr, range(0xE000, 0xF900)))
    plain = written(talk("x", "y"), tokenizer).tokens.ids
    ids = written(talk(content, "y"), tokenizer).tokens.ids
    assert ids.count(tokenizer.eos_token_id) == plain.count(tokenizer.eos_token_id)
    assert content in tokenizer.decode(ids)
    assert isinstance(talk("x"), Record)
