"""Questions against a plain forward pass of each text by itself, with and without the edge."""

import pytest
import torch

from finetune.domains import Question
from finetune.questions import answer, ending_tokens
from probe import tokenize
from tests.tiny import tiny_llama


def question(number, prompt, right, wrong, pair=None):
    return Question(id=str(number), group=str(number), prompt=prompt, right=right, wrong=wrong, pair=pair)


QUESTIONS = (
    question(0, "他讨厌菠菜，我喜欢苹果，我们热爱", "和平", "苹果手机", ("苹果", "菠菜")),
    question(1, "苹果公司发布了", "新品", "菠菜", ("苹果", "新品")),
    question(2, "苹果公司发布了", "新品", "菠菜"),
    question(3, "我", "喜欢", "讨厌", ("苹果", "喜欢")),
    question(4, "牛顿被苹果砸中，苹果", "手机", "和平", ("苹果", "砸")),
    question(5, "我们热爱和平，他", "喜欢", "讨厌", ("和平", "喜欢")),
)


@pytest.fixture(scope="module")
def model_and_tokenizer():
    return tiny_llama(num_hidden_layers=3)


def plain(model, tokenizer, prompt, ending, *, hidden=""):
    """Log-probability of an ending, nats a character; `hidden` is a word of the prompt that its readers cannot see."""
    tokens = tokenize(tokenizer, prompt + ending)
    places = [place for place, end in enumerate(tokens.offsets[:, 1]) if place and end > len(prompt)]
    ids = torch.tensor([tokens.ids])
    mask = torch.full((1, 1, ids.shape[1], ids.shape[1]), -1e30).triu(1)
    if hidden:
        for place, (start, end) in enumerate(tokens.offsets):
            first = prompt.find(hidden)
            while first >= 0:
                if start < first + len(hidden) and end > first:
                    mask[0, 0, places[0] - 1 : places[-1], place] = -1e30
                first = prompt.find(hidden, first + 1)
    with torch.inference_mode():
        logs = model(input_ids=ids, attention_mask=mask).logits[0].log_softmax(-1)
    return sum(float(logs[place - 1, tokens.ids[place]]) for place in places) / len(ending)


def test_the_margin_is_that_of_each_text_read_by_itself(model_and_tokenizer):
    model, tokenizer = model_and_tokenizer
    found = answer(model, tokenizer, QUESTIONS)
    assert [one.question for one in found] == list(QUESTIONS)
    for one in found:
        right, wrong = (
            plain(model, tokenizer, one.question.prompt, text) for text in (one.question.right, one.question.wrong)
        )
        assert one.right == pytest.approx(right, abs=1e-5) and one.wrong == pytest.approx(wrong, abs=1e-5)
        assert one.margin == pytest.approx(right - wrong, abs=1e-5)


def test_what_the_margin_rests_on_is_what_hiding_the_word_takes_from_it(model_and_tokenizer):
    model, tokenizer = model_and_tokenizer
    found = answer(model, tokenizer, QUESTIONS)
    # Of the first the query word stands in an ending, so its key word is hidden; the third has no pair, and the
    # fourth's words stand nowhere in its prompt, or in an ending.
    for one, word in zip(found, ("菠菜", "苹果", None, None, None, "和平"), strict=True):
        if word is None:
            continue
        cut = [
            plain(model, tokenizer, one.question.prompt, text, hidden=word)
            for text in (one.question.right, one.question.wrong)
        ]
        assert one.moved == pytest.approx(one.margin - (cut[0] - cut[1]), abs=1e-5) and abs(one.moved) > 1e-6
    assert found[2].moved is None and found[3].moved is None


def test_questions_are_answered_alike_alone_and_in_any_order(model_and_tokenizer):
    model, tokenizer = model_and_tokenizer
    told = []
    together = answer(model, tokenizer, QUESTIONS, progress=lambda done, total: told.append((done, total)))
    alone = [answer(model, tokenizer, [one])[0] for one in reversed(QUESTIONS)][::-1]
    assert [one.margin for one in together] == pytest.approx([one.margin for one in alone], abs=1e-5)
    assert told == [(4, 6), (6, 6)]


def test_a_token_that_also_carries_the_prompt_counts_for_the_ending(model_and_tokenizer):
    _, tokenizer = model_and_tokenizer
    tokens = tokenize(tokenizer, "我喜欢苹果")
    inside = [place for place, (start, end) in enumerate(tokens.offsets) if start < 2 < end]
    assert inside and ending_tokens(tokens, start=2)[0] == inside[0]
