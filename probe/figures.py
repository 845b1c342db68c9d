"""Results in, matplotlib figures out: the only home of matplotlib and seaborn, and of the Chinese font."""

import contextlib
import errno
import importlib.util
import io
import math
import os
import re
import secrets
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from probe.colours import attention_colours
from probe.errors import FigureError, OutputError
from probe.messages import Language, message

# Open fonts first: a page may embed them without asking anybody.
_SYSTEM_FAMILIES = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN",
    "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans GB", "Heiti SC",
    "Microsoft YaHei", "DengXian", "SimHei", "Noto Serif CJK SC", "Songti SC", "SimSun",
)  # fmt: skip
_MUST_HAVE = "苹果词镜"
_INK, _QUIET, _RULE, _ABSENT, _ACCENT = "#16202a", "#5d6873", "#d5dade", "#d3d6d9", "#b3261e"
_ACROSS, _FOREST = 8.0, 3.6  # inches that maps side by side may take, and that a forest's axes do
_NEUTRAL, _CLAIMED = "#eceeee", "#1f4e8c"  # of a diverging map's middle; of a difference that is claimed
_DPI = 160
_FEW = 6  # values of an axis that each get a tick
_SHOWN_WHITESPACE = {"\n": "↓", "\r": "↓", "\t": "→"}


@dataclass(frozen=True)
class FontChoice:
    """The font that draws Chinese, and where it was found."""

    name: str
    path: Path
    source: Literal["system", "zhplot"]


@cache
def chinese_font() -> FontChoice:
    """Find a system font with Chinese glyphs or, where there is none, the one in the zhplot package."""
    installed = {
        entry.name: Path(entry.fname)
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal" and entry.weight in (400, "normal", "regular")
    }
    for family in _SYSTEM_FAMILIES:
        if family in installed and _draws_chinese(installed[family]):
            return FontChoice(family, installed[family], "system")
    # The spec only, never the import: zhplot's own import is free to change rcParams.
    spec = importlib.util.find_spec("zhplot")
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / "fonts" / "NotoSansSC-Regular.ttf"
        if _draws_chinese(path):
            return FontChoice(FT2Font(path).family_name, path, "zhplot")
    raise FigureError(
        "no font with Chinese glyphs found; install one (such as Noto Sans CJK SC) or `pip install zhplot`"
    )


def latin_font(style: Literal["Regular", "Italic"]) -> Path:
    """Give the serif face that the page sets its words in: STIX, which comes with matplotlib."""
    name = {"Regular": "STIXGeneral.ttf", "Italic": "STIXGeneralItalic.ttf"}[style]
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name


def drawable(text: str) -> tuple[str, tuple[str, ...]]:
    """Give `text` with □ for each character that no font here has, and those characters.

    For labels cut from a user's text: an emoji must not cost the report, and must not vanish either.
    Joiners and direction marks have no shape of their own and are left out.
    """
    kept, missing = [], []
    for character in text:
        shown = _SHOWN_WHITESPACE.get(character, character)
        if unicodedata.category(character) == "Cf" or "VARIATION SELECTOR" in unicodedata.name(character, ""):
            continue
        if ord(shown) in _characters():
            kept.append(shown)
        else:
            kept.append("□")
            missing.append(character)
    return "".join(kept), tuple(dict.fromkeys(missing))


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
    right = max(0.85, 0.24 + 0.125 * _width(label))  # the bar's title starts at the bar and must end in the picture
    figure, axes, bar = _canvas(width=width, height=height, left=0.75, title=title, right=right)
    low, high = limits or colour_limits([grid], centre=centre)
    cmap = _sequential() if centre is None else _diverging()
    _colour_cells(axes, grid, limits=(low, high), cmap=cmap.reversed() if reverse else cmap, cell=cell, bar=bar)
    _dress_bar(bar, label)
    if reverse:
        _rank_ticks(bar, low, high)
    _ticks(axes.xaxis, list(heads) or [str(head) for head in range(grid.shape[1])], cell)
    _ticks(axes.yaxis, list(layers), cell)
    axes.set_xlabel(message("figure.head", language), fontproperties=_font(9.5), color=_QUIET)
    axes.set_ylabel(message("figure.layer", language), fontproperties=_font(9.5), color=_QUIET)
    diverging = centre is not None
    marks = _mark_cells(axes, grid=grid, significant=significant, cell=cell, diverging=diverging, language=language)
    _legend(axes, marks)
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
        axes.set_xlabel(message("figure.head", language), fontproperties=_font(9), color=_QUIET, labelpad=2)
        found = _mark_cells(axes, grid=grid, significant=None, cell=cell, diverging=centre is not None,
                            language=language)  # fmt: skip
        marks |= {str(mark.get_label()): mark for mark in found}
    panels[0].set_ylabel(message("figure.layer", language), fontproperties=_font(9), color=_QUIET)
    _dress_bar(bar, label)
    _legend(panels[0], list(marks.values()))
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
    columns = _legend_columns([str(name) for name, _ in groups])
    below = 0.8 + 0.2 * (math.ceil(len(groups) / columns) - 1)
    figure, axes, _ = _canvas(width=width, height=2.7, left=0.75, title=title, bar=False, below=below)
    for (name, rows), style in zip(groups, _line_styles(len(groups)), strict=True):
        rows = rows.sort_values(x)
        axes.fill_between(rows[x], rows[low], rows[high], color=style["color"], alpha=0.16, linewidth=0)
        axes.plot(rows[x], rows[y], label=str(name), linewidth=1.5, markersize=4.5, **style)
    if zero:
        axes.axhline(0, color=_QUIET, linewidth=0.7, zorder=0)
    places = sorted(set(frame[x]))
    if across and len(places) <= _FEW:
        axes.set_xticks(places)  # where there was a measurement, and not between
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[2, 2.5, 5, 10]) if across else MaxNLocator(integer=True))
    axes.set_xlabel(across or message("figure.layer", language), fontproperties=_font(9.5), color=_QUIET)
    axes.set_ylabel(label, fontproperties=_font(9.5), color=_QUIET, parse_math=False)
    _dress_axes(axes)
    if series is not None:
        _legend(axes, [handle for handle in axes.lines if not str(handle.get_label()).startswith("_")])
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
    left = 0.35 + 0.133 * max(_width(text) for text, _ in labels[: len(frame)])
    values = frame[[estimate, low, high]].to_numpy(dtype=float)  # [row, estimate low high]
    told = _forest_numbers(values, language)
    right = 0.2 + 0.12 * max(_width(one) for one in told)
    height = 0.25 * (len(places) + len(headings)) + 0.1
    figure, axes, _ = _canvas(width=_FOREST, height=height, left=left, title=title, bar=False, right=right)
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
    axes.set_xlabel(label, fontproperties=_font(9.5), color=_QUIET, parse_math=False)
    _legend(axes, [marks[key] for key in sorted(marks)])
    _note_missing(figure, [character for _, missing in labels for character in missing], language)
    return figure


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
    longest = max(_width(word) for word in words)
    upright = longest <= 3.2  # in character widths; longer words stand on end
    column = 0.34 if not upright else max(0.34, 0.165 * longest)
    row = float(np.clip(4.5 / len(rows), 0.15, 0.34))
    top = 0.32 if upright else 0.14 * longest + 0.12
    figure, axes, bar = _canvas(
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
    _legend(axes, [*_word_marks(cues, language), *marks])
    _note_missing(figure, [character for _, missing in shown for character in missing], language)
    return figure


def png_bytes(figure: Figure, *, colours: int | None = None) -> bytes:
    """Give the figure as PNG, the same bytes each time; FigureError names a character that no font has.

    With `colours` (at most 256) the nearest of so many stand for all: a third of the bytes where a picture is lines
    and words. Not for maps, whose colours are numbers.
    """
    buffer = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        FigureCanvasAgg(figure)
        # Software and date would make equal figures differ.
        figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None}, facecolor="white")
    for warning in caught:
        glyph = re.match(r"Glyph (\d+) .*missing from", str(warning.message))
        if glyph:
            character = chr(int(glyph[1]))
            raise FigureError(f"no font has the character {_name(character)}; install one that does")
    return buffer.getvalue() if colours is None else _of_few_colours(buffer, colours)


def save_png(figure: Figure, path: Path) -> None:
    """Write the figure as PNG, the same bytes each time; where that fails, what stood there before still does."""
    content = png_bytes(figure)
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _of_few_colours(png: io.BytesIO, colours: int) -> bytes:
    smaller = io.BytesIO()
    with Image.open(png) as image:
        few = image.convert("RGB").quantize(colours, dither=Image.Dither.NONE)
        few.save(smaller, format="PNG", optimize=True)
    return smaller.getvalue()


def _draws_chinese(path: Path) -> bool:
    if not path.is_file():
        return False
    has = FT2Font(path).get_charmap()
    return all(ord(character) in has for character in _MUST_HAVE)


@cache
def _characters() -> frozenset[int]:
    paths = [chinese_font().path, Path(font_manager.findfont("DejaVu Sans"))]
    return frozenset(code for path in paths for code in FT2Font(path).get_charmap())


@cache
def _families() -> tuple[str, ...]:
    try:
        choice = chinese_font()
    except FigureError:
        return ("DejaVu Sans",)  # a figure without Chinese needs none; one with it fails in png_bytes
    if choice.source == "zhplot":
        font_manager.fontManager.addfont(choice.path)
    return (choice.name, "DejaVu Sans")


def _font(size: float) -> FontProperties:
    return FontProperties(family=list(_families()), size=size)


def _name(character: str) -> str:
    return f"{character!r} (U+{ord(character):04X} {unicodedata.name(character, 'unnamed')})"


def _width(word: str) -> float:
    return sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.58 for c in word)


@cache
def _sequential() -> Colormap:
    return ListedColormap(attention_colours(256), name="cijing")


@cache
def _diverging() -> Colormap:
    # Azurite below, cinnabar above: told apart with every kind of colour blindness.
    return LinearSegmentedColormap.from_list("cijing-diverging", ["#173f74", "#5b8db8", _NEUTRAL, "#d98a5c", "#8f2413"])


def _canvas(
    *,
    width: float,
    height: float,
    left: float,
    title: str,
    bar: bool = True,
    right: float | None = None,
    above: float = 0.0,
    below: float = 0.8,
) -> tuple[Figure, Axes, Axes]:
    """Give a figure whose axes measure width × height inches, with a bar for the colours beside them."""
    right = right or (0.85 if bar else 0.25)
    full_width, full_height = max(left + width + right, 3.6), below + height + 0.6 + above
    figure = Figure(figsize=(full_width, full_height), facecolor="white")
    axes = figure.add_axes((left / full_width, below / full_height, width / full_width, height / full_height))
    bar_height = float(np.clip(height - 0.2, 0.5, 1.6))
    bar_bottom = max(below + height - bar_height - 0.2, 0.1)  # its label stands level with the map's upper edge
    beside = figure.add_axes(
        (
            (left + width + 0.14) / full_width,
            bar_bottom / full_height,
            0.09 / full_width,
            bar_height / full_height,
        )
    )
    beside.set_visible(bar)
    axes.set_facecolor(_ABSENT)
    size = min(12.0, 72 * (full_width - left - 0.1) / max(_width(title), 1.0))  # a long title is set smaller
    figure.text(
        left / full_width, 1 - 0.16 / full_height, title, va="top", fontproperties=_font(size), color=_INK,
        parse_math=False,
    )  # fmt: skip
    return figure, axes, beside


def _dress_axes(axes: Axes) -> None:
    axes.set_facecolor("white")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_RULE)
    axes.tick_params(length=0, colors=_QUIET)
    axes.grid(axis="y", color=_RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set_fontproperties(_font(9))


def _dress_bar(bar: Axes, label: str) -> None:
    for spine in bar.spines.values():
        spine.set_visible(False)
    bar.set_ylabel("")
    bar.set_title(label, loc="left", fontproperties=_font(9), color=_QUIET, pad=6, parse_math=False)
    bar.tick_params(length=0, pad=3, colors=_QUIET)
    bar.locator_params(axis="y", nbins=5)
    for text in bar.get_yticklabels():
        text.set_fontproperties(_font(8.5))


def _rank_ticks(bar: Axes, low: float, high: float) -> None:
    """The lowest number, and the dark end, on top; it is always named."""
    steps = MaxNLocator(4, integer=True).tick_values(low, high)
    bar.set_yticks([low, *(step for step in steps if low + (high - low) / 5 <= step <= high)])
    bar.set_ylim(high, low)
    for text in bar.get_yticklabels():
        text.set_fontproperties(_font(8.5))


def _ticks(axis: Any, names: Sequence[str], cell: float) -> None:
    step = max(1, int(np.ceil(0.17 / cell)))  # inches a label needs
    places = range(0, len(names), step)
    axis.set_ticks([place + 0.5 for place in places], labels=[names[place] for place in places])
    axis.set_tick_params(length=0, pad=3, colors=_QUIET)
    for text in axis.get_ticklabels():
        text.set(fontproperties=_font(8.5), rotation=0, parse_math=False)


def _word_ticks(axes: Axes, words: Sequence[str], *, upright: bool, target: Sequence[int], cues: Sequence[int]) -> None:
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(len(words)) + 0.5, labels=list(words))
    axes.tick_params(axis="x", length=0, pad=5, colors=_INK)
    for place, text in enumerate(axes.get_xticklabels()):
        text.set(fontproperties=_font(10), rotation=0 if upright else 90, parse_math=False)
        if place in target:
            text.set_bbox({"boxstyle": "square,pad=0.18", "fill": False, "edgecolor": _ACCENT, "linewidth": 1.1})
    for place in cues:
        axes.plot([place + 0.12, place + 0.88], [-0.05, -0.05], color=_INK, linewidth=1.8,
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
    pitch = max(across, 0.135 * max(_width(line) for name in words for line in name)) + 0.45
    columns = min(len(names), max(1, int((_ACROSS + 0.45) / pitch)))
    lines = math.ceil(len(names) / columns)
    between = 0.58 + 0.19 * tallest  # inches for the heads' numbers and the next names
    right = max(0.85, 0.24 + 0.125 * _width(label))
    width, height = pitch * columns - 0.45, (down + between) * lines - between
    figure, frame, bar = _canvas(
        width=width, height=height, left=0.75, title=title, right=right, above=0.19 * tallest
    )  # fmt: skip
    frame.set_visible(False)
    full_width, full_height = figure.get_size_inches()
    panels = []
    for place, name in enumerate(words):
        line, column = divmod(place, columns)
        bottom = 0.8 + (lines - 1 - line) * (down + between)
        box = ((0.75 + column * pitch) / full_width, bottom / full_height, across / full_width, down / full_height)
        axes = figure.add_axes(box, facecolor=_ABSENT)
        axes.set_title(
            "\n".join(name),
            loc="left",
            fontproperties=_font(9.5),
            color=_INK,
            pad=5,
            parse_math=False,
            linespacing=1.35,
        )
        panels.append(axes)
    return figure, panels, bar


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
        axes.plot([low, high], [place, place], color=_CLAIMED if claimed else _QUIET, linewidth=1.5, zorder=2,
                  solid_capstyle="butt")  # fmt: skip
    order = 2 if bare else 0 if claimed else 1
    shape: dict[str, Any] = [
        {"marker": "o", "color": _CLAIMED, "markersize": 6.5},
        {"marker": "o", "color": _QUIET, "markerfacecolor": "white", "markersize": 6, "markeredgewidth": 1.3},
        {"marker": "x", "color": _QUIET, "markersize": 5.5, "markeredgewidth": 1.3},
    ][order]
    axes.plot([estimate], [place], linestyle="none", zorder=3, **shape)
    words = message(("figure.shown", "figure.not_shown", "figure.no_interval")[order], language)
    return {order: Line2D([], [], linestyle="none", label=words, **shape)}


def _dress_forest(axes: Axes, labels: Sequence[str], *, places: Sequence[int], lines: int) -> None:
    """Names on the left, and the line at 0."""
    axes.set_ylim(lines - 0.4, -0.6)
    _dress_axes(axes)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=_RULE, linewidth=0.5)
    axes.axvline(0, color=_INK, linewidth=0.8, zorder=1.5)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.set_yticks(list(places), labels=list(labels))
    for text in axes.get_yticklabels():
        text.set(fontproperties=_font(9.5), color=_QUIET, parse_math=False)
    for text in axes.get_xticklabels():
        text.set_fontproperties(_font(9))


def _beside(axes: Axes, words: str, place: int, *, inches: float, size: float) -> None:
    """Write words on a row of the forest, so far to the right of the axes' left edge."""
    axes.annotate(words, (0, place), xycoords=("axes fraction", "data"), xytext=(72 * inches, 0), color=_INK,
                  textcoords="offset points", va="center", fontproperties=_font(size), parse_math=False)  # fmt: skip


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
        axes.add_patch(Rectangle((column, row), 1, 1, facecolor=face, edgecolor=_RULE, linewidth=0.3))
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
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=_ABSENT, **hatch))
        marks.append(Patch(facecolor=_ABSENT, label=message("figure.absent", language), **hatch))
    if significant is not None and significant.any():
        for row, column in np.argwhere(significant):
            axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=_ACCENT, linewidth=1.3, zorder=3))
        name = message("figure.significant", language)
        marks.append(Patch(facecolor="none", edgecolor=_ACCENT, linewidth=1.3, label=name))
    return marks


def _word_marks(cues: Sequence[int], language: Language) -> list[Line2D | Patch]:
    marks: list[Line2D | Patch] = [
        Patch(facecolor="none", edgecolor=_ACCENT, linewidth=1.1, label=message("figure.target", language))
    ]
    if len(cues):
        marks.append(Line2D([], [], color=_INK, linewidth=1.8, label=message("figure.cue", language)))
    return marks


def _legend_columns(names: Sequence[str]) -> int:
    """How many legend entries stand side by side: as many as fit the width of a curve, at most four."""
    widest = max((_width(name) for name in names), default=0.0)
    return max(1, min(len(names), 4, int(34 // (widest + 4))))


def _legend(axes: Axes, marks: Sequence[Any]) -> None:
    if not marks:
        return
    columns = _legend_columns([str(mark.get_label()) for mark in marks])
    legend = axes.figure.legend(
        handles=list(marks), loc="lower left", ncols=columns, frameon=False, prop=_font(9),
        bbox_to_anchor=(axes.get_position().x0, 0.0), handlelength=1.4, columnspacing=1.6, borderaxespad=0.5,
        borderpad=0,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set(color=_QUIET, parse_math=False)


def _note_missing(figure: Figure, missing: Sequence[str], language: Language) -> None:
    if missing:
        names = ", ".join(f"U+{ord(character):04X}" for character in dict.fromkeys(missing))
        figure.text(0.98, 0.012, message("figure.undrawable", language, names=names), ha="right", va="bottom",
                    fontproperties=_font(9), color=_QUIET, parse_math=False)  # fmt: skip


def _line_styles(count: int) -> list[dict[str, Any]]:
    """Give lines told apart by colour, dash and marker, so that print and colour-blind readers keep them."""
    colours = ["#1f4e8c", "#b3261e", "#2e8b6f", "#8a6d1f", "#6b4a8f", "#4a5560"]
    dashes, markers = ["-", "--", "-.", ":"], ["o", "s", "^", "D", "v", "P", "X"]
    return [{"color": colours[i % 6], "linestyle": dashes[i % 4], "marker": markers[i % 7]} for i in range(count)]
