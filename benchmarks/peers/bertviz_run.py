"""BertViz on one text: every map from eager attention, as its README says, then the page of head_view."""

from typing import Any

import torch
from bertviz import head_view
from transformers import AutoModel, AutoTokenizer

from benchmarks.measure import Work
from benchmarks.peers.job import WARM, answer


def ready(job: dict[str, str]) -> Work:
    """The pass with all maps; eager, for SDPA gives none."""
    model = AutoModel.from_pretrained(job["model"], attn_implementation="eager", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(job["model"])

    @torch.inference_mode()
    def work(text: str = job["text"]) -> Any:
        batch = tokenizer(text, return_tensors="pt")
        attention = model(**batch, output_attentions=True, use_cache=False).attentions
        return attention, tokenizer.convert_ids_to_tokens(batch["input_ids"][0])

    for tensor in model.parameters():
        tensor.sum()  # a mapped file's weights are in memory only once they have been read
    work(WARM)
    return work


def weights(found: Any) -> int:
    """All layers, heads, queries and keys."""
    return sum(int(layer.numel()) for layer in found[0])


def page(found: Any, job: dict[str, str]) -> str:
    """The head view, which holds every weight as JSON."""
    attention, tokens = found
    return str(head_view(attention, tokens, html_action="return").data)


if __name__ == "__main__":
    answer(ready, weights=weights, page=page)
