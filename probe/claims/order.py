"""The claim that without positions the order of the words is lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.cases import load_cases
from probe.claims.bench import Bench
from probe.claims.families import tiny_model
from probe.claims.positionless import (
    Left,
    doubled,
    is_causal,
    last_states,
    left_of_positions,
    without_positions,
)
from probe.claims.records import Finding, Grid, Part, Range, Rule, not_testable, spread
from probe.models import LoadedModel

_TEXTS = 8
_RULE = Rule(confirmed=Range(below=1e-6), refuted=Range(above=1e-3))


@dataclass(frozen=True, kw_only=True)
class Reordered:
    """How far states are from being merely reordered, by text; where positions cannot be taken out, only why."""

    left: Left = ""
    without: tuple[float, ...] = ()
    placed: tuple[float, ...] = ()  # the same with positions


def order(bench: Bench) -> Finding:
    """How far states are from being merely reordered when the tokens are, with and without positions."""
    texts = [case.text for case in load_cases("relations").cases[: _TEXTS + 4]][4:]
    tiny = [list(range(5, 17)), list(range(20, 30))]
    # GPT-2 keeps double precision throughout; Llama's norms and rotations compute in single precision.
    planted = {
        "encoder": reordered(tiny_model("BERT"), tiny, seed=bench.seed),
        "decoder": reordered(tiny_model("GPT-2", n_layer=1), tiny, seed=bench.seed),
    }
    models = {"encoder": bench.encoder, "decoder": bench.decoder}
    both = {key: reordered(one.backbone, _ids(one, texts), seed=bench.seed) for key, one in models.items()}
    parts = [_part(key, models[key].name, both[key], planted[key]) for key in models]
    rows = [
        (name, *(max(values) if values else None for values in (found.without, found.placed)))
        for name, found in (*both.items(), *((f"tiny_{key}", found) for key, found in planted.items()))
    ]
    grid = Grid(caption="permuted", columns=("stack", "without", "with"), rows=tuple(rows))
    return Finding(key="order", parts=tuple(parts), grids=(grid,))


def _part(key: str, model: str, found: Reordered, planted: Reordered) -> Part:
    part = Part(
        key=f"lost_{key}",
        model=model,
        rule=_RULE,
        unit="deviation",
        number=spread(found.without),
        planted=spread(planted.without),
        nothing=spread(found.placed),
    )
    return not_testable(part, found.left) if found.left else part


def _ids(loaded: LoadedModel, texts: Sequence[str]) -> list[list[int]]:
    return [list(loaded.tokenizer(text)["input_ids"]) for text in texts]


def reordered(backbone: Any, texts: Sequence[Sequence[int]], *, seed: int) -> Reordered:
    """Deviations of each text without and with positions, computed in double precision on a copy of the model.

    In both directions all tokens change places, and each state must follow its token. In a causal model those between
    the first and the last do, and the last state must stay. Whether positions are gone is seen at the longest text:
    a window that holds all of it hides nothing.
    """
    rng = np.random.default_rng(seed)
    causal = is_causal(backbone)
    pairs = [(text, _order(len(text), causal=causal, rng=rng)) for text in texts]
    longest = max(texts, key=len)
    copy = doubled(backbone)
    left = left_of_positions(copy, token=longest[len(longest) // 2], length=len(longest), causal=causal)
    if left:
        return Reordered(left=left)
    placed = tuple(_deviation(copy, text, order, causal=causal) for text, order in pairs)
    with without_positions(copy):
        without = tuple(_deviation(copy, text, order, causal=causal) for text, order in pairs)
    return Reordered(without=without, placed=placed)


def _order(length: int, *, causal: bool, rng: np.random.Generator) -> list[int]:
    if not causal:
        return [int(i) for i in rng.permutation(length)]
    return [0, *(1 + int(i) for i in rng.permutation(length - 2)), length - 1]


def _deviation(backbone: Any, text: Sequence[int], order: Sequence[int], *, causal: bool) -> float:
    plain, moved = last_states(backbone, text), last_states(backbone, [text[i] for i in order])
    if causal:
        return float((plain[-1] - moved[-1]).norm() / plain[-1].norm())
    return float((plain[list(order)] - moved).norm() / plain.norm())
