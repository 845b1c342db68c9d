"""Prompts with their parts: written and read again, every field checked, and held against the tokenizer."""

import json
from dataclasses import replace

import numpy as np
import pytest

from probe.errors import OutputError, PromptError, SpanError
from probe.prompts import MappedPrompt, PromptPart, check_tokenizer, load_prompts, save_prompts
from probe.spans import Span, TokenMap, tokenize
from tests.tiny import FAMILIES, byte_fallback_tokenizer, byte_level_tokenizer, unigram_tokenizer, wordpiece_tokenizer

PLAIN = (
    ("instruction", "", "I like"),
    ("template", "", " [1] "),
    ("passage", "chips", "苹果公司发布了新品"),
    ("template", "", " [2] "),
    ("passage", "acid", "苹果酸脱氢酶"),
    ("question", "", "他讨厌苹果"),
)


def mapped(tokenizer, pieces=PLAIN, *, form="plain", target=None, id="p1"):
    """A prompt whose pieces are tokenised apart; a piece of kind "special" is a token without text, template."""
    texts, ids, offsets, special, labels, unknown, parts, types = [], [], [], [], [], [], [], []
    at, text_type = 0, 0
    for kind, name, text in pieces:
        if kind == "special":
            first, token = len(ids), tokenizer.convert_tokens_to_ids(text)
            ids, offsets, special = [*ids, token], [*offsets, (at, at)], [*special, True]
            labels, unknown, types = [*labels, text], [*unknown, False], [*types, text_type]
            parts.append(PromptPart(kind="template", start=at, end=at, first=first, stop=len(ids)))
            text_type += text == "[SEP]"
            continue
        found, first = tokenize(tokenizer, text, add_special_tokens=False), len(ids)
        ids += found.ids
        offsets += (found.offsets + at).tolist()
        special += found.special.tolist()
        labels += found.labels
        unknown += found.unknown.tolist()
        types += [text_type] * len(found.ids)
        source = {"document": "a.txt", "start": 0, "score": 0.5} if kind == "passage" else {}
        parts.append(
            PromptPart(kind=kind, name=name, start=at, end=at + len(text), first=first, stop=len(ids), source=source)
        )
        texts.append(text)
        at += len(text)
    tokens = TokenMap(
        text="".join(texts),
        ids=tuple(ids),
        offsets=np.array(offsets, dtype=np.int64),
        special=np.array(special),
        labels=tuple(labels),
        unknown=np.array(unknown),
        aligned="offsets",
    )
    types = tuple(min(one, 1) for one in types) if form == "pair" else None
    span = None if target is None else Span.of(tokens.text, target)
    return MappedPrompt(id=id, tokens=tokens, parts=tuple(parts), form=form, target=span, token_types=types)


def pair(tokenizer, **options):
    """A passage and a sentence as BERT reads a pair."""
    pieces = (
        ("special", "", "[CLS]"), ("passage", "acid", "苹果酸脱氢酶"), ("special", "", "[SEP]"),
        ("question", "", "他讨厌苹果"), ("special", "", "[SEP]"),
    )  # fmt: skip
    return mapped(tokenizer, pieces, form="pair", **options)


def same(left, right):
    assert (left.id, left.parts, left.form, left.target) == (right.id, right.parts, right.form, right.target)
    assert left.token_types == right.token_types
    for name in ("text", "ids", "labels", "aligned"):
        assert getattr(left.tokens, name) == getattr(right.tokens, name), name
    for name in ("offsets", "special", "unknown"):
        assert np.array_equal(getattr(left.tokens, name), getattr(right.tokens, name)), name
        assert getattr(left.tokens, name).dtype == getattr(right.tokens, name).dtype


@pytest.fixture
def written(tmp_path):
    """A file of two prompts, and what stands in its lines."""
    tokenizer = wordpiece_tokenizer()
    save_prompts([mapped(tokenizer), pair(tokenizer, target="苹果", id="p2")], tmp_path / "p.jsonl")
    return tmp_path / "p.jsonl"


def changed(path, line, change):
    """The file with one record changed."""
    records = [json.loads(text) for text in path.read_text("utf-8").splitlines()]
    change(records[line])
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


TOKENIZERS = {
    "bert": wordpiece_tokenizer,
    "llama": byte_fallback_tokenizer,
    "gpt2": lambda: byte_level_tokenizer(start=None, end="<|endoftext|>", pad="<|pad|>"),
    "t5": unigram_tokenizer,
}


@pytest.mark.parametrize("family", TOKENIZERS)
def test_what_is_written_is_read_as_it_was_and_agrees_with_its_tokenizer(family, tmp_path):
    tokenizer = TOKENIZERS[family]()
    prompts = [mapped(tokenizer, target="苹果酸"), mapped(tokenizer, id="q\u2028\nq")]
    save_prompts(prompts, tmp_path / "p.jsonl")
    found = load_prompts(tmp_path / "p.jsonl", tokenizer)
    for one, other in zip(prompts, found, strict=True):
        same(one, other)


def test_a_pair_keeps_its_special_tokens_and_token_types(written):
    found = load_prompts(written, wordpiece_tokenizer())[1]
    assert found.tokens.labels[0] == "[CLS]" and found.tokens.labels[-1] == "[SEP]" and found.tokens.special[0]
    assert found.token_types == (0,) * 8 + (1,) * 6 and found.target.cut(found.tokens.text) == "苹果"


def test_a_prompt_through_a_chat_template_keeps_the_tokens_that_stand_in_its_text(tmp_path):
    tokenizer = byte_fallback_tokenizer()
    tokens = tokenize(tokenizer, "<s>我喜欢苹果</s>", add_special_tokens=False, parse_special_tokens=True)
    size = len(tokens.ids)
    cut = ((0, 3, 0, 1, "template"), (3, 8, 1, size - 1, "question"), (8, 12, size - 1, size, "template"))
    parts = tuple(PromptPart(kind=kind, start=a, end=b, first=c, stop=d) for a, b, c, d, kind in cut)
    prompt = MappedPrompt(id="chat", tokens=tokens, parts=parts, form="chat")
    save_prompts([prompt], tmp_path / "p.jsonl")
    same(load_prompts(tmp_path / "p.jsonl", tokenizer)[0], prompt)


def test_labels_are_slices_again_also_where_several_tokens_carry_one_character(tmp_path):
    tokenizer = byte_fallback_tokenizer()
    prompt = mapped(tokenizer, [("question", "", "鑫苹果")])
    assert prompt.tokens.labels[:3] == ("鑫", "鑫", "鑫")
    save_prompts([prompt], tmp_path / "p.jsonl")
    same(load_prompts(tmp_path / "p.jsonl", tokenizer)[0], prompt)


@pytest.mark.parametrize("other", ["llama", "gpt2", "t5"])
def test_a_prompt_of_another_tokenizer_is_refused_with_file_and_line(written, other):
    with pytest.raises(PromptError, match=r"p\.jsonl:1: its token ids do not spell its text with this tokenizer"):
        load_prompts(written, TOKENIZERS[other]())


@pytest.mark.parametrize(
    "change",
    [
        lambda tokens: {"ids": (*tokens.ids[:-1], tokens.ids[-1] + 1)},
        lambda tokens: {"ids": (*tokens.ids[:-1], 10**6)},
        lambda tokens: {"text": tokens.text[:-1] + "梨"},
        lambda tokens: {"unknown": ~tokens.unknown & (np.arange(len(tokens.ids)) == 3)},
        lambda tokens: {"offsets": np.minimum(tokens.offsets + 1, len(tokens.text))},
    ],
)
def test_ids_text_offsets_or_flags_that_were_changed_do_not_agree(change):
    tokenizer = byte_fallback_tokenizer()
    prompt = mapped(tokenizer)
    check_tokenizer(prompt, tokenizer)
    with pytest.raises(PromptError, match="do not spell"):
        check_tokenizer(replace(prompt, tokens=replace(prompt.tokens, **change(prompt.tokens))), tokenizer)


def test_a_special_token_of_another_id_does_not_agree():
    tokenizer = wordpiece_tokenizer()
    prompt = pair(tokenizer)
    ids = (tokenizer.convert_tokens_to_ids("[MASK]"), *prompt.tokens.ids[1:])
    with pytest.raises(PromptError, match="do not spell"):
        check_tokenizer(replace(prompt, tokens=replace(prompt.tokens, ids=ids)), tokenizer)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r.update(version=2), "version 2 is unknown; allowed is 1"),
        (lambda r: r.update(version=True), "version True is unknown; allowed is 1"),
        (lambda r: r.pop("version"), "the prompt has no version"),
        (lambda r: r.pop("parts"), "the prompt has no parts"),
        (lambda r: r.update(passage=1), "unknown field 'passage'"),
        (lambda r: r.update(id=3), "id is 3; allowed is a text"),
        (lambda r: r.update(id=""), "id is empty"),
        (lambda r: r.update(id="p1"), "id 'p1' stands in an earlier line"),
        (lambda r: r.update(form="table"), "form 'table' is unknown; allowed are plain, chat, pair, text"),
        (lambda r: r.update(text=None), "text is None; allowed is a text"),
        (lambda r: r.update(text="\ud800" + r["text"][1:]), "half of a surrogate pair"),
        (lambda r: r.update(ids=[]), "ids is empty"),
        (lambda r: r["ids"].__setitem__(0, -1), "ids has -1"),
        (lambda r: r["ids"].__setitem__(0, True), "ids has True"),
        (lambda r: r["ids"].__setitem__(0, 10**30), f"ids has {10**30}"),
        (lambda r: r["offsets"].pop(), "a token map of 14 tokens needs an offset, flag and label for each"),
        (lambda r: r.update(offsets={}), "offsets is {}; allowed is a list"),
        (lambda r: r["offsets"].__setitem__(0, [0]), "offsets has [0]; allowed are pairs"),
        (lambda r: r["offsets"].__setitem__(5, [9, 1]), "offsets must rise"),
        (lambda r: r["special"].__setitem__(0, 0), "a special token's name is None"),
        (lambda r: r["special"].__setitem__(0, [99, "[CLS]"]), "a position of special 99"),
        (lambda r: r.update(unknown=[0]), "token 0 is special and unknown"),
        (lambda r: r.update(unknown=[14]), "a position of unknown 14: allowed is a whole number from 0 to 13"),
        (lambda r: r.update(aligned="well"), "aligned 'well' is unknown"),
        (lambda r: r.update(parts=[1]), "a part is 1; allowed is an object"),
        (lambda r: r["parts"][1].update(kind="answer"), "a part's kind 'answer' is unknown"),
        (lambda r: r["parts"][1].update(name=7), "a part's name is 7"),
        (lambda r: r["parts"][1].update(name=""), "the passage at token 1 has no name"),
        (lambda r: r["parts"][1].update(stop=6), "a part begins at token 7; allowed is 6"),
        (lambda r: r["parts"][1].update(end=99), "characters 0 to 99 lie outside"),
        (lambda r: r["parts"][1].update(end=3), "token 4 carries characters 3 to 4, but its part (passage) has 0 to 3"),
        (lambda r: r["parts"][1].update(source=[1]), "a part's source [1]"),
        (lambda r: r["parts"][1].update(source={"a": None}), "an object of texts and finite numbers"),
        (lambda r: r["parts"][1].update(source={"a": float("inf")}), "an object of texts and finite numbers"),
        (lambda r: r["parts"].pop(), "the parts cover 13 of 14 tokens"),
        (lambda r: r.update(target=[3]), "target has [3]; allowed are pairs"),
        (lambda r: r.update(target=[3, 3]), "allowed are offsets with 0 <= start < end"),
        (lambda r: r.update(target=[3, 99]), "ends past the text"),
        (lambda r: r.update(token_types=[0]), "1 token types for 14 tokens"),
        (lambda r: r.update(token_types="0"), "token_types is '0'; allowed is a list"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_one_line_that_names_file_and_line(written, change, says):
    with pytest.raises((PromptError, SpanError)) as caught:
        load_prompts(changed(written, 1, change))
    assert str(caught.value).startswith(f"{written}:2: ") and says in str(caught.value)
    assert "\n" not in str(caught.value) and caught.type is PromptError


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", ": is empty; allowed is a file with one or more prompts"),
        (b"\n[1]\n", ":2: [1] is no prompt; allowed is an object with version"),
        (b"{", ":1: broken JSON"),
        (b'{"id": 1, "id": 2}', ":1: field 'id' stands twice"),
        (b'{"id": "\xff"}', ":1: byte 8 (0xFF) is not UTF-8"),
        (b"[" * 100_000, ":1: JSON that cannot be read"),
    ],
)
def test_a_file_that_holds_no_prompts_is_one_line(tmp_path, content, says):
    (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises(PromptError) as caught:
        load_prompts(tmp_path / "p.jsonl")
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_of_another_kind_is_one_line(tmp_path):
    with pytest.raises(PromptError, match=r"no\.jsonl: cannot be read \(No such file"):
        load_prompts(tmp_path / "no.jsonl")
    for call in (load_prompts, lambda path: save_prompts([], path)):
        with pytest.raises(PromptError, match=r"p\.yaml: allowed is a file ending in \.jsonl"):
            call(tmp_path / "p.yaml")


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    prompt = mapped(wordpiece_tokenizer())
    broken = replace(prompt.parts[0], source={"score": float("nan")})
    mislabelled = replace(prompt.tokens, labels=("x", *prompt.tokens.labels[1:]))
    for prompts, says in (
        ([], "no prompt was given"),
        (prompt, "prompts is .*allowed is a list of MappedPrompts"),
        ([1], "one of the prompts is 1"),
        ([prompt, prompt], "two prompts have the id 'p1'"),
        ([replace(prompt, parts=(broken, *prompt.parts[1:]))], "prompt 'p1': Out of range float"),
        ([replace(prompt, target=Span(40, 99))], "prompt 'p1': span .* ends past the text"),
        ([replace(prompt, tokens=mislabelled)], "prompt 'p1': a token's label is no slice of its text"),
        ([replace(prompt, id="\ud800")], "surrogates not allowed"),
    ):
        with pytest.raises(PromptError, match=says):
            save_prompts(prompts, tmp_path / "p.jsonl")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError, match="is a folder, not a file"):
        (tmp_path / "folder.jsonl").mkdir()
        save_prompts([prompt], tmp_path / "folder.jsonl")


def test_every_tiny_model_agrees_with_its_own_tokenizer_on_every_text():
    for build in FAMILIES.values():
        _, tokenizer = build()
        for text in ("我喜欢苹果", "I like apple pie, not iPhone 15.", "鑫 苹果  <s> [SEP] </s>", "é ﬁ\n"):
            tokens = tokenize(tokenizer, text)
            part = PromptPart(kind="question", start=0, end=len(text), first=0, stop=len(tokens.ids))
            check_tokenizer(MappedPrompt(id="t", tokens=tokens, parts=(part,), form="plain"), tokenizer)
