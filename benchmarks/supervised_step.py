"""What an attention loss on eight rows in every layer adds to a LoRA training step: time and memory.

    python -m benchmarks.supervised_step [--preset ci|full] [--pairs 10] [--json FILE]

Both sides take one step on the same Chinese text: forward, language-model loss, backward, AdamW on LoRA matrices at
the query, key, value and output projections. Side B asks the tap for eight query tokens' rows, as a keyword of the
forward pass, and adds 0.1 times the mean of -log of the attention that they give to three earlier tokens each.
Leaves with exit code 1 where a bound is missed.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.measure import Work, compare_memory, compare_time
from benchmarks.row_capture import GEMMA, our_sentences
from benchmarks.table import Line, line_of, print_table
from probe.models import load_model
from probe.rowrequest import RowRequest
from probe.rowtap import attached

Side = Literal["plain", "supervised"]

ROWS = 8
DISTANCES = (2, 3, 4)  # of the supervised keys before their query; within every layer's window
WEIGHT = 0.1  # of the attention loss
RANK = 8
RANDOM = "random Llama"
_ATTENTION_MAPS = ["q_proj", "k_proj", "v_proj", "o_proj"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model and one length of text, with the ratios that must not be passed."""

    model: str
    tokens: int
    time_bound: float = 1.08
    memory_bound: float = 1.05
    memory_pairs: int = 2

    def __str__(self) -> str:
        return f"{self.model.removeprefix('builtin:')} LoRA step, {self.tokens:,}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Learner:
    """A model with LoRA matrices, what optimises them, and the text to learn from."""

    model: Any
    optimizer: torch.optim.Optimizer
    ids: Tensor  # [1, token]


# In CI two pairs and a model of milliseconds can only show a gross slip, so the bounds there are wide.
PRESETS = {
    "ci": (Setting(model=RANDOM, tokens=256, time_bound=1.6, memory_bound=1.3, memory_pairs=1),),
    "full": (Setting(model=GEMMA, tokens=1024), Setting(model=GEMMA, tokens=2048)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a preset and print its table; gives the exit code."""
    about = "What a loss on attention rows adds to a LoRA step."
    return print_table(arguments, name="supervised_step", about=about, presets=PRESETS, lines_of=measured)


def measured(setting: Setting, pairs: int) -> Iterator[Line]:
    """The lines of one setting, each as soon as it is known."""
    torch.set_num_threads(1)
    model, ids = subject_of(setting)
    learner = learner_of(model, ids)
    time = compare_time(partial(plain_step, learner), partial(supervised_step, learner), pairs=pairs)
    yield line_of(setting, "CPU time", "s", time, held=time.low, bound=setting.time_bound)
    del model, learner  # the fresh processes need their room
    plain, supervised = ((setting.model, ids, side) for side in ("plain", "supervised"))
    memory = compare_memory(ready_to_step, plain, supervised, pairs=setting.memory_pairs)
    yield line_of(setting, "memory increase", "MB", memory, held=memory.ratio, bound=setting.memory_bound)


def subject_of(setting: Setting) -> tuple[Any, list[int]]:
    """The setting's model with its head, and a text of exactly that many tokens."""
    model, tokenizer = model_of(setting.model)
    if tokenizer is None:
        return model, [place % 900 + 5 for place in range(setting.tokens)]
    stream, (first, _) = our_sentences(tokenizer)
    return model, [*first, *islice(stream, setting.tokens - len(first))]


def model_of(name: str) -> tuple[Any, Any]:
    """The model with its head, and its tokenizer; the small random model of CI has none and needs no weights."""
    if name != RANDOM:
        loaded = load_model(name, device="cpu", dtype="float32", head="lm")
        loaded.model.set_attn_implementation("sdpa")
        return loaded.model, loaded.tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 1024}
    return LlamaForCausalLM(LlamaConfig(vocab_size=1000, num_key_value_heads=2, **sizes)), None


def learner_of(model: Any, ids: Sequence[int], **settings: Any) -> Learner:
    """The model with LoRA matrices of rank 8 at its attention's four linear maps; all else is frozen."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    adapted = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=RANK, target_modules=_ATTENTION_MAPS, **settings))
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    return Learner(model=adapted.train(), optimizer=torch.optim.AdamW(trained, lr=1e-4), ids=torch.tensor([ids]))


def plain_step(learner: Learner) -> float:
    """Side A."""
    return _learn(learner, language_loss(learner))


def supervised_step(learner: Learner) -> float:
    """Side B."""
    queries, keys = supervision(learner.ids.shape[1])
    request = RowRequest([queries])
    with attached(learner.model):
        loss = language_loss(learner, rows=request)
        return _learn(learner, loss + WEIGHT * attention_loss(list(request.rows.values()), keys))


def language_loss(learner: Learner, **settings: Any) -> Tensor:
    """The mean surprise at each next token."""
    loss: Tensor = learner.model(input_ids=learner.ids, labels=learner.ids, use_cache=False, **settings).loss
    return loss


def supervision(length: int) -> tuple[list[int], Tensor]:
    """Query positions spread evenly over the text, and the earlier positions each is to look at, [query, key]."""
    queries = [length * place // (ROWS + 1) for place in range(1, ROWS + 1)]
    return queries, torch.tensor([[query - distance for distance in DISTANCES] for query in queries])


def attention_loss(rows: Sequence[Tensor], keys: Tensor) -> Tensor:
    """-log of the attention that each query gives to its keys together, the mean over layers, heads and queries.

    rows: one tensor a layer, [text, head, query, key]; keys: positions, [query, key].
    """
    losses = []
    for row in rows:
        wanted = row.gather(-1, keys.expand(*row.shape[:2], *keys.shape))  # [text, head, query, wanted key]
        losses.append(-wanted.sum(-1).log().mean())
    return torch.stack(losses).mean()


def _learn(learner: Learner, loss: Tensor) -> float:
    learner.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    learner.optimizer.step()
    found = loss.item()
    if not math.isfinite(found):
        raise FloatingPointError(f"the loss is {found}: the step measured is not one that trains")
    return found


_STEPS: Mapping[Side, Callable[[Learner], float]] = {"plain": plain_step, "supervised": supervised_step}


def ready_to_step(name: str, ids: Sequence[int], side: Side) -> Work:
    """A side's step with all of the model and AdamW's state in memory: what runs in a fresh process."""
    model, _ = model_of(name)
    for weight in model.parameters():
        weight.sum()  # a mapped file's weights are in memory only once they have been read
    learner = learner_of(model, ids)
    short = Learner(model=learner.model, optimizer=learner.optimizer, ids=learner.ids[:, :64])
    _STEPS[side](short)
    return partial(_STEPS[side], learner)


if __name__ == "__main__":
    sys.exit(main())
