"""Questions put to a causal model: how much likelier the right ending is than the wrong one, and what it rests on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finetune.domains import Question
from probe import EdgeEdit, RowRequest, Span, TokenMap, tap, tokenize, tokens_of

Progress = Callable[[int, int], None]


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
    found = []
    try:
        with torch.inference_mode():
            for place, question in enumerate(questions):
                found.append(_answered(model, tokenizer, question))
                if progress:
                    progress(place + 1, len(questions))
    finally:
        model.train(was_training)
    return found


def margins(answered: Sequence[Answered]) -> NDArray[np.float64]:
    """The margins, [question]."""
    return np.array([one.margin for one in answered])


def _answered(model: Any, tokenizer: Any, question: Question) -> Answered:
    right, wrong = (_ending(model, tokenizer, question, text, cut=False) for text in (question.right, question.wrong))
    seen = _word_in_prompt(question)
    cut = None
    if seen is not None:
        ends = [_ending(model, tokenizer, question, text, cut=True) for text in (question.right, question.wrong)]
        cut = ends[0] - ends[1]
    return Answered(question=question, right=right, wrong=wrong, cut=cut)


def _ending(model: Any, tokenizer: Any, question: Question, ending: str, *, cut: bool) -> float:
    """Log-probability of the ending after the prompt, nats a character."""
    tokens = tokenize(tokenizer, question.prompt + ending)
    places = ending_tokens(tokens, start=len(question.prompt))
    ids = torch.tensor([tokens.ids], device=next(model.parameters()).device)
    readers = tuple(place - 1 for place in places)  # the rows that predict the ending
    kept = len(tokens.ids) - readers[0]  # logits of the prompt are of no use, and a vocabulary is wide
    if cut:
        keys = _keys(tokens, question)
        edit = EdgeEdit(query=tuple(place for place in readers if place not in keys) or readers, key=keys)
        with tap(model, RowRequest([[0]], layers=(), edits=[edit])):
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits[0]
    else:
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits[0]
    logs = logits.float().log_softmax(-1)  # [place from readers[0] on, word]
    chosen = logs[[reader - readers[0] for reader in readers], ids[0, list(places)]]
    return float(chosen.sum()) / len(ending)


def ending_tokens(tokens: TokenMap, *, start: int) -> tuple[int, ...]:
    """The tokens that carry text from a character on; one that also carries text before it counts."""
    ends = tokens.offsets[:, 1]
    return tuple(place for place in range(1, len(tokens.ids)) if not tokens.special[place] and ends[place] > start)


def _word_in_prompt(question: Question) -> str | None:
    """Of the pair, the word that the prompt holds and the endings do not."""
    words = [word for word in question.pair or () if word in question.prompt]
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
