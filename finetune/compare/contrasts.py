"""Which arms are set against which, and what each comparison is there to tell."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from finetune.compare.items import BASE

Why = Literal[
    "claim",  # supervision, or only more pairs to look at: the random arm differs in the pairs alone
    "whole",  # does the arm change anything at all
    "supervision",  # what the attention loss adds to the same training
    "knowledge",  # does supervision give what more text would give as well
    "random",  # what any attention loss gives, be its pairs right or not
    "text",  # what more text gives in the same number of steps
    "passages",  # what passages add to a trained model
    "all_weights",  # what an adapter leaves behind full fine-tuning
]


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One arm against another: what is told is arm less against."""

    arm: str
    against: str
    why: Why


CLAIM = Contrast(arm="lora-attention", against="lora-random", why="claim")
_BETWEEN = (
    Contrast(arm="lora-attention", against="lora", why="supervision"),
    Contrast(arm="lora-attention", against="lora-more-text", why="knowledge"),
    Contrast(arm="lora-random", against="lora", why="random"),
    Contrast(arm="lora-more-text", against="lora", why="text"),
    Contrast(arm="lora-rag", against="lora", why="passages"),
    Contrast(arm="lora-attention-rag", against="lora-rag", why="supervision"),
    Contrast(arm="lora-attention-rag", against="lora-attention", why="passages"),
    Contrast(arm="full", against="lora", why="all_weights"),
)


def contrasts_of(arms: Iterable[str]) -> tuple[Contrast, ...]:
    """The contrasts whose arms are there: the claim, then every arm against base, then arms against each other."""
    there = tuple(dict.fromkeys(arms))
    against_base = tuple(Contrast(arm=arm, against=BASE, why="whole") for arm in there if arm != BASE)
    return tuple(one for one in (CLAIM, *against_base, *_BETWEEN) if {one.arm, one.against} <= set(there))
