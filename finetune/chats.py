"""What a causal model is to learn to write: a text, a completion, or the answers of a conversation in its template."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.errors import DataError
from finetune.reading import Message, Record
from finetune.spelling import joined, special_tokens, unused_signs
from probe import TokenMap, tokenize


@dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """A text on tokens, and which of them the loss counts."""

    tokens: TokenMap
    learned: NDArray[np.bool_]  # [token]


def written(record: Record, tokenizer: Any, *, template: bool = True) -> Written:
    """A record as a causal model reads it.

    A text is learned whole, one end token after it. Of messages, the answers are learned, with what the template
    writes to end them. A completion is learned with the end token; `template` makes prompt and completion a message
    and its answer where the tokenizer has a template. DataError where a template cannot serve.
    """
    if record.messages:
        return _conversation(record.messages, tokenizer)
    if record.completion:
        if template and getattr(tokenizer, "chat_template", None):
            return _conversation((("user", record.prompt), ("assistant", record.completion)), tokenizer)
        return _completion(record.prompt, record.completion, tokenizer)
    tokens = _ended(tokenize(tokenizer, record.text), tokenizer)
    return Written(tokens=tokens, learned=np.ones(len(tokens.ids), dtype=np.bool_))


def _completion(prompt: str, completion: str, tokenizer: Any) -> Written:
    """Cut apart at the border, as a model meets a prompt; a token of both would never be asked for."""
    before = _without_end(tokenize(tokenizer, prompt))
    answer = _ended(tokenize(tokenizer, completion, add_special_tokens=False), tokenizer)
    learned = np.arange(len(before.ids) + len(answer.ids)) >= len(before.ids)
    return Written(tokens=joined([before, answer]), learned=learned)


def _ended(tokens: TokenMap, tokenizer: Any) -> TokenMap:
    """The tokens with one end token after them, where the tokenizer has one and has not put it there."""
    end = tokenizer.eos_token_id
    if end is None or tokens.ids[-1:] == (end,):
        return tokens
    return joined([tokens, special_tokens([int(end)], tokenizer)])


def _without_end(tokens: TokenMap) -> TokenMap:
    """The tokens without special ones at their end, after which nothing more would be written."""
    inner = np.flatnonzero(~tokens.special)
    return _part(tokens, int(inner[-1]) + 1 if len(inner) else len(tokens.ids))


def _part(tokens: TokenMap, stop: int) -> TokenMap:
    return TokenMap(
        text=tokens.text, ids=tokens.ids[:stop], offsets=tokens.offsets[:stop], special=tokens.special[:stop],
        labels=tokens.labels[:stop], unknown=tokens.unknown[:stop], aligned=tokens.aligned,
    )  # fmt: skip


# ---- conversations ---------------------------------------------------------------------------------------------


def _conversation(messages: Sequence[Message], tokenizer: Any) -> Written:
    """The template's text, its own special tokens read as such and those in a content as text; answers learned."""
    names = _special_names(tokenizer)
    stands_for, safe = _hidden(messages, names)
    text, answers = rendered(safe, tokenizer)
    parts = list(_parts(text, stands_for, tokenizer))
    tokens = joined([part for part, _ in parts])
    place = np.concatenate([at for _, at in parts])  # [token, 2]: characters of the text with stand-ins
    learned = np.zeros(len(tokens.ids), dtype=np.bool_)
    for start, end in answers:
        learned |= (place[:, 0] < end) & (start < place[:, 1])
    if not learned.any():
        raise DataError("the chat template writes no answer of these messages")
    return Written(tokens=tokens, learned=learned)


def rendered(messages: Sequence[Message], tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """What the template writes, and the half-open characters of each answer with what ends it.

    Found by writing the first messages alone: they must be how the whole begins, or DataError.
    """
    whole = templated(messages, tokenizer)
    answers: list[tuple[int, int]] = []
    for number, (role, _) in enumerate(messages):
        if role != "assistant":
            continue
        if number == 0:
            raise DataError("the first message is an answer; allowed is an answer to something")
        before = templated(messages[:number], tokenizer, to_answer=True)
        after = templated(messages[: number + 1], tokenizer)
        if not (whole.startswith(after) and after.startswith(before)):
            raise DataError(
                f"the chat template does not write message {number + 1} after the ones before it, so that its answer "
                "cannot be told from the rest; allowed are templates that only add to what stands"
            )
        answers.append((len(before), len(after.rstrip())))
    return whole, answers


def templated(messages: Sequence[Message], tokenizer: Any, *, to_answer: bool = False) -> str:
    """What the template writes of messages, DataError if it refuses; `to_answer` opens the answer's turn."""
    if not getattr(tokenizer, "chat_template", None):
        raise DataError("messages, but this tokenizer has no chat template; allowed are prompt and completion, or text")
    given = [{"role": role, "content": content} for role, content in messages]
    try:
        return str(tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=to_answer))
    except Exception as error:  # a template raises what its author chose, for example where roles do not alternate
        raise DataError(f"the chat template refuses these messages: {' '.join(str(error).split())}") from error


def _special_names(tokenizer: Any) -> list[str]:
    """Texts that the tokenizer would read as a special token, the longest first."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    names = {*map(str, tokenizer.all_special_tokens), *added}
    return sorted(names - {""}, key=lambda name: (-len(name), name))


def _hidden(messages: Sequence[Message], names: Sequence[str]) -> tuple[dict[str, str], list[Message]]:
    """Contents with a private character for each special token's name in them, and what it stands for."""
    free = unused_signs([content for _, content in messages])
    stands_for: dict[str, str] = {}
    safe: list[Message] = []
    for role, content in messages:
        for name in names:
            if name in content:
                sign = next((sign for sign, other in stands_for.items() if other == name), None) or next(free)
                stands_for[sign] = name
                content = content.replace(name, sign)
        safe.append((role, content))
    return stands_for, safe


def _parts(text: str, stands_for: dict[str, str], tokenizer: Any) -> Iterator[tuple[TokenMap, NDArray[np.int64]]]:
    """The text in pieces at its stand-ins: tokens, and the characters of `text` that each stands on [token, 2]."""
    start = 0
    for end in [*(place for place, sign in enumerate(text) if sign in stands_for), len(text)]:
        if end > start:
            tokens = tokenize(tokenizer, text[start:end], add_special_tokens=False, parse_special_tokens=True)
            yield tokens, tokens.offsets + start
        if end < len(text):
            name = tokenize(tokenizer, stands_for[text[end]], add_special_tokens=False)
            yield name, np.tile([end, end + 1], (len(name.ids), 1))
        start = end + 1
