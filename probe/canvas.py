"""What all figures share: axes of a size in inches, colours, legends, PNG files that are the same each time."""

import contextlib
import errno
import io
import os
import re
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from probe.errors import FigureError, OutputError
from probe.fonts import character_name, font, text_width
from probe.messages import Language, message

INK, QUIET, RULE, ABSENT, ACCENT = "#16202a", "#5d6873", "#d5dade", "#d3d6d9", "#b3261e"
_DPI = 160


def canvas(
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
    axes.set_facecolor(ABSENT)
    size = min(12.0, 72 * (full_width - left - 0.1) / max(text_width(title), 1.0))  # a long title is set smaller
    figure.text(
        left / full_width, 1 - 0.16 / full_height, title, va="top", fontproperties=font(size), color=INK,
        parse_math=False,
    )  # fmt: skip
    return figure, axes, beside


def dress_axes(axes: Axes) -> None:
    """A white ground, quiet lines below and on the left, a grid across."""
    axes.set_facecolor("white")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
    axes.tick_params(length=0, colors=QUIET)
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        text.set_fontproperties(font(9))


def legend(axes: Axes, marks: Sequence[Any]) -> None:
    """Name the marks below the axes; none, no legend."""
    if not marks:
        return
    columns = legend_columns([str(mark.get_label()) for mark in marks])
    drawn = axes.figure.legend(
        handles=list(marks), loc="lower left", ncols=columns, frameon=False, prop=font(9),
        bbox_to_anchor=(axes.get_position().x0, 0.0), handlelength=1.4, columnspacing=1.6, borderaxespad=0.5,
        borderpad=0,
    )  # fmt: skip
    for text in drawn.get_texts():
        text.set(color=QUIET, parse_math=False)


def legend_columns(names: Sequence[str]) -> int:
    """How many legend entries stand side by side: as many as fit the width of a curve, at most four."""
    widest = max((text_width(name) for name in names), default=0.0)
    return max(1, min(len(names), 4, int(34 // (widest + 4))))


def note_missing(figure: Figure, missing: Sequence[str], language: Language) -> None:
    """Name below the figure the characters that no font has."""
    if missing:
        names = ", ".join(f"U+{ord(character):04X}" for character in dict.fromkeys(missing))
        figure.text(0.98, 0.012, message("figure.undrawable", language, names=names), ha="right", va="bottom",
                    fontproperties=font(9), color=QUIET, parse_math=False)  # fmt: skip


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
            raise FigureError(f"no font has the character {character_name(character)}; install one that does")
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
