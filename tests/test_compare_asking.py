"""Endings and answers against plain forward passes with masks made by hand, and against generate."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from finetune.compare.asking import (
    ANSWER_EDGE,
    PAIR_EDGE,
    Put,
    attention_maps,
    biased,
    cut,
    edges_of,
    score_endings,
    silenced,
    stops_of,
    write_answers,
)
from finetune.compare.prompts import Before, prompt_for
from finetune.domains import Question
from finetune.errors import DataError
from finetune.questions import answer
from finetune.spelling import Speller
from probe import model_from_parts
from tests.test_compare_prompts import hit
from tests.tiny import tiny_gemma3, tiny_gpt2, tiny_llama

KINDS = ("plain", "gloss", "passages")
BIAS = 1.7
FAMILIES = {"llama": tiny_llama, "gemma3": tiny_gemma3, "gpt2": tiny_gpt2}


def question(number, prompt, right, wrong, pair=None):
    return Question(id=str(number), group=str(number), prompt=prompt, right=right, wrong=wrong, pair=pair)


QUESTIONS = (
    question(0, "他讨厌菠菜，我喜欢苹果，我们热爱", "和平", "苹果手机", ("苹果", "菠菜")),
    question(1, "苹果公司发布了", "新品", "菠菜", ("苹果", "新品")),
    question(2, "苹果公司发布了", "新品", "菠菜"),
    question(3, "牛顿被苹果砸中，苹果", "手机", "和平", ("苹果", "砸")),
)
BEFORE = Before(
    passages={one.id: [hit("他讨厌苹果", 1), hit("我们热爱和平", 2)] for one in QUESTIONS},
    glosses={"苹果": "一种果"}, budget=2000,
)  # fmt: skip


@pytest.fixture(scope="module")
def loaded():
    model, tokenizer = tiny_llama(max_position_embeddings=512)
    return model_from_parts(model, tokenizer, name="tiny")


def write_answer(loaded, put, **settings):
    return write_answers(loaded, [put], **settings)[0]


def put_of(loaded, kind="plain", questions=QUESTIONS):
    return [Put(question=one, prompt=prompt_for(loaded.tokenizer, one, kind, BEFORE)) for one in questions]


def by_hand(loaded, put, ending, *, word=None, bias=0.0):
    """Log-probability a character from plain logits of prompt and ending; `word` gets a bias from the ending's rows."""
    start, prompt = put.prompt.parts[-1].start, put.question.prompt
    context = put.prompt.tokens.ids[: put.prompt.parts[-1].first]
    behind = put.prompt.tokens.text[start - 1 : start]
    own = Speller(loaded.tokenizer).spelled(prompt + ending, before=behind)
    ids = torch.tensor([[*context, *own.ids]])
    ends = [int(end) for end in own.offsets[:, 1]]
    places = [len(context) + place for place, end in enumerate(ends) if end > len(prompt)]
    mask = torch.full((1, 1, ids.shape[1], ids.shape[1]), torch.finfo(torch.float32).min).triu(1)
    held = [
        len(context) + place
        for place, (first, end) in enumerate(own.offsets.tolist())
        if word and any(first < at + len(word) and end > at for at in occurrences(word, prompt))
    ]
    rows = [place - 1 for place in places]
    for row in [row for row in rows if row not in held] or rows:
        mask[0, 0, row, held] += bias
    with torch.inference_mode():
        logs = loaded.model(input_ids=ids, attention_mask=mask).logits[0].log_softmax(-1)
    return sum(float(logs[place - 1, ids[0, place]]) for place in places) / len(ending)


def occurrences(word, text):
    return [at for at in range(len(text)) if text.startswith(word, at)]


# ---- endings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_endings_are_scored_as_plain_logits_say(loaded, kind):
    for put, found in zip(put_of(loaded, kind), score_endings(loaded, put_of(loaded, kind)), strict=True):
        right, wrong = (by_hand(loaded, put, text) for text in (put.question.right, put.question.wrong))
        assert (found.right, found.wrong) == pytest.approx((right, wrong), abs=1e-5)
        assert found.margin == pytest.approx(right - wrong, abs=1e-5)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_without_anything_before_it_a_question_is_scored_as_evaluate_does(family):
    model, tokenizer = FAMILIES[family]()
    loaded = model_from_parts(model, tokenizer, name="tiny")
    ours = score_endings(loaded, put_of(loaded))
    theirs = answer(model, tokenizer, QUESTIONS)
    assert [one.margin for one in ours] == pytest.approx([one.margin for one in theirs], abs=1e-5)
    hidden = score_endings(loaded, put_of(loaded), edits=[cut()])
    for whole, without, wanted in zip(ours, hidden, theirs, strict=True):
        assert whole.margin - without.margin == pytest.approx(wanted.moved or 0.0, abs=1e-5)
    assert sum(one.moved is not None for one in theirs) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_is_scored_alike_alone_and_among_others(loaded, kind):
    told = []
    together = score_endings(loaded, put_of(loaded, kind), step=lambda done, total: told.append((done, total)))
    alone = [score_endings(loaded, [one])[0] for one in put_of(loaded, kind)]
    assert [one.right for one in together] == pytest.approx([one.right for one in alone], abs=1e-5)
    assert told[-1] == (4, 4)


def test_a_prompt_that_the_model_has_no_room_for_is_refused():
    model, tokenizer = tiny_gpt2(n_positions=16)
    small = model_from_parts(model, tokenizer, name="small")
    with pytest.raises(DataError, match=r"question 0: prompt and answer have \d+ tokens, and small has room for 16"):
        score_endings(small, put_of(small))
    with pytest.raises(DataError, match="room for 16"):
        write_answer(small, put_of(small)[0], stops="", max_new_tokens=2)


# ---- edits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [BIAS, -0.9])
def test_a_bias_is_added_to_the_logits_from_the_ending_to_the_word_in_the_question(loaded, kind, bias):
    model = loaded.model
    model.set_attn_implementation("eager")  # takes the mask as it is
    try:
        for put in put_of(loaded, kind):
            word = {"0": "菠菜", "1": "苹果", "2": None, "3": "苹果"}[put.question.id]
            wanted = [by_hand(loaded, put, text, word=word, bias=bias) for text in (put.question.right, "和平")]
            (found,) = score_endings(loaded, [put], edits=[biased(bias)])
            assert found.right == pytest.approx(wanted[0], abs=1e-5)
            (without,) = score_endings(loaded, [put])
            assert (abs(found.right - without.right) > 1e-6) is (word is not None)
    finally:
        model.set_attn_implementation("sdpa")


def test_a_bias_of_nothing_changes_nothing(loaded):
    for kind in KINDS:
        put = put_of(loaded, kind)
        assert score_endings(loaded, put, edits=[biased(0.0)]) == score_endings(loaded, put)


def test_a_bias_of_minus_infinity_is_the_cut_and_outweighs_any_other(loaded):
    put = [one for one in put_of(loaded, "passages") if one.keys]
    hidden = score_endings(loaded, put, edits=[cut()])
    assert score_endings(loaded, put, edits=[biased(-math.inf)]) == hidden
    both = score_endings(loaded, put, edits=[biased(3.0), cut()])
    assert [one.right for one in both] == pytest.approx([one.right for one in hidden], abs=1e-6)
    for one, found in zip(put, hidden, strict=True):
        word = {"0": "菠菜", "1": "苹果", "3": "苹果"}[one.question.id]
        own = one.question.right
        assert found.right == pytest.approx(by_hand(loaded, one, own, word=word, bias=-1e30), abs=1e-4)


def test_silenced_heads_write_nothing(loaded):
    heads = {0: (1, 2), 2: (0,)}
    found = score_endings(loaded, put_of(loaded), edits=[silenced(heads)])
    hooks = []
    for layer, chosen in heads.items():
        projection = loaded.backbone.layers[layer].self_attn.o_proj
        size = projection.in_features // 4

        def without(module, given, *, chosen=chosen, size=size):
            kept = given[0].clone()
            for head in chosen:
                kept[..., head * size : (head + 1) * size] = 0
            return (kept,)

        hooks.append(projection.register_forward_pre_hook(without))
    plain = score_endings(loaded, put_of(loaded))
    for hook in hooks:
        hook.remove()
    assert [one.margin for one in found] == pytest.approx([one.margin for one in plain], abs=1e-5)
    assert found != score_endings(loaded, put_of(loaded))


# ---- maps ------------------------------------------------------------------------------------------------------


def test_the_edges_that_are_mapped_are_those_of_the_pair_s_words(loaded):
    speller = Speller(loaded.tokenizer)
    found = {}
    for one in put_of(loaded):
        asked = one.asked(one.question.right, speller)
        label = asked.tokens.labels
        found[one.question.id] = {
            role: ["".join(label[place] for place in side) for side in sides] for role, sides in edges_of(asked).items()
        }
    assert found["0"][PAIR_EDGE] == ["苹果", "菠菜"] and found["0"][ANSWER_EDGE][1] == "菠菜"
    # The ending reads at the positions before its tokens: of 新品 at 了 and 新.
    assert found["1"] == {ANSWER_EDGE: ["了新", "苹果"], PAIR_EDGE: ["新品", "苹果"]}
    assert found["2"] == {}
    assert found["3"][PAIR_EDGE] == ["砸", "苹果"]  # 苹果 stands on both sides; the row sees the first


@pytest.mark.parametrize("kind", KINDS)
def test_maps_are_the_model_s_own_attention_whatever_stands_before(loaded, kind):
    put = put_of(loaded, kind)
    found = attention_maps(loaded, put)
    assert len(found) == (2 + 2 + 2) * 3 * 4 and sorted(set(found.item)) == ["0", "1", "3"]
    loaded.model.set_attn_implementation("eager")
    speller = Speller(loaded.tokenizer)
    try:
        for one in put:
            asked = one.asked(one.question.right, speller)
            with torch.inference_mode():
                maps = loaded.model(torch.tensor([asked.tokens.ids]), output_attentions=True).attentions
            for role, (query, key) in edges_of(asked).items():
                rows = found[(found.item == one.question.id) & (found.role == role)]
                for layer, head, value in rows[["layer", "head", "value"]].itertuples(index=False):
                    plain = maps[layer][0, head][list(query)][:, list(key)].sum(-1).mean()
                    assert value == pytest.approx(float(plain), abs=1e-5)
    finally:
        loaded.model.set_attn_implementation("sdpa")


def test_maps_are_taken_after_the_edits(loaded):
    hidden = attention_maps(loaded, put_of(loaded), edits=[cut()])
    assert (hidden[hidden.role == ANSWER_EDGE].value.abs() < 1e-6).all()
    assert (hidden[hidden.role == PAIR_EDGE].value > 0).any()


# ---- answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("kind", ["plain", "gloss"])
def test_an_answer_is_what_generate_writes(family, kind):
    longer = {"n_positions": 512} if family == "gpt2" else {}
    model, tokenizer = FAMILIES[family](**longer)
    loaded = model_from_parts(model, tokenizer, name="tiny")
    asked, told = put_of(loaded, kind), []
    together = write_answers(
        loaded, asked, stops="", max_new_tokens=6, step=lambda done, total: told.append((done, total))
    )
    for put, found in zip(asked, together, strict=True):
        ids = torch.tensor([put.prompt.tokens.ids])
        with torch.inference_mode():
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, pad_token_id=0
            )
        new = whole[0, ids.shape[1] :]
        assert found == tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False).strip()
        assert found == write_answer(loaded, put, stops="", max_new_tokens=6)  # also by itself, without padding
    assert told[-1] == (4, 4)


def test_a_text_read_anew_for_each_token_is_written_as_one_that_is_cached(loaded):
    for put in put_of(loaded, "gloss"):
        cached = write_answer(loaded, put, stops="", max_new_tokens=8)
        assert write_answer(loaded, put, stops="", max_new_tokens=8, bias=1e-12) == cached


def test_a_bias_goes_with_every_token_that_is_written(loaded):
    put = put_of(loaded)[1]
    found = write_answer(loaded, put, stops="", max_new_tokens=6, bias=6.0)
    ids, new = list(put.prompt.tokens.ids), []
    loaded.model.set_attn_implementation("eager")
    try:
        for _ in range(6):
            mask = torch.full((1, 1, len(ids), len(ids)), torch.finfo(torch.float32).min).triu(1)
            for row in range(len(put.prompt.tokens.ids) - 1, len(ids)):
                mask[0, 0, row, list(put.keys)] += 6.0
            with torch.inference_mode():
                new.append(int(loaded.model(torch.tensor([ids]), attention_mask=mask).logits[0, -1].argmax()))
            ids.append(new[-1])
    finally:
        loaded.model.set_attn_implementation("sdpa")
    assert found == loaded.tokenizer.decode(new, skip_special_tokens=True).strip()
    assert found != write_answer(loaded, put, stops="", max_new_tokens=6)


class Parrot(torch.nn.Module):
    """A model that writes one text, then the end token, then the text again."""

    def __init__(self, tokenizer, length, text):
        super().__init__()
        own = tokenizer(text, add_special_tokens=False)["input_ids"]
        self.coming, self.words, self.length = [*own, tokenizer.eos_token_id, *own], len(tokenizer), length
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, use_cache=False):
        logits = torch.zeros(1, 1, self.words)
        logits[0, 0, self.coming[input_ids.shape[1] - self.length]] = 1.0
        return SimpleNamespace(logits=logits)

    def generate(self, input_ids, max_new_tokens, stopping_criteria, **_):
        while True:
            new = self(input_ids).logits[0, -1].argmax()
            input_ids = torch.cat([input_ids, new[None, None]], dim=1)
            if input_ids.shape[1] == self.length + max_new_tokens or bool(stopping_criteria(input_ids, None).all()):
                return input_ids


@pytest.mark.parametrize(
    ("text", "stops", "wanted"),
    [
        ("喜欢，苹果", "，", "喜欢"),
        ("喜欢，苹果", "", "喜欢，苹果"),
        ("，苹果", "，", ""),
        ("喜欢but讨厌", "t", "喜欢bu"),
    ],
)
def test_an_answer_ends_at_a_stop_or_at_the_end_token(loaded, text, stops, wanted):
    put, tokenizer = put_of(loaded)[0], loaded.tokenizer
    parrot = Parrot(tokenizer, len(put.prompt.tokens.ids), text)
    assert write_answer(replace(loaded, model=parrot), put, stops=stops, max_new_tokens=20) == wanted
    few = write_answer(replace(loaded, model=parrot), put, stops="", max_new_tokens=1)
    assert few == tokenizer.decode(parrot.coming[:1], skip_special_tokens=True).strip()


def test_answers_with_and_without_a_bias_end_alike(loaded):
    (put,) = put_of(loaded)[:1]
    written = write_answer(loaded, put, stops="", max_new_tokens=12)
    for stop in dict.fromkeys(written.strip()):
        cut_there = [write_answer(loaded, put, stops=stop, max_new_tokens=12, bias=bias) for bias in (0.0, 1e-12)]
        assert cut_there == [written[: written.index(stop)].strip()] * 2


def test_a_sign_that_an_ending_holds_is_no_stop():
    assert "；" in stops_of(QUESTIONS) and "，" in stops_of(QUESTIONS)
    assert "，" not in stops_of([*QUESTIONS, question(9, "我", "喜欢，热爱", "讨厌")])


def test_the_tokens_of_the_pair_s_word_are_those_in_the_question_and_not_in_a_passage(loaded):
    for put in put_of(loaded, "passages"):
        words = "".join(put.prompt.tokens.labels[place] for place in put.keys)
        assert words == {"0": "菠菜", "1": "苹果", "2": "", "3": "苹果苹果"}[put.question.id]
        assert all(place >= put.prompt.parts[-1].first for place in put.keys)
