"""Runs from a stream for the tests: a tiny model, files of numbered texts, and a program for several processes."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

from finetune.begun import CHECKPOINTS
from finetune.config import RunConfig, config_of
from finetune.prepare import prepare_run
from finetune.train import make_trainer
from tests.family_zoo import tokenizer_of

WORDS = ["苹果", "芯片", "晶圆", "良率", "光刻", "功耗", "缓存", "封装"]


def tiny_base(folder: Path) -> Path:
    """A causal model with rotary positions and a tokenizer, as files."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer_of()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def texts(count: int) -> list[dict[str, str]]:
    """Texts of many lengths, each with two of the words."""
    draw = random.Random(0)
    found = []
    for number in range(count):
        one, other = draw.sample(WORDS, 2)
        text = f"第{number}份里{one}在前，后来{'又' * (number % 7)}谈到{other}。"
        found.append({"id": f"t{number}", "group": f"g{number}", "text": text})
    return found


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def pairs(path: Path) -> Path:
    rules = [{"query": one, "key": other, "direction": "either"} for one in WORDS[:4] for other in WORDS[4:]]
    path.write_text(yaml.safe_dump({"pairs": rules}, allow_unicode=True), encoding="utf-8")
    return path


def streamed(folder: Path, out: str, *, source: Path | None = None, **more: Any) -> RunConfig:
    """A run from the stream in `folder`, which holds base, train.jsonl and pairs.yaml."""
    given = {
        "model": str(folder / "base"), "task": "causal-lm", "out": str(folder / out), "seed": 5,
        "data": {
            "train": str(source or folder / "train.jsonl"), "streaming": True, "dev_share": 0, "max_length": 128,
            "look_ahead": 16, "shuffle_buffer": 8,
        },
        "pairs": {"file": str(folder / "pairs.yaml"), "absent_limit": 1.0},
        "attention": {"weight": 0.5, "norms_every": 0},
        "training": {"max_steps": 6, "per_device_train_batch_size": 4, "logging_steps": 2, "use_cpu": True},
    }  # fmt: skip
    for key, value in more.items():
        given[key] = {**given.get(key, {}), **value} if isinstance(value, dict) else value
    return config_of(given)


def learn(settings: dict[str, Any]) -> None:
    """Train in as many processes as were started; each writes which texts it saw, the first the weights."""
    config = config_of(settings)
    folder = config.folder
    folder.mkdir(parents=True, exist_ok=True)
    prepared = prepare_run(config, device="cpu")
    learner, _ = make_trainer(config, prepared, folder=folder, start=None, progress=None)
    seen: list[list[int]] = []
    plain = learner.compute_loss

    def watched(model: Any, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        seen.append(inputs["index"].tolist())
        return plain(model, inputs, *arguments, **named)

    learner.compute_loss = watched
    learner.train()
    rank = learner.accelerator.process_index
    (folder / f"seen{rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    if rank == 0:
        inner = learner.accelerator.unwrap_model(learner.model)
        weights = {name: weight.detach() for name, weight in inner.named_parameters() if weight.requires_grad}
        torch.save(weights, folder / CHECKPOINTS / "weights.pt")


if __name__ == "__main__":
    learn(json.loads(sys.argv[1]))
