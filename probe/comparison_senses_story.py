"""A comparison's sections on senses: minimal groups and states of both models, words generated from the numbers."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from probe.canvas import png_bytes
from probe.comparison import DIRECTIONS, SIDES, Side
from probe.comparison_senses import HeadSenseGap
from probe.comparison_states import StateGap, StateReading
from probe.comparison_words import (
    ComparisonStory,
    columns,
    listed,
    picture,
    points,
    verdict_key,
)
from probe.contrasts import FEWEST_UNITS, contrasts_of
from probe.curves import layer_curve
from probe.figures import colour_limits, head_map
from probe.findings import MASS_ON_CUE
from probe.messages import message
from probe.polysemy import HeadContrast, SenseStates
from probe.report import Picture, Section, Table, percent
from probe.report.sections import Cell
from probe.stats import LEVEL
from probe.story import head_names, layer_names

_MOST_MAPS = 3  # a page has twelve pictures at most, and nine are taken
_BASELINES = ("context", "neighbours", "frequent")


def sense_sections(story: ComparisonStory) -> Iterator[Section]:
    """The sections that the cases and both tokenizers allow."""
    if any(story.senses.given):
        yield _contrasts(story)
    a, b = story.readings
    if a is not None and b is not None:
        yield _states(story, a, b)


def sense_words(story: ComparisonStory) -> Iterator[str]:
    """The paragraphs for the summary."""
    if any(story.senses.given):
        yield story.say(
            "sense_pairs", pairs=len(story.senses.pairs), a=story.senses.given[0], b=story.senses.given[1]
        )  # fmt: skip
        yield from _cut_words(story)
        yield from _head_words(story)
    if story.states_left_out:
        yield story.say("states_many", count=len(story.case_set.cases))
    if all(reading is not None for reading in story.readings):
        yield from (_state_words(story, gap) for gap in story.states)
        hidden = [side for side, one in zip(SIDES, story.readings, strict=True) if one and not one.states.visible[-1]]
        if hidden:
            yield story.say("states_invisible", sides=listed(story, hidden))


def _cut_words(story: ComparisonStory) -> Iterator[str]:
    if not story.senses.cuts:
        return
    found: dict[str, list[str]] = {key: [] for key in ("more", "less", "none", "zero", "untested")}
    for one in story.senses.cuts:
        found[verdict_key(one.gap, one.p)].append(one.contrast)
    clauses = [story.say(f"sense_cause_{key}", names=listed(story, names)) for key, names in found.items() if names]
    yield story.say("sense_cause", found=story.say("between_clauses").join(clauses))


def _head_words(story: ComparisonStory) -> Iterator[str]:
    senses = story.senses
    counts = {side: _claims(senses.side(side)) for side in SIDES}
    if not any(total for _, total in counts.values()):
        if senses.pairs:
            yield story.say("sense_heads_thin", fewest=FEWEST_UNITS)
        return
    yield story.say(
        "sense_heads", a=counts["A"][0], b=counts["B"][0], cells_a=counts["A"][1], cells_b=counts["B"][1]
    )  # fmt: skip
    tested = [one.p_max[~np.isnan(one.p_max)] for one in senses.heads]
    cells = sum(p.size for p in tested)
    if cells:
        yield story.say("sense_head_gaps", claimed=sum(int((p < LEVEL).sum()) for p in tested), cells=cells)


def _claims(heads: tuple[HeadContrast, ...]) -> tuple[int, int]:
    """How many heads may be claimed, and of how many that were tested."""
    tested = [one.p_max for one in heads if one.tested]
    return sum(int((p < LEVEL).sum()) for p in tested), sum(p.size for p in tested)


def _state_words(story: ComparisonStory, gap: StateGap) -> str:
    return story.say(
        f"state_{gap.at}", a=percent(gap.a.mean), b=percent(gap.b.mean), layer_a=gap.layer_a, layer_b=gap.layer_b,
        difference=points(story, gap.gap), groups=gap.gap.units,
        verdict=story.say(f"verdict_{verdict_key(gap.gap, gap.p)}"),
    )  # fmt: skip


def _contrasts(story: ComparisonStory) -> Section:
    senses = story.senses
    text = [story.say("contrasts_text", pairs=len(senses.pairs), a=senses.given[0], b=senses.given[1], level=LEVEL)]
    if not story.comparison.same_heads:
        text.append(story.say("contrasts_unlike"))
    thin = {one.contrast for side in SIDES for one in senses.side(side) if not one.tested}
    if thin:
        text.append(message("senses.thin", story.language, names=listed(story, sorted(thin)), fewest=FEWEST_UNITS))
    tables = [table for table in (_cut_table(story), _head_table(story)) if table.rows]
    return Section(
        key="contrasts",
        title=story.say("contrasts"),
        text=tuple(text),
        tables=tuple(tables),
        figures=tuple(_maps(story)),
    )


def _cut_table(story: ComparisonStory) -> Table:
    rows = tuple(
        (
            one.contrast, one.gap.units, one.a.mean, one.b.mean, one.gap.mean, _shown(one.gap.low),
            _shown(one.gap.high), _shown(one.p),
        )
        for one in story.senses.cuts
    )  # fmt: skip
    return Table(
        caption=story.say("sense_cut_table"),
        columns=columns(story, "contrast", "n", "a", "b", "gap", "low", "high", "p_contrasts"),
        rows=rows,
        source="tables/results.csv",
    )


def _head_table(story: ComparisonStory) -> Table:
    own = {side: {(one.contrast, one.measure): one for one in story.senses.side(side)} for side in SIDES}
    gaps = {(one.contrast, one.measure): one for one in story.senses.heads}
    keys = [(name, measure) for measure in DIRECTIONS for name in contrasts_of(story.senses.pairs)]
    rows = []
    for key in keys:
        found = [own[side].get(key) for side in SIDES]
        if not any(found):
            continue
        words = max(len(one.units) for one in found if one)
        direction = story.say("to_cue" if key[1] == MASS_ON_CUE else "to_target")
        gap = _gap_cells(story, gaps.get(key)) if story.comparison.same_heads else ()
        rows.append((key[0], direction, words, *(_claimed(one) for one in found), *gap))
    names = ("contrast", "direction", "n", "heads_a", "heads_b")
    paired = ("heads_gap", "strongest", "gap", "p") if story.comparison.same_heads else ()
    return Table(
        caption=story.say("sense_head_table"),
        columns=columns(story, *names, *paired),
        rows=tuple(rows),
        source="tables/results.csv",
    )


def _claimed(one: HeadContrast | None) -> int | None:
    return int((one.p_max < LEVEL).sum()) if one is not None and one.tested else None


def _gap_cells(story: ComparisonStory, gap: HeadSenseGap | None) -> tuple[Cell, ...]:
    """Heads claimed, the head with the largest difference, that difference and its p."""
    if gap is None:
        return (None, None, None, None)
    claimed = None if np.isnan(gap.p_max).all() else int((gap.p_max < LEVEL).sum())
    if not np.nan_to_num(gap.found.mean).any():
        return (claimed, None, 0, _shown(float(np.nanmin(gap.p_max))) if claimed is not None else None)
    layer, head = np.unravel_index(int(np.nanargmax(np.abs(gap.found.mean))), gap.found.mean.shape)
    name = f"{layer_names(story.comparison.a)[layer]}.{story.comparison.a.heads[head]}"
    return (claimed, name, float(gap.found.mean[layer, head]), _shown(float(gap.p_max[layer, head])))


def _maps(story: ComparisonStory) -> Iterator[Picture]:
    """B − A in every head for the first contrasts: chosen by order, not by what they show; one scale for all."""
    shown = [one for one in story.senses.heads if one.measure == MASS_ON_CUE] or list(story.senses.heads)
    shown = shown[:_MOST_MAPS]
    if not shown:
        return
    limits = colour_limits([one.found.mean for one in shown], centre=0.0)
    for number, one in enumerate(shown):
        key = "sense_map" if one.measure == MASS_ON_CUE else "sense_map_back"
        title = story.say(key, contrast=one.contrast)
        figure = head_map(
            one.found.mean, title=title, layers=layer_names(story.comparison.a), heads=head_names(story.comparison.a),
            label=story.say("difference_unit"), significant=np.nan_to_num(one.p_max, nan=1.0) < LEVEL, centre=0.0,
            limits=limits, language=story.language,
        )  # fmt: skip
        alt = story.say("map_alt", what=title)
        yield picture(story, f"contrast_{number}_difference.png", png_bytes(figure), caption=title, alt=alt)


def _states(story: ComparisonStory, a: StateReading, b: StateReading) -> Section:
    alike = len(a.states.accuracy) == len(b.states.accuracy)
    readouts = [message(f"senses.readout_{one.states.readout}", story.language) for one in (a, b)]
    text = [story.say("states_text", a=readouts[0], b=readouts[1], cases=a.states.cases, groups=len(set(a.groups)))]
    if not alike:
        text.append(story.say("states_depth", a=len(a.states.accuracy), b=len(b.states.accuracy)))
    hidden = [
        f"{side} {layer}"
        for side, one in zip(SIDES, (a, b), strict=True)
        for layer in np.flatnonzero(~one.states.visible)
    ]
    if hidden:
        text.append(story.say("states_hidden", layers=listed(story, hidden)))
    if a.states.left_out:
        text.append(message("senses.states_few", story.language, names=listed(story, a.states.left_out)).strip())
    layers = [_layer_table(story, a.states, b.states)] if alike else [_side_table(story, s) for s in SIDES]
    return Section(
        key="senses",
        title=story.say("senses"),
        text=tuple(text),
        figures=tuple(_state_curve(story, a.states, b.states)),
        tables=(_gap_table(story), _baseline_table(story, a.states, b.states), *layers),
    )


def _state_curve(story: ComparisonStory, a: SenseStates, b: SenseStates) -> Iterator[Picture]:
    """Both models in one chart; what the two characters beside the target tell is the same for both."""
    if np.isnan(np.concatenate([a.accuracy, b.accuracy])).all():
        return
    alike = len(a.accuracy) == len(b.accuracy)
    frames = [
        pd.DataFrame(
            {"x": _across(one, alike=alike), "accuracy": one.accuracy, "low": one.low, "high": one.high, "line": side}
        )
        for side, one in zip(SIDES, (a, b), strict=True)
    ]
    beside = frames[0].assign(
        accuracy=a.neighbours, low=np.nan, high=np.nan, line=message("senses.line_neighbours", story.language)
    )
    figure = layer_curve(
        pd.concat([*frames, beside], ignore_index=True), x="x", y="accuracy", low="low", high="high", series="line",
        title=story.say("states_curve"), label=message("senses.accuracy", story.language),
        across=message("senses.col_state_layer", story.language) if alike else story.say("depth"),
        language=story.language,
    )  # fmt: skip
    alt = story.say("curve_alt", what=story.say("states_curve"))
    yield picture(story, "senses.png", png_bytes(figure), caption=story.say("states_curve"), alt=alt)


def _across(states: SenseStates, *, alike: bool) -> list[float]:
    """Number of each state layer or, where the two have not as many, its share of the depth: 0 first, 1 last."""
    count = len(states.accuracy)
    return [layer if alike else layer / max(count - 1, 1) for layer in range(count)]


def _gap_table(story: ComparisonStory) -> Table:
    rows = tuple(
        (
            story.say(f"at_{one.at}"), one.layer_a, one.layer_b, one.a.mean, one.b.mean, one.gap.mean,
            _shown(one.gap.low), _shown(one.gap.high), _shown(one.p), one.gap.units,
        )
        for one in story.states
    )  # fmt: skip
    names = ("at", "layer_a", "layer_b", "a", "b", "gap", "low", "high", "p_layers", "groups")
    return Table(
        caption=story.say("state_gap_table"), columns=columns(story, *names), rows=rows,
        source="tables/state_differences.csv",
    )  # fmt: skip


def _baseline_table(story: ComparisonStory, a: SenseStates, b: SenseStates) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (message(f"senses.line_{name}", story.language), _shown(getattr(a, name)), _shown(getattr(b, name)))
        for name in _BASELINES
    )
    alone = tuple(_shown(one.carrier.accuracy[-1]) for one in (a, b))
    if any(value is not None for value in alone):
        rows = ((story.say("carrier"), *alone), *rows)
    return Table(
        caption=story.say("baseline_table"), columns=columns(story, "known_from", "a", "b"), rows=rows,
        source="tables/states.csv",
    )  # fmt: skip


def _layer_table(story: ComparisonStory, a: SenseStates, b: SenseStates) -> Table:
    rows = tuple(
        (layer, *(_shown(one[layer]) for one in (a.accuracy, a.low, a.high, b.accuracy, b.low, b.high)))
        for layer in range(len(a.accuracy))
    )
    return Table(
        caption=story.say("states_table"),
        columns=columns(story, "state_layer", "a", "low", "high", "b", "low", "high"),
        rows=rows,
        source="tables/states.csv",
    )


def _side_table(story: ComparisonStory, side: Side) -> Table:
    reading = story.readings[SIDES.index(side)]
    assert reading is not None
    one = reading.states
    rows = tuple(
        (layer, depth, _shown(one.accuracy[layer]), _shown(one.low[layer]), _shown(one.high[layer]))
        for layer, depth in enumerate(_across(one, alike=False))
    )
    return Table(
        caption=story.say("states_table_of", side=side),
        columns=columns(story, "state_layer", "depth", "accuracy", "low", "high"),
        rows=rows,
        source="tables/states.csv",
    )


def _shown(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
