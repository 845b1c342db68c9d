"""Sentences and chunks: slices of the text, whole sentences, tokens as the model will count them."""

import random
import re
import time
from itertools import pairwise
from typing import Any

import pytest

from finetune.errors import RetrievalError
from finetune.rag.chunks import Chunk, chunk_document, token_counts
from finetune.rag.documents import Content, Document, document_of
from finetune.rag.sentences import sentence_ends
from probe import tokenize
from tests.redteam import MARKS
from tests.tokenizers_zoo import ALL, CORPUS, gemma_bytes, metaspace_unigram, slow_characters, wordpiece

READING = {name: build for name, build in ALL.items() if name != "slow sentencepiece"}


def a_document(text: str, name: str = "a.txt") -> Document:
    return document_of(Content(text=text), id=name, kind="txt", title="苹果")


def chunked(text: str, tokenizer: Any = None, **settings: int) -> list[Chunk]:
    """The chunks of a text, each seen to be a slice that is sized as it says."""
    tokenizer = tokenizer or gemma_bytes()
    document = a_document(text)
    chunks = chunk_document(document, tokenizer, **settings)
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text == chunk.text.strip() and chunk.document == "a.txt"
        assert chunk.tokens == len(tokenize(tokenizer, chunk.text, add_special_tokens=False).ids)
        assert chunk.tokens <= settings.get("size", 256) or len(chunk.text) == 1
    return chunks


def cut(text: str) -> list[str]:
    ends = sentence_ends(text).tolist()
    assert ends[-1] == len(text) and ends == sorted(set(ends))
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


# ---- sentences -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "苹果很甜。|梨呢？！|也甜",
        "他说：“苹果很甜。”|她笑了。",
        "（见图。）|下一句。",
        "他走了……又回来。|真的！！！|假的",
        "标题\n|一、苹果\n\n  |二、梨",
        "甲\r\n|乙\r|丙\u2028|丁",
        "An apple a day. |It keeps him away! |Really? |Yes",
        "Dr. Smith met J. Doe, e.g. in Fig. 3 of Vol. 2. |He left.",
        "It costs 3.14 yuan. |Version 2.0 is out",
        "see https://a.b/c?d=e!f and x.y.z. |Then go",
        "1. 苹果\n|2. 梨\n|12. 桃",
        "an English text that was\nbroken into lines, and\ngoes on\n|Next one",
        "blank\n\n|line",
        "π≈３．１４。|圆",
        'He said "Go." |Then "Stop!" |and left',
        "。",
        "无句号",
        "",
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text):
    assert [piece.strip() for piece in cut(text.replace("|", ""))] == [piece.strip() for piece in text.split("|")]


@pytest.mark.parametrize("piece", ["\n", " ", "!", ".", "。", "a\n", "……", "”", "' "])
def test_a_long_run_of_anything_is_cut_at_once(piece):
    began = time.process_time()
    sentence_ends("苹果" + piece * (400_000 // len(piece)) + "x")
    assert time.process_time() - began < 10


# ---- chunks ----------------------------------------------------------------------------------------------------


def long_text(seed: int, sentences: int = 40) -> str:
    draw = random.Random(seed)
    pieces = [draw.choice(CORPUS) + draw.choice(["", "\n", "\n\n", "  ", "\r\n"]) for _ in range(sentences)]
    return "".join(pieces)


@pytest.mark.parametrize("name", sorted(READING))
@pytest.mark.parametrize("size", [16, 40])
def test_chunks_are_slices_that_fit_and_hold_all_of_the_text(name, size):
    text = long_text(size)
    chunks = chunked(text, READING[name](), size=size)
    assert "".join("".join(chunk.text.split()) for chunk in chunks) == "".join(text.split())
    assert all(one.end <= other.start for one, other in pairwise(chunks))


def test_chunks_are_runs_of_whole_sentences_as_many_as_fit():
    sentence = "苹果很甜。"
    size = 3 * len(tokenize(gemma_bytes(), sentence, add_special_tokens=False).ids)
    chunks = chunked(sentence * 8, size=size)
    assert [chunk.text for chunk in chunks] == [sentence * 3, sentence * 3, sentence * 2]
    assert [chunk.tokens for chunk in chunks] == [size, size, size * 2 // 3]


def test_a_tokenizer_that_puts_a_token_first_fills_its_chunks_all_the_same():
    text = "喜欢苹果。" * 40
    alone = token_counts(metaspace_unigram(), ["喜欢苹果。", "喜欢苹果。" * 2])
    assert alone[1] < 2 * alone[0]  # ▁ once
    # Six sentences would fit within the document, where ▁ stands before the first one only, and do not fit alone.
    chunks = chunked(text, metaspace_unigram(), size=alone[0] + 5 * (alone[1] - alone[0]) - 1)
    assert {chunk.text for chunk in chunks} == {"喜欢苹果。" * 5}


def test_overlapping_chunks_begin_with_the_last_sentences_of_the_one_before():
    sentences = [f"第{number}个苹果。" for number in range(100, 130)]
    one = token_counts(gemma_bytes(), sentences[:1])[0]
    chunks = chunked("".join(sentences), size=4 * one, overlap=1)
    parts = [re.findall("[^。]+。", chunk.text) for chunk in chunks]
    assert all(before[-1] == after[0] for before, after in pairwise(parts))
    assert [len(part) for part in parts[:-1]] == [4] * (len(parts) - 1) and parts[-1][-1] == sentences[-1]


@pytest.mark.parametrize("overlap", [1, 2, 50])
def test_an_overlap_that_leaves_no_room_gives_way_and_every_chunk_goes_on(overlap):
    text = long_text(5)
    chunks = chunked(text, size=30, overlap=overlap)
    assert all(one.end < other.end for one, other in pairwise(chunks))
    missed = set(range(len(text))) - {place for chunk in chunks for place in range(chunk.start, chunk.end)}
    assert all(text[place].isspace() for place in missed)


@pytest.mark.parametrize(
    ("text", "edges"),
    [
        ("苹果很甜，" * 40, "，"),
        ("苹果、梨、" * 40, "、"),
        ("apples apples " * 40, "s"),
        ("see a:b,c;d " * 30, "ed"),
    ],
)
def test_a_sentence_too_long_is_cut_after_clauses_else_at_spaces(text, edges):
    chunks = chunked(text, size=40)
    assert len(chunks) > 2 and {chunk.text[-1] for chunk in chunks} <= set(edges)


def test_a_sentence_without_any_place_to_cut_is_cut_between_characters_that_belong_to_nobody():
    for unit in ("苹", "e\u0301\u0323", "👩\u200d🔬"):
        chunks = chunked(unit * 300, wordpiece() if unit == "苹" else gemma_bytes(), size=32)
        assert len(chunks) > 3 and all(chunk.text == unit * (len(chunk.text) // len(unit)) for chunk in chunks)
        assert unit != "苹" or {chunk.tokens for chunk in chunks[:-1]} == {32}


def test_an_endless_line_is_cut_in_seconds():
    began = time.process_time()
    chunks = chunk_document(a_document("苹果" * 150_000), gemma_bytes(), size=256)
    assert "".join(chunk.text for chunk in chunks) == "苹果" * 150_000
    assert time.process_time() - began < 30


@pytest.mark.parametrize("name", sorted(READING))
def test_names_of_special_tokens_are_counted_as_the_letters_they_are(name):
    tokenizer = READING[name]()
    named = [str(mark) for mark in tokenizer.all_special_tokens if len(str(mark)) > 1]
    text = "苹果" + "。".join([*MARKS, *named] * 2)
    chunks = chunked(text, tokenizer, size=24)
    assert "".join("".join(chunk.text.split()) for chunk in chunks) == "".join(text.split())


def test_a_chunk_has_the_same_name_again_and_another_in_another_document_or_place():
    text = "苹果很甜。" * 40
    chunks, again = (chunk_document(a_document(text), gemma_bytes(), size=40) for _ in range(2))
    other = chunk_document(a_document(text, "b.txt"), gemma_bytes(), size=40)
    assert chunks == again and len({chunk.id for chunk in [*chunks, *other]}) == 2 * len(chunks)
    assert all(re.fullmatch("[0-9a-f]{16}", chunk.id) and chunk.title == "苹果" for chunk in chunks)


def test_pieces_that_nobody_can_see_become_no_chunk():
    chunks = chunked("苹果。\n\u200b\u200b\n" + "\u200b\n" * 200 + "梨。", size=16)
    assert (
        "".join(chunk.text for chunk in chunks).replace("\u200b", "").split() == ["苹果。", "梨。"] or len(chunks) == 2
    )
    assert all(any(letter in chunk.text for letter in "苹梨") for chunk in chunks)


def test_a_text_that_a_tokenizer_cannot_read_is_refused_with_its_name():
    with pytest.raises(RetrievalError, match=r"a\.txt: the text holds .* which this tokenizer can read only as its "):
        chunk_document(a_document("苹果\ue000。" * 30), slow_characters(), size=16)


@pytest.mark.parametrize(("size", "overlap"), [(15, 0), (0, 0), (256, -1)])
def test_settings_that_make_no_chunks_are_refused(size, overlap):
    with pytest.raises(RetrievalError, match=f"chunk size {size}, overlap {overlap}: allowed are 16 tokens and 0 "):
        chunk_document(a_document("苹果"), gemma_bytes(), size=size, overlap=overlap)
