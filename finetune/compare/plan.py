"""The jobs of a comparison, what each needs, and which of them are done: by the hash of all that decides them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from finetune.adapters import MANIFEST
from finetune.compare.arms import ARMS, Arm
from finetune.compare.deciding import Deciding, file_hash, hash_of
from finetune.compare.items import UNTRAINED
from finetune.compare.settings import PLAN, CompareConfig, runs_needed
from finetune.errors import ConfigError
from finetune.writing import disk_told, write_whole

JOBS, RUNS = "jobs", "runs"
ITEMS, MAPS, WRITTEN, COST = "items.parquet", "maps.parquet", "written.parquet", "cost.json"
JOB, FAILED = "job.json", "failed.json"

State = Literal["done", "trained", "begun", "failed", "changed", "left"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One arm with one seed: a run where the arm is trained, and its numbers where it is compared."""

    arm: Arm
    seed: int  # UNTRAINED for an arm that learns nothing
    compared: bool  # False: it is only trained, for jobs that need its run
    needs: tuple[str, ...]  # jobs whose runs must have come to their end before
    trained_by: Mapping[str, Any] | None  # what decides its run; None for an arm without one of its own
    measured_by: Mapping[str, Any]  # what decides its numbers

    @property
    def name(self) -> str:
        """lora-attention-0; an arm without training has one job, base."""
        return name_of(self.arm, self.seed)

    @property
    def run_name(self) -> str | None:
        """The run that it is measured on: its own, or another job's."""
        return None if self.arm.run is None else f"{self.arm.run}-{self.seed}"

    @property
    def run_hash(self) -> str | None:
        """Of all that decides its run."""
        return None if self.trained_by is None else hash_of(self.trained_by)

    @property
    def hash(self) -> str:
        """Of all that decides its numbers."""
        return hash_of(self.measured_by)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All jobs of a comparison, each behind those that it needs."""

    config: CompareConfig
    jobs: tuple[Job, ...]

    def job(self, name: str) -> Job:
        """The job of this name."""
        return next(job for job in self.jobs if job.name == name)


@dataclass(frozen=True, kw_only=True)
class JobState:
    """How far a job came in a folder."""

    job: Job
    state: State
    reason: str = ""  # why it failed, or what decides it now that did not when its numbers or its run were made


def plan_of(config: CompareConfig) -> Plan:
    """The jobs in their order: those without training, then seed by seed.

    DataError or ConfigError for a file that the comparison reads and that is not there.
    """
    deciding = Deciding(config=config)
    runs = runs_needed(config)
    jobs = [_job(deciding, arm, UNTRAINED) for arm in config.chosen if arm.run is None]
    for seed in config.seeds:
        wanted = (arm for arm in ARMS.values() if arm in runs or (arm in config.chosen and arm.run is not None))
        jobs += [_job(deciding, arm, seed) for arm in wanted]
    return Plan(config=config, jobs=tuple(jobs))


def name_of(arm: Arm, seed: int) -> str:
    """A job's name, which its folders have too."""
    return arm.name if arm.run is None else f"{arm.name}-{seed}"


def selected(plan: Plan, only: Sequence[str]) -> tuple[Job, ...]:
    """The jobs that ARM or ARM:SEED names, all without a name; ConfigError lists what there is."""
    if not only:
        return plan.jobs
    names: set[str] = set()
    for text in only:
        found = {job.name for job in plan.jobs if _named(job, text)}
        if not found:
            allowed = ", ".join(dict.fromkeys(job.arm.name for job in plan.jobs))
            seeds = ", ".join(map(str, plan.config.seeds))
            raise ConfigError(f"--only {text}: no such job; allowed are ARM or ARM:SEED of {allowed} and seeds {seeds}")
        names |= found
    return tuple(job for job in plan.jobs if job.name in names)


def with_needed(plan: Plan, jobs: Sequence[Job]) -> tuple[Job, ...]:
    """The jobs and, before them, those whose runs they need."""
    names = {job.name for job in jobs}
    for job in reversed(plan.jobs):  # what a job needs stands before it
        if job.name in names:
            names |= set(job.needs)
    return tuple(job for job in plan.jobs if job.name in names)


def states_of(plan: Plan, folder: Path) -> tuple[JobState, ...]:
    """How far each job came in the folder."""
    return tuple(_state_of(job, folder) for job in plan.jobs)


def is_done(job: Job, folder: Path) -> bool:
    """Whether nothing is left of the job: its numbers as they were written or, where it is only trained, its run.

    Numbers of a run that was trained anew since are not those of the run; a run that was removed leaves its numbers.
    """
    if not job.compared:
        return is_trained(job, folder)
    place = folder / JOBS / job.name
    told = read_told(place / JOB)
    if told.get("hash") != job.hash or not told.get("files"):
        return False
    manifest = manifest_of(job.run_name, folder)
    same_run = told.get("run") == file_hash(manifest) if manifest.is_file() else True
    if not same_run or (job.arm.trained and manifest.is_file() and not is_trained(job, folder)):
        return False
    return all((place / name).is_file() and file_hash(place / name) == made for name, made in told["files"].items())


def is_trained(job: Job, folder: Path) -> bool:
    """Whether the job's own run came to its end, decided by what decides it now."""
    whole = "config" in read_told(manifest_of(job.name, folder))
    return whole and is_begun(job, folder)


def is_begun(job: Job, folder: Path) -> bool:
    """Whether the job's own run, ended or not, is decided by what decides it now."""
    told = read_told(mark_of(job, folder))
    learned = learned_by(job, folder)
    return told.get("hash") == job.run_hash and (learned is None or told.get("learned") == learned)


def learned_by(job: Job, folder: Path) -> dict[str, Any] | None:
    """What the run that the job comes after decides of its own, by dotted keys; None where no whole manifest tells it.

    The control has heads and weight of the supervised arm; further texts are read in as many steps as those without.
    """
    if job.arm.after is None:
        return {}
    told = read_told(manifest_of(f"{job.arm.after}-{job.seed}", folder))
    try:
        return _steps_of(told) if job.arm.more_text else _heads_of(told)
    except (KeyError, TypeError, ValueError, AttributeError):  # a manifest that is damaged, or none
        return None


def manifest_of(run: str | None, folder: Path) -> Path:
    """The file with which a run has come to its end."""
    return folder / RUNS / str(run) / MANIFEST


def mark_of(job: Job, folder: Path) -> Path:
    """The file beside a run that says what decided it and what it cost."""
    return folder / RUNS / f"{job.name}.json"


def changed_in(job: Job, folder: Path) -> tuple[str, ...]:
    """What decides the job now and did not when its numbers, or its whole run, were made, by dotted keys; empty: none.

    These would be lost where the job is done anew.
    """
    told, mark = read_told(folder / JOBS / job.name / JOB), read_told(mark_of(job, folder))
    found: list[str] = []
    if job.arm.trained and "config" in read_told(manifest_of(job.name, folder)) and mark.get("hash") != job.run_hash:
        found += differing(_with_run_read(mark.get("decided_by")), _with_run_read(job.trained_by))
    if job.compared and told.get("files") and told.get("hash") != job.hash:
        found += [key for key in differing(told.get("decided_by"), job.measured_by) if key != "run" or not found]
    return tuple(dict.fromkeys(found))


def differing(before: Any, now: Any, key: str = "") -> list[str]:
    """The dotted keys in which two readings differ, each where it is no mapping any more on both sides."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return [
            one
            for name in sorted(before.keys() | now.keys())
            for one in differing(before.get(name), now.get(name), f"{key}.{name}" if key else name)
        ]
    return [] if json.dumps(before, sort_keys=True) == json.dumps(now, sort_keys=True) else [key or "all"]


def read_told(path: Path) -> dict[str, Any]:
    """What a file of ours says; empty where it is missing or damaged, so that what it stood for is made anew."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def plan_config(config: CompareConfig) -> dict[str, Any]:
    """The configuration as plan.json holds it: a file that `compare` takes, wherever the folder lies."""
    told: dict[str, Any] = config.model_dump(mode="json", exclude={"out": True, "attention": {"mode"}})
    return told


def save_plan(plan: Plan, folder: Path) -> None:
    """Write plan.json: the configuration, and each job with its state and what it needs."""
    told = {"config": plan_config(plan.config), "jobs": [_told(one) for one in states_of(plan, folder)]}
    with disk_told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PLAN, json.dumps(told, indent=1, ensure_ascii=False))


def rows_of(states: Sequence[JobState]) -> tuple[list[str], list[list[str]]]:
    """The table for a terminal, columns and rows."""
    rows = []
    for one in states:
        makes = [word for word, given in (("run", one.job.arm.trained), ("numbers", one.job.compared)) if given]
        state = f"{one.state}: {one.reason}" if one.reason else one.state
        rows.append([one.job.name, " and ".join(makes), ", ".join(one.job.needs), state])
    return ["job", "makes", "needs the run of", "state"], rows


# ---- jobs and states -------------------------------------------------------------------------------------------------


def _job(deciding: Deciding, arm: Arm, seed: int) -> Job:
    needs = [name for name in (arm.after, arm.run) if name is not None and name != arm.name]
    return Job(
        arm=arm, seed=seed, compared=arm in deciding.config.chosen, needs=tuple(f"{name}-{seed}" for name in needs),
        trained_by=deciding.runs[arm.name, seed] if arm.trained else None, measured_by=deciding.numbers(arm, seed),
    )  # fmt: skip


def _with_run_read(decided_by: Any) -> Any:
    """What decides a run, its file as the mapping that it holds."""
    if not isinstance(decided_by, Mapping) or not isinstance(decided_by.get("run"), str):
        return decided_by
    return {**decided_by, "run": yaml.safe_load(decided_by["run"])}


def _steps_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    labels = {"data.labels": manifest["labels"]} if manifest["labels"] else {}
    return {"training.max_steps": manifest["steps"], "early_stopping": None, **labels}


def _heads_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    attention = manifest["attention"]
    heads = [[int(layer), head] for layer, heads in attention["heads"].items() for head in heads]
    return {"attention.heads": heads, "attention.layers": "last_third", "attention.weight": attention["weight"]}


def _named(job: Job, text: str) -> bool:
    """Whether ARM or ARM:SEED names the job; an arm without training has one job for all seeds."""
    arm, sign, seed = text.partition(":")
    return job.arm.name == arm and (not sign or job.arm.run is None or seed == str(job.seed))


def _told(one: JobState) -> dict[str, Any]:
    job = one.job
    return {
        "name": job.name, "arm": job.arm.name, "seed": job.seed, "state": one.state, "reason": one.reason,
        "needs": list(job.needs), "compared": job.compared, "hash": job.hash, "run": job.run_name,
        "run_hash": job.run_hash,
    }  # fmt: skip


def _state_of(job: Job, folder: Path) -> JobState:
    if is_done(job, folder):
        return JobState(job=job, state="done")
    failed = read_told(folder / JOBS / job.name / FAILED)
    if failed.get("hash") == job.hash:
        return JobState(job=job, state="failed", reason=str(failed.get("reason")))
    if changed := changed_in(job, folder):
        return JobState(job=job, state="changed", reason=", ".join(changed))
    if not job.arm.trained or not (folder / RUNS / job.name).is_dir() or not is_begun(job, folder):
        return JobState(job=job, state="left")
    return JobState(job=job, state="trained" if is_trained(job, folder) else "begun")
