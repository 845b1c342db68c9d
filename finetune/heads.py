"""Which layers and heads the attention loss acts on."""

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from finetune.errors import ConfigError
from finetune.supervise import batch_pairs, request_for, taken
from probe import attached

Heads = dict[int, tuple[int, ...]]  # layer -> heads


def chosen_layers(asked: Literal["last_third", "all"] | Sequence[int], layers: int) -> tuple[int, ...]:
    """Layer numbers, from 0; ConfigError for one that the model has not."""
    if asked == "all":
        return tuple(range(layers))
    if asked == "last_third":
        return tuple(range(layers - max(1, round(layers / 3)), layers))
    found = tuple(sorted({int(layer) for layer in asked}))
    if not found or found[-1] >= layers:
        raise ConfigError(f"attention.layers {list(asked)}: this model has layers 0 to {layers - 1}")
    return found


def named_heads(asked: Sequence[tuple[int, int]], *, layers: int, heads: int) -> Heads:
    """Heads given as [layer, head]; ConfigError for one that the model has not."""
    found: dict[int, list[int]] = {}
    for layer, head in asked:
        if layer >= layers or head >= heads:
            raise ConfigError(
                f"attention.heads [{layer}, {head}]: this model has layers 0 to {layers - 1} of {heads} heads each"
            )
        found.setdefault(layer, []).append(head)
    if not found:
        raise ConfigError("attention.heads is empty: give [layer, head] at least once, `auto` or `all`")
    return {layer: tuple(sorted(set(numbers))) for layer, numbers in sorted(found.items())}


def every_head(layers: Iterable[int], heads: int) -> Heads:
    """All heads of these layers."""
    return {layer: tuple(range(heads)) for layer in layers}


def mass_by_head(model: Any, batches: Iterable[dict[str, Any]], *, layers: Sequence[int]) -> NDArray[np.float64]:
    """Mean attention of the pairs' queries on their keys, [layer of `layers`, head], in a model that is not trained.

    A layer counts the pairs that it can meet; NaN where it can meet none.
    """
    sums: NDArray[np.float64] | None = None
    counts = np.zeros(len(layers))
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), attached(model):
            for batch in batches:
                inputs = {name: value for name, value in batch.items() if name in MODEL_INPUTS}
                given = taken(dict(batch))
                if given is None:
                    continue
                queries, spans = batch_pairs(*given, tokens=inputs["input_ids"].shape[1])
                request = request_for(queries, texts=len(inputs["input_ids"]), layers=layers)
                model(**inputs, rows=request, **rows_only(model))
                for place, (_, rows) in enumerate(sorted(request.rows.items(), key=lambda one: one[0].index)):
                    reachable = spans.reachable(rows)
                    mass = spans.mass(rows)[reachable].sum(0).double().cpu().numpy()  # [head]
                    sums = np.zeros((len(layers), len(mass))) if sums is None else sums
                    sums[place] += mass
                    counts[place] += int(reachable.sum())
    finally:
        model.train(was_training)
    if sums is None:
        raise ConfigError("attention.heads auto: no pair stands in the texts, so no head can be told from another")
    with np.errstate(invalid="ignore", divide="ignore"):
        means: NDArray[np.float64] = sums / np.where(counts > 0, counts, np.nan)[:, None]
    return means


def rows_only(model: Any) -> dict[str, Any]:
    """Arguments of a pass that is run for its rows: no cache, and of a vocabulary's logits one position."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    narrow = "logits_to_keep" in signature(inner.forward).parameters
    return {"use_cache": False, **({"logits_to_keep": 1} if narrow else {})}


def strongest_quarter(mass: NDArray[np.float64], layers: Sequence[int]) -> Heads:
    """The quarter of all (layer, head) with the most mass; at least one. mass [layer, head], NaN is none."""
    flat = np.where(np.isnan(mass), -np.inf, mass).ravel()
    order = np.argsort(-flat, kind="stable")[: max(1, mass.size // 4)]
    kept = [divmod(int(place), mass.shape[1]) for place in order if np.isfinite(flat[place])]
    if not kept:
        raise ConfigError("attention.heads auto: no supervised layer can meet any pair")
    return named_heads([(layers[row], head) for row, head in kept], layers=max(layers) + 1, heads=mass.shape[1])


MODEL_INPUTS: Mapping[str, None] = dict.fromkeys(
    ("input_ids", "attention_mask", "position_ids", "token_type_ids", "inputs_embeds")
)
