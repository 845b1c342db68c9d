"""The sections on senses: minimal groups, states by layer, example groups; words generated from the numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.canvas import png_bytes
from probe.contrasts import FEWEST_UNITS, SlotPair, is_neutral, slot_pairs
from probe.curves import layer_curve
from probe.figures import sentence_map
from probe.findings import Observed
from probe.messages import Language, message
from probe.polysemy import CutContrast, HeadContrast, SenseStates, best_head, example_pairs
from probe.report import Picture, Section, Table, percent
from probe.stats import LEVEL
from probe.wordsenses import FEWEST_CASES, sense_counts, senses_to_tell

_WORDS_NAMED = 8  # in one sentence


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
        yield from _groups(found, pictures)
    if found.states is not None and not np.isnan(found.states.accuracy).all():
        yield _states(found, found.states, pictures)


def sense_words(found: Polysemy) -> Iterator[str]:
    """The paragraphs for the summary: what was found and what was not."""
    tested = [one for one in found.cuts if one.tested]
    if tested:
        more = [one.contrast for one in tested if one.p < LEVEL and one.mean > 0]
        less = [one.contrast for one in tested if one.p < LEVEL and one.mean < 0]
        none = [one.contrast for one in tested if one.contrast not in {*more, *less}]
        yield found.say("cause", more=_list(more), less=_list(less), none=_list(none))
    heads = [one for one in found.heads if one.tested]
    if heads:
        total = heads[0].p_max.size
        hits = {one.contrast: 0 for one in heads}
        for one in heads:
            hits[one.contrast] += int((one.p_max < LEVEL).sum())
        uncorrected = sum(int((one.test.p < LEVEL).sum()) for one in heads)
        yield found.say(
            "heads", hits=_list([f"{name} {count}" for name, count in hits.items()]), total=total,
            directions=len({one.measure for one in heads}), uncorrected=uncorrected,
        )  # fmt: skip
    if sense_counts(found.observed.items) and not slot_pairs(found.observed.items):
        yield found.say("no_groups")
    if found.states is not None:
        yield _state_words(found, found.states)
    elif why := _why_no_states(found):
        yield why


def _state_words(found: Polysemy, states: SenseStates) -> str:
    few = found.say("states_few", names=_list(states.left_out)) if states.left_out else ""
    readout = found.say(f"readout_{states.readout}")
    if not states.visible.any():
        cause = found.say("states_masked") if found.observed.causal else ""
        return found.say("states_invisible", readout=readout, cause=cause) + few
    if np.isnan(states.accuracy).all():
        return found.say("states_undecided") + few
    best = int(np.nanargmax(states.accuracy))
    text = found.say(
        "states", best=percent(states.accuracy[best]), layer=best, first=percent(states.accuracy[0]),
        last=percent(states.accuracy[-1]), context=percent(states.context), frequent=percent(states.frequent),
        neighbours=percent(states.neighbours), cases=states.cases, senses=len(states.senses), readout=readout,
    )  # fmt: skip
    if min(states.accuracy[0], states.context, states.neighbours) < states.frequent:
        text += found.say("below_guess")
    if np.isnan(states.low[best]):
        text += found.say("states_thin")
    if states.undecided:
        text += found.say("states_undecided_cases", count=states.undecided)
    return text + few + _carrier_words(found, states)


def _carrier_words(found: Polysemy, states: SenseStates) -> str:
    carrier = states.carrier
    if np.isnan(carrier.accuracy[-1]):
        return ""
    text = found.say(
        "carrier", alone=percent(carrier.accuracy[-1]), most=percent(np.nanmax(carrier.accuracy)),
        cued=percent(carrier.cued[-1]), cases=carrier.cases,
    )  # fmt: skip
    return text + (found.say("carrier_mixed", count=carrier.mixed) if carrier.mixed else "")


def _why_no_states(found: Polysemy) -> str:
    """Why senses are not told apart in the states, or "" for a set that names no sense at all."""
    items = found.observed.items
    counts = sense_counts(items)
    if not counts:
        return found.say("only_neutral") if any(is_neutral(item) for item in items) else ""
    if senses_to_tell(items)[0]:
        return found.say("states_not_kept", cases=len(items))
    named = [
        f"{word} ({_list([f'{sense} {count}' for sense, count in own.items()])})"
        for word, own in list(counts.items())[:_WORDS_NAMED]
    ]
    return found.say(
        "nothing_to_tell", fewest=FEWEST_CASES, words="; ".join(named) + ("; …" if len(counts) > _WORDS_NAMED else "")
    )


def _contrasts(found: Polysemy) -> Section:
    text = [found.say("contrasts_text", level=LEVEL)]
    if {"banana", "huawei"} & {one.contrast for one in found.heads}:  # of the shipped set
        text.append(found.say("controls"))
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
    direction = found.say("to_cue" if one.measure.query == "target" else "to_target")
    claimed, uncorrected = (int((p < LEVEL).sum()) if one.tested else None for p in (one.p_max, one.test.p))
    start = (one.contrast, direction, len(one.units), claimed, uncorrected)
    if place is None:
        return (*start, None, None, None)
    name = f"{found.observed.layers[place[0]].index}.{found.observed.heads[place[1]]}"
    return (*start, name, float(np.nanmean(one.gaps[:, place[0], place[1]])), float(one.p_max[place]))


def _states(found: Polysemy, states: SenseStates, pictures: dict[str, bytes]) -> Section:
    pictures["senses.png"] = _states_picture(found, states)
    text = [found.say("states_text", readout=found.say(f"readout_{states.readout}"))]
    if not np.isnan(states.carrier.accuracy).all():
        text.append(found.say("carrier_text"))
    hidden = [str(layer) for layer in np.flatnonzero(~states.visible)]
    if hidden:
        text.append(found.say("not_visible", layers=_list(hidden)))
    for layer in np.flatnonzero(states.visible):
        if states.hidden[layer]:
            text.append(found.say("not_visible_words", layer=layer, words=_list(states.hidden[layer])))
    picture = Picture(
        caption=found.say("states_curve"), png=pictures["senses.png"], alt=found.say("states_alt"),
        source="figures/senses.png",
    )  # fmt: skip
    tables = (_layer_table(found, states), *((_word_table(found, states),) if len(states.words) > 1 else ()))
    return Section(key="senses", title=found.say("senses"), text=tuple(text), figures=(picture,), tables=tables)


def _states_picture(found: Polysemy, states: SenseStates) -> bytes:
    layers, carrier = len(states.accuracy), states.carrier
    nothing = np.full(layers, np.nan)
    lines = [
        ("states", states.accuracy, states.low, states.high),
        ("carrier", carrier.accuracy, carrier.low, carrier.high),
        *(
            (key, np.full(layers, value), nothing, nothing)
            for key, value in (
                ("context", states.context),
                ("neighbours", states.neighbours),
                ("frequent", states.frequent),
            )
        ),
    ]
    frame = pd.concat(
        [
            pd.DataFrame(
                {"layer": range(layers), "accuracy": mean, "low": low, "high": high, "line": found.say(f"line_{key}")}
            )
            for key, mean, low, high in lines
            if not np.isnan(mean).all()
        ],
        ignore_index=True,
    )
    figure = layer_curve(
        frame, x="layer", y="accuracy", low="low", high="high", series="line", title=found.say("states_curve"),
        label=found.say("accuracy"), language=found.language,
    )  # fmt: skip
    return png_bytes(figure)


def _layer_table(found: Polysemy, states: SenseStates) -> Table:
    columns = {
        "accuracy": states.accuracy,
        "low": states.low,
        "high": states.high,
        "carrier": states.carrier.accuracy,
        "silhouette": states.silhouette,
        "within": states.within,
        "across": states.across,
    }
    if np.isnan(states.carrier.accuracy).all():
        del columns["carrier"]
    layers = range(len(states.accuracy))
    return Table(
        caption=found.say("states_table"),
        columns=(found.say("col_state_layer"), *(found.say(f"col_{name}") for name in columns)),
        rows=tuple((layer, *(float(values[layer]) for values in columns.values())) for layer in layers),
        source="tables/states.csv",
    )


def _word_table(found: Polysemy, states: SenseStates) -> Table:
    names = ["word", "senses", "cases", "accuracy", "low", "high", "frequent", "neighbours", "carrier"]
    if all(np.isnan(one.carrier) for one in states.words):
        names.remove("carrier")
    return Table(
        caption=found.say("words_table", layer=len(states.accuracy) - 1),
        columns=tuple(found.say(f"col_{name}") for name in names),
        rows=tuple(tuple(getattr(one, name) for name in names) for one in states.words),
        source="tables/words.csv",
    )


def _groups(found: Polysemy, pictures: dict[str, bytes]) -> Iterator[Section]:
    shown: list[Picture] = []
    strongest = {(one.contrast, one.measure.query): one for one in reversed(found.heads)}
    for pair in example_pairs(found.observed.items):
        reader = "cue" if pair.cue in found.observed.cue_rows else "target"
        place = best_head(strongest.get((pair.contrast, reader), found.heads[0]))
        drawn = _drawn_pair(found, pair, place) if place is not None else None
        if drawn is not None:
            name = f"group_{len(shown)}.png"
            pictures[name], title = drawn
            shown.append(Picture(caption=title, png=pictures[name], alt=title, source=f"figures/{name}"))
    if shown:
        yield Section(key="groups", title=found.say("groups"), text=(found.say("groups_text"),), figures=tuple(shown))


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


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "–"
