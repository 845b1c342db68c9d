"""Attention on pairs, rule by rule, and what a class's answer rests on: the edge from the target to its cue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finetune.batches import Collator
from finetune.encode import IGNORED, Encoded
from finetune.heads import Heads, rows_only
from finetune.pairs import TokenPair, why_unmet
from finetune.reach import Depths
from finetune.scoring import Step, batched, class_logs, model_inputs, moved
from finetune.supervise import batch_pairs, request_for
from probe import EdgeEdit, attached

_TEXTS = 8  # a batch


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedPair:
    """A pair on tokens and the record that holds it."""

    index: int
    pair: TokenPair


def placed_pairs(documents: Sequence[Encoded]) -> list[PlacedPair]:
    """The pairs of all documents, counted as a batch counts them: document by document, a second sentence last."""
    return [
        PlacedPair(index=document.index, pair=pair)
        for document in documents
        for part in (document, *([document.second] if document.second is not None else []))
        for pair in part.pairs
    ]


def pair_masses(
    model: Any,
    documents: Sequence[Encoded],
    *,
    collator: Collator,
    depths: Depths,
    heads: Mapping[str, Heads],
    step: Step | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Attention of each pair's query on its key, mean over these heads of the layers that can meet it, [pair].

    One array a set of heads, in the order of `placed_pairs`; NaN where none of its layers reaches so far back. A
    masked language model reads its texts unmasked here.
    """
    layers = sorted({layer for chosen in heads.values() for layer in chosen})
    found: dict[str, list[float]] = {name: [] for name in heads}
    for by_layer in masses_by_head(model, documents, collator=collator, depths=depths, layers=layers, step=step):
        for name, chosen in heads.items():
            masses = [mass[list(chosen[layer])] for layer, mass in by_layer.items() if layer in chosen]
            found[name].append(float(np.concatenate(masses).mean()) if masses else float("nan"))
    return {name: np.array(values, dtype=np.float64) for name, values in found.items()}


def masses_by_head(
    model: Any,
    documents: Sequence[Encoded],
    *,
    collator: Collator,
    depths: Depths,
    layers: Sequence[int],
    step: Step | None = None,
) -> list[dict[int, NDArray[np.float64]]]:
    """Attention of each pair's query on its key, [head], by layer that can meet it; in the order of `placed_pairs`."""
    with_pairs = [document for document in documents if placed_pairs([document])]
    found = []
    with torch.inference_mode(), attached(model):
        for group in batched(with_pairs, _TEXTS, step):
            batch = _unmasked(moved(collator(group), next(model.parameters()).device))
            by_layer = _masses(model, batch, layers=layers)
            for number, placed in enumerate(placed_pairs(group)):
                met = [layer for layer in layers if _meets(placed.pair, layer, depths)]
                found.append({layer: by_layer[layer][number] for layer in met})
    return found


def _masses(model: Any, batch: dict[str, Any], *, layers: Sequence[int]) -> dict[int, NDArray[np.float64]]:
    """By layer: mass of each pair of the batch, [pair, head]."""
    texts, tokens = batch["input_ids"].shape
    queries, spans = batch_pairs(batch["spans"], batch["pair_weights"], tokens=tokens)
    request = request_for(queries, texts=texts, layers=layers)
    model(**model_inputs(batch), **rows_only(model), rows=request)
    return {layer.index: spans.mass(rows).double().cpu().numpy() for layer, rows in request.rows.items()}


def _unmasked(batch: dict[str, Any]) -> dict[str, Any]:
    labels = batch["labels"]
    if labels.shape != batch["input_ids"].shape:
        return batch
    return {**batch, "input_ids": torch.where(labels != IGNORED, labels, batch["input_ids"])}


def _meets(pair: TokenPair, layer: int, depths: Depths) -> bool:
    """Whether a layer's mask lets the pair be met: decided by places and never by what a model attends to."""
    return why_unmet(pair, depths.reach([layer], cut_at=None)) is None


# ---- the cut edge ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Cue:
    """The words of one record that its target is paired with, of one part of the pairs."""

    document: Encoded
    part: str
    places: tuple[int, ...]

    def edit(self, item: int, *, factor: float) -> EdgeEdit:
        """The weight of the edges from the target to the cue times a factor."""
        return EdgeEdit(query=self.document.target, key=self.places, factor=factor, item=item)


def cues_of(documents: Sequence[Encoded], parts: Mapping[int, str], *, causal: bool) -> tuple[list[Cue], int]:
    """The cues of each record by part of the pairs, and how many a causal model's target cannot read.

    A cue is the other side of a pair of which one side is the target; `parts` names the part of each rule.
    """
    found: list[Cue] = []
    unread = 0
    for document in documents:
        by_part: dict[str, set[int]] = {}
        for pair in document.pairs:
            sides = [set(pair.queries), set(pair.keys)]
            target = set(document.target)
            for side, other in (sides, sides[::-1]):
                if side & target and not other & target:
                    by_part.setdefault(parts[pair.rule], set()).update(other)
        for part, places in by_part.items():
            read = {place for place in places if not causal or place < max(document.target)}
            unread += bool(places - read)
            if read:
                found.append(Cue(document=document, part=part, places=tuple(sorted(read))))
    return found, unread


def right_class_logs(
    model: Any, cues: Sequence[Cue], *, collator: Collator, cut: bool, bias: float = 0.0, step: Step | None = None
) -> NDArray[np.float64]:
    """The log-probability of each right class, [cue]; cut: the target cannot see the cue, in any layer or head.

    bias: what is added to the logits from the target to the cue where it is not cut.
    """
    factor = 0.0 if cut else exp(bias)
    found: list[float] = []
    for group in batched(cues, _TEXTS, step):
        batch = moved(collator([cue.document for cue in group]), next(model.parameters()).device)
        edits = [cue.edit(item, factor=factor) for item, cue in enumerate(group)] if factor != 1 else []
        logs = class_logs(model, batch, collator, edits=edits)
        found += [float(row[cue.document.label or 0]) for row, cue in zip(logs, group, strict=True)]
    return np.array(found, dtype=np.float64)
