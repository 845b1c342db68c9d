"""The section on causes: cut edges by layer and for the strongest heads, mass beside them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from probe.canvas import png_bytes
from probe.contrasts import FEWEST_UNITS
from probe.curves import layer_curve
from probe.cutsenses import CutSenses
from probe.experiments.causes import EVERYWHERE
from probe.findings import CONTRAST, cut_units
from probe.report import Section, Table, percent
from probe.stats import LEVEL, bootstrap
from probe.story import Story, picture_of, why_no_cuts
from probe.strongest import FEWEST_JUDGED, HeadScore


def causes_section(story: Story, pictures: dict[str, bytes]) -> Section:
    """Cut edges by layer and for the strongest heads; pictures are added under their file names."""
    text = [story.say("causes_text")]
    results = story.results
    frame = results[(results["measure"] == "cut effect") & (results["head"] < 0)]
    why_not = why_no_cuts(story)
    if why_not:
        return Section(key="causes", title=story.say("causes"), text=(story.say("no_cuts", reason=why_not),))
    layers = paired_layers(story)
    figures = []
    if layers["estimate"].isna().all():
        text.append(story.say("no_layers"))
    else:
        figure = layer_curve(
            layers, x="layer", y="estimate", low="low", high="high", series="edge", title=story.say("curve"),
            label=story.say("moved"), language=story.language,
        )  # fmt: skip
        figures.append(picture_of(story, pictures, "cut_effect.png", png_bytes(figure), "curve"))
    names = ("layer", "effect_cue", "effect_control", "difference", "low", "high", "n")
    table = Table(
        caption=story.say("cut_table"),
        columns=tuple(story.say(f"col_{name}") for name in names),
        rows=_cut_rows(story, frame),
        source="tables/results.csv",
    )
    tables = [_senses_table(story, story.under_cuts)] if story.under_cuts else []
    tables += [_heads_table(story), table] if story.scores else [table]
    text += [*sense_words_under_cuts(story), heads_words(story)]
    return Section(
        key="causes", title=story.say("causes"), text=tuple(text), figures=tuple(figures), tables=tuple(tables)
    )


def heads_words(story: Story) -> str:
    """What cutting the edge in single heads says of the heads with the most mass, and where the two disagree."""
    strong = [one for one in story.scores if not one.drawn]
    drawn = [one for one in story.scores if one.drawn]
    if not strong:
        return story.say("no_single_heads")
    if not any(one.tested for one in story.scores):
        return story.say("single_heads_thin", fewest=FEWEST_JUDGED)
    looks_only = [_name(one) for one in story.scores if one.looks and not one.moves]
    moves_only = [_name(one) for one in story.scores if one.moves and not one.looks]
    text = story.say(
        "single_heads", heads=len(strong), looks=sum(one.looks for one in strong),
        moves=sum(one.moves for one in strong), both=sum(one.looks and one.moves for one in strong),
        drawn=len(drawn), drawn_moves=sum(one.moves for one in drawn),
    )  # fmt: skip
    if looks_only:
        text += story.say("single_looks", names=", ".join(looks_only))
    return text + (story.say("single_moves", names=", ".join(moves_only)) if moves_only else "")


def sense_words_under_cuts(story: Story) -> Iterator[str]:
    """What the cut does to the sense, in words; nothing where there are no senses to tell apart."""
    found = story.under_cuts
    if found is None:
        return
    place, right = found.position, found.accuracy
    thin = story.say("under_cuts_thin", fewest=FEWEST_UNITS)
    key = "under_cuts_none" if place.p >= LEVEL else "under_cuts_less" if place.gap.mean < 0 else "under_cuts_more"
    yield story.say(
        "under_cuts", cases=found.cases, plain=_signed(place.plain.mean), cue=_signed(place.cue.mean),
        control=_signed(place.control.mean), right=percent(right.plain.mean), right_cue=percent(right.cue.mean),
        right_control=percent(right.control.mean),
        units=place.gap.units, verdict=story.say(key) if found.tested else thin,
    )  # fmt: skip


def _senses_table(story: Story, found: CutSenses) -> Table:
    n = found.position.gap.units
    caption = story.say("senses_cut_table", n=n)
    if found.tested:
        caption = story.say("senses_cut_table_p", n=n, p=f"{found.position.p:.3g}")
    names = ("state", "position", "low", "high", "accuracy", "low", "high")
    lines = [("cut_nothing", "plain"), ("cut_control", "control"), ("cut_cue", "cue"), ("cut_gap", "gap")]
    rows = []
    for key, part in lines:
        both = [getattr(cut, part) for cut in (found.position, found.accuracy)]
        cells = [value for one in both for value in (one.mean, one.low, one.high)]
        rows.append((story.say(key), *(None if np.isnan(cell) else float(cell) for cell in cells)))
    return Table(
        caption=caption,
        columns=tuple(story.say(f"col_{name}") for name in names),
        rows=tuple(rows),
        source="tables/results.csv",
    )


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _heads_table(story: Story) -> Table:
    names = (
        "head", "chosen", "said", "mass_cue", "mass_gap", "p_mass", "effect_cue", "effect_control", "effect_gap",
        "low", "high", "p_effect",
    )  # fmt: skip
    rows = tuple(
        (
            _name(one), story.say("chosen_drawn" if one.drawn else "chosen_mass"), _said(story, one),
            one.mass_cue, one.mass.mean, one.mass_p, one.effect_cue, one.effect_cue - one.effect.mean,
            one.effect.mean, one.effect.low, one.effect.high, one.effect_p,
        )
        for one in story.scores
    )  # fmt: skip
    return Table(
        caption=story.say("heads_table", n=story.scores[0].effect.units),
        columns=tuple(story.say(f"col_{name}") for name in names),
        rows=tuple(tuple(None if isinstance(v, float) and np.isnan(v) else v for v in row) for row in rows),
        source="tables/results.csv",
    )


def _said(story: Story, one: HeadScore) -> str | None:
    """Whether mass and effect agree, or None where there are too few cue words to say."""
    if not one.tested:
        return None
    if one.looks:
        return story.say("said_both" if one.moves else "said_looks")
    return story.say("said_moves" if one.moves else "said_neither")


def _name(one: HeadScore) -> str:
    return f"{one.layer}.{one.head}"


def paired_layers(story: Story) -> pd.DataFrame:
    """The two lines of the layer curve, over the same cases: those with a control, or all where none has one."""
    cuts = story.observed.cue_cuts
    assert cuts is not None
    alone = np.isnan(cuts.control)
    lines = {"cue": cuts.cue if alone.all() else np.where(alone, np.nan, cuts.cue), "control": cuts.control}
    frames = []
    for key, values in lines.items():
        found = bootstrap(values[:, 1:], cut_units(story.observed), seed=story.observed.seed)
        columns = {"layer": cuts.layers, "estimate": found.mean, "low": found.low, "high": found.high}
        frames.append(pd.DataFrame(columns).assign(edge=story.say(f"edge_{key}")))
    return pd.concat(frames, ignore_index=True)


def _cut_rows(story: Story, frame: pd.DataFrame) -> tuple[tuple[Any, ...], ...]:
    rows = []
    alone = frame[(frame["key"] == "cue") & (frame["contrast"] == "mean")].set_index("layer")["estimate"]
    for layer, part in frame.groupby("layer", sort=True):
        gap = part[part["contrast"] == CONTRAST].iloc[0]
        name = story.say("everywhere") if layer == EVERYWHERE else str(layer)
        paired = gap["control"] + gap["estimate"]  # the same cases on both sides
        cue = alone[layer] if np.isnan(paired) else paired
        if np.isnan(cue):
            continue  # not cut in this layer
        values = (cue, gap["control"], gap["estimate"], gap["low"], gap["high"])
        rows.append((name, *(float(value) for value in values), int(gap["n"])))
    return tuple(rows)
