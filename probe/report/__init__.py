"""Sections in, one self-contained page out: the only home of jinja2."""

from probe.report.formulas import Formula, linear_text
from probe.report.numbers import percent
from probe.report.page import PICTURES, render_report
from probe.report.sections import CheckRow, Picture, Section, SentenceMap, SentenceMaps, StepBlock, Table, Vector

__all__ = [
    "PICTURES",
    "CheckRow",
    "Formula",
    "Picture",
    "Section",
    "SentenceMap",
    "SentenceMaps",
    "StepBlock",
    "Table",
    "Vector",
    "linear_text",
    "percent",
    "render_report",
]
