"""A model with the same shape and random weights: what the same numbers are without any training.

One draw shown as an effect size; it is a reference, not a null distribution.
"""

import copy

import torch

from probe.models import LoadedModel, model_from_parts


def random_twin(loaded: LoadedModel, *, seed: int) -> LoadedModel:
    """The model's architecture with weights drawn anew, on the same device and in the same precision.

    The generator of the caller is left as it was.
    """
    config = copy.deepcopy(loaded.backbone.config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = type(loaded.backbone)(config)
    model = model.to(device=loaded.device, dtype=loaded.dtype)
    return model_from_parts(model, loaded.tokenizer, name=f"random weights, seed {seed}")
