"""A text's content words with their characters: Chinese by rjieba and the user's dictionary, all else by its letters.

Dropped: punctuation, numbers, words of closed classes (by rjieba's tags) and a short list of empty words.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

from finetune.errors import ConfigError, DataError
from finetune.pairs import Lexicon

How = Literal["rjieba", "bigrams"]

# First letters of the tags of closed classes: conjunction, preposition, particle, adverb, pronoun, number, measure,
# direction, modal particle, interjection, sound, prefix, suffix.
_CLOSED = frozenset("cpudrmqfyeohk")
_SINGLE = frozenset("ngjx")  # noun, morpheme, abbreviation, unknown: 酶 and 鳍, and not 立 and 占
_EMPTY_WORDS = """
是 有 会 能 可以 可 要 得 到 来 去 说 问 答 叫 让 使 给 做 没有 没 无 为 成 成为 作 作为 用 上 下 里 中 内 外 的 了
着 过 在 和 与 或 而 及 也 都 就 还 又 才 被 把 从 向 对 于 以 其 之 这 那 它 他 她 我 你 们 自己 什么 怎么 怎样
哪里 为什么 一个 一种 时候 时 后 前 进行 通过 需要 应当 应该 必须 可能 不能 只能 不会 看 想 写 请 a an the of to in
on at by for from with as and or but not no is are was were be been being it its this that these those he she they
we you i his her their our your my me him them who which what when where how why do does did done have has had will
would can could may might must shall should than then so if into over under about after before between there here
also very more most such one two s t
"""
_EMPTY = frozenset(_EMPTY_WORDS.split())
_PARTICLES = frozenset("的了着过在和与或而及也都就还又才被把从向对于以其之这那是")  # a bigram with one is no word
_CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CHINESE_RUN = re.compile(f"[{_CHINESE}]+")
_LETTERED = re.compile(r"[^\W\d_]")
_OTHER_WORD = re.compile(rf"(?:(?![{_CHINESE}])\w)+(?:[-'’](?:(?![{_CHINESE}])\w)+)*")
_PIECE = re.compile(rf"(?P<chinese>[{_CHINESE}]+)|\d+(?:\.\d+)+|(?:(?![{_CHINESE}])[^\W_])+|.", re.DOTALL)
_END_OF_SENTENCE = re.compile(r"[。！？!?\n]+[”’」』）)\"']*|\.(?=\s|$)")


class Word(NamedTuple):
    """A word of a text, text[start:end]."""

    text: str
    start: int
    end: int


def _loaded() -> Any:
    """An rjieba with a dictionary of its own, a tenth of a second; the module's one is everybody's."""
    return import_module("rjieba").Jieba()


@cache
def _plain() -> Any:
    """The rjieba of all who have no terms; no word is ever added to it."""
    return _loaded()


class Segmenter:
    """Cuts texts into content words; words of the user's dictionary stay whole.

    how: "rjieba", or "bigrams", where each two neighbouring characters of a Chinese text count as a word; None takes
    rjieba where it is installed. Raises ConfigError where rjieba is asked for and is not installed.
    """

    def __init__(self, terms: Iterable[str] = (), *, how: How | None = None) -> None:
        self.terms = frozenset(term for term in terms if term.strip())
        installed = find_spec("rjieba") is not None
        if how == "rjieba" and not installed:
            raise ConfigError("segmentation by rjieba: it is not installed; `pip install rjieba`, or take bigrams")
        self.how: How = how or ("rjieba" if installed else "bigrams")
        self._lexicon = Lexicon(self.terms)
        self._jieba: Any = None
        if self.how == "rjieba":
            self._jieba = _loaded() if self.terms else _plain()
            for term in sorted(self.terms):
                self._jieba.add_word(term, None, "n")

    def words(self, text: str) -> list[Word]:
        """The content words from left to right; bigrams overlap, words of rjieba do not."""
        if self._jieba is not None and _CHINESE_RUN.search(text):
            return self._by_dictionary(text)
        return list(self._by_letters(text))

    def every_word(self, text: str) -> list[str]:
        """All words and numbers from left to right, those of closed classes too, signs alone left out: for a search.

        By rjieba without its guesses at unknown words, which depend on what stands beside them: such a word gives its
        characters, the same ones in every text. Bigrams overlap and leave particles out, as in `words`.
        """
        if self._jieba is None:
            return [word.text for word in self._by_letters(text)]
        found = self._with_terms(text, ((piece, "") for piece in self._pieces(text)))
        return [word.text for word, tag in found if tag is None or any(map(str.isalnum, word.text))]

    def _pieces(self, text: str) -> Iterator[str]:
        """The whole text: Chinese as rjieba cuts it, numbers and words of letters whole, signs one by one."""
        for match in _PIECE.finditer(text):
            if match["chinese"]:  # of letters beyond A to Z rjieba would make single ones
                yield from self._jieba.cut(match.group(), False)
            else:
                yield match.group()

    def _by_dictionary(self, text: str) -> list[Word]:
        found = self._with_terms(text, self._jieba.tag(text))
        return [word for word, tag in found if tag is None or _says_something(word.text, tag)]

    def _with_terms(self, text: str, tagged: Iterable[tuple[str, str]]) -> Iterator[tuple[Word, str | None]]:
        """Words with their tags, a term put together from its pieces, without a tag."""
        pieces = list(_placed(text, tagged))
        starts = {word.start for word, _ in pieces}
        ends = {word.end for word, _ in pieces}
        # rjieba cuts at signs, so that α-酮戊二酸 never arrives whole; a term inside a longer word stays inside.
        whole = {
            span.start: Word(term, span.start, span.end)
            for term, spans in self._lexicon.found(text).items()
            for span in spans
            if span.start in starts and span.end in ends
        }
        done = 0
        for word, tag in pieces:
            if word.start < done:
                continue
            kept = whole.get(word.start, word)
            done = kept.end
            yield kept, None if word.start in whole else tag

    def _by_letters(self, text: str) -> Iterator[Word]:
        done = 0
        spans = sorted(span for found in self._lexicon.found(text).values() for span in found)
        for start, end in [*((span.start, span.end) for span in spans), (len(text), len(text))]:
            yield from _between(text, done, start)
            if end > start:
                yield Word(text[start:end], start, end)
            done = end


def _placed(text: str, tagged: Iterable[tuple[str, str]]) -> Iterator[tuple[Word, str]]:
    """Each word with its place; DataError where the words are not the text's, one after another."""
    at = 0
    for word, tag in tagged:
        if not text.startswith(word, at):
            raise DataError(f"rjieba gives {word!r} at character {at} of {text[:40]!r}, which does not stand there")
        yield Word(word, at, at + len(word)), tag
        at += len(word)
    if at != len(text):
        raise DataError(f"rjieba leaves out the end of {text[:40]!r}, from character {at}")


def _says_something(word: str, tag: str) -> bool:
    """Whether a word can be a side of a pair: letters, no closed class, and of single characters nouns alone."""
    if _LETTERED.search(word) is None or word.lower() in _EMPTY:
        return False
    if len(word) == 1:
        return _CHINESE_RUN.match(word) is not None and tag[:1] in _SINGLE
    return tag == "eng" or tag[:1] not in _CLOSED  # eng: rjieba's tag of Latin letters


def _between(text: str, start: int, end: int) -> Iterator[Word]:
    """Words of other scripts, and bigrams of Chinese without a particle, from left to right."""
    found = [Word(match.group(), *match.span()) for match in _OTHER_WORD.finditer(text, start, end)]
    for run in _CHINESE_RUN.finditer(text, start, end):
        found += [Word(text[at : at + 2], at, at + 2) for at in range(run.start(), run.end() - 1)]
    for word in sorted(found, key=lambda one: one.start):
        if _says_something(word.text, "") and not (_CHINESE_RUN.match(word.text) and set(word.text) & _PARTICLES):
            yield word


def windows_of(text: str, *, sentences: int) -> Iterator[str]:
    """The text in consecutive pieces of this many sentences, none overlapping; pieces without letters are left out."""
    ends = [match.end() for match in _END_OF_SENTENCE.finditer(text)]
    if not ends or ends[-1] < len(text):
        ends.append(len(text))
    start = 0
    for end in [*ends[sentences - 1 :: sentences], ends[-1]]:
        if _LETTERED.search(text, start, end):
            yield text[start:end]
        start = max(start, end)
