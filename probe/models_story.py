"""The section on several models side by side, with what makes them hard to compare: the tokens of their targets."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from probe.canvas import png_bytes
from probe.contrasts import slot_pairs
from probe.curves import layer_curve
from probe.findings import Interval, cut_units, mean_interval
from probe.polysemy import EffectSizes
from probe.report import Picture, Section, Table
from probe.stats import LEVEL, bootstrap
from probe.story import Story
from probe.strongest import reading_gaps

Cells = tuple[str | float | int | None, ...]


def side_by_side(stories: Sequence[Story], pictures: dict[str, bytes]) -> Section:
    """One row a model, two joint curves where there are numbers for them, and the confound in words."""
    first = stories[0]
    figures = []
    for name, frame_of, label in (("cut", _gap_curve, "moved_gap"), ("senses", _accuracy_curve, "accuracy")):
        frames = [frame for story in stories if (frame := frame_of(story)) is not None]
        if len(frames) > 1:
            png = _curve(first, frames, key=f"models_{name}", label=label)
            pictures[f"models_{name}.png"] = png
            title = first.say(f"models_{name}")
            alt = first.say("models_alt", what=title)
            figures.append(Picture(caption=title, png=png, alt=alt, source=f"figures/models_{name}.png"))
    asked = (("models_given", _GIVEN, _given), ("models_found", _FOUND, _found), ("models_sensed", _SENSED, _sensed))
    tables = [_table(stories, caption, columns, cells) for caption, columns, cells in asked]
    return Section(
        key="models", title=first.say("models"), text=(first.say("models_text"), _confound(stories)),
        tables=tuple(table for table in tables if table), figures=tuple(figures),
    )  # fmt: skip


_GIVEN = ("layers", "heads", "tokens", "target_tokens", "one_token", "slots")
_FOUND = ("effect_gap", "low", "high", "random_effect", "mass_gap", "low", "high")
_SENSED = ("claimed", "accuracy_last", "low", "high", "random_accuracy")


def _table(
    stories: Sequence[Story], caption: str, columns: Sequence[str], cells: Callable[[Story], Cells]
) -> Table | None:
    """One row a model; a column that no model has a number for is left out, and so is a table without any."""
    first = stories[0]
    by_model = [[_known(cell) for cell in cells(story)] for story in stories]
    shown = [place for place in range(len(columns)) if any(row[place] is not None for row in by_model)]
    if not shown:
        return None
    return Table(
        caption=first.say(caption),
        columns=(first.say("col_model"), *(first.say(f"col_{columns[place]}") for place in shown)),
        rows=tuple(
            (story.model.name, *(row[place] for place in shown)) for story, row in zip(stories, by_model, strict=True)
        ),
        source="tables/cases.csv" if caption == "models_given" else "tables/results.csv",
    )


def _given(story: Story) -> Cells:
    items = story.observed.items
    pieces = np.array([len(item.target) for item in items])
    return (
        len(story.observed.layers), len(story.observed.heads),
        float(np.mean([len(item.tokens.ids) for item in items])), float(pieces.mean()),
        int((pieces == 1).sum()), len(slot_pairs(items)),
    )  # fmt: skip


def _found(story: Story) -> Cells:
    twin = _twin(story)
    random = None if twin is None else twin.effect_cue - twin.effect_control
    return (*_three(_effect_gap(story)), random, *_three(_mass_gap(story)))


def _sensed(story: Story) -> Cells:
    states, twin = story.polysemy.states, _twin(story)
    tested = [one for one in story.polysemy.heads if one.tested]
    claimed = sum(int((one.p_max < LEVEL).sum()) for one in tested) if tested else None
    accuracy = (None,) * 3 if states is None else (states.accuracy[-1], states.low[-1], states.high[-1])
    return (claimed, *accuracy, None if twin is None else twin.accuracy)


def _twin(story: Story) -> EffectSizes | None:
    return story.reference[1] if len(story.reference) > 1 else None


def _known(cell: str | float | int | None) -> str | float | int | None:
    """A cell, None for a number that is not defined."""
    return None if isinstance(cell, float | np.floating) and np.isnan(cell) else cell


def _effect_gap(story: Story) -> Interval | None:
    cuts = story.observed.cue_cuts
    if cuts is None or np.isnan(cuts.cue[:, 0] - cuts.control[:, 0]).all():
        return None
    return mean_interval(cuts.cue[:, 0] - cuts.control[:, 0], cut_units(story.observed), seed=story.observed.seed)


def _mass_gap(story: Story) -> Interval | None:
    gaps = reading_gaps(story.observed)
    known = np.atleast_1d(~np.isnan(gaps).all((1, 2)))
    if not known.any():
        return None
    units = [unit for unit, ok in zip(story.observed.units, known, strict=True) if ok]
    return mean_interval(np.nanmean(gaps[known], axis=(1, 2)), units, seed=story.observed.seed)


def _three(interval: Interval | None) -> tuple[float | None, ...]:
    return (None,) * 3 if interval is None else (interval.mean, interval.low, interval.high)


def _confound(stories: Sequence[Story]) -> str:
    first = stories[0]
    pieces = [np.array([len(item.target) for item in story.observed.items]) for story in stories]
    listed = ", ".join(f"{s.model.name} {p.mean():.2f}" for s, p in zip(stories, pieces, strict=True))
    alike = all(np.array_equal(pieces[0], other) for other in pieces[1:])
    return first.say("models_alike" if alike else "models_confound", tokens=listed)


def _gap_curve(story: Story) -> pd.DataFrame | None:
    """The cue's cut edge above the control's, by layer."""
    cuts = story.observed.cue_cuts
    if cuts is None or np.isnan(cuts.cue[:, 1:] - cuts.control[:, 1:]).all():
        return None
    found = bootstrap((cuts.cue - cuts.control)[:, 1:], cut_units(story.observed), seed=story.observed.seed)
    columns = {"layer": cuts.layers, "y": found.mean, "low": found.low, "high": found.high}
    return pd.DataFrame(columns).assign(model=story.model.name, depth=_depth(len(cuts.layers), first=1))


def _accuracy_curve(story: Story) -> pd.DataFrame | None:
    states = story.polysemy.states
    if states is None or np.isnan(states.accuracy).all():
        return None
    layers = len(states.accuracy)
    columns = {"layer": range(layers), "y": states.accuracy, "low": states.low, "high": states.high}
    return pd.DataFrame(columns).assign(model=story.model.name, depth=_depth(layers - 1, first=0))


def _depth(layers: int, *, first: int) -> Any:
    """Share of the model's depth that each layer ends at, the embedding (first = 0) at 0."""
    return np.arange(first, layers + 1) / layers


def _curve(first: Story, frames: Sequence[pd.DataFrame], *, key: str, label: str) -> bytes:
    same = len({len(frame) for frame in frames}) == 1
    figure = layer_curve(
        pd.concat(frames, ignore_index=True), x="layer" if same else "depth", y="y", low="low", high="high",
        series="model", title=first.say(key), label=first.say(label), across="" if same else first.say("depth"),
        language=first.language,
    )  # fmt: skip
    return png_bytes(figure)
