"""The base inside a model that is taught: its adapter switched off, or its own weights put back for a while."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from finetune.errors import TrainingError


def is_adapted(model: Any) -> bool:
    """Whether the model carries an adapter of PEFT, so that its base is in it, untouched."""
    return hasattr(model, "disable_adapter")


def keep_base(model: Any, *, but: Collection[str] = (), copied: bool) -> None:
    """Keep the weights as they are now, so that `base_weights` can put them back; 4 bytes a weight more.

    `but` names weights that the base does not have, as those of a new head. Without `copied` they are kept as they
    are, for a model whose weights are replaced next and not changed in place.
    """
    model.kept_base = {
        name: weight.detach().clone() if copied else weight.detach()
        for name, weight in model.named_parameters()
        if name not in but
    }


def knows_base(model: Any) -> bool:
    """Whether `base_weights` can be had."""
    return is_adapted(model) or hasattr(model, "kept_base")


@contextmanager
def base_weights(model: Any) -> Iterator[None]:
    """Within the block the model answers as its base, with whatever head it has.

    Not to be entered in inference mode, nor with a graph of the model that is still to be gone back through. A block
    within such a block changes nothing.
    TrainingError for a model all of whose weights are trained, and that kept none of its base's.
    """
    if is_adapted(model):
        with model.disable_adapter():
            yield
        return
    if not knows_base(model):
        raise TrainingError("the model keeps no weights of its base, which all are trained: its base cannot be asked")
    if getattr(model, "stands_as_base", False):
        yield
        return
    _exchange(model)
    model.stands_as_base = True
    try:
        yield
    finally:
        _exchange(model)
        model.stands_as_base = False


@contextmanager
def base_at_rest(model: Any) -> Iterator[None]:
    """The same in eval mode, while the model is trained: dropout would be measured as drift."""
    was_training = model.training
    model.eval()
    try:
        with base_weights(model):
            yield
    finally:
        model.train(was_training)


def _exchange(model: Any) -> None:
    """The model's weights and those that it keeps change places, no number is moved."""
    kept: dict[str, torch.Tensor] = model.kept_base
    for name, weight in model.named_parameters():
        if name in kept:
            kept[name], weight.data = weight.data, kept[name]
