"""What a collection is made of: documents as texts, and what of it was left out and why."""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from finetune.errors import RetrievalError

Kind = Literal["txt", "markdown", "html", "pdf", "docx", "jsonl", "csv", "dataset"]
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # what no file of UTF-8 text holds


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text. `id` is its path in its folder, or its file's with #row; offsets elsewhere are characters of `text`."""

    id: str
    text: str
    title: str
    kind: Kind
    sha256: str  # of the text


@dataclass(frozen=True, kw_only=True)
class Left:
    """What was not read, a file or a row as file:line, and the reason in one line."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where the rows of JSONL, CSV, Parquet and `datasets` have their text; without a header columns are 1, 2, 3."""

    text: str = "text"
    title: str = "title"
    id: str | None = None  # None: the row's line in its file
    header: bool = True  # of CSV
    split: str = "train"  # of a dataset id


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one document may ask for before it is left out."""

    file_mb: float = 64  # a file that is one document
    row_mb: float = 16  # a row of a file of rows, which itself may be of any size
    unpacked_mb: float = 256  # what a DOCX unpacks to
    memory_mb: float = 2048  # of the process that reads HTML, PDF and DOCX
    seconds: float = 60  # for one HTML, PDF or DOCX
    bad_rows: int = 100  # as many rows left out, and the rest of their file is as well

    def __post_init__(self) -> None:
        """Refuse what would leave out everything."""
        for name in ("file_mb", "row_mb", "unpacked_mb", "memory_mb", "seconds", "bad_rows"):
            if not getattr(self, name) > 0:
                raise RetrievalError(f"limits.{name} {getattr(self, name)}: allowed is a number above 0")


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a reader makes of one file; without a title of its own the title is empty."""

    text: str
    title: str = ""


class UnreadableError(RetrievalError):
    """Why a file or a row is left out; its words follow the file's name."""


def megabytes(count: float) -> int:
    """Give a limit in MB as a number of bytes."""
    return int(count * 2**20)


def document_of(content: Content, *, id: str, kind: Kind, title: str) -> Document:
    """Give the document of a content; UnreadableError where nothing in it can be seen or written."""
    if found := _NO_TEXT.search(content.text):
        raise UnreadableError(f"has {_named(found.group())} at character {found.start()}; allowed is text")
    if not is_visible(content.text):
        raise UnreadableError("is empty" if not content.text else "holds nothing that can be seen")
    named = one_line(_NO_TEXT.sub("\ufffd", content.title)) or one_line(title)
    sha256 = hashlib.sha256(content.text.encode()).hexdigest()
    return Document(id=id, text=content.text, title=named, kind=kind, sha256=sha256)


def is_visible(text: str) -> bool:
    """Whether a text holds more than white space, control characters and zero-width marks."""
    return any(unicodedata.category(character)[0] not in "ZC" for character in text)


def one_line(given: object, longest: int = 200) -> str:
    """Give a title's or an error's words on one line of at most that length."""
    words = " ".join(str(given)[: 20 * longest].split())
    return words if len(words) <= longest else words[: longest - 1] + "…"


def _named(character: str) -> str:
    return "a NUL" if character == "\0" else "half of a surrogate pair"
