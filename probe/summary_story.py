"""The first section: what was found and what was not, in plain words generated from the numbers."""

from collections.abc import Iterator

import numpy as np

from probe.causes_story import sense_words_under_cuts
from probe.contrasts import is_neutral
from probe.findings import (
    ENTROPY,
    MASS_ON_CONTROL,
    MASS_ON_CUE,
    MASS_ON_FIRST,
    MASS_ON_SPECIAL,
    cut_units,
    mean_interval,
)
from probe.polysemy_story import sense_words
from probe.readings_story import reading_words
from probe.report import Section, percent
from probe.story import Story, only_readings, points, verdict, why_no_cuts
from probe.strongest import strongest_head


def summary_section(story: Story) -> Section:
    """The first section of the page."""
    text = [
        _what_was_read(story),
        *_cause_words(story),
        *sense_words_under_cuts(story),
        *_mass_words(story),
        *_head_words(story),
        *_crossed_words(story),
        *sense_words(story.polysemy),
        *reading_words(story.readings, story.language, seed=story.observed.seed),
        _sink_words(story),
    ]
    return Section(key="findings", title=story.say("findings"), text=tuple(text))


def _what_was_read(story: Story) -> str:
    items = story.observed.items
    seen = ~np.isnan(story.observed.values(MASS_ON_CUE)).all((1, 2))
    cued = [bool(item.cues) and not is_neutral(item) for item in items]
    with_cue = sum(cued)
    controlled = ~np.isnan(story.observed.values(MASS_ON_CONTROL)).all((1, 2))
    text = story.count(
        "read",
        count=len(items),
        cued=with_cue,
        units=len({unit for unit, ok in zip(story.observed.units, cued, strict=True) if ok}),
        layers=len(story.observed.layers),
        heads=len(story.observed.heads),
    )
    if len(items) - with_cue and story.observed.neutral.any():
        text += story.count("neutral", count=int(story.observed.neutral.sum()))
    if with_cue - int(seen.sum()):
        text += story.say("not_visible", count=with_cue - int(seen.sum()))
    if int(seen.sum()) - int((seen & controlled).sum()):
        text += story.count("no_control", count=int(seen.sum()) - int((seen & controlled).sum()))
    cut = sum(item.was_cut for item in items)
    return text + (story.count("was_cut", count=cut) if cut else "")


def _cause_words(story: Story) -> Iterator[str]:
    if only_readings(story):
        return
    cuts, why_not = story.observed.cue_cuts, why_no_cuts(story)
    if cuts is None or why_not:
        yield story.say("no_cuts", reason=why_not)
        return
    units = cut_units(story.observed)
    gap = cuts.cue[:, 0] - cuts.control[:, 0]
    both = ~np.isnan(gap)
    if not both.any():
        alone = mean_interval(cuts.cue[:, 0], units, seed=story.observed.seed)
        yield story.say("cause_alone", cue=percent(alone.mean))
        return
    difference = mean_interval(gap, units, seed=story.observed.seed)
    control = mean_interval(cuts.control[:, 0], units, seed=story.observed.seed)
    more = int((cuts.cue[both, 0] > cuts.control[both, 0]).sum())
    yield story.say(
        "cause", cue=percent(control.mean + difference.mean), control=percent(control.mean), more=more,
        both=int(both.sum()), difference=points(story, difference),
        verdict=verdict(story, difference, said="moved"),
    )  # fmt: skip
    turned = sum(direction == "cue → target" for direction in cuts.directions)
    if turned:
        yield story.say("turned", count=turned, total=len(cuts.directions))


def _mass_words(story: Story) -> Iterator[str]:
    cue, control = story.observed.values(MASS_ON_CUE), story.observed.values(MASS_ON_CONTROL)
    both = ~np.isnan(cue - control).all((1, 2))
    if not both.any():
        return
    units = [unit for unit, ok in zip(story.observed.units, both, strict=True) if ok]
    mass = mean_interval(np.nanmean(cue[both], axis=(1, 2)), units, seed=story.observed.seed)
    matched = mean_interval(np.nanmean(control[both], axis=(1, 2)), units, seed=story.observed.seed)
    gap = mean_interval(np.nanmean((cue - control)[both], axis=(1, 2)), units, seed=story.observed.seed)
    yield story.say(
        "mass", cue=percent(mass.mean), control=percent(matched.mean), difference=points(story, gap),
        verdict=verdict(story, gap), cases=int(both.sum()),
    )  # fmt: skip
    cuts = story.observed.cue_cuts
    if cuts is not None and not np.isnan(cuts.cue[:, 0] - cuts.control[:, 0]).all():
        effect = mean_interval(cuts.cue[:, 0] - cuts.control[:, 0], cut_units(story.observed), seed=story.observed.seed)
        if effect.excludes_zero != gap.excludes_zero or (effect.mean > 0) != (gap.mean > 0):
            yield story.say("disagree")


def _head_words(story: Story) -> Iterator[str]:
    head = strongest_head(story.observed)
    if head is None:
        yield story.say("no_head")
        return
    several = len({layer.stack for layer in story.observed.layers}) > 1
    yield story.say(
        "head" if head.score.low > 0 else "head_fails",
        stack=story.say(f"stack_{head.stack}") if several else "", layer=head.layer, head=head.head,
        score=points(story, head.score), units=head.score.units, verdict=verdict(story, head.score),
    )  # fmt: skip


def _crossed_words(story: Story) -> Iterator[str]:
    if not len(story.crossed):
        return
    frame = story.crossed.dropna(subset=["effect of own", "effect of other"])
    if not len(frame):
        return
    won = int((frame["effect of own"] > frame["effect of other"]).sum())
    yield story.say("crossed_words", won=won, total=len(frame))


def _sink_words(story: Story) -> str:
    special = float(np.nanmean(story.observed.values(MASS_ON_SPECIAL)))
    first = float(np.nanmean(story.observed.values(MASS_ON_FIRST)))
    uniform = int((np.nanmean(story.observed.values(ENTROPY), axis=0) > 0.95).sum())
    heads = len(story.observed.layers) * len(story.observed.heads)
    return story.say("sink", special=percent(special), first=percent(first), uniform=uniform, heads=heads)
