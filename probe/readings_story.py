"""The section on cases without cues: which words the target reads, by effect, with the attention mass beside it."""

from collections.abc import Iterator, Sequence

import numpy as np

from probe.cases import Case
from probe.experiments.readings import FEWEST_FOR_RANKS, MOST_WORDS, Reading, ReadWord
from probe.findings import mean_interval
from probe.messages import Language, message
from probe.report import Section, Table, percent
from probe.report.sections import Cell

_MOST_ROWS = 20
_MOST_WORDS_NAMED = 3
_AROUND = 30  # characters shown on each side of the target of a long text


def reading_sections(readings: Sequence[Reading], language: Language, *, total: int) -> Iterator[Section]:
    """One section, or none where there are no readings; `total` counts the set's cases without cues."""
    if not readings:
        return
    text = [_say("text", language), *_notes(readings, language, total=total)]
    columns = ("case", "text", "target", "effect", "mass", "same", "correlation", "words", "left_out")
    table = Table(
        caption=_count("table", language, count=min(len(readings), _MOST_ROWS), total=len(readings)),
        columns=tuple(_say(f"col_{name}", language) for name in columns),
        rows=tuple(_row(reading, language) for reading in readings[:_MOST_ROWS]),
        source="tables/readings.csv",
    )
    yield Section(key="readings", title=_say("title", language), text=tuple(text), tables=(table,))


def reading_words(readings: Sequence[Reading], language: Language, *, seed: int) -> Iterator[str]:
    """The sentence for the summary: do effect and mass name the same word; none where no cut edge moves a target."""
    judged = [reading for reading in readings if reading.largest_effect is not None]
    if not judged:
        return
    text = _count("summary", language, count=len(judged), same=sum(_is_same(reading) for reading in judged))
    known = [reading for reading in judged if not np.isnan(reading.correlation)]
    if known:
        values = np.array([reading.correlation for reading in known])
        found = mean_interval(values, [reading.case.id for reading in known], seed=seed)
        shown = [f"{value:.2f}".replace("-", "−") for value in (found.mean, found.low, found.high)]
        mean = shown[0]
        if not np.isnan(found.low):
            mean = message("study.interval", language, mean=shown[0], low=shown[1], high=shown[2])
        text += _count("correlation", language, count=len(known), mean=mean, fewest=FEWEST_FOR_RANKS)
    yield text


def _notes(readings: Sequence[Reading], language: Language, *, total: int) -> Iterator[str]:
    """What the numbers leave out, as far as it happened."""
    if total > len(readings):
        yield _count("looked", language, count=len(readings), total=total)
    nothing = sum(not reading.ranked for reading in readings)
    if nothing:
        yield _count("nothing", language, count=nothing)
    still = sum(bool(reading.ranked) and reading.largest_effect is None for reading in readings)
    if still:
        yield _count("still", language, count=still)
    special = sum(reading.special_first for reading in readings)
    if special:
        yield _count("special", language, count=special, total=len(readings))
    long = sum(reading.left_out > 0 for reading in readings)
    if long:
        yield _count("long", language, count=long, most=MOST_WORDS)


def _row(reading: Reading, language: Language) -> tuple[Cell, ...]:
    case, most = reading.case, reading.largest_mass
    start = (case.id, _excerpt(case), case.target.cut(case.text))
    if most is None:
        return (*start, _say("cell_nothing", language), None, None, None, 0, reading.left_out)
    moving = [_named(word, language) for word in reading.ranked[:_MOST_WORDS_NAMED] if word.effect > 0]
    same = None if reading.largest_effect is None else _say("yes" if _is_same(reading) else "no", language)
    return (
        *start, _say("join", language).join(moving) or _say("cell_still", language),
        _say("by_mass", language, word=most.label, mass=percent(most.mass)), same,
        None if np.isnan(reading.correlation) else reading.correlation, len(reading.ranked), reading.left_out,
    )  # fmt: skip


def _named(word: ReadWord, language: Language) -> str:
    effect = f"{word.effect:.3f}" if word.effect >= 0.0005 else "<0.001"
    return _say("by_effect", language, word=word.label, effect=effect, mass=percent(word.mass))


def _is_same(reading: Reading) -> bool:
    """Whether the word of largest effect has the largest mass as well, alone or with others."""
    first, most = reading.largest_effect, reading.largest_mass
    return first is not None and most is not None and first.mass == most.mass


def _excerpt(case: Case) -> str:
    """The text, or of a long one what stands around the target."""
    start, end = max(case.target.start - _AROUND, 0), min(case.target.end + _AROUND, len(case.text))
    return ("…" if start else "") + case.text[start:end] + ("…" if end < len(case.text) else "")


def _say(key: str, language: Language, /, **values: object) -> str:
    return message(f"readings.{key}", language, **values)


def _count(key: str, language: Language, /, *, count: int, **values: object) -> str:
    """A string that says how many, in the singular for one."""
    return _say(f"{key}_one" if count == 1 else key, language, count=count, **values)
