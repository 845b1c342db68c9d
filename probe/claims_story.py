"""Claims as sections of a page, as Markdown and as a table: in words, whatever the numbers turn out to be."""

import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import pandas as pd

from probe.claims.records import (
    FEWEST_FOR_TAILS,
    STATEMENTS,
    Cell,
    Finding,
    Grid,
    Number,
    Part,
    Range,
    Rule,
    Unit,
    Verdict,
)
from probe.messages import MESSAGES, Language, message
from probe.report import Section, Table

_SMALL_TABLE = (20, 7)  # rows and columns of a table that stands in the Markdown file as well
_COLUMNS = ("claim", "verdict", "command", "statements")
_ENTITIES = {"<": "lt", "&": "amp"}
_SPECIAL = frozenset("`|<>&*_[]\\\r\n")

Models = Mapping[str, str]  # encoder, decoder -> name


def say(key: str, language: Language, /, **values: object) -> str:
    """A string on claims."""
    return message(f"claims.{key}", language, **values)


def sections_of(
    findings: Sequence[Finding],
    language: Language,
    *,
    models: Models,
    quick: bool = False,
    command: str = "python -m probe claims",
    settings: Sequence[str] = (),
) -> list[Section]:
    """The page: all claims with their verdicts, then each with its statements, rules, watched cases and tables."""
    table = Table(
        caption=say("table_claims", language),
        columns=tuple(say(f"col_{name}", language) for name in _COLUMNS),
        rows=tuple(_claim_row(finding, language, command_of(finding.key, settings)) for finding in findings),
        source="tables/claims.csv",
        whole=True,
    )
    text = [*_summary(findings, language, quick=quick), say("page_by", language, command=command)]
    first = Section(key="claims", title=say("summary", language), text=tuple(text), tables=(table,))
    return [first, *(_claim_section(finding, language, models) for finding in findings)]


def _summary(findings: Sequence[Finding], language: Language, *, quick: bool) -> list[str]:
    """What a reader must know before the verdicts, as paragraphs."""
    names = ("article", "watched", "verdicts", "bears", "limits")
    text = [counted(findings, language), *(say(f"summary_{name}", language) for name in names)]
    judged = [part for finding in findings for part in finding.parts if part.number.by_chance]
    if quick:
        return [say("quick_note", language), *text]
    return [*text, say("summary_many", language, n=len(judged), most=STATEMENTS, fewest=FEWEST_FOR_TAILS)]


def counted(findings: Sequence[Finding], language: Language) -> str:
    """How many claims came to each verdict."""
    count = Counter(finding.verdict for finding in findings)
    told = [verdict for verdict in get_args(Verdict) if verdict != "trial run" or count[verdict]]
    pieces = [say("count", language, n=count[verdict], verdict=_verdict(verdict, language)) for verdict in told]
    return say("counts", language, n=len(findings), counts=say("comma", language).join(pieces))


def command_of(key: str, settings: Sequence[str] = ()) -> str:
    """The command that answers one claim, with the settings of the run."""
    return shlex.join(["python", "-m", "probe", "claims", "--only", key, *settings])


def markdown(
    findings: Sequence[Finding],
    language: Language,
    *,
    command: str,
    models: Models,
    seed: int,
    quick: bool = False,
    settings: Sequence[str] = (),
) -> str:
    """The table of claims and each claim's statements as a Markdown file that ends with a line break."""
    models = {role: literal(name) for role, name in models.items()}
    findings = [_literal_names(finding) for finding in findings]
    lines = [
        f"# {say('title', language)}",
        "",
        say("subtitle", language, **models, seed=seed),
        "",
        say("made_by", language, command=code(command)),
        "",
        *_paragraphs(_summary(findings, language, quick=quick)),
        "",
        *_pipes(
            [say(f"col_{name}", language) for name in _COLUMNS],
            [_claim_row(finding, language, code(command_of(finding.key, settings))) for finding in findings],
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
    columns = ["claim", "verdict", "part", "model", "bears", "statement_verdict", "corrected", "unit", "ranged"]
    columns += [f"{case}{name}" for case in ("", "planted_", "nothing_") for name in ("estimate", "low", "high", "n")]
    rows: list[list[Cell]] = []
    for finding in findings:
        for part in finding.parts:
            row: list[Cell] = [finding.key, _text(finding.verdict), part.key, part.model, part.bears]
            row += [_text(part.statement), part.corrected, part.unit, part.number.ranged]
            for one in (part.number, part.planted, part.nothing):
                row += [one.estimate, one.low, one.high, one.n]
            rows.append(row)
        if not finding.parts:
            verdict = _text(finding.verdict)
            rows.append(
                [finding.key, verdict, "", "", "", verdict, "", "", False, *[math.nan, math.nan, math.nan, 0] * 3]
            )
    return pd.DataFrame(rows, columns=columns)


@dataclass(frozen=True, kw_only=True)
class ClaimLines:
    """One claim for the terminal: itself, then a line for each statement that counts; all cells begin with its key."""

    claim: tuple[str, str, str]  # key, verdict, wording
    statements: tuple[tuple[str, ...], ...]  # as LINE_COLUMNS


LINE_COLUMNS = ("claim", "verdict", "statement_verdict", "number", "quantity", "statement")


def claim_lines(finding: Finding, language: Language) -> ClaimLines:
    """The claim and its statements as cells, for the terminal."""
    verdict = _verdict(finding.verdict, language)
    rows = [
        (
            *(finding.key, verdict, _bearing_verdict(part, language), part_text(part, language)),
            *(say(f"{finding.key}.{part.key}.is", language), _statement(finding, part, language)),
        )
        for part in finding.deciding
    ]
    waiting = (finding.key, verdict, "–", "–", "–", _why(finding, language))
    claim = (finding.key, verdict, say(finding.key, language))
    return ClaimLines(claim=claim, statements=tuple(rows) or (waiting,))


def line_columns(language: Language) -> tuple[str, ...]:
    """The heads of a claim's lines."""
    return tuple(say(f"col_{name}", language) for name in LINE_COLUMNS)


def _claim_row(finding: Finding, language: Language, command: str) -> tuple[str, ...]:
    verdict = _verdict(finding.verdict, language)
    return say(finding.key, language), verdict, command, _numbers(finding, language)


def _numbers(finding: Finding, language: Language) -> str:
    if not finding.deciding:
        return _why(finding, language)
    mark = "• " if len(finding.deciding) > 1 else ""
    return "\n".join(mark + _numbered(finding, part, language) for part in finding.deciding)


def _numbered(finding: Finding, part: Part, language: Language) -> str:
    """A statement, its number with what it is, and its verdict, in one sentence."""
    return say(
        "numbered",
        language,
        statement=_statement(finding, part, language),
        quantity=say(f"{finding.key}.{part.key}.is", language),
        number=part_text(part, language),
        verdict=_bearing_verdict(part, language),
    )


def _bearing_verdict(part: Part, language: Language) -> str:
    """The verdict on a statement, marked where it would not stand by itself, and where it speaks against the claim."""
    verdict = _part_verdict(part, language)
    return say("against_mark", language, verdict=verdict) if part.bears == "against" else verdict


def _part_verdict(part: Part, language: Language) -> str:
    marks = {"falls": " †", "too few": " ‡"}
    return _verdict(part.statement, language) + marks.get(part.corrected, "")


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
    names = ("statement", "rule", "number", "planted", "nothing", "verdict")
    return Table(
        caption=say("table_parts", language),
        columns=tuple(say(f"col_{name}", language) for name in names),
        rows=tuple(_part_row(finding, part, language) for part in finding.parts),
        source="tables/claims.csv",
        whole=True,
    )


def _part_row(finding: Finding, part: Part, language: Language) -> tuple[str, ...]:
    watched = (interval_text(one, part.unit, language) for one in (part.planted, part.nothing))
    bears = [] if part.bears == "for" else [say(part.bears, language)]
    number = part_text(part, language).replace("n = ", "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    return (
        "\n".join([say(f"{finding.key}.{part.key}", language), *([part.model] if part.model else []), *bears]),
        rule_text(part.rule, part.unit, language),
        f"{number}\n{say(f'{finding.key}.{part.key}.is', language)}",
        *watched,
        _part_verdict(part, language),
    )


def _grid_table(grid: Grid, language: Language) -> Table:
    caption = say(f"table_{grid.caption}", language)
    return Table(
        caption=f"{caption} · {grid.model}" if grid.model else caption,
        columns=tuple(say(f"col_{name}", language) for name in grid.columns),
        rows=tuple(tuple(_cell(cell, language) for cell in row) for row in grid.rows),
        whole=True,
    )


def _cell(cell: Cell, language: Language) -> Cell:
    if isinstance(cell, str) and f"claims.cell_{cell}" in MESSAGES:
        return say(f"cell_{cell}", language)
    return None if isinstance(cell, float) and math.isnan(cell) else cell


def _verdict(verdict: Verdict, language: Language) -> str:
    return say(f"verdict_{verdict}", language)


def _text(verdict: Verdict) -> str:
    """A verdict in the table of numbers, in the words of the English page."""
    return _verdict(verdict, "en")


def part_text(part: Part, language: Language) -> str:
    """A statement's number, or why this model gives none."""
    if part.untestable:
        return say(f"untestable_{part.untestable}", language)
    return number_text(part.number, part.unit, language)


def number_text(number: Number, unit: Unit, language: Language) -> str:
    """A number in its unit, with its interval and n, or with its range; an exact one alone."""
    text = interval_text(number, unit, language)
    if number.ranged:
        alike = number.low == number.high
        return (
            say("all_alike", language, number=text, n=number.n)
            if alike
            else say("range_of", language, range=text, n=number.n)
        )
    if math.isnan(number.low):
        return say("thin", language, number=text, n=number.n)
    return text if number.low == number.high and number.n <= 1 else say("of_n", language, number=text, n=number.n)


def interval_text(number: Number, unit: Unit, language: Language) -> str:
    """A number in its unit, with its interval where it has one."""
    estimate = value_text(number.estimate, unit)
    if math.isnan(number.low) or math.isclose(number.low, number.high):
        return estimate
    low, high = value_text(number.low, unit), value_text(number.high, unit)
    if number.ranged:
        return say("range_between", language, low=low, high=high)
    return say("interval", language, estimate=estimate, low=low, high=high)


def rule_text(rule: Rule, unit: Unit, language: Language) -> str:
    """A rule in words."""
    confirmed, refuted = (range_text(side, unit, language) for side in (rule.confirmed, rule.refuted))
    if rule.between == "refuted":
        return say("rule_else_refuted", language, confirmed=confirmed)
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


def literal(text: str) -> str:
    """Text that Markdown shows as it is: no tags, no code, one line; tables take care of their own bars."""
    line = " ".join(text.splitlines())
    return re.sub("[<&]", lambda found: f"&{_ENTITIES[found[0]]};", line).replace("`", "\\`")


def code(text: str) -> str:
    """Text as code in Markdown, also within a table; what would end the code or the line is written as entities."""
    if not re.search(r"[`|<&\r\n]", text):
        return f"`{text}`"
    return f"<code>{''.join(f'&#{ord(char)};' if char in _SPECIAL else char for char in text)}</code>"


def _literal_names(finding: Finding) -> Finding:
    """The finding with all words that come from models and data as Markdown shows them."""
    parts = tuple(replace(part, model=literal(part.model)) for part in finding.parts)
    grids = tuple(
        replace(
            grid,
            model=literal(grid.model),
            rows=tuple(tuple(literal(cell) if isinstance(cell, str) else cell for cell in row) for row in grid.rows),
        )
        for grid in finding.grids
    )
    return replace(finding, parts=parts, grids=grids)


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
    return text.replace("|", "\\|").replace("\n", "<br>")
