"""Prompts of the arms: the same text goes on in each, behind nothing, glosses or passages, within one budget."""

import json

import pytest

from finetune.compare.prompts import (
    Before,
    PassageSettings,
    find_passages,
    load_glosses,
    prompt_for,
    words_with_gloss,
    write_texts,
)
from finetune.dataconfig import DataConfig
from finetune.domains import Question, load_questions
from finetune.errors import DataError, RetrievalError
from finetune.rag.chunks import Chunk
from finetune.rag.hits import Hit
from finetune.records import load_records
from finetune.spelling import mark_ids
from probe import tokenize
from tests.finished import lines, texts
from tests.tiny import byte_fallback_tokenizer, tiny_llama
from tests.tokenizers_zoo import FAST

GLOSSES = {"苹果": "一种水果", "苹果酸": "一种有机酸", "梨子": "另一种水果"}
KINDS = ("plain", "gloss", "passages")


def question(prompt="我喜欢苹果但讨厌", id="q", pair=("梨子", "苹果")):
    return Question(id=id, group=id, prompt=prompt, right="梨子", wrong="和平", pair=pair)


def hit(text, number):
    chunk = Chunk(id=f"c{number}", document="a.txt", start=0, end=len(text), text=text, title="", tokens=0)
    return Hit(chunk=chunk, rank=number, score=1.0 / number)


def before(**changes):
    hits = [hit("他讨厌菠菜</s>", 1), hit("牛顿被苹果砸中", 2)]
    return Before(**{"passages": {"q": hits}, "glosses": GLOSSES, "budget": 4000, **changes})


@pytest.mark.parametrize("name", ["qwen bytes", "gpt2 bytes", "gemma bytes", "llama bytes", "metaspace unigram"])
def test_every_arm_goes_on_from_the_same_text(name):
    tokenizer = FAST[name]()
    own = {}
    for kind in KINDS:
        found = prompt_for(tokenizer, question(), kind, before())
        part = found.parts[-1]
        assert part.kind == "question" and found.tokens.text[part.start :] == question().prompt
        assert found.id == "q" and part.stop == len(found.tokens.ids)
        own[kind] = found.tokens.ids[part.first :]
    assert own["gloss"] == own["passages"]  # both behind an end of line


@pytest.mark.parametrize("name", ["qwen bytes", "gpt2 bytes", "gemma bytes", "llama bytes"])
def test_a_plain_prompt_has_the_very_tokens_of_the_text(name):
    tokenizer = FAST[name]()
    assert prompt_for(tokenizer, question(), "plain", before()).tokens.ids == tokenize(tokenizer, question().prompt).ids
    nothing = before(passages={"q": []}, glosses={})
    for kind in KINDS:  # nothing found and no word known: as plain
        found = prompt_for(tokenizer, question(), kind, nothing)
        assert found.tokens.ids == tokenize(tokenizer, question().prompt).ids


def test_the_words_that_have_a_gloss_stand_in_their_order_each_once():
    assert words_with_gloss("梨子和苹果，苹果和梨子", GLOSSES) == ["梨子", "苹果"]
    assert words_with_gloss("苹果酸脱氢酶", GLOSSES) == ["苹果酸"]  # and not the 苹果 in it
    assert words_with_gloss("他讨厌菠菜", GLOSSES) == [] and words_with_gloss("苹果", {}) == []


def test_glosses_read_as_they_should_and_are_no_special_tokens():
    tokenizer = byte_fallback_tokenizer()
    found = prompt_for(tokenizer, question("牛顿被苹果"), "gloss", before(glosses={"苹果": "一种</s>水果"}))
    assert found.tokens.text == "苹果：一种</s>水果\n牛顿被苹果"
    assert not mark_ids(tokenizer) & set(found.tokens.ids[1:])
    assert [part.name for part in found.parts_of("passage")] == ["苹果"]


def test_a_passage_is_no_special_token_and_the_best_comes_first():
    tokenizer = byte_fallback_tokenizer()
    found = prompt_for(tokenizer, question(), "passages", before())
    assert "他讨厌菠菜</s>" in found.tokens.text and not mark_ids(tokenizer) & set(found.tokens.ids[1:])
    assert [part.name for part in found.parts_of("passage")] == ["c1", "c2"]


@pytest.mark.parametrize("kind", ["gloss", "passages"])
def test_what_has_no_room_is_left_out_and_the_budget_is_kept(kind):
    tokenizer = byte_fallback_tokenizer()
    whole = prompt_for(tokenizer, question("牛顿的苹果和梨子"), kind, before())
    length = len(whole.tokens.ids)
    assert len(whole.parts_of("passage")) == 2
    less = prompt_for(tokenizer, question("牛顿的苹果和梨子"), kind, before(budget=length - 1))
    assert len(less.parts_of("passage")) == 1 and len(less.tokens.ids) < length


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_that_does_not_fit_alone_is_refused(kind):
    with pytest.raises(RetrievalError, match=r"the question alone has \d+ tokens"):
        prompt_for(byte_fallback_tokenizer(), question(), kind, before(budget=3))


def test_passages_that_were_never_looked_for_are_told():
    with pytest.raises(DataError, match="question other: no passages were looked for"):
        prompt_for(byte_fallback_tokenizer(), question(id="other"), "passages", before())


# ---- files -----------------------------------------------------------------------------------------------------


def test_shipped_glosses_are_taken_by_the_domains_names_and_every_word_stands_in_a_question():
    found = load_glosses(["biochem", "chips"])
    prompts = [one.prompt for domain in ("biochem", "chips") for one in load_questions(domain)]
    assert len(found) > 60 and all(any(word in prompt for prompt in prompts) for word in found)


def test_glosses_are_read_from_a_file(tmp_path):
    rows = [{"word": " 苹果 ", "gloss": "一种\n水果"}, {"word": "梨子", "gloss": "另一种"}]
    assert load_glosses([lines(tmp_path / "g.jsonl", rows)]) == {"苹果": "一种 水果", "梨子": "另一种"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"word": "苹果"}', "g.jsonl:1: has no word or no gloss"),
        ('{"word": "苹果", "gloss": 3}', "g.jsonl:1: has no word or no gloss"),
        ("[1]", "g.jsonl:1: has no word or no gloss"),
        ('\n{"word"', "g.jsonl:2: is no JSON"),
        ('{"word": "a", "gloss": "b"}\n{"word": "a", "gloss": "c"}', "g.jsonl:2: 'a' has a gloss already"),
        (" \n", "holds no gloss"),
    ],
)
def test_a_file_of_glosses_that_cannot_be_used_is_told_in_one_line(tmp_path, text, said):
    (tmp_path / "g.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as refused:
        load_glosses([tmp_path / "g.jsonl"])
    assert said in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(DataError, match=r"none\.jsonl: cannot be read"):
        load_glosses([tmp_path / "none.jsonl"])


# ---- search ----------------------------------------------------------------------------------------------------


def test_passages_are_found_among_the_training_texts_and_the_index_is_made_once(tmp_path):
    tiny_llama(tmp_path)
    corpus = load_records(
        DataConfig(train=(lines(tmp_path / "train.jsonl", texts("train", 8)),), dev_share=0), "causal-lm"
    )
    file = write_texts(corpus.train, tmp_path / "documents" / "texts.jsonl")
    assert [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()] == list(corpus.train["text"])
    settings = PassageSettings(k=2, budget=200, encoder=None, tokenizer=str(tmp_path / "llama"))
    asked = [question("我们热爱和平"), question("他讨厌菠菜", id="r")]
    found = find_passages(asked, [file], tmp_path / "index", settings=settings, device="cpu")
    assert {name: len(hits) for name, hits in found.items()} == {"q": 2, "r": 2}
    assert all("和平" in one.chunk.text for one in found["q"]) and all("菠菜" in one.chunk.text for one in found["r"])
    generations = sorted(path.name for path in (tmp_path / "index" / "generations").iterdir())
    assert find_passages(asked, [file], tmp_path / "index", settings=settings, device="cpu") == found
    assert sorted(path.name for path in (tmp_path / "index" / "generations").iterdir()) == generations


def test_chunks_are_so_small_that_those_asked_for_have_room():
    assert PassageSettings(k=3, budget=512).size == 128 and PassageSettings(k=1, budget=4096).size == 256
    assert PassageSettings(k=9, budget=64).size == 16
