"""Sections in, one self-contained HTML page out: no request, no library, nothing that a text can break out of."""

import base64
import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from probe.colours import attention_colours
from probe.errors import FigureError
from probe.messages import LANGUAGES, Language, message, messages_under
from probe.report.cells import cells_of
from probe.report.numbers import column_text, is_numeric, value_html
from probe.report.sections import Cell, CheckRow, Section, Table
from probe.report.sentences import direction_of, pack_sentences, safe_json
from probe.report.typeface import FONT_BYTES, font_faces

PAGE_BYTES = 5_000_000
PICTURES = 12
_COLOUR_STEPS = 64
_FULL_ROWS = 20  # a table of so many stands in full height, a longer one scrolls
_NARROW = 16  # half-width cells; a column of longer text would else be squeezed to one Chinese character
# Fonts grow by a third in base64; the rest is room for the note on what was left out.
_RESERVE = FONT_BYTES * 4 // 3 + 20_000


@dataclass(frozen=True, kw_only=True)
class _Head:
    """What stands above and below the sections."""

    title: str
    subtitle: str
    language: Language
    manifest_rows: tuple[tuple[str, str], ...]
    made_note: str


@dataclass(frozen=True, kw_only=True)
class _Viewer:
    """One sentence viewer: what its script reads, and how many sentences did not fit."""

    payload: dict[str, Any]
    omitted: int


@dataclass(frozen=True, kw_only=True)
class _Column:
    """One column of a table, its cells as text."""

    name: str
    numeric: bool
    words: bool  # some cell is too long for a narrow column
    cells: tuple[str, ...]


def render_report(
    sections: Sequence[Section],
    *,
    title: str,
    language: Language,
    subtitle: str = "",
    manifest_rows: tuple[tuple[str, str], ...] = (),
    made_note: str = "",
) -> str:
    """Give the page as one string, at most PAGE_BYTES in UTF-8 unless its tables alone are larger.

    made_note stands at the foot in place of the sentence on the run folder. Sentences that do not fit are left out
    and counted on the page.
    """
    _check(sections, language)
    note = made_note or message("page.made_note", language)
    head = _Head(title=title, subtitle=subtitle, language=language, manifest_rows=manifest_rows, made_note=note)
    bare = _render(sections, head, viewers={}, fonts="")
    budget = max(PAGE_BYTES - _RESERVE - len(bare.encode()), 0)
    viewers = {}
    for section in sections:
        if section.sentences is not None:
            payload, omitted = pack_sentences(section.sentences, budget=budget)
            budget -= len(safe_json(payload["cases"]).encode())
            viewers[section.key] = _Viewer(payload=payload, omitted=omitted)
    whole = _render(sections, head, viewers=viewers, fonts="")
    return _render(sections, head, viewers=viewers, fonts=font_faces(_visible(whole)))


def _check(sections: Sequence[Section], language: Language) -> None:
    if language not in LANGUAGES:
        raise FigureError(f"no report language {language!r}; there are {', '.join(LANGUAGES)}")
    keys = [section.key for section in sections]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise FigureError(f"section key {twice[0]!r} is given twice")
    pictures = sum(len(section.figures) for section in sections)
    if pictures > PICTURES:
        raise FigureError(f"a page holds at most {PICTURES} pictures, got {pictures}")


def _render(sections: Sequence[Section], head: _Head, *, viewers: dict[str, _Viewer], fonts: str) -> str:
    style, script = fonts + "\n" + _template_text("page.css"), _template_text("viewer.js")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    language = head.language
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            head=head,
            html_language="zh-Hans" if language == "zh" else "en",
            sections=sections,
            viewers=viewers,
            policy=policy,
            style=Markup(style),
            script=Markup(script),
            shared={"strings": messages_under("viewer.", language), "colours": _colours()},
            say=lambda key, **values: message(key, language, **values),
            columns_of=lambda table: _columns(table, language),
            check_counts=_check_counts,
            full_rows=_FULL_ROWS,
            cells_of=cells_of,
            number=lambda value: value_html(value, missing=message("table.missing", language)),
        )
    )


def _template_text(name: str) -> str:
    text = resources.files("probe.report").joinpath("templates", name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")  # browsers hash what they parse, and they parse line ends as \n


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _visible(page: str) -> str:
    """The page without what no font draws: style, script and the data of pictures and weights."""
    page = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL)
    return re.sub(r"[A-Za-z0-9+/=]{200,}", "", page)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("probe.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = safe_json
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode("ascii")
    environment.filters["direction"] = direction_of
    # A relative link, whatever the name looks like: "javascript:" becomes a file that is not there.
    environment.filters["link"] = lambda source: "./" + quote(source)
    return environment


def _columns(table: Table, language: Language) -> list[_Column]:
    cells = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    missing = message("table.missing", language)
    return [_column(name, column, missing) for name, column in zip(table.columns, cells, strict=True)]


def _column(name: str, cells: Sequence[Cell], missing: str) -> _Column:
    words = any(isinstance(cell, str) and _width(cell) > _NARROW for cell in cells)
    return _Column(name=name, numeric=is_numeric(cells), words=words, cells=column_text(cells, missing=missing))


def _width(text: str) -> int:
    """The width of a text in half-width cells: a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _check_counts(checks: Sequence[CheckRow]) -> dict[str, int]:
    names = {"passed": "pass", "failed": "fail", "skipped": "skip"}
    return {word: sum(check.status == status for check in checks) for word, status in names.items()}


def _colours() -> dict[str, tuple[str, ...]]:
    return {"light": attention_colours(_COLOUR_STEPS), "dark": attention_colours(_COLOUR_STEPS, dark=True)}
