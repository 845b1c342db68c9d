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
    correct = np.full(x.shape[:2], np.nan)
    for group in dict.fromkeys(groups):
        held = np.array([g == group for g in groups])
        own = [sense for sense, out in zip(senses, held, strict=True) if out]
        rest = [sense for sense, out in zip(senses, held, strict=True) if not out]
        correct[held] = _nearest_is_right(x[~held], rest, x[held], own)
    return SenseAccuracy(correct=correct, visible=visible_layers(x))


def carrier_accuracy(
    states: NDArray[np.floating],
    senses: Sequence[str],
    groups: Sequence[str],
    *,
    neutral: NDArray[np.floating],
    labels: Sequence[str],
    neutral_groups: Sequence[str],
) -> Floats:
    """What a carrier sentence gives away: each neutral case decided by the cue cases of the other groups.

    Cue cases states [case, layer, dim] with senses and groups; neutral cases [neutral case, layer, dim] labelled with
    the sense of their group's cue cases. Gives [neutral case, layer] of 1, 0 and NaN, as sense_accuracy does; NaN also
    where all neutral cases have the same state.
    """
    x, asked = np.asarray(states, dtype=np.float64), np.asarray(neutral, dtype=np.float64)
    correct = np.full(asked.shape[:2], np.nan)
    for case, (label, group) in enumerate(zip(labels, neutral_groups, strict=True)):
        others = np.array([g != group for g in groups])
        rest = [sense for sense, keep in zip(senses, others, strict=True) if keep]
        correct[case] = _nearest_is_right(x[others], rest, asked[case : case + 1], [label])[0]
    if len(asked):
        correct[:, ~(visible_layers(x) & visible_layers(asked))] = np.nan
    return correct


def sense_positions(
    states: NDArray[np.floating], senses: Sequence[str], groups: Sequence[str], *, asked: NDArray[np.floating]
) -> tuple[Floats, Floats]:
    """Where each case's `asked` states lie on its sense axis, and whether the nearest centroid is its sense's.

    states [case, dim] train the centroids, one group left out; asked [case, which, dim] are states of the same cases
    under some change. The axis runs from the centre of the other sense that lies nearest to the untouched state (-1)
    to the centre of the case's own sense (+1). Both [case, which]; NaN where a case's sense is in no other group, where
    two centres coincide, or where an asked state is NaN.
    """
    x, y = np.asarray(states, dtype=np.float64), np.asarray(asked, dtype=np.float64)
    position, correct = (np.full(y.shape[:2], np.nan) for _ in range(2))
    for case, (sense, group) in enumerate(zip(senses, groups, strict=True)):
        rest = [place for place, other in enumerate(groups) if other != group]
        known = sorted({senses[place] for place in rest})
        if sense not in known or len(known) < 2:
            continue
        centres = {name: x[[place for place in rest if senses[place] == name]].mean(0) for name in known}
        own = centres.pop(sense)
        other = min(centres.values(), key=lambda centre: float(np.linalg.norm(x[case] - centre)))
        axis = own - other
        length = float(axis @ axis)
        if length == 0 or np.isnan(y[case]).all():
            continue
        position[case] = 2 * ((y[case] - (own + other) / 2) @ axis) / length
        far = np.stack([np.linalg.norm(y[case] - centre, axis=-1) for centre in centres.values()]).min(0)  # [which]
        near = np.linalg.norm(y[case] - own, axis=-1)
        correct[case] = np.where(np.isnan(near), np.nan, near < far)
    return position, correct


def visible_layers(states: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Layers in which the cases [case, layer, dim] do not all have one and the same state, up to rounding: [layer]."""
    x = np.asarray(states, dtype=np.float64)
    spread = np.abs(x - x[:1]).max(axis=(0, 2))
    scale = np.abs(x).max(axis=(0, 2))
    visible: NDArray[np.bool_] = spread > 1e-5 * np.maximum(scale, 1e-12)
    return visible


def _nearest_is_right(train: Floats, senses: Sequence[str], asked: Floats, labels: Sequence[str]) -> Floats:
    """Whether the nearest centroid has the label: [asked case, layer]; NaN for a label or a choice not in training."""
    correct = np.full(asked.shape[:2], np.nan)
    known = sorted(set(senses))
    if len(known) < 2:
        return correct
    codes = np.array([known.index(sense) for sense in senses])
    centre = train.mean(0)  # [layer, dim]
    centroids = np.stack([(train[codes == code] - centre).mean(0) for code in range(len(known))])  # [sense, layer, dim]
    for case, label in enumerate(labels):
        if label in known:
            distance = np.linalg.norm(centroids - (asked[case] - centre), axis=-1)  # [sense, layer]
            correct[case] = distance.argmin(0) == known.index(label)
    return correct


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


def most_frequent_sense(senses: Sequence[str]) -> Floats:
    """Accuracy of always guessing the word's most frequent sense, known in advance: [case] of 0 or 1.

    Its mean is the largest share of a sense. Learnt on the other groups it would fall below chance on balanced cases,
    since leaving a case out makes its own sense the rarer one.
    """
    most = max(sorted(set(senses)), key=list(senses).count)
    return np.array([float(sense == most) for sense in senses])


def two_characters_rule(neighbours: Sequence[tuple[str, str]], senses: Sequence[str], groups: Sequence[str]) -> Floats:
    """Accuracy of a rule on the characters before and after the target, learnt on the other groups: [case] of 0 or 1.

    Naive Bayes on the two characters with add-one counts: what collocation alone gives away. NaN where sense_accuracy
    is, so that both are means over the same cases.
    """
    correct = np.full(len(senses), np.nan)
    for case in range(len(senses)):
        train = [i for i in range(len(senses)) if groups[i] != groups[case]]
        known = {senses[i] for i in train}
        if len(known) > 1 and senses[case] in known:
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


def _cosines(states: NDArray[np.floating]) -> Floats:
    """Cosines of all pairs, centred per layer: [layer, case, case]; NaN where a centred state is zero."""
    x = np.asarray(states, dtype=np.float64)
    x = np.where(visible_layers(x)[None, :, None], x - x.mean(0), 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    cosine: Floats = np.einsum("ild,jld->lij", unit, unit)
    return cosine
