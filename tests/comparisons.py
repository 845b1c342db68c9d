"""A small comparison for tests: a tiny language model, texts with pairs, and a measure that reads the opened model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from finetune.compare.arms import ArmModel
from finetune.compare.items import Item
from tests.finished import PAIRS, lines, texts
from tests.tiny import SENTENCES, tiny_llama

QUESTIONS = [
    {"id": f"q{number}", "group": f"test fact {number}", "prompt": "我喜欢", "right": "苹果", "wrong": "手机",
     "pair": ["苹果", "喜欢"]}
    for number in range(3)
]  # fmt: skip
GLOSSES = [{"word": "喜欢", "gloss": "热爱"}]


def comparison(folder: Path, **changes: Any) -> dict[str, Any]:
    """The file of a comparison on a tiny model; changes replace keys."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_llama(folder)
    (folder / "pairs.yaml").write_text(PAIRS, encoding="utf-8")
    given = {
        "model": str(folder / "llama"), "task": "causal-lm",
        "data": {
            "train": lines(folder / "train.jsonl", texts("train", 16)),
            "test": lines(folder / "test.jsonl", texts("test", 8)), "max_length": 48, "dev_share": 0.2,
        },
        "pairs": {"file": str(folder / "pairs.yaml"), "direction": "either"},
        "attention": {"norms_every": 0, "threshold": 1.0},
        "lora": {"r": 2, "dropout": 0.1},
        "training": {"num_train_epochs": 1, "per_device_train_batch_size": 4, "use_cpu": True, "learning_rate": 5e-3},
        "more_text": lines(folder / "more.jsonl", more_texts(24)),
        "questions": lines(folder / "questions.jsonl", QUESTIONS), "glosses": lines(folder / "glosses.jsonl", GLOSSES),
        "general": lines(folder / "general.jsonl", [{"id": "g", "text": SENTENCES[0]}]),
        "arms": ["base", "lora", "lora-attention", "lora-random"],
    }  # fmt: skip
    return {**given, **changes}


def more_texts(count: int) -> list[dict[str, str]]:
    return [
        {"id": f"more-{number}", "group": f"more {number}", "text": f"牛顿被苹果砸中c{number}"}
        for number in range(count)
    ]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What the stand-in gives, as measuring does."""

    items: Sequence[Item]
    maps: pd.DataFrame
    written: pd.DataFrame
    context_tokens: float


def sentence_nats(opened: ArmModel, *, known: Sequence[Item] = (), progress: Any = None) -> Numbers:
    """Nats a token of the tests' sentences under the opened model: numbers that its weights alone decide."""
    items = list(known)
    for text in () if known else SENTENCES[:4]:
        given = opened.loaded.tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            loss = opened.model(input_ids=given["input_ids"], labels=given["input_ids"]).loss
        tokens = given["input_ids"].shape[1] - 1
        items.append(Item(measure="perplexity", part="test", item=text, unit=text, value=float(loss), weight=tokens))
    if progress is not None:
        progress("sentences", len(items), len(items))
    maps = pd.DataFrame({"item": ["q"], "role": ["answer → word"], "layer": [0], "head": [0], "value": [0.5]})
    return Numbers(items=items, maps=maps, written=pd.DataFrame({"question": ["q"], "text": ["t"]}), context_tokens=3.5)


class Counted:
    """The stand-in that writes down which jobs it measured, into a file that processes share."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, opened: ArmModel, /, *, known: Sequence[Item] = (), progress: Any = None) -> Numbers:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{opened.arm.name}:{opened.seed}\n")
        return sentence_nats(opened, known=known, progress=progress)

    @property
    def names(self) -> list[str]:
        """The jobs measured since the last look, in their order."""
        found = self.log.read_text("utf-8").split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found
