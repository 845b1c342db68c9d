"""What a comparison's page may tell, and the forms in which it says numbers: picture, interval, verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from probe.cases import CaseSet
from probe.comparison import Comparison, CutGap, HeadGap, Side
from probe.comparison_senses import SenseGaps
from probe.comparison_states import StateGap, StateReading
from probe.findings import Interval
from probe.messages import Language, message
from probe.models import LoadedModel
from probe.report import Picture
from probe.routes import Route
from probe.selfcheck import CheckReport
from probe.stats import LEVEL


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """One of the two models, with what the page says about it."""

    loaded: LoadedModel
    route: Route
    check: CheckReport


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparisonStory:
    """All that the page may tell."""

    comparison: Comparison
    heads: tuple[HeadGap, ...]
    cuts: tuple[CutGap, ...]
    senses: SenseGaps
    readings: tuple[StateReading | None, StateReading | None]  # of A and B
    states: tuple[StateGap, ...]
    states_left_out: bool  # too many cases to keep their states
    a: Told
    b: Told
    case_set: CaseSet
    language: Language
    pictures: dict[str, bytes] = field(default_factory=dict)

    def say(self, key: str, /, **values: object) -> str:
        """A string of the message table in the page's language."""
        return message(f"comparison.{key}", self.language, **values)

    def told(self, side: Side) -> Told:
        """One of the two."""
        return self.a if side == "A" else self.b


def picture(story: ComparisonStory, name: str, png: bytes, *, caption: str, alt: str) -> Picture:
    """A picture of the page, which is also kept under its file name."""
    story.pictures[name] = png
    return Picture(caption=caption, png=png, alt=alt, source=f"figures/{name}")


def columns(story: ComparisonStory, *names: str) -> tuple[str, ...]:
    """Names of a table's columns."""
    return tuple(story.say(f"col_{name}") for name in names)


def verdict(story: ComparisonStory, interval: Interval) -> str:
    """In words what the interval of a difference allows to say."""
    if interval.mean == 0 and interval.low == 0 and interval.high == 0:
        return story.say("verdict_zero")
    if np.isnan(interval.low):
        return story.say("verdict_thin")
    if not interval.excludes_zero:
        return story.say("verdict_none")
    return story.say("verdict_more" if interval.mean > 0 else "verdict_less")


def verdict_key(gap: Interval, p: float) -> str:
    """What the test of a difference allows to say: zero, untested, none, more or less."""
    if gap.mean == 0 and gap.low == 0 and gap.high == 0:
        return "zero"
    if np.isnan(p):
        return "untested"
    if p >= LEVEL:
        return "none"
    return "more" if gap.mean > 0 else "less"


def signed(share: float) -> str:
    """A difference in percentage points; an exact zero has no sign and no decimals."""
    return "0" if share == 0 else f"{100 * share:+.1f}".replace("-", "−")


def points(story: ComparisonStory, interval: Interval) -> str:
    """A difference in percentage points with its interval, where it has one."""
    if np.isnan(interval.low):
        return signed(interval.mean)
    low, high = (signed(bound).removeprefix("+") for bound in (interval.low, interval.high))
    return message("study.interval", story.language, mean=signed(interval.mean), low=low, high=high)


def listed(story: ComparisonStory, names: Sequence[str]) -> str:
    """Names in a row."""
    return story.say("between_names").join(names)
