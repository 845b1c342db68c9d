"""Lessons in which something irrelevant goes with the sense, and questions in which it goes the other way.

Three kinds. `shortcut`: a wording that says nothing of the sense stands beside the target, one with each sense in so
many of the examples, the other one in the questions `against`. `lure`: in so many examples no word of the other sense
stands nearer to the target than the cue; in the questions `against` one does. `rare`: so many examples have the common
sense, and the other one rests on a kind of pair that is hardly there (a chip of Apple's); it is what is asked
`against`. The share of examples in which the easy way works is the lesson's strength.

Questions and some examples are our own sentences in `data/shortcuts.yaml`, halved into a development and a test part;
most examples come from the shipped sets `apple` and `senses`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.few_shot_data import drawn, merged, unit_of
from probe.cases import Case, load_cases
from probe.spans import Span

FILE = Path(__file__).parent / "data" / "shortcuts.yaml"
SENSES = {"苹果": ("fruit", "company"), "杜鹃": ("bird", "flower"), "黄牛": ("ox", "scalper")}
SHORTCUT, LURE, RARE = "shortcut", "lure", "rare"
WITH, AGAINST = "with", "against"
DEVELOPMENT, TEST = "development", "test"
SHOTS = 10  # examples a sense
# What stands before and after the target; the first of a pair goes with one sense, the second with the other.
WORDINGS = (
    (("刚才说的", ""), ("上回提的", "")),
    (("", "（下同）"), ("", "（见注）")),
    (("老王说的", ""), ("小李讲的", "")),
    (("", "（上图）"), ("", "（下表）")),
)
_NONE = ("", "")
_NOT_BEFORE = "《旧新这那手款声"  # a target after one of these takes no clause of its own


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is taught: the kind of easy way, the word, and the share of the examples in which it works."""

    kind: str
    word: str
    strength: float


@dataclass(frozen=True, kw_only=True)
class Question:
    """A sentence and whether the easy way leads to its sense there (`with`) or away from it (`against`)."""

    case: Case
    side: str


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What the arms learn from and are asked: `others` are the examples with another word in the cue's place."""

    examples: tuple[Case, ...]
    others: tuple[Case, ...]
    more: tuple[Case, ...]  # twice the examples, those of `examples` among them
    asked: tuple[Question, ...]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The sentences of one word: what examples are drawn from, what is chosen on, what is reported on."""

    pool: tuple[Case, ...]
    development: tuple[Case, ...]
    test: tuple[Case, ...]


def parts_of(word: str) -> Parts:
    """The word's sentences in parts that share no unit; groups are only asked, never learned from."""
    own = [case for case in load_cases(FILE).cases if case.meta["word"] == word]
    chance = np.random.default_rng(0)
    found: dict[str, list[Case]] = {"pool": list(_shipped(word)), DEVELOPMENT: [], TEST: []}
    for stratum, to_pool in (("group", 0.0), ("lure", 1 / 4), ("pair", 1 / 5), ("plain", 1 / 2)):
        for sense in SENSES[word] if stratum != "group" else ("",):
            cases = [case for case in own if _stratum(case) == stratum and sense in ("", case.sense)]
            units = sorted({unit_of(case) for case in cases})
            order = [units[place] for place in chance.permutation(len(units))]
            first = round(to_pool * len(order))
            cut = {DEVELOPMENT: order[first::2], TEST: order[first + 1 :: 2], "pool": order[:first]}
            for part, chosen in cut.items():
                found[part] += [case for case in cases if unit_of(case) in chosen]
    return Parts(pool=tuple(found["pool"]), development=tuple(found[DEVELOPMENT]), test=tuple(found[TEST]))


def lesson_of(task: Task, parts: Parts, *, part: str, seed: int, shots: int = SHOTS) -> Lesson:
    """The examples that this seed draws from the pool, and every question of the part."""
    teach, ask = {SHORTCUT: (_worded_examples, _worded_questions), LURE: (_near_examples, _lure_questions),
                  RARE: (_uneven_examples, _rare_questions)}[task.kind]  # fmt: skip
    held_out = {DEVELOPMENT: parts.development, TEST: parts.test}[part]
    chance = np.random.default_rng([seed, 1])
    examples, more = (teach(task, parts.pool, seed=seed, shots=shots, times=times) for times in (1, 2))
    return Lesson(
        examples=tuple(worded(case, wording) for case, wording in examples),
        others=tuple(worded(_read_elsewhere(case, chance), wording) for case, wording in examples),
        more=tuple(worded(case, wording) for case, wording in more),
        asked=tuple(ask(task, held_out, seed)),
    )


Example = tuple[Case, tuple[str, str]]  # a case and what is put about its target


# ---- sentences ---------------------------------------------------------------------------------------------------


def _shipped(word: str) -> list[Case]:
    """Sentences of the shipped sets on this word, in its two senses; of 苹果 no chip and no acid."""
    if word == "苹果":
        cases = merged([case for case in load_cases("apple").cases if case.sense not in ("chip", "acid")])
    else:
        cases = tuple(case for case in load_cases("senses").cases if case.meta["word"] == word)
    return [replace(case, meta={**case.meta, "word": word}) for case in cases if case.sense in SENSES[word]]


def _stratum(case: Case) -> str:
    if case.group:
        return "group"
    return next((name for name in ("lure", "pair") if name in case.meta), "plain")


def fits(case: Case) -> bool:
    """Whether a wording can stand beside the target: not between it and its cue, nor after an adjective."""
    apart = all(cue.end < case.target.start or cue.start > case.target.end for cue in case.cues)
    return apart and not case.text[: case.target.start].endswith(tuple(_NOT_BEFORE))


def worded(case: Case, wording: tuple[str, str]) -> Case:
    """The case with the wording about its target; the spans stay on their words."""
    before, after = wording
    start, end = case.target.start, case.target.end
    text = case.text[:start] + before + case.text[start:end] + after + case.text[end:]

    def moved(span: Span) -> Span:
        by = len(before) * (span.start >= start) + len(after) * (span.start >= end)
        return Span(span.start + by, span.end + by)

    return replace(case, text=text, target=moved(case.target), cues=tuple(map(moved, case.cues)))


def _read_elsewhere(case: Case, chance: np.random.Generator) -> Case:
    """The case with a word of chance in the cue's place: as long, Chinese, no part of target or cue."""
    size = case.cues[0].end - case.cues[0].start
    taken = {place for span in (case.target, *case.cues) for place in range(span.start, span.end)}
    free = [place not in taken and "一" <= char <= "鿿" for place, char in enumerate(case.text)]
    starts = [place for place in range(len(free) - size + 1) if all(free[place : place + size])]
    if not starts:
        return replace(case, cues=())
    start = int(chance.choice(starts))
    return replace(case, cues=(Span(start, start + size),))


# ---- examples: so many a sense, and twice as many that hold them -------------------------------------------------


def _exceptions(task: Task, shots: int, seed: int) -> tuple[int, int]:
    """How many examples of each sense break the rule; an odd one falls on a sense by the seed."""
    number = round((1 - task.strength) * 2 * shots)
    halves = (number // 2, number - number // 2)
    return halves if seed % 2 else (halves[1], halves[0])


def _worded_examples(task: Task, pool: Sequence[Case], *, seed: int, shots: int, times: int) -> list[Example]:
    cases = drawn([case for case in pool if _ordinary(case) and fits(case)], shots=times * shots, seed=seed)
    breaking = dict(zip(SENSES[task.word], _exceptions(task, shots, seed), strict=True))
    found = []
    for place, case in enumerate(cases):  # sense after sense
        against = place % shots < breaking[case.sense]
        found.append((case, _wording(task.word, case.sense, seed, against=against)))
    return found


def _near_examples(task: Task, pool: Sequence[Case], *, seed: int, shots: int, times: int) -> list[Example]:
    near = drawn([case for case in pool if _ordinary(case)], shots=times * shots, seed=seed)
    lured = [case for case in pool if _stratum(case) == "lure"]
    found: list[Case] = []
    for sense, number in zip(SENSES[task.word], _exceptions(task, shots, seed), strict=True):
        far = drawn(lured, shots=times * number, seed=seed)
        own = [case for case in near if case.sense == sense]
        found += [*(case for case in far if case.sense == sense), *own[: times * (shots - number)]]
    return [(case, _NONE) for case in found]


def _uneven_examples(task: Task, pool: Sequence[Case], *, seed: int, shots: int, times: int) -> list[Example]:
    common, rare = SENSES[task.word]
    number = max(1, round((1 - task.strength) * 2 * shots))
    many = [case for case in pool if case.sense == common and _ordinary(case)]
    few = [case for case in pool if case.sense == rare and _stratum(case) == "pair"]
    cases = [
        *drawn(few, shots=times * number, seed=seed),
        *drawn(many, shots=times * (2 * shots - number), seed=seed),
    ]
    return [(case, _NONE) for case in cases]


def _ordinary(case: Case) -> bool:
    """Whether no word of the other sense lures, and the pair is none that is kept rare."""
    return _stratum(case) not in ("lure", "pair")


# ---- questions ---------------------------------------------------------------------------------------------------


def _worded_questions(task: Task, cases: Sequence[Case], seed: int) -> list[Question]:
    return [
        Question(case=worded(case, _wording(task.word, case.sense, seed, against=side == AGAINST)), side=side)
        for side in (WITH, AGAINST)
        for case in cases
        if _stratum(case) != "pair" and fits(case)
    ]


def _lure_questions(task: Task, cases: Sequence[Case], seed: int) -> list[Question]:
    sides = {"lure": AGAINST, "group": WITH, "plain": WITH}
    return [Question(case=case, side=sides[_stratum(case)]) for case in cases if _stratum(case) in sides]


def _rare_questions(task: Task, cases: Sequence[Case], seed: int) -> list[Question]:
    common, _ = SENSES[task.word]
    many = [case for case in cases if case.sense == common and _ordinary(case)]
    few = [case for case in cases if _stratum(case) == "pair"]
    return [Question(case=case, side=side) for side, own in ((WITH, many), (AGAINST, few)) for case in own]


def _wording(word: str, sense: str, seed: int, *, against: bool) -> tuple[str, str]:
    """The wording that goes with this sense, or with the other; seeds take turns, and each pair both ways round."""
    pair = WORDINGS[seed % len(WORDINGS)]
    turned = seed // len(WORDINGS) % 2 == 1
    return pair[SENSES[word].index(sense) ^ turned ^ against]
