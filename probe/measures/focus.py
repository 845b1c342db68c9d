"""Where attention goes: mass on the cue, its matched control, the sink; entropy, distance and rank of one row.

All numbers come from the merged row of a word: the mean over its query tokens, keys summed where a word has several
tokens (Clark et al. 2019). They describe; what an edge does is measured by cutting it (experiments.causes).

Rows may be weighted by how long the vectors are that they carry (Kobayashi et al. 2020): a sink with much attention
and a short value vector then weighs little.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from probe.captures import Capture, Prepared, one_capture
from probe.errors import TapError
from probe.given import one_of

Floats = NDArray[np.float32]
Weighting = Literal["none", "value norm", "transformed norm"]
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)


@dataclass(frozen=True, order=True)
class Measure:
    """The name of one number: whose row, what it is about, and what is measured."""

    query: str
    key: str
    name: str


FOCUS: tuple[Measure, ...] = (
    Measure("target", "cue", "attention mass"),
    Measure("target", "control", "attention mass"),
    Measure("target", "self", "attention mass"),
    Measure("target", "neighbours", "attention mass"),
    Measure("target", "special", "attention mass"),
    Measure("target", "first", "attention mass"),
    Measure("cue", "target", "attention mass"),
    Measure("cue", "control", "attention mass"),
    Measure("target", "", "entropy"),
    Measure("target", "", "mean distance"),
    Measure("target", "cue", "cue rank"),
)


def focus(capture: Capture, *, weighting: Weighting = "none") -> Floats:
    """All measures of FOCUS on one capture, or on its weighted rows: [measure, layer, head]; NaN where not defined.

    Not defined are: a cue that a causal layer cannot see, a control where the text has no matching word, anything
    about cues where the case has none.
    """
    one_capture(capture)
    one_of(weighting, "weighting", WEIGHTINGS, error=TapError)
    capture = capture if weighting == "none" else replace(capture, rows=weighted_rows(capture, weighting))
    target, cue = list(capture.target), [index for words in capture.cues for index in words]
    grids = np.full((len(FOCUS), *capture.rows.shape[:2]), np.nan, dtype=np.float32)
    row = merged_row(capture, target)  # [layer, head, key]
    grids[_AT["target", "self"]] = row[..., target].sum(-1)
    grids[_AT["target", "neighbours"]] = row[..., neighbours(capture.tokens.special, target)].sum(-1)
    grids[_AT["target", "special"]] = row[..., capture.tokens.special].sum(-1)
    grids[_AT["target", "first"]] = row[..., 0]
    grids[_PLACE["entropy"]] = entropy(row)
    grids[_PLACE["mean distance"]] = mean_distance(row, target, capture.tokens.special)
    if cue:
        _about_cues(grids, capture, row, target, cue)
    return grids


def weighted_rows(capture: Capture, weighting: Weighting) -> Floats:
    """Rows times the norm of each key's vector, every row normalised to sum 1: [layer, head, query, key].

    "value norm" takes the value vector, "transformed norm" the value through its head's part of W_O (Kobayashi et al.
    2020); "none" gives the rows as they are. TapError where the capture lacks the norms.
    """
    one_capture(capture)
    if one_of(weighting, "weighting", WEIGHTINGS, error=TapError) == "none":
        return capture.rows
    lengths = weighted_lengths(capture, weighting)
    with np.errstate(invalid="ignore"):  # a row that carries nothing has no distribution: NaN
        share: Floats = lengths / lengths.sum(-1, keepdims=True)
    return share


def weighted_lengths(capture: Capture, weighting: Weighting) -> Floats:
    """Length of the vector that each key sends to each query, weight times norm: [layer, head, query, key]."""
    one_capture(capture)
    found = {"value norm": capture.value_norms, "transformed norm": capture.transformed_norms}
    norms = found[one_of(weighting, "weighting", tuple(found), error=TapError)]
    if norms is None:
        way = (
            "the eager path shows no values"
            if weighting == "value norm"
            else "ask for CaptureOptions(transformed_norms=True)"
        )
        raise TapError(f"case {capture.case.id!r} was captured without what {weighting!r} needs: {way}")
    lengths: Floats = capture.rows * norms[:, :, None, :]
    return lengths


def merged_row(capture: Capture, word: Sequence[int]) -> Floats:
    """The attention row of a word: mean over its tokens, [layer, head, key]; TapError where a token's is not kept."""
    missing = [token for token in word if token not in capture.queries]
    if missing:
        raise TapError(
            f"token {missing[0]} of case {capture.case.id!r} has no row; kept are those of the target and the cues, "
            "or all with CaptureOptions(whole_maps=True)"
        )
    places = [capture.queries.index(token) for token in word]
    merged: Floats = capture.rows[:, :, places].mean(axis=2)
    return merged


def matched_control(
    item: Capture | Prepared, *, query: Sequence[int], cue: Sequence[int], causal: bool
) -> tuple[int, ...] | None:
    """The tokens to compare the cue with, or None where the text has none.

    As many adjacent tokens as the cue has, not special, not target or cue, not punctuation alone, at the distance
    from the query word that is closest to the cue's; in a causal model before the query word.
    """
    tokens = item.tokens
    taken = {*item.target, *(index for words in item.cues for index in words), *query}
    usable = [
        not tokens.special[i] and i not in taken and not _is_punctuation(tokens.labels[i])
        for i in range(len(tokens.ids))
    ]
    wanted = _gap(query, cue)
    found: list[tuple[int, int]] = []
    for start in range(len(usable) - len(cue) + 1):
        window = range(start, start + len(cue))
        if all(usable[i] for i in window) and not (causal and window[-1] > max(query)):
            found.append((abs(_gap(query, window) - wanted), start))
    if not found:
        return None
    start = min(found)[1]
    return tuple(range(start, start + len(cue)))


def visible(item: Capture | Prepared, *, query: Sequence[int], key: Sequence[int], causal: bool) -> bool:
    """Whether the query word can see the key word at all: under a causal mask only if the key does not come later."""
    return not causal or min(key) <= max(query)


def entropy(row: Floats) -> Floats:
    """Entropy of each row as a share of the largest possible over the keys it may see: 0 one key, 1 uniform.

    Rows are normalised first, since learned sinks take a part of them. A row with one visible key has entropy 0.
    """
    share = row / row.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = -np.where(share > 0, share * np.log(share), 0).sum(-1)
        most = np.log((row > 0).sum(-1))
        ratio: Floats = np.where(most > 0, bits / most, 0).astype(np.float32)
    return ratio


def mean_distance(row: Floats, word: Sequence[int], special: NDArray[np.bool_]) -> Floats:
    """Mean distance in tokens from the word to what it reads, special tokens left out; NaN if nothing is left."""
    positions = np.arange(row.shape[-1])
    first, last = min(word), max(word)
    distance = np.where(positions < first, first - positions, np.where(positions > last, positions - last, 0))
    kept = np.where(special, 0, row)
    with np.errstate(invalid="ignore"):
        mean: Floats = ((kept * distance).sum(-1) / kept.sum(-1)).astype(np.float32)
    return mean


def rank_of(row: Floats, word: Sequence[int], *, among: NDArray[np.bool_]) -> Floats:
    """Rank of the word's best token among the allowed keys, 1 = most attention; ties share the mean rank."""
    best = row[..., list(word)].max(-1, keepdims=True)
    others = among.copy()
    others[list(word)] = False
    above = (row[..., others] > best).sum(-1)
    level = (row[..., others] == best).sum(-1)
    rank: Floats = (1 + above + level / 2).astype(np.float32)
    return rank


def neighbours(special: NDArray[np.bool_], word: Sequence[int]) -> list[int]:
    """The tokens directly before and after a word, special ones left out."""
    around = (min(word) - 1, max(word) + 1)
    return [index for index in around if 0 <= index < len(special) and not special[index]]


_PLACE = {measure.name: place for place, measure in enumerate(FOCUS)}
_AT = {(m.query, m.key): place for place, m in enumerate(FOCUS) if m.name == "attention mass"}


def _about_cues(grids: Floats, capture: Capture, row: Floats, target: list[int], cue: list[int]) -> None:
    causal = np.array([layer.stack == "decoder" for layer in capture.layers])
    among = ~capture.tokens.special
    among[target] = False
    cue_row = merged_row(capture, cue)
    for value in (False, True):
        layers = causal == value
        if not layers.any():
            continue
        if visible(capture, query=target, key=cue, causal=value):
            grids[_AT["target", "cue"], layers] = row[layers][..., cue].sum(-1)
            grids[_PLACE["cue rank"], layers] = rank_of(row[layers], cue, among=among)
            _control_mass(grids, capture, row, ("target", target, cue), layers=layers, causal=value)
        if visible(capture, query=cue, key=target, causal=value):
            grids[_AT["cue", "target"], layers] = cue_row[layers][..., target].sum(-1)
            _control_mass(grids, capture, cue_row, ("cue", cue, target), layers=layers, causal=value)


def _control_mass(
    grids: Floats,
    capture: Capture,
    row: Floats,
    edge: tuple[str, list[int], list[int]],
    *,
    layers: NDArray[np.bool_],
    causal: bool,
) -> None:
    name, query, key = edge
    control = matched_control(capture, query=query, cue=key, causal=causal)
    if control is not None:
        grids[_AT[name, "control"], layers] = row[layers][..., list(control)].sum(-1)


def _gap(word: Sequence[int], other: Sequence[int]) -> int:
    """Distance in tokens between two words: 1 if they touch."""
    return max(min(other) - max(word), min(word) - max(other), 0)


def _is_punctuation(label: str) -> bool:
    return not any(unicodedata.category(char)[0] in "LN" for char in label)
