"""Questions put to a causal model: how much likelier the right ending is than the wrong one, and what it rests on."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finetune.domains import Question
from finetune.spelling import Speller, joined
from probe import EdgeEdit, HeadEdit, RowRequest, Span, TokenMap, tap, tokenize, tokens_of

Progress = Callable[[int, int], None]
Edit = EdgeEdit | HeadEdit
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


# ---- one ending after one prompt -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """A question's prompt with one of its endings, on tokens, behind what stands before it."""

    question: Question
    ending: str
    tokens: TokenMap
    start: int = 0  # the character of tokens.text at which the question's prompt begins

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The ending's tokens."""
        return ending_tokens(self.tokens, start=self.start + len(self.question.prompt))

    @property
    def readers(self) -> tuple[int, ...]:
        """The positions that predict the ending."""
        return tuple(place - 1 for place in self.places)

    @cached_property
    def keys(self) -> tuple[int, ...]:
        """The tokens of the pair's word in the prompt, wherever it stands there; none without one."""
        word = word_in_prompt(self.question)
        return () if word is None else places_of(word, self.question.prompt, self.tokens, start=self.start)

    def edge(self, item: int, *, factor: float = 0.0) -> EdgeEdit:
        """The weight of the edges from the ending to the pair's word times a factor; 0: the ending cannot see it.

        Where the word is the prompt's last, its own row gives the ending's first token, and is left as it is unless
        it gives the whole ending.
        """
        query = tuple(place for place in self.readers if place not in self.keys) or self.readers
        return EdgeEdit(query=query, key=self.keys, factor=factor, item=item)


def asked_of(tokenizer: Any, question: Question, ending: str) -> Asked:
    """A question's prompt with an ending, and nothing before it."""
    return Asked(question=question, ending=ending, tokens=tokenize(tokenizer, question.prompt + ending))


def asked_behind(before: TokenMap, question: Question, ending: str, speller: Speller) -> Asked:
    """A question's prompt with an ending behind other tokens, of which none holds a part of it."""
    own = speller.spelled(question.prompt + ending, before=before.text[-1:])
    return Asked(question=question, ending=ending, tokens=joined([before, own]), start=len(before.text))


def ending_tokens(tokens: TokenMap, *, start: int) -> tuple[int, ...]:
    """The tokens that carry text from a character on; one that also carries text before it counts."""
    ends = tokens.offsets[:, 1]
    return tuple(place for place in range(1, len(tokens.ids)) if not tokens.special[place] and ends[place] > start)


def word_in_prompt(question: Question) -> str | None:
    """Of the pair, the word that the prompt holds and the endings do not."""
    endings = (question.right, question.wrong)
    words = [
        word for word in question.pair or () if word in question.prompt and not any(word in text for text in endings)
    ]
    return words[0] if words else None


def places_of(word: str, text: str, tokens: TokenMap, *, start: int) -> tuple[int, ...]:
    """The tokens of a word, wherever it stands in a text that begins at a character of the tokens' text."""
    places: set[int] = set()
    at = text.find(word)
    while at >= 0:
        places |= set(map(int, tokens_of(Span(start + at, start + at + len(word)), tokens)))
        at = text.find(word, at + len(word))
    return tuple(sorted(places))


def ending_scores(model: Any, asked: Sequence[Asked], *, edits: Sequence[Edit] = ()) -> list[float]:
    """Log-probability of each ending after its prompt, nats a character, in one pass of a model in eval mode."""
    texts = [
        Predicted(
            ids=one.tokens.ids, readers=one.readers, next_ids=tuple(one.tokens.ids[place] for place in one.places)
        )
        for one in asked
    ]
    nats = log_probabilities(model, texts, edits=edits)
    return [value / len(one.ending) for value, one in zip(nats, asked, strict=True)]


def _answered(model: Any, tokenizer: Any, questions: Sequence[Question]) -> list[Answered]:
    whole = _endings(model, tokenizer, questions, cut=False)
    seen = [place for place, question in enumerate(questions) if word_in_prompt(question) is not None]
    cut = dict(zip(seen, _endings(model, tokenizer, [questions[place] for place in seen], cut=True), strict=True))
    return [
        Answered(
            question=question, right=right, wrong=wrong, cut=cut[place][0] - cut[place][1] if place in cut else None
        )
        for place, (question, (right, wrong)) in enumerate(zip(questions, whole, strict=True))
    ]  # fmt: skip


def _endings(model: Any, tokenizer: Any, questions: Sequence[Question], *, cut: bool) -> list[tuple[float, float]]:
    """Log-probability of each question's right and wrong ending after the prompt, nats a character, in one pass."""
    asked = [asked_of(tokenizer, question, text) for question in questions for text in (question.right, question.wrong)]
    edits = [one.edge(item) for item, one in enumerate(asked)] if cut else []
    found = ending_scores(model, asked, edits=edits)
    return list(zip(found[::2], found[1::2], strict=True))


# ---- on tokens -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Predicted:
    """A text of which some tokens are predicted."""

    ids: tuple[int, ...]  # what is read
    readers: tuple[int, ...]  # the positions that predict
    next_ids: tuple[int, ...]  # what stands behind each


def log_probabilities(model: Any, texts: Sequence[Predicted], *, edits: Sequence[Edit] = ()) -> list[float]:
    """The log-probability of each text's predicted tokens together, in nats, in one pass of a model in eval mode."""
    if not texts:
        return []
    longest = max(len(one.ids) for one in texts)
    # Padded behind the end, where a causal model's texts do not see it.
    ids = torch.tensor([[*one.ids, *[0] * (longest - len(one.ids))] for one in texts])
    mask = torch.tensor([[place < len(one.ids) for place in range(longest)] for one in texts]).long()
    device = next(model.parameters()).device
    first = min(one.readers[0] for one in texts) if _keeps_few(model) else 0  # a vocabulary is wide
    more = {"logits_to_keep": longest - first} if first else {}
    edited = tap(model, RowRequest([[0]] * len(texts), layers=(), edits=edits)) if edits else nullcontext()
    with torch.inference_mode(), edited:
        logits = model(
            input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False, **more
        ).logits  # fmt: skip
    found = []
    for one, scores in zip(texts, logits, strict=True):
        logs = scores[[reader - first for reader in one.readers]].float().log_softmax(-1)  # [token, word]
        found.append(float(logs[range(len(one.next_ids)), list(one.next_ids)].double().sum()))
    return found


def _keeps_few(model: Any) -> bool:
    """Whether the model can be asked for the last positions' logits alone."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "logits_to_keep" in signature(inner.forward).parameters
