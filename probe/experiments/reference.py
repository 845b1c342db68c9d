"""A model with the same shape and random weights: what the same numbers are without any training.

One draw shown as an effect size; it is a reference, not a null distribution.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from probe.models import LoadedModel, model_from_parts


@dataclass(frozen=True, kw_only=True, eq=False)
class TwinPlan:
    """All that a random twin needs of a model; holds none of its weights, so that the two need not share memory."""

    architecture: type
    config: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype


def twin_plan(loaded: LoadedModel) -> TwinPlan:
    """What to build a random twin from."""
    return TwinPlan(
        architecture=type(loaded.backbone),
        config=copy.deepcopy(loaded.backbone.config),
        tokenizer=loaded.tokenizer,
        device=loaded.device,
        dtype=loaded.dtype,
    )


def random_twin(plan: TwinPlan, *, seed: int) -> LoadedModel:
    """The planned architecture with weights drawn anew, on the same device and in the same precision.

    The generator of the caller is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # manual_seed would seed accelerators as well
        model = plan.architecture(copy.deepcopy(plan.config))
    model = model.to(device=plan.device, dtype=plan.dtype)
    return model_from_parts(model, plan.tokenizer, name=f"random weights, seed {seed}")
