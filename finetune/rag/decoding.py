"""Bytes to text: UTF-8, UTF-16 with its mark, or GB18030 where it reads as Chinese. Home of charset_normalizer."""

import codecs

from charset_normalizer import from_bytes

from finetune.rag.documents import UnreadableError

ALLOWED = "allowed are UTF-8, UTF-16 with its mark, and GB18030"
_MARKS = (
    *((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")),
    *((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
)
_OTHERS = ["gb18030", "big5", "euc_kr", "euc_jp", "shift_jis", "cp1252", "cp1251"]
_SAMPLE = 20_000  # bytes that tell one encoding from another
_FEW = 60  # bytes beyond ASCII; of fewer nobody can tell Chinese from Korean
_FREQUENT = 0.85  # of the characters; running Chinese has 0.89 and more, Big5 read as GB18030 0.1 to 0.2


def decoded(raw: bytes) -> str:
    """Give the text of a file without its byte order mark; UnreadableError where it is no text of a known encoding."""
    text = raw.decode(encoding_of(raw))
    if "\0" in text:
        raise UnreadableError(f"has a NUL at character {text.index(chr(0))}; allowed is text")
    return text


def encoding_of(raw: bytes, *, whole: bool = True) -> str:
    """Give the encoding that bytes are in; `whole` is False for a beginning that may end inside a character."""
    marked = next((encoding for mark, encoding in _MARKS if raw.startswith(mark)), None)
    if marked == "utf-32" or (marked and _problem(raw, marked, whole=whole)):
        raise UnreadableError(f"begins with the mark of {marked.upper()} and is not; {ALLOWED}")
    if marked:
        return marked
    problem = _problem(raw, "utf-8", whole=whole)
    if not problem:
        return "utf-8"
    guess = _guessed(raw)
    if _is_gb18030(raw, guess, whole=whole):
        return "gb18030"
    if "\0" in raw[:_SAMPLE].decode("latin-1"):
        raise UnreadableError("is no text (it has NUL bytes)")
    rather = f", it may be {guess}" if guess not in (None, "gb18030") else ""
    raise UnreadableError(f"is not in a known encoding (as UTF-8: {problem}{rather}); {ALLOWED}")


def _problem(raw: bytes, encoding: str, *, whole: bool) -> str:
    """What keeps bytes from being of this encoding, in a few words; nothing where they are."""
    try:
        codecs.getincrementaldecoder(encoding)().decode(raw, final=whole)
    except UnicodeDecodeError as error:
        return f"byte {error.start}"
    return ""


def _guessed(raw: bytes) -> str | None:
    best = from_bytes(raw[:_SAMPLE], cp_isolation=_OTHERS).best()
    return None if best is None else best.encoding


def _is_gb18030(raw: bytes, guess: str | None, *, whole: bool) -> bool:
    """GB18030 takes most bytes for characters, so those must be frequent ones and no other guess the likelier."""
    if _problem(raw, "gb18030", whole=whole):
        return False
    beyond = sum(byte > 127 for byte in raw[:_SAMPLE])
    if guess not in (None, "gb18030") and beyond >= _FEW:
        return False
    text = codecs.getincrementaldecoder("gb18030")().decode(raw[:_SAMPLE])
    letters = [character for character in text if ord(character) > 127]
    return sum(map(_is_frequent, letters)) >= _FREQUENT * max(1, len(letters))


def _is_frequent(character: str) -> bool:
    """Whether GB 2312 has it among its signs or its 3,755 frequent characters."""
    first = character.encode("gb2312", errors="ignore")[:1]
    return first in (b"\xa1", b"\xa3") or b"\xb0" <= first <= b"\xd7"
