"""Pairs of words that belong together: read from a file, found in a text, put on tokens, or refused with the reason."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

import regex
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from finetune.dictionary import Entry, read_dictionary
from finetune.errors import PairError
from finetune.yamlfiles import read_mapping
from probe import CijingError, Span, TokenMap, tokens_of

Part = Literal["train", "held_out"]
Direction = Literal["forward", "either"]
Reason = Literal["absent", "overlapping", "truncated", "order", "window"]
REGEX_SECONDS = 1.0  # of one expression on one text; some would go on for years
REASONS: tuple[Reason, ...] = ("absent", "overlapping", "truncated", "order", "window")


class Pattern(BaseModel):
    """What a side of a pair looks like in a text: a word, a regular expression, or a class of words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    word: str | None = None
    regex: str | None = None
    term: str | None = None  # a class of the file's `terms`

    @model_validator(mode="after")
    def _one_of_three(self) -> "Pattern":
        given = [part for part in (self.word, self.regex, self.term) if part is not None]
        if len(given) != 1 or not given[0]:
            raise ValueError("give one of word, regex, term, and not empty")
        if self.regex is not None:
            try:
                regex.compile(self.regex)
            except regex.error as error:
                raise ValueError(f"regex {self.regex!r}: {error}") from error
        return self

    def __str__(self) -> str:
        return self.word or (f"/{self.regex}/" if self.regex else f"<{self.term}>")


def _as_pattern(given: Any) -> Any:
    return {"word": given} if isinstance(given, str) else given


Side = Annotated[Pattern, BeforeValidator(_as_pattern)]


class PairRule(BaseModel):
    """One pair: the query word is to read the key word."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: Side
    key: Side
    part: Part = "train"
    direction: Direction = "forward"  # either: of the two, the later one reads the earlier
    weight: float = Field(default=1.0, gt=0, le=1000)
    negatives: tuple[Side, ...] = ()

    def __str__(self) -> str:
        return f"{self.query} → {self.key}"


class PairBook(BaseModel):
    """A pairs file."""

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    name: str = "pairs"
    language: str = ""
    description: str = ""
    words: tuple[str, ...] = ()  # a user's dictionary: a shorter word inside one of these is not that word
    terms: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    pairs: tuple[PairRule, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _known_terms(self) -> "PairBook":
        for rule in self.pairs:
            for side in (rule.query, rule.key, *rule.negatives):
                if side.term is not None and not self.terms.get(side.term):
                    raise ValueError(
                        f"{rule}: term {side.term!r} is not among terms: {', '.join(self.terms) or 'none'}"
                    )
        return self

    @model_validator(mode="after")
    def _each_once(self) -> "PairBook":
        """A pair in both parts would be measured as held out and trained on."""
        seen: dict[tuple[Pattern, Pattern], int] = {}
        for place, rule in enumerate(self.pairs):
            first = seen.setdefault((rule.query, rule.key), place)
            if first != place:
                parts = f"part {self.pairs[first].part} and part {rule.part}"
                raise ValueError(f"{rule} stands twice, as pairs.{first} and pairs.{place} ({parts})")
        return self

    @model_validator(mode="after")
    def _words_not_empty(self) -> "PairBook":
        for name, words in (("words", self.words), *((f"terms.{name}", words) for name, words in self.terms.items())):
            for place, word in enumerate(words):
                if not word.strip():
                    raise ValueError(f"{name}.{place}: an empty word; allowed is a word of at least one character")
        return self

    def in_either_direction(self) -> "PairBook":
        """The same pairs, of each of which the later word reads the earlier."""
        either = tuple(rule.model_copy(update={"direction": "either"}) for rule in self.pairs)
        return self.model_copy(update={"pairs": either})

    def of_part(self, part: Part) -> tuple[int, ...]:
        """The places of the pairs of one part."""
        return tuple(place for place, rule in enumerate(self.pairs) if rule.part == part)

    @cached_property
    def lexicon(self) -> "Lexicon":
        """All words that the file knows."""
        sides = [side for rule in self.pairs for side in (rule.query, rule.key, *rule.negatives)]
        words = {side.word for side in sides if side.word} | set(self.words)
        return Lexicon(words=frozenset(words.union(*self.terms.values())))


@dataclass(frozen=True)
class Lexicon:
    """Words that are looked for in texts, the longest first: 苹果 inside 苹果酸 is not found where both are words."""

    words: frozenset[str]
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile all words into one expression."""
        ordered = sorted(self.words, key=lambda word: (-len(word), word))
        object.__setattr__(self, "_pattern", re.compile("|".join(map(_whole_word, ordered)) or r"(?!)"))

    def found(self, text: str) -> dict[str, list[Span]]:
        """Where each word stands, from left to right, the longest at each place."""
        spans: dict[str, list[Span]] = {}
        for match in self._pattern.finditer(text):
            spans.setdefault(match.group(), []).append(Span(*match.span()))
        return spans


def _whole_word(word: str) -> str:
    """A Latin word or number does not begin or end inside another: M1 is not in M10, nor in PM1."""
    before = r"(?<![0-9A-Za-z])" if word[:1].isascii() and word[:1].isalnum() else ""
    after = r"(?![0-9A-Za-z])" if word[-1:].isascii() and word[-1:].isalnum() else ""
    return f"{before}{re.escape(word)}{after}"


@dataclass(frozen=True, kw_only=True)
class SpanPair:
    """A pair as it stands in one text: which characters are to read which."""

    rule: int
    query: Span
    key: Span
    negatives: tuple[Span, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class TokenPair:
    """A pair on tokens."""

    rule: int
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    negatives: tuple[int, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Unmet:
    """A pair that stands in a text and cannot be met there."""

    rule: int
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What a query token can see in the supervised layers of a model."""

    causal: bool
    window: int | None  # tokens that the widest of these layers looks back; None: all
    longest: int | None  # tokens of a text, special ones included, after which it is cut


def load_pairs(source: Path | Traversable) -> PairBook:
    """Read a pairs file (safe YAML); PairError names every problem with its place."""
    wanted = "`pairs:`, a list of {query: …, key: …}"
    given = _with_dictionaries(read_mapping(source, name=str(source), wanted=wanted, error=PairError), source)
    try:
        return PairBook.model_validate(given)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc'])) or 'file'}: {each['msg']}" for each in error.errors()]
        raise PairError(f"{source}: " + "; ".join(problems)) from error


def dictionaries_of(source: Path) -> tuple[str, ...]:
    """The dictionaries that a pairs file names, as it names them: files beside it."""
    given = read_mapping(source, name=str(source), wanted="`pairs:`", error=PairError)
    terms = given.get("terms")
    named = [given.get("words"), *(terms.values() if isinstance(terms, dict) else [terms])]
    return tuple(dict.fromkeys(one for one in named if isinstance(one, str)))


def _with_dictionaries(given: dict[str, Any], source: Path | Traversable) -> dict[str, Any]:
    """The mapping with the words of each file that it names, beside the pairs file, in the file's place.

    All words of such a file become words of the book, so that of two that overlap the longer is found.
    """
    terms, words = given.get("terms"), given.get("words")
    known: list[str] = []
    if isinstance(words, str):
        known, given = [entry.word for entry in _dictionary(words, source)], {**given, "words": []}
    if isinstance(terms, str):
        terms = dict.fromkeys(_classes(_dictionary(terms, source), terms), terms)
    if isinstance(terms, dict):
        for group, listed in list(terms.items()):
            if isinstance(listed, str):
                entries = _dictionary(listed, source)
                known += [entry.word for entry in entries]
                terms = {**terms, group: _of_class(str(group), entries, listed)}
        given = {**given, "terms": terms}
    if known:
        given = {**given, "words": list(dict.fromkeys([*(given.get("words") or ()), *known]))}
    return given


def _dictionary(name: str, source: Path | Traversable) -> tuple[Entry, ...]:
    place = source.parent / name if isinstance(source, Path) else source
    if not isinstance(place, Path):
        raise PairError(f"{source}: names the dictionary {name!r}, and no file lies beside it")
    return read_dictionary(place)


def _classes(entries: Sequence[Entry], name: str) -> list[str]:
    """The classes of a dictionary that is to give them all."""
    without = next((entry.word for entry in entries if entry.group is None), None)
    if without is not None:
        raise PairError(
            f"terms: {name}: {without!r} has no class; allowed is word<TAB>class, or terms: {{NAME: {name}}}"
        )
    return list(dict.fromkeys(entry.group for entry in entries if entry.group is not None))


def _of_class(group: str, entries: Sequence[Entry], name: str) -> list[str]:
    """The words of one class, or all words of a dictionary without classes."""
    classes = {entry.group for entry in entries} - {None}
    if classes and group not in classes:
        raise PairError(f"terms: {group}: {name} has the classes {', '.join(sorted(map(str, classes)))}")
    return list(dict.fromkeys(entry.word for entry in entries if not classes or entry.group == group))


def pairs_in(text: str, book: PairBook, *, rules: Iterable[int]) -> tuple[list[SpanPair], list[Unmet]]:
    """The pairs of these rules that a text holds, each query word with the nearest key word.

    Unmet are pairs whose words stand there but only one inside the other; a text that lacks a word has no such pair.
    """
    words = book.lexicon.found(text)
    found: list[SpanPair] = []
    unmet: list[Unmet] = []
    for place in rules:
        rule = book.pairs[place]
        queries, keys = (_spans(side, text, book, words) for side in (rule.query, rule.key))
        if not queries or not keys:
            continue
        negatives = tuple(span for side in rule.negatives for span in _spans(side, text, book, words))
        pairs = [_nearest(query, keys) for query in queries]
        if all(key is None for key in pairs):
            unmet.append(Unmet(rule=place, reason="overlapping"))
        for query, key in zip(queries, pairs, strict=True):
            if key is not None:
                reader, read = (key, query) if rule.direction == "either" and key.start > query.start else (query, key)
                found.append(SpanPair(rule=place, query=reader, key=read, negatives=negatives, weight=rule.weight))
    return _once_each(found), unmet


def _spans(side: Pattern, text: str, book: PairBook, words: Mapping[str, Sequence[Span]]) -> list[Span]:
    if side.word is not None:
        return list(words.get(side.word, ()))
    if side.term is not None:
        return sorted(span for word in book.terms[side.term] for span in words.get(word, ()))
    assert side.regex is not None
    try:
        found = regex.finditer(side.regex, text, timeout=REGEX_SECONDS)
        return [Span(*match.span()) for match in found if match.group()]
    except TimeoutError as error:
        raise PairError(
            f"pairs: regex {side.regex!r} takes more than {REGEX_SECONDS:g} s on the text {text[:40]!r}; allowed is "
            "one that is done sooner: without a repeat of what repeats, or of alternatives that begin alike"
        ) from error


def _nearest(query: Span, keys: Sequence[Span]) -> Span | None:
    """The key nearest to the query that does not share a character with it; of two as near, the earlier."""
    apart = [key for key in keys if not key.overlaps(query)]
    return min(apart, key=lambda key: (max(key.start - query.end, query.start - key.end), key.start), default=None)


def _once_each(pairs: Sequence[SpanPair]) -> list[SpanPair]:
    kept: dict[tuple[int, Span, Span], SpanPair] = {}
    for pair in pairs:
        kept.setdefault((pair.rule, pair.query, pair.key), pair)
    return list(kept.values())


def on_tokens(pairs: Sequence[SpanPair], tokens: TokenMap, reach: Reach) -> tuple[list[TokenPair], list[Unmet]]:
    """Put pairs on tokens; a pair that the model cannot meet is given back with the reason."""
    met: list[TokenPair] = []
    unmet: list[Unmet] = []
    for pair in pairs:
        found = _token_pair(pair, tokens)
        reason = "overlapping" if found is None else why_unmet(found, reach)
        if reason is None and found is not None:
            met.append(found)
        else:
            unmet.append(Unmet(rule=pair.rule, reason=reason or "overlapping"))
    return met, unmet


def _token_pair(pair: SpanPair, tokens: TokenMap) -> TokenPair | None:
    """The pair's tokens; None where one token carries characters of both words."""
    queries, keys = (tuple(map(int, tokens_of(span, tokens))) for span in (pair.query, pair.key))
    if set(queries) & set(keys):
        return None
    negatives: set[int] = set()
    for span in pair.negatives:
        try:
            negatives |= set(map(int, tokens_of(span, tokens)))
        except CijingError:  # a word that the tokenizer gives no token
            continue
    return TokenPair(
        rule=pair.rule, queries=queries, keys=keys, negatives=tuple(sorted(negatives - set(queries) - set(keys))),
        weight=pair.weight,
    )  # fmt: skip


def why_unmet(pair: TokenPair, reach: Reach) -> Reason | None:
    """Why a model with this reach cannot attend from the pair's query to its key; None where it can."""
    if reach.longest is not None and max(*pair.queries, *pair.keys) >= reach.longest:
        return "truncated"
    if reach.causal and min(pair.queries) < max(pair.keys):
        return "order"
    apart = max(abs(query - key) for query in pair.queries for key in _nearest_keys(query, pair.keys))
    return "window" if reach.window is not None and apart >= reach.window else None


def _nearest_keys(query: int, keys: Sequence[int]) -> tuple[int, ...]:
    """One key token within reach is enough for a query token."""
    return (min(keys, key=lambda key: abs(key - query)),)
