"""What a model gives for encoded records: the log-probability of a text's tokens, of each class."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from finetune.batches import Collator
from finetune.encode import IGNORED, Encoded
from finetune.heads import MODEL_INPUTS
from finetune.tasks import TaskLoss
from probe import EdgeEdit, RowRequest, tap

Step = Callable[[int, int], None]  # done, total
EditsOf = Callable[[Encoded, int], Sequence[EdgeEdit]]
Item = TypeVar("Item")
_LOGITS = 2**27  # numbers held at once: half a gigabyte
_TEXTS = 8  # a batch


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenScores:
    """What a language model makes of texts, a row a record (whose pieces are added up)."""

    index: NDArray[np.int64]  # the records' places in their part
    nats: NDArray[np.float64]  # −log p of the text's own tokens that count
    tokens: NDArray[np.float64]
    characters: NDArray[np.float64]  # of these tokens, decoded
    end_nats: NDArray[np.float64]  # −log p of the end tokens that count: a habit of the format, learned at once
    ends: NDArray[np.float64]

    @property
    def sums(self) -> NDArray[np.float64]:
        """[record, (nats, tokens, characters)]."""
        return np.stack([self.nats, self.tokens, self.characters], axis=1)

    @property
    def end_sums(self) -> NDArray[np.float64]:
        """[record, (nats, tokens)] of the end tokens."""
        return np.stack([self.end_nats, self.ends], axis=1)


def token_scores(
    model: Any, tokenizer: Any, documents: Sequence[Encoded], *, collator: Collator, step: Step | None = None
) -> TokenScores:
    """Score the tokens that a language model's loss counts, in a model in eval mode; deterministic.

    A causal model scores every token after the first that its task learns, end tokens apart; a masked one the tokens
    that the collator masks, the same in every run of the seed.
    """
    found: dict[int, list[float]] = {}
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    device, shifts = _device(model), collator.task == "causal-lm"
    longest = max(document.length for document in documents)
    size = max(1, min(_TEXTS, _LOGITS // (longest * len(tokenizer))))
    in_order = sorted(documents, key=lambda document: document.length)  # little padding
    for group in batched(in_order, size, step):
        batch = moved(collator(group), device)
        labels = batch["labels"][:, 1:] if shifts else batch["labels"]
        nats = _token_nats(model, batch, labels, shifts=shifts).cpu()
        for document, own, own_labels in zip(group, nats, labels.cpu(), strict=True):
            ends = torch.isin(own_labels, special)
            words = (own_labels != IGNORED) & ~ends
            characters = len(tokenizer.decode(own_labels[words].tolist()))
            numbers = (own[words].sum(), words.sum(), characters, own[ends].sum(), ends.sum())
            before = found.get(document.index, [0.0] * len(numbers))
            found[document.index] = [total + float(number) for total, number in zip(before, numbers, strict=True)]
    index = sorted(found)
    table = np.array([found[place] for place in index], dtype=np.float64).reshape(-1, 5)
    return TokenScores(
        index=np.array(index, dtype=np.int64), nats=table[:, 0], tokens=table[:, 1], characters=table[:, 2],
        end_nats=table[:, 3], ends=table[:, 4],
    )  # fmt: skip


def _token_nats(model: Any, batch: Mapping[str, Tensor], labels: Tensor, *, shifts: bool) -> Tensor:
    """[row, token]: −log p of the labels, 0 where there is none."""
    more = {"use_cache": False} if shifts else {}
    with torch.inference_mode():
        logits = model(**model_inputs(batch), **more).logits
        if shifts:
            logits = logits[:, :-1]
        each = functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none"
        )
    return each.double().view(labels.shape)


def class_scores(
    model: Any,
    documents: Sequence[Encoded],
    *,
    collator: Collator,
    edits: EditsOf | None = None,
    step: Step | None = None,
) -> NDArray[np.float64]:
    """The log-probability of each class, [record, class], in a model in eval mode.

    edits: of attention, made for one document by its place in the batch.
    """
    found = []
    for group in batched(documents, _TEXTS, step):
        made = [edit for item, one in enumerate(group) for edit in edits(one, item)] if edits is not None else []
        found.append(class_logs(model, moved(collator(group), _device(model)), collator, edits=made))
    return np.concatenate(found)


def class_logs(
    model: Any, batch: dict[str, Tensor], collator: Collator, *, edits: Sequence[EdgeEdit] = ()
) -> NDArray[np.float64]:
    """The log-probability of each class of one batch, [record, class]."""
    inputs = {name: value for name, value in batch.items() if name in MODEL_INPUTS or name.endswith("_mask")}
    request = RowRequest([[0]] * len(batch["input_ids"]), layers=(), edits=edits)
    with torch.inference_mode(), tap(model, request) if edits else nullcontext():
        _, found = TaskLoss(task=collator.task)(model, inputs, batch["labels"], rows=None, items=None)
    logs: NDArray[np.float64] = found["logits"].double().log_softmax(-1).cpu().numpy()
    return logs


def model_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a model takes of a batch."""
    return {name: value for name, value in batch.items() if name in MODEL_INPUTS}


def moved(batch: Mapping[str, Tensor], device: Any) -> dict[str, Tensor]:
    """The batch on a device."""
    return {name: value.to(device) for name, value in batch.items()}


def batched(items: Sequence[Item], size: int, step: Step | None) -> Iterator[Sequence[Item]]:
    """Items in their order, so many at a time, saying how many are done."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
        if step is not None:
            step(min(start + size, len(items)), len(items))


def _device(model: Any) -> Any:
    return next(model.parameters()).device
