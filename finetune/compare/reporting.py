"""From the folder of a comparison to its page: what the jobs wrote, and how it all was made."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from finetune.compare.arms import ARMS
from finetune.compare.deciding import versions
from finetune.compare.gathered import Facts, gather
from finetune.compare.licences import Terms, terms_of
from finetune.compare.materials import NOTES
from finetune.compare.messages import Language, sentence
from finetune.compare.plan import JOB, JOBS, Job, JobState, Plan, manifest_of, plan_config, read_told
from finetune.compare.settings import PLAN, CompareConfig
from finetune.compare.story import write_comparison
from finetune.compare.tables import leading_measure
from finetune.domains import Question
from finetune.rag.hits import Hit
from probe import open_run

REPORT = "report"  # in a comparison's folder


class Asked(Protocol):
    """What the arms were asked, for the page to show."""

    @property
    def questions(self) -> Sequence[Question]:
        """All questions."""

    @property
    def passages(self) -> Mapping[str, Sequence[Hit]]:
        """What was found for each question, by its id; only asked for where an arm reads passages."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was written, and what it comes to."""

    folder: Path
    verdicts: tuple[str, ...]  # a sentence a contrast, on the measure that leads


def write_report(
    plan: Plan, states: Sequence[JobState], folder: Path, *, asked: Asked | None, language: Language
) -> Report:
    """Write tables, pictures and page of all jobs that are done; DataError where none is."""
    done = [one.job for one in states if one.job.compared and one.state == "done"]
    with_passages = any(job.arm.prompt == "passages" for job in done)
    gathered = gather(
        facts_of(plan, states, folder, done=done, language=language),
        {(job.arm.name, job.seed): folder / JOBS / job.name for job in done},
        questions=asked.questions if asked is not None else (),
        passages=asked.passages if asked is not None and with_passages else None,
    )
    with open_run(folder / REPORT, force=True) as run:
        write_comparison(gathered, run, language=language)
    leading = leading_measure(gathered.verdicts)
    told = (sentence(one, language) for one in gathered.verdicts if (one.measure, one.part) == leading)
    return Report(folder=folder / REPORT, verdicts=tuple(told))


def facts_of(plan: Plan, states: Sequence[JobState], folder: Path, *, done: Sequence[Job], language: Language) -> Facts:
    """How the comparison was made; files go by the last part of their names."""
    config = plan.config
    arms = tuple(name for name in ARMS if name in config.arms)
    runs = dict.fromkeys(job.run_name for job in done if job.run_name is not None)
    return Facts(
        model=_named(config.model), task=config.task, arms=arms, seeds=config.seeds,
        command=f"cijing-finetune compare {PLAN} --language {language}", config=plan_config(config),
        jobs=tuple(read_told(folder / PLAN).get("jobs", ())),
        inputs=_inputs(done), versions=versions(),
        terms=_terms(config, [*(read_told(manifest_of(run, folder)) for run in runs), *_bases(config, done, folder)]),
        notes=tuple(dict.fromkeys(_notes(states, done, folder))),
    )  # fmt: skip


def _bases(config: CompareConfig, done: Sequence[Job], folder: Path) -> Iterator[dict[str, Any]]:
    """What the jobs tell of the base, as a run's manifest does: numbers outlive runs that were removed."""
    for job in done:
        if origin := read_told(folder / JOBS / job.name / JOB).get("origin"):
            yield {"config": {"model": config.model}, "model": origin}


def _terms(config: CompareConfig, manifests: Sequence[Mapping[str, Any]]) -> tuple[Terms, ...]:
    sources = [*config.data.train, *config.data.dev, *config.data.test, *config.more_text, *config.documents]
    sources += [*config.questions, *([config.general] if config.general else []), *config.glosses, config.senses]
    return terms_of(sources, [one for one in manifests if one])


def _inputs(jobs: Sequence[Job]) -> dict[str, str]:
    """The hash of every file that a job's run or numbers depend on, by what it is for and its name.

    Files of one name and other content are numbered.
    """
    found: dict[str, dict[str, None]] = {}
    for job in jobs:
        for told in (job.trained_by or {}, job.measured_by):
            for name, value in told.get("inputs", {}).items():
                found.setdefault(_named(name), {})[value] = None
            for part in ("files", "asked_with"):
                for key, value in told.get(part, {}).items():
                    use, _, name = key.partition(" ")
                    found.setdefault(f"{use} {_named(name)}", {})[value] = None
    return {
        name if len(values) == 1 else f"{name} ({number})": value
        for name, values in found.items()
        for number, value in enumerate(values, start=1)
    }


def _notes(states: Sequence[JobState], done: Sequence[Job], folder: Path) -> Iterator[str]:
    for measure, reason in (read_told(folder / NOTES).get("missing") or {}).items():
        yield f"{measure}: {reason}"
    for job in done:
        yield from map(str, read_told(folder / JOBS / job.name / JOB).get("notes", ()))
    for one in states:
        if one.state == "failed":
            yield f"{one.job.name}: {one.reason}"


def _named(given: str) -> str:
    """A file or folder by the last part of its path, anything else as it is."""
    return Path(given).name if Path(given).exists() else given
