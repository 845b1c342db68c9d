"""Whether a passage moved the answer: the right answer's log-probability with it, without it, another, and unseen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from finetune.errors import RetrievalError
from finetune.questions import Predicted, log_probabilities
from finetune.rag.chunks import Chunk
from finetune.rag.duplicates import letters_of
from finetune.rag.forms import Language
from finetune.rag.inject import Injection, inject
from finetune.spelling import Speller
from probe import EdgeEdit, LoadedModel, MappedPrompt, PromptPart

Condition = Literal["whole", "none", "dropped", "swapped", "cut"]
Progress = Callable[[int, int], None]
Rebuild = Callable[[Sequence[Chunk]], Injection]

LEAST = 1.0  # nats that an answer must lose
_ROOM = 2**20  # tokens, of a model without a longest text


@dataclass(frozen=True, kw_only=True)
class PassageEffect:
    """How many nats the right answer's log-probability loses as one passage goes; below 0 it gains them."""

    passage: Chunk
    dropped: float  # the passage left out
    swapped: float | None  # another in its place
    cut: float | None  # in its place, but nothing behind it sees it
    used: bool | None  # dropping and swapping both cost more than the least; None where nothing was swapped
    swap: str | None = None  # what was put in its place
    share: float | None = None  # of the attention, where it was given


@dataclass(frozen=True, kw_only=True, eq=False)
class PassageEffects:
    """One answer's log-probability under every condition, and what follows of each passage, in the prompt's order."""

    answer: str
    ids: tuple[int, ...]  # the answer's tokens, the same under every condition
    least: float
    logs: pd.DataFrame  # condition, passage, nats (the log-probability), of_character, lost (against the whole prompt)
    passages: tuple[PassageEffect, ...]


def passage_effects(
    loaded: LoadedModel,
    injection: Injection,
    answer: str,
    *,
    rebuild: Rebuild,
    swaps: Mapping[str, Chunk] | None = None,
    cut: bool = True,
    shares: Mapping[str, float] | None = None,
    least: float = LEAST,
    progress: Progress | None = None,
) -> PassageEffects:
    """Measure what each passage of a prompt does to the right answer; one forward pass a condition.

    rebuild: puts passages into the same prompt, in the order given and all of them. swaps: by a passage's id what
    takes its place, as `swaps_for` chooses. cut: also with the edges from every later token to the passage cut in all
    layers, so that it stays in its place, and all others in theirs, unseen; only dropping and swapping decide over
    `used`, since both change what is written. RetrievalError for a model that is no decoder with its head, for no
    passages, and where a prompt cannot be built or is too long.
    """
    _check(loaded, injection)
    ids = answer_ids(loaded, answer, after=injection.prompt)
    conditions = list(_conditions(injection, rebuild, swaps or {}, cut=cut))
    rows = []
    for done, (condition, passage, prompt, part) in enumerate(conditions, 1):
        rows.append((condition, passage, answer_log_probability(loaded, prompt, ids, unseen=part)))
        if progress:
            progress(done, len(conditions))
    logs = pd.DataFrame(rows, columns=["condition", "passage", "nats"])
    logs["of_character"] = logs.nats / len(answer.strip())
    logs["lost"] = logs.nats[0] - logs.nats
    lost = {(condition, passage): float(value) for condition, passage, value in logs[_KEYED].to_numpy()}
    effects = [_effect(chunk, lost, swaps or {}, shares or {}, least=least) for chunk in injection.passages]
    return PassageEffects(answer=answer, ids=ids, least=least, logs=logs, passages=tuple(effects))


_KEYED = ["condition", "passage", "lost"]


def _effect(
    chunk: Chunk,
    lost: Mapping[tuple[str, str], float],
    swaps: Mapping[str, Chunk],
    shares: Mapping[str, float],
    *,
    least: float,
) -> PassageEffect:
    dropped, swapped = lost["dropped", chunk.id], lost.get(("swapped", chunk.id))
    return PassageEffect(
        passage=chunk,
        dropped=dropped,
        swapped=swapped,
        cut=lost.get(("cut", chunk.id)),
        used=None if swapped is None else min(dropped, swapped) > least,
        swap=swaps[chunk.id].id if chunk.id in swaps else None,
        share=shares.get(chunk.id),
    )


def _conditions(
    injection: Injection, rebuild: Rebuild, swaps: Mapping[str, Chunk], *, cut: bool
) -> Iterator[tuple[Condition, str, MappedPrompt, PromptPart | None]]:
    """Each condition with its passage, what is read, and which part of it is unseen; the whole prompt first."""
    passages = injection.passages
    yield "whole", "", injection.prompt, None
    yield "none", "", _rebuilt(rebuild, []), None
    for place, chunk in enumerate(passages):
        before, after = passages[:place], passages[place + 1 :]
        yield "dropped", chunk.id, _rebuilt(rebuild, [*before, *after]), None
        if chunk.id in swaps:
            yield "swapped", chunk.id, _rebuilt(rebuild, [*before, swaps[chunk.id], *after]), None
        if cut:
            yield "cut", chunk.id, injection.prompt, _part_of(injection.prompt, chunk)


def _rebuilt(rebuild: Rebuild, passages: Sequence[Chunk]) -> MappedPrompt:
    found = rebuild(passages)
    asked, put = [chunk.id for chunk in passages], [chunk.id for chunk in found.passages]
    if asked != put:
        raise RetrievalError(
            f"a prompt of the passages {', '.join(asked)} was built with {', '.join(put) or 'none'}: allowed is a "
            "budget with room for all of them, in their order"
        )
    return found.prompt


def _part_of(prompt: MappedPrompt, chunk: Chunk) -> PromptPart:
    found = [part for part in prompt.parts_of("passage") if part.name == chunk.id]
    if len(found) != 1:
        raise RetrievalError(f"prompt {prompt.id} has {len(found)} parts of passage {chunk.id}; allowed is one")
    return found[0]


def _check(loaded: LoadedModel, injection: Injection) -> None:
    check_writes(loaded)
    if not injection.passages:
        raise RetrievalError(f"prompt {injection.prompt.id} has no passages whose effect could be measured")


def check_writes(loaded: LoadedModel) -> None:
    """RetrievalError for a model that writes no answer after a prompt."""
    if loaded.kind != "decoder":
        raise RetrievalError(f"{loaded.name} is an {loaded.kind}; allowed are decoders, which go on from their prompt")
    if loaded.model.get_output_embeddings() is None:
        raise RetrievalError(f'{loaded.name} is loaded without its language-model head: load_model(..., head="lm")')


def answer_ids(loaded: LoadedModel, answer: str, *, after: MappedPrompt) -> tuple[int, ...]:
    """Give an answer's tokens as a model would write them after a prompt, of which none holds a part.

    After a Latin colon, as `Answer:` has, a space comes first, which is a part of its first word's token.
    """
    text, last = answer.strip(), after.tokens.text[-1:]
    if not text:
        raise RetrievalError(f"the right answer {answer!r} is empty; allowed is a text")
    space = " " if last == ":" and text.isascii() else ""
    return Speller(loaded.tokenizer).spelled(space + text, before=last).ids


def answer_log_probability(
    loaded: LoadedModel, prompt: MappedPrompt, ids: Sequence[int], *, unseen: PromptPart | None = None
) -> float:
    """Give the log-probability of an answer's tokens after a prompt, in nats; deterministic.

    unseen: a part to which the edges of all tokens behind it are cut, in all layers and heads; no position changes.
    RetrievalError where the model has no room for prompt and answer.
    """
    read = [*prompt.tokens.ids, *ids[:-1]]
    if loaded.max_positions is not None and len(read) > loaded.max_positions:
        raise RetrievalError(
            f"prompt {prompt.id} and the answer have {len(read)} tokens, but {loaded.name} has room for "
            f"{loaded.max_positions}: fewer passages, or shorter ones"
        )
    first = len(prompt.tokens.ids) - 1
    text = Predicted(ids=tuple(read), readers=tuple(range(first, len(read))), next_ids=tuple(ids))
    edits = [] if unseen is None else [_without(unseen, len(read))]
    (nats,) = log_probabilities(loaded.model, [text], edits=edits)
    return nats


def _without(part: PromptPart, length: int) -> EdgeEdit:
    # Every later token and not the answer's alone: else the passage would be read at second hand, through the
    # question or the passages behind it.
    return EdgeEdit(query=tuple(range(part.stop, length)), key=tuple(range(part.first, part.stop)))


def rebuilding(
    loaded: LoadedModel,
    question: str,
    injection: Injection,
    *,
    instruction: str | None = None,
    language: Language = "zh",
) -> Rebuild:
    """Give what puts other passages into the same prompt: all of them, in the order given, between the same marks.

    What is numbered there is numbered anew. instruction, language: those that the injection was made with.
    """

    def rebuild(passages: Sequence[Chunk]) -> Injection:
        return inject(
            loaded.tokenizer, question, passages, budget=loaded.max_positions or _ROOM, order="best-first",
            form=injection.prompt.form, seed=injection.seed, instruction=instruction, language=language,
            delimiters=bool(injection.marker), marker=injection.marker or None, near=None, id=injection.prompt.id,
        )  # fmt: skip

    return rebuild


def swaps_for(passages: Sequence[Chunk], pool: Sequence[Chunk], *, answer: str) -> dict[str, Chunk]:
    """Choose for each passage another of about as many tokens, without the answer: the nearest, equals by their id.

    It is of none of their documents, or of another place in one where the pool has no other, and its letters and
    digits are those of none of their texts: signs and case alone make no other passage. Several passages may have the
    same, since each is swapped alone. Where the pool has nothing else at all, none is chosen.
    """
    documents, texts = {one.document for one in passages}, {letters_of(one.text) for one in passages}
    wanted = letters_of(answer)
    free = [one for one in pool if (letters := letters_of(one.text)) not in texts and wanted not in letters]
    free = [one for one in free if one.document not in documents] or free
    return {one.id: min(free, key=_from(one.tokens)) for one in passages if free}


def _from(tokens: int) -> Callable[[Chunk], tuple[int, str]]:
    """How far a passage's length is from this one."""
    return lambda chunk: (abs(chunk.tokens - tokens), chunk.id)
