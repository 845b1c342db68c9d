"""What a model's states still know of common words: the sense of each case by the nearest centroid, layer by layer."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from finetune.compare.items import Item
from finetune.scoring import Step
from probe import Capture, Case, LoadedModel, capture_cases, default_readout, read_state, sense_accuracy

GENERAL = "general"
_NO_SENSE = ("", "neutral")
_SINK = 0  # the position that takes what attention has to spare: the first token, special or not


def capped_cases(cases: Sequence[Case], *, most: int | None) -> tuple[Case, ...]:
    """Give the cases that have a sense, of each sense of each word the first `most`, in their order."""
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for case in cases:
        if case.sense in _NO_SENSE:
            continue
        seen[word_of(case), case.sense] += 1
        if most is None or seen[word_of(case), case.sense] <= most:
            kept.append(case)
    return tuple(kept)


def word_of(case: Case) -> str:
    """The ambiguous word of a case: the one that it names, else its target."""
    return case.meta.get("word", "") or case.target.cut(case.text)


def state_items(loaded: LoadedModel, cases: Sequence[Case], *, step: Step | None = None) -> list[Item]:
    """Read the cases with the model as it is now, adapter and all; one pass.

    sense_accuracy, part general: whether a case's sense is that of the nearest centroid in the last layer, the case's
    own group left out; sense_separation, part `layer N`: the same by state layer, 0 the embedding. sink, part general:
    the attention of the target's tokens on the first token, mean over layers and heads. Left out, whatever the model,
    are cases that no centroid decides, layers in which a word's states are all the same (the embedding of one token),
    and targets that are the first token.
    """
    readout = default_readout(causal=loaded.kind == "decoder")
    states: list[NDArray[np.float32]] = []
    sinks: list[Item] = []
    for captured in capture_cases(loaded, cases, progress=step):
        states.append(read_state(captured, readout))
        sinks += _sink(captured)
    return [*_sense_items(cases, np.stack(states)), *sinks] if states else []


def _sink(captured: Capture) -> list[Item]:
    rows = [row for row, place in enumerate(captured.queries) if place in captured.target and place != _SINK]
    if not rows:
        return []
    share = float(captured.rows[:, :, rows, _SINK].mean(dtype=np.float64))
    return [Item(measure="sink", part=GENERAL, item=captured.case.id, unit=_group(captured.case), value=share)]


def _sense_items(cases: Sequence[Case], states: NDArray[np.float32]) -> list[Item]:
    """Items of states [case, state layer, dim], word by word."""
    words = [word_of(case) for case in cases]
    found = []
    for word in dict.fromkeys(words):
        own = [place for place, other in enumerate(words) if other == word]
        groups = [_group(cases[place]) for place in own]
        decided = sense_accuracy(states[own], [cases[place].sense for place in own], groups)
        for place, group, right in zip(own, groups, decided.correct, strict=True):
            found += _case_items(cases[place].id, group, np.where(decided.visible, right, np.nan))
    return found


def _case_items(name: str, group: str, right: NDArray[np.float64]) -> list[Item]:
    parts = [("sense_accuracy", GENERAL, right[-1])]
    parts += [("sense_separation", f"layer {layer}", value) for layer, value in enumerate(right)]
    return [
        Item(measure=measure, part=part, item=name, unit=group, value=float(value))
        for measure, part, value in parts
        if not np.isnan(value)
    ]


def _group(case: Case) -> str:
    """The minimal group of a case; a case without one is a group of its own."""
    return case.group or case.id
