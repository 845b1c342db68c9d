"""A comparison run: all jobs that are left, one after the other or in several processes, then the report."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from finetune.begun import LOCK, held
from finetune.compare.arms import ARMS
from finetune.compare.items import COLUMNS
from finetune.compare.jobs import MeasureJob, record_failure, run_job
from finetune.compare.messages import Language
from finetune.compare.plan import (
    COST,
    ITEMS,
    JOBS,
    Job,
    JobState,
    Plan,
    is_done,
    is_trained,
    plan_of,
    read_told,
    save_plan,
    selected,
    states_of,
    with_needed,
)
from finetune.compare.reporting import Asked, Report, write_report
from finetune.compare.settings import PLAN, CompareConfig, run_of
from finetune.errors import BusyError, ConfigError, TrainingError
from finetune.learner import head_asked, refuse_unfit
from finetune.prepare import Progress
from finetune.writing import PART
from probe import CijingError, model_outline

_LOOK_AGAIN = 1.0  # seconds between two looks at a job that another process holds


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """A comparison as far as it came."""

    folder: Path
    items: pd.DataFrame  # of all jobs that are done, by COLUMNS
    costs: pd.DataFrame  # a row a job that is done
    jobs: tuple[JobState, ...]
    missing: Mapping[str, str]  # jobs that are not done, and why
    failed: tuple[str, ...] = ()  # of the jobs that this call was to do
    report: Report | None = None  # None where a part of the jobs was asked for, or none is done


@dataclass(kw_only=True)
class _Work:
    """What is done in this call, and what became of it."""

    plan: Plan
    folder: Path
    measure: MeasureJob
    device: str
    progress: Progress | None
    wanted: frozenset[str]  # jobs whose numbers are asked for; of others only their run
    missing: dict[str, str] = field(default_factory=dict)


def compare(
    config: CompareConfig,
    *,
    folder: Path,
    measure: MeasureJob,
    asked: Asked | None = None,
    only: Sequence[str] = (),
    anew: bool = False,
    device: str = "auto",
    language: Language = "zh",
    progress: Progress | None = None,
) -> Compared:
    """Do what is left of a comparison in its folder; the same call goes on where an earlier one was killed.

    What is done stays while what decides it stays, and is done anew where that changed only with `anew`. only: ARM or
    ARM:SEED, with the runs that these need, as one of several processes or machines that share the folder; without it
    all jobs, and at the end the report, which shows what was `asked`. A job that fails is recorded with its reason, and
    those that need it are told; the others go on.
    Raises ConfigError, DataError or ModelError for what no job could do with, TrainingError for a folder of something
    else or with jobs that were done with other settings, files or versions.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a comparison's jobs run in one process each: start it without torchrun or accelerate launch")
    plan = plan_of(config)
    jobs = selected(plan, only)
    wanted = with_needed(plan, jobs)
    if not anew:
        _refuse_to_replace(wanted, plan, folder)
    if not all(is_done(job, folder) for job in wanted):
        _refuse_model(config)
    write_plan(plan, folder)
    work = _Work(
        plan=plan, folder=folder, measure=measure, device=device, progress=progress,
        wanted=frozenset(job.name for job in jobs if job.compared),
    )  # fmt: skip
    _do_all(wanted, work)
    write_plan(plan, folder)
    found = gathered(plan, folder, reasons=work.missing)
    mine = {job.name for job in wanted}
    found = replace(
        found, failed=tuple(one.job.name for one in found.jobs if one.state == "failed" and one.job.name in mine)
    )
    if only or found.items.empty:
        return found
    return replace(found, report=write_report(plan, found.jobs, folder, asked=asked, language=language))


def _refuse_to_replace(jobs: Sequence[Job], plan: Plan, folder: Path) -> None:
    """TrainingError where what was trained or measured for hours would be lost to a setting changed by oversight."""
    changed = [one for one in states_of(plan, folder) if one.state == "changed" and one.job in jobs]
    if changed:
        count = "1 job was" if len(changed) == 1 else f"{len(changed)} jobs were"
        first = changed[0]
        raise TrainingError(
            f"{folder}: {count} done with other settings, files or versions ({first.job.name}: {first.reason}); "
            "give another --out, or --anew to replace them"
        )


def _refuse_model(config: CompareConfig) -> None:
    """ModelError or ConfigError for a model that no job could do with; its weights are not read."""
    outline = model_outline(
        config.model, head=head_asked(config.task), revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )  # fmt: skip
    run = run_of(config, ARMS["lora"], seed=config.seeds[0])
    refuse_unfit(run, kind=outline.kind, settings=outline.config)


def write_plan(plan: Plan, folder: Path) -> None:
    """Write plan.json with how far each job came; TrainingError for a folder that holds something and no comparison."""
    if folder.exists() and not folder.is_dir():
        raise TrainingError(f"{folder} is a file: give another --out")
    others = folder.is_dir() and any(path.name != LOCK and not path.name.endswith(PART) for path in folder.iterdir())
    if others and not (folder / PLAN).is_file():
        raise TrainingError(f"{folder} is not empty and holds no comparison ({PLAN} is missing): give another --out")
    save_plan(plan, folder)


def gathered(plan: Plan, folder: Path, *, reasons: Mapping[str, str] | None = None) -> Compared:
    """What all jobs that are done have found; of the others why not, as far as it is known."""
    states = states_of(plan, folder)
    compared = [one for one in states if one.job.compared]
    done = [one.job for one in compared if one.state == "done"]
    items = [pd.read_parquet(folder / JOBS / job.name / ITEMS) for job in done]
    costs = [_cost_row(job, folder) for job in done]
    missing = {
        one.job.name: (reasons or {}).get(one.job.name) or one.reason or "not done yet"
        for one in compared
        if one.state != "done"
    }
    return Compared(
        folder=folder, items=pd.concat(items, ignore_index=True) if items else pd.DataFrame(columns=list(COLUMNS)),
        costs=pd.DataFrame(costs), jobs=states, missing=missing,
    )  # fmt: skip


# ---- jobs ------------------------------------------------------------------------------------------------------


def _do_all(jobs: Sequence[Job], work: _Work) -> None:
    """One job after the other; those that wait for a run of another process come last, as soon as it is there."""
    left, busy = list(jobs), set[str]()
    while left:
        waiting = []
        for job in left:
            state = _done_now(job, work, number=f"{jobs.index(job) + 1} of {len(jobs)}", busy=busy)
            waiting += [job] if state == "waits" else []
        if waiting and all(job in waiting or job.name in busy for job in left):
            _wait(waiting, work)
        # A run that another process had is looked for again, and made here where that process gave it up.
        needed = {name for job in waiting for name in job.needs if name in busy}
        busy -= needed
        left = [job for job in jobs if job in waiting or job.name in needed]


def _done_now(job: Job, work: _Work, *, number: str, busy: set[str]) -> Literal["over", "waits"]:
    """Do a job if that is possible now; whatever hinders it is kept in the work's `missing`."""
    compared = job.name in work.wanted
    if is_done(job, work.folder) if compared else is_trained(job, work.folder):
        work.missing.pop(job.name, None)
        return "over"
    for name in job.needs:
        if name in busy and not is_trained(work.plan.job(name), work.folder):
            return "waits"
        if not is_trained(work.plan.job(name), work.folder):
            work.missing[job.name] = f"needs the run of {name}: {work.missing.get(name, 'not there')}"
            return "over"
    try:
        with held(work.folder / JOBS / job.name, "worked on"):
            run_job(
                job, work.plan, work.folder, measure=work.measure, compared=compared, device=work.device,
                progress=_of_job(work.progress, f"job {number} ({job.name})"),
            )  # fmt: skip
        work.missing.pop(job.name, None)
    except BusyError:
        busy.add(job.name)
        work.missing[job.name] = "another process is at work on it"
    except (CijingError, torch.OutOfMemoryError) as error:
        work.missing[job.name] = " ".join(str(error).split())[:1000]
        record_failure(job, work.folder, work.missing[job.name])
    return "over"


def _wait(jobs: Sequence[Job], work: _Work) -> None:
    if work.progress is not None:
        needed = ", ".join(dict.fromkeys(name for job in jobs for name in job.needs))
        work.progress(f"waiting for another process: {needed}", 0, 1)
    time.sleep(_LOOK_AGAIN)


def _of_job(progress: Progress | None, job: str) -> Progress | None:
    return None if progress is None else lambda stage, done, total: progress(f"{job}, {stage}", done, total)


def _cost_row(job: Job, folder: Path) -> dict[str, Any]:
    told = read_told(folder / JOBS / job.name / COST)
    flat = {name: value for name, value in told.items() if not isinstance(value, dict)}
    return {"arm": job.arm.name, "seed": job.seed, **flat}
