"""What a passage does to an encoder's reading of a word: how far it moves, towards which sense, and what is looked at.

The passage is the first text of a pair, the sentence the second. Any first text moves a reading, since it shifts the
sentence's positions and draws attention: a number counts only beside that of unrelated passages of the same length.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from finetune.errors import DataError, RetrievalError
from finetune.frames import frame_of
from finetune.rag.causes import swaps_for
from finetune.rag.chunks import Chunk, token_counts
from finetune.rag.hits import Hit
from finetune.rag.inject import inject
from finetune.rag.references import SenseReadings, check_encoder
from probe import (
    LoadedModel,
    MappedPrompt,
    PartShares,
    Span,
    batch_for,
    part_shares,
    route_of,
    tokens_of,
)

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]

CONTROLS = 8  # unrelated passages that each passage is held against
_ROOM = 2**20  # tokens, of a model without a longest text
_CANDIDATES = 64  # passages nearest in characters, whose tokens are counted


@dataclass(frozen=True, kw_only=True, eq=False)
class Readings:
    """A word's states in a sentence alone and behind each passage, behind controls, and behind an empty first text.

    State layer 0 is the embedding, k + 1 what attention layer k gives, as probe counts. With senses all cosines are of
    states less the mean over the labelled sentences; without, they are raw, and raw cosines of such models are high
    for everything.
    """

    sentence: str
    target: Span
    layers: tuple[int, ...]  # state layers
    passages: tuple[Chunk, ...]
    controls: Mapping[str, tuple[Chunk, ...]]  # of each passage, by its id
    senses: SenseReadings | None
    alone: Floats  # [layer, dim]
    empty: Floats  # behind an empty first text, [layer, dim]
    behind: Mapping[str, Floats]  # behind each passage and control, by its id, [layer, dim]
    rest: Mapping[str, Floats]  # the same of the sentence's other words, mean over their tokens; NaN without any
    shares: Mapping[str, PartShares]  # of each passage, by its id: the target's rows
    prompts: tuple[MappedPrompt, ...]  # the sentence alone, then behind each passage

    @property
    def centred(self) -> bool:
        """Whether cosines are of states less the mean over labelled sentences."""
        return self.senses is not None

    def moved(self) -> pd.DataFrame:
        """How far the reading moved, 1 − cosine to that of the sentence alone, by passage and layer.

        Beside it: raw, without centring; empty, behind an empty first text; control, mean, lowest and highest over
        the passage's controls (NaN without any).
        """
        empty = self._moved(self.empty)
        rows = []
        for passage in self.passages:
            own, raw = self._moved(self.behind[passage.id]), 1 - _cosine(self.behind[passage.id], self.alone)
            control = self._over_controls(passage, self._moved)
            for place, layer in enumerate(self.layers):
                numbers = (own[place], raw[place], empty[place], *_spread(control[:, place]))
                rows.append((passage.id, layer, *numbers, len(control)))
        names = ["passage", "layer", "moved", "raw", "empty", "control", "lowest", "highest", "controls"]
        return pd.DataFrame(rows, columns=names)

    def towards(self) -> pd.DataFrame:
        """The centred cosine to each sense by passage and layer: alone, behind the passage, behind its controls.

        gain is the passage's less the controls' mean. No rows without senses.
        """
        rows = []
        for passage in self.passages if self.senses else ():
            alone, own = self._to_senses(self.alone), self._to_senses(self.behind[passage.id])  # [sense, layer]
            control = self._over_controls(passage, self._to_senses)
            for place, layer in enumerate(self.layers):
                for which, sense in enumerate(self.senses.names if self.senses else ()):
                    spread = _spread(control[:, which, place])
                    gain = own[which, place] - spread[0]
                    rows.append((passage.id, layer, sense, alone[which, place], own[which, place], *spread, gain))
        names = ["passage", "layer", "sense", "alone", "behind", "control", "lowest", "highest", "gain"]
        return pd.DataFrame(rows, columns=names)

    def along(self, sense: str, other: str) -> pd.DataFrame:
        """How far a passage, against its controls, takes the reading from one sense's centre (0) to another's (1).

        By passage and layer: target, and rest, the same of the sentence's other words on the same axis. Where the rest
        goes as far, the passage colours the whole sentence with its topic, and the word's reading is not what moved.
        """
        names = self.senses.names if self.senses else ()
        if self.senses is None or not {sense, other} <= set(names):
            raise RetrievalError(f"senses {sense} and {other}: allowed are two of {', '.join(names) or 'none'}")
        ends = [self.senses.centroids[names.index(name), list(self.layers)] for name in (sense, other)]
        axis = ends[0] - ends[1]  # [layer, dim]
        rows = []
        for passage in self.passages:
            found = []
            for states in (self.behind, self.rest):
                control = [states[one.id] for one in self.controls[passage.id]]
                moved = states[passage.id] - (np.mean(control, axis=0) if control else np.nan)
                found.append((moved * axis).sum(-1) / (axis * axis).sum(-1))
            rows += [(passage.id, layer, *pair) for layer, *pair in zip(self.layers, *found, strict=True)]
        return pd.DataFrame(rows, columns=["passage", "layer", "target", "rest"])

    def table(self) -> pd.DataFrame:
        """All numbers in one table: passage, layer, measure, alone, behind, empty, control, lowest, highest, controls.

        A measure is "moved", "raw" or "cosine to" a sense; what it has no number for is NaN.
        """
        moved, towards = self.moved(), self.towards()
        raw = moved[["passage", "layer", "controls"]].assign(measure="raw", behind=moved.raw)
        parts = [moved.drop(columns="raw").rename(columns={"moved": "behind"}).assign(measure="moved"), raw]
        if len(towards):
            counts = moved[["passage", "layer", "controls"]]
            named = towards.assign(measure="cosine to " + towards.sense)
            parts.append(named.merge(counts, on=["passage", "layer"]))
        names = ["passage", "layer", "measure", "alone", "behind", "empty", "control", "lowest", "highest", "controls"]
        return pd.concat(parts, ignore_index=True).reindex(columns=names)

    def summary(self, layer: int | None = None) -> pd.DataFrame:
        """A row a passage at one state layer, by default the one that tells the senses best, else the last.

        share: of the target rows' attention, mean over attention layers, heads and rows; even: what even attention
        would give. before and after: the sense with the highest cosine. towards: of the senses to which the reading is
        nearer than alone and than behind every control, that of the largest gain, which stands beside it; "" for none.
        Behind a passage like its n controls each sense passes them all once in n + 1 times: this describes a reading
        and tests nothing.
        """
        at = self.layer_shown(layer)
        moved = self.moved()
        table = moved[moved.layer == at].drop(columns="layer").reset_index(drop=True)
        table.insert(1, "tokens", [self._part(one, "tokens") for one in self.passages])
        table["share"] = [self._part(one, "share") for one in self.passages]
        table["even"] = [self._part(one, "uniform") for one in self.passages]
        if self.senses:
            found = self.towards()
            of = [found[(found.layer == at) & (found.passage == one.id)] for one in self.passages]
            table["before"] = [_highest(one, "alone") for one in of]
            table["after"] = [_highest(one, "behind") for one in of]
            table["towards"], table["gain"] = zip(*(_gained(one) for one in of), strict=True)
        return table

    def head_shares(self) -> pd.DataFrame:
        """The share of the target rows' attention on the passage: passage, attention layer, head, share, even."""
        rows = []
        for passage in self.passages:
            shares = self.shares[passage.id]
            grid, even = shares.head_shares(passage.id), shares.uniform[:, :, shares.part(passage.id)].mean(1)
            for place, layer in enumerate(shares.layers):
                rows += [
                    (passage.id, layer.index, head, grid[place, which], even[place])
                    for which, head in enumerate(shares.heads)
                ]
        return pd.DataFrame(rows, columns=["passage", "attention_layer", "head", "share", "even"])

    def layer_shown(self, layer: int | None = None) -> int:
        """The state layer asked for, by default the one that tells the senses best, else the last."""
        best = self.senses.best_layer if self.senses else self.layers[-1]
        at = layer if layer is not None else best if best in self.layers else self.layers[-1]
        if at not in self.layers:
            raise RetrievalError(f"layer {at}: allowed are the state layers {self.layers[0]} to {self.layers[-1]}")
        return at

    def _centred(self, states: Floats) -> Floats:
        return states - self.senses.centre[list(self.layers)] if self.senses else states

    def _moved(self, states: Floats) -> Floats:
        return 1 - _cosine(self._centred(states), self._centred(self.alone))

    def _to_senses(self, states: Floats) -> Floats:
        assert self.senses is not None
        return _cosine(self._centred(states)[None], self.senses.centroids[:, list(self.layers)])

    def _over_controls(self, passage: Chunk, measure: Callable[[Floats], Floats]) -> Floats:
        """[control, …]; of length 0 where the passage has none."""
        found = [measure(self.behind[one.id]) for one in self.controls[passage.id]]
        return np.stack(found) if found else np.zeros((0, *measure(self.alone).shape))

    def _part(self, passage: Chunk, column: str) -> Any:
        table = self.shares[passage.id].summary()
        return table[(table.kind == "passage") & (table.part == passage.id)][column].iloc[0]


def passage_readings(
    loaded: LoadedModel,
    sentence: str,
    target: str | Span,
    passages: Sequence[Chunk | Hit],
    *,
    layers: Collection[int] | None = None,
    senses: SenseReadings | None = None,
    controls: Mapping[str, Sequence[Chunk]] | None = None,
    pool: Sequence[Chunk] = (),
    progress: Progress | None = None,
) -> Readings:
    """Read a word in a sentence alone and behind each passage; one forward pass a text and one for its shares.

    layers: the state layers to keep, None for all. senses: as `sense_readings` gives them. controls: by a passage's id
    the unrelated passages to hold it against; else `controls_for` chooses them from the pool.
    RetrievalError for a model that is no encoder, a target that the sentence does not hold, no passages, two with one
    id, and a passage that is empty or too long.
    """
    kept = check_readable(loaded, sentence, target, passages, layers=layers)
    chunks = tuple(one.chunk if isinstance(one, Hit) else one for one in passages)
    alone = _prompt(loaded, sentence, target, None)
    assert alone.target is not None
    word = alone.target.cut(alone.tokens.text)
    if controls is None:
        room = (loaded.max_positions or _ROOM) - len(_empty_pair(loaded, alone)[0])
        controls = controls_for(loaded, chunks, pool, target=word, longest=room)
    against = {one.id: tuple(controls.get(one.id, ())) for one in chunks}
    others = {one.id: one for mine in against.values() for one in mine}
    if both := sorted(set(others) & {one.id for one in chunks}):
        raise RetrievalError(f"passage {both[0]} is a control as well; allowed is one that is not read for itself")
    prompts = {one.id: _prompt(loaded, sentence, target, one) for one in (*chunks, *others.values())}
    shares: dict[str, PartShares] = {}
    behind: dict[str, Floats] = {}
    rest: dict[str, Floats] = {}
    for done, (name, prompt) in enumerate(prompts.items(), 1):
        if name not in others:
            shares[name] = part_shares(loaded, prompt, rows="target")
        behind[name], rest[name] = _reading(loaded, prompt)
        if progress:
            progress(done, len(prompts))
    places = list(kept)
    return Readings(
        sentence=sentence,
        target=alone.target,
        layers=kept,
        passages=chunks,
        controls=against,
        senses=senses,
        alone=_reading(loaded, alone)[0][places],
        empty=_behind_nothing(loaded, alone)[places],
        behind={name: states[places] for name, states in behind.items()},
        rest={name: states[places] for name, states in rest.items()},
        shares=shares,
        prompts=(alone, *(prompts[one.id] for one in chunks)),
    )


def check_readable(
    loaded: LoadedModel,
    sentence: str,
    target: str | Span,
    passages: Sequence[Chunk | Hit],
    *,
    layers: Collection[int] | None = None,
) -> tuple[int, ...]:
    """The state layers that are asked for; RetrievalError, before any reading, for all that `passage_readings` refuses.

    Only controls are not looked at, which may not be chosen yet.
    """
    check_encoder(loaded)
    chunks = [one.chunk if isinstance(one, Hit) else one for one in passages]
    _check_passages(chunks)
    for passage in (None, *chunks):
        _prompt(loaded, sentence, target, passage)
    return _kept(layers, len(route_of(loaded).layers) + 1)


def controls_for(
    loaded: LoadedModel,
    passages: Sequence[Chunk],
    pool: Sequence[Chunk],
    *,
    target: str,
    each: int = CONTROLS,
    longest: int = _ROOM,
) -> dict[str, tuple[Chunk, ...]]:
    """Choose for each passage others of about as many tokens: of no document among theirs, without the word itself.

    By `swaps_for`, again until there are `each`, fewer where the pool has fewer of at most `longest` tokens. Passages
    may share controls.
    """
    documents, named = {one.document for one in passages}, {one.id for one in passages}
    free = [
        one
        for one in pool
        if one.document not in documents
        and one.id not in named
        and one.text.strip()
        and target.casefold() not in one.text.casefold()
    ]
    found: dict[str, tuple[Chunk, ...]] = {}
    for passage in passages:
        near = sorted(free, key=lambda one: (abs(len(one.text) - len(passage.text)), one.id))[:_CANDIDATES]
        own, *counted = _counted(loaded, [passage, *near])
        left = [one for one in counted if one.tokens <= longest]
        chosen: list[Chunk] = []
        while left and len(chosen) < each:
            chosen += swaps_for([own], left, answer=target).values()
            left.remove(chosen[-1])
        found[passage.id] = tuple(chosen)
    return found


# ---- what is read ----------------------------------------------------------------------------------------------


def _check_passages(chunks: Sequence[Chunk]) -> None:
    if not chunks:
        raise RetrievalError("no passage is given; allowed are one or more")
    ids = [one.id for one in chunks]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise RetrievalError(f"two passages have the id {twice[0]}; allowed is one of each")


def _prompt(loaded: LoadedModel, sentence: str, target: str | Span, passage: Chunk | None) -> MappedPrompt:
    """The sentence behind a passage, or alone; RetrievalError where the passage cannot stand before it."""
    found = inject(
        loaded.tokenizer, sentence, [] if passage is None else [passage], budget=loaded.max_positions or _ROOM,
        form="pair", target=target, id="alone" if passage is None else f"behind-{passage.id}",
    )  # fmt: skip
    if found.left_out:
        raise RetrievalError(f"passage {found.left_out[0].chunk.id} {found.left_out[0].reason}")
    prompt = found.prompt
    assert prompt.target is not None
    if prompt.tokens.unknown[tokens_of(prompt.target, prompt.tokens)].all():
        word = prompt.target.cut(prompt.tokens.text)
        raise RetrievalError(f"the target {word!r} is unknown to the tokenizer of {loaded.name}")
    return prompt


def _reading(loaded: LoadedModel, prompt: MappedPrompt) -> tuple[Floats, Floats]:
    """States of the target and of the sentence's other words, means over their tokens, [state layer, dim] each."""
    assert prompt.target is not None
    (question,) = prompt.parts_of("question")
    places = tokens_of(prompt.target, prompt.tokens).tolist()
    others = [at for at in range(question.first, question.stop) if at not in places]
    target, rest = _mean_states(loaded, prompt.tokens.ids, prompt.token_types, [places, others])
    return target, rest


def _behind_nothing(loaded: LoadedModel, alone: MappedPrompt) -> Floats:
    """The same where the first text is empty: what the pair's marks and token types do by themselves."""
    assert alone.target is not None
    ids, types, shift = _empty_pair(loaded, alone)
    places = (tokens_of(alone.target, alone.tokens) + shift).tolist()
    return _mean_states(loaded, ids, types, [places])[0]


def _empty_pair(loaded: LoadedModel, alone: MappedPrompt) -> tuple[list[int], list[int] | None, int]:
    """Ids and token types of an empty text and the sentence, and how far its tokens stand behind their places alone."""
    (question,) = alone.parts_of("question")
    try:
        frame = frame_of(loaded.tokenizer)
    except DataError as error:
        raise RetrievalError(f"form pair: {error}") from error
    ids = alone.tokens.ids[question.first : question.stop]
    types = frame.types(0, len(ids))
    shift = len(frame.before) + len(frame.between) - question.first
    return frame.around([], ids).tolist(), None if types is None else types.tolist(), shift


def _mean_states(
    loaded: LoadedModel, ids: Sequence[int], token_types: Sequence[int] | None, groups: Sequence[Sequence[int]]
) -> list[Floats]:
    """The mean state of each group of places, [state layer, dim]; NaN of none."""
    known = getattr(loaded.backbone.config, "type_vocab_size", 0)  # part_shares refuses types that it lacks
    batch = batch_for(loaded, [ids], token_types=[token_types] if token_types is not None and known else None)
    with torch.inference_mode():
        states = loaded.backbone(**batch, output_hidden_states=True).hidden_states
    return [torch.stack([one[0, list(group)].double().mean(0) for one in states]).cpu().numpy() for group in groups]


def _kept(layers: Collection[int] | None, count: int) -> tuple[int, ...]:
    kept = tuple(range(count)) if layers is None else tuple(sorted(set(layers)))
    if not kept or kept[0] < 0 or kept[-1] >= count:
        raise RetrievalError(f"state layers {list(kept)}: allowed are one or more of 0 to {count - 1}")
    return kept


def _counted(loaded: LoadedModel, chunks: Sequence[Chunk]) -> list[Chunk]:
    """The same chunks with the tokens of this model; an index counts those of the model that it is made for."""
    counts = token_counts(loaded.tokenizer, [one.text for one in chunks])
    return [replace(one, tokens=count) for one, count in zip(chunks, counts, strict=True)]


# ---- what is measured ------------------------------------------------------------------------------------------


def _cosine(states: Floats, others: Floats) -> Floats:
    """Cosines along the last axis; NaN where a state is zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        lengths = np.linalg.norm(states, axis=-1) * np.linalg.norm(others, axis=-1)
        found: Floats = (states * others).sum(-1) / lengths
    return found


def _spread(values: Floats) -> tuple[float, float, float]:
    """Mean, lowest and highest; NaN of none."""
    if not len(values):
        return np.nan, np.nan, np.nan
    return float(values.mean()), float(values.min()), float(values.max())


def _highest(table: pd.DataFrame, column: str) -> str:
    return str(table.sense.iloc[int(table[column].to_numpy().argmax())])


def _gained(table: pd.DataFrame) -> tuple[str, float]:
    """Of the senses to which the reading is nearer than alone and than behind any control, that of the largest gain."""
    nearer = table[(table.behind > table.alone) & (table.behind > table.highest)]
    if not len(nearer):
        return "", np.nan
    best = nearer.iloc[int(nearer.gain.to_numpy().argmax())]
    return str(best.sense), float(best.gain)
