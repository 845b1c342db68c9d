"""The tables of the page: frames in, rows of words and numbers out, under headings in the page's language."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from finetune.compare.items import MEASURES, Family
from finetune.compare.messages import Language, number, sentence, word
from finetune.compare.page_messages import heading, named, page_text
from finetune.compare.power import CLAIMED
from finetune.compare.verdicts import Verdict
from finetune.rag.story import cell_of
from probe import Table

# Measures of one group have one unit: they share a picture and the columns of a table.
GROUPS: Mapping[str, str] = {
    "margin": "margin", "accuracy": "share", "exact": "share", "f1": "share", "perplexity": "perplexity",
    "general_perplexity": "perplexity", "sense_accuracy": "share", "mass": "mass", "sink": "mass",
    "passage_share": "mass", "sense_separation": "separation", "cut": "nats", "ablated": "nats",
}  # fmt: skip
# What stands in a narrow cell for a verdict's kind.
SIGNS: Mapping[str, str] = {
    "better": "▲", "worse": "▼", "higher": "△", "lower": "▽", "none": "○", "not_comparable": "–"
}  # fmt: skip
_IN_FULL = 20  # rows of a table that stands in full height
_NUMBERS = ("difference", "95 %", "p", "visible", "seeds", "items (units)")
# How a cost is told of several runs.
_COSTS: Mapping[str, str] = {
    "seconds": "mean", "cpu_seconds": "mean", "memory_mb": "max", "device_memory_mb": "max", "trainable": "max",
    "prompt_tokens": "mean",
}  # fmt: skip
_FIRST = ("margin", "accuracy", "f1", "perplexity")  # the task's measure that a contrast is told by


def table_of(frame: pd.DataFrame, caption: str, *, source: str, language: Language, whole: bool = False) -> Table:
    """Give a frame as a table of the page, its columns under their headings."""
    columns = [[cell_of(value) for value in frame[name]] for name in frame.columns]
    headings = tuple(heading(str(name), language) for name in frame.columns)
    rows = tuple(zip(*columns, strict=True))
    return Table(caption=caption, columns=headings, rows=rows, source=source, whole=whole)


def contrast_name(arm: str, against: str, language: Language) -> str:
    """Give one arm less another in words."""
    return f"{word(arm, language)} − {word(against, language)}"


def measure_name(measure: str, part: str, language: Language) -> str:
    """Give a measure and the items that it is over."""
    return f"{word(measure, language)} · {part_name(part, language)}"


def part_name(part: str, language: Language) -> str:
    """Give the items that a measure is over."""
    known = word(part, language)
    return named(part, language) if known == part else known


def groups_of(family: Family, frame: pd.DataFrame) -> tuple[str, ...]:
    """The groups of a family's measures that a table has, in the order of MEASURES."""
    there = set(frame.loc[frame["family"] == family, "measure"])
    return tuple(dict.fromkeys(GROUPS[name] for name in MEASURES if name in there))


def rows_of_group(frame: pd.DataFrame, family: Family, group: str) -> pd.DataFrame:
    """A family's rows of one group, measure by measure."""
    return frame[(frame["family"] == family) & (frame["measure"].map(GROUPS) == group)]


def measure_names(frame: pd.DataFrame, language: Language) -> str:
    """The measures of a table in words."""
    between = "、" if language == "zh" else ", "
    return between.join(word(name, language) for name in dict.fromkeys(frame["measure"]))


def leading_measure(verdicts: Sequence[Verdict]) -> tuple[str, str] | None:
    """The task's measure that contrasts are told by, and its part with the most items; None without a task."""
    there = [one for one in verdicts if one.family == "task"]
    measures = {one.measure for one in there}
    measure = next((name for name in (*_FIRST, *MEASURES) if name in measures), None)
    parts: dict[str, int] = {}
    for one in there:
        if one.measure == measure:
            parts[one.part] = max(parts.get(one.part, 0), one.items)
    return None if measure is None else (measure, max(parts, key=lambda part: parts[part]))


def claim_table(verdicts: Sequence[Verdict], *, source: str, language: Language) -> Table:
    """Supervision against random pairs on every measure of task and forgetting."""
    rows = [
        (
            measure_name(one.measure, one.part, language), page_text(f"kind.{one.kind}", language),
            *_numbers(asdict(one) | {"p_corrected": one.p}),
        )
        for one in verdicts
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["measure", "verdict", *_NUMBERS])
    return table_of(frame, page_text("verdict.claim.caption", language), source=source, language=language, whole=True)


def contrast_table(verdicts: Sequence[Verdict], *, source: str, language: Language) -> Table | None:
    """A row a contrast: what it asks, and what it comes to on the task's leading measure in one sentence."""
    leading = leading_measure(verdicts)
    if leading is None:
        return None
    rows = [
        (contrast_name(one.arm, one.against, language), page_text(f"why.{one.why}", language), sentence(one, language))
        for one in verdicts
        if (one.measure, one.part) == leading
    ]
    frame = pd.DataFrame(rows, columns=["contrast", "question", "sentence"])
    caption = page_text("verdict.caption", language, measure=measure_name(*leading, language))
    return table_of(frame, caption, source=source, language=language, whole=True)


def verdict_matrix(verdicts: Sequence[Verdict], *, source: str, language: Language) -> Table:
    """A row a contrast, a column a measure of task and forgetting: a sign for the verdict, and the difference."""
    shown = [one for one in verdicts if one.family in CLAIMED]
    measures = list(dict.fromkeys((one.measure, one.part) for one in shown))
    contrasts = list(dict.fromkeys((one.arm, one.against) for one in shown))
    found = {(one.arm, one.against, one.measure, one.part): _brief(one) for one in shown}
    names = [measure_name(*measure, language) for measure in measures]
    rows = [
        (contrast_name(*contrast, language), *(found.get((*contrast, *measure)) for measure in measures))
        for contrast in contrasts
    ]
    frame = pd.DataFrame(rows, columns=["contrast", *names])
    return table_of(frame, page_text("verdict.all", language, **SIGNS), source=source, language=language, whole=True)


def verdict_frame(verdicts: Sequence[Verdict], language: Language) -> pd.DataFrame:
    """Every verdict with its sentence, for a file."""
    rows = []
    for one in verdicts:
        low, high = one.more_seeds or (math.nan, math.nan)
        told = {name: value for name, value in asdict(one).items() if name != "more_seeds"}
        rows.append({**told, "more_seeds_low": low, "more_seeds_high": high, "sentence": sentence(one, language)})
    return pd.DataFrame(rows)


def value_table(values: pd.DataFrame, caption: str, *, source: str, language: Language) -> Table:
    """What every arm reaches, a row an arm, a column a measure of one group; the file has the intervals."""
    values = values.assign(name=_measures(values, language))
    grid = values.pivot(index="arm", columns="name", values="estimate")
    grid = grid.reindex(index=list(dict.fromkeys(values["arm"])), columns=list(dict.fromkeys(values["name"])))
    frame = grid.reset_index(drop=True)
    frame.insert(0, "arm", [word(arm, language) for arm in grid.index])
    return table_of(frame, caption, source=source, language=language, whole=True)


def difference_table(results: pd.DataFrame, caption: str, *, source: str, language: Language) -> Table:
    """All contrasts on one measure that have something to be compared by."""
    rows = [
        (
            contrast_name(row["arm"], row["against"], language), part_name(row["part"], language),
            *_numbers({str(name): value for name, value in row.items()}),
        )
        for row in results[results["missing"] == ""].to_dict("records")
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["contrast", "part", *_NUMBERS])
    if frame["part"].nunique() == 1:
        caption = f"{caption} · {frame['part'].iloc[0]}"
        frame = frame.drop(columns="part")
    return table_of(frame, caption, source=source, language=language, whole=len(frame) <= _IN_FULL)


def items_text(items: int, units: int) -> str:
    """How many items, in how many units."""
    return f"{items}\N{NO-BREAK SPACE}({units})"


def visible_table(visible: pd.DataFrame, *, source: str, language: Language) -> Table:
    """What the data could show on each measure, under each assumption."""
    known = visible[visible["visible"].notna()]
    rows = []
    for (measure, part), group in known.groupby(["measure", "part"], sort=False):
        assuming, first = str(group["assuming"].iloc[0]), group.iloc[0]
        seen = [_seen(float(value), language) for value in group["visible"]]
        shares = " / ".join(_assumed(assuming, float(value)) for value in group["assumed"])
        told = page_text(f"visible.{assuming}", language, share=shares)
        counts = items_text(int(first["items"]), int(first["units"])), float(first["design"])
        rows.append((measure_name(str(measure), str(part), language), told, " / ".join(seen), *counts))
    frame = pd.DataFrame(rows, columns=["measure", "assuming", "visible", "items (units)", "design"])
    return table_of(frame, page_text("visible.caption", language), source=source, language=language, whole=True)


def cost_table(cost: pd.DataFrame, arms: Sequence[str], *, source: str, language: Language) -> Table:
    """The mean cost of one run of each arm; of memory the most."""
    by_arm = cost.astype(dict.fromkeys(_COSTS, float)).groupby("arm", sort=False).agg({**_COSTS, "seed": "count"})
    chosen = by_arm.reindex([arm for arm in arms if arm in by_arm.index])
    frame = pd.DataFrame({"arm": [word(str(arm), language) for arm in chosen.index]})
    names = {"cpu_seconds": "CPU seconds", "memory_mb": "memory, MB", "device_memory_mb": "GPU, MB"}
    for column in _COSTS:
        frame[names.get(column, column.replace("_", " "))] = chosen[column].to_numpy()
    frame["trainable"] /= 1e6
    frame = frame.rename(columns={"trainable": "trainable, M"}).assign(runs=chosen["seed"].to_numpy())
    if not (chosen["device_memory_mb"] > 0).any():
        frame = frame.drop(columns="GPU, MB")
    return table_of(frame, page_text("cost.caption", language), source=source, language=language, whole=True)


def state_rows(jobs: Sequence[Mapping[str, object]], language: Language) -> pd.DataFrame:
    """The jobs of a plan: what each needs, how far it came, and its hash."""
    rows = []
    for job in jobs:
        needs = job.get("needs")
        listed = ", ".join(map(str, needs)) if isinstance(needs, list | tuple) else ""
        rows.append((str(job["name"]), listed, named(str(job["state"]), language), str(job.get("hash", ""))[:16]))
    return pd.DataFrame(rows, columns=["job", "needs", "state", "hash"])


def _brief(one: Verdict) -> str:
    sign = SIGNS[one.kind]
    return sign if math.isnan(one.estimate) else f"{sign} {_kept(one.estimate)}"


def _numbers(row: Mapping[str, Any]) -> tuple[str | float | None, ...]:
    """The columns _NUMBERS of a result or a verdict."""
    estimate, low, seeds = float(row["estimate"]), float(row["low"]), int(row["seeds"])
    return (
        None if math.isnan(estimate) else _kept(estimate),
        None if math.isnan(low) else _range(low, float(row["high"])),
        _known(float(row["p_corrected"])), _known(float(row["visible"])),
        _range(float(row["seed_low"]), float(row["seed_high"])) if seeds else None,
        items_text(int(row["items"]), int(row["units"])),
    )  # fmt: skip


def _range(low: float, high: float) -> str:
    """Two numbers in as little room as a narrow column has, on one line."""
    return f"{_kept(low)}…\N{NO-BREAK SPACE}{_kept(high)}"


def _kept(value: float) -> str:
    """A number with a minus that no line ends behind."""
    return number(value)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _seen(visible: float, language: Language) -> str:
    return page_text("visible.never", language) if math.isinf(visible) else number(visible, signed=False)


def _measures(frame: pd.DataFrame, language: Language) -> list[str]:
    return [measure_name(*pair, language) for pair in zip(frame["measure"], frame["part"], strict=True)]


def _assumed(assuming: str, assumed: float) -> str:
    return f"{assumed:.0%}" if assuming == "changed" else f"{assumed:g}"
