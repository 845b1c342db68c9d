"""What a target reads where no cue is marked: cut the edge to each word it can read, and rank the words by effect."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr

from probe.capture import capture_prepared
from probe.captures import Capture, CaptureOptions, Prepared
from probe.cases import Case
from probe.edits import EdgeEdit, Stack
from probe.errors import TapError
from probe.experiments.causes import EditedRun, last_states, moved
from probe.measures.focus import merged_row
from probe.models import LoadedModel
from probe.routes import Route
from probe.spans import Span, words_of

MOST_CASES = 48
MOST_WORDS = 64
"""Of a longer text the words with the most attention mass are cut, and it is said how many were left out."""
FEWEST_FOR_RANKS = 3
"""Two words are ranked alike or the other way round, which says nothing."""

Progress = Callable[[int, int], None]  # done, total


@dataclass(frozen=True, kw_only=True)
class ReadWord:
    """One word that the target can read.

    effect: how far the target's last state moves, in its own length, when the edge to the word is cut in every layer
    and head; NaN where the state has no length. mass: attention from target to word, mean over layers and heads.
    Ranks start at 1 for the largest, ties share the mean rank; None for what is special.
    """

    label: str  # a slice of the text, or the name of a token that carries none
    span: Span | None  # None for a token that carries no text
    special: bool  # listed, but not ranked among the words
    distance: int  # in words from the target, 1 where they touch
    effect: float
    mass: float
    effect_rank: float | None
    mass_rank: float | None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One case without cues: what its target reads, in the order of the text."""

    case: Case
    words: tuple[ReadWord, ...]
    left_out: int  # words that it can read but whose edge was not cut
    correlation: float  # Spearman's, effect with mass over the ranked words; NaN where it is not defined

    @property
    def ranked(self) -> tuple[ReadWord, ...]:
        """The words of the text, largest effect first; empty where the target can read none."""
        words = [word for word in self.words if not word.special]
        return tuple(sorted(words, key=lambda word: (-word.effect, -word.mass)))

    @property
    def largest_effect(self) -> ReadWord | None:
        """The word whose cut edge moves the target most, or None where none moves it."""
        return next((word for word in self.ranked if word.effect > 0), None)

    @property
    def largest_mass(self) -> ReadWord | None:
        """The word with the most attention mass, or None where there is no word to read."""
        return max(self.ranked, key=lambda word: word.mass, default=None)

    @property
    def special_first(self) -> bool:
        """Whether a special token's cut edge moves the target more than that of any word."""
        most = max((word.effect for word in self.words if word.special), default=0.0)
        return self.largest_effect is not None and most > self.largest_effect.effect


@dataclass(frozen=True, kw_only=True)
class _Edge:
    """A piece of the text that the target can read."""

    tokens: tuple[int, ...]
    label: str
    span: Span | None
    distance: int
    mass: float


def word_readings(
    loaded: LoadedModel,
    route: Route,
    items: Sequence[Prepared],
    *,
    most_cases: int = MOST_CASES,
    most_words: int = MOST_WORDS,
    batch_tokens: int = 2048,
    memory_budget: int | None = None,
    progress: Progress | None = None,
) -> tuple[Reading, ...]:
    """Cut target → word in every layer, for each word that the target can read, in cases without cues.

    At most `most_cases` cases, spread over the set, and `most_words` words of each. A word is a smallest piece that is
    a slice of the text; what the mask hides in every layer cannot be read. An encoder-decoder is judged in its encoder.
    Raises TapError on the eager path.
    """
    if route.path != "tap":
        raise TapError(f"{loaded.name}: edges cannot be cut on the eager path ({route.reason})")
    chosen = [items[place] for place in cases_to_read(items, most_cases)]
    stack: Stack = "decoder" if loaded.kind == "decoder" else "encoder"
    options = CaptureOptions(states=False, batch_tokens=batch_tokens, memory_budget=memory_budget)
    edges, left_out = [], []
    for item, one in zip(chosen, capture_prepared(loaded, chosen, options=options, route=route), strict=True):
        kept, dropped = _most_attended(_edges_of(loaded, item, one, stack=stack), most_words)
        edges.append(kept)
        left_out.append(dropped)
    effects = _effects(loaded, chosen, edges, stack=stack, batch_tokens=batch_tokens, progress=progress)
    return tuple(
        _reading(item.case, own, found, left_out=dropped)
        for item, own, found, dropped in zip(chosen, edges, effects, left_out, strict=True)
    )


def cases_to_read(items: Sequence[Prepared], most: int) -> list[int]:
    """Places of at most `most` cases without cues, evenly over the set, so that no part of it is favoured."""
    places = [place for place, item in enumerate(items) if not item.cues]
    if len(places) <= most:
        return places
    return [places[int(index)] for index in np.linspace(0, len(places) - 1, most)]


def reading_frame(readings: Sequence[Reading], *, model: str) -> pd.DataFrame:
    """The readings table: one row a word whose edge was cut."""
    rows = [(reading.case, word) for reading in readings for word in reading.words]
    frame = pd.DataFrame(
        {
            "model": model,
            "case": [case.id for case, _ in rows],
            "text": [case.text for case, _ in rows],
            "target": [case.target.cut(case.text) for case, _ in rows],
            "word": [word.label for _, word in rows],
            "start": [word.span and word.span.start for _, word in rows],
            "end": [word.span and word.span.end for _, word in rows],
            "special": [word.special for _, word in rows],
            "distance": [word.distance for _, word in rows],
            "effect": [word.effect for _, word in rows],
            "mass": [word.mass for _, word in rows],
            "rank by effect": [word.effect_rank for _, word in rows],
            "rank by mass": [word.mass_rank for _, word in rows],
        }
    )
    return frame.astype({"start": "Int64", "end": "Int64", "rank by effect": float, "rank by mass": float})


def _edges_of(loaded: LoadedModel, item: Prepared, one: Capture, *, stack: Stack) -> list[_Edge]:
    layers = [place for place, layer in enumerate(one.layers) if layer.stack == stack]
    row = merged_row(one, item.target)[layers].mean(axis=(0, 1), dtype=np.float64)  # [key]
    pieces = [tuple(int(token) for token in piece) for piece in words_of(item.tokens)]
    own = [place for place, piece in enumerate(pieces) if {*piece} & {*item.target}]
    edges = []
    for place, piece in enumerate(pieces):
        mass = float(row[list(piece)].sum())
        # A masked key has a weight of exactly 0, whether causality or a window hides it.
        if place in own or mass == 0:
            continue
        label, span = _name(loaded, item, piece)
        distance = min(abs(place - other) for other in own)
        edges.append(_Edge(tokens=piece, label=label, span=span, distance=distance, mass=mass))
    return edges


def _name(loaded: LoadedModel, item: Prepared, piece: tuple[int, ...]) -> tuple[str, Span | None]:
    """A piece's slice of the text; where it carries no text, its name in the vocabulary."""
    tokens = item.tokens
    start, end = int(tokens.offsets[piece, 0].min()), int(tokens.offsets[piece, 1].max())
    if start == end or tokens.special[list(piece)].any():
        return "".join(loaded.tokenizer.convert_ids_to_tokens([tokens.ids[token] for token in piece])), None
    span = Span(start, end)
    return span.cut(tokens.text), span


def _most_attended(edges: list[_Edge], most: int) -> tuple[list[_Edge], int]:
    """All special tokens and the `most` words with the largest mass, in the order of the text; how many are left."""
    words = sorted((edge for edge in edges if edge.span), key=lambda edge: (-edge.mass, edge.tokens))
    dropped = {edge.tokens for edge in words[most:]}
    return [edge for edge in edges if edge.tokens not in dropped], len(dropped)


def _effects(
    loaded: LoadedModel,
    items: Sequence[Prepared],
    edges: Sequence[Sequence[_Edge]],
    *,
    stack: Stack,
    batch_tokens: int,
    progress: Progress | None,
) -> list[list[float]]:
    """Effects of each case's edges: one run a case as it is, and one for each edge cut."""
    runs = []
    for item, own in zip(items, edges, strict=True):
        runs.append(EditedRun(item=item, word=item.target))
        for edge in own:
            cut = EdgeEdit(query=item.target, key=edge.tokens, stacks=frozenset({stack}))
            runs.append(EditedRun(item=item, word=item.target, edits=(cut,)))
    states = iter(last_states(loaded, runs, batch_tokens=batch_tokens, progress=progress))
    effects = []
    for own in edges:
        plain = next(states)
        effects.append([moved(next(states), plain) for _ in own])
    return effects


def _reading(case: Case, edges: Sequence[_Edge], effects: Sequence[float], *, left_out: int) -> Reading:
    ranked = [place for place, edge in enumerate(edges) if edge.span]
    effect = np.array([effects[place] for place in ranked])
    mass = np.array([edges[place].mass for place in ranked])
    ranks = dict(zip(ranked, zip(rankdata(-effect), rankdata(-mass), strict=True), strict=True))
    words = []
    for place, edge in enumerate(edges):
        by_effect, by_mass = (float(rank) for rank in ranks[place]) if place in ranks else (None, None)
        words.append(
            ReadWord(
                label=edge.label, span=edge.span, special=edge.span is None, distance=edge.distance,
                effect=float(effects[place]), mass=edge.mass, effect_rank=by_effect, mass_rank=by_mass,
            )
        )  # fmt: skip
    return Reading(case=case, words=tuple(words), left_out=left_out, correlation=_correlation(effect, mass))


def _correlation(effect: NDArray[np.float64], mass: NDArray[np.float64]) -> float:
    """Spearman's rank correlation; NaN for fewer than three words, or where all have one effect or one mass."""
    if len(effect) < FEWEST_FOR_RANKS or np.ptp(effect) == 0 or np.ptp(mass) == 0:
        return float("nan")
    return float(spearmanr(effect, mass).statistic)
