"""A sweep: the settings of a grid trained one after the other under a budget, and the best of them on dev.

Each trial is an ordinary run, begun from the base model with the same seed and data: trained by itself it would be the
same to the last bit (`tests/test_finetune_sweep.py`).
"""

import gc
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from finetune.adapters import MANIFEST
from finetune.begun import CHECKPOINTS, LOCK, check_folder, held, input_hashes, plain_of, refuse_changes
from finetune.checkpoints import latest_checkpoint
from finetune.choosing import COMPARABLE, dev_expected, full_name, known_metrics, metric_problem, more_is_better
from finetune.config import RunConfig, config_of, with_overrides
from finetune.errors import ConfigError, DataError, PairError, TrainingError
from finetune.grid import Setting, default_axes, run_of, settings_of
from finetune.preflight import inspect_run
from finetune.prepare import Progress
from finetune.train import train
from finetune.trials import Budget, Swept, Trial, read_sweep, save_sweep
from finetune.whole import check_written
from probe import CijingError

DEFAULT_BUDGET = Budget(runs=8)  # of the grid that is taken when none is named


def sweep(
    base: RunConfig,
    *,
    folder: Path,
    axes: Mapping[str, Sequence[Any]] | None = None,
    budget: Budget | None = None,
    metric: str | None = None,
    resume: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> Swept:
    """Try the settings of the grid in a drawn order until all are tried or the budget is spent.

    Without axes: λ and rank, at most 8 runs. resume goes on with the sweep in the folder, whose finished trials stand;
    further axes add settings, a further budget replaces the old one, both counted over all trials. A trial that its
    setting brings down is recorded with its reason; a full disk or a damaged file ends the sweep instead. ConfigError,
    TrainingError or what a look before training finds, before the first trial; TrainingError where no trial came to
    its end.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a sweep runs in one process: start it without torchrun or accelerate launch")
    _refuse_empty(budget)
    base = comparable(base, metric)
    with nullcontext() if folder.exists() and not folder.is_dir() else held(folder, "swept"):
        return _swept(base, folder, axes, budget, resume=resume, device=device, progress=progress)


def _swept(
    base: RunConfig,
    folder: Path,
    axes: Mapping[str, Sequence[Any]] | None,
    budget: Budget | None,
    *,
    resume: bool,
    device: str,
    progress: Progress | None,
) -> Swept:
    swept = _planned(base, folder, axes, budget, resume=resume)
    if any(trial.state == "not tried" for trial in swept.trials):
        _look(base)
    folder.mkdir(parents=True, exist_ok=True)
    for state in _steps(swept, device=device, progress=progress):
        swept = state
        save_sweep(swept)
    if swept.tried and not swept.ranked:
        first = swept.tried[0]
        raise TrainingError(
            f"{folder}: all settings that were tried ({len(swept.tried)}) failed; {first.setting.name}: {first.reason}"
        )
    return swept


def comparable(base: RunConfig, metric: str | None) -> RunConfig:
    """The base with the metric by which steps and settings are chosen; ConfigError for one that settings change.

    The attention loss and the pairs' mass go with λ by construction, and the plain arm has neither.
    """
    if not dev_expected(base.data):
        raise ConfigError("a sweep chooses on dev: give data.dev, data.dev_split or data.dev_share")
    told = base.training.get("metric_for_best_model")
    asked = full_name(metric or str(told or "loss"))
    allowed = tuple(name for name in known_metrics(base.task, supervised=False) if name in COMPARABLE)
    if problem := metric_problem(asked, allowed):
        source = "--metric" if metric else "training.metric_for_best_model"
        raise ConfigError(f"{source} {problem}: others change with λ by construction")
    both = {
        "training.metric_for_best_model": asked, "training.greater_is_better": more_is_better(asked),
    }  # fmt: skip
    return config_of(with_overrides(plain_of(base), both))


def _refuse_empty(budget: Budget | None) -> None:
    if budget is None:
        return
    for name, value in (("runs", budget.runs), ("minutes", budget.minutes)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"--{name} {value:g}: no trial would begin; allowed is a number above 0")


def _planned(
    base: RunConfig,
    folder: Path,
    axes: Mapping[str, Sequence[Any]] | None,
    budget: Budget | None,
    *,
    resume: bool,
) -> Swept:
    """The trials in their order, those of an earlier call first; nothing is written."""
    metric = str(base.training["metric_for_best_model"])
    if not resume:
        if folder.exists() and (not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir())):
            raise TrainingError(f"{folder} is not empty: give --resume to go on with that sweep, or another --out")
        settings = settings_of(base, default_axes(base) if axes is None else axes)
        budget = budget or (DEFAULT_BUDGET if axes is None else Budget())
        return Swept(
            folder=folder, base=base, metric=metric, budget=budget, trials=_numbered((), settings),
            inputs=input_hashes(base),
        )  # fmt: skip
    told = read_sweep(folder)
    refuse_changes(told["base"], plain_of(base), folder)
    _refuse_other_inputs(base, told["inputs"], folder)
    before = tuple(_as_found(trial, folder) for trial in told["trials"])
    known = {trial.setting.key for trial in before}
    new = [one for one in settings_of(base, axes) if one.key not in known] if axes is not None else []
    return Swept(
        folder=folder, base=base, metric=metric, budget=budget or told["budget"], trials=_numbered(before, new),
        inputs=told["inputs"],
    )  # fmt: skip


def _refuse_other_inputs(base: RunConfig, before: Mapping[str, str], folder: Path) -> None:
    """TrainingError that names each file that is another than when the sweep began: trials would not be comparable."""
    now = input_hashes(base)
    other = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if other:
        raise TrainingError(
            f"{folder}: {', '.join(other)} changed since the sweep began, so its trials would not be comparable; "
            "put back what it was, or start anew with another --out"
        )


def _numbered(before: Sequence[Trial], new: Sequence[Setting]) -> tuple[Trial, ...]:
    first = len(before) + 1
    return (*before, *(Trial(number=number, setting=setting) for number, setting in enumerate(new, first)))


def _as_found(trial: Trial, folder: Path) -> Trial:
    """A trial whose folder is gone is one that was not tried, so that what failed can be tried again."""
    gone = trial.state != "not tried" and not (folder / trial.folder).is_dir()
    return Trial(number=trial.number, setting=trial.setting) if gone else trial


def _look(base: RunConfig) -> None:
    """What every trial would stop for, before the first one begins."""
    found = inspect_run(base, examples=0)
    if found.refusal is not None:
        raise found.refusal
    if any(caution.name == "dev" for caution in found.cautions):
        raise ConfigError("a sweep chooses on dev, and the texts give no dev part: give data.dev, or more texts")


def _steps(swept: Swept, *, device: str, progress: Progress | None) -> Iterator[Swept]:
    """The sweep before its first trial and after each."""
    yield swept
    for place, trial in enumerate(swept.trials):
        if trial.state != "not tried" or swept.budget.spent_by(swept.tried):
            continue
        _refuse_other_inputs(swept.base, swept.inputs, swept.folder)
        tell = _of_trial(progress, trial, len(swept.trials))
        tried = tried_out(trial, swept, device=device, progress=tell)
        swept = replace(swept, trials=(*swept.trials[:place], tried, *swept.trials[place + 1 :]))
        yield swept


def tried_out(trial: Trial, swept: Swept, *, device: str, progress: Progress | None) -> Trial:
    """Train one setting; a run that its setting brings down is a trial that failed.

    What is no fault of the setting (a full disk, a damaged checkpoint) is raised, and the trial stays untried.
    """
    config = run_of(swept.base, trial.setting, out=str(swept.folder / trial.folder))
    begun = time.monotonic()
    left = as_left(config)
    try:
        if left != "ended":
            train(config, resume=left == "begun", device=device, progress=progress)
        told = _told(config.folder)
        problem = "" if math.isfinite(told["metrics"][swept.metric]) else f"{swept.metric} on dev is no number"
    except CijingError as error:
        if not _of_the_setting(error):
            raise
        told, problem = {}, str(error)
    except torch.OutOfMemoryError as error:
        told, problem = {}, f"out of memory: {' '.join(str(error).split())[:200]}"
    finally:
        gc.collect()  # model and trainer hold each other; the next trial needs their room
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    seconds = time.monotonic() - begun
    if problem:
        config.folder.mkdir(exist_ok=True)  # a failed trial is tried again where its folder is gone
        return replace(trial, state="failed", reason=problem, seconds=seconds)
    return replace(trial, state="done", seconds=seconds, told=told)


def _of_the_setting(error: CijingError) -> bool:
    """Whether another setting might not have met it: what came from outside (disk, hub) has that as its cause."""
    return isinstance(error, ConfigError | DataError | PairError) or error.__cause__ is None


def as_left(config: RunConfig) -> Literal["new", "begun", "ended"]:
    """How far an earlier call came with the trial; a folder that someone has changed is refused."""
    folder = config.folder
    if (folder / MANIFEST).is_file():  # killed between the run's end and the sweep's note of it
        try:
            refuse_changes(_manifest(folder)["config"], plain_of(config), folder)
            check_written(folder, config.method)
        except CijingError as error:
            raise TrainingError(f"{error}; remove {folder} to try its setting anew") from error
        return "ended"
    if folder.is_dir() and latest_checkpoint(folder / CHECKPOINTS) is not None:
        check_folder(folder, config, resume=True)
        return "begun"
    if folder.exists():
        shutil.rmtree(folder)  # a trial of ours that was killed before its first checkpoint
    return "new"


def _told(folder: Path) -> dict[str, Any]:
    """What the manifest of a run that ended says."""
    manifest = _manifest(folder)
    return {
        "metrics": manifest["metrics"], "weight": (manifest["attention"] or {}).get("weight"),
        "dev": manifest["records"]["dev"], **{name: manifest[name] for name in ("steps", "stopped_early", "kept")},
    }  # fmt: skip


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"{folder}: {MANIFEST} is damaged ({error})") from error
    if not isinstance(found, dict) or "config" not in found:
        raise TrainingError(f"{folder}: {MANIFEST} is not one of `finetune train`")
    return found


def _of_trial(progress: Progress | None, trial: Trial, count: int) -> Progress | None:
    if progress is None:
        return None

    def tell(stage: str, done: int, total: int) -> None:
        progress(f"trial {trial.number} of {count} ({trial.setting.name}), {stage}", done, total)

    return tell
