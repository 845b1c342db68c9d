"""Minimal groups: the same carrier with a cue or with a neutral word in one slot, and the test of their difference.

A head's taste for one word vector looks like reading if the word recurs, so each cue has a neutral word of its own and
the unit is the cue word: cases that share it are averaged before signs are flipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.captures import Prepared
from probe.stats import unit_means

NEUTRAL = "neutral"
# Below this many cue words a contrast is described and not tested (STATISTICS: 2 / 2**n < 0.05 / heads needs 13 to 15).
FEWEST_UNITS = 20


@dataclass(frozen=True, kw_only=True)
class SlotPair:
    """A case with a cue in the slot and the case of the same carrier with a neutral word in it."""

    contrast: str  # the sense of the cue case
    unit: str  # the cue word
    cue: int  # places among the items
    neutral: int


def is_neutral(item: Prepared) -> bool:
    """Whether the marked word of a case decides nothing: its marked word fills a slot, it is no cue."""
    return item.case.sense == NEUTRAL


def slot_pairs(items: Sequence[Prepared]) -> tuple[SlotPair, ...]:
    """All pairs of a cue case with the neutral case of its group, whose slots have the same number of tokens.

    Groups without a neutral case, or whose carriers differ outside the slot, give no pair.
    """
    neutral = {item.case.group: place for place, item in enumerate(items) if is_neutral(item) and item.case.group}
    pairs = []
    for place, item in enumerate(items):
        other = neutral.get(item.case.group)
        if other is None or is_neutral(item) or not _same_slot(item, items[other]):
            continue
        unit = " + ".join(cue.cut(item.case.text) for cue in item.case.cues)
        pairs.append(SlotPair(contrast=item.case.sense, unit=unit, cue=place, neutral=other))
    return tuple(pairs)


def contrasts_of(pairs: Sequence[SlotPair]) -> tuple[str, ...]:
    """Names of the contrasts in order of first appearance."""
    return tuple(dict.fromkeys(pair.contrast for pair in pairs))


def differences(
    values: NDArray[np.floating], pairs: Sequence[SlotPair], contrast: str
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Cue minus neutral, averaged by cue word: values [case, ...] -> [unit, ...] and the units' names."""
    own = [pair for pair in pairs if pair.contrast == contrast]
    gaps = values[[pair.cue for pair in own]] - values[[pair.neutral for pair in own]]
    return unit_means(gaps, [pair.unit for pair in own])


def _same_slot(one: Prepared, other: Prepared) -> bool:
    """The two texts are equal outside the slot, and the slot stands on the same tokens."""
    return _masked(one) == _masked(other) and one.target == other.target and one.cues == other.cues


def _masked(item: Prepared) -> str:
    text = item.case.text
    for cue in sorted(item.case.cues, reverse=True):
        text = text[: cue.start] + "□" + text[cue.end :]
    return text
