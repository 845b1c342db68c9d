"""From a comparison of two models to the sections of its page: both on one scale, words generated from the numbers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from probe.canvas import png_bytes
from probe.comparison import SIDES, Comparison, HeadGap, Side, by_depth, cut_gaps, token_counts
from probe.comparison_pieces import Piece, piece_row, pieces_of
from probe.comparison_senses_story import sense_sections, sense_words
from probe.comparison_states import same_readings
from probe.comparison_words import ComparisonStory, columns, picture, points, signed, verdict
from probe.contrasts import FEWEST_UNITS
from probe.curves import layer_curve
from probe.figures import colour_limits, head_map
from probe.findings import MASS_ON_CUE
from probe.report import Picture, Section, SentenceMap, SentenceMaps, Table, percent
from probe.stats import LEVEL, bootstrap
from probe.story import Page, head_names, layer_names

_TOP_HEADS = 10
_MAPS = {True: ("map_cue", "to_cue"), False: ("map_back", "to_target")}  # whether the row is the target's


def comparison_page(story: ComparisonStory) -> Page:
    """Build the page: what differs first, causes before mass, tokens and checks of both always."""
    sections = (
        _summary(story),
        *sense_sections(story),
        _causes(story),
        _attention(story),
        _sentences(story),
        _confound(story),
        *(_checks(story, side) for side in SIDES),
        _reading(story),
    )
    names = {"a": story.comparison.a.model, "b": story.comparison.b.model}
    return Page(
        title=story.say("title", cases=story.case_set.name),
        subtitle=story.say("subtitle", **names, count=len(story.comparison.a.items)),
        sections=sections,
        provenance=_provenance(story),
        pictures=story.pictures,
    )


def _summary(story: ComparisonStory) -> Section:
    one = story.comparison
    read = story.say(
        "read", a=one.a.model, b=one.b.model, count=len(one.same_text), paired=int(one.same_text.sum())
    )  # fmt: skip
    text = (
        read, *_same_words(story), *_cause_words(story), *sense_words(story), _head_words(story), *_token_words(story),
    )  # fmt: skip
    return Section(key="findings", title=story.say("findings"), text=text)


def _same_words(story: ComparisonStory) -> Iterator[str]:
    if story.comparison.identical and same_readings(*story.readings):
        yield story.say("identical")
    elif story.a.loaded.fingerprint == story.b.loaded.fingerprint:
        yield story.say("same_weights")


def _cause_words(story: ComparisonStory) -> Iterator[str]:
    found = {gap.of: gap for gap in story.cuts}
    if "cue" not in found:
        yield story.say("no_cuts", reason=_no_cut_reason(story))
        return
    cue = found["cue"]
    yield story.say(
        "cause", a=percent(cue.a.mean), b=percent(cue.b.mean), difference=points(story, cue.gap), cases=cue.cases,
        units=cue.gap.units, verdict=verdict(story, cue.gap),
    )  # fmt: skip
    if "cue − control" in found:
        over = found["cue − control"]
        yield story.say(
            "cause_control", a=signed(over.a.mean), b=signed(over.b.mean), difference=points(story, over.gap),
            verdict=verdict(story, over.gap),
        )  # fmt: skip
    if not story.comparison.same_tokens.all():
        for gap in cut_gaps(story.comparison, among=story.comparison.same_tokens)[:1]:
            yield story.say(
                "cause_same_tokens", cases=gap.cases, difference=points(story, gap.gap),
                verdict=verdict(story, gap.gap),
            )  # fmt: skip
    turned = _other_edges(story.comparison)
    if turned:
        yield story.say("other_edge", count=turned)


def _no_cut_reason(story: ComparisonStory) -> str:
    told = [f"{side}: {story.told(side).route.reason}" for side in SIDES if story.told(side).route.reason]
    sides = [story.comparison.side(side) for side in SIDES]
    uncut = any(side.cuts is None and any(item.cues for item in side.items) for side in sides)
    return "; ".join(told) or ("--no-cut" if uncut else story.say("no_pairs"))


def _other_edges(comparison: Comparison) -> int:
    """How many cases have an edge in both models, but not the same one."""
    edges = []
    for side in (comparison.a, comparison.b):
        if side.cuts is None:
            return 0
        edges.append(dict(zip(side.cut_cases, side.cuts.directions, strict=True)))
    both = [(direction, edges[1].get(place)) for place, direction in edges[0].items()]
    return sum(bool(one and other and one != other) for one, other in both)


def _head_words(story: ComparisonStory) -> str:
    one = story.comparison
    if not one.same_heads:
        shape = {
            "a_layers": len(one.a.layers), "a_heads": len(one.a.heads),
            "b_layers": len(one.b.layers), "b_heads": len(one.b.heads),
        }  # fmt: skip
        return story.say("unlike", **shape)
    tested = np.concatenate([gap.p_max.ravel() for gap in story.heads])
    cells = int((~np.isnan(tested)).sum())
    if not cells:
        return story.say("thin", fewest=FEWEST_UNITS)
    return story.say("claims", claimed=int((tested < LEVEL).sum()), cells=cells)


def _token_words(story: ComparisonStory) -> Iterator[str]:
    for count in token_counts(story.comparison)[:1]:
        yield story.say("tokens", a=f"{count.a:.2f}", b=f"{count.b:.2f}", differ=count.differ, cases=count.cases)


def _causes(story: ComparisonStory) -> Section:
    if not story.cuts:
        words = story.say("no_cuts", reason=_no_cut_reason(story))
        return Section(key="causes", title=story.say("causes"), text=(words,))
    names = {"cue": "of_cue", "control": "of_control", "cue − control": "of_difference"}
    rows = tuple(
        (
            story.say(names[gap.of]), gap.a.mean, gap.b.mean, gap.gap.mean, gap.gap.low, gap.gap.high, gap.cases,
            gap.gap.units,
        )
        for gap in story.cuts
    )  # fmt: skip
    table = Table(
        caption=story.say("cut_table"),
        columns=columns(story, "edge", "a", "b", "gap", "low", "high", "cases", "n"),
        rows=rows,
        source="tables/results.csv",
    )
    curve = _curve(story, by_depth(story.comparison, "cut"), key="cut_curve", label="moved", name="cut_effect.png")
    return Section(
        key="causes", title=story.say("causes"), text=(story.say("causes_text"),), tables=(table,), figures=curve
    )


def _attention(story: ComparisonStory) -> Section:
    curve = by_depth(story.comparison, "mass")
    figures = _curve(story, curve, key="mass_curve", label="share", name="mass_on_cue.png")
    if not story.comparison.same_heads:
        return Section(key="attention", title=story.say("attention"), text=(_head_words(story),), figures=figures)
    maps = [picture for gap in story.heads for picture in _maps(story, gap)]
    table = _heads_table(story)
    return Section(
        key="attention",
        title=story.say("attention"),
        text=(story.say("maps_text"),),
        figures=(*maps, *figures),
        tables=(table,) if table.rows else (),
    )


def _maps(story: ComparisonStory, gap: HeadGap) -> Iterator[Picture]:
    """A, B and B − A of one direction: A and B on one scale."""
    if np.isnan(gap.found.mean).all():
        return
    key = _MAPS[gap.measure == MASS_ON_CUE][0]
    both = ~np.isnan(story.comparison.values("A", gap.measure) - story.comparison.values("B", gap.measure))
    means = {}
    for side in SIDES:
        values = np.where(both, story.comparison.values(side, gap.measure), np.nan)
        means[side] = _mean_by_unit(story, values)
    scale = colour_limits(list(means.values()))
    for side in SIDES:
        yield _head_picture(story, means[side], key=key, side=side, unit="share", limits=scale)
    marked = np.nan_to_num(gap.p_max, nan=1.0) < LEVEL
    yield _head_picture(story, gap.found.mean, key=key, side="B − A", unit="difference_unit", claimed=marked)


def _mean_by_unit(story: ComparisonStory, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return bootstrap(values, story.comparison.a.units, seed=story.comparison.a.seed, resamples=1).mean


def _head_picture(
    story: ComparisonStory,
    grid: np.ndarray[Any, Any],
    *,
    key: str,
    side: str,
    unit: str,
    limits: tuple[float, float] | None = None,
    claimed: np.ndarray[Any, Any] | None = None,
) -> Picture:
    title = story.say(key, side=side)
    figure = head_map(
        grid, title=title, layers=layer_names(story.comparison.a), heads=head_names(story.comparison.a),
        label=story.say(unit), significant=claimed, centre=None if limits else 0.0, limits=limits,
        language=story.language,
    )  # fmt: skip
    name = f"{key}_{'difference' if limits is None else side.lower()}.png"
    return picture(story, name, png_bytes(figure), caption=title, alt=story.say("map_alt", what=title))


def _curve(story: ComparisonStory, frame: pd.DataFrame, *, key: str, label: str, name: str) -> tuple[Picture, ...]:
    """Both models as lines of one chart: by layer where the layers are the same, else by relative depth."""
    if frame["estimate"].isna().all():
        return ()
    several = frame.groupby("side")["stack"].nunique().max() > 1
    frame = frame.assign(line=frame["side"] + " " + frame["stack"] if several else frame["side"])
    alike = story.comparison.same_heads
    figure = layer_curve(
        frame, x="layer" if alike else "depth", y="estimate", low="low", high="high", series="line",
        title=story.say(key), label=story.say(label), across="" if alike else story.say("depth"),
        language=story.language,
    )  # fmt: skip
    alt = story.say("curve_alt", what=story.say(key))
    return (picture(story, name, png_bytes(figure), caption=story.say(key), alt=alt),)


def _heads_table(story: ComparisonStory) -> Table:
    observed = story.comparison.a
    rows = []
    for gap in story.heads:
        direction = story.say(_MAPS[gap.measure == MASS_ON_CUE][1])
        for layer, head in np.argwhere(~np.isnan(gap.found.mean)):
            label, found = observed.layers[layer], gap.found
            numbers = (float(array[layer, head]) for array in (found.mean, found.low, found.high, gap.p_max))
            place = (direction, label.stack, label.index, observed.heads[head])
            rows.append((*place, *numbers, int(found.units[layer, head])))
    rows.sort(key=lambda row: -abs(row[4]))  # stable: equal differences keep the order of the layers
    return Table(
        caption=story.say("heads_table"),
        columns=columns(story, "direction", "stack", "layer", "head", "gap", "low", "high", "p", "n"),
        rows=tuple(rows[:_TOP_HEADS]),
        source="tables/results.csv",
    )


def _sentences(story: ComparisonStory) -> Section:
    one = story.comparison
    places = [place for place in one.a.target_rows if place in one.b.target_rows and one.same_text[place]]
    mean = not one.same_heads
    layers = tuple(f"{side} {name}" for side in SIDES for name in layer_names(one.side(side)))
    maps = SentenceMaps(
        layers=layers,
        heads=1 if mean else len(one.a.heads),
        head_names=() if mean else head_names(one.a),
        items=tuple(_sentence(story, place, mean=mean) for place in places),
        omitted=len(one.same_text) - len(places),
    )
    text = (story.say("sentences_text"), *([story.say("sentences_mean")] if mean else []))
    return Section(
        key="sentences", title=story.say("sentences"), text=text, sentences=maps if maps.items else None
    )  # fmt: skip


def _sentence(story: ComparisonStory, place: int, *, mean: bool) -> SentenceMap:
    """One sentence over the pieces that both models share, the layers of B below those of A."""
    one = story.comparison
    item, other = one.a.items[place], one.b.items[place]
    pieces = pieces_of(item.tokens, other.tokens)
    rows = [piece_row(one.side(side).target_rows[place], pieces, side) for side in SIDES]
    if mean:
        rows = [row.mean(axis=1, keepdims=True) for row in rows]
    case = item.case
    target = tuple(i for i, piece in enumerate(pieces) if piece.span and piece.span.overlaps(case.target))
    cues = tuple(
        i for i, piece in enumerate(pieces) if piece.span and any(piece.span.overlaps(cue) for cue in case.cues)
    )
    return SentenceMap(
        case=case.id,
        labels=tuple(piece.span.cut(case.text) if piece.span else story.say("special") for piece in pieces),
        target=target,
        cues=cues,
        special=tuple(i for i, piece in enumerate(pieces) if piece.span is None),
        sink=_sink(one, pieces, target),
        weights=np.clip(np.concatenate(rows), 0, 1),
        sense=case.sense,
        text=case.text,
    )


def _sink(comparison: Comparison, pieces: tuple[Piece, ...], target: tuple[int, ...]) -> int | None:
    """The piece with the first token of a decoder, which gathers attention though it is no special token."""
    causal = [side for side in SIDES if all(layer.stack == "decoder" for layer in comparison.side(side).layers)]
    found = (place for place, piece in enumerate(pieces) for side in causal if 0 in piece.tokens(side) and piece.span)
    place = next(found, None)
    return None if place in target else place


def _confound(story: ComparisonStory) -> Section:
    rows = tuple(
        (story.say(f"tokens_{count.of}"), count.a, count.b, count.differ, count.cases)
        for count in token_counts(story.comparison)
    )
    table = Table(
        caption=story.say("confound_table"),
        columns=columns(story, "word", "a", "b", "differ", "cases"),
        rows=rows,
        source="tables/cases.csv",
    )
    return Section(
        key="tokens", title=story.say("confound"), text=(story.say("confound_text"),), tables=(table,) if rows else ()
    )


def _checks(story: ComparisonStory, side: Side) -> Section:
    told = story.told(side)
    path = f"{told.route.path} ({told.route.reason})" if told.route.reason else told.route.path
    words = story.say("checks_text", model=story.comparison.side(side).model, path=path)
    return Section(
        key=f"checks-{side.lower()}", title=story.say("checks", side=side), text=(words,), checks=told.check.items
    )


def _reading(story: ComparisonStory) -> Section:
    text = [story.say(f"reading_{name}") for name in ("pairs", "claims", "zero", "control")]
    notes = [f"{side}: {note}" for side in SIDES for note in story.told(side).loaded.notes]
    return Section(key="reading", title=story.say("reading"), text=(*text, *notes))


def _provenance(story: ComparisonStory) -> tuple[tuple[str, str], ...]:
    rows = []
    for side in SIDES:
        loaded = story.told(side).loaded
        kind = f"{loaded.device.type}, {str(loaded.dtype).removeprefix('torch.')}"
        rows.append((story.say("by_side", side=side), story.comparison.side(side).model))
        rows.append((story.say("by_weights", side=side), loaded.fingerprint[:16]))
        rows.append((story.say("by_device", side=side), kind))
        rows.extend((f"{side}: {key}", value) for key, value in loaded.origin.items())
    digest = f"{story.case_set.name}, SHA-256 {story.case_set.digest[:16]}"
    return (*rows, (story.say("by_cases"), digest))
