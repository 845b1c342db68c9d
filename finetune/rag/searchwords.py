"""What a search looks for in a text: its words, cut the same in documents and queries, and its bigrams."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from importlib.metadata import version

from finetune.errors import ConfigError, RetrievalError
from finetune.words import Segmenter

RULES = "1"  # raise it when the same text gives other words: an index made by other rules is not searched
_NO_TEXT = re.compile("[\ud800-\udfff]")  # what a command line gives for bytes that are no UTF-8


class SearchWords:
    """Cuts texts for the lexical index; terms of the user's dictionary stay whole, and no part of one is found.

    So a search for 苹果 does not find 苹果酸 where that is a term, nor the other way round. Width and case make no
    difference. RetrievalError without rjieba.
    """

    def __init__(self, terms: Sequence[str] = ()) -> None:
        self.terms = tuple(sorted({folded for term in terms if (folded := _folded(term).strip())}))
        try:
            self._words = Segmenter(self.terms, how="rjieba")
        except ConfigError as error:
            raise RetrievalError(
                "search words: rjieba is not installed, and Chinese needs it; `pip install rjieba`"
            ) from error
        self._bigrams = Segmenter(self.terms, how="bigrams")

    def words(self, text: str) -> list[str]:
        """All words and numbers from left to right, none of them part of another."""
        return self._words.every_word(_folded(text))

    def bigrams(self, text: str) -> list[str]:
        """Each two neighbouring Chinese characters but those with a particle; terms and words of letters whole."""
        return self._bigrams.every_word(_folded(text))

    def identity(self) -> dict[str, str]:
        """What the words of a text depend on."""
        terms = hashlib.sha256("\n".join(self.terms).encode()).hexdigest()
        return {"rjieba": version("rjieba"), "terms": terms, "rules": RULES}


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", _NO_TEXT.sub(" ", text)).lower()
