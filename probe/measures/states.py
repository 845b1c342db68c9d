"""What a state knows of the sense: nearest centroid with one group left out, silhouette, cosines; baselines beside.

Raw cosines of such models are high for everything, so states are centred per layer, on the training groups only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probe.captures import Capture

Floats = NDArray[np.float64]
Readout = Literal["target", "cue", "later", "last"]
READOUTS: tuple[Readout, ...] = ("target", "cue", "later", "last")


def default_readout(*, causal: bool) -> Readout:
    """Where to read: at the target; in a causal model at the later of target and cue, which has seen both."""
    return "later" if causal else "target"


def read_state(capture: Capture, readout: Readout) -> NDArray[np.float32]:
    """States at the readout, mean over its tokens: [state layer, dim]; state layer 0 is the embedding.

    "target" and "cue" are the words, "later" the last token of whichever ends later, "last" the last token of the
    text. A case without cues is read at its target. An encoder-decoder is read in its encoder.
    """
    states = capture.states.get("encoder", capture.states.get("decoder"))
    assert states is not None, "captured without states"
    cue = [index for words in capture.cues for index in words]
    places: Mapping[Readout, list[int]] = {
        "target": list(capture.target),
        "cue": cue or list(capture.target),
        "later": [max([*capture.target, *cue])],
        "last": [int(np.flatnonzero(~capture.tokens.special)[-1])],
    }
    state: NDArray[np.float32] = states[:, places[readout]].mean(axis=1)
    return state


def context_embedding(capture: Capture) -> NDArray[np.float32]:
    """Mean input embedding of the text without target and special tokens, [dim]: what a bag of words knows."""
    states = capture.states.get("encoder", capture.states.get("decoder"))
    assert states is not None, "captured without states"
    others = [i for i in range(len(capture.tokens.ids)) if not capture.tokens.special[i] and i not in capture.target]
    mean: NDArray[np.float32] = states[0][others].mean(0) if others else np.zeros_like(states[0][0])
    return mean


@dataclass(frozen=True, kw_only=True, eq=False)
class SenseAccuracy:
    """Nearest-centroid decisions with the case's own group left out."""

    correct: NDArray[np.float64]  # [case, layer]: 1 right, 0 wrong, NaN where it cannot be decided
    visible: NDArray[np.bool_]  # [layer]: False where states are the same over all cases


def sense_accuracy(states: NDArray[np.floating], senses: Sequence[str], groups: Sequence[str]) -> SenseAccuracy:
    """Decide each case's sense by the nearest centroid of the other groups' cases; states [case, layer, dim].

    Cases of one group share a carrier sentence: leaving out one case alone would leak it. A case whose sense has no
    case in another group cannot be decided (NaN). Distances are Euclidean after centring on the training groups.
    """
    x = np.asarray(states, dtype=np.float64)
    names = sorted(set(senses))
    codes = np.array([names.index(sense) for sense in senses])
    correct = np.full(x.shape[:2], np.nan)
    for group in dict.fromkeys(groups):
        held = np.array([g == group for g in groups])
        train = x[~held]
        known = sorted(set(codes[~held]))
        if len(known) < 2:
            continue
        centre = train.mean(0)  # [layer, dim]
        centroids = np.stack([(train[codes[~held] == code] - centre).mean(0) for code in known])  # [sense, layer, dim]
        for case in np.flatnonzero(held):
            if codes[case] not in known:
                continue
            distance = np.linalg.norm(centroids - (x[case] - centre), axis=-1)  # [sense, layer]
            correct[case] = np.array(known)[distance.argmin(0)] == codes[case]
    return SenseAccuracy(correct=correct, visible=~_same(x))


def silhouette(states: NDArray[np.floating], senses: Sequence[str]) -> Floats:
    """Mean silhouette by sense under cosine distance, centred per layer: [layer] (Rousseeuw 1987).

    Senses with one case have silhouette 0 there, as in the definition; NaN where all states are the same.
    """
    distance = 1.0 - _cosines(states)  # [layer, case, case]
    names = sorted(set(senses))
    member = np.array([[sense == name for sense in senses] for name in names], dtype=np.float64)  # [sense, case]
    own = np.array([names.index(sense) for sense in senses])
    sums = distance @ member.T  # [layer, case, sense]
    size = member.sum(1)
    cases = np.arange(len(own))
    with np.errstate(invalid="ignore", divide="ignore"):
        within = sums[:, cases, own] / (size[own] - 1)
        means = sums / size
    means[:, cases, own] = np.inf
    nearest = means.min(-1)
    with np.errstate(invalid="ignore"):
        score = np.where(size[own] > 1, (nearest - within) / np.maximum(within, nearest), 0.0)
    mean: Floats = score.mean(1)
    return mean


def cosines_by_sense(states: NDArray[np.floating], senses: Sequence[str]) -> tuple[Floats, Floats]:
    """Mean centred cosine of pairs within a sense and across senses, each [layer]."""
    cosine = _cosines(states)
    same = np.array([[a == b for b in senses] for a in senses])
    off = ~np.eye(len(senses), dtype=bool)
    with np.errstate(invalid="ignore"):
        return cosine[:, same & off].mean(1), cosine[:, ~same].mean(1)


def most_frequent_sense(senses: Sequence[str], groups: Sequence[str]) -> Floats:
    """Accuracy of always saying the most frequent sense of the other groups: [case] of 0 or 1."""
    correct = np.zeros(len(senses))
    for case, sense in enumerate(senses):
        others = [s for s, g in zip(senses, groups, strict=True) if g != groups[case]]
        correct[case] = bool(others) and _most_frequent(others) == sense
    return correct


def two_characters_rule(neighbours: Sequence[tuple[str, str]], senses: Sequence[str], groups: Sequence[str]) -> Floats:
    """Accuracy of a rule on the characters before and after the target, learnt on the other groups: [case] of 0 or 1.

    Naive Bayes on the two characters with add-one counts: what collocation alone gives away.
    """
    correct = np.zeros(len(senses))
    for case in range(len(senses)):
        train = [i for i in range(len(senses)) if groups[i] != groups[case]]
        correct[case] = _naive_bayes(neighbours, senses, train, neighbours[case]) == senses[case]
    return correct


def _naive_bayes(
    neighbours: Sequence[tuple[str, str]], senses: Sequence[str], train: Sequence[int], asked: tuple[str, str]
) -> str:
    best, best_score = "", -np.inf
    for name in sorted({senses[i] for i in train}):
        own = [i for i in train if senses[i] == name]
        score = np.log(len(own))
        for side in (0, 1):
            hits = sum(neighbours[i][side] == asked[side] for i in own)
            vocabulary = len({neighbours[i][side] for i in train}) + 1
            score += np.log((hits + 1) / (len(own) + vocabulary))
        if score > best_score:
            best, best_score = name, score
    return best


def _most_frequent(senses: Sequence[str]) -> str:
    return max(sorted(set(senses)), key=list(senses).count)


def _same(states: Floats) -> NDArray[np.bool_]:
    """Layers in which all cases have one and the same state, up to rounding."""
    spread = np.abs(states - states[:1]).max(axis=(0, 2))
    scale = np.abs(states).max(axis=(0, 2))
    same: NDArray[np.bool_] = spread <= 1e-5 * np.maximum(scale, 1e-12)
    return same


def _cosines(states: NDArray[np.floating]) -> Floats:
    """Cosines of all pairs, centred per layer: [layer, case, case]; NaN where a centred state is zero."""
    x = np.asarray(states, dtype=np.float64)
    x = np.where(_same(x)[None, :, None], 0.0, x - x.mean(0))
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    cosine: Floats = np.einsum("ild,jld->lij", unit, unit)
    return cosine
