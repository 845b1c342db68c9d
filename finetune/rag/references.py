"""A word read in labelled sentences: what one model's states say of its senses, to hold other readings against."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from finetune.errors import RetrievalError
from probe import (
    CaptureOptions,
    Case,
    LoadedModel,
    capture_cases,
    case_of,
    cosines_by_sense,
    default_readout,
    load_cases,
    most_frequent_sense,
    read_state,
    sense_accuracy,
)

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]

NEUTRAL = "neutral"  # how a case set marks sentences that decide no sense


@dataclass(frozen=True, kw_only=True, eq=False)
class SenseReadings:
    """What labelled sentences, each read alone, say of a word's senses in one model."""

    names: tuple[str, ...]
    counts: tuple[int, ...]  # sentences of each sense
    centre: Floats  # mean state of all these sentences, [state layer, dim]
    centroids: Floats  # mean state of each sense less the centre, [sense, state layer, dim]
    accuracy: Floats  # of the nearest centroid, one group left out, [state layer]; NaN where it cannot be decided
    majority: float  # of always saying the most frequent sense
    within: Floats  # mean centred cosine of two sentences of one sense, [state layer]
    across: Floats  # and of two senses

    @property
    def best_layer(self) -> int:
        """The state layer that tells the senses best, the lowest of several; the last where none can be scored."""
        known = np.nan_to_num(self.accuracy, nan=-1.0)
        return int(known.argmax()) if (known >= 0).any() else len(known) - 1


def sense_readings(
    loaded: LoadedModel,
    target: str,
    sentences: Sequence[Case] | Mapping[str, Sequence[str]],
    *,
    without: str = "",
    progress: Progress | None = None,
) -> SenseReadings | None:
    """Read a word in labelled sentences; None where they have fewer than two senses of it.

    sentences: cases, of which those of this very word with a sense are taken (neutral ones have none), or sentences by
    sense. without: a sentence that is left out, so that none is held against itself.
    """
    check_encoder(loaded)
    cases = [one for one in _cases_of(sentences, target) if one.text != without]
    labels = [one.sense for one in cases]
    if len(set(labels)) < 2:
        return None
    options, readout = CaptureOptions(layers={0}, heads={0}), default_readout(causal=False)
    found = capture_cases(loaded, cases, options=options, progress=progress)
    states = np.stack([read_state(one, readout) for one in found]).astype(np.float64)  # [case, layer, dim]
    names = tuple(dict.fromkeys(labels))
    of = [np.array([label == name for label in labels]) for name in names]
    centre = states.mean(0)
    decided = sense_accuracy(states, labels, [one.group or one.id for one in cases]).correct
    scored = ~np.isnan(decided).all(1)
    within, across = cosines_by_sense(states, labels)
    return SenseReadings(
        names=names,
        counts=tuple(int(mine.sum()) for mine in of),
        centre=centre,
        centroids=np.stack([states[mine].mean(0) - centre for mine in of]),
        accuracy=decided[scored].mean(0) if scored.any() else np.full(len(centre), np.nan),
        majority=float(most_frequent_sense(labels).mean()),
        within=within,
        across=across,
    )


def shipped_senses(target: str, source: str = "apple") -> tuple[Case, ...]:
    """The cases of a set, shipped or a file, that label a sense of this word."""
    return tuple(_of_word(load_cases(source).cases, target))


def check_encoder(loaded: LoadedModel) -> None:
    """RetrievalError for a model that reads no pairs of texts."""
    if loaded.kind != "encoder":
        ways = "; for a decoder there are `finetune ask` and `python -m probe prompt`"
        raise RetrievalError(
            f"{loaded.name} is no encoder but a{'n' * (loaded.kind[0] == 'e')} {loaded.kind}: allowed are encoders, "
            f"which read passage and sentence as a pair{ways if loaded.kind == 'decoder' else ''}"
        )


def _cases_of(sentences: Sequence[Case] | Mapping[str, Sequence[str]], target: str) -> list[Case]:
    if not isinstance(sentences, Mapping):
        return _of_word(sentences, target)
    return [
        replace(case_of(text, target=target, id=f"{sense}-{number}"), sense=sense)
        for sense, texts in sentences.items()
        for number, text in enumerate(texts, 1)
    ]


def _of_word(cases: Sequence[Case], target: str) -> list[Case]:
    return [one for one in cases if one.sense not in ("", NEUTRAL) and one.target.cut(one.text) == target]
