"""The page of a report: which sections stand on it, in which order."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np

from probe.attention_story import crossed_sections, kind_sections, maps_section, sentence_sections
from probe.cases import CaseSet, load_cases, shipped_sets
from probe.causes_story import causes_section
from probe.experiments.readings import cases_to_read
from probe.models_story import side_by_side
from probe.polysemy import EffectSizes
from probe.polysemy_story import sense_sections
from probe.readings_story import reading_sections
from probe.report import PICTURES, Section, Table, percent
from probe.story import Page, Story, only_readings
from probe.summary_story import summary_section


def page_of(stories: Sequence[Story]) -> Page:
    """Build the page: what was found first, causes before mass, limits and checks always.

    Of several models the first section shows them side by side; then come the sections of each, with as many pictures
    as a page of PICTURES leaves it.
    """
    first, pictures = stories[0], dict[str, bytes]()
    if len(stories) == 1:
        sections = [*_sections(first, pictures), _reading(stories)]
    else:
        sections = [side_by_side(stories, pictures)]
        share = (PICTURES - len(pictures)) // len(stories)
        for number, story in enumerate(stories, 1):
            sections += _one_of_several(story, number, share, pictures)
        sections.append(_reading(stories))
    models = ", ".join(story.model.name for story in stories)
    return Page(
        title=_title(stories),
        subtitle=first.count("subtitle", model=models, count=len(first.observed.items)),
        sections=tuple(sections),
        provenance=tuple(row for story in stories for row in _provenance(story)),
        pictures=pictures,
    )


def _title(stories: Sequence[Story]) -> str:
    first, cases = stories[0], stories[0].case_set.name
    if len(stories) == 1:
        return first.say("title", cases=cases)
    return first.say("title_several", cases=cases, count=len(stories))


def _sections(story: Story, pictures: dict[str, bytes]) -> list[Section]:
    """All that is said of one model; pictures are added under their file names."""
    items = story.observed.items
    return [
        summary_section(story),
        *([] if only_readings(story) else [causes_section(story, pictures)]),
        *sense_sections(story.polysemy, pictures),
        *reading_sections(story.readings, story.language, total=len(cases_to_read(items, len(items)))),
        maps_section(story, pictures),
        *sentence_sections(story),
        *kind_sections(story),
        *crossed_sections(story),
        *_reference(story),
        _checks(story),
    ]


def _one_of_several(story: Story, number: int, share: int, pictures: dict[str, bytes]) -> list[Section]:
    """A model's sections under keys, titles and file names of their own, with the `share` pictures that tell most."""
    own: dict[str, bytes] = {}
    sections = _sections(story, own)
    kept = sorted(own, key=_worth)[:share]
    found = []
    for section in sections:
        figures = [figure for figure in section.figures if PurePosixPath(figure.source).name in kept]
        named = tuple(replace(one, source=f"figures/{number}_{PurePosixPath(one.source).name}") for one in figures)
        pictures.update({PurePosixPath(one.source).name: one.png for one in named})
        if section.figures and not named and not (section.tables or section.sentences):
            continue  # a section that is only pictures
        title = story.say("of_model", model=story.model.name, words=section.title)
        found.append(replace(section, key=f"m{number}-{section.key}", title=title, figures=named))
    return found


def _worth(name: str) -> tuple[int, str]:
    """Which pictures come first where there is room for few; what stands side by side above comes last."""
    order = ("map_difference.png", "map_cue.png", "group_0.png", "map_back.png", "map_special.png", "group_1.png")
    return (order.index(name) if name in order else len(order) + (name in ("senses.png", "cut_effect.png")), name)


def _reference(story: Story) -> Iterator[Section]:
    if not story.reference:
        return
    names = ("model", "effect_cue", "effect_control", "slot_gap", "mass_cue", "mass_control", "accuracy")
    rows = []
    for one in story.reference:
        numbers = (
            one.effect_cue, one.effect_control, one.slot_gap, one.mass_cue, one.mass_control, one.accuracy,
        )  # fmt: skip
        rows.append((_reference_name(story, one), *(None if np.isnan(value) else value for value in numbers)))
    if all(cell is None for row in rows for cell in row[1:]):
        return
    own, twin = story.reference[0], story.reference[-1]
    text = story.say("reference_text", cases=own.cases)
    if twin is not own and twin.accuracy >= own.accuracy:
        text += story.say("reference_as_high", random=percent(twin.accuracy), own=percent(own.accuracy))
    table = Table(
        caption=story.say("reference_table"),
        columns=tuple(story.say(f"col_{name}") for name in names),
        rows=tuple(rows),
    )
    yield Section(key="reference", title=story.say("reference"), text=(text,), tables=(table,))


def _reference_name(story: Story, one: EffectSizes) -> str:
    if one is story.reference[0]:
        return one.model
    return story.say("random_weights", seed=story.observed.seed)


def _checks(story: Story) -> Section:
    words = story.say("path_tap") if story.route.path == "tap" else story.say("path_eager", reason=story.route.reason)
    return Section(key="checks", title=story.say("checks"), text=(words,), checks=story.check.items)


def _reading(stories: Sequence[Story]) -> Section:
    first = stories[0]
    limits = "limits" if _is_shipped(first.case_set) else "limits_own"
    text = [first.say(f"reading_{name}") for name in ("layers", "mass", "cut", "interval", "control", limits)]
    by_kind = {"decoder": first.say("reading_causal"), "encoder-decoder": first.say("reading_both_sides")}
    for story in stories:
        told = [*([by_kind[story.model.kind]] if story.model.kind in by_kind else []), *story.model.notes]
        named = [story.say("of_model", model=story.model.name, words=words) for words in told]
        text.extend(told if len(stories) == 1 else named)
    return Section(key="reading", title=first.say("reading"), text=tuple(text))


def _is_shipped(case_set: CaseSet) -> bool:
    """Whether all sentences are of a set that comes with the tool; a user's own set may bear the same name."""
    if case_set.name not in shipped_sets():
        return False
    return {case.text for case in case_set.cases} <= {case.text for case in load_cases(case_set.name).cases}


def _provenance(story: Story) -> tuple[tuple[str, str], ...]:
    return (
        (story.say("by_model"), story.model.name),
        (story.say("by_weights"), story.model.fingerprint[:16]),
        (story.say("by_cases"), f"{story.case_set.name}, SHA-256 {story.case_set.digest[:16]}"),
        (story.say("by_device"), f"{story.model.device}, {story.model.dtype}"),
        (story.say("by_path"), story.route.path),
        *((key, value) for key, value in story.model.origin.items()),
    )
