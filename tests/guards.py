"""What keeps the text we write ourselves from fooling us: frames, twins, give-away neighbours, room for a control."""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

from probe.cases import Case

_NUMBER = re.compile(r"[0-9０-９]+(?:[.,][0-9]+)*|[零〇一二两三四五六七八九十百千万亿]+")
_EDGE = "edge"


def distance(case: Case) -> int:
    """Give the characters between the target and its nearest cue: 0 is adjacent."""
    gaps = (max(cue.start - case.target.end, case.target.start - cue.end) for cue in case.cues)
    return min(gaps)


def frame(case: Case) -> str:
    """Give the text with target, cues and numbers masked: 他{买}了三斤[苹果] and 他{卖}了两斤[梨] share a frame."""
    text = case.text
    spans = [(case.target, "T"), *((cue, "C") for cue in case.cues)]
    for span, mask in sorted(spans, key=lambda item: item[0].start, reverse=True):
        text = text[: span.start] + mask + text[span.end :]
    return _NUMBER.sub("N", text)


def shared_frames(cases: Sequence[Case]) -> tuple[float, dict[str, list[str]]]:
    """Give the share of units (groups, and cases without one) in a frame with another unit, and those frames."""
    units: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        units[frame(case)].add(_unit(case))
    shared = {text: sorted(names) for text, names in units.items() if len(names) > 1}
    crowded = {name for names in shared.values() for name in names}
    return len(crowded) / len({_unit(case) for case in cases}), shared


def twins(cases: Sequence[Case], *, most: float = 0.5) -> list[tuple[str, str, float]]:
    """Give the pairs from different groups that share more than `most` of the shorter text's character 4-grams."""
    grams = [(case, {case.text[i : i + 4] for i in range(len(case.text) - 3)}) for case in cases]
    found = []
    for (one, left), (other, right) in combinations(grams, 2):
        share = len(left & right) / max(1, min(len(left), len(right)))
        if share > most and _unit(one) != _unit(other):
            found.append((one.id, other.id, share))
    return found


def neighbour_gain(cases: Iterable[Case], *, splits: int = 200, seed: int = 0) -> float:
    """Give by how much a rule on the two characters beside the target beats the majority sense, held out.

    Only cases whose cue is not adjacent count. The units are halved at random `splits` times; the rule (naive Bayes
    with add-one counts) and the majority sense are both learnt on one half and scored on the other, and the
    difference of accuracy is averaged. It measures what a reader learns who sees 都[·]酸 and nothing else.
    """
    apart = [case for case in cases if case.cues and distance(case) > 0]
    units = sorted({_unit(case) for case in apart})
    chance, gains = random.Random(seed), []
    for _ in range(splits):
        chosen = set(chance.sample(units, len(units) // 2))
        learnt = [case for case in apart if _unit(case) in chosen]
        scored = [case for case in apart if _unit(case) not in chosen]
        majority = Counter(case.sense for case in learnt).most_common(1)[0][0]
        guesses = _neighbour_rule(learnt, scored)
        right = sum(guess == case.sense for guess, case in zip(guesses, scored, strict=True))
        gains.append((right - sum(case.sense == majority for case in scored)) / len(scored))
    return sum(gains) / len(gains)


def room_for_controls(case: Case) -> int:
    """Give how many pieces of Chinese characters, as long as the first cue, touch neither target nor cues."""
    size = case.cues[0].end - case.cues[0].start
    taken = {at for span in (case.target, *case.cues) for at in range(span.start, span.end)}
    free = [at not in taken and "一" <= char <= "鿿" for at, char in enumerate(case.text)]
    return sum(all(free[at : at + size]) for at in range(len(case.text) - size + 1))


def _unit(case: Case) -> str:
    return f"group {case.group}" if case.group else f"case {case.id}"


def _beside(case: Case) -> tuple[tuple[str, str], tuple[str, str]]:
    before = case.text[case.target.start - 1] if case.target.start else _EDGE
    after = case.text[case.target.end] if case.target.end < len(case.text) else _EDGE
    return ("before", before), ("after", after)


def _neighbour_rule(learnt: Sequence[Case], scored: Sequence[Case]) -> list[str]:
    senses = Counter(case.sense for case in learnt)
    seen = Counter((case.sense, *beside) for case in learnt for beside in _beside(case))
    kinds = len({beside for case in learnt for beside in _beside(case)}) + 1

    def score(sense: str, case: Case) -> float:
        chances = ((seen[sense, *beside] + 1) / (senses[sense] + kinds) for beside in _beside(case))
        return math.log(senses[sense]) + sum(math.log(chance) for chance in chances)

    return [max(sorted(senses), key=lambda sense: score(sense, case)) for case in scored]
