"""What a look before training finds: plain records, made by preflight and told line by line."""

from collections.abc import Mapping
from dataclasses import dataclass

from finetune.footprint import Memory, Work
from finetune.tally import PairTally
from probe import CijingError


@dataclass(frozen=True, kw_only=True)
class Caution:
    """Something that would run, and probably is not meant."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ShownPair:
    """A pair on the tokens of an example, each (position, word), and the supervised layers whose window holds it."""

    rule: str
    queries: tuple[tuple[int, str], ...]
    keys: tuple[tuple[int, str], ...]
    negatives: tuple[tuple[int, str], ...]
    weight: float
    layers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ShownExample:
    """One example as the model gets it."""

    id: str
    words: tuple[str, ...]  # [token]
    second_words: tuple[str, ...]  # of the other sentence, where it is a sequence of its own
    learned: tuple[int, ...]  # positions that the loss counts
    replaced: Mapping[int, str]  # masked-lm, first epoch: position -> what stands in the word's place
    label: str | None
    targets: tuple[tuple[tuple[int, str], ...], ...]  # marked words: of the text, or of both sentences
    pairs: tuple[ShownPair, ...]
    unmet: tuple[tuple[str, str], ...]  # (rule, reason)
    row: tuple[str, ...]  # ids of the texts that share its row, packed; else empty


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """All that can be known of a run without its weights."""

    model: str
    task: str
    facts: Mapping[str, str]  # short lines on model, texts and adapter
    mask: str  # what a token sees
    shown: tuple[ShownExample, ...]
    examples: int  # of the train part
    supervised: tuple[int, ...]  # layers whose rows are rewarded; empty without an attention loss
    pairs: PairTally
    work: Work
    memory: Memory
    cautions: tuple[Caution, ...]
    refusal: CijingError | None  # what training would stop for
