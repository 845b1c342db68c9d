"""Questions put to a causal model: how much likelier the right ending is than the wrong one, and what it rests on."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finetune.domains import Question
from probe import EdgeEdit, RowRequest, Span, TokenMap, tap, tokenize, tokens_of

Progress = Callable[[int, int], None]
_QUESTIONS = 4  # a batch, with two endings each


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One question: log-probabilities of both endings, in nats a character."""

    question: Question
    right: float
    wrong: float
    cut: float | None  # the margin when the endings cannot see the pair's word in the prompt; None without one

    @property
    def margin(self) -> float:
        """Right minus wrong; above 0 the model takes the right ending."""
        return self.right - self.wrong

    @property
    def moved(self) -> float | None:
        """How much of the margin rests on the edge: margin minus margin without it."""
        return None if self.cut is None else self.margin - self.cut


def answer(
    model: Any, tokenizer: Any, questions: Sequence[Question], *, progress: Progress | None = None
) -> list[Answered]:
    """Score the endings of all questions with a causal model in eval mode; deterministic."""
    was_training = model.training
    model.eval()
    found: dict[int, Answered] = {}
    order = sorted(range(len(questions)), key=lambda place: len(questions[place].prompt))  # little padding
    try:
        with torch.inference_mode():
            for start in range(0, len(order), _QUESTIONS):
                places = order[start : start + _QUESTIONS]
                found |= dict(zip(places, _answered(model, tokenizer, [questions[at] for at in places]), strict=True))
                if progress:
                    progress(len(found), len(questions))
    finally:
        model.train(was_training)
    return [found[place] for place in range(len(questions))]


def margins(answered: Sequence[Answered]) -> NDArray[np.float64]:
    """The margins, [question]."""
    return np.array([one.margin for one in answered])


def _answered(model: Any, tokenizer: Any, questions: Sequence[Question]) -> list[Answered]:
    whole = _endings(model, tokenizer, questions, cut=False)
    seen = [place for place, question in enumerate(questions) if _word_in_prompt(question) is not None]
    cut = dict(zip(seen, _endings(model, tokenizer, [questions[place] for place in seen], cut=True), strict=True))
    return [
        Answered(
            question=question, right=right, wrong=wrong, cut=cut[place][0] - cut[place][1] if place in cut else None
        )
        for place, (question, (right, wrong)) in enumerate(zip(questions, whole, strict=True))
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class _Asked:
    """A prompt with one of its endings, on tokens."""

    question: Question
    ending: str
    tokens: TokenMap
    places: tuple[int, ...]  # the ending's tokens

    @property
    def readers(self) -> tuple[int, ...]:
        """The positions that predict the ending."""
        return tuple(place - 1 for place in self.places)

    def cut(self, item: int) -> EdgeEdit:
        """The ending cannot see the pair's word in the prompt."""
        keys = _keys(self.tokens, self.question)
        query = tuple(place for place in self.readers if place not in keys) or self.readers
        return EdgeEdit(query=query, key=keys, item=item)


def _endings(model: Any, tokenizer: Any, questions: Sequence[Question], *, cut: bool) -> list[tuple[float, float]]:
    """Log-probability of each question's right and wrong ending after the prompt, nats a character, in one pass."""
    asked = [_asked(tokenizer, question, text) for question in questions for text in (question.right, question.wrong)]
    if not asked:
        return []
    longest = max(len(one.tokens.ids) for one in asked)
    # Padded behind the end, where a causal model's texts do not see it.
    ids = torch.tensor([[*one.tokens.ids, *[0] * (longest - len(one.tokens.ids))] for one in asked])
    mask = torch.tensor([[place < len(one.tokens.ids) for place in range(longest)] for one in asked]).long()
    device = next(model.parameters()).device
    first = min(one.readers[0] for one in asked)  # logits before are of no use, and a vocabulary is wide
    more = {"attention_mask": mask.to(device), "use_cache": False, "logits_to_keep": longest - first}
    edits = [one.cut(item) for item, one in enumerate(asked)] if cut else []
    with tap(model, RowRequest([[0]] * len(asked), layers=(), edits=edits)) if cut else nullcontext():
        logits = model(input_ids=ids.to(device), **more).logits
    found = []
    for one, scores in zip(asked, logits, strict=True):
        logs = scores[[reader - first for reader in one.readers]].float().log_softmax(-1)  # [ending's token, word]
        chosen = logs[range(len(one.places)), [one.tokens.ids[place] for place in one.places]]
        found.append(float(chosen.double().sum()) / len(one.ending))
    return list(zip(found[::2], found[1::2], strict=True))


def _asked(tokenizer: Any, question: Question, ending: str) -> _Asked:
    tokens = tokenize(tokenizer, question.prompt + ending)
    places = ending_tokens(tokens, start=len(question.prompt))
    return _Asked(question=question, ending=ending, tokens=tokens, places=places)


def ending_tokens(tokens: TokenMap, *, start: int) -> tuple[int, ...]:
    """The tokens that carry text from a character on; one that also carries text before it counts."""
    ends = tokens.offsets[:, 1]
    return tuple(place for place in range(1, len(tokens.ids)) if not tokens.special[place] and ends[place] > start)


def _word_in_prompt(question: Question) -> str | None:
    """Of the pair, the word that the prompt holds and the endings do not."""
    endings = (question.right, question.wrong)
    words = [
        word for word in question.pair or () if word in question.prompt and not any(word in text for text in endings)
    ]
    return words[0] if words else None


def _keys(tokens: TokenMap, question: Question) -> tuple[int, ...]:
    word = _word_in_prompt(question)
    assert word is not None
    places: set[int] = set()
    start = question.prompt.find(word)
    while start >= 0:
        places |= set(map(int, tokens_of(Span(start, start + len(word)), tokens)))
        start = question.prompt.find(word, start + len(word))
    return tuple(sorted(places))
