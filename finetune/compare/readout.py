"""A base that answers in a task of classes: its own states, untouched, under a head that is fitted to them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from finetune.batches import Collator
from finetune.compare.arms import ARMS
from finetune.compare.settings import CompareConfig, run_of
from finetune.config import LoraConfig
from finetune.encode import Encoded
from finetune.heads import MODEL_INPUTS
from finetune.learner import Learner
from finetune.prepare import Progress, prepare_run
from finetune.tasks import READING

_AT_ONCE = 32
_ITERATIONS = 500


def base_with_head(config: CompareConfig, *, device: str, progress: Progress | None) -> Learner:
    """The base of a task of classes with a head, in eval mode; its adapter is zero, so its states are the base's.

    A head of ours, for marked words, is fitted to the states of the training texts: logistic regression with the
    penalty ½ |W|², which has one optimum. A head that a family brings (classification) stays as it was drawn, and the
    learner's notes say so. Errors as preparing the run gives them.
    """
    run = run_of(config, ARMS["lora"], seed=config.seeds[0]).model_copy(update={"lora": LoraConfig()})
    prepared = prepare_run(run, device=device, progress=progress)
    learner = prepared.learner
    learner.model.eval()
    if config.task in READING:
        _fit(learner.model, prepared.true, prepared.collator, device=learner.loaded.device)
    return learner


def _fit(model: Any, documents: Sequence[Encoded], collator: Collator, *, device: torch.device) -> None:
    """Fit the reading head's linear map, its features as they are read in use."""
    head = model.reading_head
    features, labels = _features(model, documents, collator, device=device)
    weight = torch.zeros_like(head.out.weight, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros_like(head.out.bias, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=_ITERATIONS, line_search_fn="strong_wolfe", tolerance_grad=1e-9
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = features @ weight.T + bias
        found = functional.cross_entropy(logits, labels, reduction="sum") + weight.square().sum() / 2
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.out.weight.copy_(weight)
        head.out.bias.copy_(bias)


def _features(
    model: Any, documents: Sequence[Encoded], collator: Collator, *, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What the head's linear map reads, [text, feature], and the classes, in the texts' order."""
    seen: list[Tensor] = []
    labels = []
    watched = model.reading_head.out.register_forward_pre_hook(lambda _, given: seen.append(given[0].double()))
    try:
        with torch.inference_mode():
            for start in range(0, len(documents), _AT_ONCE):
                made = collator(documents[start : start + _AT_ONCE])
                batch = {name: value.to(device) for name, value in made.items()}
                inputs = {name: value for name, value in batch.items() if name in MODEL_INPUTS}
                model.reading_head(model(**inputs).last_hidden_state, batch)
                labels.append(batch["labels"])
    finally:
        watched.remove()
    return torch.cat(seen).clone(), torch.cat(labels).clone()
