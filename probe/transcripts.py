"""Prompt and answer as one row of tokens: from text, messages or ids, written by this model or made elsewhere."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from probe.anatomy import base_of
from probe.chat import Message, chat_text
from probe.errors import ModelError, SpanError
from probe.given import one_of, shown, whole_numbers
from probe.models import LoadedModel
from probe.spans import TokenMap, special_ids, tokenize, unknown_id

Prompt = str | Sequence[int] | Sequence[Message]
Boundary = Literal["separate", "joint"]
AnswerBy = Literal["generated", "ids", "separate", "joint"]

_CONTEXT = 8  # tokens decoded before the answer, so that its first space is not taken for the start of a text
_LONGEST_CHARACTER = 4  # bytes, so tokens, of one character in UTF-8


@dataclass(frozen=True, kw_only=True, eq=False)
class Transcript:
    """What a decoder reads: prompt, then answer; an encoder-decoder reads its prompt apart, in `source`."""

    tokens: TokenMap
    prompt_length: int
    """Tokens before the answer; in an encoder-decoder the one start token."""
    answer_by: AnswerBy
    """How the answer became tokens: generated, given as ids, tokenised apart from the prompt or together with it."""
    source: TokenMap | None = None

    @property
    def answer_ids(self) -> tuple[int, ...]:
        """The answer's token ids."""
        return self.tokens.ids[self.prompt_length :]

    @property
    def answer_text(self) -> str:
        """The answer as the text that its tokens spell after the prompt, special tokens left out."""
        ends = self.tokens.offsets[: self.prompt_length, 1]
        return self.tokens.text[int(ends.max(initial=0)) :]


def opened(loaded: LoadedModel, prompt: Prompt) -> Transcript:
    """A transcript without an answer yet.

    A text gets the tokenizer's special tokens, but a decoder's no end token, since the answer follows; messages go
    through the chat template, which opens the answer's turn; ids are taken as they are. Raises ModelError for an
    encoder and SpanError for ids that the model or its tokenizer does not have.
    """
    if loaded.kind == "encoder":
        raise ModelError(
            f"{loaded.name} is an encoder, it writes no answers; allowed are decoders and encoder-decoders"
        )
    tokens = _prompt_tokens(loaded, prompt)
    if loaded.kind == "decoder":
        return Transcript(tokens=tokens, prompt_length=len(tokens.ids), answer_by="generated")
    return Transcript(tokens=_start_token(loaded), prompt_length=1, answer_by="generated", source=tokens)


def answered(loaded: LoadedModel, transcript: Transcript, ids: Sequence[int], *, by: AnswerBy) -> Transcript:
    """The transcript with an answer's ids at its end."""
    tokens = _appended(loaded.tokenizer, transcript.tokens, ids)
    return Transcript(tokens=tokens, prompt_length=len(transcript.tokens.ids), answer_by=by, source=transcript.source)


def transcript_of(
    loaded: LoadedModel, prompt: Prompt, answer: str | Sequence[int], *, boundary: Boundary = "separate"
) -> Transcript:
    """Prompt and answer as they were, for example from another program's log.

    An answer given as ids stays as it is. A text is tokenised apart from the prompt ("separate": what a model that
    stopped after the prompt went on from; SentencePiece may put a space first), or together with it ("joint": what a
    training on whole texts saw), which SpanError refuses where a token would carry characters of both.
    """
    one_of(boundary, "boundary", get_args(Boundary), error=SpanError)
    if not isinstance(answer, str):
        if boundary == "joint":
            raise SpanError('boundary "joint" needs an answer of text: ids are tokens already; leave the boundary out')
        ids = _ids_of(answer, "the answer", allowed="a text or a list of token ids")
        check_ids(loaded, ids, what="answer")
        return answered(loaded, opened(loaded, prompt), ids, by="ids")
    if not answer:
        raise SpanError("the answer is empty; allowed is a text or token ids, at least one")
    if boundary == "joint":
        return _joint(loaded, prompt, answer)
    ids = tokenize(loaded.tokenizer, answer, add_special_tokens=False).ids
    return answered(loaded, opened(loaded, prompt), ids, by="separate")


def check_ids(loaded: LoadedModel, ids: Sequence[int], *, what: str) -> None:
    """Raises SpanError unless the ids are at least one, each with an embedding in the model and a token's name."""
    if not ids:
        raise SpanError(f"the {what} is empty; allowed is a text or a list of token ids, at least one")
    rows = int(loaded.backbone.get_input_embeddings().weight.shape[0])
    wrong = [(place, token) for place, token in enumerate(ids) if not 0 <= token < rows]
    if wrong:
        place, token = wrong[0]
        raise SpanError(f"the {what}'s token {place} is {token}, but {loaded.name} has ids 0 to {rows - 1}")
    distinct = sorted(set(ids))
    names = dict(zip(distinct, _names(loaded.tokenizer, distinct), strict=True))
    for place, token in enumerate(ids):
        if not names[token]:
            raise SpanError(
                f"the {what}'s token {place} is {token}, which the tokenizer of {loaded.name} cannot decode"
            )


def _prompt_tokens(loaded: LoadedModel, prompt: Prompt) -> TokenMap:
    if isinstance(prompt, str):
        return _without_end(loaded, tokenize(loaded.tokenizer, prompt))
    if _is_chat(prompt):
        text = chat_text(loaded, cast("Sequence[Message]", prompt), to_answer=True)
        return tokenize(loaded.tokenizer, text, add_special_tokens=False, parse_special_tokens=True)
    ids = _ids_of(prompt, "the prompt", allowed="a text, chat messages, or a list of token ids")
    check_ids(loaded, ids, what="prompt")
    return _appended(loaded.tokenizer, _no_tokens(), ids)


def _ids_of(given: object, what: str, *, allowed: str) -> tuple[int, ...]:
    """The token ids of a list, an array or a tensor of one axis; a set has no order. SpanError."""
    if (
        isinstance(given, str | bytes | Mapping | Set)
        or not isinstance(given, Iterable)
        or getattr(given, "ndim", 1) != 1
    ):
        raise SpanError(f"{what} is {shown(given)}; allowed is {allowed}")
    return whole_numbers(given, what, error=SpanError)


def _without_end(loaded: LoadedModel, tokens: TokenMap) -> TokenMap:
    """Leave out what a decoder's tokenizer puts after a text: an answer after the end token is another text's."""
    last = len(tokens.ids)
    while loaded.kind == "decoder" and last > 1 and tokens.special[last - 1]:
        last -= 1
    return TokenMap(
        text=tokens.text,
        ids=tokens.ids[:last],
        offsets=tokens.offsets[:last],
        special=tokens.special[:last],
        labels=tokens.labels[:last],
        unknown=tokens.unknown[:last],
        aligned=tokens.aligned,
    )


def _joint(loaded: LoadedModel, prompt: Prompt, answer: str) -> Transcript:
    if loaded.kind == "encoder-decoder" or not (isinstance(prompt, str) or _is_chat(prompt)):
        raise SpanError('boundary "joint" needs a decoder and a prompt of text or messages; allowed here is separate')
    before = opened(loaded, prompt)
    edge = len(before.tokens.text)
    whole = before.tokens.text + answer
    if isinstance(prompt, str):
        tokens = _without_end(loaded, tokenize(loaded.tokenizer, whole))
    else:
        tokens = tokenize(loaded.tokenizer, whole, add_special_tokens=False, parse_special_tokens=True)
    first = int(np.argmax(tokens.offsets[:, 1] > edge))
    if tokens.offsets[first, 0] < edge:
        raise SpanError(
            f"the token {tokens.labels[first]!r} carries the prompt's end and the answer's start: "
            'take boundary "separate"'
        )
    return Transcript(tokens=tokens, prompt_length=first, answer_by="joint")


def _is_chat(prompt: Prompt) -> bool:
    return isinstance(prompt, list | tuple) and bool(prompt) and all(isinstance(part, Mapping) for part in prompt)


def _start_token(loaded: LoadedModel) -> TokenMap:
    model = base_of(loaded.model)
    for config in (getattr(model, "generation_config", None), model.config):
        start = getattr(config, "decoder_start_token_id", None)
        if isinstance(start, int):
            return _appended(loaded.tokenizer, _no_tokens(), [start], all_special=True)
    raise ModelError(f"{loaded.name}: its configuration names no single decoder_start_token_id to start an answer from")


def _no_tokens() -> TokenMap:
    none = np.zeros(0, dtype=np.bool_)
    offsets = np.zeros((0, 2), dtype=np.int64)
    return TokenMap(text="", ids=(), offsets=offsets, special=none, labels=(), unknown=none, aligned="search")


def _appended(tokenizer: Any, before: TokenMap, ids: Sequence[int], *, all_special: bool = False) -> TokenMap:
    """A token map with more tokens, whose text is what they decode to after it."""
    special = np.isin(np.array(ids), special_ids(tokenizer)) | all_special
    text, offsets = _spelled(tokenizer, ids, special, before=before.ids)
    labels = [
        (name or f"<{token}>") if hidden else text[start:end]
        for token, name, hidden, (start, end) in zip(
            ids, _names(tokenizer, ids), special.tolist(), offsets.tolist(), strict=True
        )
    ]
    return TokenMap(
        text=before.text + text,
        ids=(*before.ids, *map(int, ids)),
        offsets=np.concatenate([before.offsets, offsets + len(before.text)]),
        special=np.concatenate([before.special, special]),
        labels=(*before.labels, *labels),
        unknown=np.concatenate([before.unknown, ~special & (np.array(ids) == unknown_id(tokenizer))]),
        aligned=before.aligned,
    )


def _spelled(
    tokenizer: Any, ids: Sequence[int], special: NDArray[np.bool_], *, before: Sequence[int]
) -> tuple[str, NDArray[np.int64]]:
    """The text of ids that follow `before`, and each token's characters in it: [token, 2].

    Decoded as a stream: tokens wait until they spell whole characters and share the interval of those. What never
    becomes a character (a byte alone) is given up after as many tokens as the longest has bytes.
    """
    known = [*before[-_CONTEXT:], *ids]
    shift = len(known) - len(ids)
    start, read, text = 0, shift, ""  # known[start:read] stands in the text already
    offsets = np.zeros((len(ids), 2), dtype=np.int64)
    for place in range(shift, len(known)):
        hidden = bool(special[place - shift])
        end = place if hidden else place + 1
        piece = _decoded(tokenizer, known[start:end])[len(_decoded(tokenizer, known[start:read])) :]
        is_last = place + 1 == len(known)
        if piece.endswith("\ufffd") and not (hidden or is_last) and end - read < _LONGEST_CHARACTER:
            continue
        offsets[read - shift : end - shift] = len(text), len(text) + len(piece)
        text += piece
        offsets[end - shift : place + 1 - shift] = len(text)
        # A context that spells nothing would let the decoder take the next space for the start of a text.
        start, read = (read if piece else start), place + 1
    return text, offsets


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)) if ids else ""


def _names(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The vocabulary's name of each id, empty where it has none."""
    names: list[str] = []
    for token in ids:
        try:
            names.append(tokenizer.convert_ids_to_tokens(int(token)) or "")
        except (IndexError, OverflowError, ValueError, TypeError):  # slow tokenizers look into lists
            names.append("")
    return names
