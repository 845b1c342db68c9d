"""inseq on one text: attention of the step after it, which is the last token's row, and the page of `show`."""

from typing import Any

import inseq
import torch

from benchmarks.measure import Work
from benchmarks.peers.job import WARM, answer


def ready(job: dict[str, str]) -> Work:
    """One forced step after the text: inseq gives rows of steps, and its weights need eager attention."""
    settings = {"attn_implementation": "eager", "dtype": torch.float32}
    model = inseq.load_model(job["model"], "attention", device="cpu", model_kwargs=settings)

    def work(text: str = job["text"]) -> Any:
        more = "我" if text.endswith("。") else "。"
        return model.attribute(text, f"{text}{more}", show_progress=False)

    for tensor in model.model.parameters():
        tensor.sum()  # a mapped file's weights are in memory only once they have been read
    work(WARM)
    return work


def weights(found: Any) -> int:
    """All that the one attribution holds."""
    return int(found.sequence_attributions[0].target_attributions.numel())


def page(found: Any, job: dict[str, str]) -> str:
    """The table of `show`, averaged over layers and heads."""
    return str(found.show(return_html=True, display=False))


if __name__ == "__main__":
    answer(ready, weights=weights, page=page)
