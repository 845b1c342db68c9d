"""The text of a DOCX: paragraphs and table rows on lines of their own. The home of docx, which is python-docx."""

import zipfile
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import docx
from docx.oxml.ns import qn

from finetune.rag.documents import Content, Limits, UnreadableError, megabytes

_OLD_WORD = b"\xd0\xcf\x11\xe0"  # OLE2: .doc, and also any DOCX with a password
_MANY_PARTS = 10_000
_NO_TITLE = "Word Document"  # what python-docx says where there is none
_SKIPPED = {
    qn(f"w:{name}") for name in ("del", "moveFrom", "instrText", "delText", "pPr", "rPr", "tblPr", "tcPr", "sectPr")
}
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"  # a second copy of a text box
_SPACES = {qn("w:tab"): "\t", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}


def read_docx(raw: bytes, limits: Limits) -> Content:
    """Give the text of the body, of tables, text boxes and insertions too; deleted and hidden text is none."""
    _check_unpacked(raw, limits)
    document = docx.Document(BytesIO(raw))
    body = document.element.body
    if body is None:
        raise UnreadableError("is a DOCX without a body")
    title = document.core_properties.title
    text = "".join(_pieces(body))
    lines = (line.rstrip() for line in text.split("\n"))
    return Content(text="\n".join(lines).strip(), title="" if title == _NO_TITLE else title or "")


def _check_unpacked(raw: bytes, limits: Limits) -> None:
    """Unpack every part in small pieces and count, for what a bomb's own header says of its size may be a lie."""
    if raw.startswith(_OLD_WORD):
        raise UnreadableError("is encrypted or an old .doc; allowed is a DOCX without a password")
    left = megabytes(limits.unpacked_mb)
    with zipfile.ZipFile(BytesIO(raw)) as parts:
        if len(parts.infolist()) > _MANY_PARTS:
            raise UnreadableError(f"has {len(parts.infolist())} parts; allowed are {_MANY_PARTS}")
        for part in parts.infolist():
            if part.flag_bits & 1:
                raise UnreadableError("is encrypted; allowed is a DOCX without a password")
            with parts.open(part) as file:
                while piece := file.read(2**16):
                    left -= len(piece)
                    if left < 0:
                        raise UnreadableError(f"unpacks to more than {limits.unpacked_mb:g} MB")


def _pieces(body: Any) -> Iterator[str]:
    """Text, tabs and line ends in their order; an own list of what is open, so that no nesting is too deep."""
    waiting: list[Any] = [body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield node
        elif not isinstance(node.tag, str) or node.tag in _SKIPPED or node.tag == _FALLBACK or _is_hidden(node):
            continue
        elif node.tag == qn("w:t"):
            yield node.text or ""
        elif node.tag in _SPACES:
            yield _SPACES[node.tag]
        else:
            waiting.append(_after(node))
            waiting.extend(reversed(node))


def _after(node: Any) -> str:
    """What parts a node from the next one: a cell's paragraphs stay on the line of their row."""
    if node.tag == qn("w:p"):
        return " " if node.getparent().tag == qn("w:tc") else "\n"
    return {qn("w:tc"): "\t", qn("w:tr"): "\n"}.get(node.tag, "")


def _is_hidden(node: Any) -> bool:
    """Whether a run is formatted as hidden text."""
    if node.tag != qn("w:r"):
        return False
    mark = node.find(f"{qn('w:rPr')}/{qn('w:vanish')}")
    return mark is not None and mark.get(qn("w:val"), "true") not in ("0", "false", "off")
