"""The rebuilt XLM-R tokenizer does what its file's map says, for every character, and keeps offsets right."""

import random
import re
import unicodedata

import numpy as np
import pytest

from probe.e5file import Vocabulary, parse
from probe.e5tokenizer import character_normalizer, precompiled_map, unigram_tokenizer
from probe.embedded import e5_data
from probe.errors import ModelError

PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "苹果", "苹", "果", "A", "f", "i", "我", "<mask>"]
CHARACTERS = {"Ａ": "A", "ﬁ": "fi", "\u3000": " ", "\n": " ", "\r": " ", "\x01": "", "\x02": "", "\u200b": " "}


def tiny_tokenizer():
    vocabulary = Vocabulary(
        pieces=tuple(PIECES),
        scores=np.array([0, 0, 0, 0, -2, -3, -8, -8, -8, -8, -8, -8, 0], dtype=np.float32),
        start=0,
        end=2,
        pad=1,
        unknown=3,
        characters=CHARACTERS,
    )
    return unigram_tokenizer(vocabulary, max_length=16)


@pytest.fixture(scope="module")
def vocabulary():
    try:
        return parse(e5_data()).vocabulary
    except ModelError as error:
        pytest.skip(str(error))


def mapped(text, characters):
    return re.sub(" {2,}", " ", "".join(characters.get(char, char) for char in text))


def slices(tokenizer, text):
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return list(zip(encoded.tokens(), (text[a:b] for a, b in encoded["offset_mapping"]), strict=True))


def test_one_text_and_a_pair_get_the_special_tokens_of_xlm_r():
    tokenizer = tiny_tokenizer()
    assert tokenizer("苹果").tokens() == ["<s>", "▁", "苹果", "</s>"]
    assert tokenizer("苹果", "我").tokens() == ["<s>", "▁", "苹果", "</s>", "</s>", "▁", "我", "</s>"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("我Ａ苹果", [("▁", "我"), ("我", "我"), ("A", "Ａ"), ("苹果", "苹果")]),
        ("我ﬁ果", [("▁", "我"), ("我", "我"), ("f", "ﬁ"), ("i", "ﬁ"), ("果", "果")]),
        ("\x02\x01我苹果", [("▁", "我"), ("我", "我"), ("苹果", "苹果")]),
        ("我\x02苹果", [("▁", "我"), ("我", "我"), ("苹果", "苹果")]),
        ("我\r\n苹果", [("▁", "我"), ("我", "我"), ("▁", "\r"), ("苹果", "苹果")]),
        ("Ａ\u0301果", [("▁", "Ａ"), ("A", "Ａ"), ("\u0301", "\u0301"), ("果", "果")]),
    ],
)
def test_offsets_point_into_the_text_as_it_was_given(text, expected):
    found = [(token, piece.replace("\x02", "")) for token, piece in slices(tiny_tokenizer(), text)]
    assert found == expected


def test_a_saved_tokenizer_loads_by_itself_and_says_the_same(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in ["我Ａ苹果", "\x02我", "Ａ\u0301果", " 苹 果 "]:
        assert slices(again, text) == slices(tokenizer, text)
    assert (again.pad_token_id, again.unk_token_id, again.mask_token) == (1, 3, "<mask>")


def test_the_trie_finds_every_entry_of_a_random_map_and_nothing_else():
    from tokenizers import normalizers

    rng = random.Random(0)
    codes = rng.sample([c for c in range(1, 0x11000) if not 0xD800 <= c < 0xE000], 3000)
    characters = {chr(code): "".join(chr(rng.randrange(97, 123)) for _ in range(rng.randrange(4))) for code in codes}
    normalizer = normalizers.Precompiled(precompiled_map(characters))
    for code in range(1, 0x11000):
        if not 0xD800 <= code < 0xE000:
            assert normalizer.normalize_str(chr(code)) == characters.get(chr(code), chr(code)), hex(code)


def test_a_map_without_a_deleted_break_is_refused():
    with pytest.raises(ValueError, match=r"does not delete U\+0001"):
        character_normalizer({"Ａ": "A"})


@pytest.mark.real
def test_every_assigned_character_is_replaced_as_the_file_says(vocabulary):
    normalizer = character_normalizer(vocabulary.characters)
    for code in [*range(1, 0x30000), *range(0xE0000, 0xE0200), *map(ord, vocabulary.characters)]:
        if not 0xD800 <= code < 0xE000:
            assert normalizer.normalize_str(chr(code)) == mapped(chr(code), vocabulary.characters), hex(code)


@pytest.mark.real
def test_a_mapped_character_before_a_mark_or_joiner_keeps_both(vocabulary):
    normalizer = character_normalizer(vocabulary.characters)
    marks = [chr(c) for c in range(0x300, 0xFFFF) if unicodedata.category(chr(c)).startswith("M")]
    always = ["\u0301", "\ufe0f", "\u200c", "\u200d", "\uff9e", "\n", "\r"]
    rng = random.Random(0)
    for char in vocabulary.characters:
        for mark in [*always, *rng.sample(marks, 5)]:
            for text in (char + mark, f"x{char}{mark}果", mark + char):
                assert normalizer.normalize_str(text) == mapped(text, vocabulary.characters), ascii(text)
