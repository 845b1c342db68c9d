"""The sections on where attention goes: maps of all heads, sentences, kinds of cases, crossed pairs."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from probe.canvas import png_bytes
from probe.figures import head_map
from probe.findings import CONTRAST, ENTROPY, MASS_BACK, MASS_ON_CONTROL, MASS_ON_CUE, MASS_ON_SPECIAL, RANK
from probe.measures.focus import Measure
from probe.report import Section, SentenceMap, SentenceMaps, Table
from probe.story import Story, head_names, layer_names, picture_of, why_no_cuts

_TOP_HEADS = 10
_MOST_KINDS = 100


def maps_section(story: Story, pictures: dict[str, bytes]) -> Section:
    """Heat maps of all heads, and the heads with the largest mass on the cue above its control."""
    figures = []
    wanted = [
        (MASS_ON_CUE, "mean", "map_cue", None),
        (MASS_ON_CUE, CONTRAST, "map_difference", 0.0),
        (MASS_BACK, "mean", "map_back", None),
        (RANK, "mean", "map_rank", None),
        (MASS_ON_SPECIAL, "mean", "map_special", None),
        (ENTROPY, "mean", "map_entropy", None),
    ]
    for measure, contrast, key, centre in wanted:
        grid = _grid(story, measure, contrast)
        if np.isnan(grid).all():
            continue
        figure = head_map(
            grid, title=story.say(key), layers=layer_names(story.observed), label=story.say(f"{key}_unit"),
            heads=head_names(story.observed), centre=centre, language=story.language,
            limits=(1.0, max(2.0, float(np.nanmax(grid)))) if measure == RANK else None, reverse=measure == RANK,
        )  # fmt: skip
        figures.append(picture_of(story, pictures, f"{key}.png", png_bytes(figure), key))
    return Section(
        key="maps",
        title=story.say("maps"),
        text=(story.say("maps_text"),),
        figures=tuple(figures),
        tables=tuple(_top_heads(story)),
    )


def _grid(story: Story, measure: Measure, contrast: str) -> np.ndarray[Any, Any]:
    """Estimates as [layer, head] in the order of the results table, which is that of the layers."""
    r = story.results
    chosen = r[
        (r["query"] == measure.query)
        & (r["key"] == measure.key)
        & (r["measure"] == measure.name)
        & (r["contrast"] == contrast)
    ]
    return chosen["estimate"].to_numpy(dtype=float).reshape(len(story.observed.layers), len(story.observed.heads))


def _top_heads(story: Story) -> Iterator[Table]:
    """The heads with the largest difference; none where no cue word has a control."""
    r = story.results
    chosen = r[(r["measure"] == "attention mass") & (r["contrast"] == CONTRAST) & (r["query"] == "target")].dropna(
        subset=["estimate"]
    )
    if chosen.empty:
        return
    best = chosen.sort_values(["estimate", "layer", "head"], ascending=[False, True, True]).head(_TOP_HEADS)
    columns = ("stack", "layer", "head", "mass_cue", "mass_control", "difference", "low", "high", "n")
    rows = [
        (
            row["stack"], int(row["layer"]), int(row["head"]), float(row["estimate"] + row["control"]),
            float(row["control"]), float(row["estimate"]), float(row["low"]), float(row["high"]), int(row["n"]),
        )
        for _, row in best.iterrows()
    ]  # fmt: skip
    yield Table(
        caption=story.say("top_heads"),
        columns=tuple(story.say(f"col_{name}") for name in columns),
        rows=tuple(rows),
        source="tables/results.csv",
    )


def sentence_sections(story: Story) -> Iterator[Section]:
    """The viewer; none where no sentence was kept, as --sentences 0 asks for."""
    if story.observed.target_rows:
        yield sentences_section(story)


def sentences_section(story: Story) -> Section:
    """The viewer: every kept sentence with the row of the word that reads."""
    observed = story.observed
    items = []
    for place, row in observed.target_rows.items():
        item = observed.items[place]
        cue, turned = tuple(i for words in item.cues for i in words), place in observed.cue_rows
        query, partner = (cue, item.target) if turned else (item.target, cue)
        special = tuple(int(i) for i in np.flatnonzero(item.tokens.special))
        items.append(
            SentenceMap(
                case=item.case.id,
                labels=item.tokens.labels,
                target=query,
                cues=partner,
                special=special,
                sink=0 if observed.causal and not {0} & {*special, *query} else None,
                weights=np.clip(observed.cue_rows.get(place, row), 0, 1),
                note=story.say("reads_back") if turned else "",
                sense=item.case.sense,
                text=item.case.text,
            )
        )
    maps = SentenceMaps(
        layers=layer_names(observed),
        heads=len(observed.heads),
        head_names=head_names(observed),
        items=tuple(items),
        omitted=len(observed.items) - len(items),
    )
    return Section(key="sentences", title=story.say("sentences"), text=(story.say("sentences_text"),), sentences=maps)


def kind_sections(story: Story) -> Iterator[Section]:
    """Means by kind of case; none where no case has both a cue and a control with a number."""
    section = kinds_section(story)
    if any(isinstance(cell, float) for row in section.tables[0].rows for cell in row):
        yield section


def kinds_section(story: Story) -> Section:
    """Means by kind of case, and by word where a set has several."""
    observed = story.observed
    mass = np.full(len(observed.items), np.nan)
    matched = mass.copy()
    for measure, column in ((MASS_ON_CUE, mass), (MASS_ON_CONTROL, matched)):
        grid = observed.values(measure)
        known = ~np.isnan(grid).all((1, 2))
        column[known] = np.nanmean(grid[known], axis=(1, 2))
    effect, effect_control = np.full(len(mass), np.nan), np.full(len(mass), np.nan)
    if observed.cue_cuts is not None and observed.cut_cases:
        effect[list(observed.cut_cases)] = observed.cue_cuts.cue[:, 0]
        effect_control[list(observed.cut_cases)] = observed.cue_cuts.control[:, 0]
    cut = not why_no_cuts(story)
    pairs = [(effect, effect_control)] * cut + [(mass, matched)]
    rows = [
        (name, len(chosen), *(cell for cue, control in pairs for cell in _paired_means(cue[chosen], control[chosen])))
        for name, chosen in _places_by_kind(story)
    ]
    columns: tuple[str, ...] = ("n_control_mass" if cut else "n_control", "mass_cue", "mass_control")
    columns = ("kind", "n", *(("n_control_cut", "effect_cue", "effect_control") if cut else ()), *columns)
    table = Table(
        caption=story.say("kinds_table" if cut else "kinds_table_mass"),
        columns=tuple(story.say(f"col_{name}") for name in columns),
        rows=tuple(rows),
        source="tables/observations.parquet",
    )
    return Section(key="kinds", title=story.say("kinds"), text=(story.say("kinds_text"),), tables=(table,))


def _places_by_kind(story: Story) -> list[tuple[str, list[int]]]:
    """Kinds by name with the places of their cases; beyond _MOST_KINDS the rarer ones count as one.

    Where cases name the word they belong to, one sense may be that of several words, so a kind is word and sense.
    """
    places: dict[str, list[int]] = {}
    for place, item in enumerate(story.observed.items):
        word = item.case.meta.get("word", "")
        places.setdefault(f"{word}: {item.case.sense or '–'}" if word else item.case.sense, []).append(place)
    common = sorted(places, key=lambda kind: (-len(places[kind]), kind))[:_MOST_KINDS]
    rest = [place for kind, members in places.items() if kind not in common for place in members]
    named = [(kind or "–", places[kind]) for kind in sorted(common)]
    return [*named, (story.say("other_kinds", count=len(places) - len(common)), rest)] if rest else named


def _paired_means(cue: np.ndarray[Any, Any], control: np.ndarray[Any, Any]) -> tuple[int, float | None, float | None]:
    """How many cases have both numbers, and the two means over these."""
    both = ~np.isnan(cue - control)
    if not both.any():
        return 0, None, None
    return int(both.sum()), float(cue[both].mean()), float(control[both].mean())


def crossed_sections(story: Story) -> Iterator[Section]:
    """Pairs that share a sentence, each with the other's cue as its control; none where the set has no such pair."""
    if not len(story.crossed):
        return
    columns = ("text", "target", "own cue", "other cue", "effect of own", "effect of other")
    names = ("text", "target", "own_cue", "other_cue", "effect_own", "effect_other")
    rows = tuple(
        tuple(None if isinstance(v, float) and np.isnan(v) else v for v in row)
        for row in story.crossed[list(columns)].itertuples(index=False)
    )
    table = Table(
        caption=story.say("crossed_table"),
        columns=tuple(story.say(f"col_{name}") for name in names),
        rows=rows,
        source="tables/crossed.csv",
    )
    yield Section(key="crossed", title=story.say("crossed"), text=(story.say("crossed_text"),), tables=(table,))
