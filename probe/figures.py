"""Maps of attention: heads by layers, several on one scale, a sentence's words."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from probe.canvas import ABSENT, ACCENT, INK, QUIET, RULE, canvas, legend, note_missing
from probe.colours import attention_colours
from probe.errors import FigureError
from probe.fonts import drawable, font, text_width
from probe.messages import Language, message

_ACROSS = 8.0  # inches that maps side by side may take
_NEUTRAL = "#eceeee"  # of a diverging map's middle


def head_map(
    grid: NDArray[Any],
    *,
    title: str,
    layers: Sequence[str],
    label: str,
    significant: NDArray[np.bool_] | None = None,
    centre: float | None = None,
    limits: tuple[float, float] | None = None,
    heads: Sequence[str] = (),
    reverse: bool = False,
    language: Language = "en",
) -> Figure:
    """Draw one cell a head. NaN is grey, an exact zero is white with a ring; `significant` heads are framed.

    grid [layer, head]; `heads` names the columns where they are not all heads
    from 0. With `centre` the colours diverge from it, evenly to both sides. `limits` gives several maps one scale.
    `reverse` makes the lowest number the darkest, as for ranks.
    """
    grid = np.asarray(grid, dtype=float)  # [layer, head]
    if grid.ndim != 2 or grid.shape[0] != len(layers) or not grid.size:
        raise FigureError(f"head map {title!r}: grid of shape {grid.shape} for {len(layers)} layers")
    if heads and len(heads) != grid.shape[1]:
        raise FigureError(f"head map {title!r}: {len(heads)} head names for {grid.shape[1]} heads")
    if significant is not None and np.shape(significant) != grid.shape:
        raise FigureError(f"head map {title!r}: significant has shape {np.shape(significant)}, not {grid.shape}")
    cell = float(np.clip(4.0 / max(grid.shape), 0.12, 0.33))  # inches
    width, height = cell * grid.shape[1], cell * grid.shape[0]
    right = max(0.85, 0.24 + 0.125 * text_width(label))  # the bar's title starts at the bar and must end in the picture
    figure, axes, bar = canvas(width=width, height=height, left=0.75, title=title, right=right)
    low, high = limits or colour_limits([grid], centre=centre)
    cmap = _sequential() if centre is None else _diverging()
    _colour_cells(axes, grid, limits=(low, high), cmap=cmap.reversed() if reverse else cmap, cell=cell, bar=bar)
    _dress_bar(bar, label)
    if reverse:
        _rank_ticks(bar, low, high)
    _ticks(axes.xaxis, list(heads) or [str(head) for head in range(grid.shape[1])], cell)
    _ticks(axes.yaxis, list(layers), cell)
    axes.set_xlabel(message("figure.head", language), fontproperties=font(9.5), color=QUIET)
    axes.set_ylabel(message("figure.layer", language), fontproperties=font(9.5), color=QUIET)
    diverging = centre is not None
    marks = _mark_cells(axes, grid=grid, significant=significant, cell=cell, diverging=diverging, language=language)
    legend(axes, marks)
    return figure


def head_maps(
    grids: Sequence[NDArray[Any]],
    *,
    names: Sequence[str],
    title: str,
    layers: Sequence[str],
    label: str,
    heads: Sequence[str] = (),
    centre: float | None = None,
    language: Language = "en",
) -> Figure:
    """Draw several maps of the same heads side by side on one scale: one colour is one number in all of them.

    grids: one [layer, head] for each of `names`, which may be of several lines; otherwise as `head_map`.
    """
    cells = [np.asarray(grid, dtype=float) for grid in grids]  # each [layer, head]
    if not cells or len(names) != len(cells) or any(grid.shape != cells[0].shape for grid in cells):
        raise FigureError(f"head maps {title!r}: {len(names)} names for grids of {[grid.shape for grid in cells]}")
    if cells[0].ndim != 2 or cells[0].shape[0] != len(layers) or len(heads or cells[0][0]) != cells[0].shape[1]:
        raise FigureError(f"head maps {title!r}: {cells[0].shape} for {len(layers)} layers, {len(heads)} head names")
    cell = float(np.clip(2.3 / cells[0].shape[1], 0.09, min(0.24, max(0.12, 4.0 / cells[0].shape[0]))))
    size = (cells[0].shape[1] * cell, cells[0].shape[0] * cell)
    figure, panels, bar = _panels(names, size=size, title=title, label=label)
    limits, cmap = colour_limits(cells, centre=centre), _sequential() if centre is None else _diverging()
    marks: dict[str, Line2D | Patch] = {}
    for axes, grid in zip(panels, cells, strict=True):
        _colour_cells(axes, grid, limits=limits, cmap=cmap, cell=cell, bar=bar if axes is panels[0] else None)
        _ticks(axes.xaxis, list(heads) or [str(head) for head in range(grid.shape[1])], cell)
        _ticks(axes.yaxis, list(layers), cell)
        axes.set_xlabel(message("figure.head", language), fontproperties=font(9), color=QUIET, labelpad=2)
        found = _mark_cells(axes, grid=grid, significant=None, cell=cell, diverging=centre is not None,
                            language=language)  # fmt: skip
        marks |= {str(mark.get_label()): mark for mark in found}
    panels[0].set_ylabel(message("figure.layer", language), fontproperties=font(9), color=QUIET)
    _dress_bar(bar, label)
    legend(panels[0], list(marks.values()))
    return figure


def colour_limits(grids: Sequence[NDArray[Any]], *, centre: float | None = None) -> tuple[float, float]:
    """Give the scale that several maps share, so that one colour means one number in all of them."""
    values = np.concatenate([np.asarray(grid, dtype=float).ravel() for grid in grids])
    finite = values[np.isfinite(values)]
    if centre is not None:
        reach = float(np.abs(finite - centre).max(initial=0.0)) or 1.0
        return centre - reach, centre + reach
    low = min(0.0, float(finite.min(initial=0.0)))
    high = float(finite.max(initial=low))
    return low, high if high > low else low + 1.0


def sentence_map(
    labels: Sequence[str],
    weights: NDArray[Any],
    *,
    rows: Sequence[str],
    target: Sequence[int],
    cues: Sequence[int],
    title: str,
    language: Language = "en",
) -> Figure:
    """Draw a sentence across, one row of attention for each of `rows`; target framed, cues underlined.

    weights [row, token]. Labels come from the user's text, so what no font has becomes □, and a note
    in the figure names it.
    """
    weights = np.asarray(weights, dtype=float)  # [row, token]
    if weights.shape != (len(rows), len(labels)) or not weights.size:
        raise FigureError(f"sentence map {title!r}: weights {weights.shape} for {len(rows)} rows, {len(labels)} tokens")
    shown = [drawable(label) for label in labels]
    words = [word if len(word) <= 12 else word[:11] + "…" for word, _ in shown]
    longest = max(text_width(word) for word in words)
    upright = longest <= 3.2  # in character widths; longer words stand on end
    column = 0.34 if not upright else max(0.34, 0.165 * longest)
    row = float(np.clip(4.5 / len(rows), 0.15, 0.34))
    top = 0.32 if upright else 0.14 * longest + 0.12
    figure, axes, bar = canvas(
        width=column * len(labels), height=row * len(rows), left=0.95, title=title, above=top, below=0.45
    )
    low, high = colour_limits([weights])
    sns.heatmap(
        weights, ax=axes, cbar_ax=bar, cmap=_sequential(), vmin=low, vmax=high,
        linewidths=0.4, linecolor="white", xticklabels=False, yticklabels=False,
    )  # fmt: skip
    _dress_bar(bar, "")
    _ticks(axes.yaxis, list(rows), row)
    _word_ticks(axes, words, upright=upright, target=target, cues=cues)
    marks = _mark_cells(axes, grid=weights, significant=None, cell=min(row, column), language=language)
    legend(axes, [*_word_marks(cues, language), *marks])
    note_missing(figure, [character for _, missing in shown for character in missing], language)
    return figure


@cache
def _sequential() -> Colormap:
    return ListedColormap(attention_colours(256), name="cijing")


@cache
def _diverging() -> Colormap:
    # Azurite below, cinnabar above: told apart with every kind of colour blindness.
    return LinearSegmentedColormap.from_list("cijing-diverging", ["#173f74", "#5b8db8", _NEUTRAL, "#d98a5c", "#8f2413"])


def _dress_bar(bar: Axes, label: str) -> None:
    for spine in bar.spines.values():
        spine.set_visible(False)
    bar.set_ylabel("")
    bar.set_title(label, loc="left", fontproperties=font(9), color=QUIET, pad=6, parse_math=False)
    bar.tick_params(length=0, pad=3, colors=QUIET)
    bar.locator_params(axis="y", nbins=5)
    for text in bar.get_yticklabels():
        text.set_fontproperties(font(8.5))


def _rank_ticks(bar: Axes, low: float, high: float) -> None:
    """The lowest number, and the dark end, on top; it is always named."""
    steps = MaxNLocator(4, integer=True).tick_values(low, high)
    bar.set_yticks([low, *(step for step in steps if low + (high - low) / 5 <= step <= high)])
    bar.set_ylim(high, low)
    for text in bar.get_yticklabels():
        text.set_fontproperties(font(8.5))


def _ticks(axis: Any, names: Sequence[str], cell: float) -> None:
    step = max(1, int(np.ceil(0.17 / cell)))  # inches a label needs
    places = range(0, len(names), step)
    axis.set_ticks([place + 0.5 for place in places], labels=[names[place] for place in places])
    axis.set_tick_params(length=0, pad=3, colors=QUIET)
    for text in axis.get_ticklabels():
        text.set(fontproperties=font(8.5), rotation=0, parse_math=False)


def _word_ticks(axes: Axes, words: Sequence[str], *, upright: bool, target: Sequence[int], cues: Sequence[int]) -> None:
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(len(words)) + 0.5, labels=list(words))
    axes.tick_params(axis="x", length=0, pad=5, colors=INK)
    for place, text in enumerate(axes.get_xticklabels()):
        text.set(fontproperties=font(10), rotation=0 if upright else 90, parse_math=False)
        if place in target:
            text.set_bbox({"boxstyle": "square,pad=0.18", "fill": False, "edgecolor": ACCENT, "linewidth": 1.1})
    for place in cues:
        axes.plot([place + 0.12, place + 0.88], [-0.05, -0.05], color=INK, linewidth=1.8,
                  clip_on=False, solid_capstyle="butt")  # fmt: skip


def _colour_cells(
    axes: Axes,
    grid: NDArray[np.float64],
    *,
    limits: tuple[float, float],
    cmap: Colormap,
    cell: float,
    bar: Axes | None,
) -> None:
    """Fill the cells of one map; with `bar` the colours stand there."""
    sns.heatmap(
        grid, ax=axes, cbar=bar is not None, cbar_ax=bar, cmap=cmap, vmin=limits[0], vmax=limits[1],
        linewidths=0.6 if cell > 0.2 else 0.3, linecolor="white", xticklabels=False, yticklabels=False,
    )  # fmt: skip


def _panels(
    names: Sequence[str], *, size: tuple[float, float], title: str, label: str
) -> tuple[Figure, list[Axes], Axes]:
    """Give axes of `size` inches each under their names, as many in a row as fit, and one bar of colours for all."""
    across, down = size
    words = [[drawable(line)[0] for line in name.split("\n")] for name in names]
    tallest = max(map(len, words))  # lines of a name
    pitch = max(across, 0.135 * max(text_width(line) for name in words for line in name)) + 0.45
    columns = min(len(names), max(1, int((_ACROSS + 0.45) / pitch)))
    lines = math.ceil(len(names) / columns)
    between = 0.58 + 0.19 * tallest  # inches for the heads' numbers and the next names
    right = max(0.85, 0.24 + 0.125 * text_width(label))
    width, height = pitch * columns - 0.45, (down + between) * lines - between
    figure, frame, bar = canvas(
        width=width, height=height, left=0.75, title=title, right=right, above=0.19 * tallest
    )  # fmt: skip
    frame.set_visible(False)
    full_width, full_height = figure.get_size_inches()
    panels = []
    for place, name in enumerate(words):
        line, column = divmod(place, columns)
        bottom = 0.8 + (lines - 1 - line) * (down + between)
        box = ((0.75 + column * pitch) / full_width, bottom / full_height, across / full_width, down / full_height)
        axes = figure.add_axes(box, facecolor=ABSENT)
        axes.set_title(
            "\n".join(name),
            loc="left",
            fontproperties=font(9.5),
            color=INK,
            pad=5,
            parse_math=False,
            linespacing=1.35,
        )
        panels.append(axes)
    return figure, panels, bar


def _mark_cells(
    axes: Axes,
    *,
    grid: NDArray[np.float64],
    significant: NDArray[np.bool_] | None,
    cell: float,
    diverging: bool = False,
    language: Language,
) -> list[Line2D | Patch]:
    """Ring exact zeros, on white or on the neutral colour of a diverging map; hatch what has no value; frame."""
    marks: list[Line2D | Patch] = []
    zeros = np.argwhere(grid == 0)
    for row, column in zeros:
        face = _NEUTRAL if diverging else "white"
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=face, edgecolor=RULE, linewidth=0.3))
    if zeros.size:
        ring: dict[str, Any] = {
            "marker": "o",
            "markerfacecolor": "none",
            "markeredgecolor": "#98a1a9",
            "linestyle": "none",
        }
        axes.plot(zeros[:, 1] + 0.5, zeros[:, 0] + 0.5, markersize=cell * 14, markeredgewidth=0.6, **ring)
        marks.append(Line2D([], [], markersize=5, label=message("figure.zero", language), **ring))
    if np.isnan(grid).any():
        # The neutral colour is nearly this grey: in a diverging map a hatch tells them apart.
        hatch: dict[str, Any] = {"edgecolor": "#8b949c", "hatch": "//////", "linewidth": 0} if diverging else {}
        for row, column in np.argwhere(np.isnan(grid)) if diverging else ():
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=ABSENT, **hatch))
        marks.append(Patch(facecolor=ABSENT, label=message("figure.absent", language), **hatch))
    if significant is not None and significant.any():
        for row, column in np.argwhere(significant):
            axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=ACCENT, linewidth=1.3, zorder=3))
        name = message("figure.significant", language)
        marks.append(Patch(facecolor="none", edgecolor=ACCENT, linewidth=1.3, label=name))
    return marks


def _word_marks(cues: Sequence[int], language: Language) -> list[Line2D | Patch]:
    marks: list[Line2D | Patch] = [
        Patch(facecolor="none", edgecolor=ACCENT, linewidth=1.1, label=message("figure.target", language))
    ]
    if len(cues):
        marks.append(Line2D([], [], color=INK, linewidth=1.8, label=message("figure.cue", language)))
    return marks
