"""The page as Markdown: the same sections with links to the pictures and tables that lie beside the file."""

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from finetune.adapters import in_words
from finetune.compare.messages import Language
from finetune.compare.page_messages import page_text
from probe import Picture, Section, Table

LONGEST = 40  # rows of a table that stands in the file; a longer one is linked


def picture_files(sections: Sequence[Section]) -> dict[str, Picture]:
    """The pictures of a page by the names that their files have in its folder."""
    return {name: picture for section in sections for name, picture in _pictures(section)}


def markdown(
    sections: Sequence[Section],
    *,
    title: str,
    subtitle: str,
    foot: Sequence[tuple[str, str]],
    made: str,
    language: Language,
) -> str:
    """Give the page as Markdown that ends with a line break; what texts and models wrote stands in it as words."""
    lines = [f"# {in_words(title)}", "", in_words(subtitle)]
    for section in sections:
        lines += ["", f"## {in_words(section.title)}"]
        for paragraph in section.text:
            lines += ["", in_words(paragraph)]
        for name, picture in _pictures(section):
            lines += ["", f"![{in_words(picture.alt)}]({quote(name)})", "", _caption(picture.caption, picture.source)]
        for table in section.tables:
            lines += ["", _caption(table.caption, table.source), "", *_table(table, language)]
    lines += ["", "---", "", in_words(made), "", *(f"- {in_words(name)}: {in_words(value)}" for name, value in foot)]
    return "\n".join(lines) + "\n"


def _pictures(section: Section) -> Iterator[tuple[str, Picture]]:
    for place, picture in enumerate(section.figures, 1):
        yield f"figures/{section.key}-{place}.png", picture


def _caption(caption: str, source: str) -> str:
    link = f" ([{in_words(source)}]({quote(source)}))" if source else ""
    return f"**{in_words(caption)}**{link}"


def _table(table: Table, language: Language) -> Iterator[str]:
    if len(table.rows) > LONGEST:
        yield page_text("md.longer", language, rows=len(table.rows), file=in_words(table.source))
        return
    numeric = [
        any(isinstance(row[place], int | float) for row in table.rows) for place in range(len(table.columns))
    ]  # fmt: skip
    yield _line([in_words(name) for name in table.columns])
    yield "|" + "".join("---:|" if right else "---|" for right in numeric)
    for row in table.rows:
        yield _line([_cell(cell) for cell in row])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(cell: str | float | int | None) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.4g}".replace("-", "−")
    return in_words(str(cell))
