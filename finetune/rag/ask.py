"""A question put to an index and a model: passages found, put before it, an answer written, and where it came from."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from finetune.errors import RetrievalError
from finetune.rag.answers import exact_match, normalised
from finetune.rag.causes import PassageEffect, PassageEffects, check_writes, passage_effects, rebuilding, swaps_for
from finetune.rag.chunks import Chunk
from finetune.rag.forms import Form, Language
from finetune.rag.hits import Hit, Mode
from finetune.rag.inject import Injection, Order, inject
from finetune.rag.rerank import Reranker
from finetune.rag.retrieve import POOL, Searched, retrieve
from finetune.rag.threshold import Threshold, says_nothing, worth
from finetune.spelling import Speller
from probe import LoadedModel, PartShares, part_shares

Refusal = Literal["nothing found", "below the threshold", "the model says so", "the model wrote no answer"]
Ending = Literal["end", "newline", "length"]
Progress = Callable[[int, int], None]

SAYS_NOTHING: dict[Language, str] = {"zh": "资料没有说明", "en": "The passages do not say"}
NO_ANSWER: dict[Language, str] = {"zh": "没有回答", "en": "No answer"}  # shown where the answer is ""
BUDGET = 2048  # tokens of a prompt, where the model has room for as many
_ROOM = 2**20  # tokens, of a model without a longest text
_COPIED = 4  # characters of the mark; fewer may begin an answer
_SOURCE_LINE = re.compile(r"\[\d+\]")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What a model wrote."""

    ids: tuple[int, ...]
    spoken: tuple[int, ...]  # those without an end of line and the end token behind the answer
    text: str  # of a base model its first line
    ended: Ending  # by its end token, by a new line of a base model, or cut off


@dataclass(frozen=True, kw_only=True)
class Source:
    """A passage that stood in the prompt."""

    passage: Chunk  # with its document, start and end
    rank: int
    score: float
    share: float | None  # of the attention of the rows that gave the answer, mean over layers and heads
    per_token: float | None  # that over its share of the tokens: 1 where a token of it gets what tokens get on average
    effect: PassageEffect | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Reply:
    """An answer with its sources by rank, and the prompt that it was written after."""

    question: str
    answer: str
    refused: Refusal | None
    hits: tuple[Hit, ...]
    sources: tuple[Source, ...] = ()
    injection: Injection | None = None
    generation: Generation | None = None
    shares: PartShares | None = None
    effects: PassageEffects | None = None
    worth: float | None = None  # what the search was worth, where a threshold refused it


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How passages are put before a question, and how much may be written after it."""

    budget: int | None = None  # tokens of the prompt; None is BUDGET, or what the model has room for
    order: Order = "best-first"
    form: Form | None = None  # None is chat where the tokenizer has a template, else plain
    instruction: str | None = None
    language: Language = "zh"
    delimiters: bool = True  # marks around each passage, which it cannot forge; a small base model may copy them
    seed: int = 0
    max_new_tokens: int = 64


def ask(
    loaded: LoadedModel,
    index: Searched,
    question: str,
    *,
    k: int = 5,
    mode: Mode | None = None,
    weight: float = 0.5,
    reranker: Reranker | None = None,
    threshold: Threshold | None = None,
    budget: int | None = None,
    order: Order = "best-first",
    form: Form | None = None,
    instruction: str | None = None,
    language: Language = "zh",
    delimiters: bool = True,
    seed: int = 0,
    max_new_tokens: int = 64,
    shares: bool = True,
    effects: bool = False,
    right: str | None = None,
    progress: Progress | None = None,
) -> Reply:
    """Answer a question from an index's passages, greedily, or say that the passages do not say.

    k to reranker: as `retrieve` takes them; budget to max_new_tokens: as `Writing` has them. shares: of each source in
    the attention of the answer. effects: what each source does to the log-probability of `right`, or of the answer
    that was written. progress: told of each new token and of max_new_tokens, then of each condition of the effects.
    RetrievalError for a model that is no decoder with its head, or that has no room.
    """
    check_writes(loaded)
    writing = Writing(
        budget=budget, order=order, form=form, instruction=instruction, language=language,
        delimiters=delimiters, seed=seed, max_new_tokens=max_new_tokens,
    )  # fmt: skip
    # Of the whole pool: the best of one field, which a threshold is on, need not be among the first k of both.
    pool = retrieve(index, [question], k=max(k, POOL), mode=mode, weight=weight, reranker=reranker)[0]
    if says_nothing(pool, threshold):
        return _refusal(question, pool, language, threshold, k=k)
    return answer_from(
        loaded, question, pool[:k], writing=writing, shares=shares, progress=progress,
        effects_on=index.chunks if effects else None, right=right,
    )  # fmt: skip


def answer_from(
    loaded: LoadedModel,
    question: str,
    hits: Sequence[Hit],
    *,
    threshold: Threshold | None = None,
    writing: Writing | None = None,
    shares: bool = True,
    effects_on: Sequence[Chunk] | None = None,
    right: str | None = None,
    progress: Progress | None = None,
) -> Reply:
    """Answer from what a search found, as `ask` does. effects_on: chunks from which each source's swap is chosen."""
    check_writes(loaded)
    writing = writing or Writing()
    if says_nothing(hits, threshold):
        return _refusal(question, hits, writing.language, threshold)
    injection = put_before(loaded, question, hits, writing)
    generation = generate(
        loaded, injection, max_new_tokens=writing.max_new_tokens, lines=injection.prompt.form == "chat",
        progress=progress,
    )  # fmt: skip
    looked = None
    if shares and generation.spoken:
        looked = part_shares(loaded, injection.prompt, answer=generation.spoken)
    measured, scored = None, generation.text if right is None else right
    if effects_on is not None and normalised(scored):
        rebuild = rebuilding(
            loaded, question, injection, instruction=writing.instruction, language=writing.language
        )  # fmt: skip
        measured = passage_effects(
            loaded, injection, scored, rebuild=rebuild,
            swaps=swaps_for(injection.passages, effects_on, answer=scored),
            shares={name: share for name, (share, _) in _passage_shares(looked).items()}, progress=progress,
        )  # fmt: skip
    refused = _said_nothing(generation.text, injection.marker)
    return Reply(
        question=question,
        answer="" if refused == "the model wrote no answer" else generation.text,
        refused=refused,
        hits=tuple(hits),
        sources=_sources(injection, hits, _passage_shares(looked), measured),
        injection=injection,
        generation=generation,
        shares=looked,
        effects=measured,
    )


def _refusal(
    question: str, hits: Sequence[Hit], language: Language, threshold: Threshold | None, *, k: int | None = None
) -> Reply:
    """What is said in place of an answer where a search found nothing, or too little; k: as many hits are kept."""
    refused: Refusal = "below the threshold" if hits else "nothing found"
    found = None if threshold is None else worth(hits, field=threshold.field, measure=threshold.measure)
    return Reply(
        question=question, answer=SAYS_NOTHING[language], refused=refused, hits=tuple(hits[:k]),
        worth=found if hits else None,
    )  # fmt: skip


def _said_nothing(text: str, marker: str) -> Refusal | None:
    """What a written answer comes to that is none; a copy of the mark around passages says nothing either."""
    if not normalised(text.replace(marker, "") if marker else text).strip("<>"):
        return "the model wrote no answer"
    return "the model says so" if exact_match(text, list(SAYS_NOTHING.values())) else None


def put_before(loaded: LoadedModel, question: str, hits: Sequence[Chunk | Hit], writing: Writing) -> Injection:
    """Put what was found before a question; RetrievalError where the model has no room for any of it."""
    room = (loaded.max_positions or _ROOM) - writing.max_new_tokens
    budget = min(BUDGET, room) if writing.budget is None else writing.budget
    if writing.max_new_tokens < 1 or budget > room or budget < 1:
        raise RetrievalError(
            f"budget {budget} and max_new_tokens {writing.max_new_tokens}: {loaded.name} has room for "
            f"{loaded.max_positions or _ROOM} tokens, prompt and answer together, each of at least one"
        )
    form: Form = writing.form or ("chat" if getattr(loaded.tokenizer, "chat_template", None) else "plain")
    if form == "pair":
        raise RetrievalError("form 'pair' is for encoders, which write no answers; allowed are plain, chat, text")
    injection = inject(
        loaded.tokenizer, question, hits, budget=budget, order=writing.order, form=form, seed=writing.seed,
        instruction=writing.instruction, language=writing.language, delimiters=writing.delimiters,
    )  # fmt: skip
    if not injection.passages:
        first = injection.left_out[0]
        raise RetrievalError(f"no passage can be put before the question: {first.chunk.id} {first.reason}")
    return injection


def generate(
    loaded: LoadedModel,
    injection: Injection,
    *,
    max_new_tokens: int,
    lines: bool = False,
    progress: Progress | None = None,
) -> Generation:
    """Let a model go on from a prompt, greedily; without `lines` until its first line with text is over.

    A base model knows no end of an answer and would go on to a next question; and it may copy what it has just read.
    An answer that begins with the mark around passages or with the line over one ([1] title) is written again by a
    model that may not begin with a token of these; one that begins so all the same is "". Deterministic.
    """
    write = partial(_written, loaded, injection, max_new_tokens=max_new_tokens, lines=lines, progress=progress)
    generation = write(barred=[])
    if _is_copy(generation.text, injection.marker):
        generation = write(barred=_beginnings(loaded.tokenizer, injection))
    if _is_copy(generation.text, injection.marker):
        return replace(generation, text="", spoken=())
    return generation


def _is_copy(text: str, marker: str) -> bool:
    """Whether a text begins with the mark, or with the line over a passage."""
    if marker and (text.startswith("<<<") or text.lstrip("<> ").startswith(marker[:_COPIED])):
        return True
    return _SOURCE_LINE.match(text) is not None


def _beginnings(tokenizer: Any, injection: Injection) -> list[int]:
    """The tokens that a copy of the mark or of a passage's line may begin with, after the prompt or white space."""
    speller, marker = Speller(tokenizer), injection.marker
    copies = ["[1]", *([marker, f"<<<{marker}"] if marker else [])]
    starts = [lead + copy[:stop] for copy in copies for stop in range(1, len(copy) + 1) for lead in ("", " ")]
    found = {
        speller.spelled(start, before=before).ids[0]
        for start in starts for before in (injection.prompt.tokens.text[-1:], "\n")
    }  # fmt: skip
    return sorted(token for token in found if _text(tokenizer, [token]).strip())


def _written(
    loaded: LoadedModel,
    injection: Injection,
    *,
    max_new_tokens: int,
    lines: bool,
    progress: Progress | None,
    barred: Sequence[int],
) -> Generation:
    """What a model writes, of whose text none of the barred tokens is the first."""
    from transformers import LogitsProcessorList, StoppingCriteriaList

    tokenizer, prompt = loaded.tokenizer, injection.prompt.tokens.ids
    ids = torch.tensor([prompt], device=loaded.device)

    def without_barred(read: Any, scores: Any) -> Any:
        # transformers' begin_suppress_tokens looks at the first token alone, which may be an end of line.
        if barred and not _text(tokenizer, read[0, len(prompt) :].tolist()).strip():
            scores = scores.clone()
            scores[:, list(barred)] = -torch.inf
        return scores

    def is_over(read: Any, scores: Any, **_: Any) -> Any:
        new = read[0, len(prompt) :]
        if progress:
            progress(len(new), max_new_tokens)
        over = not lines and "\n" in _text(tokenizer, new.tolist()).lstrip()
        return torch.full((1,), over, dtype=torch.bool, device=read.device)

    with torch.inference_mode():
        whole = loaded.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False,
            num_beams=1, cache_implementation="dynamic", disable_compile=True, return_dict_in_generate=False,
            pad_token_id=tokenizer.pad_token_id or 0, stopping_criteria=StoppingCriteriaList([is_over]),
            logits_processor=LogitsProcessorList([without_barred]),
        )  # fmt: skip
    new = [int(token) for token in whole[0, len(prompt) :].tolist()]
    text = _text(tokenizer, new).strip()
    ended: Ending = "end" if len(new) < max_new_tokens or new[-1] in tokenizer.all_special_ids else "length"
    if not lines and "\n" in _text(tokenizer, new).lstrip():
        text, ended = text.split("\n")[0].rstrip(), "newline"
    last = max((place for place, token in enumerate(new, 1) if _text(tokenizer, [token]).strip()), default=0)
    return Generation(ids=tuple(new), spoken=tuple(new[:last]), text=text, ended=ended)


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _passage_shares(shares: PartShares | None) -> dict[str, tuple[float, float]]:
    """Of each passage its share and that a token, by its id."""
    if shares is None:
        return {}
    table = shares.summary()
    table = table[table.kind == "passage"]
    return dict(zip(table.part, zip(table.share, table.per_token, strict=True), strict=True))


def _sources(
    injection: Injection,
    hits: Sequence[Hit],
    shares: Mapping[str, tuple[float, float]],
    measured: PassageEffects | None,
) -> tuple[Source, ...]:
    """The passages of the prompt, by rank."""
    put = {chunk.id for chunk in injection.passages}
    effects = {one.passage.id: one for one in measured.passages} if measured else {}
    found = []
    for hit in hits:
        if hit.chunk.id in put:
            share, per_token = shares.get(hit.chunk.id, (None, None))
            effect = effects.get(hit.chunk.id)
            found.append(
                Source(
                    passage=hit.chunk, rank=hit.rank, score=hit.score, share=share, per_token=per_token, effect=effect
                )
            )
    return tuple(found)
