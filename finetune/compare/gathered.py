"""All that the jobs of a comparison gave, in one place, and what follows from it: differences, verdicts, maps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from finetune.compare.attention import MAP_COLUMNS, differences_of, means_of, steps_of
from finetune.compare.items import COLUMNS
from finetune.compare.licences import Terms
from finetune.compare.power import visible_difference
from finetune.compare.statistics import results_of, values_of
from finetune.compare.verdicts import Verdict, verdicts_of

COST_COLUMNS = ("arm", "seed", "seconds", "memory_mb", "trainable", "prompt_tokens")
QUESTION_COLUMNS = ("item", "asked", "right", "wrong")
WRITTEN_COLUMNS = ("arm", "seed", "item", "text")
PASSAGE_COLUMNS = ("arm", "seed", "item", "place", "document", "passage", "share")


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
    maps: pd.DataFrame = field(default_factory=lambda: _empty(*MAP_COLUMNS))
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
        """Which differences the base's items could show."""
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
