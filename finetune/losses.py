"""Losses on attention rows: what rewards attention from one span to another, as plain functions of rows.

A row is one query token's attention of one head, float32, before dropout, as the row tap gives it. Each loss is a
number for a pair of spans and a head; `reduce_heads` makes one of several heads. Sources: Stacey et al., AAAI 2022
(sse); Deshpande and Narasimhan, 2020 (mse); a hinge on log mass that stops at a threshold (mass), since a row sums to
one and what a pair gains comes from the sink.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from finetune.errors import ConfigError

LossName = Literal["mass", "kl", "sse", "mse", "margin", "repel", "anchor"]
HeadReduction = Literal["each", "mean", "any"]

TINY = 1e-30  # the logarithm's floor: a mass of exactly 0 has no gradient, and its pair is not counted


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """Which loss, and its numbers."""

    name: LossName = "mass"
    threshold: float = 0.3  # mass: the share of a row from which on nothing more is asked; 1 is plain -log mass
    smoothing: float = 0.1  # kl: what the target leaves to the other allowed keys
    margin: float = 1.0  # margin: by how much, in nats, the wanted span is to lead
    heads: HeadReduction = "each"
    sharpness: float = 10.0  # any: the higher, the more the best head alone counts

    def __post_init__(self) -> None:
        """Refuse numbers for which a loss means nothing."""
        if self.name not in get_args(LossName):
            raise ConfigError(f"loss {self.name!r}: allowed are {', '.join(get_args(LossName))}")
        if self.heads not in get_args(HeadReduction):
            raise ConfigError(f"heads reduced by {self.heads!r}: allowed are {', '.join(get_args(HeadReduction))}")
        for name, value, low, high in (
            ("threshold", self.threshold, 0.0, 1.0),
            ("smoothing", self.smoothing, 0.0, 0.9),
            ("margin", self.margin, 0.0, 50.0),
            ("sharpness", self.sharpness, 0.1, 1000.0),
        ):
            if not low <= value <= high or (name == "threshold" and value == 0.0):
                raise ConfigError(f"{name} {value}: allowed is {low:g} to {high:g}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Supervised:
    """The supervised spans of one batch: one entry a query token, several entries a pair."""

    item: Tensor  # [entry], the text within the batch
    slot: Tensor  # [entry], place among the rows that were asked of that text
    pair: Tensor  # [entry], the pair that it belongs to
    keys: Tensor  # [entry, key] bool, the span to attend to
    negatives: Tensor  # [entry, key] bool, the spans to attend to less
    weight: Tensor  # [pair]

    @property
    def pairs(self) -> int:
        """How many pairs the batch has."""
        return len(self.weight)

    def rows_of(self, rows: Tensor) -> Tensor:
        """The entries' rows, [entry, head, key]; rows [batch, head, query, key]."""
        return rows[self.item, :, self.slot]

    def by_pair(self, values: Tensor) -> Tensor:
        """The mean over each pair's query tokens, [pair, …] of [entry, …]."""
        sums = values.new_zeros(self.pairs, *values.shape[1:]).index_add(0, self.pair, values)
        counts = torch.bincount(self.pair, minlength=self.pairs).clamp_min(1)
        return sums / counts.view(-1, *[1] * (values.dim() - 1))

    def mass(self, rows: Tensor) -> Tensor:
        """Attention of each pair's query span on its key span, [pair, head]: sum over keys, mean over queries."""
        return self.by_pair(_mass(self.rows_of(rows), self.keys))

    def reachable(self, rows: Tensor) -> Tensor:
        """Which pairs this layer can meet, [pair]: no query token's keys are all hidden by its mask or window."""
        seen = (self.rows_of(rows).detach() * self.keys[:, None]).sum((1, 2)) > 0
        missed = torch.zeros(self.pairs, dtype=torch.long, device=seen.device).index_add(0, self.pair, (~seen).long())
        return missed == 0


def pair_losses(rows: Tensor, spans: Supervised, settings: LossSettings, *, base: Tensor | None = None) -> Tensor:
    """The loss of each pair, heads reduced, [pair]; rows [batch, head, query, key] of the chosen heads of one layer.

    base: the same rows of the model without its adapter, for `anchor`. Raises ConfigError where it is missing.
    """
    if settings.heads == "mean":
        rows = rows.mean(1, keepdim=True)
        base = None if base is None else base.mean(1, keepdim=True)
    return reduce_heads(losses_by_head(rows, spans, settings, base=base), settings)


def losses_by_head(rows: Tensor, spans: Supervised, settings: LossSettings, *, base: Tensor | None = None) -> Tensor:
    """The loss of each pair and head, [pair, head]."""
    if settings.name == "anchor":
        if base is None:
            raise ConfigError("the anchor loss needs the rows of the model without its adapter")
        return spans.by_pair(_divergence(spans.rows_of(base).detach(), spans.rows_of(rows)))
    return _LOSSES[settings.name](rows, spans, settings)


def reduce_heads(losses: Tensor, settings: LossSettings) -> Tensor:
    """One loss a pair, [pair] of [pair, head]: their mean, or, for `any`, a smooth minimum, so that one head is enough.

    The smooth minimum of equal losses is that loss.
    """
    if settings.heads != "any" or losses.shape[1] == 1:
        return losses.mean(1)
    heads = torch.tensor(float(losses.shape[1]), device=losses.device)
    return -(torch.logsumexp(-settings.sharpness * losses, 1) - heads.log()) / settings.sharpness


def _mass_loss(rows: Tensor, spans: Supervised, settings: LossSettings) -> Tensor:
    """relu(log τ − log mass)."""
    wanted = torch.tensor(settings.threshold, device=rows.device).log()
    return torch.relu(wanted - spans.mass(rows).clamp_min(TINY).log())


def _kl_loss(rows: Tensor, spans: Supervised, settings: LossSettings) -> Tensor:
    """KL(target ‖ row): uniform over the key span, ε on the other allowed keys."""
    row = spans.rows_of(rows)  # [entry, head, key]
    target = _target(row, spans.keys, settings.smoothing)
    return spans.by_pair(_divergence(target, row))


def _sse_loss(rows: Tensor, spans: Supervised, settings: LossSettings) -> Tensor:
    """Σ (row − target)²: the target is uniform over the key span."""
    row = spans.rows_of(rows)
    return spans.by_pair((row - _target(row, spans.keys, 0.0)).square().sum(-1))


def _mse_loss(rows: Tensor, spans: Supervised, settings: LossSettings) -> Tensor:
    """The mean over allowed keys of (row − target)²; its gradient is smaller by their number than that of `sse`."""
    row = spans.rows_of(rows)
    allowed = (row.detach() > 0).sum(-1).clamp_min(1)
    return spans.by_pair((row - _target(row, spans.keys, 0.0)).square().sum(-1) / allowed)


def _margin_loss(rows: Tensor, spans: Supervised, settings: LossSettings) -> Tensor:
    """relu(margin + log mass on the spans not wanted − log mass on the wanted one); 0 for pairs without any."""
    row = spans.rows_of(rows)
    wanted, other = (spans.by_pair(_mass(row, keys)).clamp_min(TINY).log() for keys in (spans.keys, spans.negatives))
    has = spans.by_pair(spans.negatives.any(1).float()) > 0
    return torch.relu(settings.margin + other - wanted) * has[:, None]


def _repel_loss(rows: Tensor, spans: Supervised, settings: LossSettings) -> Tensor:
    """−log(1 − mass): attention is to leave the key span."""
    return -(1.0 - spans.mass(rows)).clamp_min(TINY).log()


_LOSSES: dict[LossName, Callable[[Tensor, Supervised, LossSettings], Tensor]] = {
    "mass": _mass_loss,
    "kl": _kl_loss,
    "sse": _sse_loss,
    "mse": _mse_loss,
    "margin": _margin_loss,
    "repel": _repel_loss,
}


def _mass(row: Tensor, keys: Tensor) -> Tensor:
    """[entry, head] of [entry, head, key]."""
    return (row * keys[:, None]).sum(-1)


def _target(row: Tensor, keys: Tensor, smoothing: float) -> Tensor:
    """Uniform over the key span, [entry, head, key], `smoothing` of it over the other keys that the row may see."""
    wanted = keys[:, None].expand_as(row).float()
    others = ((row.detach() > 0) & ~keys[:, None]).float()
    count = others.sum(-1, keepdim=True)
    share = torch.where(count > 0, smoothing, 0.0)  # a row without other keys has nobody to give it to
    return (1.0 - share) * wanted / wanted.sum(-1, keepdim=True).clamp_min(1) + share * others / count.clamp_min(1)


def _divergence(target: Tensor, row: Tensor) -> Tensor:
    """KL(target ‖ row) over the last axis; 0 · log 0 is 0."""
    log_target = torch.where(target > 0, target, 1.0).log()
    return (target * (log_target - row.clamp_min(TINY).log())).sum(-1)
