"""The mark that a prompt's passages stand between: no document holds it, and a seed gives it again."""

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Sequence

from finetune.errors import RetrievalError
from finetune.rag.chunks import Chunk

LENGTH = 8  # hexadecimal digits; a document that holds a mark by chance only costs another try
_TRIES = 10_000  # a passage that held them all would have 80,000 characters of marks
# What looks like a hexadecimal digit once it is small, of Latin, Cyrillic and Greek.
_LOOK_ALIKE = str.maketrans("аɑαьƅсϲԁеҽƒοоoӏli", "aaabbccdeef000111")

_BETWEEN = re.compile(r"[\W_]+")
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")  # of another script


def marker_of(question: str, passages: Sequence[Chunk], *, seed: int, others: Sequence[str] = ()) -> str:
    """Give the first mark of a prompt's series that none of its texts holds, however spelled.

    The series is HMAC-SHA256 (RFC 2104) of the question, the passages and a count, under a key made of the seed. The
    passages' order makes no difference, so that prompts which differ by it alone have one mark. A writer of documents
    who knows the seed and guesses the rest can compute the series, but what he writes of it is passed over.
    """
    key = hashlib.sha256(f"cijing.rag.marker\0{seed}".encode()).digest()
    fields = sorted((one.id, one.document, str(one.start), str(one.end), one.title, one.text) for one in passages)
    message = _packed([question, *(field for one in fields for field in one)])
    folded = [_folded(text) for text in (question, *others, *(text for one in passages for text in texts_of(one)))]
    for count in range(_TRIES):
        marker = hmac.new(key, message + count.to_bytes(4), hashlib.sha256).hexdigest()[:LENGTH]
        if not any(marker in text for text in folded):  # folding leaves a hexadecimal mark as it is
            return marker
    raise RetrievalError(f"the passages hold all of the first {_TRIES} marks of seed {seed}; allowed is another seed")


def holds(text: str, marker: str) -> bool:
    """Whether a text has a mark, also in other widths, cases or look-alike letters and with signs between them."""
    return _folded(marker) in _folded(text)


def texts_of(chunk: Chunk) -> tuple[str, str, str]:
    """What a prompt shows of a passage, all of it written by whoever wrote the document."""
    return chunk.text, chunk.title, chunk.document


def _folded(text: str) -> str:
    letters = _BETWEEN.sub("", unicodedata.normalize("NFKC", text).casefold().translate(_LOOK_ALIKE))
    return _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit.group())), letters)


def _packed(fields: Sequence[str]) -> bytes:
    """Fields with their lengths before them, so that no two lists of fields are the same bytes."""
    raw = [field.encode("utf-8", "surrogatepass") for field in fields]
    return b"".join(len(one).to_bytes(8) + one for one in raw)
