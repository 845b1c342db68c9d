"""What an evaluation found, as tables; written beside the run, and told in lines."""

import json
import platform
import shutil
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pandas as pd

from finetune.intervals import RESAMPLES
from finetune.material import DataRead
from finetune.runfolder import FinishedRun
from finetune.writing import disk_told

FOLDER, MANIFEST = "evaluation", "manifest.json"
ARMS = ("base", "tuned", "difference")
PACKAGES = ("torch", "transformers", "peft", "numpy")


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Results with intervals, the items behind them, and what could not be measured.

    results: measure, part, arm (base, tuned, difference = tuned − base), estimate, low, high
    (95 %; empty below five units), units, unit, items.
    """

    results: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]  # texts, general, predictions, pairs, cuts, questions: those that there are
    missing: Mapping[str, str]  # measure -> why it is not there
    notes: Sequence[str]
    read: Sequence[DataRead]
    seed: int

    def value(self, measure: str, part: str, arm: str) -> float:
        """One estimate; KeyError where it was not measured."""
        found = self.results.query("measure == @measure and part == @part and arm == @arm")
        if len(found) != 1:
            raise KeyError(f"{measure}, {part}, {arm}: {len(found)} results")
        return float(found.estimate.iloc[0])


def save_evaluation(found: Evaluation, run: FinishedRun) -> Path:
    """Write RUN/evaluation: each table as CSV and Parquet, and a manifest; never half of it.

    The same run, data, seed and packages give the same bytes.
    """
    target = run.folder / FOLDER
    with disk_told(target):
        _save(found, run, target)
    return target


def _save(found: Evaluation, run: FinishedRun, target: Path) -> None:
    partial = Path(mkdtemp(prefix=f".{FOLDER}-", dir=run.folder))
    try:
        for name, table in {"results": found.results, **found.tables, "missing": _missing(found)}.items():
            table.to_csv(partial / f"{name}.csv", index=False)
            table.to_parquet(partial / f"{name}.parquet", index=False)
        told = json.dumps(manifest_of(found, run), indent=1, ensure_ascii=False)
        (partial / MANIFEST).write_text(told, encoding="utf-8")
        partial.chmod(0o755)
        before = partial.with_name(f"{partial.name}-before")
        if target.exists():
            target.rename(before)
        partial.rename(target)
        shutil.rmtree(before, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def manifest_of(found: Evaluation, run: FinishedRun) -> dict[str, object]:
    """What was evaluated on what."""
    kind = "weights" if run.config.method == "full" else "adapter"
    return {
        kind: dict(run.hashes), "base": run.config.model, "fingerprint": run.learner.loaded.fingerprint,
        "task": run.config.task, "labels": list(run.labels), "seed": found.seed, "resamples": RESAMPLES,
        "data": [asdict(one) for one in found.read], "missing": dict(found.missing), "notes": list(found.notes),
        "packages": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }  # fmt: skip


def _missing(found: Evaluation) -> pd.DataFrame:
    return pd.DataFrame(list(found.missing.items()), columns=["measure", "why"])


def rows_of(found: Evaluation) -> list[list[str]]:
    """The results in words, a row a measure and part: base, tuned, difference with its interval, units."""
    rows = []
    for (measure, part), group in found.results.groupby(["measure", "part"], sort=False):
        told = group.to_dict("records")
        cells = {str(row["arm"]): _shown(row) for row in told}
        units = f"{told[-1]['units']} × {told[-1]['unit']}"
        rows.append([str(measure), str(part), *(cells.get(arm, "") for arm in ARMS), units])
    return rows


def lines_of(found: Evaluation) -> list[str]:
    """What could not be measured, and what a reader must know."""
    return [
        *(f"missing: {measure}: {why}" for measure, why in found.missing.items()),
        *(f"note: {note}" for note in found.notes),
    ]


def _shown(row: Mapping[Hashable, Any]) -> str:
    value = f"{row['estimate']:.4g}"
    return value if pd.isna(row["low"]) else f"{value} [{row['low']:.4g}, {row['high']:.4g}]"
