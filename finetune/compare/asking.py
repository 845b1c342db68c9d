"""Questions put to one model: both endings scored, with edits of attention where asked, and an answer written."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import exp
from typing import Any

import pandas as pd
import torch

from finetune.domains import Question
from finetune.errors import DataError
from finetune.heads import rows_only
from finetune.questions import Asked, Edit, asked_behind, ending_scores, places_of, word_in_prompt
from finetune.scoring import Step
from finetune.spelling import Speller, mark_ids
from probe import EdgeEdit, HeadEdit, LoadedModel, MappedPrompt, RowRequest, TokenMap, tap

EditsOf = Callable[[Asked, int], list[Edit]]  # of one text, by its place in the batch
STOPS = "\n。！？；，!?;"  # where a written answer is over
_TOKENS = 4096  # of a batch
_ANSWERS = 16  # written at once
_LOGITS = 2**27  # numbers held at once: half a gigabyte


@dataclass(frozen=True, kw_only=True, eq=False)
class Put:
    """A question behind what its arm puts before it."""

    question: Question
    prompt: MappedPrompt  # its last part is the question's own prompt

    @cached_property
    def before(self) -> TokenMap:
        """The tokens before the question's own prompt."""
        part, tokens = self.prompt.parts[-1], self.prompt.tokens
        first = part.first
        return TokenMap(
            text=tokens.text[: part.start], ids=tokens.ids[:first], offsets=tokens.offsets[:first],
            special=tokens.special[:first], labels=tokens.labels[:first], unknown=tokens.unknown[:first],
            aligned=tokens.aligned,
        )  # fmt: skip

    def asked(self, ending: str, speller: Speller) -> Asked:
        """The prompt with an ending, on tokens."""
        return asked_behind(self.before, self.question, ending, speller)

    @property
    def keys(self) -> tuple[int, ...]:
        """The tokens of the pair's word in the question's own prompt; none without one."""
        word, text = word_in_prompt(self.question), self.question.prompt
        return () if word is None else places_of(word, text, self.prompt.tokens, start=self.prompt.parts[-1].start)


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of a question's endings, nats a character."""

    right: float
    wrong: float

    @property
    def margin(self) -> float:
        """Right minus wrong; above 0 the model takes the right ending."""
        return self.right - self.wrong


# ---- edits -----------------------------------------------------------------------------------------------------


def biased(bias: float) -> EditsOf:
    """Edits that add a number to the logits from the ending to the pair's word; minus infinity cuts them."""
    return partial(_edge, factor=exp(bias))


def cut() -> EditsOf:
    """Edits after which the ending cannot see the pair's word in the question's own prompt."""
    return biased(-float("inf"))


def _edge(asked: Asked, item: int, *, factor: float) -> list[Edit]:
    return [asked.edge(item, factor=factor)] if asked.keys else []


def silenced(heads: Mapping[int, Sequence[int]]) -> EditsOf:
    """Edits that silence heads, layer -> heads."""

    def edits(_: Asked, item: int) -> list[Edit]:
        return [
            HeadEdit(heads=frozenset(chosen), layers=frozenset({layer}), item=item)
            for layer, chosen in heads.items()
            if chosen
        ]

    return edits


# ---- endings ---------------------------------------------------------------------------------------------------


def score_endings(
    loaded: LoadedModel, put: Sequence[Put], *, edits: Sequence[EditsOf] = (), step: Step | None = None
) -> list[Scores]:
    """Score both endings of each question, in a model in eval mode; deterministic, and the same in any batch.

    DataError where the model has no room for a prompt with its ending.
    """
    speller = Speller(loaded.tokenizer)
    asked = [one.asked(text, speller) for one in put for text in (one.question.right, one.question.wrong)]
    for one in asked:
        _check_room(loaded, len(one.tokens.ids), one.question)
    found: dict[int, float] = {}
    for places in _batches(asked, vocabulary=len(loaded.tokenizer)):
        batch = [asked[place] for place in places]
        made = [edit for item, one in enumerate(batch) for edits_of in edits for edit in edits_of(one, item)]
        found |= dict(zip(places, ending_scores(loaded.model, batch, edits=made), strict=True))
        if step is not None:
            step(len(found) // 2, len(put))
    return [Scores(found[2 * place], found[2 * place + 1]) for place in range(len(put))]


def _batches(asked: Sequence[Asked], *, vocabulary: int) -> Iterator[list[int]]:
    """Places of texts of like length, so many that neither tokens nor logits are too many."""
    group: list[int] = []
    kept = 0  # tokens from the first that predicts
    for place in sorted(range(len(asked)), key=lambda place: len(asked[place].tokens.ids)):
        length = len(asked[place].tokens.ids)
        first = min(asked[other].readers[0] for other in (*group, place))
        kept = length - first
        texts = len(group) + 1
        if group and (texts * length > _TOKENS or texts * kept * vocabulary > _LOGITS):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _check_room(loaded: LoadedModel, length: int, question: Question) -> None:
    if loaded.max_positions is not None and length > loaded.max_positions:
        raise DataError(
            f"question {question.id}: prompt and answer have {length} tokens, and {loaded.name} has room for "
            f"{loaded.max_positions}: a smaller budget of what stands before it (passages.budget)"
        )


# ---- maps ------------------------------------------------------------------------------------------------------


ANSWER_EDGE = "answer → word"
PAIR_EDGE = "later word → earlier word"
MAP_COLUMNS = ("item", "role", "layer", "head", "value")  # of one arm and seed


def attention_maps(
    loaded: LoadedModel, put: Sequence[Put], *, edits: Sequence[EditsOf] = (), step: Step | None = None
) -> pd.DataFrame:
    """Attention on the pairs' words in prompt and right ending, whatever stands before them: MAP_COLUMNS.

    role: the rows that give the right ending, on the pair's word in the prompt; the rows of the pair's later word on
    its earlier one. value: summed over the key's tokens, mean over the rows, after the edits. A question without such
    words has no rows.
    """
    speller, rows = Speller(loaded.tokenizer), list[tuple[str, str, int, int, float]]()
    for done, one in enumerate(put, 1):
        asked = one.asked(one.question.right, speller)
        if edges := edges_of(asked):
            rows += _mapped(loaded, asked, edges, edits=[edit for edits_of in edits for edit in edits_of(asked, 0)])
        if step is not None:
            step(done, len(put))
    return pd.DataFrame(rows, columns=list(MAP_COLUMNS))


def edges_of(asked: Asked) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The edges that are mapped, by role: the tokens of the rows, and of what they look at."""
    found = {}
    if asked.keys:
        edge = asked.edge(0)
        found[ANSWER_EDGE] = (edge.query, edge.key)
    text = asked.question.prompt + asked.ending
    words = sorted((text.find(word), word) for word in asked.question.pair or () if word in text)
    if len(words) == 2:
        (_, earlier), (start, later) = words
        key = places_of(earlier, text[:start], asked.tokens, start=asked.start)
        query = places_of(later, text, asked.tokens, start=asked.start)
        query = tuple(place for place in query if place not in key)
        if query and key:
            found[PAIR_EDGE] = (query, key)
    return found


def _mapped(
    loaded: LoadedModel,
    asked: Asked,
    edges: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
    *,
    edits: Sequence[Edit],
) -> Iterator[tuple[str, str, int, int, float]]:
    queries = sorted({place for query, _ in edges.values() for place in query})
    request = RowRequest([queries], edits=edits)
    given = torch.tensor([asked.tokens.ids], device=loaded.device)
    with torch.inference_mode(), tap(loaded.model, request):
        loaded.model(input_ids=given, **rows_only(loaded.model))
    for layer, rows in request.rows.items():
        for role, (query, key) in edges.items():
            own = rows[0][:, [queries.index(place) for place in query]][..., list(key)]  # [head, query, key]
            for head, value in enumerate(own.sum(-1).double().mean(-1).tolist()):
                yield asked.question.id, role, layer.index, head, value


# ---- answers ---------------------------------------------------------------------------------------------------


def stops_of(questions: Sequence[Question]) -> str:
    """The signs at which an answer is over: those of STOPS that no question's ending holds."""
    endings = "".join(question.right + question.wrong for question in questions)
    return "".join(sign for sign in STOPS if sign not in endings)


def write_answers(
    loaded: LoadedModel,
    put: Sequence[Put],
    *,
    stops: str,
    max_new_tokens: int,
    bias: float = 0.0,
    step: Step | None = None,
) -> list[str]:
    """Let a model go on from each prompt, greedily, until a stop behind some text, an end token, or so many tokens.

    bias: added to the logits from what is written to the pair's word, as in `biased`; the text is then read anew for
    each token. Decoding is the same with and without. DataError where the model has no room.
    """
    for one in put:
        _check_room(loaded, len(one.prompt.tokens.ids) + max_new_tokens, one.question)
    writing = _Writing(loaded=loaded, stops=stops, most=max_new_tokens)
    edited = [place for place, one in enumerate(put) if bias and one.keys]
    found = dict[int, str]()
    for places in (*([place] for place in edited), *_alike(put, without=edited)):
        if places[0] in edited:
            new = [writing.biased(put[places[0]], bias)]
        else:
            new = writing.cached([put[place].prompt.tokens.ids for place in places])
        found |= dict(zip(places, map(writing.answer, new), strict=True))
        if step is not None:
            step(len(found), len(put))
    return [found[place] for place in range(len(put))]


def _alike(put: Sequence[Put], *, without: Sequence[int]) -> Iterator[list[int]]:
    """Places of prompts of like length, so many that their tokens are not too many."""
    lengths = {place: len(one.prompt.tokens.ids) for place, one in enumerate(put) if place not in without}
    group: list[int] = []
    for place in sorted(lengths, key=lengths.__getitem__):
        if group and (len(group) == _ANSWERS or (len(group) + 1) * lengths[place] > _TOKENS):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


@dataclass(frozen=True, kw_only=True, eq=False)
class _Writing:
    """How a model writes, and where its answer is over."""

    loaded: LoadedModel
    stops: str
    most: int  # tokens

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text: no answer holds one."""
        given = getattr(getattr(self.loaded.model, "generation_config", None), "eos_token_id", None)
        own = given if isinstance(given, list | tuple) else [] if given is None else [given]
        return mark_ids(self.loaded.tokenizer) | frozenset(map(int, own))

    def text(self, ids: Sequence[int]) -> str:
        """What was written, without white space before it."""
        decode = self.loaded.tokenizer.decode
        return str(decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)).lstrip()

    def is_over(self, new: Sequence[int]) -> bool:
        """Whether nothing is to follow the tokens written so far."""
        if len(new) == self.most or new[-1] in self.ends:
            return True
        text = self.text(new)
        return any(stop in text for stop in self.stops)

    def answer(self, new: Sequence[int]) -> str:
        """What counts of the tokens written."""
        text = self.text(list(itertools.takewhile(lambda token: token not in self.ends, new)))
        return text[: min((text.index(stop) for stop in self.stops if stop in text), default=len(text))].strip()

    def cached(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """What the model itself writes after each prompt; behind the end of one stands what fills the batch."""
        from transformers import StoppingCriteriaList

        width, pad = max(map(len, prompts)), self.loaded.tokenizer.pad_token_id or 0
        device = self.loaded.device
        ids = torch.tensor([[*[pad] * (width - len(prompt)), *prompt] for prompt in prompts], device=device)
        mask = torch.tensor([[place >= width - len(prompt) for place in range(width)] for prompt in prompts]).long()

        def stop(read: Any, scores: Any, **_: Any) -> Any:
            over = [self.is_over(new) for new in read[:, width:].tolist()]
            return torch.tensor(over, dtype=torch.bool, device=read.device)

        with torch.inference_mode():
            whole = self.loaded.model.generate(
                input_ids=ids, attention_mask=mask.to(device), do_sample=False, num_beams=1,
                max_new_tokens=self.most, eos_token_id=sorted(self.ends), pad_token_id=pad,
                cache_implementation="dynamic", disable_compile=True, return_dict_in_generate=False,
                stopping_criteria=StoppingCriteriaList([stop]),
            )  # fmt: skip
        found: list[list[int]] = whole[:, width:].tolist()
        return found

    def biased(self, put: Put, bias: float) -> list[int]:
        """What the model writes while every position that predicts a new token is biased."""
        length, new = len(put.prompt.tokens.ids), list[int]()
        while not new or not self.is_over(new):
            ids = [*put.prompt.tokens.ids, *new]
            readers = tuple(range(length - 1, len(ids)))
            query = tuple(place for place in readers if place not in put.keys) or readers
            edit = EdgeEdit(query=query, key=put.keys, factor=exp(bias))
            given = torch.tensor([ids], device=self.loaded.device)
            with torch.inference_mode(), tap(self.loaded.model, RowRequest([[0]], layers=(), edits=[edit])):
                logits = self.loaded.model(input_ids=given, **rows_only(self.loaded.model)).logits
            new.append(int(logits[0, -1].argmax()))
        return new
