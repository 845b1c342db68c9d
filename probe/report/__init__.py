"""Sections in, one self-contained page out: the only home of jinja2."""

from probe.report.numbers import percent
from probe.report.page import PICTURES, render_report
from probe.report.sections import CheckRow, Picture, Section, SentenceMap, SentenceMaps, Table

__all__ = [
    "PICTURES",
    "CheckRow",
    "Picture",
    "Section",
    "SentenceMap",
    "SentenceMaps",
    "Table",
    "percent",
    "render_report",
]
