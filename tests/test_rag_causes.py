"""What a passage does to the right answer's log-probability, against computations that know nothing of the tap."""

import math

import numpy as np
import pytest
import torch

from finetune.errors import RetrievalError
from finetune.rag.causes import (
    PassageEffects,
    answer_ids,
    answer_log_probability,
    passage_effects,
    rebuilding,
    swaps_for,
)
from finetune.rag.chunks import Chunk
from finetune.rag.inject import Injection, inject
from probe.models import model_from_parts
from probe.prompts import MappedPrompt, PromptPart
from probe.spans import tokenize
from tests.tiny import FAMILIES

DECODERS = ("llama", "gpt2", "qwen3", "gemma3")
ANSWER = "苹果酸"


def chunk(number: int, text: str, *, tokens: int = 4, document: str = "") -> Chunk:
    document = document or f"d{number}"
    return Chunk(id=f"c{number}", document=document, start=0, end=len(text), text=text, title="", tokens=tokens)


PASSAGES = [chunk(0, "我喜欢苹果"), chunk(1, "牛顿被苹果砸中"), chunk(2, "他讨厌菠菜")]
SWAPS = {"c0": chunk(7, "我们热爱和平"), "c1": chunk(8, "苹果公司发布了新品")}


def injected(tokenizer, passages) -> Injection:
    """A prompt of lines: each passage, then the question."""
    pieces = [
        ("instruction", "", "我们"),
        *(("passage", one.id, one.text) for one in passages),
        ("question", "", "苹果"),
    ]
    text = "".join(piece for _, _, piece in pieces)
    tokens = tokenize(tokenizer, text)
    parts, at, first = [], 0, 0
    for kind, name, piece in pieces:
        at += len(piece)
        stop = int((tokens.offsets[:, 1] <= at).sum())
        parts.append(PromptPart(kind=kind, name=name, start=at - len(piece), end=at, first=first, stop=stop))
        first = stop
    prompt = MappedPrompt(id="p", tokens=tokens, parts=tuple(parts), form="plain")
    return Injection(prompt=prompt, passages=tuple(passages), left_out=(), order="best-first", seed=0, marker="")


@pytest.fixture(scope="module")
def loaded_of():
    made = {}

    def load(family):
        if family not in made:
            made[family] = model_from_parts(*FAMILIES[family](), name=family)
        return made[family]

    return load


@pytest.fixture(scope="module")
def effects(loaded_of) -> PassageEffects:
    return measured(loaded_of("llama"), swaps=SWAPS)


def measured(loaded, **more) -> PassageEffects:
    rebuild = lambda passages: injected(loaded.tokenizer, passages)  # noqa: E731
    return passage_effects(loaded, rebuild(PASSAGES), ANSWER, rebuild=rebuild, **more)


def by_steps(loaded, prompt_ids, ids, *, hidden=()) -> float:
    """The answer's log-probability a token at a time, with no tap; keys at the hidden places are masked by hand."""
    total, read = 0.0, list(prompt_ids)
    for token in ids:
        mask = torch.ones(1, len(read), dtype=torch.long)
        mask[0, list(hidden)] = 0
        places = torch.arange(len(read))[None]
        with torch.no_grad():
            logits = loaded.model(torch.tensor([read]), attention_mask=mask, position_ids=places).logits[0, -1]
        total += math.log(torch.softmax(logits.double(), -1)[token])
        read.append(token)
    return total


@pytest.mark.parametrize("family", DECODERS)
def test_the_log_probability_is_that_of_the_answers_tokens_one_after_another(loaded_of, family) -> None:
    loaded = loaded_of(family)
    prompt = injected(loaded.tokenizer, PASSAGES).prompt
    ids = answer_ids(loaded, ANSWER, after=prompt)
    assert len(ids) > 1
    expected = by_steps(loaded, prompt.tokens.ids, ids)
    assert answer_log_probability(loaded, prompt, ids) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("place", [0, 2])
def test_a_cut_passage_is_one_whose_keys_are_masked_with_all_positions_kept(loaded_of, family, place) -> None:
    loaded = loaded_of(family)
    prompt = injected(loaded.tokenizer, PASSAGES).prompt
    ids = answer_ids(loaded, ANSWER, after=prompt)
    part = prompt.parts_of("passage")[place]
    assert part.stop - part.first > 2
    expected = by_steps(loaded, prompt.tokens.ids, ids, hidden=range(part.first, part.stop))
    found = answer_log_probability(loaded, prompt, ids, unseen=part)
    assert found == pytest.approx(expected, abs=2e-5)
    assert abs(found - answer_log_probability(loaded, prompt, ids)) > 1e-3  # it was seen before


def test_each_condition_is_the_prompt_that_it_names(loaded_of, effects) -> None:
    loaded = loaded_of("llama")

    def log_of(*passages):
        return by_steps(loaded, injected(loaded.tokenizer, passages).prompt.tokens.ids, effects.ids)

    whole = log_of(*PASSAGES)
    expected = {
        ("whole", ""): whole,
        ("none", ""): log_of(),
        ("dropped", "c0"): log_of(PASSAGES[1], PASSAGES[2]),
        ("dropped", "c1"): log_of(PASSAGES[0], PASSAGES[2]),
        ("dropped", "c2"): log_of(PASSAGES[0], PASSAGES[1]),
        ("swapped", "c0"): log_of(SWAPS["c0"], PASSAGES[1], PASSAGES[2]),
        ("swapped", "c1"): log_of(PASSAGES[0], SWAPS["c1"], PASSAGES[2]),
    }
    found = effects.logs.set_index(["condition", "passage"])
    for place, value in expected.items():
        assert found.nats[place] == pytest.approx(value, abs=2e-5)
        assert found.of_character[place] == pytest.approx(value / 3, abs=1e-5)
        assert found.lost[place] == pytest.approx(whole - value, abs=4e-5)
    assert set(found.index) == {*expected, ("cut", "c0"), ("cut", "c1"), ("cut", "c2")}
    first = effects.passages[0]
    assert (first.dropped, first.swapped, first.cut) == tuple(
        found.lost[name, "c0"] for name in ("dropped", "swapped", "cut")
    )
    assert first.swap == "c7"


def test_the_answers_tokens_are_the_same_under_every_condition(loaded_of, monkeypatch) -> None:
    loaded, seen = loaded_of("llama"), []
    forward = loaded.model.forward

    def watched(*, input_ids, **more):
        seen.append(input_ids[0].tolist())
        return forward(input_ids=input_ids, **more)

    watched.__signature__ = __import__("inspect").signature(forward)
    monkeypatch.setattr(loaded.model, "forward", watched)
    found = measured(loaded, swaps=SWAPS)
    assert len(seen) == len(found.logs) == 10
    assert {tuple(ids[-len(found.ids) + 1 :]) for ids in seen} == {found.ids[:-1]}
    prompts = {len(ids) for ids in seen}
    assert len(prompts) > 3


def test_a_passage_was_used_where_dropping_and_swapping_both_cost_more_than_the_least(loaded_of, effects) -> None:
    loaded = loaded_of("llama")
    one, two, three = effects.passages
    assert three.used is None  # nothing was put in its place
    assert three.swapped is None
    for passage in (one, two):
        both = min(passage.dropped, passage.swapped)
        lower = measured(loaded, swaps=SWAPS, cut=False, least=both - 0.01).passages
        upper = measured(loaded, swaps=SWAPS, cut=False, least=both + 0.01).passages
        assert [each.used for each in lower if each.passage.id == passage.passage.id] == [True]
        assert [each.used for each in upper if each.passage.id == passage.passage.id] == [False]
    assert not np.isclose(one.dropped, one.swapped)
    assert lower[0].cut is None


def test_the_shares_of_attention_stand_beside_the_effects(loaded_of) -> None:
    found = measured(loaded_of("llama"), cut=False, shares={"c1": 0.25})
    assert [one.share for one in found.passages] == [None, 0.25, None]


def test_each_condition_is_told(loaded_of) -> None:
    told = []
    measured(loaded_of("llama"), cut=False, progress=lambda done, total: told.append((done, total)))
    assert told == [(place, 5) for place in range(1, 6)]


def test_a_prompt_that_lost_a_passage_to_its_budget_is_refused(loaded_of) -> None:
    loaded = loaded_of("llama")
    whole = injected(loaded.tokenizer, PASSAGES)
    with pytest.raises(RetrievalError, match="passages c1, c2 was built with c1: allowed is a budget"):
        passage_effects(loaded, whole, ANSWER, rebuild=lambda passages: injected(loaded.tokenizer, passages[:1]))


@pytest.mark.parametrize(
    ("family", "head", "said"),
    [("bert", True, "bert is an encoder; allowed are decoders"), ("t5", True, "t5 is an encoder-decoder"),
     ("llama", False, "without its language-model head")],
)  # fmt: skip
def test_a_model_that_writes_nothing_is_refused(family, head, said) -> None:
    loaded = model_from_parts(*FAMILIES[family](head=head), name=family)
    with pytest.raises(RetrievalError, match=said):
        measured(loaded)


def test_no_passages_no_answer_and_no_room_are_refused(loaded_of) -> None:
    loaded = loaded_of("gpt2")
    rebuild = lambda passages: injected(loaded.tokenizer, passages)  # noqa: E731
    with pytest.raises(RetrievalError, match="has no passages"):
        passage_effects(loaded, rebuild([]), ANSWER, rebuild=rebuild)
    with pytest.raises(RetrievalError, match="right answer ' ' is empty"):
        passage_effects(loaded, rebuild(PASSAGES), " ", rebuild=rebuild)
    long = [*PASSAGES, chunk(4, "苹果" * 30)]
    with pytest.raises(RetrievalError, match="but gpt2 has room for 64"):
        passage_effects(loaded, rebuild(long), ANSWER, rebuild=rebuild)


def test_a_swap_is_another_documents_passage_of_about_the_same_length_without_the_answer() -> None:
    passages = [chunk(0, "甲", tokens=100), chunk(1, "乙", tokens=101), chunk(2, "丙", tokens=40)]
    same = chunk(3, "丁", tokens=100, document="d0")
    pool = [
        *passages, same, chunk(4, "有AAPL的", tokens=100), chunk(6, "戊", tokens=98), chunk(5, "己", tokens=102),
        chunk(7, "庚", tokens=70), chunk(8, "乙。", tokens=101), chunk(9, "AA PL", tokens=100),
    ]  # fmt: skip
    found = swaps_for(passages, pool, answer="aapl")
    assert {name: swap.id for name, swap in found.items()} == {"c0": "c5", "c1": "c5", "c2": "c7"}
    # With no other document, another place of one; with nothing else, none.
    assert swaps_for(passages, [*passages, same], answer="aapl") == dict.fromkeys(["c0", "c1", "c2"], same)
    assert swaps_for(passages, passages, answer="aapl") == {}


def test_an_answers_tokens_follow_the_prompt_and_not_the_start_of_a_text(loaded_of) -> None:
    loaded = loaded_of("llama")
    chinese = inject(loaded.tokenizer, "苹果", [], budget=200, instruction="").prompt
    english = inject(loaded.tokenizer, "apple", [], budget=200, instruction="", language="en").prompt
    assert (chinese.tokens.text[-1], english.tokens.text[-1]) == ("：", ":")
    for prompt, answer, written in (
        (chinese, "苹果酸", "苹果酸"), (english, "apple", " apple"), (english, "苹果", "苹果"),
        (english, " apple\n", " apple"),
    ):  # fmt: skip
        ids = answer_ids(loaded, answer, after=prompt)
        whole = loaded.tokenizer(prompt.tokens.text[-1] + written, add_special_tokens=False)["input_ids"]
        assert list(ids) == whole[-len(ids) :]
        assert loaded.tokenizer.decode([*prompt.tokens.ids[-9:], *ids]).endswith(prompt.tokens.text[-1] + written)


def test_a_prompt_is_built_anew_with_nothing_else_changed(loaded_of) -> None:
    loaded = loaded_of("llama")
    injection = inject(
        loaded.tokenizer, "苹果", PASSAGES, budget=250, order="best-last", seed=3, instruction="我们{marker}", near=None
    )  # fmt: skip
    assert [one.id for one in injection.passages] == ["c2", "c1", "c0"]
    rebuild = rebuilding(loaded, "苹果", injection, instruction="我们{marker}")
    same = rebuild(injection.passages)
    assert same.prompt.tokens.ids == injection.prompt.tokens.ids
    fewer = rebuild(injection.passages[:1])
    assert fewer.marker == injection.marker
    assert [one.id for one in fewer.passages] == ["c2"]
    assert [one.id for one in rebuild([PASSAGES[0], PASSAGES[0]]).passages] == ["c0"]  # equal texts never stand twice
