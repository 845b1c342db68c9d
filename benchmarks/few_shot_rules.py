"""What can be said of a sense without teaching a model: neighbours, words around, the states as they are."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from finetune.tasks import SenseHead
from probe.cases import Case

Floats = NDArray[np.float64]

EDGE = "edge"
_CHARACTERS = 2000  # that an unseen one may be
WINDOW, PENALTY = 12, 0.1  # characters on each side; weight of the squared norm


def collocation(examples: Sequence[Case], cases: Sequence[Case]) -> list[str]:
    """The sense that the characters beside the target speak for: naive Bayes with Witten and Bell's estimate.

    A character that no example had speaks for the sense that had most different ones: 苹果 as an acid is always
    followed by 酸, so another character speaks against acid, although no example had it. The character after decides
    first, the one before where it does not, and then the first sense in the alphabet.
    """
    senses = sorted({case.sense for case in examples})
    tables = [{sense: _counts(examples, sense, side) for sense in senses} for side in (1, 0)]

    def choice(case: Case) -> str:
        seen = _beside(case)
        scores = {
            sense: [_witten_bell(table[sense], seen[side]) for table, side in zip(tables, (1, 0), strict=True)]
            for sense in senses
        }
        return max(senses, key=lambda sense: (round(scores[sense][0], 12), scores[sense][1]))

    return [choice(case) for case in cases]


def _counts(examples: Sequence[Case], sense: str, side: int) -> Counter[str]:
    return Counter(_beside(case)[side] for case in examples if case.sense == sense)


def _beside(case: Case) -> tuple[str, str]:
    start, end = case.target.start, case.target.end
    return case.text[start - 1 : start] or EDGE, case.text[end : end + 1] or EDGE


def _witten_bell(counts: Counter[str], character: str) -> float:
    """Log of a character's share; what unseen ones have together is divided among as many as a text may hold."""
    seen, kinds = counts.total(), len(counts)
    return math.log(counts.get(character, kinds / _CHARACTERS) / (seen + kinds))


def bag_of_context(
    examples: Sequence[Case], cases: Sequence[Case], *, window: int = WINDOW, penalty: float = PENALTY
) -> list[str]:
    """Logistic regression on the characters and pairs of characters around the target, in the order of no place."""
    senses = sorted({case.sense for case in examples})
    known = {gram: place for place, gram in enumerate(sorted({g for case in examples for g in _grams(case, window)}))}

    def features(given: Sequence[Case]) -> torch.Tensor:
        found = torch.zeros(len(given), len(known), dtype=torch.float64)
        for row, case in enumerate(given):
            for place in (known[gram] for gram in _grams(case, window) if gram in known):
                found[row, place] = 1.0
        return found

    classes = torch.tensor([senses.index(case.sense) for case in examples])
    weight, bias = _logistic(features(examples), classes, classes=len(senses), penalty=penalty)
    return [senses[place] for place in (features(cases) @ weight.T + bias).argmax(1).tolist()]


def _grams(case: Case, window: int) -> set[str]:
    before = case.text[max(0, case.target.start - window) : case.target.start]
    after = case.text[case.target.end : case.target.end + window]
    return {part[at : at + size] for part in (before, after) for size in (1, 2) for at in range(len(part) - size + 1)}


def _logistic(
    x: torch.Tensor, wanted: torch.Tensor, *, classes: int, penalty: float
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        found = functional.cross_entropy(x @ weight.T + bias, wanted, reduction="sum")
        found = found + penalty * weight.square().sum()
        found.backward()
        return found

    solver.step(loss)
    return weight.detach(), bias.detach()


def nearest_centre(known: Floats, senses: Sequence[str], asked: Floats) -> list[str]:
    """The sense whose examples' mean is nearest by cosine, all centred on the examples; known [example, dim]."""
    names, centre = sorted(set(senses)), known.mean(0)
    of = np.array(senses)
    means = np.stack([known[of == name].mean(0) for name in names]) - centre
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return [names[place] for place in ((asked - centre) @ means.T).argmax(1).tolist()]


def frozen_head(
    known: Floats, senses: Sequence[str], asked: Floats, *, steps: int, batch: int, learning_rate: float, seed: int
) -> list[str]:
    """The product's reading head on states that nothing teaches, with as many steps of as many examples; no dropout."""
    names = sorted(set(senses))
    torch.manual_seed(seed)
    head = SenseHead(known.shape[1], len(names))
    states, wanted = torch.tensor(known).float(), torch.tensor([names.index(sense) for sense in senses])
    head.set_centre(states)
    solver = torch.optim.AdamW(head.parameters(), lr=learning_rate, weight_decay=0.0)
    order: list[int] = []
    for step in range(steps):
        if len(order) < batch:
            order += torch.randperm(len(states)).tolist()
        chosen, order = order[:batch], order[batch:]
        solver.param_groups[0]["lr"] = learning_rate * (1 - step / steps)
        loss = functional.cross_entropy(_read(head, states[chosen]), wanted[chosen])
        solver.zero_grad()
        loss.backward()
        solver.step()
    with torch.no_grad():
        return [names[place] for place in _read(head, torch.tensor(asked).float()).argmax(1).tolist()]


def _read(head: SenseHead, states: torch.Tensor) -> torch.Tensor:
    """Each state as a text of one token."""
    found: torch.Tensor = head(states[:, None], {"target_mask": torch.ones(len(states), 1, dtype=torch.bool)})
    return found
