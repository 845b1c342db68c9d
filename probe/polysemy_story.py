"""The sections on senses: minimal groups, states by layer, example groups; words generated from the numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.contrasts import FEWEST_UNITS, SlotPair
from probe.figures import layer_curve, png_bytes, sentence_map
from probe.findings import Observed
from probe.messages import Language, message
from probe.polysemy import CutContrast, HeadContrast, SenseStates, best_head, example_pairs
from probe.report import Picture, Section, Table

_LEVEL = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Polysemy:
    """All numbers about senses of one model."""

    observed: Observed
    heads: tuple[HeadContrast, ...]
    cuts: tuple[CutContrast, ...]
    states: SenseStates | None
    language: Language

    def say(self, key: str, /, **values: object) -> str:
        """A string of the message table in the page's language."""
        return message(f"senses.{key}", self.language, **values)


def sense_sections(found: Polysemy, pictures: dict[str, bytes]) -> Iterator[Section]:
    """The sections that the numbers allow; pictures are added under their file names."""
    if found.heads:
        yield _contrasts(found)
        yield _groups(found, pictures)
    if found.states is not None:
        yield _states(found, found.states, pictures)


def sense_words(found: Polysemy) -> Iterator[str]:
    """The paragraphs for the summary: what was found and what was not."""
    tested = [one for one in found.cuts if len(one.units) >= FEWEST_UNITS]
    if tested:
        more = [one.contrast for one in tested if one.p < _LEVEL and one.mean > 0]
        less = [one.contrast for one in tested if one.p < _LEVEL and one.mean < 0]
        none = [one.contrast for one in tested if one.contrast not in {*more, *less}]
        yield found.say("cause", more=_list(more), less=_list(less), none=_list(none))
    heads = [one for one in found.heads if one.tested]
    if heads:
        total = heads[0].p_max.size
        hits = {one.contrast: 0 for one in heads}
        for one in heads:
            hits[one.contrast] += int((one.p_max < _LEVEL).sum())
        uncorrected = sum(int((one.test.p < _LEVEL).sum()) for one in heads)
        yield found.say(
            "heads", hits=_list([f"{name} {count}" for name, count in hits.items()]), total=total,
            directions=len({one.measure for one in heads}), uncorrected=uncorrected,
        )  # fmt: skip
    if found.states is not None:
        yield _state_words(found, found.states)


def _state_words(found: Polysemy, states: SenseStates) -> str:
    if np.isnan(states.accuracy).all():
        return found.say("states_invisible")
    best = int(np.nanargmax(states.accuracy))
    text = found.say(
        "states", best=_percent(states.accuracy[best]), layer=best, first=_percent(states.accuracy[0]),
        last=_percent(states.accuracy[-1]), context=_percent(states.context), frequent=_percent(states.frequent),
        neighbours=_percent(states.neighbours), cases=states.cases, senses=len(states.senses),
        readout=found.say(f"readout_{states.readout}"),
    )  # fmt: skip
    return text + (found.say("states_few", names=_list(list(states.left_out))) if states.left_out else "")


def _contrasts(found: Polysemy) -> Section:
    text = [found.say("contrasts_text", level=_LEVEL)]
    thin = sorted({one.contrast for one in found.heads if not one.tested})
    if thin:
        text.append(found.say("thin", names=_list(thin), fewest=FEWEST_UNITS))
    columns = ("contrast", "direction", "words", "heads", "uncorrected", "best", "difference", "p")
    rows = tuple(_head_row(found, one) for one in found.heads)
    tables = [
        Table(
            caption=found.say("contrasts_table"),
            columns=tuple(found.say(f"col_{name}") for name in columns),
            rows=rows,
            source="tables/results.csv",
        )
    ]
    if found.cuts:
        names = ("contrast", "words", "difference", "low", "high", "p")
        cut_rows = tuple((one.contrast, len(one.units), one.mean, one.low, one.high, one.p) for one in found.cuts)
        tables.insert(
            0,
            Table(
                caption=found.say("cuts_table"),
                columns=tuple(found.say(f"col_{name}") for name in names),
                rows=cut_rows,
                source="tables/results.csv",
            ),
        )
    return Section(key="contrasts", title=found.say("contrasts"), text=tuple(text), tables=tuple(tables))


def _head_row(found: Polysemy, one: HeadContrast) -> tuple[str | float | int | None, ...]:
    place = best_head(one)
    layer = found.observed.layers[place[0]]
    name = f"{layer.index}.{found.observed.heads[place[1]]}"
    direction = "target → cue" if one.measure.query == "target" else "cue → target"
    claimed = int((one.p_max < _LEVEL).sum()) if one.tested else None
    return (
        one.contrast, direction, len(one.units), claimed, int((one.test.p < _LEVEL).sum()), name,
        float(np.nanmean(one.gaps[:, place[0], place[1]])), float(one.p_max[place]),
    )  # fmt: skip


def _states(found: Polysemy, states: SenseStates, pictures: dict[str, bytes]) -> Section:
    layers = range(len(states.accuracy))
    lines = [
        (found.say("line_states"), states.accuracy, states.low, states.high),
        *(
            (found.say(f"line_{key}"), np.full(len(layers), value), *(np.full(len(layers), np.nan),) * 2)
            for key, value in (
                ("context", states.context),
                ("neighbours", states.neighbours),
                ("frequent", states.frequent),
            )
        ),
    ]
    frame = pd.concat(
        [
            pd.DataFrame({"layer": layers, "accuracy": mean, "low": low, "high": high, "line": name})
            for name, mean, low, high in lines
        ],
        ignore_index=True,
    )
    figure = layer_curve(
        frame, x="layer", y="accuracy", low="low", high="high", series="line", title=found.say("states_curve"),
        label=found.say("accuracy"), language=found.language,
    )  # fmt: skip
    pictures["senses.png"] = png_bytes(figure)
    columns = ("state_layer", "accuracy", "low", "high", "silhouette", "within", "across")
    rows = tuple(
        (layer, *(_shown(column[layer]) for column in _columns(states))) for layer in range(len(states.accuracy))
    )
    table = Table(
        caption=found.say("states_table"),
        columns=tuple(found.say(f"col_{name}") for name in columns),
        rows=rows,
        source="tables/states.csv",
    )
    text = [found.say("states_text", readout=found.say(f"readout_{states.readout}"))]
    if not states.visible.all():
        hidden = [str(layer) for layer in np.flatnonzero(~states.visible)]
        text.append(found.say("not_visible", layers=_list(hidden)))
    picture = Picture(
        caption=found.say("states_curve"), png=pictures["senses.png"], alt=found.say("states_alt"),
        source="figures/senses.png",
    )  # fmt: skip
    return Section(key="senses", title=found.say("senses"), text=tuple(text), figures=(picture,), tables=(table,))


def _groups(found: Polysemy, pictures: dict[str, bytes]) -> Section:
    shown: list[Picture] = []
    strongest = {(one.contrast, one.measure.query): one for one in reversed(found.heads)}
    for pair in example_pairs(found.observed.items):
        reader = "cue" if pair.cue in found.observed.cue_rows else "target"
        one = strongest.get((pair.contrast, reader), found.heads[0])
        drawn = _drawn_pair(found, pair, best_head(one))
        if drawn is not None:
            name = f"group_{len(shown)}.png"
            pictures[name], title = drawn
            shown.append(Picture(caption=title, png=pictures[name], alt=title, source=f"figures/{name}"))
    return Section(key="groups", title=found.say("groups"), text=(found.say("groups_text"),), figures=tuple(shown))


def _drawn_pair(found: Polysemy, pair: SlotPair, place: tuple[int, int]) -> tuple[bytes, str] | None:
    turned = pair.cue in found.observed.cue_rows
    kept = found.observed.cue_rows if turned else found.observed.target_rows
    rows = [kept.get(case) for case in (pair.cue, pair.neutral)]
    cue, neutral = found.observed.items[pair.cue], found.observed.items[pair.neutral]
    if rows[0] is None or rows[1] is None or len(cue.tokens.labels) != len(neutral.tokens.labels):
        return None
    layer = found.observed.layers[place[0]]
    weights: NDArray[np.floating] = np.stack([row[place] for row in rows if row is not None])
    labels = [
        one if one == other else f"{one}/{other}"
        for one, other in zip(cue.tokens.labels, neutral.tokens.labels, strict=True)
    ]
    key = "group_back" if turned else "group"
    title = found.say(key, contrast=pair.contrast, layer=layer.index, head=found.observed.heads[place[1]])
    figure = sentence_map(
        labels, weights, rows=(found.say("row_cue"), found.say("row_neutral")), target=cue.target,
        cues=[index for words in cue.cues for index in words], title=title, language=found.language,
    )  # fmt: skip
    return png_bytes(figure), title


def _columns(states: SenseStates) -> tuple[NDArray[np.float64], ...]:
    return (states.accuracy, states.low, states.high, states.silhouette, states.within, states.across)


def _shown(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{100 * share:.1f} %"


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "–"
