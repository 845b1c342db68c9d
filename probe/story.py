"""What a page may tell of one model: its numbers, and the forms in which numbers are said."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from probe.cases import CaseSet
from probe.cutsenses import CutSenses
from probe.experiments.readings import Reading
from probe.findings import Interval, Observed
from probe.messages import Language, message
from probe.models import ModelFacts
from probe.polysemy import EffectSizes
from probe.polysemy_story import Polysemy
from probe.report import Picture, Section
from probe.routes import Route
from probe.selfcheck import CheckReport
from probe.strongest import HeadScore


@dataclass(frozen=True, kw_only=True, eq=False)
class Story:
    """All that the page may tell."""

    model: ModelFacts
    case_set: CaseSet
    observed: Observed
    results: pd.DataFrame
    crossed: pd.DataFrame
    check: CheckReport
    route: Route
    language: Language
    polysemy: Polysemy
    under_cuts: CutSenses | None
    scores: tuple[HeadScore, ...]
    readings: tuple[Reading, ...]
    reference: tuple[EffectSizes, ...]

    def say(self, key: str, /, **values: object) -> str:
        """A string of the message table in the page's language."""
        return message(f"study.{key}", self.language, **values)

    def count(self, key: str, /, *, count: int, **values: object) -> str:
        """A string that says how many, in the singular for one."""
        return self.say(f"{key}_one" if count == 1 else key, count=count, **values)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The sections, and the pictures as files of the run folder."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    provenance: tuple[tuple[str, str], ...]
    pictures: dict[str, bytes] = field(default_factory=dict)


def layer_names(observed: Observed) -> tuple[str, ...]:
    """Layer labels for pictures: the number, with the stack where a model has several."""
    several = len({layer.stack for layer in observed.layers}) > 1
    return tuple(f"{layer.stack} {layer.index}" if several else str(layer.index) for layer in observed.layers)


def head_names(observed: Observed) -> tuple[str, ...]:
    """Head labels: their numbers in the model, also where only some were asked for."""
    return tuple(str(head) for head in observed.heads)


def picture_of(story: Story, pictures: dict[str, bytes], name: str, png: bytes, key: str) -> Picture:
    """A picture of the page, which is also kept under its file name."""
    pictures[name] = png
    alt = story.say("curve_alt") if key == "curve" else story.say("map_alt", what=story.say(key))
    return Picture(caption=story.say(key), png=png, alt=alt, source=f"figures/{name}")


def verdict(story: Story, interval: Interval, *, said: str = "verdict") -> str:
    """In words what an interval allows to say."""
    if np.isnan(interval.low):
        return story.say("verdict_thin")
    if not interval.excludes_zero:
        return story.say("verdict_none")
    return story.say(f"{said}_more" if interval.mean > 0 else f"{said}_less")


def points(story: Story, interval: Interval) -> str:
    """An interval in percentage points: "+1.2 (0.4 to 2.0)"."""
    numbers = (f"{100 * interval.mean:+.1f}", f"{100 * interval.low:.1f}", f"{100 * interval.high:.1f}")
    mean, low, high = (number.replace("-", "−") for number in numbers)
    return mean if np.isnan(interval.low) else story.say("interval", mean=mean, low=low, high=high)


def why_no_cuts(story: Story) -> str:
    """Why there are no cut effects to tell of, or ""."""
    if not story.observed.cut_cases:
        return story.say("why_no_cue")
    if story.observed.neutral[list(story.observed.cut_cases)].all():
        return story.say("why_all_neutral")
    if story.observed.cuts is None:
        return story.route.reason or "--no-cut"
    return story.say("why_no_length") if np.isnan(story.observed.cuts.cue[:, 0]).all() else ""


def only_readings(story: Story) -> bool:
    """Whether no case has a cue whose edge could be cut, and what the targets read was found out instead."""
    return bool(story.readings) and not story.observed.cut_cases
