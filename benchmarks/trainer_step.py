"""What the attention loss adds to a step of our trainer: time and memory, with LoRA on a causal model.

    python -m benchmarks.trainer_step [--preset ci|full] [--pairs 10] [--json FILE]

Both sides take one optimizer step of AttentionTrainer on the same batch: forward, language-model loss, backward,
AdamW on LoRA matrices at the query, key, value and output projections. Side B also holds eight pairs a text, rewarded
in the last third of the layers by the default loss. Leaves with exit code 1 where a bound is missed.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.measure import Work, compare_memory, compare_time
from benchmarks.row_capture import GEMMA
from benchmarks.supervised_step import RANDOM, model_of, subject_of
from benchmarks.supervised_step import Setting as TextSetting
from benchmarks.table import Line, line_of, print_table
from finetune.heads import chosen_layers, every_head
from finetune.losses import LossSettings
from finetune.supervise import KEY, QUERY, Supervision
from finetune.tasks import TaskLoss
from finetune.trainer import AttentionTrainer, WeightPlan

Side = Literal["plain", "supervised"]
PAIRS = 8  # a text
DISTANCE = 3  # tokens between a pair's words


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model and one shape of batch, with the ratios that must not be passed."""

    model: str
    texts: int
    tokens: int
    time_bound: float = 1.10
    memory_bound: float = 1.05
    memory_pairs: int = 2

    def __str__(self) -> str:
        return f"{self.model.removeprefix('builtin:')} trainer step, {self.texts} × {self.tokens:,}"


# In CI two pairs and a model of milliseconds can only show a gross slip, so the bounds there are wide.
PRESETS = {
    "ci": (Setting(model=RANDOM, texts=2, tokens=128, time_bound=1.8, memory_bound=1.3, memory_pairs=1),),
    "full": (Setting(model=GEMMA, texts=2, tokens=256), Setting(model=GEMMA, texts=1, tokens=1024)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a preset and print its table; gives the exit code."""
    about = "What a loss on attention adds to a step of the trainer."
    return print_table(arguments, name="trainer_step", about=about, presets=PRESETS, lines_of=measured)


def measured(setting: Setting, pairs: int) -> Iterator[Line]:
    """The lines of one setting, each as soon as it is known."""
    torch.set_num_threads(1)
    model, ids = subject_of(TextSetting(model=setting.model, tokens=setting.tokens))
    adapted = with_lora(model)
    plain, supervised = (stepping(trainer_of(adapted, side), ids, texts=setting.texts) for side in SIDES)
    time = compare_time(plain, supervised, pairs=pairs)
    yield line_of(setting, "CPU time", "s", time, held=time.low, bound=setting.time_bound)
    del model, adapted, plain, supervised  # the fresh processes need their room
    given = ((setting.model, ids, setting.texts, side) for side in SIDES)
    memory = compare_memory(ready_to_step, *given, pairs=setting.memory_pairs)
    yield line_of(setting, "memory increase", "MB", memory, held=memory.ratio, bound=setting.memory_bound)


SIDES: tuple[Side, Side] = ("plain", "supervised")


def with_lora(model: Any) -> Any:
    """LoRA matrices of rank 8 at the attention's four linear maps."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    return get_peft_model(model, LoraConfig(r=8, target_modules=targets))


def trainer_of(adapted: Any, side: Side) -> AttentionTrainer:
    """A side's trainer."""
    from transformers import TrainingArguments

    depths = len(chosen_layers("all", adapted.config.get_text_config().num_hidden_layers))
    heads = every_head(chosen_layers("last_third", depths), adapted.config.get_text_config().num_attention_heads)
    supervised = side == "supervised"
    return AttentionTrainer(
        model=adapted, task_loss=TaskLoss(task="causal-lm"),
        supervision=Supervision(settings=LossSettings(), heads=heads) if supervised else None,
        plan=WeightPlan(weight=0.1) if supervised else None,
        args=TrainingArguments(
            output_dir=tempfile.gettempdir(), report_to="none", max_steps=1, use_cpu=True, disable_tqdm=True,
            save_strategy="no", logging_strategy="no",
        ),
    )  # fmt: skip


def batch_of(ids: Sequence[int], *, texts: int) -> dict[str, Tensor]:
    """The same text so many times, with pairs spread evenly over it."""
    rows = torch.tensor([list(ids)] * texts)
    spans = []
    for text in range(texts):
        for place in range(PAIRS):
            query = len(ids) * (place + 1) // (PAIRS + 1)
            pair = text * PAIRS + place
            spans += [(text, QUERY, pair, query), (text, KEY, pair, query - DISTANCE)]
    return {
        "input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": rows.clone(),
        "spans": torch.tensor(spans), "pair_weights": torch.ones(texts * PAIRS),
        "pair_rules": torch.zeros(texts * PAIRS, dtype=torch.long), "index": torch.arange(texts),
    }  # fmt: skip


def stepping(trainer: AttentionTrainer, ids: Sequence[int], *, texts: int) -> Work:
    """One whole step: the batch's losses, backward, AdamW."""
    batch = batch_of(ids, texts=texts)
    trainer.create_optimizer_and_scheduler(num_training_steps=1000)

    def step() -> float:
        samples, items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
        with trainer.tapped():
            loss = trainer.training_step(trainer.model, samples[0], items)
        trainer.optimizer.step()
        trainer.model.zero_grad()
        return float(loss)

    return step


def ready_to_step(name: str, ids: Sequence[int], texts: int, side: Side) -> Work:
    """A side's step with all of the model and AdamW's state in memory: what runs in a fresh process."""
    model, _ = model_of(name)
    for weight in model.parameters():
        weight.sum()  # a mapped file's weights are in memory only once they have been read
    trainer = trainer_of(with_lora(model), side)
    stepping(trainer, ids[:64], texts=1)()
    return stepping(trainer, ids, texts=texts)


if __name__ == "__main__":
    sys.exit(main())
