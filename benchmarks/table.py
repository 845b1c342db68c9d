"""The table of what something costs: its lines, their verdicts, and the command line that prints them.

A benchmark is a module with presets, each some settings, and a function that gives the lines of one setting.
"""

import argparse
import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

from benchmarks.measure import PAIRS, Comparison

S = TypeVar("S")

_SCALES = {"MB": 1e-6, "GB": 1e-9}  # of bytes; every other unit is shown as it is measured


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table: a quantity on both sides; `held` is what the bound is held against."""

    setting: str
    quantity: str
    unit: str
    other: float  # of the side that the setting is against
    rows: float  # of the side that takes rows
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    held: float = math.nan
    bound: float = math.nan
    at_least: bool = False  # the bound is the least that is allowed, not the most

    @property
    def verdict(self) -> str:
        """Kept or missed; a quantity without a bound has none."""
        if math.isnan(self.bound):
            return ""
        kept = self.held >= self.bound if self.at_least else self.held <= self.bound
        return "kept" if kept else "MISSED"


def line_of(setting: object, quantity: str, unit: str, both: Comparison, *, held: float, bound: float) -> Line:
    """The line of a comparison."""
    scale = _SCALES.get(unit, 1.0)
    return Line(
        setting=str(setting),
        quantity=quantity,
        unit=unit,
        other=both.a * scale,
        rows=both.b * scale,
        ratio=both.ratio,
        low=both.low,
        high=both.high,
        held=held,
        bound=bound,
    )


def header() -> str:
    """The table's head."""
    columns = f"{'other':>9}{'rows':>9} {'':3}{'ratio':>7}  {'95 % interval':<16}{'bound':>6}  verdict"
    return f"{'setting':<33}{'quantity':<36}{columns}"


def shown(line: Line) -> str:
    """A line as text; what a line does not have stays empty."""
    ratio = "" if math.isnan(line.ratio) else f"{line.ratio:.3f}"
    interval = "" if math.isnan(line.low) else f"{line.low:.3f} to {line.high:.3f}"
    bound = "" if math.isnan(line.bound) else f"{line.bound:g}"
    digits = 0 if line.unit == "" else 2
    numbers = f"{line.other:>9.{digits}f}{line.rows:>9.{digits}f} {line.unit:3}{ratio:>7}  {interval:<16}{bound:>6}"
    return f"{line.setting:<33}{line.quantity:<36}{numbers}  {line.verdict}"


def as_json(line: Line) -> dict[str, str | float | None]:
    """A line for a JSON file, with null for what it does not have."""
    values = {**asdict(line), "verdict": line.verdict}
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values.items()}


def exit_code(lines: Sequence[Line]) -> int:
    """1 where a bound is missed, else 0."""
    return 1 if any(line.verdict == "MISSED" for line in lines) else 0


def print_table(
    arguments: Sequence[str] | None,
    *,
    name: str,
    about: str,
    presets: Mapping[str, Sequence[S]],
    lines_of: Callable[[S, int], Iterator[Line]],
) -> int:
    """Read a benchmark's command line, measure the preset's settings and print each line as soon as it is known.

    lines_of takes a setting and the number of pairs. Gives the exit code.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about)
    parser.add_argument("--preset", choices=sorted(presets), default="full")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of timed runs, at least 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="the same as a table of commas")
    options = parser.parse_args(arguments)
    if options.pairs < 2:
        parser.error(f"--pairs {options.pairs}: an interval needs at least 2")
    lines = []
    print(header())
    for setting in presets[options.preset]:
        for line in lines_of(setting, options.pairs):
            print(shown(line), flush=True)
            lines.append(line)
    if options.json:
        options.json.write_text(json.dumps([as_json(line) for line in lines], indent=1) + "\n", "utf-8")
    if options.csv:
        write_csv(lines, options.csv)
    return exit_code(lines)


def write_csv(lines: Sequence[Line], path: Path) -> None:
    """The lines as CSV, to five digits; what a line does not have stays empty."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        names = [*(field.name for field in fields(Line)), "verdict"]
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        for line in map(as_json, lines):
            writer.writerow({key: f"{value:.5g}" if isinstance(value, float) else value for key, value in line.items()})
