"""How much a model attends between two words, against what it gives any word at the same distance in the same texts.

mass: mean over the query word's tokens of the sum over the key word's tokens, mean over the chosen layers and heads.
expected: the same sum over what a token of any other content word gets at that distance, mean over all content words
of the same texts. The first token takes no part: it is the sink of most models.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finetune.heads import chosen_layers
from finetune.words import Segmenter
from probe import CijingError, LoadedModel, RowRequest, Span, TokenMap, attached, batch_for, tokenize, tokens_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Pair = tuple[str, str]  # query word, key word
_TOKENS_A_BATCH = 4096
_NEAR = 8  # distances up to this many tokens have a bin each, then bins grow by a quarter
_BINS = 64


@dataclass(frozen=True, kw_only=True)
class BaseMass:
    """What a model's query word gives its key word, over the places that were measured."""

    places: int
    mass: float
    expected: float

    @property
    def deficit(self) -> float:
        """The share of the expected mass that is missing; negative where the model attends more than expected."""
        return 1.0 - self.mass / self.expected


@dataclass(frozen=True, kw_only=True, eq=False)
class _Window:
    """A text with the tokens of its content words."""

    tokens: TokenMap
    words: tuple[tuple[str, Ints], ...]  # word, its tokens
    owner: Ints  # [token], which of the words; -1 none


@dataclass(kw_only=True)
class _Sums:
    """Mass by distance, and by pair the places that hold it."""

    mass: Floats  # [bin]
    tokens: Floats  # [bin]
    places: dict[Pair, list[tuple[float, Floats]]]  # mass, and how often each bin is in its expectation


def base_masses(
    loaded: LoadedModel, texts: Mapping[str, Sequence[Pair]], segmenter: Segmenter, *, layers: Sequence[int],
    heads: Sequence[int] | None = None, longest: int = 512, progress: Callable[[str], None] | None = None,
) -> dict[Pair, BaseMass]:  # fmt: skip
    """Measure the pairs of each text at every place where both words stand and the query can see the key.

    A causal model's query is the later word: a pair of a text where its key comes later is not met there. Texts longer
    than `longest` tokens, or than the model's positions, are left out; pairs without a place are not in what is given.
    """
    limit = min(longest, loaded.max_positions or longest)
    found = {}
    for text, pairs in texts.items():
        window = _window(loaded, text, segmenter, limit, wanted={word for pair in pairs for word in pair})
        if window is not None:
            found[text] = window
    sums = _Sums(mass=np.zeros(2 * _BINS), tokens=np.zeros(2 * _BINS), places={})
    done = 0
    with torch.inference_mode(), attached(loaded.backbone):
        for batch in _batches(found):
            for text, rows in zip(batch, _rows(loaded, [found[text] for text in batch], layers, heads), strict=True):
                _add(sums, found[text], rows, set(texts[text]), causal=loaded.kind == "decoder")
            done += len(batch)
            if progress:
                progress(f"base model read {done:,} of {len(found):,} texts")
    mean = sums.mass / np.where(sums.tokens > 0, sums.tokens, 1.0)
    return {
        pair: BaseMass(
            places=len(places),
            mass=float(np.mean([mass for mass, _ in places])),
            expected=float(np.mean([share @ mean for _, share in places])),
        )
        for pair, places in sums.places.items()
    }


def measured_layers(loaded: LoadedModel, asked: Any) -> tuple[int, ...]:
    """The layers that a configuration's attention.layers names, in this model."""
    return chosen_layers(asked, int(loaded.backbone.config.get_text_config().num_hidden_layers))


def _window(loaded: LoadedModel, text: str, segmenter: Segmenter, limit: int, *, wanted: set[str]) -> _Window | None:
    """The text with its words' tokens, each token to one word, wanted words first.

    None where the text is too long, or its tokens cannot be found in it.
    """
    try:
        tokens = tokenize(loaded.tokenizer, text)
    except CijingError:
        return None
    if len(tokens.ids) > limit:
        return None
    words: list[tuple[str, Ints]] = []
    owner = np.full(len(tokens.ids), -1, dtype=np.int64)
    for word in sorted(segmenter.words(text), key=lambda one: one.text not in wanted):
        own = _own_tokens(Span(word.start, word.end), tokens)
        if len(own) and (owner[own] < 0).all() and own[0] > 0:
            owner[own] = len(words)
            words.append((word.text, own))
    return _Window(tokens=tokens, words=tuple(words), owner=owner) if len(words) > 1 else None


def _own_tokens(span: Span, tokens: TokenMap) -> Ints:
    try:
        return tokens_of(span, tokens)
    except CijingError:  # a word that the tokenizer gives no token
        return np.empty(0, dtype=np.int64)


def _batches(windows: Mapping[str, _Window]) -> Iterator[list[str]]:
    """Texts of about one length together."""
    batch: list[str] = []
    for text in sorted(windows, key=lambda one: (len(windows[one].tokens.ids), one)):
        if batch and (len(batch) + 1) * len(windows[text].tokens.ids) > _TOKENS_A_BATCH:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def _rows(
    loaded: LoadedModel, windows: Sequence[_Window], layers: Sequence[int], heads: Sequence[int] | None
) -> Iterator[Floats]:
    """For each text the mean attention over layers and heads, [query of a word, key]; queries ascending."""
    queries = [np.flatnonzero(window.owner >= 0).tolist() for window in windows]
    # One stack: layers of the same number in the decoder and across it would be averaged in.
    request = RowRequest(
        queries, layers=layers, heads=heads, stacks=("encoder",) if loaded.kind == "encoder-decoder" else None
    )
    loaded.backbone(**batch_for(loaded, [window.tokens.ids for window in windows]), rows=request, use_cache=False)
    mean = torch.stack([rows.mean(1) for rows in request.rows.values()]).mean(0).double().cpu().numpy()
    for place, (window, asked) in enumerate(zip(windows, queries, strict=True)):
        yield mean[place, : len(asked), : len(window.tokens.ids)]


def _add(sums: _Sums, window: _Window, rows: Floats, pairs: set[Pair], *, causal: bool) -> None:
    """Add one text's masses by distance, and those of its pairs. rows [query of a word, key]."""
    queries = np.flatnonzero(window.owner >= 0)
    distance = queries[:, None] - np.arange(len(window.owner))[None, :]  # [query, key]
    bins = _bins(distance)
    counts = (window.owner >= 0)[None, :] & (window.owner[queries][:, None] != window.owner[None, :])
    if causal:
        counts &= distance > 0
    sums.mass += np.bincount(bins[counts], weights=rows[counts], minlength=2 * _BINS)
    sums.tokens += np.bincount(bins[counts], minlength=2 * _BINS)
    for query, key, query_tokens, key_tokens in _places(window, pairs, causal=causal):
        taken = np.ix_(np.searchsorted(queries, query_tokens), key_tokens)
        share = np.bincount(bins[taken].ravel(), minlength=2 * _BINS) / len(query_tokens)
        sums.places.setdefault((query, key), []).append((float(rows[taken].sum(1).mean()), share))


def _places(window: _Window, pairs: set[Pair], *, causal: bool) -> Iterator[tuple[str, str, Ints, Ints]]:
    """Each query word with the nearest key word that it can see."""
    for query, key in sorted(pairs):
        keys = [tokens for word, tokens in window.words if word == key]
        for word, tokens in window.words:
            seen = [other for other in keys if not causal or other[-1] < tokens[0]] if word == query else []
            if seen:
                nearest = int(np.argmin([abs(int(other[0] - tokens[0])) for other in seen]))
                yield query, key, tokens, seen[nearest]


def _bins(distance: Ints) -> Ints:
    """The bin of each distance query − key; keys behind the query stand in the second half."""
    far = np.abs(distance)
    grown = _NEAR + np.floor(np.log(np.maximum(far, _NEAR) / _NEAR) / np.log(1.25)).astype(np.int64)
    own = np.minimum(np.where(far <= _NEAR, far, grown), _BINS - 1)
    return np.where(distance < 0, own + _BINS, own)
