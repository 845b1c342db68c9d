"""TransformerLens on one text: a bridge around the local model, its cache filtered to the attention patterns."""

from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer

from benchmarks.measure import Work
from benchmarks.peers.job import WARM, answer


def bridge_of(folder: str) -> tuple[Any, Any]:
    """The model behind a bridge (eager attention, weights as they are), and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(folder, device="cpu", dtype=torch.float32, tokenizer=tokenizer)
    return bridge.eval(), tokenizer


def ready(job: dict[str, str]) -> Work:
    """The pass with a cache of every map."""
    bridge, tokenizer = bridge_of(job["model"])

    @torch.inference_mode()
    def work(text: str = job["text"]) -> Any:
        tokens = tokenizer(text, return_tensors="pt")["input_ids"]
        _, cache = bridge.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))
        return cache

    for tensor in bridge.parameters():
        tensor.sum()  # a mapped file's weights are in memory only once they have been read
    work(WARM)
    return work


def weights(found: Any) -> int:
    """All layers, heads, queries and keys."""
    return sum(int(pattern.numel()) for _, pattern in found.items())


if __name__ == "__main__":
    answer(ready, weights=weights)
