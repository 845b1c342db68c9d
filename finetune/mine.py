"""Propose pairs from a corpus: words tied in the domain that the base model hardly attends to.

score = tie × deficit: the log-likelihood ratio of the two words within the domain (finetune.association) times the
share of the expected attention that the base model does not give (finetune.neglect). A proposal, for a person to
edit: neither number knows whether the pair is true.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from finetune.association import PairCounts, Tie, Ties, count_pairs, count_words, find_ties, frequent_words
from finetune.errors import DataError
from finetune.neglect import BaseMass, Pair, base_masses, measured_layers
from finetune.pairs import Part
from finetune.words import How, Segmenter, windows_of
from finetune.writing import write_whole
from probe import LoadedModel, load_cases, shipped_sets

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class MineSettings:
    """What is looked for, and how far."""

    sentences: int = 3  # of a window
    least_word: int = 3  # windows that a word must stand in
    least_together: int = 3  # windows that both words must stand in
    most_words: int = 20_000  # of the vocabulary, the most frequent
    most_pairs: int = 4_000_000  # held in memory
    rate: float = 0.05  # of chance ties among the tied pairs
    candidates: int = 400  # tied pairs that the base model is asked about, the most tied
    places: int = 8  # windows that the base model reads for each, drawn at random
    longest: int = 512  # tokens of a window that the base model reads
    proposals: int = 100
    held_out: float = 0.25  # share of the proposals that are never trained on
    one_word: float = 0.8  # share of touching from which two words are taken as one
    joinings: int = 3  # rounds of joining such words
    how: How | None = None  # of segmentation; None: rjieba where installed
    layers: Literal["last_third", "all"] | tuple[int, ...] = "last_third"
    heads: tuple[int, ...] | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A pair with all its numbers."""

    query: str
    key: str
    part: Part  # train where the base model attends to the pair already: such a pair is shown, and not proposed
    score: float
    tie: Tie
    base: BaseMass
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Mined:
    """What came of a corpus."""

    model: str
    causal: bool
    layers: tuple[int, ...]
    reference: str  # which texts
    windows: int  # of the corpus
    segmentation: How
    words: tuple[str, ...]  # that must stay whole where pairs are looked for
    joined: tuple[str, ...]  # of these, the ones that mining put together
    tied: int
    tests: int
    unmeasured: int  # candidates that stood nowhere so that the base model could meet them
    missed: int  # windows that a count may lack
    settings: MineSettings
    proposals: tuple[Proposal, ...] = field(repr=False)
    attended: tuple[Proposal, ...] = field(repr=False)  # tied, and attended to as expected or more: score <= 0


def mine(
    loaded: LoadedModel, texts: Iterable[str], *, reference: Iterable[str] | None = None, terms: Iterable[str] = (),
    settings: MineSettings | None = None, progress: Progress | None = None,
) -> Mined:  # fmt: skip
    """Find the tied and neglected pairs of a corpus, ranked.

    texts, reference: read several times, so no generators; streamed, held nowhere whole. reference None takes the
    texts of the shipped case sets. terms: the user's dictionary. Raises DataError for a corpus without words.
    """
    asked, say = settings or MineSettings(), progress or (lambda line: None)
    told = "the user's texts" if reference is not None else f"texts of the case sets {', '.join(shipped_sets())}"
    other = default_reference() if reference is None else _again(reference, "the reference corpus")
    corpus = _again(texts, "the corpus")
    segmenter, joined, ties, counts = _tied(corpus, other, set(terms), asked, say)
    candidates = ties.pairs[: asked.candidates]
    windows = _windows_of_pairs(corpus, segmenter, candidates, asked)
    layers = measured_layers(loaded, asked.layers)
    masses = base_masses(
        loaded, _asked_of_model(windows), segmenter, layers=layers, heads=asked.heads, longest=asked.longest,
        progress=say,
    )  # fmt: skip
    causal = loaded.kind == "decoder"
    found = [(tie, *chosen) for tie in candidates if (chosen := _direction(tie, masses, causal=causal)) is not None]
    ranked = sorted(found, key=lambda item: -item[0].tie * item[2].deficit)
    lacking = sum(base.deficit > 0 for _, _, base in ranked)
    proposals = _proposals(ranked[: min(lacking, asked.proposals)], windows, asked)
    return Mined(
        model=loaded.name, causal=causal, layers=layers, reference=f"{told}, {counts[1].windows:,} windows",
        segmentation=segmenter.how, joined=joined, tied=len(ties.pairs), tests=ties.tests, windows=counts[0].windows,
        words=_whole_words(counts[0].vocabulary, proposals, segmenter.terms), unmeasured=len(candidates) - len(found),
        missed=max(one.missed for one in counts), settings=asked, proposals=proposals,
        attended=_proposals(ranked[lacking:], windows, replace(asked, held_out=0.0)),
    )  # fmt: skip


def default_reference() -> tuple[str, ...]:
    """The texts of the shipped case sets, each once: small, general, about ambiguous words."""
    return tuple(dict.fromkeys(case.text for name in shipped_sets() for case in load_cases(name).cases))


def _again(texts: Iterable[str], what: str) -> Iterable[str]:
    if isinstance(texts, Iterator):
        raise DataError(f"{what} is read several times; allowed is a list or a data set's column, not a generator")
    return texts


def _tied(
    corpus: Iterable[str], other: Iterable[str], terms: set[str], settings: MineSettings, say: Progress
) -> tuple[Segmenter, tuple[str, ...], Ties, tuple[PairCounts, PairCounts]]:
    """Count and compare; words that nearly always touch are joined and all is counted again."""
    joined: list[str] = []
    for left in range(settings.joinings, -1, -1):
        segmenter = Segmenter({*terms, *joined}, how=settings.how)
        _, words = count_words(corpus, segmenter, sentences=settings.sentences, progress=say)
        vocabulary = frequent_words(words, least=settings.least_word, most=settings.most_words)
        here, there = (
            count_pairs(
                texts, segmenter, vocabulary, sentences=settings.sentences, most_pairs=settings.most_pairs,
                progress=say,
            )
            for texts in (corpus, other)
        )  # fmt: skip
        ties = find_ties(here, there, least=settings.least_together, rate=settings.rate)
        new = _one_word(ties.pairs, settings.one_word, known={*terms, *joined})
        if not new or not left:
            break
        joined += new
        say(f"joined {', '.join(new[:5])}{' …' if len(new) > 5 else ''}: counting again")
    apart = tuple(tie for tie in ties.pairs if tie.touching < settings.one_word)
    return segmenter, tuple(joined), Ties(pairs=apart, tests=ties.tests, bound=ties.bound), (here, there)


def _one_word(ties: Sequence[Tie], share: float, *, known: set[str]) -> list[str]:
    """What two words make that nearly always touch; of two joinings of one word the more tied in this round."""
    used: set[str] = set()
    found = []
    for tie in ties:
        if tie.touching >= share and tie.joined not in known and not used & {tie.first, tie.second}:
            used |= {tie.first, tie.second}
            found.append(tie.joined)
    return found


def _windows_of_pairs(
    corpus: Iterable[str], segmenter: Segmenter, ties: Sequence[Tie], settings: MineSettings
) -> dict[Pair, list[str]]:
    """A random sample of the windows where each pair stands (reservoir sampling, Vitter 1985)."""
    partners: dict[str, list[str]] = {}
    for tie in ties:
        partners.setdefault(tie.first, []).append(tie.second)
    drawn = random.Random(settings.seed)
    seen: Counter[Pair] = Counter()
    kept: dict[Pair, list[str]] = {(tie.first, tie.second): [] for tie in ties}
    for text in corpus:
        for window in windows_of(text, sentences=settings.sentences):
            words = {word.text for word in segmenter.words(window)}
            for first in sorted(words & partners.keys()):
                for second in words.intersection(partners[first]):
                    pair = (first, second)
                    seen[pair] += 1
                    _draw(kept[pair], window, seen[pair], drawn, most=settings.places)
    return kept


def _draw(kept: list[str], window: str, seen: int, drawn: random.Random, *, most: int) -> None:
    if len(kept) < most:
        kept.append(window)
    elif (place := drawn.randrange(seen)) < most:
        kept[place] = window


def _asked_of_model(windows: Mapping[Pair, Sequence[str]]) -> dict[str, list[Pair]]:
    """The windows to read, each with its pairs in both directions."""
    asked: dict[str, list[Pair]] = {}
    for (first, second), texts in windows.items():
        for text in dict.fromkeys(texts):
            asked.setdefault(text, []).extend([(first, second), (second, first)])
    return asked


def _direction(tie: Tie, masses: Mapping[Pair, BaseMass], *, causal: bool) -> tuple[Pair, BaseMass] | None:
    """Which word reads which, with its mass.

    Encoder: the direction with the larger deficit. Causal: the later word reads the earlier, whichever it is; the
    query is the one that is more often the later.
    """
    both = {pair: masses[pair] for pair in ((tie.first, tie.second), (tie.second, tie.first)) if pair in masses}
    both = {pair: base for pair, base in both.items() if base.expected > 0}
    if not both:
        return None
    if not causal:
        return max(both.items(), key=lambda item: item[1].deficit)
    places = sum(base.places for base in both.values())
    mass, expected = (
        sum(getattr(base, name) * base.places for base in both.values()) / places for name in ("mass", "expected")
    )
    often = max(both, key=lambda pair: both[pair].places)
    return often, BaseMass(places=places, mass=mass, expected=expected)


def _proposals(
    ranked: Sequence[tuple[Tie, Pair, BaseMass]], windows: Mapping[Pair, Sequence[str]], settings: MineSettings
) -> tuple[Proposal, ...]:
    """The ranked pairs with their part, which is drawn at random over all ranks."""
    held = round(settings.held_out * len(ranked))
    out = set(random.Random(settings.seed).sample(range(len(ranked)), held))
    return tuple(
        Proposal(
            query=query, key=key, part="held_out" if place in out else "train", tie=tie, base=base,
            score=tie.tie * base.deficit, examples=tuple(dict.fromkeys(windows[tie.first, tie.second]))[:2],
        )
        for place, (tie, (query, key), base) in enumerate(ranked)
    )  # fmt: skip


def _whole_words(vocabulary: Sequence[str], proposals: Sequence[Proposal], terms: Iterable[str]) -> tuple[str, ...]:
    """Longer words of the corpus and the dictionary that hold a pair's word inside."""
    sides = {side for proposal in proposals for side in (proposal.query, proposal.key)}
    longer = {*vocabulary, *terms} - sides
    return tuple(sorted(word for word in longer if any(side in word for side in sides)))


def pairs_text(mined: Mined) -> str:
    """A pairs file (YAML) that finetune.pairs.load_pairs reads, the numbers beside each pair as comments."""
    lines = [f"# {line}" for line in _head(mined)]
    lines += ["name: mined", f"words: [{', '.join(map(_quoted, mined.words))}]", "pairs:"]
    direction = ", direction: either" if mined.causal else ""
    for place, proposal in enumerate((*mined.proposals, *mined.attended), start=1):
        if place == len(mined.proposals) + 1:
            lines += ["", "  # ---- tied, but attended to already: not proposed ----"]
        off = "# " if place > len(mined.proposals) else ""
        lines += ["", *(f"  # {line}" for line in _numbers(place, proposal))]
        sides = f"query: {_quoted(proposal.query)}, key: {_quoted(proposal.key)}, part: {proposal.part}"
        lines.append(f"  {off}- {{{sides}{direction}}}")
    return "\n".join(lines) + "\n"


def write_pairs(mined: Mined, path: Path) -> None:
    """Write the pairs file. Raises DataError where nothing is proposed, for a pairs file is never empty."""
    if not mined.proposals:
        raise DataError(
            f"no pair to propose: of {mined.tied} tied pairs in {mined.windows:,} windows the base model attends to "
            f"{len(mined.attended)} as expected or more, and {mined.unmeasured} stand nowhere that it can meet them"
        )
    write_whole(path, pairs_text(mined))


def _head(mined: Mined) -> Iterator[str]:
    settings, layers = mined.settings, ", ".join(map(str, mined.layers))
    yield "Proposed by `finetune mine`, to be edited by hand: strike what is not true of the domain."
    yield f"Base model {_printable(mined.model)}, layers {layers}."
    yield f"Corpus: {mined.windows:,} windows of at most {settings.sentences} sentences, cut by {mined.segmentation}."
    yield f"Reference: {mined.reference}."
    yield f"Tie and contrast: log-likelihood ratios. False discovery rate of the ties: {settings.rate:g}, over all"
    yield f"{mined.tests:,} possible pairs, as if windows were independent: texts that repeat one fact make ties look"
    yield "surer than they are."
    yield "mass: attention of the query on the key, mean over these layers and their heads, in texts drawn at random;"
    yield "expected: what any content word gets at that distance there. score = tie × (1 - mass / expected)."
    yield f"Tied: {mined.tied} pairs. Of those asked about, the base model attends to {len(mined.attended)} as expected"
    yield f"or more, and {mined.unmeasured} could not be measured."
    yield f"part: held_out is drawn at random ({settings.held_out:.0%} of what is proposed)."
    if mined.missed:
        yield f"Rare pairs were dropped to bound memory: a count may lack up to {mined.missed} windows."
    if mined.joined:
        yield f"Taken as one word, for they nearly always touch: {', '.join(mined.joined)}."


def _numbers(place: int, proposal: Proposal) -> Iterator[str]:
    tie, base = proposal.tie, proposal.base
    yield (
        f"{place}. score {proposal.score:.2f}; tie LLR {tie.tie:.1f} (p {tie.p:.1g}), contrast LLR {tie.contrast:.1f}; "
        f"together in {tie.together} of {tie.windows} windows ({tie.by_chance:.1f} by chance), in the reference in "
        f"{tie.reference_together} of {tie.reference_windows}; mass {base.mass:.4f}, expected {base.expected:.4f} "
        f"({base.places} places)"
    )
    for text in proposal.examples:
        yield f"   {_snippet(text, (proposal.query, proposal.key))}"


def _snippet(text: str, words: Sequence[str], *, room: int = 60) -> str:
    """The part of a text around the words, on one line."""
    places = [text.find(word) for word in words]
    start = max(0, min(places) - 10)
    end = min(len(text), max(start + room, max(places) + 10))
    cut = f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
    return _printable(cut)


def _printable(text: str) -> str:
    """A text without what would end a comment's line."""
    return "".join(char if char.isprintable() else " " for char in text)


def _quoted(word: str) -> str:
    """A word as a YAML string, whatever it holds; JSON's strings are YAML's."""
    return json.dumps(word, ensure_ascii=False)
