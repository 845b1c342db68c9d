"""Runs that came to their end, made in the test: tiny models, a few steps, texts of our own."""

import json
from pathlib import Path
from typing import Any

from finetune.config import config_of
from finetune.train import train
from tests.tiny import tiny_bert, tiny_llama

SENSES = ("fruit", "company")
PAIRS = """
name: tiny
pairs:
  - {query: 苹果, key: 喜欢}
  - {query: 手机, key: 公司}
  - {query: 和平, key: 热爱, part: held_out}
  - {query: 菠菜, key: 讨厌, part: held_out}
"""


def lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return str(path)


def texts(part: str, count: int) -> list[dict[str, Any]]:
    """Texts that hold pairs of both parts; no text and no group stands in both parts of the data."""
    mark = {"train": "a", "test": "b"}[part]
    made = ("我喜欢苹果{}", "公司发布了手机{}", "我们热爱和平{}", "他讨厌菠菜{}")
    return [
        {
            "id": f"{part}-{number}",
            "group": f"{part} fact {number // 2}",
            "text": made[number % 4].format(f"{mark}{number}"),
        }
        for number in range(count)
    ]


def sense_texts(part: str, count: int) -> list[dict[str, Any]]:
    """苹果 as a fruit after 喜欢, as a company before 公司, the cue as a pair of the data."""
    mark = {"train": "a", "test": "b"}[part]
    found = []
    for number in range(count):
        fruit = number % 2 == 0
        text = f"我喜欢苹果{mark}{number}" if fruit else f"苹果公司发布了{mark}{number}"
        found.append({
            "id": f"{part}-{number}", "group": f"{part} {number}", "text": text, "target": "苹果",
            "label": SENSES[not fruit], "pairs": [{"query": "苹果", "key": "喜欢" if fruit else "公司"}],
        })  # fmt: skip
    return found


def language_model(folder: Path, *, count: int = 16, **changes: Any) -> Path:
    """A causal model taught a few texts with their pairs; gives its run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_llama(folder)
    (folder / "pairs.yaml").write_text(PAIRS, encoding="utf-8")
    given = {
        "model": str(folder / "llama"), "task": "causal-lm",
        "data": {
            "train": lines(folder / "train.jsonl", texts("train", count)),
            "test": lines(folder / "test.jsonl", texts("test", 24)), "max_length": 48, "dev_share": 0.2,
        },
        "pairs": {"file": str(folder / "pairs.yaml"), "direction": "either"},
        "attention": {"weight": 1.0, "heads": "all", "norms_every": 0, "loss": "mass", "threshold": 1.0},
        "training": {"max_steps": 3, "per_device_train_batch_size": 4, "use_cpu": True, "learning_rate": 5e-3},
        "out": str(folder / "run"),
    }  # fmt: skip
    return taught(given, changes)


def sense_reader(folder: Path, *, count: int = 24, **changes: Any) -> Path:
    """An encoder taught to tell two senses of 苹果; gives its run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_bert(folder)
    given = {
        "model": str(folder / "bert"), "task": "sense",
        "data": {
            "train": lines(folder / "train.jsonl", sense_texts("train", count)),
            "test": lines(folder / "test.jsonl", sense_texts("test", 20)), "max_length": 48, "dev_share": 0.2,
        },
        "training": {"max_steps": 3, "per_device_train_batch_size": 8, "use_cpu": True, "learning_rate": 5e-3},
        "out": str(folder / "run"),
    }  # fmt: skip
    return taught(given, changes)


def classifier(folder: Path, *, task: str = "classification", **changes: Any) -> Path:
    """A model that tells texts of two classes apart (or, with task masked-lm, fills gaps); gives its run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_bert(folder)
    given = {
        "model": str(folder / "bert"), "task": task,
        "data": {
            "train": lines(folder / "train.jsonl", sense_texts("train", 24)),
            "test": lines(folder / "test.jsonl", sense_texts("test", 20)), "max_length": 48, "dev_share": 0.2,
        },
        "training": {"max_steps": 2, "per_device_train_batch_size": 8, "use_cpu": True, "learning_rate": 5e-3},
        "out": str(folder / "run"),
    }  # fmt: skip
    return taught(given, changes)


def taught(given: dict[str, Any], changes: dict[str, Any]) -> Path:
    """Train; changes name keys with __ for a dot, and None takes a key away."""
    for name, value in changes.items():
        *path, last = name.split("__")
        place = given
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    config = config_of({name: value for name, value in given.items() if value is not None})
    return train(config, device="cpu").folder
