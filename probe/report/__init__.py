"""Sections in, one self-contained page out: the only home of jinja2."""

from probe.report.page import render_report
from probe.report.sections import CheckRow, Picture, Section, SentenceMap, SentenceMaps, Table

__all__ = ["CheckRow", "Picture", "Section", "SentenceMap", "SentenceMaps", "Table", "render_report"]
