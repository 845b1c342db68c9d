"""Claims as sections of a page, as Markdown and as a table: in words, whatever the numbers turn out to be."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

import pandas as pd

from probe.claims.records import Cell, Finding, Grid, Number, Part, Range, Rule, Unit, Verdict
from probe.messages import MESSAGES, Language, message
from probe.report import Section, Table

_SMALL_TABLE = (20, 7)  # rows and columns of a table that stands in the Markdown file as well
_UNTRUSTED: Verdict = "measure not to be trusted"

Models = Mapping[str, str]  # encoder, decoder -> name


def say(key: str, language: Language, /, **values: object) -> str:
    """A string on claims."""
    return message(f"claims.{key}", language, **values)


def sections_of(
    findings: Sequence[Finding], language: Language, *, models: Models, quick: bool = False
) -> list[Section]:
    """The page: all claims with their verdicts, then each with its statements, rules, watched cases and tables."""
    table = Table(
        caption=say("table_claims", language),
        columns=tuple(say(f"col_{name}", language) for name in ("claim", "verdict", "command", "number")),
        rows=tuple(_claim_row(finding, language, between="\n") for finding in findings),
        source="tables/claims.csv",
    )
    text = [counted(findings, language), say("summary_text", language), say("summary_limits", language)]
    if quick:
        text.insert(0, say("quick_note", language))
    first = Section(key="claims", title=say("summary", language), text=tuple(text), tables=(table,))
    return [first, *(_claim_section(finding, language, models) for finding in findings)]


def counted(findings: Sequence[Finding], language: Language) -> str:
    """How many claims came to each verdict."""
    count = Counter(finding.verdict for finding in findings)
    names = ("confirmed", "qualified", "refuted", "open", "untestable", "untrusted")
    return say("counts", language, **dict(zip(names, (count[verdict] for verdict in get_args(Verdict)), strict=True)))


def command_of(key: str) -> str:
    """The command that answers one claim."""
    return f"python -m probe claims --only {key}"


def markdown(
    findings: Sequence[Finding], language: Language, *, command: str, models: Models, seed: int, quick: bool = False
) -> str:
    """The table of claims and each claim's statements as a Markdown file that ends with a line break."""
    names = ("claim", "verdict", "command", "number")
    lines = [
        f"# {say('title', language)}",
        "",
        say("subtitle", language, **models, seed=seed),
        "",
        *([say("quick_note", language), ""] if quick else []),
        say("made_by", language, command=command),
        say("summary_text", language),
        say("summary_limits", language),
        "",
        counted(findings, language),
        "",
        *_pipes(
            [say(f"col_{name}", language) for name in names],
            [_claim_row(finding, language, between="<br>", mark="`") for finding in findings],
        ),
    ]
    for finding in findings:
        section = _claim_section(finding, language, models)
        lines += ["", f"## {section.title}", "", *_paragraphs(section.text)]
        for table in section.tables:
            if len(table.rows) <= _SMALL_TABLE[0] and len(table.columns) <= _SMALL_TABLE[1] + 1:
                lines += ["", f"**{table.caption}**", "", *_pipes(table.columns, table.rows)]
    return "\n".join(lines) + "\n"


def claims_frame(findings: Sequence[Finding]) -> pd.DataFrame:
    """One row a statement: its number, its watched cases, its verdict and the claim's."""
    columns = ["claim", "verdict", "part", "model", "bears", "part_verdict", "unit"]
    columns += [f"{case}{name}" for case in ("", "planted_", "must_fail_") for name in ("estimate", "low", "high", "n")]
    rows: list[list[Cell]] = []
    for finding in findings:
        for part in finding.parts:
            row: list[Cell] = [finding.key, finding.verdict, part.key, part.model, part.bears, part.verdict, part.unit]
            for one in (part.number, part.planted, part.must_fail):
                row += [one.estimate, one.low, one.high, one.n]
            rows.append(row)
        if not finding.parts:
            rows.append(
                [finding.key, finding.verdict, "", "", "", finding.verdict, "", *[math.nan, math.nan, math.nan, 0] * 3]
            )
    return pd.DataFrame(rows, columns=columns)


def claim_lines(finding: Finding, language: Language) -> list[tuple[str, str, str, str]]:
    """Key, verdict, number and what it is the number of, a line for each statement that counts; for the terminal."""
    verdict = _verdict(finding.verdict, language)
    if not finding.deciding:
        return [(finding.key, verdict, "–", _why(finding, language))]
    return [
        (finding.key, verdict, number_text(part.number, part.unit, language), _statement(finding, part, language))
        for part in finding.deciding
    ]


def _claim_row(finding: Finding, language: Language, *, between: str, mark: str = "") -> tuple[str, ...]:
    command = f"{mark}{command_of(finding.key)}{mark}"
    verdict = _verdict(finding.verdict, language)
    return say(finding.key, language), verdict, command, _numbers(finding, language, between=between)


def _numbers(finding: Finding, language: Language, *, between: str) -> str:
    if not finding.deciding:
        return _why(finding, language)
    return between.join(
        f"{_statement(finding, part, language)}: {number_text(part.number, part.unit, language)}"
        for part in finding.deciding
    )


def _statement(finding: Finding, part: Part, language: Language) -> str:
    return say(f"{finding.key}.{part.key}", language) + (f" [{part.model}]" if part.model else "")


def _why(finding: Finding, language: Language) -> str:
    key = f"{finding.key}.why"
    return say(key, language) if f"claims.{key}" in MESSAGES else "–"


def _claim_section(finding: Finding, language: Language, models: Models) -> Section:
    verdict = _verdict(finding.verdict, language)
    text = [say("verdict_of", language, claim=say(finding.key, language), verdict=verdict)]
    how = MESSAGES.get(f"claims.{finding.key}.how")
    if how is not None:
        wanted = {name: models[name] for name in how.placeholders(language)}
        text.append(say(f"{finding.key}.how", language, **wanted))
    if finding.why:
        text.append(_why(finding, language))
    tables = [_parts_table(finding, language)] if finding.parts else []
    tables += [_grid_table(grid, language) for grid in finding.grids]
    title = say(f"{finding.key}.short", language)
    return Section(key=f"claim-{finding.key}", title=title, text=tuple(text), tables=tuple(tables))


def _parts_table(finding: Finding, language: Language) -> Table:
    names = ("statement", "model", "bears", "rule", "number", "planted", "must_fail", "verdict")
    return Table(
        caption=say("table_parts", language),
        columns=tuple(say(f"col_{name}", language) for name in names),
        rows=tuple(_part_row(finding, part, language) for part in finding.parts),
        source="tables/claims.csv",
    )


def _part_row(finding: Finding, part: Part, language: Language) -> tuple[str, ...]:
    watched = (interval_text(one, part.unit, language) for one in (part.planted, part.must_fail))
    return (
        say(f"{finding.key}.{part.key}", language),
        part.model or "–",
        say(part.bears, language),
        rule_text(part.rule, part.unit, language),
        number_text(part.number, part.unit, language),
        *watched,
        _verdict(part.statement, language),
    )


def _grid_table(grid: Grid, language: Language) -> Table:
    caption = say(f"table_{grid.caption}", language)
    return Table(
        caption=f"{caption} · {grid.model}" if grid.model else caption,
        columns=tuple(say(f"col_{name}", language) for name in grid.columns),
        rows=tuple(tuple(_cell(cell, language) for cell in row) for row in grid.rows),
    )


def _cell(cell: Cell, language: Language) -> Cell:
    if isinstance(cell, str) and f"claims.cell_{cell}" in MESSAGES:
        return say(f"cell_{cell}", language)
    return None if isinstance(cell, float) and math.isnan(cell) else cell


def _verdict(verdict: Verdict, language: Language) -> str:
    return say(f"verdict_{verdict}", language)


def number_text(number: Number, unit: Unit, language: Language) -> str:
    """A number in its unit, with its interval and n; an exact one alone."""
    text = interval_text(number, unit, language)
    if math.isnan(number.low):
        return say("thin", language, number=text, n=number.n)
    return text if number.low == number.high and number.n <= 1 else say("of_n", language, number=text, n=number.n)


def interval_text(number: Number, unit: Unit, language: Language) -> str:
    """A number in its unit, with its interval where it has one."""
    estimate = value_text(number.estimate, unit)
    if math.isnan(number.low) or number.low == number.high:
        return estimate
    low, high = value_text(number.low, unit), value_text(number.high, unit)
    return say("interval", language, estimate=estimate, low=low, high=high)


def rule_text(rule: Rule, unit: Unit, language: Language) -> str:
    """A rule in words."""
    confirmed, refuted = (range_text(side, unit, language) for side in (rule.confirmed, rule.refuted))
    between = _verdict(rule.between, language)
    return say("rule", language, confirmed=confirmed, refuted=refuted, between=between)


def range_text(side: Range, unit: Unit, language: Language) -> str:
    """A range in words."""
    low, high = value_text(side.above, unit), value_text(side.below, unit)
    if math.isinf(side.below):
        return say("range_above", language, low=low)
    if math.isinf(side.above):
        return say("range_below", language, high=high)
    return say("range_between", language, low=low, high=high)


def value_text(value: float, unit: Unit) -> str:
    """One number as its unit is written: shares in percent, points signed, small deviations as powers of ten."""
    if math.isnan(value) or math.isinf(value):
        return "–"
    if unit in ("share", "depth"):
        text = f"{100 * value:.{2 if 0 < abs(value) < 0.1 else 1}f} %"
    elif unit == "points":
        text = f"{100 * value:+.1f}"
    elif unit == "deviation":
        text = f"{value:.3g}"
    elif unit == "tokens":
        text = f"{value:g}"
    else:
        text = f"{value:.2f}"
    zero = text.startswith("-") and not text.strip("-0. %")
    return text.removeprefix("-") if zero else text.replace("-", "−")


def _paragraphs(text: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for paragraph in text:
        lines += [paragraph, ""]
    return lines[:-1]


def _pipes(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    def line(cells: Sequence[Cell]) -> str:
        return "| " + " | ".join(_plain(cell) for cell in cells) + " |"

    return [line(columns), "|" + "---|" * len(columns), *(line(row) for row in rows)]


def _plain(cell: Cell) -> str:
    if cell is None:
        return "–"
    text = f"{cell:.4g}" if isinstance(cell, float) else str(cell)
    return text.replace("|", "\\|").replace("\n", " ")
