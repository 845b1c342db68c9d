"""What the few-shot benchmark learns from and is tested on: three senses of 苹果, examples drawn by seed.

Examples and the settings come from halves of the shipped set `apple`, the held-out sentences from
`apple/test`, which was written for this and is learned from nowhere. The public set `apple-contexts`
is read where it lies (CIJING_DATA) and never written anywhere.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import public_data
from finetune.domains import shipped_texts
from finetune.pairs import SpanPair
from finetune.reading import OWN_RULE, Record
from probe.cases import Case, load_cases

SENSES = ("acid", "company", "fruit")
OWN, PUBLIC = "own", "public"
_MERGED = {
    "fruit": "fruit", "company": "company", "device": "company", "chip": "company", "acid": "acid",
    "company_or_device": "company", "malic_acid_compound": "acid",
}  # fmt: skip


def merged(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The cases that have one of the three senses, device and chip as company; neutral ones and controls left out."""
    return tuple(replace(case, sense=_MERGED[case.sense]) for case in cases if case.sense in _MERGED)


def unit_of(case: Case) -> str:
    """What is drawn, split and resampled as one: a group of sentences, or a sentence by itself."""
    return case.meta.get("unit") or case.group or case.id


def halves(cases: Sequence[Case]) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """The pool that examples are drawn from and the development part, no unit in both, each sense halved.

    Units are dealt in a fixed order of chance; a unit of two senses (苹果酸 as acid and as sour fruit) counts as acid.
    """
    senses: dict[str, str] = {}
    for case in sorted(cases, key=lambda one: one.sense, reverse=True):  # acid last, so that it stays
        senses[unit_of(case)] = case.sense
    chance = np.random.default_rng(0)
    pool: set[str] = set()
    for sense in SENSES:
        units = sorted(unit for unit, own in senses.items() if own == sense)
        pool |= {units[place] for place in chance.permutation(len(units))[: len(units) // 2]}
    inside = tuple(case for case in cases if unit_of(case) in pool)
    return inside, tuple(case for case in cases if unit_of(case) not in pool)


def drawn(pool: Sequence[Case], *, shots: int, seed: int) -> tuple[Case, ...]:
    """So many examples a sense, each of another unit; of one seed, more shots hold those of fewer."""
    chance = np.random.default_rng(seed)
    order = {sense: chance.permutation(len(own)) for sense, own in _by_sense(pool).items()}
    used: set[str] = set()
    found: dict[str, list[Case]] = {sense: [] for sense in order}
    for number in range(shots):
        for sense, own in _by_sense(pool).items():
            free = (own[place] for place in order[sense] if unit_of(own[place]) not in used)
            case = next(free, None)
            if case is None:
                raise ValueError(f"{sense}: the pool has no {number + 1} sentences of different groups")
            used.add(unit_of(case))
            found[sense].append(case)
    return tuple(case for cases in found.values() for case in cases)


def _by_sense(cases: Sequence[Case]) -> dict[str, list[Case]]:
    return {sense: [case for case in cases if case.sense == sense] for sense in sorted({case.sense for case in cases})}


def apple_halves() -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """The pool and the development part of the shipped set `apple`."""
    return halves(merged(load_cases("apple").cases))


def held_out() -> tuple[Case, ...]:
    """Our own held-out sentences."""
    return merged(load_cases(str(shipped_texts()["apple/test"])).cases)


def test_sets() -> Mapping[str, tuple[Case, ...]]:
    """Our own held-out sentences, and every 苹果 of apple-contexts where it lies."""
    folder = public_data.data_folder()
    sets = {OWN: held_out()}
    if public_data.present(folder, public_data.APPLE):
        sets[PUBLIC] = merged(public_data.apple_cases(folder))
    return sets


def write_examples(examples: Sequence[Case], file: Path) -> None:
    """The examples as a run's configuration names them: the target is to read each of its cues."""
    file.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in _rows(examples)), encoding="utf-8")


def _rows(examples: Sequence[Case]) -> Iterator[dict[str, object]]:
    for case in examples:
        target = [case.target.start, case.target.end]
        pairs = [{"query": target, "key": [cue.start, cue.end]} for cue in case.cues]
        yield {"id": case.id, "group": unit_of(case), "text": case.text, "target": target, "label": case.sense,
               "pairs": pairs}  # fmt: skip


def record_of_case(case: Case) -> Record:
    """A test sentence as finetune encodes it, with the pairs whose attention is measured."""
    pairs = tuple(SpanPair(rule=OWN_RULE, query=case.target, key=cue, weight=1.0, negatives=()) for cue in case.cues)
    return Record(
        id=case.id, where=f"case {case.id}", group=unit_of(case), text=case.text, target=case.target,
        label=case.sense, pairs=pairs,
    )  # fmt: skip
