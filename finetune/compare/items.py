"""What every arm gives: one number an item and measure, so that arms are compared item by item."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import pandas as pd

Family = Literal["task", "forgetting", "attention", "causes"]
BASE = "base"  # the arm of the model as it is, against which the others are held
UNTRAINED = -1  # the seed of an arm that learns nothing: it has one run, which stands beside every seed
COLUMNS = ("arm", "seed", "measure", "part", "item", "unit", "value", "weight")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A mean over items weighted by `weight`; through exp where items are nats and the measure is a perplexity."""

    name: str
    family: Family
    higher_is_better: bool | None  # None: neither, it describes
    transform: Literal["mean", "exp"] = "mean"


MEASURES: Mapping[str, Measure] = {
    one.name: one
    for one in (
        Measure(name="margin", family="task", higher_is_better=True),
        Measure(name="accuracy", family="task", higher_is_better=True),
        Measure(name="exact", family="task", higher_is_better=True),
        Measure(name="f1", family="task", higher_is_better=True),
        Measure(name="perplexity", family="task", higher_is_better=False, transform="exp"),
        Measure(name="general_perplexity", family="forgetting", higher_is_better=False, transform="exp"),
        Measure(name="sense_accuracy", family="forgetting", higher_is_better=True),
        Measure(name="mass", family="attention", higher_is_better=None),
        Measure(name="sense_separation", family="attention", higher_is_better=None),
        Measure(name="sink", family="attention", higher_is_better=None),
        Measure(name="passage_share", family="attention", higher_is_better=None),
        Measure(name="cut", family="causes", higher_is_better=None),
        Measure(name="ablated", family="causes", higher_is_better=None),
    )
}

# What a language model's own texts, words and pairs give, whatever an arm puts before its questions or does to them.
OF_MODEL = ("perplexity", "general_perplexity", "mass", "sense_accuracy", "sense_separation", "sink")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One number of one run."""

    measure: str
    part: str  # which items: test, held-out pairs, layer 7
    item: str
    unit: str  # what is drawn anew: items of one unit are not independent
    value: float
    weight: float = 1.0


def items_of(frame: pd.DataFrame, measures: Collection[str]) -> tuple[Item, ...]:
    """The items of one run's table that are of these measures."""
    rows = frame[frame.measure.isin(list(measures))]
    return tuple(
        Item(**dict(zip(COLUMNS[2:], row, strict=True))) for row in rows[list(COLUMNS[2:])].itertuples(index=False)
    )


def items_frame(items: Iterable[Item], *, arm: str, seed: int) -> pd.DataFrame:
    """Give the table of one run's items, by COLUMNS."""
    frame = pd.DataFrame([asdict(one) for one in items], columns=COLUMNS[2:])
    return frame.assign(arm=arm, seed=seed)[list(COLUMNS)]
