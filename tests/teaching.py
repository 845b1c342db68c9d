"""Small learners for the tests of finetune: a tiny model with LoRA, texts of numbers, and pairs on them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

from finetune.losses import LossSettings
from finetune.supervise import KEY, QUERY, Supervision
from finetune.tasks import TaskLoss
from finetune.trainer import AttentionTrainer, WeightPlan

LAYERS, HEADS = 2, 4


def tiny_llama(seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=2, max_position_embeddings=128, **settings,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def with_lora(model: Any, seed: int = 1, **settings: Any) -> Any:
    """LoRA whose B is not zero, or the first gradients of A would be."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    targets = settings.pop("target_modules", ["q_proj", "k_proj", "v_proj"])
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets, **settings))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return adapted


def examples(count: int = 8, *, seed: int = 0) -> list[dict[str, Any]]:
    """Texts of 10 to 17 tokens with 0 to 3 pairs, so that an average of averages would be another number."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        length = 10 + number % 8
        ids = torch.randint(4, 60, (length,), generator=random).tolist()
        pairs = [([8 - pair], [pair, pair + 1]) for pair in range(number % 4)]
        found.append({"ids": ids, "pairs": pairs, "index": number})
    return found


def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(item["ids"]) for item in items)
    ids = torch.zeros(len(items), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    spans, weights = [], []
    for row, item in enumerate(items):
        length = len(item["ids"])
        ids[row, :length] = labels[row, :length] = torch.tensor(item["ids"])
        mask[row, :length] = 1
        for queries, keys in item["pairs"]:
            spans += [(row, QUERY, len(weights), place) for place in queries]
            spans += [(row, KEY, len(weights), place) for place in keys]
            weights.append(1.0 + row)
    return {
        "input_ids": ids, "attention_mask": mask, "labels": labels,
        "spans": torch.tensor(spans, dtype=torch.long).reshape(-1, 4), "pair_weights": torch.tensor(weights),
        "pair_rules": torch.zeros(len(weights), dtype=torch.long), "index": torch.tensor([i["index"] for i in items]),
    }  # fmt: skip


def supervision(**loss: Any) -> Supervision:
    return Supervision(settings=LossSettings(**{"threshold": 1.0, **loss}), heads={0: (1, 3), 1: (0, 1, 2)})


def trainer(model: Any, folder: Path, *, data: list[dict[str, Any]], supervised: Any = None, **arguments: Any) -> Any:
    settings = {
        "per_device_train_batch_size": 4, "max_steps": 1, "learning_rate": 1.0, "optim": "sgd", "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant", "report_to": [], "save_strategy": "no", "logging_strategy": "no",
        "disable_tqdm": True, "remove_unused_columns": False, "use_cpu": True, "seed": 3,
        "dataloader_pin_memory": False, "logging_nan_inf_filter": False,
    }  # fmt: skip
    more = {name: arguments.pop(name) for name in ("plan", "norms_every", "eval_dataset") if name in arguments}
    plan = more.pop("plan", WeightPlan(weight=0.5)) if supervised else None
    return AttentionTrainer(
        model=model, args=TrainingArguments(output_dir=str(folder), **{**settings, **arguments}), train_dataset=data,
        data_collator=collate, task_loss=TaskLoss(task="causal-lm"), supervision=supervised, plan=plan, **more,
    )  # fmt: skip


class InOrder(torch.utils.data.Dataset):
    """Examples as they are."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.items[place]


def equal_weights(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch whose pairs weigh alike, wherever in the batch their text stands."""
    batch = collate(items)
    batch["pair_weights"] = torch.ones_like(batch["pair_weights"])
    return batch


class Heard(TrainerCallback):
    """Passes each line of the log on, with its step."""

    def __init__(self, tell: Callable[[dict[str, float]], None]) -> None:
        self.tell = tell

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        self.tell({**logs, "step": state.global_step})


def hear(learner: Any, tell: Callable[[dict[str, float]], None]) -> None:
    """Have each line of the log told."""
    learner.add_callback(Heard(tell))


def learn_together(settings: dict[str, Any]) -> None:
    """Some steps in as many processes as were started, then write the first step's change and all losses."""
    folder = Path(settings["folder"])
    model = with_lora(tiny_llama())
    before = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}
    first, losses, told = {}, [], {}
    learner = trainer(
        model, folder, data=InOrder(examples(160)), supervised=supervision(name=settings["loss"]),
        max_steps=settings["steps"], learning_rate=0.05, per_device_train_batch_size=settings["size"],
        logging_strategy="steps", logging_steps=1, train_sampling_strategy="sequential",
    )  # fmt: skip
    learner.data_collator = equal_weights

    def watch(line: dict[str, float]) -> None:
        if "loss" not in line:
            return
        if not first:
            inner = learner.accelerator.unwrap_model(learner.model)
            now = dict(inner.named_parameters())
            first.update({name: now[name].detach() - before[name] for name in before})
        losses.append(line["loss"])
        told.update(line)

    hear(learner, watch)
    learner.train()
    if learner.accelerator.is_main_process:
        torch.save({"first": first, "losses": losses, "told": told}, folder / "told.pt")


if __name__ == "__main__":
    import json
    import sys

    learn_together(json.loads(sys.argv[1]))
