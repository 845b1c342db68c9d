import json
import time
import unicodedata
import warnings

import numpy as np
import pytest
import tokenizers_zoo as zoo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerFast

from probe.embedded import checkpoint
from probe.errors import CijingError, SpanError
from probe.spans import Span, TokenMap, labels_of, merge_rows, special_ids, tokenize, tokens_of, words_of

FRUIT = "我喜欢苹果"
PARTS = [
    *"我喜欢苹果和平酶蘋熱愛臺灣龘𠮷豈",
    *"ＡｐＰ１２，。！：（）～",
    *"aAeEpPlLxXßİΣſ0 19.,!?#<>[]/▁ĠÃ",
    *["apple", "Apple", "苹果", "<s>", "</s>", "[SEP]", "[UNK]", "<unk>", "<|endoftext|>", "##s", "</w>", "<0xE8>"],
    *["👩\u200d👩\u200d👧", "🍎", "❤\ufe0f", "🇨🇳", "\u200f", "\u200e", "\u200b", "\ufeff", "\u00ad", "\x07", "\ufffd"],
    *["é", "e\u0301", "\u0301", "ﬁ", "㎏", "…", "½", "한", "가", "ไทย", "नि", "か\u3099", "Å", "²", "¨", "À", "G"],
    *[" ", "  ", "\n", "\r\n", "\t", "\u3000", "\xa0", "\u2028"],
]
texts = st.one_of(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=14).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    st.lists(st.sampled_from("哈果 e\u0301"), min_size=1, max_size=12).map("".join),
)
thorough = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
every = pytest.mark.parametrize("kind", zoo.ALL)
every_fast = pytest.mark.parametrize("kind", zoo.FAST)
LOSSLESS = ["gemma bytes", "llama bytes", "gpt2 bytes", "slow bytes", "slow characters"]


def mapped(kind: str, text: str) -> TokenMap | None:
    """The map of a text, or None where the tokenizer makes nothing of it."""
    try:
        return tokenize(zoo.ALL[kind](), text)
    except SpanError as error:
        assert "no tokens" in str(error) or "only as its special token" in str(error), str(error)
        return None


def carried(tokens: TokenMap) -> list[tuple[str, tuple[int, int]]]:
    rows = zip(tokens.labels, tokens.offsets.tolist(), tokens.special.tolist(), strict=True)
    return [(label, tuple(offset)) for label, offset, special in rows if not special]


# ---- spans -----------------------------------------------------------------------------------------------------


def test_a_span_is_found_by_its_word_and_cuts_it_out_again():
    text = "苹果公司不卖苹果"
    assert Span.of(text, "苹果") == Span(0, 2)
    assert Span.of(text, "苹果", occurrence=2) == Span(6, 8)
    assert Span.of("哈哈哈", "哈哈", occurrence=2) == Span(1, 3)
    assert Span(2, 4).cut(text) == "公司"
    assert Span(0, 2) < Span(2, 3) and Span(0, 2).overlaps(Span(1, 5)) and not Span(0, 2).overlaps(Span(2, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Span(2, 2), "0 <= start < end"),
        (lambda: Span(-1, 2), "0 <= start < end"),
        (lambda: Span.of(FRUIT, "菠菜"), "has it 0 times"),
        (lambda: Span.of(FRUIT, "苹果", occurrence=2), "has it 1 times"),
        (lambda: Span.of(FRUIT, "苹果", occurrence=0), "counted from 1"),
        (lambda: Span.of(FRUIT, ""), "at least one character"),
        (lambda: Span(3, 9).cut(FRUIT), "past the text of 5 characters"),
    ],
)
def test_a_span_that_is_none_is_refused_in_one_line(make, message):
    with pytest.raises(SpanError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


# ---- worked by hand --------------------------------------------------------------------------------------------

ONE_EACH = [("我", (0, 1)), ("喜", (1, 2)), ("欢", (2, 3)), ("苹", (3, 4)), ("果", (4, 5))]
HAND = {
    "wordpiece": ("offsets", ONE_EACH),
    "slow bert": ("search", ONE_EACH),
    "slow characters": ("search", ONE_EACH),
    "slow bytes": ("search", [row for row in ONE_EACH for _ in range(3)]),
    "gemma bytes": ("offsets", [*ONE_EACH[:3], ("苹果", (3, 5))]),
    # The tokenizer gives the added ▁ the offsets of 我; it carries no character.
    "llama bytes": ("repaired", [("", (0, 0)), *ONE_EACH[:3], ("苹果", (3, 5))]),
    "metaspace unigram": ("repaired", [("", (0, 0)), ("我", (0, 1)), ("喜欢", (1, 3)), ("苹果", (3, 5))]),
    "slow sentencepiece": ("search", [("", (0, 0)), *ONE_EACH[:3], ("苹果", (3, 5))]),
}


@pytest.mark.parametrize("kind", HAND)
def test_i_like_apples_on_each_kind_of_tokenizer(kind):
    how, rows = HAND[kind]
    tokens = tokenize(zoo.ALL[kind](), FRUIT)
    assert carried(tokens) == rows
    assert tokens.aligned == how
    word = tokens_of(Span.of(FRUIT, "苹果"), tokens)
    assert [tokens.labels[token] for token in word] == [label for label, (_, end) in rows if end > 3]


@pytest.mark.parametrize("kind", ["qwen bytes", "gpt2 bytes"])
def test_a_byte_token_that_ends_inside_a_character_is_a_token_of_both_characters(kind):
    tokens = tokenize(zoo.ALL[kind](), FRUIT)
    first = carried(tokens)[0]
    assert first == ("我喜", (0, 2))  # 我 and the first byte of 喜
    assert 0 in tokens_of(Span.of(FRUIT, "喜"), tokens)
    assert 0 not in tokens_of(Span.of(FRUIT, "欢"), tokens)
    assert len(tokens_of(Span.of(FRUIT, "喜"), tokens)) == 3


def test_a_space_that_splits_a_character_is_trimmed_from_its_tokens():
    tokens = tokenize(zoo.gpt2_bytes(), "好 苹果")
    at = np.flatnonzero((tokens.offsets == [2, 3]).all(axis=1))
    assert zoo.gpt2_bytes().convert_ids_to_tokens(tokens.ids[at[0]]) == "Ġè"
    assert set(tokens_of(Span(2, 3), tokens)) >= set(at)
    with pytest.raises(SpanError, match=r"no token carries ' ' at \[1, 2\)"):
        tokens_of(Span(1, 2), tokens)


def test_a_token_that_is_only_a_space_does_not_belong_to_the_next_word():
    tokens = tokenize(zoo.gemma_bytes(), "我 苹果")
    assert carried(tokens) == [("我", (0, 1)), (" ", (1, 2)), ("苹果", (2, 4))]
    assert [tokens.labels[k] for k in tokens_of(Span(2, 4), tokens)] == ["苹果"]


@pytest.mark.parametrize("kind", ["wordpiece", "slow bert"])
def test_bert_lowers_case_strips_accents_and_drops_marks_and_the_slices_still_fit(kind):
    tokens = tokenize(zoo.ALL[kind](), "CAFÉ\u200f 龘 Cafe\u0301 Apples")
    labels = [label for label, _ in carried(tokens)]
    assert [label.removesuffix("\u0301").removesuffix("\u200f") for label in labels] == [
        "CAFÉ", "龘", "Cafe", "Apple", "s",
    ]  # fmt: skip
    assert tokens.unknown.tolist() == [False, False, True, False, False, False, False]


def test_a_ligature_and_a_full_width_word_are_cut_as_they_stand_in_the_text():
    tokens = tokenize(zoo.metaspace_unigram(), "ﬁ ａｐｐｌｅ")
    assert [label for label, _ in carried(tokens) if label.strip()][-1].endswith("ｌｅ"[-1])
    assert [tokens.labels[k] for k in tokens_of(Span(3, 5), tokens)][-1] in {"ａｐｐｌｅ", "ｐｐ"}
    assert len(tokens_of(Span(0, 1), tokens)) >= 1


def test_an_unknown_word_is_flagged_and_keeps_its_place_without_offsets():
    tokens = tokenize(zoo.slow_bert(), "我 ÆÆ 喜 ÆÆÆ Æ 果")
    unknown = [(tokens.labels[k], bool(tokens.unknown[k])) for k in range(1, len(tokens.ids) - 1)]
    assert unknown == [("我", False), ("ÆÆ", True), ("喜", False), ("ÆÆÆ", True), ("Æ", True), ("果", False)]
    # The known 0 stands inside the unknown word as well.
    assert [label for label, _ in carried(tokenize(zoo.slow_bert(), "Æ0！0"))] == ["Æ0", "！", "0"]


def test_search_gives_an_accent_that_a_normaliser_joined_to_its_letter():
    tokens = tokenize(zoo.slow_sentencepiece(), "Cafe\u0301!")
    assert [label for label, _ in carried(tokens) if label][-3:] == ["e\u0301", "e\u0301", "!"]
    assert len(tokens_of(Span(4, 5), tokens)) == 2


def test_an_unknown_word_whose_offsets_leave_letters_out_is_put_right():
    cut_short = zoo.LyingTokenizer(zoo.wordpiece(), lambda given: [(a, 4 if b == 5 else b) for a, b in given])
    tokens = tokenize(cut_short, "苹果 ÆÆ 我")
    assert [label for label, _ in carried(tokens)] == ["苹", "果", "ÆÆ", "我"]
    assert tokens.aligned == "repaired"


def test_special_tokens_are_named_and_stand_at_the_ends():
    tokens = tokenize(zoo.wordpiece(), FRUIT)
    assert tokens.special.tolist() == [True, False, False, False, False, False, True]
    assert (tokens.labels[0], tokens.labels[-1]) == ("[CLS]", "[SEP]")
    assert tokens.offsets[[0, -1]].tolist() == [[0, 0], [5, 5]]
    assert not tokenize(zoo.wordpiece(), FRUIT, add_special_tokens=False).special.any()


# ---- special tokens as a user types them -----------------------------------------------------------------------


@every
@pytest.mark.parametrize("frame", ["{}", "我{}果", "我 {} 果"])
def test_the_name_of_a_special_token_in_a_text_is_text(kind, frame):
    tokenizer = zoo.ALL[kind]()
    for name in tokenizer.all_special_tokens:
        text = frame.format(name)
        if len(name) == 1:  # CANINE's special tokens are single characters: nothing else can stand for them
            with pytest.raises(SpanError, match="only as its special token"):
                tokenize(tokenizer, text)
            continue
        tokens = tokenize(tokenizer, text)
        inner = np.array(tokens.ids)[~tokens.special]
        special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        assert not special & set(inner.tolist()), name
        assert tokens.special.sum() == tokenize(tokenizer, FRUIT).special.sum()
        assert {c for label, _ in carried(tokens) for c in label} >= set(name)


WIDE = str.maketrans({chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)})  # the same letters at full width


@every
@pytest.mark.parametrize("frame", ["{}", "我{}果", "我 {} 果", "龘龘{}{}"])
def test_a_name_that_only_the_normaliser_makes_is_text(kind, frame):
    tokenizer = zoo.ALL[kind]()
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    for name in (name for name in tokenizer.all_special_tokens if len(name) > 1):
        text = frame.format(name.translate(WIDE), name)
        tokens = tokenize(tokenizer, text)
        inner = np.array(tokens.ids)[~tokens.special]
        assert not special & set(inner.tolist()), name
        assert tokens.special.sum() == tokenize(tokenizer, FRUIT).special.sum()
        assert "".join(label for label, _ in carried(tokens) if label) or kind == "unreadable"
        if not tokens.unknown.any():
            word = tokens_of(Span.of(text, name.translate(WIDE)), tokens)
            assert tokens.offsets[word[0], 0] <= text.index(name.translate(WIDE)) and len(word) > 1


def test_a_full_width_end_mark_keeps_its_letters_and_their_places():
    tokens = tokenize(zoo.metaspace_unigram(), "苹果＜/s＞苹果", add_special_tokens=False)
    assert carried(tokens)[-5:] == [("＜", (2, 3)), ("/", (3, 4)), ("s", (4, 5)), ("＞", (5, 6)), ("苹果", (6, 8))]


def test_a_special_token_that_the_tokenizer_does_not_list_is_text_too():
    tokenizer = zoo.metaspace_unigram.__wrapped__()
    tokenizer.add_tokens([AddedToken("<pu>", special=True, normalized=False)])
    (mark,) = tokenizer.convert_tokens_to_ids(["<pu>"])
    assert mark not in tokenizer.all_special_ids
    for text in ("我<pu>果", "我＜pu＞果"):
        assert mark not in tokenize(tokenizer, text).ids
    core = json.loads(tokenizer.backend_tokenizer.to_str())
    core["model"]["vocab"].append(["<us>", 0.0])
    core["added_tokens"].append({**core["added_tokens"][0], "id": len(core["model"]["vocab"]) - 1, "content": "<us>"})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(core)), unk_token="<unk>")
    (mark,) = tokenizer.convert_tokens_to_ids(["<us>"])
    assert mark not in tokenizer.all_special_ids
    assert mark in tokenizer("我＜us＞果", split_special_tokens=True)["input_ids"]  # what there is to mend
    assert mark not in tokenize(tokenizer, "我＜us＞果").ids


def test_a_name_inside_another_name_is_text_too():
    tokenizer = zoo.metaspace_unigram.__wrapped__()
    tokenizer.add_tokens([AddedToken("<</s>", special=False, normalized=True)])
    (outer,) = tokenizer.convert_tokens_to_ids(["<</s>"])
    assert outer in tokenize(tokenizer, "我<</s>果").ids
    tokens = tokenize(tokenizer, "我<</s>果", as_letters={outer}, add_special_tokens=False)
    assert not {outer, tokenizer.eos_token_id} & set(tokens.ids)
    assert [label for label, _ in carried(tokens) if label] == ["我", *"<</s>", "果"]


@pytest.fixture
def taught():
    """Byte-level BPE that was given a word, a tag and a mark, none of them special."""
    tokenizer = zoo.qwen_bytes.__wrapped__()
    tokenizer.add_tokens([AddedToken(name, special=False) for name in ("苹果酸", "<table>", "[multimodal]")])
    return tokenizer


def test_an_added_token_that_is_not_special_is_letters_only_where_asked(taught):
    acid, table, mark = taught.convert_tokens_to_ids(["苹果酸", "<table>", "[multimodal]"])
    text = "苹果酸<table>[multimodal]"
    assert tokenize(taught, text).ids == (acid, table, mark)
    tokens = tokenize(taught, text, as_letters={mark})
    assert tokens.ids[:2] == (acid, table) and mark not in tokens.ids and taught.decode(tokens.ids) == text
    assert not tokens.special.any() and "".join(tokens.labels) == text
    with pytest.raises(SpanError, match="allowed is one of them"):
        tokenize(taught, text, parse_special_tokens=True, as_letters={mark})


def test_a_mark_of_one_character_is_refused_however_it_is_written():
    tokenizer = zoo.metaspace_unigram.__wrapped__()
    tokenizer.add_special_tokens({"additional_special_tokens": ["A"]})
    for text in ("苹果A", "苹果Ａ"):
        with pytest.raises(SpanError, match=r"^the text holds 'A', which this tokenizer can read only as its special"):
            tokenize(tokenizer, text)


@pytest.mark.real
@pytest.mark.parametrize("name", ["builtin:e5-small", "builtin:gemma3-270m"])
def test_no_name_in_a_text_becomes_a_special_token_of_a_builtin(name):
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(checkpoint(name).folder))
    except CijingError as error:
        pytest.skip(str(error))
    special = set(special_ids(tokenizer))
    added = sorted(tokenizer.added_tokens_decoder.items())
    names = [what.content for token, what in added if token in special][:120]
    narrow = "".join(f"苹果{name}很" for name in names)
    for text in (narrow, narrow.translate(WIDE)):  # apart: either could be found out by the other
        tokens = tokenize(tokenizer, text, add_special_tokens=False)
        assert len(names) > 3 and not special & set(tokens.ids)
        assert "".join(tokens.labels) == text


@pytest.mark.real
def test_gemma_reads_html_as_it_learnt_it_and_multimodal_as_letters_where_asked():
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(checkpoint("builtin:gemma3-270m").folder))
    except CijingError as error:
        pytest.skip(str(error))
    assert tokenize(tokenizer, "<table><tr>", add_special_tokens=False).labels == ("<table>", "<tr>")
    assert 5 in tokenize(tokenizer, "看[multimodal]图").ids
    tokens = tokenize(tokenizer, "看[multimodal]图", add_special_tokens=False, as_letters={5})
    assert 5 not in tokens.ids and "".join(tokens.labels) == "看[multimodal]图"


@pytest.mark.parametrize(("kind", "name"), [("gemma bytes", "</s>"), ("wordpiece", "[SEP]"), ("slow bert", "[SEP]")])
def test_what_a_chat_template_wrote_can_be_parsed_as_special_tokens(kind, name):
    tokenizer = zoo.ALL[kind]()
    tokens = tokenize(tokenizer, f"我{name}果", add_special_tokens=False, parse_special_tokens=True)
    assert tokens.labels == ("我", name, "果")
    assert tokens.special.tolist() == [False, True, False]
    assert tokens.offsets.tolist() == [[0, 1], [1, 1 + len(name)], [1 + len(name), 2 + len(name)]]
    with pytest.raises(SpanError, match="no token carries"):
        tokens_of(Span.of(tokens.text, name), tokens)


# ---- every tokenizer, any text ---------------------------------------------------------------------------------


@every
@thorough
@given(text=texts)
def test_offsets_rise_within_the_text_and_labels_are_its_slices(kind, text):
    tokens = mapped(kind, text)
    if tokens is None:
        return
    starts, ends = tokens.offsets.T
    assert ((starts >= 0) & (starts <= ends) & (ends <= len(text))).all()
    assert (np.diff(starts) >= 0).all()
    for label, (start, end) in carried(tokens):
        assert label == text[start:end]
        assert label == label.strip() or not label.strip()


@every
@thorough
@given(text=texts, ends=st.tuples(st.integers(0, 60), st.integers(1, 6)))
def test_the_tokens_of_a_span_cover_it_and_none_lies_outside(kind, text, ends):
    tokens = mapped(kind, text)
    if tokens is None:
        return
    start = ends[0] % len(text)
    span = Span(start, min(start + ends[1], len(text)))
    must = {k for k in range(span.start, span.end) if is_kept(kind, text[k])}
    try:
        found = tokens_of(span, tokens)
    except SpanError:
        assert not must
        return
    covered = {k for a, b in tokens.offsets[found].tolist() for k in range(a, b)}
    assert must <= covered
    assert all(span.overlaps(Span(a, b)) for a, b in tokens.offsets[found].tolist())
    others = np.setdiff1d(np.flatnonzero(~tokens.special), found)
    assert not any(a < b and span.overlaps(Span(a, b)) for a, b in tokens.offsets[others].tolist())


def is_kept(kind: str, character: str) -> bool:
    """Whether this tokenizer surely keeps a character: letters, digits, punctuation and plain signs."""
    if kind in LOSSLESS:
        return not character.isspace() and not unicodedata.combining(character)
    plain = unicodedata.normalize("NFKC", character)
    return (
        unicodedata.category(character)[0] in "LNPS"
        and character not in "\ufffd▁"
        and (all(unicodedata.category(c)[0] in "LNPS" for c in plain) and bool(plain.strip("\ufffd▁")))
    )


def bytes_of_pieces(kind: str, tokens: TokenMap) -> list[int]:
    """How many bytes of the text each non-special token stands for, counted from the pieces of the vocabulary."""
    pieces = zoo.ALL[kind]().convert_ids_to_tokens(
        [i for i, s in zip(tokens.ids, tokens.special, strict=True) if not s]
    )
    if kind in ("gemma bytes", "llama bytes"):
        return [1 if p.startswith("<0x") else len(p.replace("▁", " ").encode()) for p in pieces]
    if kind == "slow characters":
        return [len(piece.encode()) for piece in pieces]
    return [len(piece) for piece in pieces]  # the byte alphabets: a character a byte


@pytest.mark.parametrize("kind", LOSSLESS)
@thorough
@given(text=texts)
def test_byte_and_character_tokenizers_agree_with_counting_bytes(kind, text):
    tokens = mapped(kind, text)
    if tokens is None:
        return
    owner = [k for k, character in enumerate(text) for _ in character.encode()]
    sizes = bytes_of_pieces(kind, tokens)
    at = len(owner) - sum(sizes)  # -1 where a space was added in front
    for size, (label, (start, end)) in zip(sizes, carried(tokens), strict=True):
        held = owner[max(at, 0) : at + size]
        at += size
        ink = [k for k in held if not text[k].isspace()]
        if "▁" in text and kind in ("gemma bytes", "llama bytes"):
            continue  # the text's own ▁ cannot be told from a space, three bytes from one
        expected = (held[0], held[-1] + 1) if held and not ink else (ink[0], ink[-1] + 1) if ink else (start, start)
        assert (start, end) == expected, label


@every
@thorough
@given(text=texts)
def test_words_hold_every_token_once_and_share_no_character(kind, text):
    tokens = mapped(kind, text)
    if tokens is None:
        return
    words = words_of(tokens)
    assert sorted(np.concatenate(words).tolist()) == list(range(len(tokens.ids)))
    owner: dict[int, int] = {}
    for number, (word, label) in enumerate(zip(words, labels_of(words, tokens), strict=True)):
        if tokens.special[word].any():
            continue
        places = {k for a, b in tokens.offsets[word].tolist() for k in range(a, b)}
        assert label == "".join(text[k] for k in sorted(places))
        assert all(owner.setdefault(k, number) == number for k in places)


def test_the_bytes_of_a_character_are_one_word():
    tokens = tokenize(zoo.slow_bytes(), "苹果x")
    assert [word.tolist() for word in words_of(tokens)] == [[0, 1, 2], [3, 4, 5], [6], [7]]
    assert labels_of(words_of(tokens), tokens) == ("苹", "果", "x", "</s>")


# ---- offsets that lie ------------------------------------------------------------------------------------------

FAULTS = {
    "shifted right": lambda given: [(a + 1, b + 1) for a, b in given],
    "shifted left": lambda given: [(max(a - 1, 0), max(b - 1, 0)) for a, b in given],
    "one behind": lambda given: [given[0], *given[:-1]],
    "all the same": lambda given: [given[len(given) // 2]] * len(given),
    "zero": lambda given: [(0, 0)] * len(given),
    "in bytes": lambda given: [(3 * a, 3 * b) for a, b in given],
    "reversed": lambda given: [(b, a) for a, b in given],
    "negative": lambda given: [(a - 5, b - 5) for a, b in given],
    "too wide": lambda given: [(a, b + 1) for a, b in given],
    "missing": lambda given: None,
}


@every_fast
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("text", [FRUIT, "哈哈哈哈哈", "果 果果 apple\n苹果", "Ｗow, 蘋果 e\u0301🍎!"])
def test_offsets_that_lie_are_put_right(kind, fault, text):
    honest = zoo.FAST[kind]()
    tokens = tokenize(zoo.LyingTokenizer(honest, FAULTS[fault]), text)
    truth = tokenize(honest, text)
    assert tokens.ids == truth.ids
    assert tokens.aligned == ("search" if fault == "missing" else "repaired") or is_harmless(tokens, truth)
    ink = [k for k, character in enumerate(text) if unicodedata.category(character)[0] in "LNPS"]
    for place in ink:
        assert tokens_of(Span(place, place + 1), tokens).tolist() == tokens_of(Span(place, place + 1), truth).tolist()


def is_harmless(tokens: TokenMap, truth: TokenMap) -> bool:
    """Whether a fault changed nothing, for example where a wider interval only took in a space."""
    return tokens.aligned == "offsets" and (tokens.offsets == truth.offsets).all()


@every_fast
@thorough
@given(text=texts)
def test_search_without_offsets_agrees_with_right_offsets(kind, text):
    truth = mapped(kind, text)
    if truth is None or truth.unknown.any():
        return  # what an unknown token stands for only the offsets say
    found = tokenize(zoo.LyingTokenizer(zoo.FAST[kind](), FAULTS["missing"]), text)
    assert found.aligned == "search"
    for place in range(len(text)):
        if is_kept("plain", text[place]):
            span = Span(place, place + 1)
            assert tokens_of(span, found).tolist() == tokens_of(span, truth).tolist()


def test_offsets_agree_through_a_rewriting_that_folding_does_not_know():
    core = Tokenizer(models.WordLevel({"<unk>": 0, "梨": 1, "我": 2, "quote": 3}, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Replace("苹", "梨"), normalizers.Replace("``", "quote")])
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("梨", "isolated")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")
    tokens = tokenize(tokenizer, "我 苹``苹")  # the tokenizer itself gives only the second ` to the quote
    assert carried(tokens) == [("我", (0, 1)), ("苹", (2, 3)), ("``", (3, 5)), ("苹", (5, 6))]
    with pytest.raises(SpanError, match="do not spell it"):
        tokenize(zoo.LyingTokenizer(tokenizer, FAULTS["one behind"]), "我 苹``苹")


def test_pieces_that_cannot_be_read_are_refused():
    with pytest.raises(SpanError, match="MyT5Tokenizer cannot be mapped") as caught:
        tokenize(zoo.unreadable(), FRUIT)
    assert "\n" not in str(caught.value)


# ---- bad input, length -----------------------------------------------------------------------------------------


def test_a_text_that_becomes_no_tokens_is_an_error():
    with pytest.raises(SpanError, match="makes no tokens"):
        tokenize(zoo.wordpiece(), "\u200f")
    assert tokenize(zoo.wordpiece(), "").special.all()


@every
def test_half_a_surrogate_pair_is_refused_by_its_place(kind):
    with pytest.raises(SpanError, match=r"character 1 of .* half of a surrogate pair"):
        tokenize(zoo.ALL[kind](), "我\ud83d")


@every
def test_a_hundred_thousand_characters_take_seconds_and_nothing_is_cut_off_or_warned_of(kind, caplog):
    tokenizer = zoo.ALL[kind]()
    tokenizer.model_max_length = 8
    text = "我喜欢苹果 apple龘e\u0301，" * 6700
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start = time.process_time()
        tokens = tokenize(tokenizer, text)
        took = time.process_time() - start
    tokenizer.model_max_length = 10**30
    assert took < 6, took
    assert tokens.offsets.max() >= len(text) - 1
    assert not caplog.records


@pytest.mark.parametrize("text", ["龘" * 20_000, " " * 20_000 + "我", "e" + "\u0301" * 20_000, "龘 " * 10_000 + "我"])
@every
def test_monotonous_texts_take_no_quadratic_time(kind, text):
    start = time.process_time()
    mapped(kind, text)
    assert time.process_time() - start < 5


# ---- rows ------------------------------------------------------------------------------------------------------


def test_rows_are_summed_over_keys_and_averaged_over_queries():
    rows = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0]], dtype=np.float32)
    merged = merge_rows(rows, [[0, 1], [2]], [[0, 3], [1], [2]])
    assert merged.dtype == np.float32
    np.testing.assert_allclose(merged, [[0.5, 0.225, 0.275], [0.0, 0.0, 1.0]], atol=1e-7)


def test_a_key_in_two_groups_counts_in_both_and_an_unasked_one_in_none():
    rows = np.array([[0.5, np.nan, 0.5]])
    np.testing.assert_array_equal(merge_rows(rows, [[0]], [[0], [0, 2]]), [[0.5, 1.0]])


@every
@thorough
@given(text=texts, seed=st.integers(0, 9))
def test_rows_merged_over_all_words_still_sum_to_one(kind, text, seed):
    tokens = mapped(kind, text)
    if tokens is None:
        return
    words = words_of(tokens)
    queries = [words[0], words[-1]]
    rows = np.random.default_rng(seed).dirichlet(np.ones(len(tokens.ids)), size=(2, len(tokens.ids)))
    merged = merge_rows(rows, queries, words)
    assert merged.shape == (2, 2, len(words))
    np.testing.assert_allclose(merged.sum(axis=-1), 1, atol=1e-12)
    by_hand = np.mean([rows[1, query, words[-1]].sum() for query in queries[0]])
    np.testing.assert_allclose(merged[1, 0, -1], by_hand)


@pytest.mark.parametrize(
    ("queries", "keys"), [([[0]], []), ([[0], []], [[0]]), ([[3]], [[0]]), ([[0]], [[-1]]), ([[0]], [[0.5]])]
)
def test_groups_that_are_empty_or_outside_are_refused(queries, keys):
    with pytest.raises(SpanError, match="group"):
        merge_rows(np.ones((3, 3)), queries, keys)


def test_the_zoo_really_splits_characters_and_a_special_name_can_come_out_of_the_vocabulary():
    """What the tests above lean on: without it they would pass for nothing."""
    assert len(zoo.qwen_bytes()("龘").input_ids) == 3
    trap = zoo.metaspace_unigram()("我<s>", split_special_tokens=True, add_special_tokens=False)
    assert zoo.metaspace_unigram().bos_token_id in trap.input_ids
    assert zoo.slow_bert()("[SEP]", split_special_tokens=True, add_special_tokens=False).input_ids == [2]
    assert "offset_mapping" not in zoo.slow_bert()("我")
    assert json.loads(zoo.wordpiece().backend_tokenizer.to_str())["model"]["type"] == "WordPiece"


@pytest.mark.parametrize("edges", [("0", 1), (0, 1.0), (None, 1), (False, 1)])
def test_a_span_of_what_are_no_whole_numbers_is_refused(edges):
    with pytest.raises(SpanError, match=r"^a span's (start|end) .*: allowed is a whole number$"):
        Span(*edges)
    assert type(Span(np.int64(0), np.int64(1)).end) is int


def test_a_span_is_found_of_a_word_in_a_text_only():
    for arguments, message in (((None, "x"), "the text is None"), (("x", None), "the word is None")):
        with pytest.raises(SpanError, match=f"^{message}"):
            Span.of(*arguments)
    with pytest.raises(SpanError, match=r"^occurrence '1': allowed is a whole number$"):
        Span.of("x", "x", occurrence="1")
