"""Pairs that stand in the texts, counted: met, unmet by reason, absent; and when that is too little to train on."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from finetune.encode import Encoded
from finetune.errors import PairError
from finetune.pairs import REASONS, PairBook, Reason


@dataclass(frozen=True, kw_only=True)
class PairTally:
    """What became of each rule."""

    names: tuple[str, ...]  # of the rules looked for, and at the end those of the data
    met: Mapping[str, int]  # name -> pairs on tokens
    unmet: Mapping[str, Mapping[Reason, int]]

    @property
    def found(self) -> int:
        """Pairs that stand in the texts."""
        return sum(self.met.values()) + sum(sum(reasons.values()) for reasons in self.unmet.values())

    @property
    def met_in_all(self) -> int:
        """Pairs that the model can meet."""
        return sum(self.met.values())

    @property
    def absent(self) -> tuple[str, ...]:
        """Rules that no text holds."""
        return tuple(
            name for name in self.names if not self.met.get(name) and not sum(self.unmet.get(name, {}).values())
        )

    def by_reason(self) -> dict[Reason, int]:
        """Unmet pairs by reason; absent rules are counted as rules."""
        counts: dict[Reason, int] = {
            reason: sum(reasons.get(reason, 0) for reasons in self.unmet.values()) for reason in REASONS
        }
        return {**counts, "absent": len(self.absent)}


def tally(documents: Iterable[Encoded], book: PairBook | None, rules: Sequence[int]) -> PairTally:
    """Count the pairs of encoded records."""
    names = tuple(str(book.pairs[rule]) for rule in rules) if book is not None else ()
    met: Counter[str] = Counter()
    unmet: dict[str, Counter[Reason]] = {}
    for document in documents:
        parts = [document, *([document.second] if document.second is not None else [])]
        for part in parts:
            met.update(rule_name(pair.rule, book) for pair in part.pairs)
            for one in part.unmet:
                unmet.setdefault(rule_name(one.rule, book), Counter())[one.reason] += 1
    own = sorted({*met, *unmet} - set(names))
    return PairTally(names=(*names, *own), met=dict(met), unmet={name: dict(counts) for name, counts in unmet.items()})


def rule_name(rule: int, book: PairBook | None) -> str:
    """What a pair's rule is called: `query → key` of the book, or where else it comes from."""
    return str(book.pairs[rule]) if book is not None and rule >= 0 else {-1: "pairs of the data", -2: "targets"}[rule]


def refuse_too_few(found: PairTally, *, unmet_limit: float, absent_limit: float) -> None:
    """PairError where too large a share of the pairs cannot be met, with each reason and its number."""
    counts = found.by_reason()
    said = ", ".join(f"{counts[reason]} {reason}" for reason in REASONS if counts[reason] and reason != "absent")
    if not found.met_in_all:
        raise PairError(f"no pair can be met: {said or 'none stands in the texts'}; see `finetune check`")
    unmet = found.found - found.met_in_all
    if unmet > unmet_limit * found.found:
        raise PairError(
            f"{unmet} of {found.found} pairs cannot be met ({said}); allowed is a share of {unmet_limit:g} "
            "(pairs.unmet_limit): in a causal model a pair is met where the key stands first, so consider "
            "direction: either"
        )
    if len(found.absent) > absent_limit * len(found.names):
        raise PairError(
            f"{len(found.absent)} of {len(found.names)} pairs stand in no text, the first {found.absent[0]}; allowed "
            f"is a share of {absent_limit:g} (pairs.absent_limit)"
        )
