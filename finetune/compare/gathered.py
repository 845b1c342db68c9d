"""All that the jobs of a comparison gave, in one place, and what follows from it: differences, verdicts, maps."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from finetune.compare.attention import MAPS_OF_ARMS, differences_of, means_of, steps_of
from finetune.compare.items import BASE, COLUMNS
from finetune.compare.licences import Terms
from finetune.compare.power import VISIBLE_COLUMNS, visible_difference
from finetune.compare.statistics import results_of, values_of
from finetune.compare.verdicts import Verdict, verdicts_of
from finetune.domains import Question
from finetune.errors import DataError
from finetune.rag.hits import Hit

COST_COLUMNS = (
    *("arm", "seed", "seconds", "cpu_seconds", "memory_mb", "device_memory_mb", "trainable", "prompt_tokens"),
)
QUESTION_COLUMNS = ("item", "asked", "right", "wrong")
WRITTEN_COLUMNS = ("arm", "seed", "item", "text")
PASSAGE_COLUMNS = ("item", "place", "document", "passage", "score")  # the same for all arms that read passages
Folders = Mapping[tuple[str, int], Path]  # of the jobs that are done, by arm and seed


def _empty(*columns: str) -> pd.DataFrame:
    return pd.DataFrame(columns=list(columns))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """How a comparison was made: names in place of paths, so that all of it may be printed."""

    model: str
    task: str
    arms: tuple[str, ...]  # in the order in which they are shown
    seeds: tuple[int, ...]
    command: str
    config: Mapping[str, Any]
    jobs: tuple[Mapping[str, Any], ...] = ()  # of plan.json: name, needs, state, hash
    inputs: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each file read, by its name
    versions: Mapping[str, str] = field(default_factory=dict)
    terms: tuple[Terms, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be measured, and why

    @property
    def marked(self) -> tuple[str, ...]:
        """The sources whose terms allow no commercial use."""
        return tuple(dict.fromkeys(one.name for one in self.terms if one.non_commercial))

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Jobs that are not done."""
        return tuple(str(job["name"]) for job in self.jobs if job["state"] != "done")


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathered:
    """The tables of all jobs that are done; those that a comparison has no use for are empty."""

    facts: Facts
    items: pd.DataFrame  # items.COLUMNS
    maps: pd.DataFrame = field(default_factory=lambda: _empty(*MAPS_OF_ARMS))
    cost: pd.DataFrame = field(default_factory=lambda: _empty(*COST_COLUMNS))
    questions: pd.DataFrame = field(default_factory=lambda: _empty(*QUESTION_COLUMNS))
    written: pd.DataFrame = field(default_factory=lambda: _empty(*WRITTEN_COLUMNS))
    passages: pd.DataFrame = field(default_factory=lambda: _empty(*PASSAGE_COLUMNS))
    seed: int = 0  # of resampling

    @cached_property
    def results(self) -> pd.DataFrame:
        """Every contrast on every measure."""
        return results_of(self._in_order, seed=self.seed)

    @cached_property
    def values(self) -> pd.DataFrame:
        """What every arm reaches."""
        return values_of(self._in_order, seed=self.seed)

    @cached_property
    def visible(self) -> pd.DataFrame:
        """Which differences the base's items could show; none where the base was not measured."""
        if BASE not in set(self.items["arm"]):
            return _empty(*VISIBLE_COLUMNS)
        return visible_difference(self.items)

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One for each row of the results."""
        return verdicts_of(self.results)

    @cached_property
    def means(self) -> pd.DataFrame:
        """Each arm's attention by head."""
        return means_of(self.maps)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """Attention of arms against each other by head, on the same rows."""
        return differences_of(self.maps, steps_of(arm for arm in self.facts.arms if arm in set(self.maps["arm"])))

    @cached_property
    def _in_order(self) -> pd.DataFrame:
        """The items with arms as they are shown."""
        places = {arm: place for place, arm in enumerate(self.facts.arms)}
        order = self.items["arm"].map(places).fillna(len(places)).argsort(kind="stable")
        return self.items.iloc[order][list(COLUMNS)]


def gather(
    facts: Facts,
    folders: Folders,
    *,
    questions: Sequence[Question] = (),
    passages: Mapping[str, Sequence[Hit]] | None = None,
    seed: int = 0,
) -> Gathered:
    """Read what every job wrote; DataError without a job, and for a file that is missing or damaged."""
    if not folders:
        raise DataError("no job of the comparison is done: there is nothing to tell")
    found = {name: _of_jobs(folders, f"{name}.parquet") for name in ("items", "maps", "written")}
    cost = [{"arm": arm, "seed": number, **_told(place / "cost.json")} for (arm, number), place in folders.items()]
    asked = [(one.id, one.prompt, one.right, one.wrong) for one in questions]
    hits = [
        (item, place, hit.chunk.document, hit.chunk.text, hit.score)
        for item, listed in (passages or {}).items()
        for place, hit in enumerate(listed, 1)
    ]
    return Gathered(
        facts=facts, items=found["items"], maps=found["maps"], cost=pd.DataFrame(cost, columns=list(COST_COLUMNS)),
        written=found["written"].rename(columns={"question": "item"}),
        questions=pd.DataFrame(asked, columns=list(QUESTION_COLUMNS)),
        passages=pd.DataFrame(hits, columns=list(PASSAGE_COLUMNS)), seed=seed,
    )  # fmt: skip


def _of_jobs(folders: Folders, file: str) -> pd.DataFrame:
    """One table of the file that each job has, with arm and seed in front."""
    frames = []
    for (arm, seed), place in folders.items():
        try:
            frame = pd.read_parquet(place / file)
        except (OSError, ValueError) as error:
            raise DataError(f"{place / file}: cannot be read ({str(error).splitlines()[0]})") from error
        own = frame.drop(columns=["arm", "seed"], errors="ignore")
        own.insert(0, "arm", arm)
        own.insert(1, "seed", seed)
        frames.append(own)
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled or frames, ignore_index=True)


def _told(path: Path) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    return found
