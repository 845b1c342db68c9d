"""The text of a PDF, its printed lines joined to paragraphs again. The home of pypdf."""

import re
import unicodedata
from io import BytesIO

import pypdf

from finetune.rag.documents import Content, UnreadableError, is_visible

_ENDS = tuple("。！？!?.:：;；…”」』）)】")
_FULL = 0.75  # of the widest lines: a line that short ends a paragraph
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")


def read_pdf(raw: bytes) -> Content:
    """Give the text layer of a PDF; UnreadableError where a password is missing or there is no text layer."""
    reader = pypdf.PdfReader(BytesIO(raw), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableError("is encrypted; allowed is a PDF that opens without a password")
    pages = [_CONTROL.sub("\ufffd", page.extract_text()) for page in reader.pages]
    text = joined_lines("\n".join(pages))
    if not is_visible(text):
        raise UnreadableError(f"has no text on its {len(pages)} pages; a scan needs character recognition first")
    return Content(text=text, title=_title(reader))


def _title(reader: pypdf.PdfReader) -> str:
    title = reader.metadata.title if reader.metadata else None
    return title if isinstance(title, str) else ""


def joined_lines(text: str) -> str:
    """Join lines that only the page's width parted, 苹果⏎酸 and exam-⏎ple as well; others stay apart."""
    lines = [line.strip() for line in text.split("\n")]
    widths = sorted(width for width in map(_width, lines) if width)
    full = _FULL * widths[int(0.9 * len(widths))] if widths else 0.0
    pieces: list[str] = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        wrapped = bool(line and after) and not line.endswith(_ENDS) and _width(line) >= full
        if wrapped and line.endswith("-") and line[-2:-1].isalpha() and after[0].islower():
            pieces.append(line[:-1])
        elif wrapped:
            pieces.append(line + ("" if _is_wide(line[-1]) or _is_wide(after[0]) else " "))
        else:
            pieces.append(line + "\n")
    return re.sub(r"\n{3,}", "\n\n", "".join(pieces)).strip()


def _width(line: str) -> int:
    return sum(1 + _is_wide(character) for character in line)


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"
