"""What the command line shows: heat maps, tables and progress, with a user's text always as text."""

import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.style import Style
from rich.table import Table
from rich.text import Text

ShowProgress = Callable[[str, int, int], None]  # stage, done, total
STATUS_STYLES = {"pass": "green", "fail": "bold red", "skip": "yellow"}
LIGHT, DARK = (247, 251, 255), (8, 48, 107)  # weight 0 and the largest weight shown
LONGEST_LABEL = 16
QUIET_SECONDS = 2.0
_NARROWEST = 8
WIDE = 10**6  # columns where the output goes to a file or a program: one line a row


def open_console(stream: TextIO) -> Console:
    """Give a console for a stream: colours only on a terminal and without NO_COLOR, no markup, no emoji codes.

    Off a terminal nothing is wrapped: whatever reads the lines wants a row a line.
    """
    width = None if stream.isatty() else WIDE
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def visible(text: str) -> str:
    """Give the text with everything that draws nothing, or that moves what stands beside it, spelled out.

    Control and format characters (escape sequences, right-to-left overrides, joiners) become <U+202E>, ends of
    lines and tabs a symbol, and a combining mark without a letter gets a dotted circle to stand on.
    """
    shown = "".join(_visible_character(character) for character in text)
    return f"◌{shown}" if shown and unicodedata.category(shown[0]).startswith("M") else shown


def print_heat_map(
    console: Console,
    labels: Sequence[str],
    weights: NDArray[np.floating],
    *,
    rows: Sequence[str],
    target: Sequence[int] = (),
    cues: Sequence[int] = (),
    special: Sequence[int] = (),
) -> None:
    """Print weights [row, word] in percent under their words, darker for more, in blocks as wide as the console.

    The darkest colour is the largest weight on a word that is not special: a sink would leave the rest blank.
    """
    shown = [_fitted(_visible_label(label)) for label in labels]
    widths = [max(3, cell_len(label)) for label in shown]
    names = [visible(name) for name in rows]
    margin = max((cell_len(name) for name in names), default=0)
    ordinary = np.delete(weights, list(special), axis=1)
    full = float(np.nanmax(ordinary)) if np.isfinite(ordinary).any() else 0.0
    styles = {**dict.fromkeys(cues, "bold"), **dict.fromkeys(target, "bold underline")}
    for block in _blocks(widths, console.width - margin):
        header = Text(" " * margin)
        for word in block:
            header.append(" ").append(_padded(shown[word], widths[word]), styles.get(word, ""))
        _print_line(console, header)
        for name, row in zip(names, weights, strict=True):
            line = Text(_padded(name, margin))
            for word in block:
                line.append(" ").append(_percent(row[word]).rjust(widths[word]), _shade(row[word], full))
            _print_line(console, line)


def check_table(items: Sequence[tuple[str, str, float | None, float | None, str]]) -> Table:
    """Give the self-check as a table; an item is (name, pass | fail | skip, value, bound, why)."""
    table = _plain_table("check", "result", "value", "bound", "why")
    for name, status, value, bound, why in items:
        result = Text(status, STATUS_STYLES.get(status, ""))
        table.add_row(_text(name), result, _number(value), _number(bound), _text(why))
    return table


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Give words as a table."""
    table = _plain_table(*columns)
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    return table


def print_groups(
    console: Console, columns: Sequence[str], groups: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]]
) -> None:
    """Print rows under headings, (heading, rows) each; a heading's cells stand in the first columns and run on.

    Columns run through all groups. On a terminal cells are folded into what room there is; elsewhere a row is a line.
    """
    shown = [([visible(cell) for cell in heading], [[*map(visible, row)] for row in rows]) for heading, rows in groups]
    lines = [list(columns), *(row for _, rows in shown for row in rows)]
    leading = max((len(heading) - 1 for heading, _ in shown), default=0)
    lines += [heading[:leading] for heading, _ in shown]
    widths = [max(cell_len(line[place]) for line in lines if place < len(line)) for place in range(len(columns))]
    if console.is_terminal:
        widths = _squeezed(widths, room=console.width, kept=leading)
    _print_folded(console, columns, widths, style="bold")
    for heading, rows in shown:
        indent = "  ".join(_padded(cell, width) for cell, width in zip(heading[:-1], widths, strict=False))
        _print_folded(console, [indent, heading[-1]], [cell_len(indent), max(console.width - cell_len(indent) - 2, 20)])
        for row in rows:
            _print_folded(console, row, widths)


def print_changes(
    console: Console, summary: Sequence[str], facts: Sequence[Sequence[str]], results: Sequence[Sequence[str]]
) -> None:
    """Print what changed between two runs: first in words, then as tables."""
    for line in summary:
        _print_line(console, _text(line))
    for columns, rows in ((("differs", "name", "A", "B"), facts), (("result", "where", "A", "B", "change"), results)):
        if rows:
            console.print()
            console.print(text_table(columns, rows))


def print_steps(
    console: Console, steps: Iterable[tuple[str, str, Sequence[str], Sequence[Sequence[str]], str]]
) -> None:
    """Print steps of a calculation: (title, formula, paragraphs, rows of a name and its cells, what it came to)."""
    for number, (title, formula, text, rows, verdict) in enumerate(steps, 1):
        heading = Text(f"{number} {visible(title)}", "bold")
        if formula:
            heading.append(f"   {visible(formula)}", "not bold")
        _print_line(console, heading)
        for paragraph in text:
            console.print(Padding.indent(_text(paragraph), 2))
        for line in _aligned(rows):
            _print_line(console, Text(f"  {line}"))
        if verdict:
            _print_line(console, Text(f"  {visible(verdict)}", "dim"))
        _print_line(console, Text(""))


@contextmanager
def show_progress(stream: TextIO | None = None, *, patient: bool = False) -> Iterator[ShowProgress]:
    """Give a function that shows how far each stage is: a bar on a terminal, elsewhere its start and its end.

    What is done within two seconds says nothing anywhere but on a terminal, and with `patient` not even there.
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        yield _line_a_stage(stream)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    silent_until = time.monotonic() + (QUIET_SECONDS if patient else 0.0)
    with Progress(*columns, console=open_console(stream), transient=True) as bars:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if time.monotonic() < silent_until:
                return
            if stage not in tasks:
                tasks[stage] = bars.add_task(visible(stage), total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


def _squeezed(widths: Sequence[int], *, room: int, kept: int) -> list[int]:
    """Widths that fit the room with gaps of two: the first `kept` stay, narrow ones too, the widest share the rest."""
    left = room - sum(widths[:kept]) - 2 * (len(widths) - 1)
    squeezed = list(widths)
    narrow_first = sorted(range(kept, len(widths)), key=lambda place: widths[place])
    for number, place in enumerate(narrow_first):
        share = max(left // (len(narrow_first) - number), _NARROWEST)
        squeezed[place] = min(widths[place], share)
        left -= squeezed[place]
    return squeezed


def _print_folded(console: Console, cells: Sequence[str], widths: Sequence[int], *, style: str = "") -> None:
    """Print cells side by side, each folded into its width, without blanks at the end of a line."""
    folded = [
        Text(cell).wrap(console, width) if cell_len(cell) > width else [Text(cell)]
        for cell, width in zip(cells, widths, strict=True)
    ]
    for place in range(max(map(len, folded))):
        parts = [lines[place].plain.rstrip() if place < len(lines) else "" for lines in folded]
        padded = [_padded(part, width) for part, width in zip(parts[:-1], widths, strict=False)]
        _print_line(console, Text("  ".join([*padded, parts[-1]]).rstrip(), style))


def _line_a_stage(stream: TextIO) -> ShowProgress:
    start, said = time.monotonic(), dict[str, int]()

    def show(stage: str, done: int, total: int) -> None:
        last = said.get(stage)
        if time.monotonic() - start > QUIET_SECONDS if last is None else done == total != last:
            said[stage] = done
            stream.write(f"{visible(stage)}: {done} of {total}\n")
            stream.flush()

    return show


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of cells as lines: names to the left, numbers to the right of their column."""
    shown = [[visible(name), *(_fitted(visible(cell)) for cell in cells)] for name, *cells in rows]
    count = max((len(row) for row in shown), default=0)
    widths = [max((cell_len(row[place]) for row in shown if place < len(row)), default=0) for place in range(count)]
    for name, *cells in shown:
        numbers = (" " * (width - cell_len(cell)) + cell for cell, width in zip(cells, widths[1:], strict=False))
        yield "  ".join((_padded(name, widths[0]), *numbers)).rstrip()


def _visible_character(character: str) -> str:
    if character in "\n\r\t\v\f":
        return chr(0x2400 + ord(character))  # ␊ and its like
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return f"<U+{ord(character):04X}>" if hidden else character


def _visible_label(label: str) -> str:
    """Give a word as it heads a column; one of spaces alone would leave the column without a head."""
    if not label.strip():
        label = "".join("␣" if unicodedata.category(character) == "Zs" else character for character in label)
    return visible(label) or "∅"


def _fitted(label: str) -> str:
    if cell_len(label) <= LONGEST_LABEL:
        return label
    return set_cell_size(label, LONGEST_LABEL - 1).rstrip() + "…"


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _blocks(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Divide columns into blocks that fit the room, at least one column a block."""
    block: list[int] = []
    used = 0
    for place, width in enumerate(widths):
        if block and used + width + 1 > room:
            yield block
            block, used = [], 0
        block.append(place)
        used += width + 1
    if block:
        yield block


def _percent(weight: float) -> str:
    if not np.isfinite(weight):
        return "–"
    return "·" if weight < 0.005 else f"{100 * weight:.0f}"


def _shade(weight: float, full: float) -> Style:
    if not np.isfinite(weight) or full <= 0:
        return Style()
    share = min(1.0, max(0.0, float(weight) / full))
    red, green, blue = (round(light + share * (dark - light)) for light, dark in zip(LIGHT, DARK, strict=True))
    ink = Color.from_rgb(255, 255, 255) if share > 0.5 else Color.from_rgb(0, 0, 0)
    return Style(color=ink, bgcolor=Color.from_rgb(red, green, blue))


def _print_line(console: Console, line: Text) -> None:
    console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _plain_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True)
    table.add_column(columns[-1], overflow="fold")
    return table


def _text(words: str) -> Text:
    return Text(visible(words))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
