"""One word's senses in the states: which cases count, what is decided of each, and what is known without the states."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.captures import Prepared
from probe.contrasts import NEUTRAL, is_neutral
from probe.measures.states import (
    carrier_accuracy,
    cosines_by_sense,
    most_frequent_sense,
    sense_accuracy,
    silhouette,
    two_characters_rule,
)

FEWEST_CASES = 3  # a sense with fewer sentences is left out of state measures, and named


@dataclass(frozen=True, kw_only=True, eq=False)
class WordSenses:
    """The decisions of one word: 1 right, 0 wrong, NaN where undecided or where the word's states are all the same."""

    word: str
    senses: tuple[str, ...]  # of each case
    groups: tuple[str, ...]  # of each case
    correct: NDArray[np.float64]  # [case, state layer]
    visible: NDArray[np.bool_]  # [state layer]
    silhouette: NDArray[np.float64]  # [state layer]
    within: NDArray[np.float64]
    across: NDArray[np.float64]
    context: NDArray[np.float64]  # [case]
    frequent: NDArray[np.float64]
    neighbours: NDArray[np.float64]
    carrier: NDArray[np.float64]  # [neutral case, state layer]
    carrier_groups: tuple[str, ...]  # of each neutral case
    mixed: int  # groups with a neutral case whose cue cases have several senses: it has no one label

    @property
    def undecided(self) -> int:
        """Cases that no visible layer can decide, since their sense stands in no other group."""
        return int(np.isnan(self.correct[:, self.visible]).all(1).sum()) if self.visible.any() else 0


def sense_counts(items: Sequence[Prepared]) -> dict[str, dict[str, int]]:
    """How many cases each sense of each word has, neutral cases left out; in order of first appearance."""
    counts: dict[str, dict[str, int]] = {}
    for item in items:
        if item.case.sense not in ("", NEUTRAL):
            own = counts.setdefault(word_of(item), {})
            own[item.case.sense] = own.get(item.case.sense, 0) + 1
    return counts


def senses_to_tell(items: Sequence[Prepared]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The senses of each word that has two or more with enough sentences, and the senses that have too few."""
    kept, few = {}, []
    for word, counts in sense_counts(items).items():
        own = tuple(sense for sense, count in counts.items() if count >= FEWEST_CASES)
        few += [f"{word} {sense}" for sense in sorted(set(counts) - set(own))]
        if len(own) > 1:
            kept[word] = own
    return kept, tuple(few)


def decide_word(
    items: Sequence[Prepared],
    states: NDArray[np.floating],
    context: NDArray[np.floating],
    *,
    word: str,
    senses: Sequence[str],
) -> WordSenses:
    """Everything about the cases of `word` with one of `senses`; states [case, state layer, dim], context [case, dim].

    A neutral case counts once, labelled with the one sense of its group's cue cases.
    """
    places = [place for place, item in enumerate(items) if word_of(item) == word and item.case.sense in senses]
    own = [items[place].case.sense for place in places]
    groups = [group_of(items[place]) for place in places]
    decided = sense_accuracy(states[places], own, groups)
    bag = sense_accuracy(context[places][:, None], own, groups)
    within, across = cosines_by_sense(states[places], own)
    neutral, labels, mixed = _labelled_carriers(items, word=word, senses=senses)
    neutral_groups = tuple(group_of(items[place]) for place in neutral)
    return WordSenses(
        word=word,
        senses=tuple(own),
        groups=tuple(groups),
        correct=np.where(decided.visible, decided.correct, np.nan),
        visible=decided.visible,
        silhouette=silhouette(states[places], own),
        within=within,
        across=across,
        context=np.where(bag.visible, bag.correct, np.nan)[:, 0],
        frequent=most_frequent_sense(own),
        neighbours=two_characters_rule([_beside(items[place]) for place in places], own, groups),
        carrier=carrier_accuracy(
            states[places], own, groups, neutral=states[neutral], labels=labels, neutral_groups=neutral_groups
        ),
        carrier_groups=neutral_groups,
        mixed=mixed,
    )


def word_of(item: Prepared) -> str:
    """The ambiguous word of a case: the one it names, else its target."""
    return item.case.meta.get("word", "") or item.case.target.cut(item.case.text)


def group_of(item: Prepared) -> str:
    """The minimal group of a case; a case without one is a group of its own."""
    return item.case.group or item.case.id


def _labelled_carriers(
    items: Sequence[Prepared], *, word: str, senses: Sequence[str]
) -> tuple[list[int], list[str], int]:
    """Places and labels of the neutral cases whose group has cue cases of one sense, and the number of mixed groups."""
    told: dict[str, set[str]] = {}
    for item in items:
        if word_of(item) == word and item.case.sense not in ("", NEUTRAL):
            told.setdefault(group_of(item), set()).add(item.case.sense)
    places: list[int] = []
    labels: list[str] = []
    mixed: set[str] = set()
    for place, item in enumerate(items):
        own = told.get(group_of(item), set())
        if not is_neutral(item) or word_of(item) != word or not own:
            continue
        if len(own) > 1:
            mixed.add(group_of(item))
        elif own <= set(senses):
            places.append(place)
            labels += own
    return places, labels, len(mixed)


def _beside(item: Prepared) -> tuple[str, str]:
    text, target = item.case.text, item.case.target
    return text[target.start - 1 : target.start] if target.start else "", text[target.end : target.end + 1]
