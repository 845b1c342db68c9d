"""From results to the sections of the page: pictures, tables, and plain words that are generated from the numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from probe.cases import CaseSet, load_cases, shipped_sets
from probe.contrasts import is_neutral
from probe.experiments.causes import EVERYWHERE
from probe.figures import head_map, layer_curve, png_bytes
from probe.findings import (
    CONTRAST,
    MASS_BACK,
    MASS_ON_CONTROL,
    MASS_ON_CUE,
    Interval,
    Observed,
    cut_units,
    mean_interval,
    strongest_head,
)
from probe.measures.focus import Measure
from probe.messages import Language, message
from probe.models import LoadedModel
from probe.polysemy import EffectSizes
from probe.polysemy_story import Polysemy, sense_sections, sense_words
from probe.report import Picture, Section, SentenceMap, SentenceMaps, Table
from probe.routes import Route
from probe.selfcheck import CheckReport
from probe.stats import bootstrap

_TOP_HEADS = 10
_MOST_KINDS = 100
SPECIAL = Measure("target", "special", "attention mass")
FIRST = Measure("target", "first", "attention mass")
ENTROPY = Measure("target", "", "entropy")
RANK = Measure("target", "cue", "cue rank")


@dataclass(frozen=True, kw_only=True, eq=False)
class Story:
    """All that the page may tell."""

    loaded: LoadedModel
    case_set: CaseSet
    observed: Observed
    results: pd.DataFrame
    crossed: pd.DataFrame
    check: CheckReport
    route: Route
    language: Language
    polysemy: Polysemy
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


def page_of(story: Story) -> Page:
    """Build the page: what was found first, causes before mass, limits and checks always."""
    pictures: dict[str, bytes] = {}
    sections = (
        _summary(story),
        *sense_sections(story.polysemy, pictures),
        _causes(story, pictures),
        _maps(story, pictures),
        _sentences(story),
        _kinds(story),
        *_crossed(story),
        *_reference(story),
        _checks(story),
        _reading(story),
    )
    return Page(
        title=story.say("title", cases=story.case_set.name),
        subtitle=story.count("subtitle", model=story.loaded.name, count=len(story.observed.items)),
        sections=sections,
        provenance=_provenance(story),
        pictures=pictures,
    )


def _summary(story: Story) -> Section:
    text = [
        _what_was_read(story),
        *_cause_words(story),
        *_mass_words(story),
        *_head_words(story),
        *_crossed_words(story),
        *sense_words(story.polysemy),
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
    cuts, why_not = story.observed.cue_cuts, _why_no_cuts(story)
    if cuts is None or why_not:
        yield story.say("no_cuts", reason=why_not)
        return
    units = cut_units(story.observed)
    gap = cuts.cue[:, 0] - cuts.control[:, 0]
    both = ~np.isnan(gap)
    if not both.any():
        alone = mean_interval(cuts.cue[:, 0], units, seed=story.observed.seed)
        yield story.say("cause_alone", cue=_percent(alone.mean))
        return
    difference = mean_interval(gap, units, seed=story.observed.seed)
    control = mean_interval(cuts.control[:, 0], units, seed=story.observed.seed)
    more = int((cuts.cue[both, 0] > cuts.control[both, 0]).sum())
    yield story.say(
        "cause", cue=_percent(control.mean + difference.mean), control=_percent(control.mean), more=more,
        both=int(both.sum()), difference=_points(story, difference),
        verdict=_verdict(story, difference, said="moved"),
    )  # fmt: skip
    turned = sum(direction == "cue → target" for direction in cuts.directions)
    if turned:
        yield story.say("turned", count=turned, total=len(cuts.directions))


def _why_no_cuts(story: Story) -> str:
    """Why there are no cut effects to tell of, or ""."""
    if not story.observed.cut_cases:
        return story.say("why_no_cue")
    if story.observed.cuts is None:
        return story.route.reason or "--no-cut"
    return story.say("why_no_length") if np.isnan(story.observed.cuts.cue[:, 0]).all() else ""


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
        "mass", cue=_percent(mass.mean), control=_percent(matched.mean), difference=_points(story, gap),
        verdict=_verdict(story, gap), cases=int(both.sum()),
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
        score=_points(story, head.score), units=head.score.units, verdict=_verdict(story, head.score),
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
    special = float(np.nanmean(story.observed.values(SPECIAL)))
    first = float(np.nanmean(story.observed.values(FIRST)))
    uniform = int((np.nanmean(story.observed.values(ENTROPY), axis=0) > 0.95).sum())
    heads = len(story.observed.layers) * len(story.observed.heads)
    return story.say("sink", special=_percent(special), first=_percent(first), uniform=uniform, heads=heads)


def _causes(story: Story, pictures: dict[str, bytes]) -> Section:
    text = [story.say("causes_text")]
    frame = story.results[(story.results["measure"] == "cut effect")]
    why_not = _why_no_cuts(story)
    if why_not:
        return Section(key="causes", title=story.say("causes"), text=(story.say("no_cuts", reason=why_not),))
    layers = _paired_layers(story)
    figures = []
    if layers["estimate"].isna().all():
        text.append(story.say("no_layers"))
    else:
        figure = layer_curve(
            layers, x="layer", y="estimate", low="low", high="high", series="edge", title=story.say("curve"),
            label=story.say("moved"), language=story.language,
        )  # fmt: skip
        figures.append(_picture(story, pictures, "cut_effect.png", png_bytes(figure), "curve"))
    columns = tuple(
        story.say(f"col_{name}") for name in ("layer", "effect_cue", "effect_control", "difference", "low", "high", "n")
    )
    return Section(
        key="causes",
        title=story.say("causes"),
        text=tuple(text),
        figures=tuple(figures),
        tables=(
            Table(
                caption=story.say("cut_table"),
                columns=columns,
                rows=_cut_rows(story, frame),
                source="tables/results.csv",
            ),
        ),
    )


def _paired_layers(story: Story) -> pd.DataFrame:
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


def _maps(story: Story, pictures: dict[str, bytes]) -> Section:
    figures = []
    wanted = [
        (MASS_ON_CUE, "mean", "map_cue", None),
        (MASS_ON_CUE, CONTRAST, "map_difference", 0.0),
        (MASS_BACK, "mean", "map_back", None),
        (RANK, "mean", "map_rank", None),
        (SPECIAL, "mean", "map_special", None),
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
        figures.append(_picture(story, pictures, f"{key}.png", png_bytes(figure), key))
    return Section(
        key="maps",
        title=story.say("maps"),
        text=(story.say("maps_text"),),
        figures=tuple(figures),
        tables=(_top_heads(story),),
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


def _top_heads(story: Story) -> Table:
    r = story.results
    chosen = r[(r["measure"] == "attention mass") & (r["contrast"] == CONTRAST) & (r["query"] == "target")].dropna(
        subset=["estimate"]
    )
    best = chosen.sort_values(["estimate", "layer", "head"], ascending=[False, True, True]).head(_TOP_HEADS)
    columns = ("stack", "layer", "head", "mass_cue", "mass_control", "difference", "low", "high", "n")
    rows = [
        (
            row["stack"], int(row["layer"]), int(row["head"]), float(row["estimate"] + row["control"]),
            float(row["control"]), float(row["estimate"]), float(row["low"]), float(row["high"]), int(row["n"]),
        )
        for _, row in best.iterrows()
    ]  # fmt: skip
    return Table(
        caption=story.say("top_heads"),
        columns=tuple(story.say(f"col_{name}") for name in columns),
        rows=tuple(rows),
        source="tables/results.csv",
    )


def _sentences(story: Story) -> Section:
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


def _kinds(story: Story) -> Section:
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
    cut = not _why_no_cuts(story)
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
    """Kinds by name with the places of their cases; beyond _MOST_KINDS the rarer ones count as one."""
    places: dict[str, list[int]] = {}
    for place, item in enumerate(story.observed.items):
        places.setdefault(item.case.sense, []).append(place)
    common = sorted(places, key=lambda sense: (-len(places[sense]), sense))[:_MOST_KINDS]
    rest = [place for sense, members in places.items() if sense not in common for place in members]
    named = [(sense or "–", places[sense]) for sense in sorted(common)]
    return [*named, (story.say("other_kinds", count=len(places) - len(common)), rest)] if rest else named


def _crossed(story: Story) -> Iterator[Section]:
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


def _reference(story: Story) -> Iterator[Section]:
    if not story.reference:
        return
    names = ("model", "effect_cue", "effect_control", "slot_gap", "mass_cue", "mass_control", "accuracy")
    rows = tuple(
        (one.model, *(None if np.isnan(value) else value for value in (
            one.effect_cue, one.effect_control, one.slot_gap, one.mass_cue, one.mass_control, one.accuracy,
        )))
        for one in story.reference
    )  # fmt: skip
    table = Table(
        caption=story.say("reference_table"), columns=tuple(story.say(f"col_{name}") for name in names), rows=rows
    )
    yield Section(key="reference", title=story.say("reference"), text=(story.say("reference_text"),), tables=(table,))


def _checks(story: Story) -> Section:
    words = story.say("path_tap") if story.route.path == "tap" else story.say("path_eager", reason=story.route.reason)
    return Section(key="checks", title=story.say("checks"), text=(words,), checks=story.check.items)


def _reading(story: Story) -> Section:
    limits = "limits" if _is_shipped(story.case_set) else "limits_own"
    text = [story.say(f"reading_{name}") for name in ("layers", "mass", "cut", "interval", "control", limits)]
    if story.loaded.kind == "decoder":
        text.append(story.say("reading_causal"))
    if story.loaded.kind == "encoder-decoder":
        text.append(story.say("reading_both_sides"))
    text.extend(story.loaded.notes)
    return Section(key="reading", title=story.say("reading"), text=tuple(text))


def _is_shipped(case_set: CaseSet) -> bool:
    """Whether all sentences are of a set that comes with the tool; a user's own set may bear the same name."""
    if case_set.name not in shipped_sets():
        return False
    return {case.text for case in case_set.cases} <= {case.text for case in load_cases(case_set.name).cases}


def layer_names(observed: Observed) -> tuple[str, ...]:
    """Layer labels for pictures: the number, with the stack where a model has several."""
    several = len({layer.stack for layer in observed.layers}) > 1
    return tuple(f"{layer.stack} {layer.index}" if several else str(layer.index) for layer in observed.layers)


def head_names(observed: Observed) -> tuple[str, ...]:
    """Head labels: their numbers in the model, also where only some were asked for."""
    return tuple(str(head) for head in observed.heads)


def _provenance(story: Story) -> tuple[tuple[str, str], ...]:
    return (
        (story.say("by_model"), story.loaded.name),
        (story.say("by_weights"), story.loaded.fingerprint[:16]),
        (story.say("by_cases"), f"{story.case_set.name}, SHA-256 {story.case_set.digest[:16]}"),
        (story.say("by_device"), f"{story.loaded.device.type}, {str(story.loaded.dtype).removeprefix('torch.')}"),
        (story.say("by_path"), story.route.path),
        *((key, value) for key, value in story.loaded.origin.items()),
    )


def _picture(story: Story, pictures: dict[str, bytes], name: str, png: bytes, key: str) -> Picture:
    pictures[name] = png
    alt = story.say("curve_alt") if key == "curve" else story.say("map_alt", what=story.say(key))
    return Picture(caption=story.say(key), png=png, alt=alt, source=f"figures/{name}")


def _verdict(story: Story, interval: Interval, *, said: str = "verdict") -> str:
    if np.isnan(interval.low):
        return story.say("verdict_thin")
    if not interval.excludes_zero:
        return story.say("verdict_none")
    return story.say(f"{said}_more" if interval.mean > 0 else f"{said}_less")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(story: Story, interval: Interval) -> str:
    """An interval in percentage points: "+1.2 (0.4 to 2.0)"."""
    numbers = (f"{100 * interval.mean:+.1f}", f"{100 * interval.low:.1f}", f"{100 * interval.high:.1f}")
    mean, low, high = (number.replace("-", "−") for number in numbers)
    return mean if np.isnan(interval.low) else story.say("interval", mean=mean, low=low, high=high)


def _paired_means(cue: np.ndarray[Any, Any], control: np.ndarray[Any, Any]) -> tuple[int, float | None, float | None]:
    """How many cases have both numbers, and the two means over these."""
    both = ~np.isnan(cue - control)
    if not both.any():
        return 0, None, None
    return int(both.sum()), float(cue[both].mean()), float(control[both].mean())
