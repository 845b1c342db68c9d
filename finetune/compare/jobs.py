"""One job done: trained where its arm is trained, measured where it is compared, its files written, job.json last."""

import gc
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch

from finetune.compare.arms import ArmModel
from finetune.compare.costs import Spent, cost_of, metered, spent_of, trained_parameters
from finetune.compare.deciding import file_hash
from finetune.compare.items import MEASURES, OF_MODEL, Item, items_frame, items_of
from finetune.compare.plan import (
    COST,
    FAILED,
    ITEMS,
    JOB,
    JOBS,
    MAPS,
    RUNS,
    WRITTEN,
    Job,
    Plan,
    is_begun,
    is_done,
    is_trained,
    learned_by,
    manifest_of,
    mark_of,
    read_told,
)
from finetune.compare.readout import base_with_head
from finetune.compare.settings import CompareConfig, run_of
from finetune.dataconfig import LABELLED
from finetune.errors import DataError, TrainingError
from finetune.prepare import Progress
from finetune.runfolder import open_run_folder
from finetune.sweep import as_left
from finetune.train import train
from finetune.writing import PART, disk_told, write_whole
from probe import load_model


class Measured(Protocol):
    """What measuring gives."""

    @property
    def items(self) -> Iterable[Item]:
        """Those that every arm has."""

    @property
    def maps(self) -> pd.DataFrame:
        """Attention maps, long."""

    @property
    def written(self) -> pd.DataFrame:
        """Answers that were written, a row a question."""

    @property
    def context_tokens(self) -> float:
        """Tokens before an answer, the mean over questions."""


class MeasureJob(Protocol):
    """What measures an opened arm, on the same material for all."""

    def __call__(self, opened: ArmModel, /, *, known: Sequence[Item], progress: Progress | None) -> Measured:
        """Give the items of an arm, those that are known of its weights among them, its maps and what it wrote."""


def run_job(
    job: Job,
    plan: Plan,
    folder: Path,
    *,
    measure: MeasureJob,
    compared: bool = True,
    device: str = "auto",
    progress: Progress | None = None,
) -> None:
    """Do what is left of a job, whose needed runs have come to their end; without `compared` only its run.

    A run that was killed goes on from its last checkpoint; one that other settings decided is replaced.
    """
    try:
        if job.arm.trained and not is_trained(job, folder):
            train_arm(job, plan, folder, device=device, progress=_staged(progress, "training"))
        if compared and not is_done(job, folder):
            measure_arm(job, plan, folder, measure=measure, device=device, progress=progress)
    finally:
        gc.collect()  # model and trainer hold each other; the next job needs their room
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def train_arm(job: Job, plan: Plan, folder: Path, *, device: str, progress: Progress | None) -> None:
    """Train the job's own run, from where it was left; TrainingError for a folder that no comparison made."""
    learned = learned_by(job, folder)
    if learned is None:
        needed = ", ".join(job.needs)
        raise TrainingError(f"{job.name}: the run of {needed}, which it comes after, is not there or damaged")
    place, mark = folder / RUNS / job.name, mark_of(job, folder)
    same = is_begun(job, folder)
    if place.exists() and not same:
        _clear(place, mark)
    config = run_of(plan.config, job.arm, seed=job.seed, out=str(place), learned=learned, name=f"arm {job.arm.name}")
    left = as_left(config)
    if left == "ended":
        return
    before = spent_of(read_told(mark).get("cost")) if left == "begun" else Spent()

    def tell(spent: Spent) -> None:
        told = {"hash": job.run_hash, "learned": learned, "decided_by": job.trained_by}
        write_whole(mark, json.dumps({**told, "cost": vars(before.and_then(spent))}, indent=1, ensure_ascii=False))

    place.parent.mkdir(parents=True, exist_ok=True)
    tell(Spent())
    with metered(tell):
        train(config, resume=left == "begun", device=device, progress=progress)


def measure_arm(
    job: Job, plan: Plan, folder: Path, *, measure: MeasureJob, device: str, progress: Progress | None
) -> None:
    """Open the job's model, measure it, and write what was found."""
    place = folder / JOBS / job.name
    with disk_told(place):
        place.mkdir(parents=True, exist_ok=True)
        for name in (JOB, FAILED):  # the files that these tell of are about to change
            (place / name).unlink(missing_ok=True)
    told: list[Spent] = []
    with metered(told.append):
        opened = open_arm(job, plan.config, folder, device=device, progress=progress)
        measured = measure(opened, known=known_items(job, plan, folder), progress=progress)
    items = items_frame(measured.items, arm=job.arm.name, seed=job.seed)
    _check(job, items)
    for name, frame in ((ITEMS, items), (MAPS, measured.maps), (WRITTEN, measured.written)):
        write_frame(frame, place / name)
    run = opened.run
    training = read_told(folder / RUNS / f"{job.run_name}.json").get("cost")
    cost = cost_of(
        training=spent_of(training), measuring=told[-1], prompt_tokens=float(measured.context_tokens),
        trainable=trained_parameters(run) if run is not None else 0,
    )  # fmt: skip
    _write_json(place / COST, {"device": str(opened.loaded.device), **cost})
    manifest = manifest_of(job.run_name, folder)
    done = {
        "hash": job.hash, "decided_by": job.measured_by, "run": file_hash(manifest) if run is not None else None,
        "files": {name: file_hash(place / name) for name in (ITEMS, MAPS, WRITTEN, COST)},
        "fingerprint": opened.loaded.fingerprint, "origin": dict(opened.loaded.origin), "notes": list(opened.notes),
    }  # fmt: skip
    _write_json(place / JOB, done)


def known_items(job: Job, plan: Plan, folder: Path) -> tuple[Item, ...]:
    """What a job that is done says of the same weights: of language models alone, and where this job asks otherwise."""
    if plan.config.task != "causal-lm" or not job.arm.asks_otherwise:
        return ()
    alike = (one for one in plan.jobs if one.run_name == job.run_name and not one.arm.asks_otherwise)
    found = next((one for one in alike if one.compared and is_done(one, folder)), None)
    return () if found is None else items_of(pd.read_parquet(folder / JOBS / found.name / ITEMS), OF_MODEL)


def open_arm(
    job: Job, config: CompareConfig, folder: Path, *, device: str, progress: Progress | None = None
) -> ArmModel:
    """The model that the job measures: of the finished run, or the base with a head for the task."""
    if job.run_name is not None:
        place = folder / RUNS / job.run_name
        run = open_run_folder(place, device=device, trust_remote_code=config.trust_remote_code)
        return ArmModel(
            arm=job.arm, seed=job.seed, loaded=run.learner.loaded, model=run.model, run=run, notes=run.learner.notes
        )
    if config.task in LABELLED:
        learner = base_with_head(config, device=device, progress=progress)
        return ArmModel(
            arm=job.arm, seed=job.seed, loaded=learner.loaded, model=learner.model, run=None, notes=learner.notes
        )
    loaded = load_model(
        config.model, device=device, dtype="float32", head="lm", revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )  # fmt: skip
    return ArmModel(arm=job.arm, seed=job.seed, loaded=loaded, model=loaded.model, run=None, notes=loaded.notes)


def record_failure(job: Job, folder: Path, reason: str) -> None:
    """Write why a job failed, beside whatever an earlier one left; a later call tries it again."""
    place = folder / JOBS / job.name
    with disk_told(place):
        place.mkdir(parents=True, exist_ok=True)
    _write_json(place / FAILED, {"hash": job.hash, "reason": reason})


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{PART}")  # several processes may write the same at a time
    with disk_told(path):
        try:
            frame.to_parquet(partial, index=False)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _clear(place: Path, mark: Path) -> None:
    """Take away a run that other settings decided; TrainingError for a folder that no comparison made."""
    if "hash" not in read_told(mark):
        raise TrainingError(f"{place} is no run of this comparison: remove it, or give another --out")
    _write_json(mark, {"hash": ""})  # a kill in between leaves what is known to be nothing
    with disk_told(place):
        shutil.rmtree(place)


def _check(job: Job, items: pd.DataFrame) -> None:
    """DataError for an item that stands twice, TrainingError for a number that is none; ValueError for no measure."""
    if unknown := set(items.measure) - set(MEASURES):
        raise ValueError(f"{job.name}: unknown measures {sorted(unknown)}")
    twice = items[items.duplicated(["measure", "part", "item"])]
    if len(twice):
        measure, part, item = twice.iloc[0][["measure", "part", "item"]]
        raise DataError(f"{job.name}: {measure}, {part}: {item} stands twice; allowed is one record of each id")
    wrong = items[~np.isfinite(items[["value", "weight"]].to_numpy(dtype=float)).all(axis=1)]
    if len(wrong):
        measure, part, item, value = wrong.iloc[0][["measure", "part", "item", "value"]]
        raise TrainingError(f"{job.name}: {measure}, {part}, of {item} is {value}, no number")


def _write_json(path: Path, told: dict[str, Any]) -> None:
    write_whole(path, json.dumps(told, indent=1, ensure_ascii=False))


def _staged(progress: Progress | None, stage: str) -> Progress | None:
    return None if progress is None else lambda what, done, total: progress(f"{stage}: {what}", done, total)
