"""What a sweep knows of its trials, kept in one file that is whole or not there; the table and the lines of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml

from finetune.begun import plain_of
from finetune.choosing import COMPARABLE, OF_PAIRS
from finetune.config import RunConfig
from finetune.errors import TrainingError
from finetune.grid import LAMBDA, PLAIN, Setting, run_of

STATE, TABLE, BEST = "sweep.json", "sweep.csv", "best.yaml"
SHOWN = ("train_loss", *COMPARABLE, *OF_PAIRS)
State = Literal["done", "failed", "not tried"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a sweep begins no further trial; None: no limit."""

    runs: int | None = None  # trials, those of an interrupted sweep counted
    minutes: float | None = None  # of all trials together

    def spent_by(self, tried: Sequence["Trial"]) -> str | None:
        """What is spent, or None."""
        if self.runs is not None and len(tried) >= self.runs:
            return f"a budget of {self.runs} {'run' if self.runs == 1 else 'runs'}"
        if self.minutes is not None and sum(trial.seconds for trial in tried) >= 60 * self.minutes:
            return f"a budget of {self.minutes:g} min"
        return None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting and what came of it."""

    number: int
    setting: Setting
    state: State = "not tried"
    reason: str = ""  # why it failed
    seconds: float = 0.0
    told: Mapping[str, Any] = field(default_factory=dict)  # of the run's manifest: metrics, weight, steps, kept

    @property
    def folder(self) -> str:
        """Its run folder, below the sweep's."""
        return f"trial-{self.number:03d}"

    def value(self, metric: str) -> float:
        """A metric on dev."""
        return float(self.told["metrics"][metric])


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A sweep as far as it came."""

    folder: Path
    base: RunConfig
    metric: str
    budget: Budget
    trials: tuple[Trial, ...]
    inputs: Mapping[str, str] = field(default_factory=dict)  # the hash of each file that the base reads, by its name

    @property
    def tried(self) -> tuple[Trial, ...]:
        """Trials that came to their end or failed."""
        return tuple(trial for trial in self.trials if trial.state != "not tried")

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """Those that came to their end, the best on dev first; equals by the dev loss, then in the order tried."""
        done = [trial for trial in self.trials if trial.state == "done"]
        sign = 1 if self.metric.endswith("loss") else -1
        return tuple(sorted(done, key=lambda one: (sign * one.value(self.metric), one.value("eval_loss"), one.number)))


def save_sweep(swept: Swept) -> None:
    """Write sweep.json, sweep.csv and, where a trial came to its end, best.yaml."""
    ranked = swept.ranked
    told = {
        "metric": swept.metric, "budget": asdict(swept.budget), "tried": len(swept.tried),
        "settings": len(swept.trials), "best": ranked[0].number if ranked else None, "base": plain_of(swept.base),
        "inputs": dict(swept.inputs),
        "trials": [asdict(trial) for trial in swept.trials],
    }  # fmt: skip
    _write(swept.folder / TABLE, frame_of(swept).to_csv(index=False))
    if ranked:
        best = ranked[0]
        chosen = yaml.safe_dump(plain_of(run_of(swept.base, best.setting)), allow_unicode=True, sort_keys=False)
        _write(
            swept.folder / BEST, f"# {best.setting.name}: the best on dev by {swept.metric} ({best.folder})\n{chosen}"
        )
    _write(swept.folder / STATE, json.dumps(told, indent=1, ensure_ascii=False))


def read_sweep(folder: Path) -> Mapping[str, Any]:
    """What sweep.json says; TrainingError where there is none, or it is damaged."""
    try:
        told = json.loads((folder / STATE).read_text(encoding="utf-8"))
        trials = [Trial(**{**one, "setting": Setting(**one["setting"])}) for one in told["trials"]]
        whole = {name: dict(told[name]) for name in ("base", "inputs")}
        return {**told, **whole, "budget": Budget(**told["budget"]), "trials": trials}
    except FileNotFoundError as error:
        raise TrainingError(f"{folder}: no sweep to resume ({STATE} is missing)") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{folder / STATE} is damaged ({type(error).__name__}: {error})") from error


def frame_of(swept: Swept) -> pd.DataFrame:
    """A row a setting, those not tried as well: number, axes, state, what the run's manifest says."""
    return pd.DataFrame([_row(trial, swept) for trial in swept.trials])


def _row(trial: Trial, swept: Swept) -> dict[str, Any]:
    told, kept = trial.told, trial.told.get("kept") or {}
    axes = {axis: trial.setting.values.get(axis) for axis in _axes(swept)}
    return {
        "trial": trial.number, **axes, "state": trial.state, "weight": told.get("weight"),
        **{name: value for name, value in (told.get("metrics") or {}).items() if name in SHOWN},
        "kept_step": kept.get("step"), "steps": told.get("steps"), "stopped_early": told.get("stopped_early"),
        "seconds": round(trial.seconds, 1), "folder": trial.folder if trial.state == "done" else "",
        "reason": trial.reason,
    }  # fmt: skip


def rows_of(swept: Swept) -> tuple[list[str], list[list[str]]]:
    """The table for a terminal, columns and rows: the best first, then what failed, then what was not tried."""
    axes, ranked = _axes(swept), swept.ranked
    others = sorted((one for one in swept.trials if one.state != "done"), key=lambda one: one.state)
    columns = ["trial", *axes, "weight", swept.metric, "step kept", "minutes", ""]
    rows = []
    for trial in (*ranked, *others):
        told = trial.told
        cells = [str(trial.number), *(str(trial.setting.values.get(axis, "–")) for axis in axes)]
        if trial.state == "done":
            early = " (stopped early)" if told["stopped_early"] else ""
            weight = "–" if told["weight"] is None else f"{told['weight']:.4g}"
            cells += [weight, f"{trial.value(swept.metric):.6g}", f"{told['kept']['step']} of {told['steps']}{early}"]
            cells += [f"{trial.seconds / 60:.1f}", "best" if trial is ranked[0] else ""]
        else:
            why = f"failed: {trial.reason}" if trial.state == "failed" else trial.state
            cells += ["", "", "", f"{trial.seconds / 60:.1f}" if trial.seconds else "", why]
        rows.append(cells)
    return columns, rows


def lines_of(swept: Swept) -> list[str]:
    """How many were tried, by what the best was chosen, and what its value is worth."""
    tried, ranked, spent = swept.tried, swept.ranked, swept.budget.spent_by(swept.tried)
    failed = len(tried) - len(ranked)
    counted = f"tried {len(tried)} of {len(swept.trials)} settings" + (f", {failed} failed" if failed else "")
    lines = []
    if len(tried) < len(swept.trials):
        left = "; ".join(trial.setting.name for trial in swept.trials if trial.state == "not tried")
        lines.append(f"not tried, {spent or 'stopped'}: {left}")
    if not ranked:
        return [*lines, counted]
    best = ranked[0]
    equal = sum(trial.value(swept.metric) == best.value(swept.metric) for trial in ranked)
    if equal > 1:
        lines.append(f"note: {equal} settings have the best {swept.metric}; of these the lowest eval_loss is taken")
    if any(LAMBDA in trial.setting.values for trial in swept.trials) and not any(_plain(trial) for trial in ranked):
        lines.append(f"note: no {PLAIN} trial came to its end, so nothing here says what the loss on attention adds")
    source = "" if swept.base.data.test or swept.base.data.test_split else " --test SOURCE"
    dev = best.told["dev"]
    lines.append(
        f"{counted}; {best.setting.name} chosen on dev ({dev} examples) by {swept.metric}, so its dev value is "
        f"optimistic: measure it with `finetune evaluate {swept.folder / best.folder}{source}` on test"
    )
    return lines


def _plain(trial: Trial) -> bool:
    return trial.setting.overrides.get("attention.mode") == "none"


def _axes(swept: Swept) -> list[str]:
    return list(dict.fromkeys(axis for trial in swept.trials for axis in trial.setting.values))


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
