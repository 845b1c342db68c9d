"""The pictures of the page: forests of differences, curves over layers, maps over heads, each with its table."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from finetune.compare.attention import common_items, grid_of, means_of, way_of
from finetune.compare.messages import Language, word
from finetune.compare.page_messages import named, page_text
from finetune.compare.tables import contrast_name, measure_name, measure_names
from finetune.compare.verdicts import Verdict
from probe import Picture, forest, head_maps, layer_curve, png_bytes

RESULTS, VALUES = "tables/results.csv", "tables/values.csv"
MEANS, DIFFERENCES = "tables/attention.csv", "tables/attention_differences.csv"
ROLES, MAPS = 2, 6  # roles, and difference maps of each, that stand on the page; the tables have all
_CURVES = ("base", "lora", "lora-attention", "lora-random", "full")  # of which a curve over layers tells something
_SHOWN = ("better", "worse", "higher", "lower")


def forest_picture(verdicts: Sequence[Verdict], *, unit: str, language: Language) -> Picture | None:
    """Every contrast on measures of one unit, measure by measure; None where nothing can be compared."""
    shown = [one for one in verdicts if not np.isnan(one.estimate)]
    if not shown:
        return None
    frame = pd.DataFrame(
        [
            (
                contrast_name(one.arm, one.against, language), measure_name(one.measure, one.part, language),
                one.measure, one.estimate, one.low, one.high, one.kind in _SHOWN, *_seeds(one),
            )
            for one in shown
        ],
        columns=["contrast", "group", "measure", "estimate", "low", "high", "shown", "lowest", "highest"],
    )  # fmt: skip
    title = page_text("figure.difference", language, measures=measure_names(frame, language))
    figure = forest(
        frame, name="contrast", estimate="estimate", low="low", high="high", group="group", shown="shown",
        reach=("lowest", "highest"), title=title, label=unit, language=language,
    )  # fmt: skip
    alt = page_text("figure.alt", language, rows=len(frame))
    return Picture(caption=title, png=png_bytes(figure, colours=256), alt=alt, source=RESULTS)


def separation_picture(values: pd.DataFrame, *, language: Language) -> Picture | None:
    """How far apart the senses of a word lie in each layer; None where no layer was measured."""
    rows = values[(values["measure"] == "sense_separation") & values["arm"].isin(_CURVES)]
    rows = rows[rows["part"].str.fullmatch(r"layer \d+")]
    if rows.empty:
        return None
    frame = rows.assign(
        layer=rows["part"].str.removeprefix("layer ").astype(int), series=[word(arm, language) for arm in rows["arm"]]
    )  # fmt: skip
    title = page_text("separation.figure", language)
    figure = layer_curve(
        frame, x="layer", y="estimate", low="low", high="high", series="series", title=title,
        label=page_text("group.separation", language), width=7.2, language=language,
    )  # fmt: skip
    alt = page_text("separation.alt", language)
    return Picture(caption=title, png=png_bytes(figure), alt=alt, source=VALUES)


def map_pictures(maps: pd.DataFrame, differences: pd.DataFrame, *, language: Language) -> list[Picture]:
    """Of each role: base, adapted and injected side by side, and the differences; NaN where nothing was measured."""
    found = []
    for role, rows in list(maps.groupby("role", sort=False, observed=True))[:ROLES]:
        axes = (sorted(set(rows["layer"].astype(int))), sorted(set(rows["head"].astype(int))))
        levels = _levels(rows, str(role), axes, language)
        apart = _differences(differences[differences["role"] == role], str(role), axes, language)
        found += [picture for picture in (levels, apart) if picture is not None]
    return found


def undrawn_maps(differences: pd.DataFrame) -> int:
    """How many difference maps of all roles the page has no room for."""
    counts = [len(_steps(rows)) for _, rows in differences.groupby("role", sort=False, observed=True)]
    return int(sum(max(0, count - MAPS) if place < ROLES else count for place, count in enumerate(counts)))


def _levels(rows: pd.DataFrame, role: str, axes: tuple[list[int], list[int]], language: Language) -> Picture | None:
    """The arms on the way from base to injected, on the items that all of them have."""
    way = way_of(dict.fromkeys(rows["arm"]))
    means = means_of(common_items(rows, way))
    if means.empty:
        return None
    names = [word(arm, language) for arm in way]
    title = page_text("maps.levels", language, role=named(role, language), way=" → ".join(names))
    grids = [grid_of(means[means["arm"] == arm], "value", layers=axes[0], heads=axes[1]) for arm in way]
    figure = head_maps(
        grids, names=names, title=title, layers=[str(layer) for layer in axes[0]],
        label=page_text("maps.unit", language), heads=[str(head) for head in axes[1]], language=language,
    )  # fmt: skip
    alt = page_text("maps.alt", language, maps=len(grids))
    return Picture(caption=title, png=png_bytes(figure), alt=alt, source=MEANS)


def _differences(
    rows: pd.DataFrame, role: str, axes: tuple[list[int], list[int]], language: Language
) -> Picture | None:
    steps = _steps(rows)[:MAPS]
    if not steps:
        return None
    grids = [
        grid_of(
            rows[(rows["arm"] == arm) & (rows["against"] == against)], "difference", layers=axes[0], heads=axes[1]
        )
        for arm, against in steps
    ]  # fmt: skip
    title = page_text("maps.differences", language, role=named(role, language))
    figure = head_maps(
        grids, names=[f"{word(arm, language)}\n− {word(against, language)}" for arm, against in steps], title=title,
        layers=[str(layer) for layer in axes[0]], label=page_text("maps.unit.difference", language),
        heads=[str(head) for head in axes[1]], centre=0.0, language=language,
    )  # fmt: skip
    alt = page_text("maps.alt", language, maps=len(grids))
    return Picture(caption=title, png=png_bytes(figure), alt=alt, source=DIFFERENCES)


def _steps(rows: pd.DataFrame) -> list[tuple[str, str]]:
    return list(dict.fromkeys(zip(rows["arm"], rows["against"], strict=True)))


def _seeds(one: Verdict) -> tuple[float, float]:
    """The range over seeds; none where there is one seed, or none that learned."""
    return (one.seed_low, one.seed_high) if one.seeds > 1 else (np.nan, np.nan)
