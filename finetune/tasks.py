"""What a model is trained on: its class, its head, and the task's loss over a whole step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from finetune.dataconfig import Task

MODEL_CLASSES: Mapping[Task, str] = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "sense": "AutoModel",
    "word-in-context": "AutoModel",
    "classification": "AutoModelForSequenceClassification",
}
PEFT_TASKS: Mapping[Task, str] = {
    "causal-lm": "CAUSAL_LM",
    "masked-lm": "FEATURE_EXTRACTION",
    "sense": "FEATURE_EXTRACTION",
    "word-in-context": "FEATURE_EXTRACTION",
    "classification": "SEQ_CLS",
}
READING = ("sense", "word-in-context")  # tasks with a head of ours on the states of marked words


@dataclass(frozen=True, kw_only=True)
class TaskLoss:
    """The task's loss of one micro-batch, as its share of the whole step.

    Called as (model, inputs, labels, rows=request or None, items=number of labels in the whole step or None); gives the
    loss and {"logits": …}. Without `items` the loss is the mean over the batch. Labels are smoothed in training alone:
    the loss on dev means the same in every run.
    """

    task: Task
    label_smoothing: float = 0.0

    @property
    def shifts(self) -> bool:
        """Whether a label stands one place before the token that it names."""
        return self.task == "causal-lm"

    def __call__(
        self, model: nn.Module, inputs: Mapping[str, Tensor], labels: Tensor, *, rows: Any, items: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the model and give the loss."""
        given = {name: value for name, value in inputs.items() if name not in ("target_mask", "second_mask")}
        more: dict[str, Any] = {} if rows is None else {"rows": rows}
        if self.task == "causal-lm":
            more["use_cache"] = False
        output = model(**given, **more)
        reads = self.task in READING
        logits = reading_logits(model, output.last_hidden_state, inputs) if reads else output.logits
        smoothing = self.label_smoothing if model.training else 0.0
        return self._cross_entropy(logits, labels, items, smoothing=smoothing), {"logits": logits}

    def _cross_entropy(self, logits: Tensor, labels: Tensor, items: Any, *, smoothing: float = 0.0) -> Tensor:
        if self.shifts:
            logits, labels = logits[:, :-1], labels[:, 1:]
        flat, wanted = at_least_float32(logits.reshape(-1, logits.shape[-1])), labels.reshape(-1)
        total = functional.cross_entropy(flat, wanted, ignore_index=-100, reduction="sum", label_smoothing=smoothing)
        count = (wanted != -100).sum().clamp_min(1) if items is None else items
        return total / count


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision becomes float32; float64 is not rounded."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


class ReadingHead(nn.Module):
    """What a reading head has in common: states are centred and scaled as the base model's were on the training texts.

    States of such encoders lie in a narrow cone, so that without this a linear map first has to learn to look past
    what all words share.
    """

    def __init__(self, width: int, features: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.out = nn.Linear(features, classes)
        nn.init.zeros_(self.out.bias)

    def set_centre(self, states: Tensor) -> None:
        """Take mean and deviation from states [word, dim] of the model before it is trained."""
        self.centre = states.mean(0)
        self.scale = states.std(0, unbiased=False).clamp_min(1e-6)

    def read(self, states: Tensor, mask: Tensor) -> Tensor:
        """The marked words' states, [text, dim], centred and scaled."""
        found: Tensor = (span_mean(states, mask) - self.centre) / self.scale
        return found


class SenseHead(ReadingHead):
    """A linear map from the mean state of the target's tokens to the senses."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(width, width, classes)

    def forward(self, states: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
        """[text, sense] of states [text, token, dim] and target_mask [text, token]."""
        logits: Tensor = self.out(self.read(states, masks["target_mask"]))
        return logits


class PairHead(ReadingHead):
    """A linear map from |u − v| and u × v, the two targets' mean states, to same or not."""

    def __init__(self, width: int, classes: int = 2) -> None:
        super().__init__(width, 2 * width, classes)

    def forward(self, states: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
        """[pair, class]; one text a pair with target_mask and second_mask, or two texts, one after the other."""
        if "second_mask" in masks:
            u, v = (self.read(states, masks[name]) for name in ("target_mask", "second_mask"))
        else:
            both = self.read(states, masks["target_mask"])
            u, v = both[::2], both[1::2]
        logits: Tensor = self.out(torch.cat([(u - v).abs(), u * v], -1))
        return logits


def centre_head(model: Any, batches: Iterable[Mapping[str, Tensor]]) -> None:
    """Set the reading head's centre and scale from the base model's states of the marked words in these batches."""
    found = []
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for batch in batches:
            given = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}
            states = model(**given).last_hidden_state
            masks = [batch[name] for name in ("target_mask", "second_mask") if name in batch]
            found += [span_mean(states, mask) for mask in masks]
    model.train(was_training)
    model.reading_head.set_centre(torch.cat(found).clone())


def span_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Mean state of the marked tokens, [text, dim], float32."""
    states = at_least_float32(states)
    weight = mask.to(states.dtype)[..., None]
    return (states * weight).sum(1) / weight.sum(1).clamp_min(1.0)


def spoilt_weight(model: nn.Module) -> str | None:
    """The name of a trained tensor that holds NaN or infinity, or None."""
    trained = ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)
    return next((name for name, weight in trained if not weight.detach().isfinite().all()), None)


def head_for(task: Task, *, width: int, classes: int) -> nn.Module | None:
    """The head of a reading task, its weights drawn from torch's generator; None where the model has one itself."""
    if task == "sense":
        return SenseHead(width, classes)
    return PairHead(width, classes) if task == "word-in-context" else None


def reading_logits(model: nn.Module, states: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """What the model's reading head makes of its states; DDP and the like are looked through."""
    inner: Any = getattr(model, "module", model)
    logits: Tensor = inner.reading_head(states, inputs)
    return logits
