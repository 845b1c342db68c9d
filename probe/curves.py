"""Estimates with their intervals: a curve over layers, a forest of differences."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from probe.canvas import INK, QUIET, RULE, canvas, dress_axes, legend, legend_columns, note_missing
from probe.errors import FigureError
from probe.fonts import drawable, font, text_width
from probe.messages import Language, message

_FOREST = 3.6  # inches that a forest's axes take across
_CLAIMED = "#1f4e8c"  # of a difference that is claimed
_FEW = 6  # values of an axis that each get a tick


def layer_curve(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    low: str,
    high: str,
    title: str,
    label: str,
    series: str | None = None,
    zero: bool = True,
    across: str = "",
    width: float = 5.2,
    language: Language = "en",
) -> Figure:
    """Draw `y` against the layer `x` with its interval `low` to `high`, one line for each value of `series`.

    All five name columns of `frame`. Rows whose `y` is NaN leave a gap. `zero` draws the line of no effect.
    `across` names what `x` is where it is no layer's number. `width` is that of the axes in inches.
    """
    absent = [column for column in (x, y, low, high, series) if column and column not in frame.columns]
    if absent:
        raise FigureError(f"layer curve {title!r}: no column {absent[0]!r}; there are {', '.join(frame.columns)}")
    groups = [("", frame)] if series is None else list(frame.groupby(series, sort=False, observed=True))
    columns = legend_columns([str(name) for name, _ in groups])
    below = 0.8 + 0.2 * (math.ceil(len(groups) / columns) - 1)
    figure, axes, _ = canvas(width=width, height=2.7, left=0.75, title=title, bar=False, below=below)
    for (name, rows), style in zip(groups, _line_styles(len(groups)), strict=True):
        rows = rows.sort_values(x)
        axes.fill_between(rows[x], rows[low], rows[high], color=style["color"], alpha=0.16, linewidth=0)
        axes.plot(rows[x], rows[y], label=str(name), linewidth=1.5, markersize=4.5, **style)
    if zero:
        axes.axhline(0, color=QUIET, linewidth=0.7, zorder=0)
    places = sorted(set(frame[x]))
    if across and len(places) <= _FEW:
        axes.set_xticks(places)  # where there was a measurement, and not between
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[2, 2.5, 5, 10]) if across else MaxNLocator(integer=True))
    axes.set_xlabel(across or message("figure.layer", language), fontproperties=font(9.5), color=QUIET)
    axes.set_ylabel(label, fontproperties=font(9.5), color=QUIET, parse_math=False)
    dress_axes(axes)
    if series is not None:
        legend(axes, [handle for handle in axes.lines if not str(handle.get_label()).startswith("_")])
    return figure


def forest(
    frame: pd.DataFrame,
    *,
    name: str,
    estimate: str,
    low: str,
    high: str,
    title: str,
    label: str,
    group: str | None = None,
    shown: str | None = None,
    reach: tuple[str, str] | None = None,
    language: Language = "en",
) -> Figure:
    """Draw a row a difference: its point, its interval and its numbers beside a line at 0, in groups under headings.

    All names are columns of `frame`, whose rows keep their order. `shown` tells which differences are claimed;
    without it, those whose interval leaves 0 out. `reach`: the lowest and the highest seed. A row without an
    interval is a bare point, one without an estimate a dash.
    """
    absent = [one for one in (name, estimate, low, high, group, shown, *(reach or ())) if one and one not in frame]
    if absent or frame.empty:
        wrong = f"no column {absent[0]!r}; there are {', '.join(map(str, frame))}" if absent else "no rows"
        raise FigureError(f"forest {title!r}: {wrong}")
    places, headings = _forest_places(frame, group)
    labels = [drawable(str(one)) for one in (*frame[name], *headings.values())]
    # Inches that the longest label needs; a heading may stand over the axes.
    left = 0.35 + 0.133 * max(text_width(text) for text, _ in labels[: len(frame)])
    values = frame[[estimate, low, high]].to_numpy(dtype=float)  # [row, estimate low high]
    told = _forest_numbers(values, language)
    right = 0.2 + 0.12 * max(text_width(one) for one in told)
    height = 0.25 * (len(places) + len(headings)) + 0.1
    figure, axes, _ = canvas(width=_FOREST, height=height, left=left, title=title, bar=False, right=right)
    claimed = frame[shown].to_numpy(dtype=bool) if shown else (values[:, 1] > 0) | (values[:, 2] < 0)
    marks: dict[int, Line2D] = {}
    for row, place in enumerate(places):
        if reach is not None:
            marks |= _seeds_reach(axes, place, frame[list(reach)].to_numpy(dtype=float)[row], language)
        marks |= _forest_row(axes, place, values[row], claimed=bool(claimed[row]), language=language)
    _dress_forest(axes, [text for text, _ in labels[: len(frame)]], places=places, lines=len(labels))
    for place, words in zip(places, told, strict=True):
        _beside(axes, words, place, inches=_FOREST + 0.12, size=9)
    for place, (words, _) in zip(headings, labels[len(frame) :], strict=True):
        _beside(axes, words, place, inches=0.1 - left, size=9.5)
    axes.set_xlabel(label, fontproperties=font(9.5), color=QUIET, parse_math=False)
    legend(axes, [marks[key] for key in sorted(marks)])
    note_missing(figure, [character for _, missing in labels for character in missing], language)
    return figure


def _line_styles(count: int) -> list[dict[str, Any]]:
    """Give lines told apart by colour, dash and marker, so that print and colour-blind readers keep them."""
    colours = ["#1f4e8c", "#b3261e", "#2e8b6f", "#8a6d1f", "#6b4a8f", "#4a5560"]
    dashes, markers = ["-", "--", "-.", ":"], ["o", "s", "^", "D", "v", "P", "X"]
    return [{"color": colours[i % 6], "linestyle": dashes[i % 4], "marker": markers[i % 7]} for i in range(count)]


def _forest_places(frame: pd.DataFrame, group: str | None) -> tuple[list[int], dict[int, str]]:
    """The line of each row, and the headings with theirs: one above the first of each run of rows of a group."""
    places: list[int] = []
    headings: dict[int, str] = {}
    before = object()
    for name in frame[group] if group else [None] * len(frame):
        line = len(places) + len(headings)
        if group and name != before:
            headings[line] = str(name)
            line += 1
        places.append(line)
        before = name
    return places, headings


def _forest_numbers(values: NDArray[np.float64], language: Language) -> list[str]:
    """Each row's numbers as they stand beside it, all with the same decimals."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    decimals = 3 if largest < 1 else 2 if largest < 100 else 1

    def signed(value: float) -> str:
        text = f"{value:+.{decimals}f}".replace("-", "−")
        return text if text.strip("+−0.") else text[1:]  # what rounds to 0 has no sign

    told = []
    for estimate, low, high in values:
        if np.isnan(estimate):
            told.append("–")
        elif np.isnan(low) or np.isnan(high):
            told.append(signed(estimate))
        else:
            numbers = {"estimate": signed(estimate), "low": signed(low), "high": signed(high)}
            told.append(message("figure.interval", language, **numbers))
    return told


def _seeds_reach(axes: Axes, place: int, ends: NDArray[np.float64], language: Language) -> dict[int, Line2D]:
    if np.isnan(ends).any():
        return {}
    style: dict[str, Any] = {"color": "#c3cad1", "linewidth": 6, "solid_capstyle": "butt"}
    axes.plot(ends, [place, place], zorder=1, **style)
    return {3: Line2D([], [], label=message("figure.seeds", language), **style)}


def _forest_row(
    axes: Axes, place: int, values: NDArray[np.float64], *, claimed: bool, language: Language
) -> dict[int, Line2D]:
    """Draw a point and its interval; give its mark for the legend, by its order there."""
    estimate, low, high = values
    if np.isnan(estimate):
        return {}
    bare = bool(np.isnan(low) or np.isnan(high))
    if not bare:
        axes.plot([low, high], [place, place], color=_CLAIMED if claimed else QUIET, linewidth=1.5, zorder=2,
                  solid_capstyle="butt")  # fmt: skip
    order = 2 if bare else 0 if claimed else 1
    shape: dict[str, Any] = [
        {"marker": "o", "color": _CLAIMED, "markersize": 6.5},
        {"marker": "o", "color": QUIET, "markerfacecolor": "white", "markersize": 6, "markeredgewidth": 1.3},
        {"marker": "x", "color": QUIET, "markersize": 5.5, "markeredgewidth": 1.3},
    ][order]
    axes.plot([estimate], [place], linestyle="none", zorder=3, **shape)
    words = message(("figure.shown", "figure.not_shown", "figure.no_interval")[order], language)
    return {order: Line2D([], [], linestyle="none", label=words, **shape)}


def _dress_forest(axes: Axes, labels: Sequence[str], *, places: Sequence[int], lines: int) -> None:
    """Names on the left, and the line at 0."""
    axes.set_ylim(lines - 0.4, -0.6)
    dress_axes(axes)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=RULE, linewidth=0.5)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1.5)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.set_yticks(list(places), labels=list(labels))
    for text in axes.get_yticklabels():
        text.set(fontproperties=font(9.5), color=QUIET, parse_math=False)
    for text in axes.get_xticklabels():
        text.set_fontproperties(font(9))


def _beside(axes: Axes, words: str, place: int, *, inches: float, size: float) -> None:
    """Write words on a row of the forest, so far to the right of the axes' left edge."""
    axes.annotate(words, (0, place), xycoords=("axes fraction", "data"), xytext=(72 * inches, 0), color=INK,
                  textcoords="offset points", va="center", fontproperties=font(size), parse_math=False)  # fmt: skip
