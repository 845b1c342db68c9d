"""Passages put before a question, as many as a budget of tokens allows, with a map of where each of them lies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from finetune.errors import DataError, RetrievalError
from finetune.rag.chunks import Chunk
from finetune.rag.duplicates import find_duplicates
from finetune.rag.forms import (
    WORDINGS,
    Form,
    Language,
    Setting,
    Shown,
    instruction_of,
    mapped,
    pieces_of,
    provenance,
    tokens_of_pieces,
)
from finetune.rag.hits import Hit
from finetune.rag.markers import holds, marker_of, texts_of
from finetune.spelling import Speller
from probe import CijingError, MappedPrompt, Span

Order = Literal["best-first", "edges", "best-last"]
_LONGEST_PIECE = 128  # characters of one token; what has more a token than this is not cut to be counted


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A passage that is not in the prompt, and the reason in one line."""

    chunk: Chunk
    reason: str


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A prompt with its passages, and what was left out of it."""

    prompt: MappedPrompt
    passages: tuple[Chunk, ...]  # as they stand in the prompt
    left_out: tuple[LeftOut, ...]  # by rank
    order: Order
    seed: int
    marker: str  # "" where nothing delimits the passages


def inject(
    tokenizer: Any,
    question: str,
    passages: Sequence[Chunk | Hit],
    *,
    budget: int,
    order: Order = "best-first",
    form: Form = "plain",
    seed: int = 0,
    instruction: str | None = None,
    target: Span | str | None = None,
    id: str = "prompt",
    language: Language = "zh",
    delimiters: bool = True,
    marker: str | None = None,
    near: float | None = None,
) -> Injection:
    """Give the prompt of a question and passages, the best first, in at most `budget` tokens of the prompt alone.

    Passages come whole: in order of rank, each that fits beside those before it; one that does not is left out and
    the next, which may be smaller, is tried. What reads as one before it is left out; with `near`, also what is as
    similar to one, though two near texts may differ in the very word that is asked for.
    order: best-first, best-last, or edges, the best at both ends and the worst in the middle.
    form: plain text for a base model, chat for a template's user message, pair for an encoder, whose first text the
    passages are and whose second is the question, without instruction or marks, text for what a base model is to go on
    from as it stands: nothing around the question, no instruction of ours, and without passages the text's own tokens.
    instruction: instead of ours, {marker} in it is the mark; "" for none. target: a word of the question, or its place
    there. marker: that of another injection, so that two prompts differ in nothing but their passages.
    Raises RetrievalError where the question does not fit alone or cannot be read, and where a choice does not exist.
    """
    _check(order=order, form=form, language=language, budget=budget, seed=seed, question=question)
    shown = [_shown(one, rank) for rank, one in enumerate(passages, start=1)]
    wording = WORDINGS[language]
    mark = None
    if delimiters and form != "pair":
        mark = _mark(question, [one.chunk for one in shown], seed=seed, instruction=instruction, given=marker)
    setting = Setting(
        form=form, question=question, wording=wording, marker=mark,
        instruction=instruction_of(instruction, form=form, wording=wording, marker=mark),
    )  # fmt: skip
    speller = Speller(tokenizer)
    _check_alone(setting, speller, budget)
    kept, left_out = _chosen(shown, setting, speller, budget=budget, order=order, near=near)
    ordered = put_in_order(kept, order)
    prompt = mapped(pieces_of(ordered, setting, tokenizer), speller, id=id, form=form, target=_target(question, target))
    return Injection(
        prompt=prompt, passages=tuple(one.chunk for one in ordered), left_out=tuple(left_out), order=order, seed=seed,
        marker=mark or "",
    )  # fmt: skip


def put_in_order(ranked: Sequence[Shown], order: Order) -> list[Shown]:
    """What is given by rank, in an order; edges has the best first, the second last, the third after the first."""
    if order == "edges":
        return [*ranked[0::2], *reversed(ranked[1::2])]
    return list(ranked) if order == "best-first" else list(reversed(ranked))


def _check(*, order: str, form: str, language: str, budget: int, seed: int, question: str) -> None:
    for name, given, allowed in (
        ("order", order, get_args(Order)), ("form", form, get_args(Form)), ("language", language, get_args(Language)),
    ):  # fmt: skip
        if given not in allowed:
            raise RetrievalError(f"{name} {given!r}: allowed are {', '.join(allowed)}")
    for name, number in (("budget", budget), ("seed", seed)):
        if not isinstance(number, int) or isinstance(number, bool):
            raise RetrievalError(f"{name} {number!r}: allowed is a whole number")
    if not question.strip():
        raise RetrievalError("the question is empty; allowed is a text")


def _shown(given: Chunk | Hit, rank: int) -> Shown:
    if isinstance(given, Hit):
        return Shown(chunk=given.chunk, rank=rank, score=float(given.score))
    return Shown(chunk=given, rank=rank, score=None)


def _mark(question: str, chunks: Sequence[Chunk], *, seed: int, instruction: str | None, given: str | None) -> str:
    """The prompt's mark, or the given one if no text holds it."""
    if given is None:
        return marker_of(question, chunks, seed=seed, others=[instruction or ""])
    if not given.isalnum():
        raise RetrievalError(f"marker {given!r}: allowed are letters and digits, as an injection has them")
    named = [("the question", question), *((f"passage {one.id}", text) for one in chunks for text in texts_of(one))]
    for name, text in named:
        if holds(text, given):
            raise RetrievalError(f"marker {given!r} stands in {name}; allowed is one that no text of the prompt holds")
    return given


def _check_alone(setting: Setting, speller: Speller, budget: int) -> None:
    """RetrievalError where the question cannot be read, or does not fit without any passage."""
    if len(setting.question) > _LONGEST_PIECE * max(budget, 0):
        raise RetrievalError(f"the question has {len(setting.question)} characters, more than {budget} tokens can hold")
    try:
        needed = _size([], setting, speller)
    except RetrievalError:
        raise
    except CijingError as error:
        raise RetrievalError(f"the question or its instruction cannot be put into the prompt: {error}") from error
    if needed > budget:
        raise RetrievalError(
            f"the question alone has {needed} tokens with what stands around it, the budget {budget}; allowed is a "
            "larger budget or a shorter question"
        )


def _size(shown: Sequence[Shown], setting: Setting, speller: Speller) -> int:
    pieces = pieces_of(shown, setting, speller.tokenizer)
    return sum(len(tokens.ids) for tokens in tokens_of_pieces(pieces, speller))


def _chosen(
    shown: Sequence[Shown], setting: Setting, speller: Speller, *, budget: int, order: Order, near: float | None
) -> tuple[list[Shown], list[LeftOut]]:
    """By rank, the passages that the prompt has room for and those that it leaves out."""
    kept: list[Shown] = []
    left_out: list[LeftOut] = []
    for one in shown:
        reason = (
            _cannot_be(one.chunk.text, budget)
            or _repeats(one, kept, near)
            or _hinders(one, kept, setting, speller, budget=budget, order=order)
        )
        if reason:
            left_out.append(LeftOut(chunk=one.chunk, reason=reason))
        else:
            kept.append(one)
    return kept, left_out


def _cannot_be(text: str, budget: int) -> str:
    """What a passage's length alone says against it; "" if nothing."""
    if len(text) > _LONGEST_PIECE * budget:
        return f"has {len(text)} characters, more than {budget} tokens can hold"
    return "" if text.strip() else "is empty"


def _repeats(one: Shown, kept: Sequence[Shown], near: float | None) -> str:
    """Which passage before it has the same text, or nearly; "" if none."""
    found = find_duplicates([*(other.chunk.text for other in kept), one.chunk.text], threshold=near)
    for twin in (*found.exact, *found.near):
        if twin.place == len(kept):
            how = "has the same text as" if twin in found.exact else f"is, by {twin.similarity:.2f}, nearly the text of"
            return f"{how} passage {kept[twin.first].chunk.id}"
    return ""


def _hinders(
    one: Shown, kept: Sequence[Shown], setting: Setting, speller: Speller, *, budget: int, order: Order
) -> str:
    """Why a passage cannot stand beside the others; "" if it can."""
    try:
        speller.spelled(provenance(one.chunk, 1))
        needed = _size(put_in_order([*kept, one], order), setting, speller)
    except DataError as error:
        return f"cannot be put into the prompt: {error}"
    if needed > budget:
        return f"does not fit: with it the prompt has {needed} tokens, the budget {budget}"
    return ""


def _target(question: str, target: Span | str | None) -> Span | None:
    """The place of the word to look from, in the question."""
    if target is None:
        return None
    try:
        if isinstance(target, str):
            return Span.of(question, target)
        target.cut(question)
    except CijingError as error:
        raise RetrievalError(f"target: {error}") from error
    return target
