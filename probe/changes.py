"""What changed between two run folders: their manifests, and their results joined on what each row is about."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probe.errors import OutputError
from probe.runs import MAKER, MANIFEST

KEYS = ["model", "stack", "layer", "head", "query", "key", "weighting", "measure", "contrast", "unit"]
NUMBERS = ["estimate", "low", "high"]
# What of a manifest decides the numbers, and what a reader calls it; times and file hashes follow from these.
_FACTS = {
    "model": "model", "data": "cases", "config": "settings", "seeds": "settings", "threads": "settings",
    "packages": "packages", "check": "self-check",
}  # fmt: skip
_TOLD_ELSEWHERE = {("config", "model"), ("config", "cases")}


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedRun:
    """A run folder as it was left: its manifest and its results."""

    name: str
    manifest: Mapping[str, Any]
    results: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """One entry of the manifests that differs; None where a run has no such entry."""

    what: str  # model, cases, settings, packages, self-check
    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Changes:
    """All that differs between two runs."""

    facts: tuple[FactChange, ...]
    rows: pd.DataFrame
    """Results that both runs have and whose numbers differ, the largest change outside both intervals first: the keys,
    "estimate A", "low A", "high A", the same of B, "change" (B − A) and "outside"."""
    joined: int
    """Rows that both runs have."""
    only_a: int
    only_b: int

    @property
    def nothing(self) -> bool:
        """Whether the two runs are the same in all that is looked at."""
        return not (self.facts or len(self.rows) or self.only_a or self.only_b)

    @property
    def outside(self) -> int:
        """In how many rows each estimate lies outside the other run's interval."""
        return int(self.rows["outside"].sum())


def load_run(path: str | Path) -> FinishedRun:
    """Read the manifest and results of a run folder; OutputError, one line, where it is none."""
    folder = Path(path).expanduser()
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        made_by = manifest["made_by"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{path} is no run folder: it has no readable {MANIFEST}") from error
    if made_by != MAKER:
        raise OutputError(f"{path} is no run folder of this program: its {MANIFEST} was made by {made_by!r}")
    return FinishedRun(name=str(path), manifest=manifest, results=_results(folder, str(path)))


def changes_between(a: FinishedRun, b: FinishedRun) -> Changes:
    """Compare two runs; a change lies outside both intervals where neither estimate is in the other's.

    Runs of one model each are joined without the model's name, so that one model can be held against another.
    """
    one_model = all(run.results["model"].nunique() <= 1 for run in (a, b))
    keys = [key for key in KEYS if key != "model" or not one_model]
    both = a.results.merge(b.results, on=keys, how="outer", suffixes=(" A", " B"), indicator=True, validate="1:1")
    joined = both[both["_merge"] == "both"]
    return Changes(
        facts=tuple(_fact_changes(a.manifest, b.manifest)),
        rows=_changed_rows(joined, keys),
        joined=len(joined),
        only_a=int((both["_merge"] == "left_only").sum()),
        only_b=int((both["_merge"] == "right_only").sum()),
    )


def summary_of(changes: Changes) -> tuple[str, ...]:
    """What changed, in a few lines."""
    if changes.nothing:
        return (f"nothing changed: {changes.joined} results are equal, and so are model, cases, settings and packages",)
    kinds = list(dict.fromkeys(fact.what for fact in changes.facts))
    lines = [f"different: {', '.join(kinds)}" if kinds else "model, cases, settings and packages are the same"]
    if len(changes.rows):
        lines.append(
            f"results: {len(changes.rows)} of {changes.joined} changed, "
            f"{changes.outside} of them outside both intervals"
        )
    else:
        lines.append(f"results: nothing changed in {changes.joined} of them")
    if changes.only_a or changes.only_b:
        lines.append(f"results that only one run has: {changes.only_a} in A, {changes.only_b} in B")
    return tuple(lines)


def fact_rows(changes: Changes) -> tuple[tuple[str, ...], ...]:
    """What of the manifests differs, as rows of words: what, name, A, B."""
    return tuple((fact.what, fact.name, fact.a or "–", fact.b or "–") for fact in changes.facts)


def result_rows(changes: Changes, *, most: int) -> tuple[tuple[str, ...], ...]:
    """The largest changes outside both intervals as rows of words: what, where, A, B, change."""
    rows = changes.rows[changes.rows["outside"]].head(most)
    return tuple(_result_row(row) for row in rows.to_dict("records"))


def write_changes(changes: Changes, path: Path) -> None:
    """Write every changed result as CSV."""
    try:
        changes.rows.to_csv(path, index=False, lineterminator="\n")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _result_row(row: Mapping[Any, Any]) -> tuple[str, ...]:
    edge = " → ".join(word for word in (row["query"], row["key"]) if word)
    head = "" if row["head"] < 0 else f", head {row['head']}"
    layer = "every layer" if row["layer"] < 0 else f"{row['stack']} layer {row['layer']}{head}"
    what = ", ".join(word for word in (row["measure"], edge, row["contrast"]) if word)
    model = [str(row["model"])] if "model" in row else []
    sides = (f"{row[f'estimate {s}']:.4g} ({row[f'low {s}']:.4g} to {row[f'high {s}']:.4g})" for s in "AB")
    return (" · ".join([*model, what]), layer, *sides, f"{row['change']:+.4g}")


def _results(folder: Path, shown: str) -> pd.DataFrame:
    """The results table, numbers as float32 whichever of its files is there."""
    found = [folder / "tables" / f"results.{kind}" for kind in ("parquet", "csv")]
    table = next((path for path in found if path.is_file()), None)
    if table is None:
        raise OutputError(f"{shown} has no tables/results.parquet and no tables/results.csv: nothing to compare")
    try:
        frame = pd.read_parquet(table) if table.suffix == ".parquet" else pd.read_csv(table, keep_default_na=True)
    except (OSError, ValueError) as error:
        raise OutputError(f"{shown}/tables/{table.name} cannot be read; it is damaged") from error
    missing = [name for name in (*KEYS, *NUMBERS) if name not in frame]
    if missing:
        raise OutputError(f"{shown}/tables/{table.name} has no column {missing[0]!r}; it is no results table")
    words = [key for key in KEYS if key not in ("layer", "head")]
    frame[words] = (
        frame[words].astype(object).where(frame[words].notna(), "").astype(str)
    )  # an empty word in CSV is NaN
    frame[NUMBERS] = frame[NUMBERS].astype(np.float32)
    if frame.duplicated(KEYS).any():
        raise OutputError(f"{shown}/tables/{table.name} has two rows about the same thing; it is damaged")
    return frame[[*KEYS, *NUMBERS]]


def _changed_rows(joined: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    sides = {side: joined[[f"{name} {side}" for name in NUMBERS]].to_numpy(dtype=float) for side in "AB"}
    a, b = sides["A"], sides["B"]
    differs = ~((a == b) | (np.isnan(a) & np.isnan(b))).all(1)
    # Nothing is outside of an interval that is not there.
    outside = (b[:, 0] < a[:, 1]) | (b[:, 0] > a[:, 2])
    outside &= (a[:, 0] < b[:, 1]) | (a[:, 0] > b[:, 2])
    columns = [*keys, *(f"{name} {side}" for side in "AB" for name in NUMBERS)]
    rows = joined[columns].assign(change=b[:, 0] - a[:, 0], outside=outside)[differs]
    return _largest_first(rows)


def _largest_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Changes outside both intervals first, then by size; a number that came or went has no size and stands last.

    Ranks go to dozens and shares to 1, so a change counts as a share of its measure's largest number.
    """
    largest = rows[["estimate A", "estimate B"]].abs().max(axis=1).groupby(rows["measure"]).transform("max")
    order = rows.assign(size=rows["change"].abs() / largest).sort_values(
        ["outside", "size"], ascending=[False, False], kind="stable", na_position="last"
    )
    return order.drop(columns="size").reset_index(drop=True)


def _fact_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[FactChange]:
    for fact, what in _FACTS.items():
        one, other = dict(_flat(a.get(fact), fact)), dict(_flat(b.get(fact), fact))
        for path in dict.fromkeys([*one, *other]):
            if path not in _TOLD_ELSEWHERE and one.get(path) != other.get(path):
                name = " ".join(path[1:]) or fact
                yield FactChange(what=what, name=name, a=one.get(path), b=other.get(path))


def _flat(value: Any, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every leaf of nested mappings with the names that lead to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, *path, str(name))
    elif value is not None:
        yield path, str(value)
