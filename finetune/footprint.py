"""What a run will need, from shapes alone: memory of its largest step, steps, tokens, and a bound on its work."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from finetune.batches import Examples
from finetune.config import LoraConfig
from finetune.encode import Encoded
from finetune.quantize import BYTES

_LOGITS = 4  # tensors of [token, vocabulary] at once: the logits, the shifted ones, their log-softmax, its gradient
_WIDTHS, _FFN = 4.0, 3.0  # measured: of bert, gpt2, llama, qwen3 and gemma3 none is further off than 40 %
_ATTENTION_MAPS = 3  # [head, query, key] kept where dropout keeps attention out of the fused kernel


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of the largest training step, on one device."""

    weights: int
    lora: int  # adapter and head: their weights and gradients
    optimizer: int
    activations: int
    gradients: int = 0  # method full: of the weights themselves
    kept: int = 0  # method full: what stands beside, the base's weights and gradients measured apart

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.lora + self.optimizer + self.activations + self.gradients + self.kept


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much there is to compute, in one process."""

    rows: int  # an epoch's, packed where the run packs
    batch: int  # rows a forward pass
    accumulation: int
    steps_an_epoch: int
    steps: int
    tokens: int  # an epoch's, padding left out
    longest: int  # tokens of the longest row
    flops: float  # of the whole run, at most
    streamed: bool = False  # then rows, tokens and the longest row are those of the first documents

    @property
    def epochs(self) -> float:
        """How often the texts are read."""
        return self.steps / self.steps_an_epoch


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that memory depends on."""

    layers: int
    hidden: int
    attention: int  # heads × size of a head
    ffn: int
    heads: int
    vocabulary: int  # of the logits, 0 where the task makes none
    maps_kept: bool  # attention dropout, which on a CPU no fused kernel computes


def shape_of(config: Any, *, heads: int, logits: bool) -> Shape:
    """Read the sizes off a transformers configuration; a feed-forward width that it does not name is four widths."""
    text = config.get_text_config()
    hidden = int(text.hidden_size)
    named = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "d_ff", "n_inner", "hidden_dim")
    wide = [value for value in (getattr(text, name, None) for name in named) if isinstance(value, int)]
    dropouts = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "attn_dropout")
    return Shape(
        layers=int(text.num_hidden_layers), hidden=hidden, heads=heads, ffn=wide[0] if wide else 4 * hidden,
        attention=heads * int(getattr(text, "head_dim", None) or hidden // heads),
        vocabulary=int(text.vocab_size) if logits else 0,
        maps_kept=any(float(getattr(text, name, 0.0) or 0.0) > 0 for name in dropouts),
    )  # fmt: skip


def memory_of(
    shape: Shape, *, parameters: int, trained: int, tokens: int, length: int, half: bool = False,
    checkpointing: bool = False, quantised: int = 0, full: bool = False, copies: int = 0,
) -> Memory:  # fmt: skip
    """Estimate the largest step; `tokens` are those of its batch, padding included, `length` those of a row.

    weights       4 P bytes, frozen, float32; of those `quantised` to 4 bit half a byte and their scales. Loading them
                  needs all 4 P for a moment
    lora          4 p for the trained weights and 4 p for their gradients; none with `full`
    gradients     4 p with `full`, where the trained weights are the model's own and stand in the first line
    kept          4 p for each of `copies` of all trained weights that full training needs beside
    optimizer     8 p, AdamW's two averages
    activations   b · tokens · (layers · A + 4 V) bytes; of each token a layer keeps A = 4 hidden + 4 (heads · head
                  size) + 3 ffn numbers, and 3 heads · length more where attention has dropout; V is the vocabulary,
                  if the task makes logits; b is 4, or 2 under bf16 and fp16. With gradient checkpointing a layer
                  keeps `hidden`, and one layer at a time A.

    A, 4 and 3 were fitted to torch's own count of a step's allocations in dense models; mixtures of experts need more.
    """
    kept = _WIDTHS * (shape.hidden + shape.attention) + _FFN * shape.ffn
    if shape.maps_kept:
        kept += _ATTENTION_MAPS * shape.heads * length
    layers = shape.layers * shape.hidden + kept if checkpointing else shape.layers * kept
    numbers = tokens * (layers + _LOGITS * shape.vocabulary)
    return Memory(
        weights=int(4 * (parameters - quantised) + BYTES * quantised),
        lora=0 if full else 8 * trained,
        optimizer=8 * trained,
        activations=int(numbers * (2 if half else 4)),
        gradients=4 * trained if full else 0,
        kept=4 * trained * copies,
    )


def trained_numbers(shell: nn.Module, targets: Sequence[str], settings: LoraConfig) -> int:
    """How many weights LoRA adds: r · (in + out) a map."""
    return sum(settings.r * sum(module.weight.shape) for _, module in adapted_maps(shell, targets, settings))


def adapted_maps(shell: nn.Module, targets: Sequence[str], settings: LoraConfig) -> Iterator[tuple[int | None, Any]]:
    """The maps that carry LoRA, each with its layer's number."""
    for name, module in shell.named_modules():
        if not any(f".{name}".endswith(f".{target}") for target in targets) or not hasattr(module, "weight"):
            continue
        number = re.search(r"\.(\d+)\.", name)
        layer = int(number[1]) if number else None
        if settings.layers is None or layer in settings.layers:
            yield layer, module


def work_of(rows: Examples, arguments: Any, *, parameters: int, streamed: bool = False) -> Work:
    """Count steps as Trainer does, in one process; 6 · parameters · tokens bounds the operations.

    The bound is that of full training: LoRA leaves most weights' gradients out, so it computes about two thirds.
    What attention adds with the square of a text's length is not in it.
    """
    batch, accumulation = int(arguments.per_device_train_batch_size), int(arguments.gradient_accumulation_steps)
    batches = len(rows) // batch if arguments.dataloader_drop_last else math.ceil(len(rows) / batch)
    an_epoch = max(math.ceil(batches / accumulation), 1)
    steps = int(arguments.max_steps)
    if steps <= 0:
        steps = math.ceil(an_epoch * float(arguments.num_train_epochs))
    tokens = sum(map(tokens_in, rows.documents))
    return Work(
        rows=len(rows), batch=batch, accumulation=accumulation, steps_an_epoch=an_epoch, steps=steps, tokens=tokens,
        longest=max(_longest(row) for row in rows.rows), flops=6.0 * parameters * tokens * steps / an_epoch,
        streamed=streamed,
    )  # fmt: skip


def tokens_in(document: Encoded) -> int:
    """Tokens of a record, of both sentences where they stand apart."""
    return len(document.input_ids) + (len(document.second.input_ids) if document.second else 0)


def _longest(row: Encoded | tuple[Encoded, ...]) -> int:
    return sum(len(one.input_ids) for one in row) if isinstance(row, tuple) else row.length
