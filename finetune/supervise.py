"""Pairs of a batch -> which rows to ask for, and the loss on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from finetune.errors import TrainingError
from finetune.losses import LossSettings, Supervised, pair_losses
from probe import RowRequest

QUERY, KEY, NEGATIVE = range(3)  # kinds of a batch's `spans`
SPAN_FIELDS = ("spans", "pair_weights", "pair_rules")


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """What is rewarded, where: the loss, and the heads of each layer that it acts on."""

    settings: LossSettings
    heads: Mapping[int, tuple[int, ...]]  # layer -> heads

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers with at least one head."""
        return tuple(sorted(layer for layer, heads in self.heads.items() if heads))


@dataclass(frozen=True, kw_only=True, eq=False)
class PairScores:
    """What one batch's pairs came to; sums over pairs, so that batches and processes can be added up."""

    loss: Tensor  # Σ weight · loss, carries the gradient
    weight: Tensor  # Σ weight of the pairs that some layer can meet
    mass: Tensor  # Σ mass on the key span, mean over layers and heads
    met: Tensor  # pairs whose mean mass reaches the threshold
    sink: Tensor  # Σ mass on the first position
    pairs: Tensor  # how many pairs some layer can meet


def batch_pairs(spans: Tensor, weights: Tensor, *, tokens: int) -> tuple[list[list[int]], Supervised]:
    """The query positions to ask for, a list a text, and the batch's supervised spans.

    spans [n, 4], not empty, as finetune.batches makes them: item, kind, pair, position.
    """
    texts = int(spans[:, 0].max()) + 1
    queries: list[list[int]] = [[] for _ in range(texts)]
    entries: list[tuple[int, int, int]] = []
    for item, kind, pair, position in spans.tolist():
        if kind == QUERY:
            if position not in queries[item]:
                queries[item].append(position)
            entries.append((item, queries[item].index(position), pair))
    index = torch.tensor(entries, device=spans.device)
    marked = torch.zeros(2, len(weights), tokens, dtype=torch.bool, device=spans.device)  # [kind, pair, key]
    for row, kind in enumerate((KEY, NEGATIVE)):
        chosen = spans[spans[:, 1] == kind]
        marked[row, chosen[:, 2], chosen[:, 3]] = True
    return queries, Supervised(
        item=index[:, 0], slot=index[:, 1], pair=index[:, 2], keys=marked[0][index[:, 2]],
        negatives=marked[1][index[:, 2]], weight=weights,
    )  # fmt: skip


def request_for(queries: Sequence[Sequence[int]], *, texts: int, layers: Sequence[int]) -> RowRequest:
    """Ask for the rows of these query positions in these layers; a text without pairs gives the row of its start."""
    asked = [list(found) or [0] for found in queries] + [[0]] * (texts - len(queries))
    return RowRequest(asked, layers=layers)


def score_pairs(
    request: RowRequest, spans: Supervised, supervision: Supervision, *, base: RowRequest | None = None
) -> PairScores:
    """The loss on a batch's pairs, and what they attend to.

    A pair's loss is the mean over the layers that can meet it, so that a window hides a layer and not the pair.
    """
    losses, masses, sinks, reached = [], [], [], []
    for layer, rows in request.rows.items():
        heads = list(supervision.heads[layer.index])
        chosen = rows[:, heads]
        before = None if base is None else base.rows[layer][:, heads]
        reachable = spans.reachable(chosen)
        loss = pair_losses(chosen, spans, supervision.settings, base=before)
        losses.append(torch.where(reachable, loss, 0.0))
        masses.append(torch.where(reachable, spans.mass(chosen).detach().mean(1), 0.0))
        sinks.append(torch.where(reachable, spans.by_pair(spans.rows_of(chosen)[..., 0]).detach().mean(1), 0.0))
        reached.append(reachable)
    layers = torch.stack(reached).sum(0)  # [pair], layers that can meet it
    some, count = layers > 0, layers.clamp_min(1)
    mass = torch.stack(masses).sum(0) / count
    weight = spans.weight * some
    return PairScores(
        loss=(weight * torch.stack(losses).sum(0) / count).sum(),
        weight=weight.sum(),
        mass=mass.sum(),
        met=((mass >= supervision.settings.threshold) & some).sum(),
        sink=(torch.stack(sinks).sum(0) / count).sum(),
        pairs=some.sum(),
    )


@dataclass(kw_only=True)
class ScoreSums:
    """PairScores of many batches, as plain numbers."""

    sums: dict[str, float] = field(default_factory=dict)

    def add(self, scores: PairScores) -> None:
        """Take one batch's."""
        for name in ("loss", "weight", "mass", "met", "sink", "pairs"):
            self.sums[name] = self.sums.get(name, 0.0) + float(getattr(scores, name).detach())

    def means(self) -> dict[str, float]:
        """Means over pairs: attention_loss, pair_mass, sink_mass, pairs_met (a share), pairs (a count)."""
        pairs = self.sums.get("pairs", 0.0)
        if not pairs:
            return {}
        return {
            "attention_loss": self.sums["loss"] / max(self.sums["weight"], 1e-12),
            "pair_mass": self.sums["mass"] / pairs,
            "sink_mass": self.sums["sink"] / pairs,
            "pairs_met": self.sums["met"] / pairs,
            "pairs": pairs,
        }


def check_gradient(request: RowRequest) -> None:
    """TrainingError where the rows carry no gradient: the loss would train nothing, and say nothing."""
    if not all(rows.requires_grad for rows in request.rows.values()):
        raise TrainingError(
            "the attention rows carry no gradient: no query or key in the supervised layers is trained "
            "(lora.targets must hold both), or reentrant checkpointing drops it (use_reentrant: false)"
        )


def taken(batch: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Take what belongs to the pairs out of a batch, so that the rest can go to the model."""
    spans, weights = batch.pop("spans", None), batch.pop("pair_weights", None)
    batch.pop("pair_rules", None)
    return None if spans is None or not len(spans) else (spans, weights)
